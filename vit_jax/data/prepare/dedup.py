"""Finds duplicate images: equal pixels, and near duplicates by a perceptual hash.

The paper de-duplicates its pre-training sets against the test sets of its downstream tasks,
following Big Transfer, which removes exact and near duplicates (section 3.1) without giving the
method; this one is ours. An image is shrunk to 32 x 32 gray pixels; the signs of the 64 lowest
frequencies of their discrete cosine transform, without the mean, are its 64-bit hash. Re-encoding,
resizing and stretching hardly change it; mirroring flips the bits of the odd horizontal
frequencies. If two hashes differ in few bits, the 16 x 16 gray pixels decide: they must correlate.

Cropped, rotated or edited images are not found. Images without contrast are only compared exactly,
because their frequencies are noise.
"""

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from concurrent import futures
from typing import NamedTuple

import cv2
import numpy as np

from vit_jax.data import availability, decoding, sources
from vit_jax.data.prepare.shards import MAX_PIXELS
from vit_jax.data.source import DataError, Source
from vit_jax.data.tasks import Task
from vit_jax.runtime.progress import Bar

SIDE, SMALL = 32, 16  # of what is hashed, and of what confirms a near duplicate
THRESHOLD = 8  # bits of 64
CORRELATION = 0.95  # at least: among millions of images, some hashes agree by chance
CONTRAST = 4.0  # gray levels, standard deviation of the 32 x 32 pixels

# The 64 lowest frequencies (row, column), diagonal by diagonal; the first is the mean.
# 66 frequencies have indices that add up to at most 10, so 12 a side hold the 65 lowest.
_DIAGONALS = sorted(((v, u) for v in range(12) for u in range(12)), key=lambda f: (sum(f), f))[1:65]
_ROWS, _COLUMNS = (np.array(axis) for axis in zip(*_DIAGONALS, strict=True))
_BITS = np.uint64(1) << np.arange(64, dtype=np.uint64)
MIRROR = np.uint64(_BITS[_COLUMNS % 2 == 1].sum(dtype=np.uint64))


# Half precision is enough for a correlation, and halves the memory.
RECORD = [("exact", "V16"), ("bits", "u8"), ("contrast", "?"), ("gray", "f2", SMALL * SMALL)]


class Print(NamedTuple):
    """The fingerprint of an image.

    `exact` are 16 bytes of SHA-256 over the pixels; `bits` is the hash, None without contrast;
    `gray` are the 16 x 16 pixels (256), float32, of mean 0 and length 1.
    """

    exact: bytes
    bits: np.uint64 | None
    gray: np.ndarray


class Duplicate(NamedTuple):
    """A duplicate: the other image, and the distance of the hashes in bits; -1: equal pixels."""

    name: str
    distance: int


def fingerprint(image: np.ndarray) -> Print:
    """The fingerprint of uint8 pixels `H W C`."""
    # Images of different shapes may have the same bytes.
    shape = repr(image.shape).encode()
    exact = hashlib.sha256(shape + np.ascontiguousarray(image).tobytes()).digest()[:16]
    plain = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY) if image.shape[2] == 3 else image[:, :, 0]
    # Area averaging aliases least; for images smaller than the result, OpenCV interpolates.
    square = cv2.resize(plain, (SIDE, SIDE), interpolation=cv2.INTER_AREA).astype(np.float32)
    gray = square.reshape(SMALL, 2, SMALL, 2).mean((1, 3)).ravel()
    # Of mean 0 and length 1, the product of two is their correlation.
    gray = gray - gray.mean()
    length = np.float32(np.linalg.norm(gray))
    if square.std() < CONTRAST or not length:
        return Print(exact, None, np.zeros_like(gray))
    signs = cv2.dct(square)[_ROWS, _COLUMNS] > 0
    return Print(exact, np.uint64(_BITS[signs].sum(dtype=np.uint64)), gray / length)


def stack(prints: Sequence[Print], names: Sequence[str]) -> np.ndarray:
    """The fingerprints of images as records (N,) with their names, for messages."""
    encoded = np.array([name.encode() for name in names], np.bytes_)
    records = np.zeros(len(prints), [*RECORD, ("name", encoded.dtype)])
    records["exact"] = np.array([each.exact for each in prints], "V16")
    records["bits"] = [each.bits or 0 for each in prints]
    records["contrast"] = [each.bits is not None for each in prints]
    records["gray"] = np.array([each.gray for each in prints]).reshape(-1, SMALL * SMALL)
    records["name"] = encoded
    return records


