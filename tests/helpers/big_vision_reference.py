"""The Vision Transformer as big_vision computes it, written for its own arrays by name, in jax.

Positions are added to the patches before the class token is put in front of them, so that there is
none for the class token; without one, `pool_type` 0 takes the first patch.
"""

import jax
import jax.numpy as jnp

LAYERS = 2


def dense(arrays, name, x, axes=1):
    return jnp.tensordot(x, arrays[f"{name}/kernel"], axes) + arrays[f"{name}/bias"]


def norm(arrays, name, x):
    x = x - x.mean(-1, keepdims=True)
    x = x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
    return x * arrays[f"{name}/scale"] + arrays[f"{name}/bias"]


def attention(arrays, name, x):
    query, key, value = (dense(arrays, f"{name}/{part}", x) for part in ("query", "key", "value"))
    logits = jnp.einsum("bqhd,bkhd->bhqk", query, key) / query.shape[-1] ** 0.5
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(logits), value)
    return dense(arrays, f"{name}/out", mixed, axes=2)


def sincos(rows, columns, width):
    frequencies = 10_000.0 ** -(jnp.arange(width // 4) / (width // 4 - 1))
    y, x = jnp.mgrid[:rows, :columns].astype(jnp.float32)
    y, x = y.reshape(-1, 1) * frequencies, x.reshape(-1, 1) * frequencies
    return jnp.concatenate([jnp.sin(x), jnp.cos(x), jnp.sin(y), jnp.cos(y)], axis=1)[None]


@jax.numpy_rank_promotion("allow")
def forward(arrays, images, pool_type):
    """The logits; `pool_type` is tok, gap or 0."""
    kernel = arrays["embedding/kernel"]
    x = jax.lax.conv_general_dilated(
        images, kernel, kernel.shape[:2], "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    rows, columns = x.shape[1:3]
    x = x.reshape(len(x), rows * columns, -1) + arrays["embedding/bias"]
    x = x + arrays.get("pos_embedding", sincos(rows, columns, x.shape[-1]))
    if pool_type == "tok":
        x = jnp.concatenate([jnp.tile(arrays["cls"], (len(x), 1, 1)), x], axis=1)
    for layer in range(LAYERS):
        block = f"Transformer/encoderblock_{layer}"
        y = norm(arrays, f"{block}/LayerNorm_0", x)
        x = x + attention(arrays, f"{block}/MultiHeadDotProductAttention_0", y)
        y = norm(arrays, f"{block}/LayerNorm_1", x)
        y = jax.nn.gelu(dense(arrays, f"{block}/MlpBlock_0/Dense_0", y))
        x = x + dense(arrays, f"{block}/MlpBlock_0/Dense_1", y)
    x = norm(arrays, "Transformer/encoder_norm", x)
    x = x.mean(1) if pool_type == "gap" else x[:, 0]
    if "pre_logits/kernel" in arrays:
        x = jnp.tanh(dense(arrays, "pre_logits", x))
    return dense(arrays, "head", x)


def stacked(arrays):
    """The same arrays as with `scan=True`: one for all layers."""
    first = "Transformer/encoderblock_0/"
    found = {n: a for n, a in arrays.items() if not n.startswith("Transformer/encoderblock_")}
    for name in arrays:
        if name.startswith(first):
            every = [arrays[name.replace("block_0", f"block_{layer}")] for layer in range(LAYERS)]
            found[name.replace("block_0", "block")] = jnp.stack(every)
    return found
