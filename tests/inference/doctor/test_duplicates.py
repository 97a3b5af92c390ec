"""Groups of copies: all pairs of near hashes are found, and pixels and features must agree."""

import numpy as np

from vit_jax.data.prepare import dedup
from vit_jax.inference.doctor import duplicates


def prints(bits, exact=None, contrast=True, gray=None):
    """Records whose small pixels are all alike, unless they are given."""
    records = np.zeros(len(bits), dedup.RECORD)
    records["bits"] = bits
    ids = np.arange(len(bits)) if exact is None else np.array(exact)
    records["exact"] = (ids + 1).astype(">u8").repeat(2).view("V16")
    records["contrast"] = contrast
    records["gray"] = np.full(256, 1 / 16) if gray is None else gray
    return records


def flipped(bits, *places):
    return np.uint64(bits) ^ np.uint64(sum(1 << place for place in places))


def test_hashes_of_any_ten_differing_bits_are_one_picture():
    random = np.random.default_rng(0)
    pairs = []
    for _ in range(200):
        bits = random.integers(0, 2**64, dtype=np.uint64)
        pairs += [bits, flipped(bits, *random.choice(64, 10, replace=False).tolist())]
    features = np.ones((400, 1), np.float32)
    expected = np.repeat(np.arange(0, 400, 2), 2)
    np.testing.assert_array_equal(duplicates.group_duplicates(prints(pairs), features), expected)
    pairs[1] = flipped(pairs[0], *range(11))
    assert duplicates.group_duplicates(prints(pairs), features)[1] == 1


def test_groups_are_connected_and_named_by_their_first_image():
    bits = [flipped(0, *range(20)), 0, flipped(0, *range(12)), flipped(0, *range(6)), 2**63 - 1]
    found = duplicates.group_duplicates(prints(bits), np.ones((5, 1), np.float32))
    assert found.tolist() == [0, 0, 0, 0, 4]


def test_pixels_and_features_confirm():
    gray = np.zeros((4, 256))
    gray[:, 0], gray[2, 0], gray[2, 1] = 1, 0.8, 0.6  # correlates by 0.8
    features = np.float32([[1, 0], [1, 0], [1, 0], [0.6, 0.8]])
    found = duplicates.group_duplicates(prints([5] * 4, gray=gray), features)
    assert found.tolist() == [0, 0, 2, 3]
    found = duplicates.group_duplicates(prints([5] * 4, gray=gray), features, 0.6)
    assert found.tolist() == [0, 0, 2, 0]


def test_equal_pixels_need_no_contrast_and_similar_ones_do():
    found = duplicates.group_duplicates(
        prints([0, 0, 0, 0], exact=[7, 8, 7, 9], contrast=False), np.ones((4, 1), np.float32)
    )
    assert found.tolist() == [0, 1, 0, 3]
