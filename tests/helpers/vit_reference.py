"""A Vision Transformer in numpy float64, written from the paper's equations; and jaxpr readers."""

import functools
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


def activate(x, model):
    if model.activation == "relu":
        return np.where(x > 0, x, 0)
    return x * special.expit(x) if model.activation == "silu" else gelu(x, model.gelu)


def gelu(x, kind):
    if kind == "erf":
        return 0.5 * x * (1 + special.erf(x / np.sqrt(2)))
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


def attend(p, x, to, heads):
    """Attention of x (B, Q, D) over `to` (B, N, D): outputs (B, Q, D), weights (B, H, Q, N)."""
    mixed, weights = np.zeros_like(x), []
    for h in range(heads):
        query, key, value = (
            source @ p[f"{n}/kernel"][:, h] + p[f"{n}/bias"][h]
            for n, source in (("query", x), ("key", to), ("value", to))
        )
        logits = query @ key.swapaxes(1, 2)
        if "offsets/table" in p:
            tokens = x.shape[1]
            for q, k in np.ndindex(tokens, tokens):
                # Rows of the table run from offset -(N - 1) to N - 1.
                logits[:, q, k] += query[:, q] @ p["offsets/table"][q - k + tokens - 1]
        weights.append(special.softmax(logits / np.sqrt(query.shape[-1]), axis=-1))
        mixed += weights[-1] @ value @ p["out/kernel"][h]
    return mixed + p["out/bias"], np.stack(weights, axis=1)


def mlp(p, x, model):
    hidden = activate(x @ p["fc1/kernel"] + p["fc1/bias"], model)
    return hidden @ p["fc2/kernel"] + p["fc2/bias"]


def has_token(model):
    read = model.pooling in ("token", "token_gap")
    return model.class_token or (model.class_token is None and read)


def under(p, prefix):
    """The parameters whose names begin with `prefix`, without it."""
    return {name.removeprefix(prefix): a for name, a in p.items() if name.startswith(prefix)}


def embed(model, p, images):
    """The patches as tokens with class token and positions at the stem, and their grid."""
    (ph, pw), (B, height, width, _) = model.patch_size, images.shape
    patches = [
        images[:, y : y + ph, x : x + pw].reshape(B, -1)
        for y in range(0, height - ph + 1, ph)
        for x in range(0, width - pw + 1, pw)
    ]
    grid = (height // ph, width // pw)
    kernel = p["embedding/kernel"].reshape(-1, model.width)
    x = np.stack(patches, axis=1) @ kernel + p["embedding/bias"]
    if model.position == "sincos_2d":
        x = x + sincos(*grid, model.width)
    if model.position == "sincos_1d":
        x = x + sincos_1d(x.shape[1], model.width)
    placed = model.position.startswith("learned") and model.position_place == "stem"
    if placed and not model.class_position:
        x = x + learned(under(p, "position/"), grid)
    if has_token(model):
        x = np.concatenate([np.tile(p["cls"], (B, 1, 1)), x], axis=1)
    if placed and model.class_position:
        x = x + learned(under(p, "position/"), grid)
    return x, grid


def layer(model, p, x):
    """The tokens after attention and MLP, and the attention's weights."""
    y = norm(x, p["norm1/scale"], p["norm1/bias"], model.norm_epsilon)
    y, weights = attend(under(p, "attention/"), y, y, model.heads)
    x = x + y
    y = norm(x, p["norm2/scale"], p["norm2/bias"], model.norm_epsilon)
    return x + mlp(under(p, "mlp/"), y, model), weights


def pool(model, p, tokens):
    if model.pooling in ("token", "first"):
        return tokens[:, 0]
    tokens = tokens[:, 1:] if has_token(model) else tokens
    if model.pooling == "map":
        p = under(p, "pooling/")
        probe = np.tile(p["probe"], (len(tokens), 1, 1))
        x, _ = attend(under(p, "attention/"), probe, tokens, model.heads)
        y = norm(x, p["norm/scale"], p["norm/bias"], model.norm_epsilon)
        return (x + mlp(under(p, "mlp/"), y, model))[:, 0]
    mean, most = tokens.mean(1), tokens.max(1)
    return {"gap": mean, "token_gap": mean, "max": most, "gap_max": (mean + most) / 2}[
        model.pooling
    ]


def forward(model, params, images, layer=layer):
    """Logits, pre_logits, tokens and attention (L, B, H, N, N) of float64 numpy."""
    p = {name: np.asarray(leaf, np.float64) for name, leaf in tree_utils.flatten(params).items()}
    x, grid = embed(model, p, np.asarray(images, np.float64))
    attention, firsts = [], []
    for i in range(model.depth):
        q = {name: leaf[i] for name, leaf in under(p, "encoder/").items()}
        if model.position_place != "stem":
            own = q if model.position_place == "layers" else p
            table = learned(under(own, "position/"), grid)
            if has_token(model) and not model.class_position:
                table = np.concatenate([0 * table[:1], table])
            x = x + table
        x, weights = layer(model, q, x)
        attention.append(weights)
        firsts.append(x[:, 0])
    last = p["encoder_norm/scale"], p["encoder_norm/bias"], model.norm_epsilon
    late = model.norm_place == "pooled"
    tokens = x if late else norm(x, *last)
    x = pool(model, p, tokens)
    x = norm(x, *last) if late else x
    if model.pooled_layers > 1 or model.pooling == "token_gap":
        joined = [norm(first, *last) for first in firsts[-model.pooled_layers :]]
        x = np.concatenate([*joined, *([x] if model.pooling == "token_gap" else [])], axis=1)
    if model.representation_size:
        x = x @ p["pre_logits/kernel"] + p["pre_logits/bias"]
        x = {
            "tanh": np.tanh,
            "relu": lambda x: x * (x > 0),
            "silu": lambda x: x * special.expit(x),
        }[model.representation_activation](x)
    logits = x @ p["head/kernel"] + p["head/bias"]
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


def random_parameters(shapes, seed=0):
    """Float32 parameters, none of them zero, so that every term of the model matters."""
    rng = np.random.default_rng(seed)
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
