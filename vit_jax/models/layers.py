"""The parts a Vision Transformer is built from.

Letters, here and in every other file:

    B batch     H W C  image height, width and channels, always in the order B H W C
    N tokens    P      patches, the tokens that show pixels; N = P + class token and the like
    D width     L      layers, stacked on one leading axis
    H heads     d      width of a head, D/H     M  hidden width of the MLP
    K classes   R      width of the representation layer before the head

Modules hold only float32 parameters. Dropout keys are arguments; None means no dropout. Broadcasts
and casts are written out (`scale[None]`): the tests forbid jax to promote ranks or types.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, TypeVar

import chex
import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec

from vit_jax import config
from vit_jax.models import positions, variants
from vit_jax.models.variants import prefix_tokens, required

F = TypeVar("F", bound=Callable[..., object])
M = TypeVar("M", bound=nnx.Module)

# The mesh's axes, named again because models cannot import `training.sharding`.
BATCH_AXES = ("data", "zero", "fsdp")


def _recomputed(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """A function whose backward pass, on a CPU, computes all that it needs from the first argument.

    XLA would keep what both passes have in common beside that argument, such as tanh.
    """

    @jax.custom_jvp
    def call(*arguments: Any) -> jax.Array:
        return function(*arguments)

    @call.defjvp
    def _(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[jax.Array, jax.Array]:
        anew = _cpu_barrier(primals[0]) + primals[1:]
        return call(*primals), jax.jvp(function, anew, tangents)[1]

    return call


FUNCTIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "gelu_tanh": functools.partial(nnx.gelu, approximate=True),
    "gelu_erf": functools.partial(nnx.gelu, approximate=False),
    "gelu_quick": lambda x: x * nnx.sigmoid(1.702 * x),  # as in OpenAI's CLIP
    "silu": nnx.silu,
    "relu": nnx.relu,
    "tanh": jnp.tanh,
}
ACTIVATIONS = {name: _recomputed(function) for name, function in FUNCTIONS.items()}

xavier_uniform = nnx.initializers.xavier_uniform()


# Functions


def patchify(images: jax.Array, patch: tuple[int, int]) -> jax.Array:
    """Cuts images (B, H, W, C) into patches (B, P, h, w, C) in raster order, `patch` being (h, w).

    Drops rows at the bottom and columns at the right that fill no whole patch.
    """
    chex.assert_rank(images, 4)
    # Not len(images): the batch is a symbol while a program is exported.
    batch, height, width, channels = images.shape
    h, w = patch
    rows, columns = height // h, width // w
    if (rows * h, columns * w) != (height, width):
        images = images[:, : rows * h, : columns * w]
    grid = images.reshape(batch, rows, h, columns, w, channels)
    return jnp.swapaxes(grid, 2, 3).reshape(batch, -1, h, w, channels)


def unpatchify(patches: jax.Array, size: tuple[int, int]) -> jax.Array:
    """Joins patches (B, P, h, w, C) to images (B, H, W, C), `size` being (H, W)."""
    chex.assert_rank(patches, 5)
    batch, _, h, w, channels = patches.shape
    grid = patches.reshape(batch, size[0] // h, size[1] // w, h, w, channels)
    return jnp.swapaxes(grid, 2, 3).reshape(batch, *size, channels)


def dropout(x: jax.Array, rate: float, key: jax.Array | None) -> jax.Array:
    """Zeroes elements of x (..., D) with probability `rate` and scales up the others.

    Two elements share one random word, 16 bits each, which sets the rate to within 1e-5: hashing
    words is most of the cost on a TPU. With this, and the mask kept for the backward pass, ViT-B/16
    compiles for v3-128 in 82 CPU seconds instead of the 176 of `nnx.Dropout`; without dropout, 83.
    """
    if key is None or rate == 0.0:
        return x
    kept, width = 1.0 - rate, x.shape[-1]
    words = jax.random.bits(key, (*x.shape[:-1], -(-width // 2)))
    halves = jnp.concatenate([words & 0xFFFF, words >> 16], axis=-1)[..., :width]
    mask = checkpoint_name(halves < jnp.uint32(round(kept * 2**16)), "dropout")
    return jnp.where(mask, x / kept, jnp.zeros_like(x))


def drop_path(x: jax.Array, rate: jax.Array | float, key: jax.Array | None) -> jax.Array:
    """Zeroes whole images of x (B, ...) with probability `rate` and scales up the others.

    On the branch of a residual connection this is stochastic depth (Huang et al. 2016).
    """
    if key is None:
        return x
    kept = 1.0 - jnp.asarray(rate, jnp.float32)
    mask = jax.random.bernoulli(key, kept, (x.shape[0], *(1,) * (x.ndim - 1)))
    return x * (mask.astype(jnp.float32) / kept).astype(x.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def bfloat16_matmul(x: jax.Array, kernel: jax.Array, axes: int = 1) -> jax.Array:
    """The product of x and a kernel in float32, of operands rounded to bfloat16.

    On CPUs with such an instruction (AVX512-BF16, AMX) it takes half the time of a product in
    float32. The gradients are products of the same kind.

    Args:
      x: (..., *I) float32.
      kernel: (*I, *O) float32.
      axes: the number of axes in I.

    Returns (..., *O).
    """
    return _rounded(x, kernel, axes)[0]


def _rounded(x: jax.Array, kernel: jax.Array, axes: int) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    x, kernel = x.astype(jnp.bfloat16), kernel.astype(jnp.bfloat16)
    return _contract(x, range(x.ndim - axes, x.ndim), kernel, range(axes)), (x, kernel)


def _rounded_gradients(
    axes: int, kept: tuple[jax.Array, ...], gradient: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, kernel = kept
    gradient = gradient.astype(jnp.bfloat16)
    # For y = x W: dx = g W^T sums over the outputs, dW = x^T g over all axes of the batch.
    batch, outputs = range(x.ndim - axes), kernel.ndim - axes
    last = range(gradient.ndim - outputs, gradient.ndim)
    return (
        _contract(gradient, last, kernel, range(axes, kernel.ndim)),
        _contract(x, batch, gradient, batch),
    )


def _contract(a: jax.Array, own: range, b: jax.Array, other: range) -> jax.Array:
    dimensions = ((tuple(own), tuple(other)), ((), ()))
    # Else a transpose before or after becomes part of the product, which the CPU's compiler then
    # cannot run (jaxlib 0.10.2: "Unsupported element type for DotThunk::Execute").
    a, b = _cpu_barrier(a, b)
    y = jax.lax.dot_general(a, b, dimensions, preferred_element_type=jnp.float32)
    return _cpu_barrier(y)[0]


def _cpu_barrier(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    """An optimization barrier on CPUs; for GPUs and TPUs it would be in the way of fusions."""
    return jax.lax.platform_dependent(
        *arrays, cpu=lambda *x: jax.lax.optimization_barrier(x), default=lambda *x: x
    )


bfloat16_matmul.defvjp(_rounded, _rounded_gradients)


def _dense_bfloat16(
    x: jax.Array, kernel: jax.Array, dimensions: jax.lax.DotDimensionNumbers, **_: object
) -> jax.Array:
    # The precision that nnx passes too has no meaning for operands in bfloat16.
    return bfloat16_matmul(x, kernel, len(dimensions[0][0]))


def dot_general(model: config.Model) -> Callable[..., jax.Array]:
    """What dense layers multiply with: that of jax, or of bfloat16 (`model.dtype`)."""
    return _dense_bfloat16 if model.dtype == "bfloat16_matmul" else jax.lax.dot_general


def create_norm(
    model: config.Model, features: int, *, rngs: nnx.Rngs
) -> nnx.LayerNorm | nnx.RMSNorm:
    """A LayerNorm or RMSNorm over a last axis of `features`."""
    kind = nnx.RMSNorm if model.norm == "rms" else nnx.LayerNorm
    return kind(features, epsilon=model.norm_epsilon, rngs=rngs)


def normalize(norm: Callable[[jax.Array], jax.Array], x: jax.Array) -> jax.Array:
    """Applies `norm` in float32 and rounds once to the dtype of x."""
    return norm(x.astype(jnp.float32)).astype(x.dtype)


# Memory


# What the backward pass may keep of a layer; it recomputes everything else. The policies of jax
# know matrix products only: convolutions and dropout masks are kept by their names.
_named = jax.checkpoint_policies.save_only_these_names("convolution", "dropout")
_either = jax.checkpoint_policies.save_from_both_policies
REMAT_POLICIES = {
    "full": None,
    "dots": _either(jax.checkpoint_policies.dots_saveable, _named),
    "dots_no_batch": _either(jax.checkpoint_policies.dots_with_no_batch_dims_saveable, _named),
}


def rematerialize(layer: F, kind: str, unroll: int) -> F:
    """Wraps the body of a scan over layers so that it rematerializes as `model.remat` says."""
    if kind in ("none", "attention"):  # handled inside Attention
        return layer
    # Inside a loop nothing can be shared between the passes, so the barrier would only cost;
    # unrolled, the compiler would share it all and undo the rematerialization: ViT-B/16 at batch
    # 1024 on v3-32 then has a peak of 3.04 GiB instead of 1.32.
    remat = jax.checkpoint(layer, policy=REMAT_POLICIES[kind], prevent_cse=unroll > 1)
    return remat  # pyright: ignore[reportReturnType]


def unstack(stacked: M, depth: int, dtype: jax.typing.DTypeLike) -> list[M]:
    """The layers of a stack one by one, cast to `dtype` except norms, biases of logits and angles.

    Gradients of their slices are stacked in `dtype`, in which they are exact. Stacked in float32,
    as they would be automatically, they cost the step twice the bytes to write and read.
    """

    def slices(path: jax.tree_util.KeyPath, leaf: jax.Array) -> tuple[jax.Array, ...]:
        name = jax.tree_util.keystr(path)
        # The network reads these in float32, so in `dtype` their gradients would lose digits.
        exact = any(part in name for part in ("norm", "relative_bias", "frequencies"))
        own, compute = leaf.dtype, leaf.dtype if exact else dtype
        unstacked = jax.custom_vjp(lambda leaf: tuple(leaf[i] for i in range(depth)))
        unstacked.defvjp(
            lambda leaf: (unstacked(leaf), None),
            lambda _, grads: (jnp.stack([one.astype(compute) for one in grads]).astype(own),),
        )
        return unstacked(leaf)

    leaves, structure = jax.tree_util.tree_flatten_with_path(stacked)
    by_leaf = [slices(path, leaf) for path, leaf in leaves]
    return [jax.tree.unflatten(structure, [leaf[i] for leaf in by_leaf]) for i in range(depth)]


@jax.custom_vjp
def finish_gradients(x: jax.Array, layer: M) -> tuple[jax.Array, M]:
    """Both unchanged; on one CPU, a backward pass computes the gradients of `layer` before x's.

    XLA might leave them to the end, and keep until then what each layer needs for them. ViT-S/16
    with 16 images: 976 MiB of temporaries instead of 1,197, with remat=full 267 instead of 1,162.
    """
    return x, layer


def _is_primal(leaf: Any) -> bool:
    return isinstance(leaf, jax.custom_derivatives.CustomVJPPrimal)


def _finish_forward(x: Any, layer: Any) -> tuple[Any, list[tuple[()] | None]]:
    leaves, tree = jax.tree.flatten(layer, is_leaf=_is_primal)
    # As structure, which is known while tracing; values would become arrays.
    trained = [() if leaf.perturbed else None for leaf in leaves]
    return (x.value, jax.tree.unflatten(tree, [leaf.value for leaf in leaves])), trained


def _finish_backward(
    trained: list[tuple[()] | None], gradients: tuple[jax.Array, M]
) -> tuple[jax.Array, M]:
    x, layer = gradients
    leaves = zip(jax.tree.leaves(layer), trained, strict=True)
    first = [leaf.ravel()[0] for leaf, one in leaves if one is not None]

    def wait(x: jax.Array, *first: jax.Array) -> jax.Array:
        # XLA drops barriers before it orders operations, but no factor that may be NaN.
        return x * (1 + 0 * sum(one.astype(x.dtype) for one in first))

    mesh = jax.sharding.get_abstract_mesh()
    if first and (mesh.empty or mesh.size == 1):  # several devices would sum gradients first
        x = jax.lax.platform_dependent(x, *first, cpu=wait, default=lambda x, *_: x)
    return x, layer


finish_gradients.defvjp(_finish_forward, _finish_backward, symbolic_zeros=True)


def constrain_batch(x: jax.Array) -> jax.Array:
    """Shards x over the whole mesh by its first axis only; no-op where no mesh is set.

    Without it the partitioner may split the width of a scanned encoder instead of its batch, at
    several times the memory (FSDP ViT-B: 2.96 GiB instead of 0.42).
    """
    if jax.sharding.get_abstract_mesh().empty:
        return x
    return jax.lax.with_sharding_constraint(x, PartitionSpec(BATCH_AXES))


# Layers


class LayerScale(nnx.Module):
    """A learned factor per feature of a branch, initially small (Touvron et al. 2021, CaiT)."""

    def __init__(self, width: int, initial: float):
        self.scale = nnx.Param(jnp.full((width,), initial, jnp.float32))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Scales x (..., D) in its dtype."""
        scale = self.scale[...].astype(x.dtype)
        return x * jnp.expand_dims(scale, range(x.ndim - 1))


