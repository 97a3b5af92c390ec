"""Filters, position embeddings and attention of a model, as arrays and figures."""

from vit_jax import config


class CannotAnswer(config.ConfigError):
    """The model or the given images do not support the requested figure."""
