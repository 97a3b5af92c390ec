"""Host cores that feed a model on a slice: its roofline rate over the loading rate of a core."""

from vit_jax import config, models
from vit_jax.models import variants
from vit_jax.preflight import topologies

TRAINING = 3  # a backward pass is two products for each one of the forward pass
MFU = 0.4  # share of peak that good runs reach


def needs(variant: str, topology: str, per_core: float) -> list[tuple[str, str]]:
    """Returns labeled lines for people.

    Args:
      variant: a model by name, at 224 x 224 pixels.
      topology: a slice by name, as `preflight` knows it; nothing is compiled.
      per_core: images per second and host core, as measured here.
    """
    generation, shape = topologies.parse(topology)
    chip, chips = topologies.CHIPS[generation], 1
    for side in shape:
        chips *= side
    size = (224, 224)
    model = models.complete(config.Model(variant=variant, num_classes=1000))
    flops = TRAINING * variants.required(variants.flops(model, size, 3))
    peak = chips * chip.flops
    rate = peak / flops
    return [
        (
            "feed",
            f"{variant} at 224 px on {topology}: {chips} chips, {peak:.3g} FLOP/s in bfloat16",
        ),
        ("training an image", f"{flops:.3g} FLOPs: 6 for each of {flops / 6:.3g} multiply-adds"),
        ("at the roofline", f"{rate:,.0f} images/s, the peak of the matrix units"),
        ("", f"{rate / per_core:,.1f} host cores like these, at {per_core:,.0f} images/s each"),
        (f"at {MFU:.0%} of it", f"{MFU * rate:,.0f} images/s: {MFU * rate / per_core:,.1f} cores"),
    ]
