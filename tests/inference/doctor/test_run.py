"""`vit_jax doctor` from end to end, and its mistakes before a checkpoint is opened."""

import errno
import json
import pathlib
import types
from unittest.mock import Mock

import cv2
import numpy as np
import pytest
from PIL import Image

import commands
from image_folders import fill
from vit_jax import cli, config
from vit_jax.data.sources import open_source
from vit_jax.inference.doctor import KINDS, run

FIXTURE = pathlib.Path(__file__).parents[2] / "fixtures/vit_tiny_token.npz"


def photo(path, seed, **edits):
    """A smooth picture: 6 x 6 random colors enlarged."""
    small = np.random.default_rng(seed).integers(0, 255, (6, 6, 3), np.uint8)
    image = cv2.resize(small, edits.get("size", (48, 48)), interpolation=cv2.INTER_CUBIC)
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), cv2.convertScaleAbs(image, alpha=edits.get("brightness", 1)))


@pytest.mark.slow
def test_what_is_planted_is_found_and_left_out(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "photos"
    for number in range(30):
        photo(root / f"train/{'ab'[number % 2]}/{number:02}.png", number)
        photo(root / f"test/{'ab'[number % 2]}/{number:02}.png", 100 + number)
    photo(root / "train/b/leak.jpg", 101)
    photo(root / "train/b/bright.png", 1, brightness=1.05)
    photo(root / "train/b/other.png", 2, size=(60, 60))
    photo(root / "train/a/tall.png", 50, size=(48, 200))
    Image.open(root / "train/a/00.png").convert("CMYK").save(root / "train/a/cmyk.jpg")
    (root / "test/a/broken.png").write_bytes((root / "test/a/00.png").read_bytes()[:-30])
    (root / "test/b/text.png").write_text("none")
    words = ["doctor", str(root), f"--checkpoint={FIXTURE}", "--fix-list=fix.csv", "--cosine=0.5"]
    assert cli.main([*words, "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    found = {kind: {row["image"] for row in rows if row["kind"] == kind} for kind in KINDS}
    assert found["broken"] == {"test/a/broken.png", "test/b/text.png"}
    assert found["conflict"] == {"train/b/other.png", "train/a/02.png"}
    assert found["leak"] == {"train/b/leak.jpg"}
    assert {"train/b/bright.png", "train/b/01.png"} & found["copy"]
    assert found["aspect"] == {"train/a/tall.png"}
    assert found["mode"] == {"train/a/cmyk.jpg"}
    page = pathlib.Path("doctor.html").read_text()
    assert page.count("data:image/png") > 8
    left = [line.partition(",")[0] for line in pathlib.Path("fix.csv").read_text().splitlines()]
    gone = set().union(*(found[kind] for kind in ("broken", "conflict", "leak", "copy")))
    assert left == ["image", *sorted(gone)]
    data = config.Data(source="folder", root=str(root), exclude="fix.csv")
    names = {
        source.name(at)[len(f"{root}/") :]
        for source in (open_source(data, split) for split in ("train", "test"))
        for at in range(len(source))
    }
    assert len(names) == 67 - len(gone)
    assert not names & gone
    # The same list again would be overwritten.
    assert cli.main(words) == 2
    assert "--fix-list=fix.csv: fix.csv exists; remove it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["gone"], "gone: no such folder"),
        (["r/a/1.jpg"], "r/a/1.jpg: not a folder"),
        (["empty"], "files; it contains 1 .txt (no image), 1 "),
        (["r", "--output=page.txt"], "--output=page.txt: must end in .html"),
        (["r", "--output=no/page.html"], "--output=no/page.html: no such folder as no"),
        (["r", "--output=r.html"], "--output=r.html: is a folder"),
        (["r", "--fix-list=fix.txt"], "--fix-list=fix.txt: must end in .csv"),
        (["r", "--fix-list=there.csv"], "--fix-list=there.csv: there.csv exists; remove it or "),
        (["r", "--fix-list=no/x.csv"], "--fix-list=no/x.csv: no such folder as no"),
        (["r", "--leave-out=xyzw"], "--leave-out=xyzw: no such kind; known: broken, "),
        (["r", "--leave-out=lable"], "--leave-out=lable: no such kind; did you mean label?"),
        (["r", "--checkpoint=gone"], "gone"),
        (["r", "--config.data.holdout=0.2"], "data.holdout: is set by --holdout here"),
    ],
)
def test_mistakes_are_one_line(tmp_path, words, line, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fill(tmp_path, "r/a/1.jpg", "r/b/2.jpg", "there.csv")
    fill(tmp_path / "empty", "notes.txt", ".x.jpg")
    (tmp_path / "r.html").mkdir()
    assert line in commands.woe(commands.run(capsys, "doctor", *words))
    assert not (tmp_path / "doctor.html").exists()


def test_addresses_are_refused_from_python_too(tmp_path):
    for given, line in (
        ({"folder": "https://b/x"}, "https://b/x: is a web address; name a path"),
        ({"folder": tmp_path, "fix_list": "gs://b/x.csv"}, "gs://b/x.csv: must be on a disk"),
    ):
        with pytest.raises(config.ConfigError, match=line):
            run.doctor(**given)


def test_a_page_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    for name in ("list_images", "read_images", "document"):
        monkeypatch.setattr(run, name, lambda *_, **__: None)
    monkeypatch.setattr(
        run.loading, "load", lambda *_: types.SimpleNamespace(config=config.Config())
    )
    found = types.SimpleNamespace(notes=[])
    monkeypatch.setattr(run.examination, "examine", lambda *_: found)
    monkeypatch.setattr(run.html, "page", lambda document: "text")
    page = tmp_path / "page.html"
    assert run.doctor(tmp_path, output=page) is found
    assert page.read_text() == "text"
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(run.storage, "write_atomically", Mock(side_effect=full))
    with pytest.raises(Exception, match=f"^--output={page}: cannot be written: No space left"):
        run.doctor(tmp_path, output=page)


def test_python_is_told_what_could_not_be_checked(tmp_path, monkeypatch, caplog):
    found = types.SimpleNamespace(notes=["labels are 50% guesses", "outliers need more"])
    monkeypatch.setattr(run, "list_images", lambda *_, **__: None)
    monkeypatch.setattr(run, "read_images", lambda *_: None)
    monkeypatch.setattr(run.loading, "load", lambda *_: None)
    monkeypatch.setattr(run.examination, "examine", lambda *_: found)
    run.doctor(tmp_path)
    assert caplog.messages == found.notes


@pytest.mark.parametrize(("name", "value"), [("cosine", 1.5), ("cosine", 0), ("holdout", 1)])
def test_numbers_from_python_have_the_bounds_of_the_command(tmp_path, name, value):
    with pytest.raises(config.ConfigError, match=f"--{name}={value}: must be "):
        run.doctor(tmp_path, **{name: value})