class Mlp(nnx.Module):
    """Two dense layers with an activation between them, or SwiGLU with `model.mlp=swiglu`.

    SwiGLU (Shazeer 2020; DINOv2, DINOv3) is fc2(silu(gate(x)) * fc1(x)).
    """

    def __init__(self, model: config.Model, dtype: jnp.dtype, *, rngs: nnx.Rngs):
        gelu = model.activation == "gelu"
        self.activation = f"gelu_{model.gelu}" if gelu else model.activation
        self.rate, self.gated = model.dropout, model.mlp == "swiglu"
        width, hidden = required(model.width), required(model.mlp_dim)
        # Google's code draws biases as normal(1e-6); SwiGLU's begin at zero, as in timm.
        bias = nnx.initializers.zeros if self.gated else nnx.initializers.normal(1e-6)
        linear = functools.partial(
            nnx.Linear,
            kernel_init=xavier_uniform,
            bias_init=bias,
            use_bias="mlp" not in model.biasless,
            dtype=dtype,
            dot_general=dot_general(model),
            rngs=rngs,
        )
        if self.gated:
            self.gate = linear(width, hidden)
        self.fc1 = linear(width, hidden)
        self.inner = "mlp" in model.sub_norm
        if self.inner:
            self.sub_norm = create_norm(model, hidden, rngs=rngs)
        self.fc2 = linear(hidden, width)

    def __call__(self, x: jax.Array, key: jax.Array | None) -> jax.Array:
        """Maps (B, N, D) to (B, N, D), with dropout after the activation."""
        if self.gated:
            x = nnx.silu(self.gate(x)) * self.fc1(x)
        else:
            x = self.fc1(x)
            if not self.inner and (key is None or self.rate == 0.0):
                return _recomputed(self._finish)(x, self.fc2)
            x = ACTIVATIONS[self.activation](x)
        x = dropout(x, self.rate, key)
        return self.fc2(normalize(self.sub_norm, x) if self.inner else x)

    def _finish(self, x: jax.Array, fc2: nnx.Linear) -> jax.Array:
        return fc2(FUNCTIONS[self.activation](x))


