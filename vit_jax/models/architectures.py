"""The built-in architectures, without jax until a network is created.

Vision Transformers, also hybrids on the map of a ResNet; ResNets with GroupNorm and weight
standardization, as in Big Transfer; and both with axial attention (ViT, appendix D.6).
"""

import dataclasses
import functools
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from vit_jax import config
from vit_jax.config import components
from vit_jax.models import variants
from vit_jax.models.architecture import Architecture
from vit_jax.models.variants import (
    default_class_token,
    has_class_token,
    prefix_tokens,
    required,
)

if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp
    from flax import nnx

    from vit_jax.models.architecture import Params
    from vit_jax.models.resnet import ResNet
    from vit_jax.models.vit import MaskedViT, ViT

Map = tuple[int, int]  # rows and columns of positions

# Matrix products of layers and patches; norms and the head compute in float32.
IN_COMPUTE_DTYPE = re.compile(
    r"(embedding|(encoder|pooling)/.*(attention|mlp)/(?!\w+_norm).*)/(kernel|bias)"
)
# Sizes for --smoke. Two ResNet stages: one that loops over its units, and one that changes size;
# half of 64 channels is one for each group of GroupNorm.
SMOKE_DEPTH, SMOKE_WIDTH, SMOKE_MLP, SMOKE_HEADS = 2, 32, 64, 2
SMOKE_UNITS, SMOKE_RESNET_WIDTH = (2, 1), 0.5


