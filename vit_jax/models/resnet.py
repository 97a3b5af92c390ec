"""ResNets with GroupNorm and weight standardization, by themselves or below an encoder.

A unit comes in two versions. `v1` normalizes after each convolution (He et al. 2016, "Deep Residual
Learning"), as in the released hybrids of ViT; `v2` before ("Identity Mappings"), as Big Transfer.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from vit_jax import config
from vit_jax.models.layers import (
    WithHead,
    constrain_batch,
    finish_gradients,
    normalize,
    rematerialize,
    unstack,
)
from vit_jax.models.variants import required

EXPANSION = 4  # ratio of a unit's output channels to its inner channels
GROUPS = 32  # of GroupNorm

Layer = Callable[[jax.Array], jax.Array]
lecun_normal = nnx.initializers.lecun_normal(dtype=jnp.float32)


class UnitShape(NamedTuple):
    """The size of one unit: channels, stride, and the resolution of its input."""

    inputs: int  # channels of the unit's input
    features: int  # channels of its middle layer
    stride: int  # of the middle layer, either way
    reduction: int  # pixels of the image per position of the unit's input, either way

    @property
    def outputs(self) -> int:
        """The channels of the unit's output."""
        return EXPANSION * self.features


class Middle(Protocol):
    """Makes the layer in the middle of a unit, `conv2`: by default a 3 x 3 convolution.

    The layer maps (B, h, w, unit.features) to (B, ceil(h / unit.stride), ceil(w / unit.stride),
    unit.features); h is ceil(image height / unit.reduction). It is made under `jax.vmap`.
    """

    def __call__(
        self, model: config.Model, unit: UnitShape, dtype: jnp.dtype, *, rngs: nnx.Rngs
    ) -> Layer:
        """Creates the layer, an nnx.Module that holds only parameters."""
        ...


def standardize(kernel: jax.Array, version: str, epsilons: str = "version") -> jax.Array:
    """Scales a float32 kernel (h, w, inputs, features) to mean 0 and variance 1 in each feature.

    An epsilon keeps the divisor from 0: released hybrids add it to the deviation, Big Transfer and
    timm to the variance. Args are the model's `resnet_version` and `resnet_epsilons`.
    """
    centered = kernel - kernel.mean(axis=(0, 1, 2), keepdims=True)
    variance = (centered**2).mean(axis=(0, 1, 2), keepdims=True)
    if epsilons == "timm":
        return centered * jax.lax.rsqrt(variance + 1e-8)
    if version == "v1":
        return centered / (jnp.sqrt(variance) + 1e-5)
    return centered * jax.lax.rsqrt(variance + 1e-10)


