"""How much masked patch prediction corrupts and predicts, without jax."""

from vit_jax import config

OFF = config.Masked()
SIDES = {"color": 1, "color_4x4": 4}  # parts of a patch, along each side, that have a color
BITS = 3  # of each channel of a color


def corrupted(masked: config.Masked, patches: int) -> int:
    """Returns how many of an image's patches are corrupted, and predicted."""
    return round(masked.rate * patches)


def colors(channels: int) -> int:
    """Returns the number of colors: 512 of RGB (ViT, appendix B.1.2)."""
    return 2 ** (BITS * channels)


def outputs(masked: config.Masked, patch: tuple[int, int], channels: int) -> int:
    """Returns how many numbers are predicted of a patch: logits of its colors, or its pixels."""
    if masked.target not in SIDES:
        return patch[0] * patch[1] * channels
    return SIDES[masked.target] ** 2 * colors(channels)
