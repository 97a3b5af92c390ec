"""Looking into a model: its filters, positions and attention, as arrays and as figures."""

from vit_jax import config


class CannotAnswer(config.ConfigError):
    """A question that a model, or what was given with it, has no answer to."""