@jax.custom_jvp
def softmax(logits: jax.Array) -> jax.Array:
    """The softmax over the last axis; the backward pass keeps its result alone.

    That of jax has no such rule unless `jax_softmax_custom_jvp` is set, and keeps exponents too:
    1.98 GiB of temporaries instead of 1.64 in a step of ViT-S/16 with 16 images on a CPU.
    """
    return jax.nn.softmax(logits, axis=-1)


@softmax.defjvp
def _(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    (tangent,) = tangents
    y = softmax(*primals)
    return y, y * (tangent - jnp.sum(y * tangent, axis=-1, keepdims=True))


def attention_weights(
    query: jax.Array,
    key: jax.Array,
    relative: jax.Array | None = None,
    bias: jax.Array | None = None,
    lengths: jax.Array | None = None,
) -> jax.Array:
    """softmax(q k^T / sqrt(d)), (B, H, Q, N) float32, of q (B, Q, H, d) and k (B, N, H, d).

    Args:
      query: in the compute dtype.
      key: likewise.
      relative: further keys (Q, N, d), one per offset (ViT, appendix D.4): q r^T joins q k^T.
      bias: (H, Q, N) float32, added to the logits.
      lengths: keys of each image, (B,) int32; those beyond are padding and get no weight.
    """
    # Scaled here, d numbers per query, not in the logits, N numbers per query.
    query = query * (1 / math.sqrt(query.shape[-1]))
    # The product leaves the matmul in the compute dtype: asking for float32 there costs 15 % more
    # bytes (a step of ViT-B/16 on v3-32), while the softmax is fused and free to be exact.
    # Heads come first here and below: a CPU multiplies so more than twice as fast (forward, 197
    # tokens), and TPU compilers make the same program of either order.
    logits = jnp.einsum("bhqd,bhkd->bhqk", *(jnp.swapaxes(x, 1, 2) for x in (query, key)))
    if relative is not None:
        logits = logits + jnp.einsum("bqhd,qkd->bhqk", query, relative.astype(query.dtype))
    logits = logits.astype(jnp.float32)
    if lengths is not None:
        keys = jnp.arange(key.shape[1], dtype=lengths.dtype)[None, None, None]
        logits = jnp.where(keys < lengths[:, None, None, None], logits, -jnp.inf)
    return softmax(logits if bias is None else logits + bias[None])


def _attend(
    kind: str,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    relative: jax.Array | None,
    bias: jax.Array | None,
    gate: jax.Array | None,
    lengths: jax.Array | None,
) -> tuple[jax.Array, jax.Array | None]:
    """Weighted values (B, Q, H, d) and, if `explicit`, the weights; `kind` is model.attention."""
    if kind == "explicit":
        weights = attention_weights(query, key, relative, bias, lengths)
        weights = weights if gate is None else weights * gate
        y = jnp.einsum("bhqk,bhkd->bhqd", weights.astype(value.dtype), jnp.swapaxes(value, 1, 2))
        return jnp.swapaxes(y, 1, 2), weights
    if kind == "xla":
        y = jax.nn.dot_product_attention(
            query, key, value, key_value_seq_lengths=lengths, implementation="xla"
        )
        return y, None
    # On an H200 a step of ViT-B/16 is 1.26 times as fast by cuDNN as with `explicit` (measured).
    # cuDNN's backward pass refuses odd lengths, and 14 x 14 patches with a class token are 197.
    queries, keys = (jnp.full(x.shape[:1], x.shape[1], jnp.int32) for x in (query, key))
    y = jax.nn.dot_product_attention(
        *(jnp.pad(x, ((0, 0), (0, -x.shape[1] % 8), (0, 0), (0, 0))) for x in (query, key, value)),
        query_seq_lengths=queries,
        key_value_seq_lengths=keys if lengths is None else lengths,
        implementation="cudnn",
    )
    return y[:, : query.shape[1]], None


class Attention(nnx.Module):
    """Multi-head attention (ViT, appendix A); self-attention unless `to` names other tokens.

    Attributes:
      gate: factors (B, H, Q, N) float32 of the weights, which stand for 1 unless set on a bound
        module. The gradient of ones is weight times gradient (`inspect.saliency`).
    """

    gate: nnx.Param | None = None

    def __init__(
        self,
        model: config.Model,
        dtype: jnp.dtype,
        *,
        grid: tuple[int, int] | None = None,
        tokens: int | None = None,
        rngs: nnx.Rngs,
    ):
        """Creates the projections, and the position encodings that `model` asks for.

        Args:
          model: complete options.
          dtype: compute dtype.
          grid: of patches, for rotary positions and relative biases; None leaves both out.
          tokens: N, for relative positions; None leaves them out.
          rngs: for initial values.
        """
        self.kind = model.attention
        self.recomputed, self.unrolled = model.remat == "attention", (model.unroll or 1) > 1
        width = required(model.width)
        heads = (required(model.heads), width // required(model.heads))
        self.normed = model.qk_norm
        if model.qk_norm:
            self.query_norm = create_norm(model, heads[1], rngs=rngs)
            self.key_norm = create_norm(model, heads[1], rngs=rngs)
        self.prefix = 0 if grid is None else prefix_tokens(model)
        self.rotary = None
        if grid is not None and model.rotary is not None:
            self.rotary = positions.Rotary(
                grid,
                self.prefix,
                features=heads[1],
                base=model.rotary,
                span=model.rotary_span,
                reference=model.rotary_grid,
                offset=model.rotary_offset,
            )
            if model.rotary_learned:
                self.frequencies = nnx.Param(self.rotary.initial(heads[0], rngs=rngs))
        self.learned = self.rotary is not None and model.rotary_learned
        linear = functools.partial(
            nnx.LinearGeneral,
            kernel_init=xavier_uniform,
            dtype=dtype,
            dot_general=dot_general(model),
            rngs=rngs,
        )
        # Three matrices, as Google's files have them, where timm has one.
        self.query, self.key, self.value = (
            linear(width, heads, use_bias=name not in model.biasless)
            for name in ("query", "key", "value")
        )
        self.out = linear(heads, width, axis=(-2, -1), use_bias="out" not in model.biasless)
        self.inner = "attention" in model.sub_norm
        if self.inner:
            self.sub_norm = create_norm(model, width, rngs=rngs)
        self.relative = tokens is not None
        if tokens is not None:
            self.offsets = positions.RelativePositions(tokens, heads[1], rngs=rngs)
        self.biased = grid is not None and model.relative_bias == "layers"
        if grid is not None and self.biased:
            self.relative_bias = positions.RelativeBias(model, grid, rngs=rngs)

    def __call__(
        self,
        x: jax.Array,
        *,
        to: jax.Array | None = None,
        bias: jax.Array | None = None,
        capture: bool = False,
        sequences: positions.Sequences | None = None,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Attends from x (B, Q, D) to `to`.

        Args:
          x: what queries come from.
          to: what keys and values come from, (B, N, D); None means x itself.
          bias: of the logits, (H, Q, N) float32, unless each layer has its own.
          capture: whether to return the weights.
          sequences: the grids of padded tokens, and where they end.

        Returns:
          (B, Q, D), and the weights (B, H, Q, N) float32 or None.
        """
        to = x if to is None else to
        query, key, value = self.query(x), self.key(to), self.value(to)
        if self.normed:
            # Before rotating, as in timm's EVA: a norm's factors per feature do not commute with
            # it.
            query, key = normalize(self.query_norm, query), normalize(self.key_norm, key)
        if self.rotary is not None:
            learned = self.frequencies[...] if self.learned else None
            query, key = (self.rotary.rotate(x, sequences, learned) for x in (query, key))
        gate = None if self.gate is None else self.gate[...]
        # Only the explicit kind has weights to return, or to gate.
        explicit = capture or gate is not None
        attend = functools.partial(_attend, "explicit" if explicit else self.kind)
        if self.recomputed:
            # Recomputes the softmax alone: 0.038 GiB less for each layer of ViT-B/16 on v3-128, at
            # 0.7 % more FLOPs and 7 % more bytes.
            attend = jax.checkpoint(attend, prevent_cse=self.unrolled)
        bias = self.relative_bias() if self.biased else bias
        relative = self.offsets() if self.relative else None
        lengths = None if sequences is None else self.prefix + sequences.lengths
        y, weights = attend(query, key, value, relative, bias, gate, lengths)
        if self.inner:
            y = normalize(self.sub_norm, y.reshape(*y.shape[:2], -1)).reshape(y.shape)
        return self.out(y), weights if capture else None


class EncoderBlock(nnx.Module):
    """Pre-norm attention and MLP, each added to its input (ViT, equations 2 and 3)."""

    def __init__(
        self,
        model: config.Model,
        grid: tuple[int, int],
        dtype: jnp.dtype,
        *,
        rngs: nnx.Rngs,
    ):
        width, self.rate, self.paths = required(model.width), model.dropout, model.stochastic_depth
        tokens = grid[0] * grid[1] + prefix_tokens(model)
        self.positioned = model.position_place == "layers"
        if self.positioned:
            self.position = positions.Positions(model, grid, rngs=rngs)
        self.norm1 = create_norm(model, width, rngs=rngs)
        relative = tokens if model.position == "relative" else None
        self.attention = Attention(model, dtype, grid=grid, tokens=relative, rngs=rngs)
        self.norm2 = create_norm(model, width, rngs=rngs)
        self.mlp = Mlp(model, dtype, rngs=rngs)
        self.scaled = model.layer_scale is not None
        if model.layer_scale is not None:
            self.scale1 = LayerScale(width, model.layer_scale)
            self.scale2 = LayerScale(width, model.layer_scale)

    def __call__(
        self,
        x: jax.Array,
        key: jax.Array | None,
        share: jax.Array,
        capture: bool = False,
        bias: jax.Array | None = None,
        sequences: positions.Sequences | None = None,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Applies the block to tokens x (B, N, D).

        Dropout falls on the three dense outputs of a block (ViT, appendix B.1): the attention's
        projection and both layers of the MLP; never on the attention weights.

        Args:
          x: (B, N, D).
          key: dropout key, or None.
          share: of the full stochastic depth rate, 0 in the first layer and 1 in the last.
          capture: whether to return the attention weights.
          bias: of the attention logits, (H, N, N) float32, or None.
          sequences: the grids of padded tokens, and where they end.

        Returns:
          (B, N, D), and the weights (B, H, N, N) float32 or None.
        """
        # The order is part of what a resumed run repeats: three dropouts, then two drop paths.
        keys = (None,) * 5 if key is None else jax.random.split(key, 5)
        if self.positioned:
            x = x + self.position(sequences).astype(x.dtype)
        y, weights = self.attend(normalize(self.norm1, x), capture, bias, sequences)
        y = self.scale1(y) if self.scaled else y
        x = x + self._drop_path(dropout(y, self.rate, keys[0]), share, keys[3])
        y = self.mlp(normalize(self.norm2, x), keys[1])
        y = self.scale2(y) if self.scaled else y
        return x + self._drop_path(dropout(y, self.rate, keys[2]), share, keys[4]), weights

    def attend(
        self,
        x: jax.Array,
        capture: bool,
        bias: jax.Array | None,
        sequences: positions.Sequences | None,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Attention among tokens x (B, N, D), and its weights on request; for subclasses."""
        return self.attention(x, bias=bias, capture=capture, sequences=sequences)

    def _drop_path(self, branch: jax.Array, share: jax.Array, key: jax.Array | None) -> jax.Array:
        return drop_path(branch, self.paths * share, key) if self.paths else branch


class AttentionPooling(nnx.Module):
    """A learned query that attends to all tokens, and an MLP (Zhai et al. 2022; big_vision)."""

    def __init__(self, model: config.Model, dtype: jnp.dtype, *, rngs: nnx.Rngs):
        # These options, and SwiGLU, concern encoder blocks only.
        model = dataclasses.replace(
            model,
            biasless=(),
            qk_norm=False,
            sub_norm=(),
            mlp="plain",
            heads=model.pooling_heads or model.heads,
            mlp_dim=model.pooling_mlp_dim or model.mlp_dim,
        )
        width, self.first = required(model.width), variants.first_pooled(model)
        # Drawn as in big_vision's MAPHead.
        self.probe = nnx.Param(xavier_uniform(rngs.params(), (1, 1, width), jnp.float32))
        self.attention = Attention(model, dtype, rngs=rngs)
        # Without a grid it has no prefix, but lengths of sequences count the tokens before the
        # patches.
        self.attention.prefix = prefix_tokens(model) - self.first
        self.norm = create_norm(model, width, rngs=rngs)
        self.mlp = Mlp(model, dtype, rngs=rngs)

    def __call__(
        self, tokens: jax.Array, sequences: positions.Sequences | None = None
    ) -> jax.Array:
        """Pools tokens (B, N, D) to (B, D), in their dtype; of `sequences`, not the padding."""
        tokens = tokens[:, self.first :]
        probe = self.probe[...].astype(tokens.dtype)
        probe = jnp.broadcast_to(probe, (tokens.shape[0], 1, tokens.shape[2]))
        x, _ = self.attention(probe, to=tokens, sequences=sequences)
        # Without dropout, as in big_vision.
        return (x + self.mlp(normalize(self.norm, x), None))[:, 0]


class WithHead(nnx.Module):
    """A network that ends in a linear head, after a representation layer if any.

    Both compute in float32: a thousandth of the arithmetic, and every digit of the logits. The head
    begins at zero (ViT, section 3.2), so the first gradients leave pretrained layers as they are.
    """

    def add_head(self, model: config.Model, features: int, *, rngs: nnx.Rngs) -> None:
        """Creates the layers for pooled features (B, features)."""
        self.has_head = model.num_classes is not None
        if not self.has_head:
            return
        self.has_representation = model.representation_size is not None
        self.two_heads = model.pooling == "distilled"
        # Pooling puts both tokens side by side, and each head reads its own.
        features = features // 2 if self.two_heads else features
        self.representation_activation = model.representation_activation
        if model.representation_size is not None:
            self.pre_logits = nnx.Linear(features, model.representation_size, rngs=rngs)
            features = model.representation_size
        linear = functools.partial(
            nnx.Linear,
            features,
            required(model.num_classes),
            kernel_init=nnx.initializers.zeros,
            bias_init=nnx.initializers.constant(model.head_bias),
            use_bias="head" not in model.biasless,
            rngs=rngs,
        )
        self.head = linear()
        if self.two_heads:
            self.head_dist = linear()

    def classify(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Logits (B, K), and the input of the last layer, for x (B, features); all float32."""
        x = constrain_batch(x)
        if not self.has_head:  # logits of no classes, and the pooled features
            return x[:, :0], x
        if self.has_representation:
            x = ACTIVATIONS[self.representation_activation](self.pre_logits(x))
        if self.two_heads:  # DeiT averages a head on the class and one on the distillation token
            classes, distilled = jnp.split(x, 2, axis=1)
            return (self.head(classes) + self.head_dist(distilled)) / 2, x
        return self.head(x), x
