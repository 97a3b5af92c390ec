"""Orders and samples of the examples of a split, by seed."""

import functools

import numpy as np


def draw(length: int, count: int, seed: int = 0) -> list[int]:
    """`count` of the numbers below `length`, or all, drawn without replacement.

    Equal length and seed give the same numbers, and a larger `count` starts with the same ones. A
    partial Fisher-Yates shuffle, whose memory is proportional to `count`.
    """
    random, moved = np.random.default_rng(seed), {}
    drawn = []
    for place in range(min(count, length)):
        other = int(random.integers(place, length))
        drawn.append(moved.get(other, other))
        moved[other] = moved.get(place, place)
    return drawn


def shuffled(seed: int, epoch: int, offset: int, total: int) -> int:
    """The example at an offset of an epoch: a permutation of `total`, by (seed, epoch)."""
    if total < 2**16:
        return int(_permutation(seed, epoch, total)[offset])
    from grain.experimental import index_shuffle  # a second that `predict` need not wait for

    # Without a table, but below 2^16 many times slower: it walks cycles of a 16-bit cipher.
    return index_shuffle(offset, max_index=total - 1, seed=_epoch_seed(seed, epoch), rounds=4)


@functools.lru_cache(maxsize=4)
def _permutation(seed: int, epoch: int, total: int) -> np.ndarray:
    return np.random.default_rng((seed, epoch)).permutation(total)


@functools.lru_cache(maxsize=4)
def _epoch_seed(seed: int, epoch: int) -> int:
    return int(np.random.SeedSequence((seed, epoch)).generate_state(1)[0])
