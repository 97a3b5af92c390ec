"""Lists of images: written once, checked by hash, found again where a dataset was reordered."""

import functools
import hashlib
import json
import logging
import pickle

import cv2
import numpy as np
import pytest

import toys
from commands import error_line
from vit_jax import config
from vit_jax.config import ConfigError
from vit_jax.data import example_lists
from vit_jax.data.decoding import BadImage
from vit_jax.data.source import DataError, Record
from vit_jax.data.sources import open_source


def record(records, index):
    if records[index] is None:
        raise BadImage("is damaged")
    return records[index]


def listable(records):
    """What a dataset holds in one order or another."""
    return toys.Made(len(records), functools.partial(record, records))


def png(value):
    pixels = np.full((2, 3, 3), value, np.uint8)
    return cv2.imencode(".png", pixels)[1].tobytes()


TRAIN = [Record(b"\xff\xd8" + bytes([n]), n % 2) for n in range(10)]
TEST = [Record(png(n), n % 2) for n in range(6)]
PARTS = {"train[:4]+test[:2]": TRAIN[:4] + TEST[:2], "train+test": TRAIN + TEST}


@pytest.fixture
def file(tmp_path):
    path = example_lists.list_path(tmp_path, "vtab/shapes")
    source = listable(PARTS["train[:4]+test[:2]"])
    example_lists.write_list(
        source, path, task="vtab/shapes", dataset="shapes", version="1.0.0",
        split="train[:4]+test[:2]",
    )  # fmt: skip
    return path


def listed(file, parts, split="train[:4]+test[:2]", **options):
    data = config.Data(source="tfds", **{"name": "shapes:1.*.*", "examples": str(file)} | options)
    return example_lists.open_listed(data, split, lambda name: listable(parts[name]))


def test_the_file(file, tmp_path):
    assert file == tmp_path / "examples/vtab/shapes.json"
    facts = json.loads(file.read_text())
    assert list(facts) == ["task", "dataset", "version", "split", "images", "sha256", "examples"]
    assert facts["images"] == len(facts["examples"]) == 6
    assert len(set(facts["examples"])) == 6
    # Of a JPEG: lengths and bytes of the file and of the label's digits.
    parts = (TRAIN[1].image, b"1")
    whole = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    assert facts["examples"][1] == hashlib.sha256(whole).hexdigest()[:16]
    joined = "\n".join(facts["examples"])
    assert facts["sha256"] == hashlib.sha256(joined.encode()).hexdigest()
    assert example_lists.read_list(file)[:4] == (
        "vtab/shapes",
        "shapes",
        "1.0.0",
        "train[:4]+test[:2]",
    )
    assert example_lists.read_list(file).sha256 == facts["sha256"]