@components.register("model", "vit")
class ViTArchitecture(Architecture):
    """Vision Transformers such as ViT-B/16, and hybrids."""

    maskable = True
    droppable: bool = True
    weights: str | None = "vit"

    def validate_model(self, model: config.Model, image_size: tuple[int, int]) -> None:
        """Raises ConfigError for options that do not fit each other or the images."""
        sizes = ("patch_size", "width", "depth", "mlp_dim", "heads")
        missing = [name for name in sizes if getattr(model, name) is None]
        if missing:
            raise config.ConfigError(
                f"model.{missing[0]}=none: not known; set it, or name a size with "
                "model.variant=ViT-B/16"
            )
        _check_patches(model, image_size)
        _check_encoder(model)
        self.check_positions(model)
        relative = model.position == "relative" or model.relative_bias != "none"
        if relative and model.attention != "explicit":
            raise config.ConfigError(
                f"model.attention={model.attention}: relative positions need explicit"
            )
        if (model.unroll or 1) > (depth := required(model.depth)):
            raise config.ConfigError(f"model.unroll={model.unroll}: more than model.depth {depth}")

    def check_positions(self, model: config.Model) -> None:
        """Raises ConfigError for positions and tokens that the layers cannot have."""

    def multiple(self, model: config.Model) -> tuple[int, int]:
        """Height and width of a patch in pixels."""
        factor, patch = variants.reduction(model), required(model.patch_size)
        return factor * patch[0], factor * patch[1]

    def grid(self, model: config.Model, image_size: tuple[int, int]) -> tuple[int, int]:
        """Rows and columns of patches."""
        rows, columns = variants.reduced(model, image_size)
        patch = required(model.patch_size)
        return rows // patch[0], columns // patch[1]

    def covered(self, model: config.Model, image_size: tuple[int, int]) -> tuple[int, int]:
        """Height and width of the pixels in whole patches."""
        (rows, columns), (height, width) = self.grid(model, image_size), self.multiple(model)
        # A ResNet rounds its map up, so the last patch may reach beyond the image.
        return min(rows * height, image_size[0]), min(columns * width, image_size[1])

    def reads_in_compute_type(self, name: str) -> bool:
        """Whether a parameter belongs to a matrix product of layers or patches."""
        return bool(IN_COMPUTE_DTYPE.fullmatch(name))

    def flops(
        self,
        model: config.Model,
        image_size: tuple[int, int],
        channels: int,
        masked: config.MaskedPatches | config.Mae | None,
    ) -> int | None:
        """FLOPs of the forward pass of one image."""
        macs, features, grid = 0, channels, self.grid(model, image_size)
        if model.resnet_units is not None:
            macs, features = _backbone_macs(model, image_size, channels, _convolution_macs)
        p, d, (height, width) = grid[0] * grid[1], required(model.width), required(model.patch_size)
        macs += p * height * width * features * d
        if isinstance(masked, config.Mae):
            return 2 * (macs + _autoencoder_macs(model, masked, p, height * width * channels))
        macs += required(model.depth) * self.layer_macs(model, grid)
        if model.pooling == "map":  # keys and values of what is pooled, one query
            n = p + prefix_tokens(model) - variants.first_pooled(model)
            hidden = required(model.pooling_mlp_dim or model.mlp_dim)
            # In this order: keys and values, query and projection, attention's two products, the
            # MLP.
            macs += 2 * n * d * d + 2 * d * d + 2 * n * d + 2 * d * hidden
        if masked is None:
            return 2 * (macs + _head_macs(model, variants.pooled_features(model)))
        predicted = variants.masked_patches(masked, p)
        outputs = variants.masked_outputs(masked, (height, width), channels)
        # `take_rows` is a product with one-hot rows, of corrupted patches and of predicted ones.
        return 2 * (macs + p * (p + 1) * d + predicted * p * d + predicted * d * outputs)

    def layer_macs(self, model: config.Model, grid: tuple[int, int]) -> int:
        """Multiply-accumulates of one encoder layer."""
        return _layer_macs(model, grid[0] * grid[1] + prefix_tokens(model))

    def shrink(
        self, model: config.Model, image_size: tuple[int, int]
    ) -> tuple[config.Model, tuple[int, int]]:
        """Two narrow layers on two by two patches."""
        height, width = required(model.patch_size)
        # A ResNet of two stages has divided by 8 before.
        most = 4 if model.resnet_units is None else 2
        small = dataclasses.replace(
            _shrink_backbone(model),
            representation_size=None if model.representation_size is None else SMOKE_WIDTH,
            patch_size=(min(height, most), min(width, most)),
            width=SMOKE_WIDTH,
            depth=SMOKE_DEPTH,
            mlp_dim=SMOKE_MLP,
            heads=SMOKE_HEADS,
            pooling_heads=model.pooling_heads and SMOKE_HEADS,
            pooling_mlp_dim=model.pooling_mlp_dim and SMOKE_MLP,
            pooled_layers=min(model.pooled_layers, SMOKE_DEPTH),
            unroll=model.unroll and min(model.unroll, SMOKE_DEPTH),
        )
        height, width = self.multiple(small)
        return small, (2 * height, 2 * width)

    def lacks(self, model: config.Model, figure: str) -> str | None:
        """Why `inspect` cannot draw a figure, or None."""
        if figure != "posemb" or model.position not in ("none", "relative"):
            return None
        if model.position == "relative":
            away = "the model has no position embeddings, only relative positions"
            return f"{away} (model.position=relative)"
        if model.rotary is not None:
            rotary = f"model.rotary={model.rotary:g}"
            return f"the model has no position embeddings, only rotary ones ({rotary})"
        if model.relative_bias != "none":
            bias = f"model.relative_bias={model.relative_bias}"
            return f"the model has no position embeddings, only a bias of attention ({bias})"
        return "the model has no position embedding (model.position=none)"

    def initial(self, model: config.Model, params: "Params", key: "jax.Array") -> "Params":
        """Redraws parameters as the authors named by `model.init` do."""
        from vit_jax.models import initializers

        return initializers.redraw(model, params, key)

    def filters(self, model: config.Model) -> tuple[str, ...]:
        """Path of the patch embedding, or of a hybrid's first convolution."""
        if model.resnet_units is not None:
            return "resnet", "conv_root", "kernel"
        return "embedding", "kernel"

    def last_map(self, model: config.Model) -> tuple[str, ...]:
        """The normalized tokens that the last layer attends to: after it, patches are not read."""
        return "encoder", "norm1"

    def network(
        self,
        model: config.Model,
        image_size: tuple[int, int],
        channels: int,
        dtype: "jnp.dtype",
        masked: config.MaskedPatches | None,
        *,
        rngs: "nnx.Rngs",
    ) -> "nnx.Module":
        """The network, with a head for masked patches if there is `masked`."""
        plain, for_patches = self.networks()
        if masked is not None:
            return for_patches(model, image_size, channels, dtype, masked, rngs=rngs)
        return plain(model, image_size, channels, dtype, rngs=rngs)

    def networks(self) -> tuple[type["ViT"], type["MaskedViT"]]:
        """Classes of the network with a head for classes, and for masked patches."""
        from vit_jax.models.vit import MaskedViT, ViT

        return ViT, MaskedViT


