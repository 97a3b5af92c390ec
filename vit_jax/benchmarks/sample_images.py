"""Image files for benchmarks: the user's own, or generated ones."""

import pathlib
import tarfile

import cv2
import numpy as np

from vit_jax import config

COUNT = 256
QUALITY = 91  # about 110 kB at 500 x 375, as in ImageNet


def gather(data: pathlib.Path | None, folder: pathlib.Path) -> list[pathlib.Path]:
    """JPEG files: from a folder, from a tar unpacked to `folder`, or generated.

    Raises ConfigError if there are none; `data` must exist.
    """
    if data is None:
        return make(folder, COUNT)
    if not data.is_dir():
        try:
            with tarfile.open(data) as archive:
                # The filter refuses members that would be written outside the folder.
                archive.extractall(folder, filter="data")
        except (tarfile.TarError, ValueError, RecursionError, EOFError) as error:
            raise config.ConfigError(f"--data={data}: no folder and no tar: {error}") from None
    files = sorted((folder if data.is_file() else data).rglob("*"))
    jpegs = [file for file in files if file.suffix.lower() in (".jpg", ".jpeg")]
    if not jpegs:
        raise config.ConfigError(f"--data={data}: has no .jpg or .jpeg file")
    return jpegs


def make(folder: pathlib.Path, count: int) -> list[pathlib.Path]:
    """Writes `count` JPEGs of ImageNet's usual sizes into a folder, the same ones every time.

    Their spectrum falls with frequency as in photographs, so that decoding takes about as long
    (4:2:0, quality 91; two thirds are 500 x 375 or 375 x 500 pixels).
    """
    sizes = [(375, 500), (500, 375), (333, 500), (375, 500), (500, 375), (480, 640)]
    files = []
    for number in range(count):
        # By file, so that the first ones do not depend on how many are made.
        rng = np.random.default_rng(number)
        height, width = sizes[number % len(sizes)]
        picture = np.full((height, width, 3), 128, np.float32)
        # From coarse to fine: grids of 5 to 513 points, ever fainter.
        for octave in range(2, 10):
            cells = rng.standard_normal((2**octave + 1, 2**octave + 1, 3), np.float32)
            cells = 0.7 * cells[:, :, :1] + 0.3 * cells  # colors vary less than brightness
            grain = cv2.resize(cells, (width, height), interpolation=cv2.INTER_CUBIC)
            picture += 110 / octave**0.8 * grain
        file = folder / f"{number:03}.jpg"
        options = [cv2.IMWRITE_JPEG_QUALITY, QUALITY]
        encoded = cv2.imencode(".jpg", picture.clip(0, 255).astype(np.uint8), options)[1]
        file.write_bytes(encoded.tobytes())
        files.append(file)
    return files
