"""Features of a folder or a data set as a file: what the head sees, or every token."""

from vit_jax.embedding.extraction import embed, write

__all__ = ["embed", "write"]
