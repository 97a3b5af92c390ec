"""Groups of images that show the same picture: equal pixels, and near duplicates.

Near duplicates have perceptual hashes (`data.prepare.dedup`: the signs of the 64 lowest frequencies
of a cosine transform, as pHash) that differ in at most BITS bits, small gray pixels that correlate,
and features with a large cosine. These bounds are wider than those of `prepare`, so that crops are
found too: features confirm what pixels suggest.

Two hashes that differ in 10 bits agree in at least two of BANDS = 12 groups of bits, so only images
that do are compared: 66 pairs of groups, of 10 or 11 bits each.
"""

import itertools

import numpy as np
from scipy.sparse import coo_matrix, csgraph

from vit_jax.inference.doctor import COSINE

BITS = 10
BANDS = BITS + 2
CORRELATION = 0.9  # less than `dedup` asks for, as features confirm
LONGEST = 500  # next images in the order of hashes that one is compared with: bounds the time
CHUNK = 2**16  # pairs confirmed at a time


def group_duplicates(
    prints: np.ndarray, features: np.ndarray, cosine: float = COSINE
) -> np.ndarray:
    """The first image of the group of each image, (N,) int64: its own index without copies.

    Groups are connected: of a film, the first and the last frame are one group if all neighbors are
    near duplicates. Images without contrast are compared by equal pixels only. `prints` are (N,)
    records of `dedup.RECORD`, `features` (N, D) float32 rows of length 1, `cosine` is the least of
    a near duplicate.
    """
    # As bytes, which np.unique can sort.
    digests = np.ascontiguousarray(prints["exact"]).view("S16")
    _, first, inverse = np.unique(digests, return_index=True, return_inverse=True)
    # Near duplicates are sought among one image of each set of equal pixels.
    rows = np.sort(first[prints["contrast"][first]])
    bits = prints["bits"][rows]
    roots = np.arange(len(rows))
    for pair in itertools.combinations(range(BANDS), 2):
        mask = np.uint64(sum(1 << bit for band in pair for bit in range(band, 64, BANDS)))
        # lexsort sorts by its last key first: equal parts are neighbors, in the order of hashes.
        order = np.lexsort((bits, bits & mask))
        keys = bits[order] & mask
        places = np.arange(len(rows))
        for step in range(1, LONGEST + 1):
            places = places[places < len(rows) - step]
            places = places[keys[places] == keys[places + step]]  # those of a longer run stay
            if not len(places):
                break
            one, other = order[places], order[places + step]
            near = np.bitwise_count(bits[one] ^ bits[other]) <= BITS
            # Pairs within a group change nothing, and cost products of features.
            near &= roots[one] != roots[other]
            one, other = one[near], other[near]
            same = _confirm(prints, features, rows[one], rows[other], cosine)
            if same.any():
                roots = _join(roots, one[same], other[same])
    found = np.arange(len(prints))
    found[rows] = rows[roots]
    # The others of equal pixels follow the one that stood for them.
    return found[first[inverse]]


def _confirm(
    prints: np.ndarray, features: np.ndarray, one: np.ndarray, other: np.ndarray, cosine: float
) -> np.ndarray:
    """Whether the pixels and the features of pairs (P,) are alike, (P,) bool."""
    same = np.zeros(len(one), bool)
    for start in range(0, len(one), CHUNK):
        a, b = one[start : start + CHUNK], other[start : start + CHUNK]
        grays = [prints["gray"][rows].astype(np.float32) for rows in (a, b)]
        alike = np.einsum("pi,pi->p", *grays) >= CORRELATION
        # Only pairs whose pixels agree need their features.
        alike[alike] = np.einsum("pi,pi->p", features[a[alike]], features[b[alike]]) >= cosine
        same[start : start + CHUNK] = alike
    return same


def _join(roots: np.ndarray, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The first member of each group once pairs are in one."""
    count = len(roots)
    # Edges to the roots keep together what was joined before.
    edges = (np.concatenate([np.arange(count), one]), np.concatenate([roots, other]))
    graph = coo_matrix((np.ones(len(edges[0]), bool), edges), (count, count))
    _, labels = csgraph.connected_components(graph, directed=False)
    _, first = np.unique(labels, return_index=True)
    return first[labels]
