"""A Vision Transformer in numpy float64, written from the paper's equations; and jaxpr readers."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from vit_jax.utils import tree_utils

# LLVM's optimization is half of the compile time of a tiny program, and none of its meaning.
quick_jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


def norm(x, scale, bias, epsilon):
    centerd = x - x.mean(-1, keepdims=True)
    return centerd / np.sqrt((centerd**2).mean(-1, keepdims=True) + epsilon) * scale + bias


def normed(p, name, x, model):
    """A LayerNorm, or an RMSNorm (Zhang and Sennrich 2019), by the name of its parameters."""
    if model.norm == "layer":
        return norm(x, p[f"{name}/scale"], p[f"{name}/bias"], model.norm_epsilon)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + model.norm_epsilon) * p[f"{name}/scale"]


def dense(p, name, x):
    """x (..., D) times a kernel (D, ...), with a bias if there is one."""
    return np.tensordot(x, p[f"{name}/kernel"], axes=1) + p.get(f"{name}/bias", 0)


def activate(x, model):
    if model.activation == "relu":
        return np.where(x > 0, x, 0)
    return x * special.expit(x) if model.activation == "silu" else gelu(x, model.gelu)


def gelu(x, kind):
    if kind == "erf":
        return 0.5 * x * (1 + special.erf(x / np.sqrt(2)))
    if kind == "quick":
        return x * special.expit(1.702 * x)
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def sincos(height, width, features):
    rows = np.zeros((height * width, features))
    quarter = features // 4
    for token in range(height * width):
        y, x = divmod(token, width)
        for i in range(quarter):
            frequency = 10_000.0 ** (-i / (quarter - 1)) if quarter > 1 else 1.0
            rows[token, i] = math.sin(x * frequency)
            rows[token, quarter + i] = math.cos(x * frequency)
            rows[token, 2 * quarter + i] = math.sin(y * frequency)
            rows[token, 3 * quarter + i] = math.cos(y * frequency)
    return rows


def sincos_1d(tokens, features):
    rows = np.zeros((tokens, features))
    for token in range(tokens):
        for i in range(0, features, 2):
            angle = token / 10_000.0 ** (i / features)
            rows[token, i : i + 2] = math.sin(angle), math.cos(angle)
    return rows


def learned(p, grid):
    """A learned table (N, D) of the parameters whose names are left in `p`."""
    if "table" in p:
        return p["table"][0]
    height, width = grid
    rows = [np.concatenate([p["columns"][x], p["rows"][y]]) for y, x in np.ndindex(height, width)]
    return np.stack([*p.get("cls", []), *rows])


def turns(p, model, grid, d):
    """The angles of rotary positions, (P, d/2), or (P, H, d/2) where heads learn frequencies."""
    frequencies = [model.rotary ** (-4 * i / d) for i in range(d // 4)]
    every = []
    for at in np.ndindex(*grid):
        at = np.array(at, np.float64) + model.rotary_offset
        if model.rotary_grid is not None:
            at = at / grid * model.rotary_grid
        elif model.rotary_span != "patches":
            length = {"separate": np.array(grid), "max": max(grid), "min": min(grid)}
            at = 2 * (at + 0.5) / length[model.rotary_span] - 1
            at = at if model.rotary_learned else 2 * np.pi * at
        if model.rotary_learned:
            every.append(at[0] * p["frequencies"][0] + at[1] * p["frequencies"][1])
        else:
            every.append([axis * frequency for axis in at for frequency in frequencies])
    return np.array(every)


def turned(x, angles):
    """x (B, N, H, d) with features i and i + d/2 of the last tokens as complex numbers, turned."""
    half, first = x.shape[-1] // 2, x.shape[1] - len(angles)
    angles = angles[:, None] if angles.ndim == 2 else angles
    pairs = (x[:, first:, :, :half] + 1j * x[:, first:, :, half:]) * np.exp(1j * angles)
    return np.concatenate([x[:, :first], np.concatenate([pairs.real, pairs.imag], -1)], axis=1)


def offset_bias(table, grid, prefix):
    """BEiT's biases (H, N, N) of a table: a row for every offset, and three for other tokens."""
    cells = [None] * prefix + list(np.ndindex(*grid))
    bias = np.zeros((table.shape[1], len(cells), len(cells)))
    for (i, q), (j, k) in itertools.product(enumerate(cells), repeat=2):
        if q is None or k is None:
            row = len(table) - (1 if q is k else 3 if q is None else 2)
        else:
            down, right = q[0] - k[0] + grid[0] - 1, q[1] - k[1] + grid[1] - 1
            row = down * (2 * grid[1] - 1) + right
        bias[:, i, j] = table[row]
    return bias


