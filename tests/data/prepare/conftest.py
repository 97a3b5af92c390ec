"""Pictures with structure, and folders of them."""

import cv2
import numpy as np
import pytest

import commands


def structured(seed: int, height: int = 40, width: int = 48) -> np.ndarray:
    """Soft colors that differ with the seed, a disc and a bar: uint8 `H W 3`."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (5, 6, 3), np.uint8)
    image = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    center = (int(rng.integers(width)), int(rng.integers(height)))
    cv2.circle(image, center, height // 5, rng.integers(0, 256, 3).tolist(), -1)
    top = int(rng.integers(height - 4))
    image[top : top + 4] = rng.integers(0, 256, 3)
    return image


def jpeg(image: np.ndarray, quality: int = 90) -> bytes:
    """The JPEG of RGB pixels."""
    bgr = np.ascontiguousarray(image[:, :, ::-1])
    return cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, quality])[1].tobytes()


@pytest.fixture(scope="session")
def picture():
    """Images with structure, as `structured` draws them."""
    return structured


@pytest.fixture(scope="session")
def encode():
    """The encoder `jpeg`, as a fixture."""
    return jpeg


@pytest.fixture
def prepare(capsys, tmp_path):
    """Runs the command; returns exit code, lines printed, lines of woe."""

    def run(*arguments, data_dir="data", workers=1):
        where = f"--data-dir={tmp_path / data_dir}"
        return commands.run(capsys, "prepare", *arguments, where, f"--workers={workers}")

    return run


@pytest.fixture
def photos(tmp_path):
    """Ten pictures of each of three classes, a text, and a file that only looks like a picture."""
    root = tmp_path / "photos"
    for number, name in enumerate(("bird", "cat", "dog")):
        (root / name).mkdir(parents=True)
        for index in range(10):
            (root / name / f"{index}.jpg").write_bytes(jpeg(structured(100 * number + index)))
    (root / "cat" / "broken.jpg").write_bytes(jpeg(structured(7))[:300])
    (root / "cat" / "read.me").write_text("no picture")
    return root