@components.register("model", "axial_vit")
class AxialViTArchitecture(ViTArchitecture):
    """Axial Vision Transformers such as AxialViT-B/16."""

    droppable = False  # it attends in lines
    weights = None
    # It has no token but those of patches, and attends in lines.
    unread = ("class_position", "registers", "distillation", "rotary", "rotary_span")
    unread += ("rotary_grid", "rotary_offset", "rotary_learned", "relative_bias")

    def check_positions(self, model: config.Model) -> None:
        """Raises ConfigError for a class token, which has no row, and relative positions."""
        if has_class_token(model):
            read = default_class_token(model.pooling)
            option = f"pooling={model.pooling}" if read else "class_token=true"
            remedy = "gap" if read else "none"
            raise config.ConfigError(
                f"model.{option}: axial_vit keeps its tokens in rows and columns, without a "
                f"class token; set {remedy}"
            )
        if model.position == "relative":
            raise config.ConfigError(
                "model.position=relative: axial_vit has no relative positions; set learned_1d"
            )

    def layer_macs(self, model: config.Model, grid: tuple[int, int]) -> int:
        """Multiply-accumulates of two encoder blocks, one per axis."""
        n = grid[0] * grid[1]
        # A token attends to as many as a row has in one block, and as a column has in the other.
        return 2 * _dense_macs(model, n) + 2 * n * sum(grid) * required(model.width)

    def lacks(self, model: config.Model, figure: str) -> str | None:
        """Why `inspect` cannot draw a figure, or None."""
        if figure == "attention":
            return "an axial_vit attends within rows and columns, never from any token to any other"
        return super().lacks(model, figure)

    def last_map(self, model: config.Model) -> tuple[str, ...]:
        """The normalized tokens that attend along columns in the last layer."""
        return "encoder", "column", "norm1"

    def networks(self) -> tuple[type["ViT"], type["MaskedViT"]]:
        """Classes of the network with a head for classes, and for masked patches."""
        from vit_jax.models.axial import AxialViT, MaskedAxialViT

        return AxialViT, MaskedAxialViT


