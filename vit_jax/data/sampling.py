"""Orders and samples of the examples of a split, by seed.

What an epoch draws is a function of (seed, epoch), whatever machines read it.
"""

import functools

import numpy as np


def draw_indices(length: int, count: int, seed: int = 0) -> list[int]:
    """`count` of the numbers below `length`, or all, drawn without replacement.

    Equal length and seed give the same numbers, and a larger `count` starts with the same ones. A
    partial Fisher-Yates shuffle, whose memory is proportional to `count`.
    """
    random, moved = np.random.default_rng(seed), {}
    drawn = []
    # The list is never made: `moved` has the places that were swapped, the others hold themselves.
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


def step_choice(seed: int, step: int, values: tuple[int, ...]) -> int:
    """One of some values, each as likely: a function of (seed, step)."""
    # The second half of the key is the index of no image, whose streams `Randomness` has.
    key = np.array([seed, 2**64 - 1], np.uint64)
    return values[int(np.random.Philox(key=key, counter=step).random_raw()) % len(values)]


class ByClass:
    """Draws in which classes have shares of an epoch by `data.sampling`; pickled to loaders.

    Equal shares (`balanced`), or in proportion to the square root of a class's images (`sqrt`): of
    whole images, rounded up or down at random, with the exact share as the mean. A class gives each
    of its images once before it gives one twice.
    """

    def __init__(self, seed: int, labels: np.ndarray, sampling: str) -> None:
        """Takes the run's seed, the labels (N,) of all images, and `balanced` or `sqrt`."""
        self._seed, self._total = seed, len(labels)
        self._images = [np.flatnonzero(labels == label) for label in np.unique(labels)]
        sizes = np.array([len(images) for images in self._images])
        share = np.cumsum(sizes ** {"balanced": 0.0, "sqrt": 0.5}[sampling])
        self._ends = share / share[-1] * self._total

    def __call__(self, epoch: int, offset: int) -> int:
        """The example at an offset of an epoch, a function of (seed, epoch)."""
        return int(_order(self, epoch)[offset])

    def order(self, epoch: int) -> np.ndarray:
        """The examples of an epoch (N,)."""
        random = np.random.default_rng((self._seed, epoch))
        # One number for all borders, so that the counts still add up to N.
        ends = np.floor(self._ends + random.random())
        # N plus a number just below 1 may round to N + 1.
        ends[-1] = self._total
        drawn = []
        counts = np.diff(ends, prepend=0).astype(int)
        for images, count in zip(self._images, counts, strict=True):
            rounds = [random.permutation(images) for _ in range(-(-count // len(images)))]
            # `images[:0]` for a class that draws none: concatenate needs an array.
            drawn.append(np.concatenate([images[:0], *rounds])[:count])
        return random.permutation(np.concatenate(drawn))


@functools.lru_cache(maxsize=2)  # some threads begin an epoch before others end the one before
def _order(draws: ByClass, epoch: int) -> np.ndarray:
    return draws.order(epoch)
