"""Draws random positions of a split by seed."""

import numpy as np


def draw(length: int, count: int, seed: int = 0) -> list[int]:
    """Returns `count` of the numbers below `length`, or all, drawn without replacement.

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
