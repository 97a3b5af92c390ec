"""MkDocs hooks: the generated pages, and a page of source for every file that a page links to.

Pages in docs/ link to code as GitHub shows it (`../vit_jax/config/paper.py`), and to folders. The
site has a page with the text of each, so that it needs no server and no address of a repository.
"""

import ast
import json
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import code_blocks
import reference
from mkdocs.structure.files import File, Files

ROOT = reference.ROOT
LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)]*)?\))")
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
COPIED = {"changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md"}
HIDDEN = "---\nsearch:\n  exclude: true\n---\n"


def on_files(files: Files, config: Any) -> Files:
    """Adds the generated pages, the copied ones, and the pages of source."""
    for path, make in reference.PAGES.items():
        files.append(File.generated(config, path, content=make()))
    for path, file in COPIED.items():
        text = _relinked((ROOT / file).read_text(), ROOT, ROOT / "docs")
        files.append(File.generated(config, path, content=text))
    for page in list(files.documentation_pages()):
        folder = ROOT / "docs" / pathlib.PurePosixPath(page.src_uri).parent
        for target in _targets(page.content_string, folder):
            if files.get_file_from_path(_page_of(target)) is None:
                text = _source(target)
                files.append(File.generated(config, _page_of(target), content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Leads links to code and folders to their pages, and fits code into the column."""
    folder = ROOT / "docs" / pathlib.PurePosixPath(page.file.src_uri).parent
    up = "../" * page.file.src_uri.count("/")

    def lead(match: re.Match[str]) -> str:
        target = _target(match[2], folder)
        return match[0] if target is None else f"{match[1]}{up}{_page_of(target)})"

    return code_blocks.fit(LINK.sub(lead, markdown))


def _targets(markdown: str, folder: pathlib.Path) -> Iterator[pathlib.Path]:
    for match in LINK.finditer(FENCE.sub("", markdown)):
        if (target := _target(match[2], folder)) is not None:
            yield target


def _target(link: str, folder: pathlib.Path) -> pathlib.Path | None:
    """The code or folder of the checkout that a link leads to, or None."""
    if ":" in link:
        return None
    target = (folder / link).resolve()
    if not target.exists() or not target.is_relative_to(ROOT):
        return None
    in_docs = target.is_relative_to(ROOT / "docs")
    shown = target.is_dir() or target.suffix in (".py", ".ipynb") or not in_docs
    return target if shown else None


def _page_of(target: pathlib.Path) -> str:
    return f"source/{target.relative_to(ROOT)}{'/index' * target.is_dir()}.md"


def _source(target: pathlib.Path) -> str:
    """The page of a file: its text or cells; of a folder: its files, with first lines."""
    name = str(target.relative_to(ROOT))
    if target.is_dir():
        rows = [(f"`{file.name}`", _summary(file)) for file in sorted(target.rglob("*.py"))]
        return f"{HIDDEN}# {name}\n\n{reference.table(('file', 'content'), rows)}"
    if target.suffix == ".ipynb":
        return HIDDEN + _notebook(json.loads(target.read_text()))
    language = {".py": "python", ".sh": "bash", ".jsonl": "json"}.get(target.suffix, "text")
    fence = "~" * 8
    return f"{HIDDEN}# {name}\n\n{fence}{language}\n{target.read_text().rstrip()}\n{fence}\n"


def _notebook(book: dict[str, Any]) -> str:
    parts = []
    for cell in book["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
    return "\n\n".join(parts) + "\n"


def _summary(file: pathlib.Path) -> str:
    return (ast.get_docstring(ast.parse(file.read_text())) or "").partition("\n")[0]


def _relinked(markdown: str, old: pathlib.Path, new: pathlib.Path) -> str:
    """Markdown of a page that moves from one folder to another."""

    def lead(match: re.Match[str]) -> str:
        path = (old / match[2]).resolve()
        if ":" in match[2] or not path.exists():
            return match[0]
        moved = path.relative_to(new) if path.is_relative_to(new) else f"../{path.relative_to(old)}"
        return f"{match[1]}{moved}{match[3]}"

    return LINK.sub(lead, markdown)
