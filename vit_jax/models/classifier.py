"""`Classifier`: any network of `config.Model` as functions of plain nested dicts.

Outside this package a model is a plain nested dict of float32 arrays and a `Classifier` with its
functions; the NNX module exists only while a function is traced.
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vit_jax import config
from vit_jax.config import MaskedPatches, components
from vit_jax.models import layers, variants
from vit_jax.models.architecture import Params
from vit_jax.utils import tree_utils

# Parts of the parameters that are not the network's.
LORA = "lora"  # adapters, under the path of their matrix
OBJECTIVE = "objective"  # heads and decoders of the objective, which alone reads them

Dense = nnx.Linear | nnx.LinearGeneral


class ParameterError(config.UserError):
    """A tree of parameters that does not fit its model."""


# Plain dicts, as dispatching a step of 1,183 arrays takes 3.4 ms with them on a CPU, 17 ms with
# modules as arguments of jax.jit, and 11 to 40 ms through nnx.jit.
@dataclasses.dataclass(frozen=True)
class Classifier:
    """A network as functions of its parameters; see `create`.

    Equal and hashable by its fields, so it may be a static argument of `jax.jit`.
    """

    config: config.Model
    image_size: tuple[int, int]
    channels: int
    masked: MaskedPatches | None = None

    @property
    def dtype(self) -> jnp.dtype:
        """The dtype of activations."""
        products = self.config.dtype == "bfloat16_matmul"
        return jnp.dtype("float32" if products else self.config.dtype)

    def _module(self, key: jax.Array) -> nnx.Module:
        made = variants.find_architecture(self.config).network(
            self.config,
            self.image_size,
            self.channels,
            self.dtype,
            self.masked,
            rngs=nnx.Rngs(key),
        )
        if not isinstance(made, nnx.Module):
            raise config.ConfigError(f"{self._label}: network must return an nnx.Module")
        return made

    @property
    def _label(self) -> str:
        return f"{variants.KEY}={self.config.architecture}"

    @contextlib.contextmanager
    def _network(self, params: Params) -> Iterator[Any]:
        """The network of `bind`, to be called within; errors of a plug-in's are ConfigErrors."""
        network = self.bind(params)
        # An error inside a built-in network is a bug of ours, whose traceback stays.
        if not variants.is_plugged_in(self.config):
            yield network
            return
        with components.calling(variants.KEY, str(self.config.architecture)):
            yield network

    def init(self, key: jax.Array) -> Params:
        """New parameters; works under `jit` and `eval_shape`."""
        params = nnx.to_pure_dict(nnx.state(self._module(key), nnx.Param))
        # `nnx.Rngs` folds in counts, so one array of the network has this key too: `redraw` folds
        # in names.
        further = jax.random.fold_in(key, 1)
        found = variants.find_architecture(self.config).initial(self.config, params, further)
        if jax.tree.structure(found) != jax.tree.structure(params):
            raise config.ConfigError(f"{self._label}: initial must return the parameters it gets")
        return found

    @functools.cached_property
    def _abstract(self) -> tuple[nnx.GraphDef, Params]:
        """The module's structure, and the ShapeDtypeStructs of its parameters."""
        module = nnx.eval_shape(lambda: self._module(jax.random.key(0)))
        shapes = nnx.to_pure_dict(nnx.state(module, nnx.Param))
        # Rebuilt without shardings: the mesh set at the first call must not stick to the cache.
        plain = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), shapes)
        self._check_state(module, plain)
        return nnx.graphdef(module), plain

    def _check_state(self, module: nnx.Module, params: Params) -> None:
        """Raises ConfigError for state that is not float32 parameters, or a vain dtype."""
        _, rest = nnx.state(module, nnx.Param, ...)
        wrong = [
            f"its parameter {name} is {leaf.dtype}; must be float32"
            for name, leaf in tree_utils.flatten(params).items()
            if leaf.dtype != jnp.float32
        ]
        for path, state in nnx.to_flat_state(rest):
            kind = type(state).__name__
            wrong.append(f"{'/'.join(map(str, path))} is nnx.{kind}; its state must be nnx.Param")
        if wrong:
            raise config.ConfigError(f"{self._label}: {wrong[0]}")
        if self.config.dtype == "bfloat16_matmul":
            multiply = layers.dot_general(self.config)
            if all(layer.dot_general is not multiply for *_, layer in _dense_layers(module)):
                raise config.ConfigError(
                    f"model.dtype=bfloat16_matmul: {self._label} has no dense layers that multiply "
                    "so; set float32 or bfloat16"
                )

    def shapes(self) -> Params:
        """ShapeDtypeStructs of the parameters, nested by name; allocates nothing."""
        # The original is cached, and callers add to what they get.
        return jax.tree.map(lambda leaf: leaf, self._abstract[1])  # a copy

    def bind(self, params: Params) -> Any:
        """The module that holds `params`, with the adapters of its dense layers under `lora`.

        Raises ParameterError, in one line with every difference, unless names, shapes and types
        are exactly those of `shapes()`, or of `cast` where it differs.
        """
        graphdef, shapes = self._abstract
        own = {name: part for name, part in params.items() if name not in (LORA, OBJECTIVE)}
        given, expected = tree_utils.flatten(own), tree_utils.flatten(shapes)
        # A training step casts parameters before devices gather them, so both dtypes are right
        # here.
        for name, cast in tree_utils.flatten(jax.eval_shape(self.cast, shapes)).items():
            if getattr(given.get(name), "dtype", None) == cast.dtype:
                expected[name] = cast
        wrong = differences(expected, given)
        added = tree_utils.flatten(params.get(LORA, {}))
        wrong += [
            f"{name} is unknown" for name in added if name.rpartition("/")[0] not in self.dense
        ]
        if wrong:
            raise ParameterError(f"parameters do not fit the model: {'; '.join(wrong)}")
        # nnx.merge goes by position and checks no name; with equal names the order is equal too.
        network = nnx.merge(graphdef, tree_utils.nest(given))
        for name, parent, attribute, layer in _dense_layers(network):
            if f"{name}/a" in added:
                setattr(parent, attribute, Adapted(layer, added[f"{name}/a"], added[f"{name}/b"]))
        return network

    @functools.cached_property
    def dense(self) -> dict[str, tuple[int, int]]:
        """The inputs and outputs of every dense layer by the name of its matrix."""
        return {
            name: (math.prod(_axes(layer.in_features)), math.prod(_axes(layer.out_features)))
            for name, _, _, layer in _dense_layers(nnx.merge(*self._abstract))
        }

    def cast(self, params: Params) -> Params:
        """Casts parameters that the network reads only in the compute dtype.

        Outputs stay the same, but gathering the parameters over devices moves half the bytes.
        """
        reads = variants.find_architecture(self.config).reads_in_compute_type

        def one(name: str, leaf: jax.Array) -> jax.Array:
            return leaf.astype(self.dtype) if reads(name) else leaf

        return tree_utils.map_named(one, params)

    def apply(
        self,
        params: Params,
        images: jax.Array,
        *,
        key: jax.Array | None = None,
        capture: bool = False,
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Logits (B, K) float32 and intermediates by name.

        Intermediates: `tokens` (B, N, D), the input of pooling in the compute dtype, class token
        first if any; `pre_logits` (B, D or R) float32, the input of the head; and with `capture`,
        `attention` (L, B, H, N, N) float32, always from explicit attention (axial_vit has none).
        ResNets have `features` (B, h, w, F), the last map in the compute dtype, and `pre_logits`.
        Under `jit` unused ones cost nothing.

        Args:
          params: float32 arrays nested as in `shapes()`, and adapters under `lora` if there are
            any; raises ParameterError otherwise.
          images: (B, H, W, C) floats in [-1, 1].
          key: dropout key; None means no dropout.
          capture: whether to return the attention weights.
        """
        self._check(images)
        with self._network(params) as network:
            found = network(images, key=key, capture=capture)
        if variants.is_plugged_in(self.config):
            self._check_outputs(found, images.shape[0])
        return found

    def _check_outputs(self, found: object, rows: int) -> None:
        """Raises ConfigError unless a plug-in's network returns what `Architecture` asks of it."""
        if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], Mapping)):
            raise config.ConfigError(f"{self._label}: must return logits, and a dict of the rest")
        outputs = 0 if self.masked is not None else self.config.num_classes or 0
        wanted = {"logits": (rows, outputs), "pre_logits": (rows, None)}
        # None stands for pre_logits that are missing, and fails below. Logits come last, so that an
        # entry of that name in the dict does not hide them.
        for name, array in {"pre_logits": None, **found[1], "logits": found[0]}.items():
            if name not in wanted:
                continue
            try:
                chex.assert_shape(array, wanted[name])
                chex.assert_type(array, jnp.float32)
            except (AssertionError, AttributeError, ValueError):
                shape = ", ".join("D" if n is None else str(n) for n in wanted[name])
                kind = getattr(array, "dtype", type(array).__name__)
                raise config.ConfigError(
                    f"{self._label}: its {name} are {kind} {np.shape(array)}; must be float32 "
                    f"({shape})"
                ) from None

    def apply_sequences(
        self,
        params: Params,
        patches: jax.Array,
        grids: jax.Array,
        *,
        key: jax.Array | None = None,
        capture: bool = False,
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Like `apply`, for images of unlike grids as padded sequences of patches (NaFlex).

        Learned positions are resized to each image's grid, attention and pooling leave out the
        padding. Raises ConfigError unless `variants.check_sequences` passes the model.

        Args:
          params: as in `apply`.
          patches: (B, P, h, w, C) floats in [-1, 1], in raster order; those beyond the grid pad.
          grids: rows and columns of patches of each image, (B, 2) int32, P patches at most.
          key: as in `apply`.
          capture: as in `apply`.
        """
        variants.check_sequences(self.config)
        chex.assert_shape(patches, (None, None, *variants.required(self.config.patch_size), None))
        chex.assert_shape(grids, (len(patches), 2))
        chex.assert_type(grids, int)
        self._check_device()
        with self._network(params) as network:
            return network(patches, key=key, capture=capture, grids=grids)

    def predict_masked(
        self,
        params: Params,
        images: jax.Array,
        source: jax.Array,
        masked: jax.Array,
        *,
        key: jax.Array | None = None,
    ) -> jax.Array:
        """Predictions for masked patches, (B, M, outputs) float32.

        Requires a model with `masked`, whose target defines the outputs.

        Args:
          params: as in `apply`.
          images: as in `apply`, uncorrupted.
          source: (B, P) int32: the patch whose embedding replaces each one's; P is the mask token.
          masked: (B, M) int32: the patches to predict.
          key: dropout key; None means no dropout.
        """
        self._check(images)
        chex.assert_shape(source, (images.shape[0], self.patches))
        chex.assert_shape(masked, (images.shape[0], None))
        chex.assert_type([source, masked], int)
        with self._network(params) as network:
            outputs = network.predict_masked(images, source, masked, key)
        chex.assert_shape(outputs, (*masked.shape, None))
        chex.assert_type(outputs, jnp.float32)
        return outputs

    def encode_kept(
        self, params: Params, images: jax.Array, kept: jax.Array, *, key: jax.Array | None = None
    ) -> jax.Array:
        """Normalized tokens (B, N, D) of some of the patches, in the compute dtype.

        The class token and the like come first. Requires an architecture that is `droppable`.

        Args:
          params: as in `apply`.
          images: as in `apply`.
          kept: (B, K) int32: the patches that the layers see, in this order.
          key: dropout key; None means no dropout.
        """
        self._check(images)
        chex.assert_shape(kept, (images.shape[0], None))
        chex.assert_type(kept, int)
        with self._network(params) as network:
            return network.encode_kept(images, kept, key)

    def encode_masked(
        self,
        params: Params,
        images: jax.Array,
        masked: jax.Array,
        token: jax.Array,
        *,
        key: jax.Array | None = None,
    ) -> dict[str, jax.Array]:
        """Intermediates of `apply` for images with some patches replaced by one embedding.

        Requires an architecture that is `droppable`.

        Args:
          params: as in `apply`.
          images: as in `apply`.
          masked: (B, P) bool: the patches to replace.
          token: (1, 1, D): what replaces them, before positions are added.
          key: dropout key; None means no dropout.
        """
        self._check(images)
        chex.assert_shape(masked, (images.shape[0], self.patches))
        chex.assert_type(masked, bool)
        with self._network(params) as network:
            return network.encode_masked(images, masked, token, key)

    def position_tables(self, params: Params) -> jax.Array:
        """Position embeddings of the patches, (T, P, D): T is the number of layers, or 1.

        Requires an architecture that lacks no `posemb`.
        """
        with self._network(params) as network:
            tables = network.position_tables()
        if variants.is_plugged_in(self.config):
            self._check_shape("position_tables", tables, (None, self.patches, None))
        return tables

    def check_intermediate(
        self, params: Params, name: str, shape: tuple[int | None, ...], *, capture: bool = False
    ) -> None:
        """Raises ConfigError where a plug-in's network has not an intermediate that it should.

        The shape is that of one image; None stands for any size.
        """
        if not variants.is_plugged_in(self.config):
            return
        images = jax.ShapeDtypeStruct((1, *self.image_size, self.channels), jnp.float32)
        apply = functools.partial(self.apply, capture=capture)
        _, found = jax.eval_shape(apply, params, images)
        self._check_shape(name, found.get(name), shape)

    def _check_shape(self, name: str, found: object, shape: tuple[int | None, ...]) -> None:
        own = getattr(found, "shape", None)
        if (
            own is None
            or len(own) != len(shape)
            or any(wanted not in (None, size) for wanted, size in zip(shape, own, strict=True))
        ):
            wanted = ", ".join("any" if size is None else str(size) for size in shape)
            there = "none" if own is None else own
            raise config.ConfigError(f"{self._label}: its {name} must be ({wanted}); found {there}")

    def _check(self, images: jax.Array) -> None:
        """Raises ValueError for images the model does not take, ConfigError for its attention."""
        expected = (*self.image_size, self.channels)
        if not hasattr(images, "ndim"):
            given = type(images).__name__
            raise ValueError(f"images are a {given}; the model takes an array (B, H, W, C)")
        if images.ndim != 4 or images.shape[1:] != expected or not images.shape[0]:
            raise ValueError(
                f"images are {images.shape}; the model takes (B, H, W, C) of {expected}, B >= 1"
            )
        if not jnp.issubdtype(images.dtype, jnp.floating):
            raise ValueError(f"images are {images.dtype}; the model takes floats in [-1, 1]")
        self._check_device()

    def _check_device(self) -> None:
        if self.config.attention == "cudnn" and jax.default_backend() != "gpu":
            raise config.ConfigError(
                f"model.attention=cudnn: needs an NVIDIA GPU, this is {jax.default_backend()}; "
                "set explicit"
            )

    @property
    def patches(self) -> int:
        """The number of patches, or positions of the last map, of an image."""
        rows, columns = variants.grid(self.config, self.image_size)
        return rows * columns

    @property
    def num_params(self) -> int:
        """The number of parameters."""
        return tree_utils.count(self._abstract[1])

    @property
    def flops(self) -> int | None:
        """FLOPs of the forward pass of one image, matrix products only; None: not counted."""
        return variants.flops(self.config, self.image_size, self.channels, self.masked)


def create(
    model: config.Model,
    *,
    image_size: tuple[int, int],
    channels: int = 3,
    dtype: str = "float32",
    masked: config.MaskedPatches | None = None,
    headless: bool = False,
) -> Classifier:
    """The classifier that `model` describes.

    Args:
      model: with a variant or all sizes, and num_classes set.
      image_size: height and width in pixels, multiples of the patch's unless `patch_remainder`
        drops the remainder.
      channels: of an image, at least 1.
      dtype: a `model.dtype` other than `auto`, in whose place it is used.
      masked: with it, the model predicts patches instead of classes.
      headless: whether `num_classes` may be None, for a network that ends in pooled features.

    Raises ConfigError for sizes that are missing or do not fit each other.
    """
    model = variants.complete(model)
    variants.check_model(model, image_size)
    if model.num_classes is None and masked is None and not headless:
        raise config.ConfigError("model.num_classes=none: not known; set the number of classes")
    # The fused attention of cuDNN takes types of 16 bits only.
    if model.attention == "cudnn" and dtype != "bfloat16":
        raise config.ConfigError(
            "model.attention=cudnn: needs model.dtype=bfloat16; set it, or explicit"
        )
    model = dataclasses.replace(model, dtype=dtype)
    return Classifier(model, image_size, channels, masked)


def differences(expected: Mapping[str, object], given: Mapping[str, object]) -> list[str]:
    """A phrase for each array of `given` that differs from `expected`.

    Both are flat dicts by name, of arrays or ShapeDtypeStructs.
    """

    def form(leaf: Any) -> str:
        if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
            return type(leaf).__name__
        return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"

    wrong = []
    for name, leaf in expected.items():
        if name not in given:
            wrong.append(f"{name} is missing")
        elif form(given[name]) != form(leaf):
            wrong.append(f"{name} is {form(given[name])}, not {form(leaf)}")
    return wrong + [f"{name} is unknown" for name in given if name not in expected]


class Adapted(nnx.Module):
    """A dense layer with a low-rank adapter (LoRA, Hu et al. 2021): x W + (x A) B.

    The matrix W is only read, so a gradient with respect to adapters is never as large as W.
    """

    def __init__(self, dense: Dense, a: jax.Array, b: jax.Array):
        self.dense, self.a, self.b = dense, nnx.Param(a), nnx.Param(b)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Applies the dense layer and adds the LoRA update in the layer's dtype."""
        y = self.dense(x)
        # Attention's `out` contracts two axes, heads and their width, which A takes as one.
        inputs = len(_axes(self.dense.in_features))
        x = x.reshape(*x.shape[: x.ndim - inputs], -1).astype(y.dtype)
        # (x A) B: the product A B would be as large as W.
        update = x @ self.a[...].astype(y.dtype) @ self.b[...].astype(y.dtype)
        return y + update.reshape(y.shape)


def _axes(features: int | tuple[int, ...]) -> tuple[int, ...]:
    return features if isinstance(features, tuple) else (features,)


def _dense_layers(
    network: nnx.Module,
) -> list[tuple[str, nnx.Module, str, Dense]]:
    """The name of each dense layer's matrix, its parent module, its attribute there, and itself."""
    # All at once: `bind` replaces layers while it goes through them.
    return [
        ("/".join(map(str, (*path, attribute, "kernel"))), module, attribute, layer)
        for path, module in nnx.iter_modules(network)
        for attribute, layer in vars(module).items()
        if isinstance(layer, Dense)
    ]
