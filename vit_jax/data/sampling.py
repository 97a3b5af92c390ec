"""A sample of a split: positions drawn by seed, since the first ones are no sample of the rest."""

import numpy as np


def draw(length: int, count: int, seed: int = 0) -> list[int]:
    """Returns `count` of the numbers below `length`, or all, drawn without replacement.

    The same for equal length and seed; a larger `count` begins with the same numbers. The memory
    is that of the numbers drawn: it is the start of a Fisher-Yates shuffle.
    """
    random, moved = np.random.default_rng(seed), {}
    drawn = []
    for place in range(min(count, length)):
        other = int(random.integers(place, length))
        drawn.append(moved.get(other, other))
        moved[other] = moved.get(place, place)
    return drawn
