"""Reports of run and transfer directories."""

from vit_jax.studies.report.page import write

__all__ = ["write"]
