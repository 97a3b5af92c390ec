"""ResNets with GroupNorm and weight standardization, as in Big Transfer."""

import dataclasses
from typing import Any

from vit_jax import config
from vit_jax.models import flop_count, variants
from vit_jax.models.family import Family
from vit_jax.models.variants import required

# Of --smoke: a stage that loops over its units, and one that changes size; half of 64 channels is
# one for each group of GroupNorm.
UNITS, WIDTH, REPRESENTATION = (2, 1), 0.5, 32


class ResNetFamily(Family):
    """R50x1 and its kind."""

    weights: str | None = "bit"
    unread = (
        "patch_size", "width", "depth", "mlp_dim", "heads", "mlp", "layer_scale", "registers",
        "stem_norm", "qk_norm", "sub_norm", "biasless", "rotary", "rotary_span", "rotary_grid",
        "relative_bias", "init",
        "patch_remainder", "pooling", "class_token", "distillation", "position", "class_position",
        "position_place", "position_resize", "activation", "gelu", "norm", "norm_epsilon",
        "norm_place", "attention",
    )  # fmt: skip

    def check(self, model: config.Model, image_size: tuple[int, int]) -> None:
        """Raises ConfigError for missing units and for regularization of encoders."""
        if not model.resnet_units:
            raise config.ConfigError(
                f"model.resnet_units={config.show(model.resnet_units)}: {model.architecture} needs "
                "the units of its stages; set 3,4,6,3, or name one with model.variant=R50x1"
            )
        if model.remat == "attention":
            raise config.ConfigError(
                f"model.remat=attention: {model.architecture} has no encoder whose attention could "
                "be recomputed; set full, dots or none"
            )
        for key in ("dropout", "stochastic_depth"):
            if getattr(model, key):
                raise config.ConfigError(
                    f"model.{key}={getattr(model, key):g}: {model.architecture} has none; set 0"
                )

    def grid(self, model: config.Model, image_size: tuple[int, int]) -> tuple[int, int]:
        """Returns the rows and columns of the last map."""
        return variants.reduced(model, image_size)

    def flops(
        self,
        model: config.Model,
        image_size: tuple[int, int],
        channels: int,
        masked: config.Masked,
    ) -> int | None:
        """Returns the FLOPs of the forward pass of one image."""
        total, features = flop_count.backbone(model, image_size, channels, self.middle_macs)
        return 2 * (total + flop_count.head(model, features))

    def middle_macs(self, size: flop_count.Map, features: int, stride: int) -> int:
        """Returns the multiply-accumulates of the middle layer of a unit, on a map of `size`."""
        return flop_count.convolution_3x3(size, features, stride)

    def shrink(
        self, model: config.Model, image_size: tuple[int, int]
    ) -> tuple[config.Model, tuple[int, int]]:
        """Returns two short, narrow stages with a last map of two by two positions."""
        size = None if model.representation_size is None else REPRESENTATION
        small = dataclasses.replace(
            shrink_backbone(model), representation_size=size, unroll=min(model.unroll, 2)
        )
        # A patch size that is set but not read still scales the images.
        height, width = small.patch_size or (1, 1)
        factor = variants.reduction(small)
        return small, (2 * factor * height, 2 * factor * width)

    def lacks(self, model: config.Model, figure: str) -> str | None:
        """Returns why `inspect` cannot draw a figure."""
        return {
            "posemb": "a ResNet has no position embedding",
            "attention": "a ResNet has no tokens that attend to each other",
            "features": "a ResNet has no tokens",
        }.get(figure)

    def filters(self, model: config.Model) -> tuple[str, ...]:
        """Returns the path of the first convolution."""
        return "resnet", "conv_root", "kernel"

    def network(
        self,
        model: config.Model,
        image_size: tuple[int, int],
        channels: int,
        dtype: Any,
        masked: config.Masked,
        *,
        rngs: Any,
    ) -> Any:
        """Returns the network."""
        return self.network_class()(model, image_size, channels, dtype, rngs=rngs)

    def network_class(self) -> Any:
        """Returns the network's class."""
        from vit_jax.models.resnet import ResNet

        return ResNet


def shrink_backbone(model: config.Model) -> config.Model:
    """Returns the model with few, narrow units in its ResNet, if it has one."""
    if model.resnet_units is None:
        return dataclasses.replace(model, resnet_width=None)
    units = UNITS[: len(required(model.resnet_units))]
    return dataclasses.replace(model, resnet_units=units, resnet_width=WIDTH)
