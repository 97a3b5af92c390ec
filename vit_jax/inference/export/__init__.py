"""Export: a checkpoint as a program that runs without vit_jax."""

from vit_jax.inference.export.program import ExportOptions, check_output, lines, trace, write

__all__ = ["ExportOptions", "check_output", "lines", "trace", "write"]
