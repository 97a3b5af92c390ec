"""The random streams of a run: every key is a function of (seed, stream) or (seed, stream, step).

Nothing else is random in a step, so a resumed run draws what an unbroken one would have drawn.
"""

import jax

# Never renumber: a run could not be repeated, and golden losses would change. 2 was given up.
INIT = 0
DROPOUT = 1  # and stochastic depth
MIXUP = 3
MASKED_PATCHES = 4
AUGMENTATION = 5
LORA = 6
CUTMIX = 7
OBJECTIVE = 8  # its own parameters, and what else it draws


def key(seed: int, stream: int, step: jax.Array | None = None) -> jax.Array:
    """The key of a stream, or of a stream in one step."""
    found = jax.random.fold_in(jax.random.key(seed), stream)
    return found if step is None else jax.random.fold_in(found, step)
