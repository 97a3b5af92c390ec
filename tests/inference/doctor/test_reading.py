"""What is kept of every image of a folder, in chunks; one that cannot be read ends nothing."""

import cv2
import numpy as np
import pytest
from PIL import Image

from vit_jax import config
from vit_jax.data.prepare import dedup
from vit_jax.inference.doctor import reading
from vit_jax.inference.doctor.listing import list_images


class Model:
    config, model = config.Config(data=config.Data(channels=3)), None

    def view(self, pixels):
        return pixels

    def features(self, views, kind):
        assert kind == "pre_logits"
        return np.stack([np.float32([view.shape[0], view.shape[1]]) for view in views])


@pytest.mark.parametrize("chunk", [2, 3, 100])
def test_every_image_has_its_size_mode_and_features(chunk, tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "CHUNK", chunk)
    monkeypatch.setattr(reading.loaded_model, "feature_shape", lambda model, kind: (2,))
    for number in range(5):
        cv2.imwrite(str(tmp_path / f"{number}.png"), np.full((3, 4 + number, 3), 9, np.uint8))
    Image.fromarray(np.full((3, 5), 9, np.uint8)).save(tmp_path / "1.png")
    (tmp_path / "2.png").write_text("<html>")
    found = reading.read_images(list_images(tmp_path, 0, labels=False), Model())
    assert list(found.errors) == [2]
    assert found.readable.tolist() == [True, True, False, True, True]
    assert found.sizes.tolist() == [[3, 4], [3, 5], [0, 0], [3, 7], [3, 8]]
    assert found.modes == ["RGB", "gray", "", "RGB", "RGB"]
    rows = np.float32([[3, 4], [3, 5], [0, 0], [3, 7], [3, 8]])
    lengths = np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1)
    np.testing.assert_allclose(found.features, rows / lengths, rtol=1e-6)
    assert found.prints["exact"][0] != found.prints["exact"][3]


@pytest.mark.parametrize("depth", [8, 16])
def test_fingerprints_are_those_of_what_people_see(depth, tmp_path, monkeypatch):
    """Of 16 bits as of 8: copies are found whatever the model takes."""
    monkeypatch.setattr(reading.loaded_model, "feature_shape", lambda model, kind: (2,))
    small = np.random.default_rng(0).integers(0, 256, (6, 6, 3), np.uint8)
    image = cv2.resize(small, (48, 48), interpolation=cv2.INTER_CUBIC)
    cv2.imwrite(str(tmp_path / "a.png"), image if depth == 8 else image.astype(np.uint16) * 257)
    model = Model()
    model.config = config.Config(data=config.Data(channels=3, depth=depth))
    found = reading.read_images(list_images(tmp_path, 0, labels=False), model)
    exact, bits, gray = dedup.fingerprint(image[:, :, ::-1])
    expected = np.zeros(1, dedup.RECORD)
    expected[0] = (exact, bits, True, gray)
    np.testing.assert_array_equal(found.prints, expected)


def test_why_a_file_cannot_be_read(tmp_path):
    assert reading._read_image(tmp_path / "gone.png", Model()) == "No such file or directory"
    (tmp_path / "a.png").write_text("<html>")
    assert "is not a JPEG" in reading._read_image(tmp_path / "a.png", Model())


def test_the_mode_of_a_picture_of_very_many_pixels_is_not_known(tmp_path, monkeypatch):
    Image.fromarray(np.zeros((3, 5), np.uint8)).save(tmp_path / "1.png")
    encoded = (tmp_path / "1.png").read_bytes()
    assert reading._mode(encoded, (3, 5)) == "gray"
    monkeypatch.setattr(reading, "MOST_PIXELS", 14)
    assert reading._mode(encoded, (3, 5)) == ""
    assert reading._mode(b"nothing", (1, 1)) == ""
