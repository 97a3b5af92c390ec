"""Linear segmentation from the features of frozen patches: `vit_jax segment`."""

from vit_jax.inference.segmentation.linear import Result, measure

__all__ = ["Result", "measure"]