class FingerprintIndex:
    """Finds the duplicate of an image among fingerprints, much faster than decoding it.

    Hashes that differ in at most `threshold` bits agree in one of `threshold` + 1 groups of bits,
    so only images with an equal group are compared.
    """

    def __init__(self, prints: np.ndarray, threshold: int = THRESHOLD) -> None:
        self._prints, self._threshold = prints, threshold
        self._bits = np.array(prints["bits"])
        self._by_pixels = {bytes(each): at for at, each in enumerate(prints["exact"])}
        rows = np.flatnonzero(prints["contrast"])
        self._bands: list[tuple[np.uint64, np.ndarray, np.ndarray]] = []
        # Bits are dealt in turn: neighboring frequencies are not independent.
        for band in range(threshold + 1):
            mask = np.uint64(_BITS[band :: threshold + 1].sum(dtype=np.uint64))
            keys = self._bits[rows] & mask
            order = np.argsort(keys, kind="stable")
            self._bands.append((mask, keys[order], rows[order]))

    def find(self, image: np.ndarray) -> Duplicate | None:
        """The nearest duplicate of uint8 pixels `H W C`, or None."""
        mine = fingerprint(image)
        at = self._by_pixels.get(mine.exact)
        if at is not None:
            return Duplicate(self._name(at), -1)
        # Without contrast there are no bits to compare, only pixels.
        if mine.bits is None:
            return None
        # The mirror image, too: its hash has the bits of odd horizontal frequencies flipped.
        mirrored = np.ascontiguousarray(mine.gray.reshape(SMALL, SMALL)[:, ::-1]).ravel()
        best: tuple[int, int] | None = None
        for bits, gray in ((mine.bits, mine.gray), (mine.bits ^ MIRROR, mirrored)):
            for distance, at in self.near(bits):
                # Nearest first, so no later one is nearer.
                if best is not None and distance >= best[0]:
                    break
                if float(self._prints["gray"][at].astype(np.float32) @ gray) >= CORRELATION:
                    best = distance, at
        return best and Duplicate(self._name(best[1]), best[0])

    def near(self, bits: np.uint64) -> list[tuple[int, int]]:
        """(distance, position) of all hashes within the threshold, nearest first."""
        found = []
        for mask, keys, rows in self._bands:
            key = bits & mask
            found.append(rows[np.searchsorted(keys, key) : np.searchsorted(keys, key, "right")])
        rows = np.concatenate(found)
        distances = np.bitwise_count(self._bits[rows] ^ bits)
        near = distances <= self._threshold  # few, and some of them by several groups
        return sorted(set(zip(distances[near].tolist(), rows[near].tolist(), strict=True)))

    def _name(self, at: int) -> str:
        return self._prints["name"][at].decode()


CHUNK = 64  # images of a worker at a time


def collect_prints(tasks: Sequence[Task], data_dir: str | None, workers: int) -> np.ndarray:
    """The fingerprints of all readable test images of some tasks.

    Raises DataError for a task that is not prepared, or has no test images.
    """
    prints: list[Print] = []
    names: list[str] = []
    for source in open_test_sets(tasks, data_dir):
        title = source.name(0).rpartition(" example")[0]
        with (
            Bar(f"reading {title}", len(source)) as progress,
            futures.ThreadPoolExecutor(workers) as pool,
        ):
            # Chunk by chunk, because `map` submits all of its numbers at once.
            for start in range(0, len(source), CHUNK * workers):
                numbers = range(start, min(start + CHUNK * workers, len(source)))
                found = pool.map(_take_print, itertools.repeat(source), numbers)
                for number, one in zip(numbers, found, strict=True):
                    if one is not None:
                        prints.append(one._replace(gray=one.gray.astype(np.float16)))
                        names.append(source.name(number))
                progress.update(numbers.stop)
    return stack(prints, names)


def open_test_sets(tasks: Sequence[Task], data_dir: str | None) -> Iterator[Source]:
    """Yields the test images of tasks; tasks that share a test split yield it once.

    Raises DataError for a task that is not prepared, or has no test images.
    """
    seen = set()
    for task in tasks:
        if not task.test:
            raise DataError(f"--dedup-against={task.name}: has no test images")
        key = task.dataset.tfds, task.test
        if key in seen:
            continue
        seen.add(key)
        if availability.find_prepared(task.dataset, data_dir) is None:
            raise DataError(
                f"--dedup-against={task.name}: is not prepared; first: "
                f"{availability.prepare_command(task.name, data_dir)}"
            )
        yield sources.open_task(task, task.test, str(availability.directory(data_dir)))


def _take_print(source: Source, number: int) -> Print | None:
    try:
        image = source[number].image
        pixels = decoding.load_image(image, channels=3, max_pixels=MAX_PIXELS)
    except decoding.BadImage:
        return None
    return fingerprint(pixels)