def attend(p, x, to, model, grid=None, bias=0, gated=lambda weights: weights):
    """Attention of x (B, Q, D) over `to` (B, N, D): outputs (B, Q, D), weights (B, H, Q, N).

    With the positions and norms of a layer where there is a `grid`; `gated` changes the weights.
    """
    query, key, value = (
        dense(p, name, source) for name, source in (("query", x), ("key", to), ("value", to))
    )
    d = query.shape[-1]
    if grid is not None and model.qk_norm:
        query, key = (normed(p, f"{n}_norm", x, model) for n, x in (("query", query), ("key", key)))
    if grid is not None and model.rotary is not None:
        angles = turns(p, model, grid, d)
        query, key = turned(query, angles), turned(key, angles)
    logits = np.einsum("bqhd,bkhd->bhqk", query, key)
    if "offsets/table" in p:
        tokens = x.shape[1]
        for q, k in np.ndindex(tokens, tokens):
            # Rows of the table run from offset -(N - 1) to N - 1.
            logits[:, :, q, k] += query[:, q] @ p["offsets/table"][q - k + tokens - 1]
    if "relative_bias/table" in p:
        prefix = x.shape[1] - math.prod(grid)
        bias = offset_bias(p["relative_bias/table"], grid, prefix)
    weights = gated(special.softmax(logits / np.sqrt(d) + bias, axis=-1))
    mixed = np.einsum("bhqk,bkhd->bqhd", weights, value).reshape(*x.shape[:2], -1)
    if grid is not None and "attention" in model.sub_norm:
        mixed = normed(p, "sub_norm", mixed, model)
    return mixed @ p["out/kernel"].reshape(mixed.shape[-1], -1) + p.get("out/bias", 0), weights


def mlp(p, x, model):
    hidden = dense(p, "fc1", x)
    if "gate/kernel" in p:
        gate = dense(p, "gate", x)
        hidden = gate * special.expit(gate) * hidden
    else:
        hidden = activate(hidden, model)
    return dense(
        p, "fc2", normed(p, "sub_norm", hidden, model) if "sub_norm/scale" in p else hidden
    )


def has_token(model):
    read = model.pooling in ("token", "token_gap", "distilled")
    return model.class_token or (model.class_token is None and read)


def prefix(model):
    """Tokens before the patches."""
    return has_token(model) + model.distillation + model.registers


def placed(model, p, grid):
    """A learned table for all tokens, (N, D), zero where one has no position."""
    table, patches = learned(p, grid), math.prod(grid)
    bare = np.zeros((prefix(model) + patches - len(table), model.width))
    own = len(table) - patches
    return np.concatenate([table[:own], bare, table[own:]])


def under(p, prefix):
    """The parameters whose names begin with `prefix`, without it."""
    return {name.removeprefix(prefix): a for name, a in p.items() if name.startswith(prefix)}