@components.register("model", "resnet")
class ResNetArchitecture(Architecture):
    """ResNets such as R50x1."""

    weights: str | None = "bit"
    unread = (
        "patch_size", "width", "depth", "mlp_dim", "heads", "mlp", "layer_scale", "registers",
        "stem_norm", "patch_norm", "qk_norm", "sub_norm", "biasless", "rotary", "rotary_span",
        "rotary_grid", "pooling_heads", "pooling_mlp_dim", "pooling_prefix",
        "rotary_learned", "rotary_offset", "relative_bias", "init",
        "patch_remainder", "pooling", "pooled_layers", "class_token", "distillation", "position",
        "class_position", "position_place", "position_resize", "activation",
        "gelu", "norm", "norm_epsilon", "norm_place", "attention",
    )  # fmt: skip

    def validate_model(self, model: config.Model, image_size: tuple[int, int]) -> None:
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
        """Rows and columns of the last map."""
        return variants.reduced(model, image_size)

    def flops(
        self,
        model: config.Model,
        image_size: tuple[int, int],
        channels: int,
        masked: config.MaskedPatches | config.Mae | None,
    ) -> int | None:
        """FLOPs of the forward pass of one image."""
        macs, features = _backbone_macs(model, image_size, channels, self.middle_macs)
        return 2 * (macs + _head_macs(model, features))

    def middle_macs(self, size: Map, features: int, stride: int) -> int:
        """Multiply-accumulates of the middle layer of a unit, on a map of `size`."""
        return _convolution_macs(size, features, stride)

    def shrink(
        self, model: config.Model, image_size: tuple[int, int]
    ) -> tuple[config.Model, tuple[int, int]]:
        """Two short, narrow stages with a last map of two by two positions."""
        size = None if model.representation_size is None else SMOKE_WIDTH
        small = dataclasses.replace(
            _shrink_backbone(model),
            representation_size=size,
            unroll=model.unroll and min(model.unroll, 2),
        )
        # A patch size that is set but not read still scales the images.
        height, width = small.patch_size or (1, 1)
        factor = variants.reduction(small)
        return small, (2 * factor * height, 2 * factor * width)

    def lacks(self, model: config.Model, figure: str) -> str | None:
        """Why `inspect` cannot draw a figure, or None."""
        return {
            "posemb": "a ResNet has no position embedding",
            "attention": "a ResNet has no tokens that attend to each other",
            "features": "a ResNet has no tokens",
        }.get(figure)

    def filters(self, model: config.Model) -> tuple[str, ...]:
        """Path of the first convolution."""
        return "resnet", "conv_root", "kernel"

    def last_map(self, model: config.Model) -> tuple[str, ...]:
        """The map that is averaged."""
        return ("resnet",)

    def network(
        self,
        model: config.Model,
        image_size: tuple[int, int],
        channels: int,
        dtype: "jnp.dtype",
        masked: config.MaskedPatches | None,
        *,
        rngs: "nnx.Rngs",
    ) -> "nnx.Module":
        """The network."""
        return self.network_class()(model, image_size, channels, dtype, rngs=rngs)

    def network_class(self) -> type["ResNet"]:
        """Class of the network."""
        from vit_jax.models.resnet import ResNet

        return ResNet


@components.register("model", "axial_resnet")
class AxialResNetArchitecture(ResNetArchitecture):
    """AxialResNet50."""

    weights = None

    def middle_macs(self, size: Map, features: int, stride: int) -> int:
        """Multiply-accumulates of attention along columns, then rows, before pooling.

        Queries and keys have half the features of the values. Relative positions add a product
        with the queries, one with the keys and one with the weights.
        """
        n, half = size[0] * size[1], features // 2
        projections = n * features * (half + half + features)
        return 2 * projections + n * (size[0] + size[1]) * (3 * half + 2 * features)

    def network_class(self) -> type["ResNet"]:
        """Class of the network."""
        from vit_jax.models.axial import AxialResNet

        return AxialResNet


def _shrink_backbone(model: config.Model) -> config.Model:
    """A model with few, narrow units in its ResNet, if it has one."""
    if model.resnet_units is None:
        return dataclasses.replace(model, resnet_width=None)
    units = SMOKE_UNITS[: len(required(model.resnet_units))]
    return dataclasses.replace(model, resnet_units=units, resnet_width=SMOKE_RESNET_WIDTH)


