"""How numbers, options and cells are named on pages."""

import dataclasses
import types

import pytest

import runs
from vit_jax import config
from vit_jax.data import split_roles
from vit_jax.pages.document import Gallery, Paragraph, Sample
from vit_jax.studies.report import formatting, run_data, run_section, transfer_section
from vit_jax.studies.transfer import tables
from vit_jax.training import run_config

SAMPLE = Sample(name="a.png", png=b"", truth="cat", top=[("dog", 0.9)], right=False)


@pytest.mark.parametrize(
    ("key", "title"), [("real/top1", "real top-1"), ("test/top5", "test top-5"), ("loss", "loss")]
)
def test_results_have_the_names_of_prose(key, title):
    assert formatting.title(key) == title


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("f1/high", 0.5, "50.00 %"), ("loss/low", 0.5, "0.5000"), ("temperature", 0.8, "0.8000"),
        ("probe/self/log10_l2", -1.0, "-1.0000"), ("kappa/low", 0.25, "0.2500"),
        ("probe/self/top1", 1.0, "100.00 %"), ("test/count", 1200, "1,200"),
    ],
)  # fmt: skip
def test_only_shares_are_percent(key, value, shown):
    assert formatting.measured(key, value) == shown


def test_means_of_numbers_are_no_percent():
    found = {"top1": {"mean": 0.5, "values": [0.5]}, "kappa": {"mean": 0.25, "values": [0.25]},
             "loss/low": {"mean": 0.5, "values": [0.5]},
             "mine/area": {"mean": 37.5, "values": [37.5]}}  # fmt: skip
    rows = transfer_section.beside([], found).rows
    own = ("mine area, no %", "37.5000", "1")  # of a plug-in, in its own units
    assert rows == [("top-1", "50.00", "1"), ("kappa, no %", "0.2500", "1"), own]
    _, shown = tables.spreads("", found)
    assert shown[-1] == ("mine/area", "37.5000", "", "1")


@pytest.mark.parametrize(("printed", "percent"), [(0.8125, 81.25), (1, 100), (1.5, 1.5), (85, 85)])
def test_shares_and_percent_of_the_paper_are_percent(printed, percent):
    assert formatting.in_percent(printed) == percent


def test_sizes_that_a_variant_implies_are_no_differences():
    named = run_config.complete(config.build({"model": {"variant": "ViT-Ti/16", "num_classes": 3}}))
    keys = {key for key, *_ in formatting.differences(named)}
    assert {"model.variant", "model.num_classes"} <= keys
    assert not keys & {"model.architecture", "model.patch_size", "model.width", "model.depth"}
    assert formatting.model(named) == "ViT-Ti/16"
    rows = {key: row for key, *row in formatting.differences(runs.configure(seed=7))}
    assert rows["seed"][:2] == ["7", "0"]
    assert rows["model.width"][0] == str(runs.configure().model.width)


def test_sizes_other_than_the_variants_are_said():
    sizes = {"variant": "ViT-Ti/16", "patch_size": (8, 4), "depth": 2}
    cfg = run_config.complete(config.build({"model": {**sizes, "num_classes": 3}}))
    rows = {key: row for key, *row in formatting.differences(cfg)}
    assert (rows["model.patch_size"][0], rows["model.depth"][0]) == ("8,4", "2")
    assert not rows.keys() & {"model.width", "model.heads"}
    assert formatting.model(cfg) == "ViT-Ti/16 with patch_size=8,4, depth=2"
    unknown = config.build({"model": {"variant": "ViT-X/16"}})
    assert formatting.model(unknown) == "ViT-X/16"


@pytest.mark.parametrize(("depth", "layers"), [(1, "1 layer"), (2, "2 layers")])
def test_a_network_without_a_name_is_described(depth, layers):
    cfg = config.Config(
        model=config.Model(
            variant=None, patch_size=(4, 8), width=16, depth=depth, mlp_dim=8, heads=1
        )
    )
    text = f"a Vision Transformer of {layers}, width 16, patches of 4 \u00d7 8"
    assert formatting.model(cfg) == text


@pytest.mark.parametrize(
    ("cell", "several", "name"),
    [
        ({"stage": "final", "seed": 3}, True, "seed 3"),
        ({"stage": "choose", "seed": 3, "lr": 0.01, "setup": "vit"}, False, "rate 0.01"),
        ({"stage": "choose", "seed": 3, "lr": 0.01, "setup": "b"}, True,
         "setup b rate 0.01, seed 3"),
    ],
)  # fmt: skip
def test_a_cell_is_named_by_what_tells_it_apart(cell, several, name):
    assert transfer_section._named(cell, several=several) == name


def test_predictions_say_which_images_they_are_of():
    found = run_section.Predictions(
        split="validation", selection="step 3, the best", seen=9, total=1200, seed=5,
        samples=[SAMPLE], mistakes=[SAMPLE], wrong=2,
    )  # fmt: skip
    assert list(run_section.shown(found)) == [
        Paragraph(
            text="9 of 1,200 validation images were shown to the checkpoint of step 3, the best. "
            "2 of them were misclassified."
        ),
        Gallery(samples=[SAMPLE], caption="Drawn from the validation images by seed 5"),
        Gallery(samples=[SAMPLE], caption="Its most confident mistakes"),
    ]
    first, *_ = run_section.shown(dataclasses.replace(found, unlabeled=4))
    assert first.text.endswith("2 of them were misclassified. 4 without a class were not counted.")
    (line,) = run_section.shown(run_section.Predictions(problem="the images are gone"))
    assert line == Paragraph(text="No predictions: the images are gone", note=True)


@pytest.mark.parametrize(
    ("saved", "lines", "step"),
    [
        (2, {1: 0.9, 2: 0.5, 3: 0.7}, 2),  # of the best checkpoint, whatever the curve says
        (None, {1: 0.9, 2: 0.5}, 1),
        (4, {1: 0.5, 2: 0.9}, 2),  # it was saved, but not measured
        (None, {}, None),
    ],
)
def test_the_step_that_is_reported(saved, lines, step, tmp_path):
    run = run_data.StoredRun(
        directory=tmp_path, cfg=runs.configure(checkpoint={"best": "top1"}), record={},
        lines=[{"step": at, "test/top1": value} for at, value in lines.items()],
        saved=saved, parameters=None, date="", problems=(),
    )  # fmt: skip
    assert run.reported_at == step
    assert run.step == max(lines, default=0)


@pytest.mark.parametrize(("role", "said"), [("train", True), ("validation", False)])
def test_a_split_that_was_trained_on_is_said(role, said):
    run = types.SimpleNamespace(
        cfg="a config", results={"top1": 0.5}, metric=None, tested=None, lines=[],
        evaluated=split_roles.Role("some", "some", role),
    )  # fmt: skip
    lines = list(run_section._measured_on(run))
    assert lines == ["The split `some` has images that were trained on."] * said


@pytest.mark.parametrize(
    ("data", "count"),
    [
        ({"source": "tfds", "name": "imagenet2012:5.1.0"}, 2),
        ({"source": "tfds", "name": "cifar10"}, 0),
        ({"source": "folder", "root": "photos"}, 0),
        ({"source": "synthetic"}, 0),  # of --smoke
    ],
)
def test_the_papers_numbers_are_for_its_data(data, count):
    assert len(formatting.printed("finetune/ViT-B_16-i21k-imagenet", data)) == count


def test_data_of_the_users_own_stand_for_those_that_are_not_public():
    mine = {"source": "tfds", "name": "mine"}
    assert formatting.printed("pretrain/ViT-L_16-jft-7ep", mine)
