"""How much masked patch prediction corrupts and predicts, without jax."""

from vit_jax import config

OFF = config.Masked()
SIDES = {"colour": 1, "colour_4x4": 4}  # parts of a patch, along each side, that have a colour
BITS = 3  # of each channel of a colour


def corrupted(masked: config.Masked, patches: int) -> int:
    """Returns how many of an image's patches are corrupted, and predicted."""
    return round(masked.rate * patches)


def colours(channels: int) -> int:
    """Returns the number of colours: 512 of RGB (ViT, appendix B.1.2)."""
    return 2 ** (BITS * channels)


def outputs(masked: config.Masked, patch: tuple[int, int], channels: int) -> int:
    """Returns how many numbers are predicted of a patch: logits of its colours, or its pixels."""
    if masked.target not in SIDES:
        return patch[0] * patch[1] * channels
    return SIDES[masked.target] ** 2 * colours(channels)