def _check_encoder(model: config.Model) -> None:
    width, heads = required(model.width), required(model.heads)
    for key, count in (("heads", heads), ("pooling_heads", model.pooling_heads or 1)):
        if width % count:
            fits = [h for h in range(1, width + 1) if width % h == 0]
            nearest = min(fits, key=lambda h: abs(h - count))
            raise config.ConfigError(
                f"model.{key}={count}: does not divide model.width {width}; nearest: {nearest}"
            )
    if model.rotary is not None and width // heads % 4:
        raise config.ConfigError(
            f"model.rotary={model.rotary:g}: turns pairs of features by row and column, so heads "
            f"must be multiples of 4 wide, not {width // heads}; set model.heads or model.width"
        )
    if model.rotary_grid is not None and model.rotary_span != "separate":
        raise config.ConfigError(
            f"model.rotary_span={model.rotary_span}: spans -1 to 1, which model.rotary_grid "
            "replaces; set separate"
        )
    multiple = {"sincos_2d": 4, "sincos_2d_mae": 4, "sincos_1d": 2, "learned_2d": 2}.get(
        model.position, 1
    )
    if width % multiple:
        raise config.ConfigError(
            f"model.width={width}: model.position {model.position} needs a multiple of "
            f"{multiple}; nearest: {max(multiple, round(width / multiple) * multiple)}"
        )
    if model.position_place != "stem" and model.position not in ("learned_1d", "learned_2d"):
        raise config.ConfigError(
            f"model.position_place={model.position_place}: only learned_1d and learned_2d can be "
            f"added at every layer, not {model.position}; set stem"
        )
    if "head" in model.biasless and model.head_bias:
        raise config.ConfigError(
            f"model.head_bias={model.head_bias:g}: model.biasless leaves the head without one; "
            "set 0"
        )
    _check_pooling(model)


def _check_pooling(model: config.Model) -> None:
    if default_class_token(model.pooling) and not has_class_token(model):
        other = "first" if model.pooling == "token" else "gap"
        raise config.ConfigError(
            f"model.class_token=false: model.pooling={model.pooling} reads the class token; set "
            f"none, or model.pooling={other}"
        )
    if model.pooling == "first" and model.registers and not has_class_token(model):
        raise config.ConfigError(
            f"model.pooling=first: would read the first of {model.registers} registers, which "
            "hold no output; set token or gap"
        )
    joined = {"pooling": model.pooling in ("token_gap", "distilled"),
              "pooled_layers": model.pooled_layers > 1}  # fmt: skip
    if model.norm_place == "pooled" and (name := next((n for n in joined if joined[n]), "")):
        raise config.ConfigError(
            f"model.norm_place=pooled: model.{name} {getattr(model, name)} puts vectors side by "
            "side, which are normalized apart; set tokens"
        )
    if model.pooled_layers > (depth := required(model.depth)):
        raise config.ConfigError(
            f"model.pooled_layers={model.pooled_layers}: more than model.depth {depth}"
        )
    if model.pooling == "distilled" and not model.distillation:
        raise config.ConfigError(
            "model.distillation=false: model.pooling distilled reads that token; set true, or "
            "model.pooling=token"
        )
    if model.pooling == "distilled" and model.representation_size is not None:
        raise config.ConfigError(
            f"model.representation_size={model.representation_size}: model.pooling distilled has "
            "two heads, without a layer before them; set none"
        )
    if model.distillation and not has_class_token(model):
        raise config.ConfigError(
            "model.distillation=true: the token follows a class token; set model.class_token=true"
        )


def _check_patches(model: config.Model, image_size: tuple[int, int]) -> None:
    factor = variants.reduction(model)
    for side, pixels, patch in zip(
        ("height", "width"), image_size, required(model.patch_size), strict=True
    ):
        whole = patch * factor
        if pixels % whole and (model.patch_remainder == "refuse" or pixels < whole):
            below, over = pixels // whole * whole, -(-pixels // whole) * whole
            nearest = over if below == 0 or over - pixels < pixels - below else below
            factors = f"model.patch_size {patch}"
            if factor > 1:
                factors += f" x {factor} (the ResNet's down-sampling)"
            raise config.ConfigError(
                f"data.image_size={config.show(image_size)}: {side} {pixels} is not a multiple of "
                f"{factors}; nearest: {nearest}"
            )