class Convolution(nnx.Module):
    """A convolution with a standardized kernel and no bias."""

    def __init__(
        self,
        model: config.Model,
        inputs: int,
        features: int,
        *,
        size: int,
        stride: int = 1,
        dtype: jnp.dtype,
        rngs: nnx.Rngs,
    ):
        self.version, self.epsilons = model.resnet_version, model.resnet_epsilons
        self.stride, self.dtype = stride, dtype
        self.kernel = nnx.Param(lecun_normal(rngs.params(), (size, size, inputs, features)))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps (B, h, w, C) to (B, ceil(h / stride), ceil(w / stride), features), compute dtype."""
        kernel = standardize(self.kernel[...], self.version, self.epsilons)
        # They differ where a stride meets an even side: SAME pads less at its start.
        margin = kernel.shape[0] // 2
        x = jax.lax.conv_general_dilated(
            x.astype(self.dtype),
            kernel.astype(self.dtype),
            window_strides=(self.stride, self.stride),
            padding="SAME" if self.version == "v1" else [(margin, margin)] * 2,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        return checkpoint_name(x, "convolution")  # which model.remat may keep


def convolution_3x3(
    model: config.Model, unit: UnitShape, dtype: jnp.dtype, *, rngs: nnx.Rngs
) -> Layer:
    """Creates the usual layer in the middle of a unit."""
    features, stride = unit.features, unit.stride
    return Convolution(model, features, features, size=3, stride=stride, dtype=dtype, rngs=rngs)


class GroupNorm(nnx.Module):
    """GroupNorm of 32 groups with the epsilon of the unit's version (Wu and He 2018).

    Sums go over positions first, a channel at a time: splitting the channels of a whole map into
    groups would put two of them where a TPU has 128 lanes. R50x1 compiles for v3-128 in 146 CPU
    seconds instead of the 180 of `nnx.GroupNorm`, and a norm runs twice as fast on a CPU.
    """

    def __init__(self, model: config.Model, features: int, *, start: float = 1.0, rngs: nnx.Rngs):
        del rngs  # nothing is random
        hybrid = model.resnet_version == "v1" and model.resnet_epsilons == "version"
        # flax's default, which Google's hybrids use; PyTorch's, which Big Transfer and timm use.
        self.epsilon = 1e-6 if hybrid else 1e-5
        self.scale = nnx.Param(jnp.full((features,), start, jnp.float32))
        self.bias = nnx.Param(jnp.zeros((features,), jnp.float32))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalizes x (B, h, w, C) in float32."""
        batch, channels = x.shape[0], x.shape[3]

        def group_mean(each: jax.Array) -> jax.Array:
            groups = each.reshape(batch, GROUPS, channels // GROUPS).mean(axis=2)
            return jnp.repeat(groups, channels // GROUPS, axis=1)

        mean = group_mean(x.mean(axis=(1, 2)))
        # A difference of means may round below 0, whose root is NaN.
        variance = jnp.maximum(group_mean((x * x).mean(axis=(1, 2))) - mean * mean, 0.0)
        factor = jax.lax.rsqrt(variance + self.epsilon) * self.scale[...][None]
        return (x - mean[:, None, None]) * factor[:, None, None] + self.bias[...][None, None, None]


class Unit(nnx.Module):
    """Three convolutions, 1 x 1, 3 x 3 and 1 x 1, added to their input or its projection."""

    def __init__(
        self,
        model: config.Model,
        unit: UnitShape,
        middle: Middle,
        dtype: jnp.dtype,
        *,
        rngs: nnx.Rngs,
    ):
        self.post = model.resnet_version == "v1"
        inputs, features, outputs = unit.inputs, unit.features, unit.outputs
        self.conv1 = Convolution(model, inputs, features, size=1, dtype=dtype, rngs=rngs)
        self.conv2 = middle(model, unit, dtype, rngs=rngs)
        self.conv3 = Convolution(model, features, outputs, size=1, dtype=dtype, rngs=rngs)
        # v1 normalizes the outputs of the convolutions, v2 their inputs.
        self.gn1 = GroupNorm(model, features if self.post else inputs, rngs=rngs)
        self.gn2 = GroupNorm(model, features, rngs=rngs)
        self.projects = unit.stride > 1 or inputs != outputs
        if self.projects:
            self.conv_proj = Convolution(
                model, inputs, outputs, size=1, stride=unit.stride, dtype=dtype, rngs=rngs
            )
        if self.post:
            # Initially a unit is the identity, or its projection.
            self.gn3 = GroupNorm(model, outputs, start=0.0, rngs=rngs)
            if self.projects:
                self.gn_proj = GroupNorm(model, outputs, rngs=rngs)
        else:
            self.gn3 = GroupNorm(model, features, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps (B, h, w, inputs) to (B, ceil(h / stride), ceil(w / stride), outputs)."""
        return self._post_activation(x) if self.post else self._pre_activation(x)

    def _post_activation(self, x: jax.Array) -> jax.Array:
        shortcut = normalize(self.gn_proj, self.conv_proj(x)) if self.projects else x
        x = jax.nn.relu(normalize(self.gn1, self.conv1(x)))
        x = jax.nn.relu(normalize(self.gn2, self.conv2(x)))
        return jax.nn.relu(normalize(self.gn3, self.conv3(x)) + shortcut)

    def _pre_activation(self, x: jax.Array) -> jax.Array:
        y = jax.nn.relu(normalize(self.gn1, x))
        # As in Big Transfer: a projection reads the normalized input, an identity the raw one.
        shortcut = self.conv_proj(y) if self.projects else x
        y = self.conv2(jax.nn.relu(normalize(self.gn2, self.conv1(y))))
        return self.conv3(jax.nn.relu(normalize(self.gn3, y))) + shortcut


class Stage(nnx.Module):
    """Units on maps of one size: the first changes size and channels, the rest are stacked."""

    def __init__(
        self,
        model: config.Model,
        unit: UnitShape,
        units: int,
        middle: Middle,
        dtype: jnp.dtype,
        *,
        rngs: nnx.Rngs,
    ):
        self.remat, self.others = model.remat, units - 1
        self.unroll = min(model.unroll or 1, self.others)
        self.first = Unit(model, unit, middle, dtype, rngs=rngs)
        if self.others:
            unit = UnitShape(unit.outputs, unit.features, 1, unit.reduction * unit.stride)
            keys = jax.random.split(rngs.params(), self.others)
            self.rest = jax.vmap(lambda key: Unit(model, unit, middle, dtype, rngs=nnx.Rngs(key)))(
                keys
            )

    def __call__(self, x: jax.Array) -> jax.Array:
        """Applies all units to x (B, h, w, inputs)."""

        def apply(x: jax.Array, unit: Unit) -> tuple[jax.Array, None]:
            return constrain_batch(unit(constrain_batch(x))), None

        # Outside a loop the compiler would share what it should compute again.
        inline = rematerialize(apply, self.remat, unroll=2)
        x, _ = inline(*finish_gradients(x, self.first))
        if self.unroll < self.others:
            layer = rematerialize(apply, self.remat, self.unroll)
            x, _ = jax.lax.scan(layer, x, self.rest, unroll=self.unroll)
            return x
        # XLA for CPUs has no fast gradient of a kernel in the body of a loop, even of one turn:
        # three stages of two units train five times as slowly.
        for unit in unstack(self.rest, self.others, jnp.float32) if self.others else ():
            x, _ = inline(*finish_gradients(x, unit))
        return x


class Backbone(nnx.Module):
    """A ResNet up to its last map: the stem, which divides by 4, and any number of stages.

    `features` is the number of channels of that map.
    """

    def __init__(
        self,
        model: config.Model,
        channels: int,
        dtype: jnp.dtype,
        *,
        middle: Middle = convolution_3x3,
        rngs: nnx.Rngs,
    ):
        self.version, units = model.resnet_version, required(model.resnet_units)
        self.zeros = model.resnet_pool == "zeros"
        width = round(64 * required(model.resnet_width))
        if width % GROUPS or not width:
            nearest = max(1, round(width / GROUPS)) * GROUPS / 64
            raise config.ConfigError(
                f"model.resnet_width={model.resnet_width:g}: makes {width} channels, not a "
                f"multiple of the {GROUPS} groups of GroupNorm; nearest: {nearest:g}"
            )
        self.conv_root = Convolution(
            model, channels, width, size=7, stride=2, dtype=dtype, rngs=rngs
        )
        if self.version == "v1":
            self.gn_root = GroupNorm(model, width, rngs=rngs)
        self.stages, self.features, reduction = len(units), width, 4
        for number, count in enumerate(units):
            # The stem has divided by 4 already.
            stride = 1 if number == 0 else 2
            unit = UnitShape(self.features, width * 2**number, stride, reduction)
            # An attribute for each, as its name is part of those of the parameters.
            setattr(self, self._name(number), Stage(model, unit, count, middle, dtype, rngs=rngs))
            self.features, reduction = unit.outputs, reduction * stride
        if self.version == "v2":
            self.gn_final = GroupNorm(model, self.features, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        """The last map (B, h, w, features) in the compute dtype, of images (B, H, W, C)."""
        x = self.conv_root(images)
        if self.version == "v1":
            x = jax.nn.relu(normalize(self.gn_root, x))
            x = nnx.max_pool(x, window_shape=(3, 3), strides=(2, 2), padding="SAME")
        else:
            # v2 has no ReLU before this pool, so padding with zeros would count in the maximum.
            value = 0.0 if self.zeros else -jnp.inf
            x = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=value)
            x = nnx.max_pool(x, window_shape=(3, 3), strides=(2, 2), padding="VALID")
        for number in range(self.stages):
            x = getattr(self, self._name(number))(x)
        return jax.nn.relu(normalize(self.gn_final, x)) if self.version == "v2" else x

    @staticmethod
    def _name(number: int) -> str:
        return f"stage{number + 1}"


class ResNet(WithHead):
    """The paper's baseline: a backbone, the mean of its map, and a linear head (ViT, section 4.1).

    A subclass changes the layer in the middle of every unit by overriding `middle`.
    """

    def __init__(
        self,
        model: config.Model,
        image_size: tuple[int, int],
        channels: int,
        dtype: jnp.dtype,
        *,
        rngs: nnx.Rngs,
    ):
        middle = self.middle(image_size)
        self.resnet = Backbone(model, channels, dtype, middle=middle, rngs=rngs)
        self.add_head(model, self.resnet.features, rngs=rngs)

    def middle(self, image_size: tuple[int, int]) -> Middle:
        """The constructor of every unit's middle layer, for images of this height and width."""
        del image_size  # a convolution fits any
        return convolution_3x3

    def __call__(
        self, images: jax.Array, *, key: jax.Array | None = None, capture: bool = False
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Logits (B, K) float32 and intermediates by name.

        Intermediates: `features` (B, h, w, F), the last map in the compute dtype, and `pre_logits`
        (B, F or R) float32, what the head sees. Nothing is random and nothing attends: `key` and
        `capture` change nothing.
        """
        del key, capture
        features = self.resnet(images)
        logits, x = self.classify(features.astype(jnp.float32).mean(axis=(1, 2)))
        return logits, {"features": features, "pre_logits": x}