def test_a_list_is_written_at_once(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(
        example_lists.storage, "write_atomically", lambda path, text: written.append(path)
    )
    words = {"task": "t", "dataset": "d", "version": "1", "split": "s"}
    example_lists.write_list([Record(png(1), 0)], tmp_path / "a.json", **words)
    assert written == [tmp_path / "a.json"]


def test_a_png_is_what_it_shows_however_it_was_packed():
    pixels = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    files = [
        cv2.imencode(".png", pixels[..., ::-1], [cv2.IMWRITE_PNG_COMPRESSION, level])[1].tobytes()
        for level in (0, 9)
    ]
    assert files[0] != files[1]
    same = {example_lists.identity(Record(image, 3)) for image in (*files, pixels)}
    assert len(same) == 1
    assert example_lists.identity(Record(files[0], 4)) not in same  # the label counts
    assert example_lists.identity(Record(pixels.reshape(2, 8, 3), 3)) not in same


def test_the_same_data_set(file):
    source = listed(file, PARTS)
    assert [source[i] for i in range(len(source))] == PARTS["train[:4]+test[:2]"]
    assert source.classes == ("a", "b")
    assert source.name(5) == "example 5"
    copy = pickle.loads(pickle.dumps(source))
    assert copy[3] == source[3]
    assert copy.fingerprint() == source.fingerprint()


def test_images_that_moved_are_found(file, caplog):
    moved = {
        "train[:4]+test[:2]": TRAIN[5:9] + TEST[:2],
        "train+test": [None, *TRAIN[::-1], TEST[0], *TEST[::-1]],
    }
    with caplog.at_level(logging.WARNING, "vit_jax"):
        source = listed(file, moved)
    assert [source[i] for i in range(6)] == PARTS["train[:4]+test[:2]"]
    assert "found by hash" in caplog.text
    # Equal for all who have this list, whatever the order of their dataset.
    assert source.fingerprint() == listed(file, PARTS).fingerprint()


def test_a_slice_that_no_longer_exists(file):
    def open_(split):
        if "[" in split:
            raise ConfigError("data.train_split: selects more than there is")
        return listable(TRAIN[:4] + TEST[:2])

    data = config.Data(source="tfds", name="shapes", examples=str(file))
    assert len(example_lists.open_listed(data, "train[:4]+test[:2]", open_)) == 6


def test_equal_images_are_taken_in_turn(tmp_path):
    twice = [TRAIN[0], TRAIN[1], TRAIN[0]]
    file = tmp_path / "list.json"
    facts = {"task": "t", "dataset": "shapes", "version": "1.0.0", "split": "train[:3]"}
    example_lists.write_list(listable(twice), file, **facts)
    parts = {"train[:3]": TRAIN[:3], "train": [*TRAIN[::-1], TRAIN[0]]}
    source = listed(file, parts, "train[:3]")
    assert [source[i] for i in range(3)] == twice
    assert {source.name(0), source.name(2)} == {"example 9", "example 10"}


refusal = functools.partial(error_line, (ConfigError, DataError))


def test_images_that_are_not_there(file):
    gone = PARTS | {"train[:4]+test[:2]": TRAIN[:4] + TEST[3:5], "train+test": TRAIN + TEST[3:]}
    assert refusal(listed, file, gone) == (
        f"data.examples={file}: 2 of its 6 images are not there, beginning with number 4; prepare "
        "shapes:1.0.0, of which it was written, or write a new list with `vit_jax prepare "
        "vtab/shapes`"
    )
    other_labels = [Record(image, 1 - label) for image, label in TRAIN + TEST]
    parts = {"train[:4]+test[:2]": other_labels[:6], "train+test": other_labels}
    assert "6 of its 6 images are not there" in refusal(listed, file, parts)


def test_a_list_of_something_else(file):
    assert refusal(listed, file, PARTS, name="forms") == (
        f"data.examples={file}: lists shapes, but data.name is forms"
    )
    assert refusal(listed, file, PARTS, "train[:4]") == (
        f"data.examples={file}: lists train[:4]+test[:2], but data.train_split is train[:4]"
    )


def test_files_that_are_no_lists(file, tmp_path):
    assert refusal(example_lists.read_list, tmp_path / "none.json") == (
        f"data.examples={tmp_path}/none.json: cannot be read: No such file or directory"
    )
    whole = file.read_text()
    for text in ("", "[]", whole[: len(whole) // 2], whole.replace('"split"', '"spilt"')):
        file.write_text(text)
        assert refusal(example_lists.read_list, file) == (
            f"data.examples={file}: is not a list of examples; `vit_jax prepare` writes one"
        )
    first = json.loads(whole)["examples"][0]
    swapped = first[1] + first[0] + first[2:]
    for text in (whole.replace(first, swapped), whole.replace(first, "x" * 16)):
        file.write_text(text)
        assert "is damaged" in refusal(example_lists.read_list, file)


def test_only_training_takes_the_list(tmp_path):
    data = config.Data(source="digits", image_size=(8, 8), channels=1, train_split="train[:20]")
    source = open_source(data, "train[:20]", train=True)
    file = tmp_path / "list.json"
    example_lists.write_list(
        source, file, task="digits", dataset="", version="", split="train[:20]"
    )
    data = config.Data(source="digits", examples=str(file), train_split="train[:20]")
    again = open_source(data, "train[:20]", train=True)
    assert isinstance(again, example_lists.Listed)
    np.testing.assert_array_equal(again[7].image, source[7].image)
    assert not isinstance(open_source(data, "train[:20]", train=False), example_lists.Listed)
