"""What `bench input` measures and how it says it; the measuring itself is not timed here."""

import dataclasses
import json
import os
import stat
import sys
import tarfile

import cv2
import numpy as np
import pytest

from vit_jax import config
from vit_jax.benchmarks import input, input_worker, sample_images, turns
from vit_jax.data import pipeline, transforms


def test_pictures_are_the_same_every_time_and_as_large_as_imagenets(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    some, others = (
        sample_images.make(tmp_path / name, count) for name, count in (("a", 6), ("b", 2))
    )
    assert [one.read_bytes() for one in some[:2]] == [one.read_bytes() for one in others]
    assert cv2.imread(str(some[0])).shape == (375, 500, 3)
    assert {cv2.imread(str(file)).shape[:2] for file in some} == {
        (375, 500),
        (500, 375),
        (333, 500),
        (480, 640),
    }
    pixels = cv2.imread(str(some[0])).astype(float)
    assert np.ptp(pixels, axis=2).mean() < 0.7 * pixels.mean(axis=2).std()  # few strong colors
    assert 90_000 < np.median([file.stat().st_size for file in some]) < 130_000


def test_files_come_from_a_folder_or_a_tar_or_are_made(tmp_path, monkeypatch):
    top = tmp_path / "top"
    (top / "class").mkdir(parents=True)
    (file,) = sample_images.make(top / "class", 1)
    assert sample_images.gather(top, tmp_path / "none") == [file]
    with tarfile.open(tmp_path / "all.tar", "w") as archive:
        archive.add(top, "top")
    (unpacked,) = sample_images.gather(tmp_path / "all.tar", tmp_path / "out")
    assert unpacked.read_bytes() == file.read_bytes()
    with pytest.raises(config.ConfigError, match="no folder and no tar"):
        sample_images.gather(file, tmp_path / "out2")
    monkeypatch.setattr(sample_images, "COUNT", 2)
    assert sample_images.gather(None, top) == [top / "000.jpg", top / "001.jpg"]


def test_a_worker_loads_what_it_is_asked_for(tmp_path):
    files = sample_images.make(tmp_path, 2)
    source = input_worker.Files([str(file) for file in files])
    assert [source[k].label for k in (0, 1)] == [0, 1]
    assert [input_worker.Files(3 * [str(files[0])])[2].label] == [0]
    answer = input_worker.load(source, config.Data(train_crop="inception", threads=1), count=1)
    assert answer["images"] == 256
    assert answer["seconds"] > 0
    assert answer["cpu"] > 0


def test_a_worker_answers_every_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "names").write_bytes(b"a.jpg\nb.jpg\n")
    asked, cores = [], []

    def load(source, data, count):
        asked.append((len(source), source.name(1), data.threads, data.partial_decoding, count))
        return {"images": 256 * count}

    monkeypatch.setattr(input_worker, "load", load)
    monkeypatch.setattr(input_worker.os, "sched_setaffinity", lambda *given: cores.append(given))
    monkeypatch.setattr(sys, "stdin", ["1\n", "3\n"])
    input_worker.main("0,2", "2", "whole", str(tmp_path / "names"), "2,10")
    assert cores == [(0, {0, 2})]
    assert asked == [(2, "b.jpg", 2, False, 1), (2, "b.jpg", 2, False, 3)]
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["images"] for one in answers] == [256, 768]
    assert all(one["peak"] > 2**20 for one in answers)


@pytest.mark.parametrize(("cores", "measured"), [({3}, [[3]]), ({1, 3, 2}, [[1], [1, 2, 3]])])
def test_one_core_is_measured_and_then_all(cores, measured, monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: cores if process == 0 else {9})
    monkeypatch.setattr(sample_images, "gather", lambda *_: [tmp_path / "a.jpg"])
    monkeypatch.setattr(input, "_prepare", lambda files, folder: "packed")
    monkeypatch.setattr(input, "_compare", lambda options, *given: asked.append(given))
    list(input.measure(input.Input()))
    assert [given[0] for given in asked] == measured


