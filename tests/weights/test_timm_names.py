"""Every architecture of timm that could be taken for one of ours: built, refused, what is assumed.

tests/fixtures/weights/timm_names.csv holds the verdicts: with a config.json that names it, and of
the file alone; `logits` is the largest difference from timm's, of a small instance with random
weights, where one was compared. `python tests/weights/test_timm_names.py` prints the table anew.
"""

import csv
import dataclasses
import functools
import gzip
import json
import re

import numpy as np
import pytest

import foreign
from vit_jax import config, weights
from vit_jax.utils import tree_utils
from vit_jax.weights import family, importing, mapping
from vit_jax.weights.arrays import Arrays, ArraySpec
from vit_jax.weights.families import timm, timm_vit

TABLE = foreign.FOLDER / "timm_names.csv"
WHOLE = "resnetv2_50x1_bit"
OPEN = ("model.rotary", timm_vit.NORMS_FIRST)  # by which look-alikes differ


@functools.cache
def models():
    return json.loads(gzip.decompress((foreign.FOLDER / "timm_names.json.gz").read_bytes()))


def verdicts():
    with TABLE.open(newline="") as file:
        return {row["name"]: row for row in csv.DictReader(file)}


def specs(model):
    """The arrays of a model, those of all its layers."""
    every = {}
    for name, shape in model["arrays"].items():
        layers = range(model["depth"]) if ".N." in name else [0]
        every |= {name.replace(".N.", f".{layer}."): shape for layer in layers}
    dtype = np.dtype(np.float32)
    return {name: ArraySpec(tuple(shape), dtype) for name, shape in every.items()}


def recognized(arrays, hints):
    """The family of a file with these arrays, and the arrays as its rules take them."""
    found = importing.find_family(Arrays(arrays, lambda name: None), hints.files)
    return found.family, found.family.prepared(found.arrays, hints).specs


def facts(name, *, alone):
    """The facts of a model, or why it is refused."""
    model = models()[name]
    fields = {"architecture": name, "pretrained_cfg": model["cfg"]}
    size = tuple(model["cfg"]["input_size"][1:])
    hints = family.Hints(files={} if alone else {"config.json": fields}, image_size=size)
    try:
        kind, arrays = recognized(specs(model), hints)
        return kind.read_spec(arrays, hints)
    except weights.WeightsError as error:
        return str(error).replace(name, "NAME")


def verdict(found):
    return found if isinstance(found, str) else "built"


def test_every_name_of_timm_has_its_verdict():
    table = verdicts()
    assert table.keys() == models().keys()
    assert {name: row["named"] for name, row in table.items()} == {
        name: verdict(facts(name, alone=False)) for name in table
    }


@pytest.mark.parametrize(
    ("tagged", "name"),
    [
        ("vit_base_patch16_224.augreg_in21k", "vit_base_patch16_224"),
        ("vit_base_patch16_224_miil_in21k", "vit_base_patch16_224_miil"),
        ("resnetv2_50x1_bitm", "resnetv2_50x1_bit"),
        ("vit_base_patch16_gap_224.x", "vit_base_patch16_gap_224"),
    ],
)
def test_a_tag_of_the_weights_is_no_other_architecture(tagged, name):
    fields = {"architecture": tagged, "pretrained_cfg": models()[name]["cfg"]}
    hints = family.Hints(files={"config.json": fields})
    kind, arrays = recognized(specs(models()[name]), hints)
    assert kind.read_spec(arrays, hints) == facts(name, alone=False)


def test_pixels_that_a_config_leaves_out_are_those_of_timm_itself():
    name = {"architecture": "vit_base_patch16_224"}
    said = {"crop_pct": None, "std": [0.4, 0.5, 0.6], "interpolation": "bilinear"}
    for fields in (name | {"pretrained_cfg": said}, name | said):  # the latter before timm 0.9
        given = timm.read_fields({"config.json": fields})
        data, assumed = timm.data(given, (224, 224), 3)
        assert (data.crop_pct, data.std, assumed) == (0.875, (0.4, 0.5, 0.6), {})
        assert (data.mean, data.resampling) == ((0.485, 0.456, 0.406), "antialiased_bilinear")
    size = {"pretrained_cfg": {"input_size": [3, 224, 224]}}
    data = timm.data(timm.read_fields({"config.json": name | size}), (224, 224), 3)[0]
    assert (data.std, data.resampling) == ((0.229, 0.224, 0.225), "antialiased_bicubic")
    assert timm.data({}, (224, 224), 3, family.IMAGENET)[0].mean == family.IMAGENET[0]
    assert timm.data({}, (224, 224), 1, family.IMAGENET)[0].mean == (0.5,)
    old = name | {"labels": ["ant"], "crop_pct": 0.9}
    assert timm.classes(timm.read_fields({"config.json": old}), 1) == ("ant",)


