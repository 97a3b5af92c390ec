"""A Vision Transformer in numpy float64, written from the paper's equations; and jaxpr readers."""

import functools
import math

import jax
import numpy as np
from scipy import special

from vit_jax import trees

# LLVM's optimisation is half of the compile time of a tiny program, and none of its meaning.
quick_jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


def norm(x, scale, bias, epsilon):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon) * scale + bias


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


def forward(model, params, images):
    """Returns logits, pre_logits, tokens and attention (L, B, H, N, N) of float64 numpy."""
    p = {name: np.asarray(leaf, np.float64) for name, leaf in trees.flatten(params).items()}
    images = np.asarray(images, np.float64)
    (ph, pw), (B, height, width, _) = model.patch_size, images.shape
    patches = [
        images[:, y : y + ph, x : x + pw].reshape(B, -1)
        for y in range(0, height, ph)
        for x in range(0, width, pw)
    ]
    kernel = p["embedding/kernel"].reshape(-1, model.width)
    x = np.stack(patches, axis=1) @ kernel + p["embedding/bias"]
    if model.position == "sincos_2d":
        x = x + sincos(height // ph, width // pw, model.width)
    if model.pooling == "token":
        x = np.concatenate([np.tile(p["cls"], (B, 1, 1)), x], axis=1)
    if model.position == "learned_1d":
        x = x + p["position/table"]
    attention = []
    for i in range(model.depth):
        q = {name[8:]: leaf[i] for name, leaf in p.items() if name.startswith("encoder/")}
        y = norm(x, q["norm1/scale"], q["norm1/bias"], model.norm_epsilon)
        mixed, weights = np.zeros_like(x), []
        for h in range(model.heads):
            query, key, value = (
                y @ q[f"attention/{n}/kernel"][:, h] + q[f"attention/{n}/bias"][h]
                for n in ("query", "key", "value")
            )
            logits = query @ key.swapaxes(1, 2) / np.sqrt(model.width // model.heads)
            weights.append(special.softmax(logits, axis=-1))
            mixed += weights[-1] @ value @ q["attention/out/kernel"][h]
        attention.append(np.stack(weights, axis=1))
        x = x + mixed + q["attention/out/bias"]
        y = norm(x, q["norm2/scale"], q["norm2/bias"], model.norm_epsilon)
        y = gelu(y @ q["mlp/fc1/kernel"] + q["mlp/fc1/bias"], model.gelu)
        x = x + y @ q["mlp/fc2/kernel"] + q["mlp/fc2/bias"]
    tokens = norm(x, p["encoder_norm/scale"], p["encoder_norm/bias"], model.norm_epsilon)
    x = tokens[:, 0] if model.pooling == "token" else tokens.mean(1)
    if model.representation_size:
        x = np.tanh(x @ p["pre_logits/kernel"] + p["pre_logits/bias"])
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
    """Returns the multiply-accumulates of every dot and convolution of a jaxpr."""
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
    """Returns float32 parameters, none of them zero, so that every term of the model matters."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda s: (0.3 * rng.normal(size=s.shape)).astype(np.float32), shapes)
