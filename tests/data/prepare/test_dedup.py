"""Duplicates: what a copy may look like and still be found, and what is never taken for one."""

import cv2
import numpy as np
import pytest
import scipy.fft

from official_fakes import jpeg, structured
from vit_jax.data.prepare import dedup
from vit_jax.data.prepare.dedup import FingerprintIndex

COUNT = 60


@pytest.fixture(scope="module")
def originals():
    return [structured(seed) for seed in range(COUNT)]


@pytest.fixture(scope="module")
def index(originals):
    names = [f"test {number}" for number in range(COUNT)]
    return FingerprintIndex(dedup.stack([dedup.fingerprint(image) for image in originals], names))


def through_jpeg(image, quality):
    return cv2.imdecode(np.frombuffer(jpeg(image, quality), np.uint8), cv2.IMREAD_COLOR_RGB)


CHANGES = {
    "same": lambda image: image,
    "jpeg 90": lambda image: through_jpeg(image, 90),
    "jpeg 30": lambda image: through_jpeg(image, 30),
    "larger": lambda image: cv2.resize(image, (224, 224), interpolation=cv2.INTER_CUBIC),
    "smaller": lambda image: cv2.resize(image, (24, 20), interpolation=cv2.INTER_AREA),
    "mirrored": lambda image: np.ascontiguousarray(image[:, ::-1]),
    "brighter": lambda image: np.clip(image * 0.8 + 30, 0, 255).astype(np.uint8),
    "gray": lambda image: cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)[:, :, None],
}


def test_copies_are_found(index, originals):
    for name, change in CHANGES.items():
        for number, image in enumerate(originals):
            match = index.find(change(image))
            assert match is not None, (name, number)
            assert match.name == f"test {number}"
            assert (match.distance == -1) == (name == "same")
    both = through_jpeg(np.ascontiguousarray(originals[5][:, ::-1]), 50)
    assert index.find(both).name == "test 5"


def test_the_nearest_of_several_duplicates_is_named(originals):
    near = dedup.fingerprint(originals[0])._replace(exact=bytes(16))
    far = dedup.fingerprint(np.ascontiguousarray(originals[0][:, ::-1]))
    far = far._replace(exact=bytes([1] * 16), bits=far.bits ^ np.uint64(1))
    index = FingerprintIndex(dedup.stack([far, near], ["far", "near"]))
    assert index.find(originals[0]) == ("near", 0)


def test_images_without_contrast_match_only_exactly():
    flat = [np.full((30, 30, 3), level, np.uint8) for level in (0, 100, 200)]
    index = FingerprintIndex(dedup.stack([dedup.fingerprint(image) for image in flat], list("abc")))
    assert index.find(flat[1]) == ("b", -1)
    nearly = flat[1].copy()
    nearly[3, 4] += 1
    assert index.find(nearly) is None
    assert index.find(np.full((31, 30, 3), 100, np.uint8)) is None


def test_the_hash_is_the_signs_of_the_lowest_frequencies():
    image = structured(3, 32, 32)
    gray = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY).astype(np.float64)
    frequencies = scipy.fft.dctn(gray, norm="ortho")
    order = sorted(((v, u) for v in range(32) for u in range(32)), key=lambda f: (sum(f), f))[1:65]
    expected = sum(1 << bit for bit, place in enumerate(order) if frequencies[place] > 0)
    bits = dedup.fingerprint(image).bits
    assert int(bits) == expected
    mirrored = dedup.fingerprint(np.ascontiguousarray(image[:, ::-1])).bits
    assert int(mirrored) == expected ^ sum(1 << b for b, (_, u) in enumerate(order) if u % 2)
    assert mirrored == bits ^ dedup.MIRROR


@pytest.mark.parametrize("threshold", [0, 3, 8])
def test_the_search_finds_every_hash_within_the_threshold(threshold):
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**63, 500, dtype=np.uint64)
    query = bits[17]
    for number in range(100, 300):  # near ones, at 0 to 9 bits
        bits[number] = query
        for bit in rng.choice(64, number % 10, replace=False):
            bits[number] ^= np.uint64(1) << np.uint64(bit)
    prints = np.zeros(500, [*dedup.RECORD, ("name", "S1")])
    prints["exact"] = np.array([bytes([n % 256, n // 256] * 8) for n in range(500)], "V16")
    prints["bits"], prints["contrast"] = bits, True
    found = FingerprintIndex(prints, threshold).near(query)
    expected = [(bin(int(b ^ query)).count("1"), n) for n, b in enumerate(bits)]
    assert found == sorted(pair for pair in expected if pair[0] <= threshold)
    assert len(found) >= 20 * (threshold + 1)