STAND_IN = """#!{python}
import json, sys
if sys.argv[1] == "-c":
    print("9.9")  # asked for its version of TensorFlow
    sys.exit()
augment, checkout = (sys.argv[-2:] if "tf_data" in sys.argv[1] else (sys.argv[-1], None))
if augment != "2,10" or checkout not in (None, {checkout!r}):
    sys.exit("no such arguments")
print("a library that prints")
for line in sys.stdin:
    count = 256 * int(line)
    print(json.dumps(dict(images=count, seconds=count / 100, cpu=1, peak=7)), flush=True)
"""


def stand_in(path, checkout):
    """Writes a program that answers as our worker or as tf.data would."""
    path.write_text(STAND_IN.format(python=sys.executable, checkout=str(checkout)))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 3])
def test_a_worker_opens_prepared_data_of_the_same_files(count, tmp_path, monkeypatch):
    files = sample_images.make(tmp_path, count)
    data_dir = input._prepare(files, tmp_path)
    opened = []
    monkeypatch.setattr(input_worker, "load", lambda source, *_: opened.append(source) or {})
    monkeypatch.setattr(input_worker.os, "sched_setaffinity", lambda *_: None)
    monkeypatch.setattr(sys, "stdin", ["1\n"])
    input_worker.main("0", "1", "parts", str(data_dir), "")
    (source,) = opened
    found = {source[k].image for k in range(len(source))}
    assert found == {file.read_bytes() for file in files}
    assert len(source) == max(count, 2)


OURS = [input.OURS, input.TAR, input.PARQUET, input.ARROW, input.PREPARED, input.WHOLE]


def test_randaugment_is_measured_beside_that_of_a_checkout(tmp_path, monkeypatch):
    (tmp_path / input.REFERENCE).parent.mkdir(parents=True)
    (tmp_path / input.REFERENCE).touch()
    (tmp_path / "jpegs").mkdir()
    sample_images.make(tmp_path / "jpegs", 1)
    python = str(stand_in(tmp_path / "python", tmp_path))
    for module in (input, turns):
        monkeypatch.setattr(module, "PYTHON", (python, "-P"))
    monkeypatch.setattr(input, "_prepare", lambda files, folder: folder)
    options = input.Input(
        data=tmp_path / "jpegs", peer_python=python, peer_path=tmp_path, randaugment="2,10",
        rounds=2,
    )  # fmt: skip
    compared = list(input.measure(options))
    for one in compared:
        names = [result.name for result in one.results]
        assert names == [*OURS, *input.PEERS]
        assert all(one.rate(result) == pytest.approx(100) for result in one.results)
        assert turns.ratios(*one.results[:2]) == pytest.approx((1, 1, 1))
    assert "RandAugment 2,10" in input.title(options)[0]
    assert input.title(options)[0].endswith(f"; files of {tmp_path / 'jpegs'}")
    assert input.title(dataclasses.replace(options, data=None))[0].endswith("; 256 files made here")
    # Without a checkout tf.data cannot do the same work.
    alone = dataclasses.replace(options, peer_path=None)
    (*_, one) = input.measure(alone)
    assert {result.name for result in one.results} == {*OURS}
    assert "no big_vision's RandAugment (--peer-path=CHECKOUT)" in input.title(alone)[-1]


def test_the_worker_augments(tmp_path):
    files = [str(file) for file in sample_images.make(tmp_path, 2)]
    settings = [input_worker.settings(1, "parts", augment) for augment in ("", "2,10")]
    plain, augmented = (
        next(
            pipeline.batches(
                input_worker.Files(files),
                transforms.train_transforms(data),
                data,
                seed=0,
                batch_size=4,
                rows=range(4),
                train=True,
                stop_step=1,
            )
        )["image"]
        for data in settings
    )
    assert input_worker.settings(1, "whole", "2,10").randaugment == (2, 10)
    assert not input_worker.settings(1, "whole", "").partial_decoding
    assert (plain != augmented).any(axis=(1, 2, 3)).sum() >= 3


def test_what_a_slice_eats():
    lines = dict(input.host_cores("ViT-B/32", "v3:2x2", per_core=1000.0))
    # 4 chips of 123 TFLOP/s; a forward pass is 4.41 G multiply-accumulates.
    rate = 4 * 123e12 / (3 * 2 * 4.41e9)
    assert abs(float(lines["at the roofline"].split()[0].replace(",", "")) / rate - 1) < 0.01
    assert lines["at 30% of it"].endswith("cores")
