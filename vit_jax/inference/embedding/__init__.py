"""Features of a folder or a data set as a file: the input of the head, or every token."""

from vit_jax.inference.embedding.extraction import embed, write

__all__ = ["embed", "write"]