# Multiply-accumulates of parts of a forward pass: what the accelerator's matrix units do, matrix
# products and convolutions. Of a convolution only the products with pixels of the image count, not
# those with its padding; so the compiler counts, and so ViT's table 6 does.


def _dense_macs(model: config.Model, tokens: int) -> int:
    """Multiply-accumulates of the four projections of attention and an MLP."""
    d, m = required(model.width), required(model.mlp_dim)
    products = 3 if model.mlp == "swiglu" else 2
    return 4 * tokens * d * d + products * tokens * d * m


def _layer_macs(model: config.Model, tokens: int) -> int:
    """Multiply-accumulates of an encoder layer on tokens that all attend to each other."""
    # Attention multiplies with keys, values and, if relative, position keys.
    products = 3 if model.position == "relative" else 2
    return _dense_macs(model, tokens) + products * tokens * tokens * required(model.width)


def _autoencoder_macs(model: config.Model, mae: config.Mae, patches: int, pixels: int) -> int:
    """Multiply-accumulates of a masked autoencoder's layers, after the patch embedding."""
    kept, prefix = variants.kept_patches(mae, patches), prefix_tokens(model)
    width, narrow = required(model.width), mae.decoder_width
    # `take_rows` is a product with one-hot rows, of kept patches and of all in the decoder.
    return (
        (prefix + kept) * (prefix + patches) * width
        + required(model.depth) * _layer_macs(model, prefix + kept)
        + (prefix + kept) * width * narrow
        + patches * (kept + 1) * narrow
        + mae.decoder_depth * _layer_macs(variants.decoder(model, mae), prefix + patches)
        + patches * narrow * pixels
    )


def _head_macs(model: config.Model, features: int) -> int:
    """From pooled features to logits; none without labels, where there is no head."""
    if model.num_classes is None:
        return 0
    r, k = model.representation_size, model.num_classes
    return features * k if r is None else features * r + r * k


def _convolution_macs(size: Map, features: int, stride: int) -> int:
    """Multiply-accumulates of a 3 x 3 convolution that keeps the number of features."""
    return features * features * _taps(size, size=3, stride=stride)


def _backbone_macs(
    model: config.Model,
    image_size: tuple[int, int],
    channels: int,
    middle: Callable[[Map, int, int], int],
) -> tuple[int, int]:
    """Multiply-accumulates of a ResNet up to its last map, and the channels of that map.

    Args:
      model: with units and width.
      image_size: height and width in pixels.
      channels: of the image.
      middle: counts the middle layer of a unit, from map size, features and stride.
    """
    width = round(64 * required(model.resnet_width))
    total = channels * width * _taps(image_size, size=7, stride=2)
    place, inputs = _strided(_strided(image_size, 2), 2), width
    for stage, units in enumerate(required(model.resnet_units)):
        features = width * 2**stage
        for unit in range(units):
            stride = 2 if stage and not unit else 1
            after = _strided(place, stride)
            # The first 1 x 1 convolution keeps the map's size; the last one, and the shortcut, see
            # what the stride of the middle layer leaves.
            total += place[0] * place[1] * inputs * features
            total += middle(place, features, stride)
            total += after[0] * after[1] * features * 4 * features
            if not unit:
                total += after[0] * after[1] * inputs * 4 * features  # the shortcut
            place, inputs = after, 4 * features
    return total, inputs


def _strided(place: Map, stride: int) -> Map:
    return -(-place[0] // stride), -(-place[1] // stride)


@functools.cache
def _taps(place: Map, *, size: int, stride: int) -> int:
    """Reads inside the map by a square kernel, summed over all outputs (padding is free)."""
    # Where v1 and v2 pad differently, one is the mirror image of the other.
    starts = [range(-(size // 2), length - size // 2, stride) for length in place]
    rows, columns = (
        sum(min(start + size, length) - max(start, 0) for start in along)
        for along, length in zip(starts, place, strict=True)
    )
    return rows * columns
