"""Weights that come with the package: what they weigh, say and see, with no network."""

import csv
import json
import pathlib

import pytest

import runs
from vit_jax import cli, config
from vit_jax.config import catalog
from vit_jax.inference import loading
from vit_jax.weights import hub, zoo

NAMES = ("cifar10/ViT-6_4", "cifar10/ViT-6_4-3h")
PHOTO = runs.ROOT / "docs" / "pictures" / "cat.jpg"
RECORDS = runs.ROOT / "docs" / "records" / "cifar10.jsonl"
CLASSES = "airplane automobile bird cat deer dog frog horse ship truck"


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("nothing is downloaded")

    monkeypatch.setattr(hub, "fetch", refuse)


def rows():
    table = pathlib.Path(zoo.__file__).with_name("bundled.csv")
    with table.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_table_is_that_of_the_folder():
    folders = {str(path.parent.relative_to(zoo.BUNDLED)) for path in zoo.BUNDLED.rglob("*.json")}
    assert {row["name"] for row in rows()} == folders
    for row in rows():
        entry, folder = zoo.find_published(row["name"]), zoo.BUNDLED / row["name"]
        assert zoo.resolve(row["name"]) == zoo.resolve(row["name"].lower()) == folder
        assert not entry.urls
        size = sum(path.stat().st_size for path in folder.iterdir())
        assert size < 10e6
        assert entry.mib == pytest.approx(size / 2**20, abs=0.01)


@pytest.mark.parametrize("name", NAMES)
def test_the_accuracy_is_the_recorded_one(name):
    (row,) = (row for row in rows() if row["name"] == name)
    lines = [json.loads(line) for line in RECORDS.read_text().splitlines()]
    (last,) = (line for line in lines if line["name"] == name and "bundled" in line)
    assert float(row["top1"]) == pytest.approx(100 * last["bundled"]["top1"], abs=0.005)
    assert last["bundled"]["count"] == 10_000


@pytest.mark.parametrize("name", NAMES)
def test_it_is_the_model_of_its_config(name):
    opened, cfg = loading.load(name), config.build(catalog.load_values(name))
    assert opened.classes == tuple(CLASSES.split())
    assert opened.config.data.image_size == (32, 32)
    for key in ("width", "depth", "mlp_dim", "heads", "patch_size", "pooling"):
        assert getattr(opened.config.model, key) == getattr(cfg.model, key)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_it_names_a_photo(name, capsys):
    assert cli.main(["predict", f"--checkpoint={name}", str(PHOTO)]) == 0
    line = capsys.readouterr().out.splitlines()[-1].split()
    assert line[1] == "cat"
    assert float(line[2].rstrip("%")) > 50
