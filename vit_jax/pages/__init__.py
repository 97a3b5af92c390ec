"""Tables, charts and pictures as HTML, SVG, Markdown and PNG."""
