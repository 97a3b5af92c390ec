"""Reports of run directories, as HTML and Markdown."""

from vit_jax.studies.report.report import write

__all__ = ["write"]