def embed(model, p, images):
    """The patches as tokens with those before them and positions at the stem, and their grid."""
    (ph, pw), (B, height, width, _) = model.patch_size, images.shape
    patches = [
        images[:, y : y + ph, x : x + pw].reshape(B, -1)
        for y in range(0, height - ph + 1, ph)
        for x in range(0, width - pw + 1, pw)
    ]
    grid = (height // ph, width // pw)
    kernel = p["embedding/kernel"].reshape(-1, model.width)
    x = np.stack(patches, axis=1) @ kernel + p.get("embedding/bias", 0)
    x = normed(p, "patch_norm", x, model) if model.patch_norm else x
    if model.position == "sincos_2d":
        x = x + sincos(*grid, model.width)
    if model.position == "sincos_1d":
        x = x + sincos_1d(x.shape[1], model.width)
    first = [p[name] for name in ("cls", "distillation", "registers") if name in p]
    x = np.concatenate([*(np.tile(token, (B, 1, 1)) for token in first), x], axis=1)
    if model.position.startswith("learned") and model.position_place == "stem":
        x = x + placed(model, under(p, "position/"), grid)
    return normed(p, "stem_norm", x, model) if model.stem_norm else x, grid


def layer(model, p, x, grid, bias=0):
    """The tokens after attention and MLP, and the attention's weights."""
    y = normed(p, "norm1", x, model)
    y, weights = attend(under(p, "attention/"), y, y, model, grid, bias)
    x = x + y * p.get("scale1/scale", 1)
    y = mlp(under(p, "mlp/"), normed(p, "norm2", x, model), model)
    return x + y * p.get("scale2/scale", 1), weights


def pool(model, p, tokens):
    if model.pooling in ("token", "first"):
        return tokens[:, 0]
    if model.pooling == "distilled":
        return np.concatenate([tokens[:, 0], tokens[:, 1]], axis=1)
    seen = 0 if model.pooling == "map" and model.pooling_prefix else prefix(model)
    tokens = tokens[:, seen:]
    if model.pooling == "map":
        p = under(p, "pooling/")
        probe = np.tile(p["probe"], (len(tokens), 1, 1))
        x, _ = attend(under(p, "attention/"), probe, tokens, model)
        y = normed(p, "norm", x, model)
        return (x + mlp(under(p, "mlp/"), y, model))[:, 0]
    mean, most = tokens.mean(1), tokens.max(1)
    return {"gap": mean, "token_gap": mean, "max": most, "gap_max": (mean + most) / 2}[
        model.pooling
    ]


def forward(model, params, images, layer=layer):
    """Logits, pre_logits, tokens and attention (L, B, H, N, N) of float64 numpy."""
    p = {name: np.asarray(leaf, np.float64) for name, leaf in tree_utils.flatten(params).items()}
    x, grid = embed(model, p, np.asarray(images, np.float64))
    attention, firsts, bias = [], [], 0
    if model.relative_bias == "shared":
        bias = offset_bias(p["relative_bias/table"], grid, prefix(model))
    for i in range(model.depth):
        q = {name: leaf[i] for name, leaf in under(p, "encoder/").items()}
        if model.position_place != "stem":
            own = q if model.position_place == "layers" else p
            x = x + placed(model, under(own, "position/"), grid)
        x, weights = layer(model, q, x, grid, bias)
        attention.append(weights)
        firsts.append(x[:, 0])

    def last(x):
        return x if model.norm_place == "none" else normed(p, "encoder_norm", x, model)

    late = model.norm_place == "pooled"
    tokens = x if late else last(x)
    x = pool(model, p, tokens)
    x = last(x) if late else x
    if model.pooled_layers > 1 or model.pooling == "token_gap":
        joined = [last(first) for first in firsts[-model.pooled_layers :]]
        x = np.concatenate([*joined, *([x] if model.pooling == "token_gap" else [])], axis=1)
    if model.representation_size:
        x = x @ p["pre_logits/kernel"] + p["pre_logits/bias"]
        x = {
            "tanh": np.tanh,
            "relu": lambda x: x * (x > 0),
            "silu": lambda x: x * special.expit(x),
        }[model.representation_activation](x)
    if model.pooling == "distilled":
        halves = zip(("head", "head_dist"), np.split(x, 2, axis=1), strict=True)
        logits = sum(dense(p, name, half) for name, half in halves) / 2
    else:
        logits = dense(p, "head", x)
    return logits, x, tokens, np.stack(attention)


def equations(jaxpr, times=1):
    """Yields (equation, how often it runs) of a jaxpr and all it contains."""
    for equation in jaxpr.eqns:
        yield equation, times
        inner = times * equation.params.get("length", 1)
        for value in equation.params.values():
            for sub in value if isinstance(value, tuple | list) else (value,):
                sub = getattr(sub, "jaxpr", sub)
                if hasattr(sub, "eqns"):
                    yield from equations(sub, inner)


def macs(jaxpr):
    """The multiply-accumulates of every dot and convolution of a jaxpr."""
    total = 0
    for equation, times in equations(jaxpr):
        out = equation.outvars[0].aval.shape if equation.outvars else ()
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            shape = equation.invars[0].aval.shape
            total += times * math.prod(out) * math.prod(shape[axis] for axis in contracted)
        elif equation.primitive.name == "conv_general_dilated":
            kernel = equation.invars[1].aval.shape  # HWIO
            total += times * math.prod(out) * math.prod(kernel) // kernel[-1]
    return total


def random_parameters(shapes):
    """Float32 parameters, none of them zero, so that every term of the model matters."""
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda s: (0.3 * rng.normal(size=s.shape)).astype(np.float32), shapes)


def inputs(classifier, batch=3):
    """Images for a classifier, in [-1, 1]."""
    shape = (batch, *classifier.image_size, classifier.channels)
    return np.random.default_rng(1).uniform(-1, 1, shape).astype(np.float32)


def loss_and_grad(classifier, params, images, key=None):
    """A loss in which no output cancels, the squares of the logits, and its gradient."""

    def loss(params):
        return jnp.sum(classifier.apply(params, images, key=key)[0] ** 2)

    return quick_jit(jax.value_and_grad(loss))(params)


def backward(classifier):
    """The gradient of a sum of logits, as a function of the parameters."""
    images = inputs(classifier, batch=1)
    return jax.grad(lambda params: jnp.sum(classifier.apply(params, images)[0]))


def assert_grads_close(given, expected, tolerance=1e-5):
    """Compares leaf by leaf, relative to the largest element of each.

    The key's bias shifts all logits of a query alike, so its true gradient is zero and what is
    computed is rounding: only its size is checked.
    """
    given, expected = tree_utils.flatten(given), tree_utils.flatten(expected)
    assert given.keys() == expected.keys()
    for name, leaf in expected.items():
        scale = np.abs(expected[name.replace("key/bias", "key/kernel")]).max()
        assert np.abs(given[name] - leaf).max() <= tolerance * scale, name