def test_a_name_decides_what_arrays_leave_open():
    for name, row in verdicts().items():
        if row["named"] != "built":
            continue
        found, model = facts(name, alone=False), models()[name]
        assumed = {key for key in found.assumed if not key.startswith("data.")}
        assert assumed <= {"model.heads"}, name
        if found.model.architecture == "resnet":
            continue
        assert found.model.heads == model["heads"], name
        pools = {"distilled": "token"} | {ours: its for its, ours in timm_vit.POOLING.items()}
        assert pools[found.model.pooling] == model["pool"], name
        assert found.data.image_size == tuple(model["cfg"]["input_size"][1:]), name


def test_a_name_alone_gives_the_pixels_of_its_published_weights():
    for name, row in verdicts().items():
        # Those of CLIP have been published with either mean.
        if row["named"] == "built" and not re.match("vit_large_patch14_clip_", name):
            cfg = models()[name]["cfg"]
            size, files = tuple(cfg["input_size"][1:]), {"config.json": {"architecture": name}}
            hints = family.Hints(files=files, image_size=size)
            kind, arrays = recognized(specs(models()[name]), hints)
            data = kind.read_spec(arrays, hints).data
            for found, wanted in ((data.mean, cfg["mean"]), (data.std, cfg["std"])):
                every = found if len(found) == 3 else found * 3
                np.testing.assert_allclose(every, wanted, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    ("name", "mean", "whose"),
    [
        ("vit_base_patch14_reg1_tipsv2", (0.0,), "TIPSv2"),
        ("vit_base_patch16_rope_reg1_gap_256", (0.5,), "timm"),
    ],
)
def test_pixels_follow_from_the_recognized_kind(name, mean, whose):
    hints = family.Hints(image_size=(224, 224))
    kind, arrays = recognized(specs(models()[name]), hints)
    found = kind.read_spec(arrays, hints)
    assert found.data.mean == mean
    assert found.assumed["data.mean"] == f"as of {whose}'s weights; the file does not say"


@pytest.mark.slow
def test_a_file_alone_assumes_nothing_in_silence():
    """What a name would decide otherwise is named; so is what look-alikes compute otherwise."""
    for name, row in verdicts().items():
        alone = facts(name, alone=True)
        assert verdict(alone) == row["alone"], name
        if isinstance(alone, str) or alone.model.architecture == "resnet":
            continue
        assert timm_vit.NORMS_FIRST in alone.assumed, name
        if row["named"] != "built":
            assert alone.assumed.keys() >= set(OPEN), name
            continue
        named = facts(name, alone=False)
        known = {"class_token", "layer_scale"}  # of the pooling, and an initial value
        keys = [f"model.{field.name}" for field in dataclasses.fields(config.Model)
                if field.name not in known]  # fmt: skip
        keys += [f"data.{k}" for k in ("image_size", "mean", "std", "resampling", "eval_crop")]
        for key in keys:
            # Of what is None, whoever loads the file is asked.
            same = config.get(alone, key) in (config.get(named, key), None)
            part = key.startswith("model.rotary_") and alone.model.rotary is None
            assert same or (OPEN[0] if part else key) in alone.assumed, f"{name}: {key}"


@pytest.mark.slow
def test_every_array_of_every_model_that_is_built_has_its_place():
    for name, row in verdicts().items():
        part = name.startswith("resnetv2") and name != WHOLE  # not all arrays are on record
        if row["named"] == "built" and not part:
            found = facts(name, alone=False)
            shapes = tree_utils.flatten(mapping.create_classifier(found).shapes())
            files = {"config.json": {"architecture": name}}
            hints = family.Hints(files=files, image_size=found.data.image_size)
            kind, given = recognized(specs(models()[name]), hints)
            rules = kind.rules(given, found)
            places = list(mapping.locate(shapes, rules, given, found.model))
            wanted = {place.source for place in places if place.target not in found.fresh}
            assert wanted <= given.keys(), name
            rest = given.keys() - wanted
            assert all(any(re.fullmatch(p, n) for p, _ in timm.Timm.dropped) for n in rest), name
            for place in places:
                if place.target in found.fresh:
                    continue
                assert not mapping.misfit(given[place.source], place), f"{name}: {place}"


if __name__ == "__main__":
    old = verdicts() if TABLE.exists() else {}
    print("name,named,alone,logits")
    for name in models():
        row = [verdict(facts(name, alone=alone)) for alone in (False, True)]
        texts = (f'"{text}"' if "," in text else text for text in row)
        print(name, *texts, old.get(name, {}).get("logits", ""), sep=",")
