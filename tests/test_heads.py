"""Heads that meet data: their outputs are the data's classes by name, and mean what they meant."""

import dataclasses
import json
import pathlib
import shutil
import types

import cv2
import jax
import numpy as np
import pytest

import runs
import vit_jax
from vit_jax import cli, config, weights
from vit_jax.inference import conversion, export, loading, prediction
from vit_jax.runs import teacher
from vit_jax.training import build
from vit_jax.utils import tree_utils
from vit_jax.utils.errors import AssumptionWarning

NAMES = ("cat", "dog", "emu", "fox")
ORDER = (2, 0, 3, 1)
PIXELS = (np.arange(32 * 32 * 3).reshape(32, 32, 3) * 7 % 256).astype(np.uint8)
VIT = pathlib.Path(__file__).parent / "fixtures/weights/hf_vit_tiny"


def facts(classes=NAMES, **more):
    cfg = runs.configure(
        model={
            "num_classes": len(NAMES),
            "depth": 1,
            "dropout": 0.0,
            "pooling": "token",
            "gelu": "erf",
            "width": 64,
            "heads": 1,  # as timm's files say no more
        },
        data={"channels": 3},
    )
    return weights.ModelSpec(model=cfg.model, data=cfg.data, classes=classes, **more)


def images(root, names, *, seed=0, count=6):
    """Writes a folder of noise whose classes have these names; images depend on the seed only."""
    rng = np.random.default_rng(seed)
    for name in names:
        for split in ("train", "test"):
            (root / split / name).mkdir(parents=True)
            for index in range(count):
                picture = rng.integers(0, 256, (8, 8, 3), np.uint8)
                assert cv2.imwrite(str(root / split / name / f"{index}.png"), picture)
    return {"data.source": "folder", "data.root": str(root)}


@pytest.fixture(scope="module")
def heads(tmp_path_factory):
    """One model as Hugging Face's folders: its outputs as in NAMES, and permuted with names."""
    folder = tmp_path_factory.mktemp("heads")
    told = facts()
    model = build.create_model(config.Config(model=told.model, data=told.data))
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: rng.normal(0, 0.1, leaf.shape).astype(np.float32), model.shapes()
    )
    kernel = rng.normal(size=(64, len(NAMES))).astype(np.float32)
    params["head"] = {"kernel": kernel, "bias": np.zeros(len(NAMES), np.float32)}
    weights.save(params, told, "hf", folder / "plain")
    weights.save(params, facts(()), "timm", folder / "nameless.safetensors")
    weights.save(params, told, "timm", folder / "named.safetensors")
    both = dataclasses.replace(told, loss="sigmoid")
    weights.save(params, both, "hf", folder / "sigmoid")
    params["head"] = {"kernel": kernel[:, ORDER], "bias": np.zeros(len(NAMES), np.float32)}
    weights.save(params, facts(tuple(NAMES[k] for k in ORDER)), "hf", folder / "permuted")
    return folder


@pytest.fixture(scope="module")
def where(tmp_path_factory):
    return images(tmp_path_factory.mktemp("images"), NAMES)


def by_predict(checkpoint, root, names=None):
    """The accuracy that `predict` shows on files, whose folders say what they are."""
    opened = loading.load(checkpoint)
    files = prediction.list_files([pathlib.Path(root) / "test"])
    right = [
        one.top[0][0] == (names or {}).get(label := pathlib.Path(one.image).parent.name, label)
        for one in opened.classify(prediction.read_files(files), 1)
    ]
    return sum(right) / len(right)


@pytest.mark.usefixtures("one_device")
def test_a_permuted_head_is_measured_as_what_it_is(heads, where, recwarn):
    found = vit_jax.evaluate(heads / "plain", where)
    assert found == vit_jax.evaluate(heads / "permuted", where)
    assert found["test/top1"] == by_predict(heads / "permuted", where["data.root"])
    assert 0 < found["test/top1"] < 1
    assert not [one for one in recwarn if "classes" in str(one.message)]  # nothing is assumed


@pytest.mark.usefixtures("one_device")
@pytest.mark.parametrize("head", ["plain", "permuted", "named.safetensors"])
def test_a_subset_is_measured_among_all_outputs(heads, tmp_path, head):
    some = images(tmp_path, ("dog", "fox"))
    with pytest.warns(AssumptionWarning) as told:
        found = vit_jax.evaluate(heads / head, some)
    assert found["test/count"] == 12
    assert found["test/top1"] == by_predict(heads / head, tmp_path)
    (said,) = [str(one.message) for one in told if "classes" in str(one.message)]
    assert said.startswith("data.eval_split=test: has 2 of the head's 4 classes; the other outputs")
    assert {*said.rpartition(": ")[2].split(", ")} == {"cat", "emu"}


@pytest.mark.usefixtures("one_device")
def test_names_that_differ_a_little_or_are_unknown_to_a_head(heads, where, tmp_path, capsys):
    expected = vit_jax.evaluate(heads / "plain", where)
    spelled = dict(zip(("Cat", "DOG", "emu ", "fox"), NAMES, strict=True))
    near = images(tmp_path / "near", spelled)
    options = [f"--config.{key}={value}" for key, value in near.items()]
    command = ["evaluate", f"--checkpoint={heads}/permuted", "--json"]
    assert cli.main([*command, *options]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == expected
    assert "data.eval_split=test: 'Cat' of the data is taken for 'cat' of the head, and 2 o" in err

    shutil.copytree(pathlib.Path(where["data.root"]), tmp_path / "more")
    shutil.copytree(tmp_path / "more/train/cat", tmp_path / "more/train/gnu")
    options = ["--config.data.source=folder", f"--config.data.root={tmp_path}/more"]
    assert cli.main([*command, *options]) == 2
    assert capsys.readouterr().err.endswith(
        "the head has no output for 1 of the 5 classes of the data: gnu; head: emu, cat, fox, dog; "
        "set data.classes=cat,dog,emu,fox to leave their images out\n"
    )
    assert cli.main([*command, *options, "--config.data.classes=cat,dog,emu,fox"]) == 0
    assert json.loads(capsys.readouterr().out) == expected


@pytest.mark.usefixtures("one_device")
def test_a_head_without_names(heads, where, tmp_path):
    with pytest.warns(AssumptionWarning, match="taken for the data's classes in order: 0 is cat,"):
        found = vit_jax.evaluate(heads / "nameless.safetensors", where)
    assert found == vit_jax.evaluate(heads / "plain", where)
    numbered = images(tmp_path / "numbers", ("03", "02", "01", "00"))
    with pytest.warns(AssumptionWarning, match="outputs have no names; '00' of the data is taken"):
        found = vit_jax.evaluate(heads / "nameless.safetensors", numbered)
    as_numbers = {f"0{k}": f"class {k}" for k in range(4)}
    nameless = heads / "nameless.safetensors"
    assert found["test/top1"] == by_predict(nameless, tmp_path / "numbers", as_numbers)
    with pytest.raises(config.ConfigError, match=r"head \(4, without names\): class 0"):
        vit_jax.evaluate(nameless, images(tmp_path / "few", ("cat", "dog")))


@pytest.mark.usefixtures("one_device")
def test_features_are_measured_without_the_head(heads, tmp_path):
    some = images(tmp_path, ("ant", "bee")) | {
        "evaluation.knn": "self",
        "evaluation.neighbors": "1",
    }
    with pytest.warns(AssumptionWarning) as told:
        found = vit_jax.evaluate(heads / "plain", some)
    assert {key.partition("/")[0] for key in found} == {"knn"}
    assert any(
        f"{heads}/plain: only features are measured, not the head: data.eval_split=test: no "
        "class of the data is one of the head" in str(one.message) for one in told
    )  # fmt: skip


def test_examples_are_called_as_the_head_calls_them(heads, tmp_path):
    near = images(tmp_path, ("Cat", "gnu"), count=2)
    with pytest.warns(AssumptionWarning, match="'Cat' of the data is taken for 'cat'"):
        shown = list(prediction.predict(heads / "permuted", overrides=near, examples=4))
    names = [(pathlib.Path(one.image).parent.name, one.truth) for one in shown]
    assert {*names} == {("Cat", "cat"), ("gnu", "gnu")}


def begin(reference, classes, outputs=None, **more):
    told = facts()
    cfg = config.Config(
        model=dataclasses.replace(told.model, num_classes=outputs or len(classes)), data=told.data,
        init_from=str(reference), init_head="keep", **more,
    )  # fmt: skip
    params, notes, _ = loading.initial_params(cfg, build.create_model(cfg), classes)
    return params["head"]["kernel"], notes


def test_a_kept_head_gives_rows_by_name(heads):
    kernel, _ = begin(heads / "plain", NAMES)
    again, notes = begin(heads / "permuted", NAMES)
    np.testing.assert_array_equal(again, kernel)
    assert notes[-1] == "head: 4 of its 4 classes, by name, in another order"
    some, notes = begin(heads / "permuted", ("fox", "cat"))
    np.testing.assert_array_equal(some, kernel[:, [3, 0]])
    assert notes[-1] == "head: 2 of its 4 classes, by name"
    with pytest.raises(config.ConfigError, match="set model.num_classes=2, as many as the data h"):
        begin(heads / "plain", ("cat", "fox"), outputs=4)
    _, notes = begin(heads / "sigmoid", NAMES)
    assert notes[-1] == "head: was trained with loss.name=sigmoid, continues with softmax"
    with pytest.raises(config.ConfigError, match=r"^init_head=keep: .* set init_head=new$"):
        begin(heads / "plain", ("cat", "gnu"))
    with pytest.raises(
        config.ConfigError, match=r"^init_head=keep: no class of the data is one of"
    ):
        begin(heads / "plain", ("ant", "bee", "cow", "doe"))


def test_masked_patches_have_no_head_to_keep(heads, monkeypatch):
    opened = loading.load(heads / "plain")
    cfg = dataclasses.replace(opened.config, objective=config.MaskedPatches())
    monkeypatch.setattr(loading, "load", lambda *_, **__: dataclasses.replace(opened, config=cfg))
    said = r"^init_head=keep: x learned by objective.name=masked_patches, .*; set init_head=new$"
    with pytest.raises(config.ConfigError, match=said):
        begin("x", NAMES)


def test_a_teacher_teaches_by_name(heads):
    def kernel(reference, classes, target="logits"):
        told = facts()
        cfg = config.Config(
            model=dataclasses.replace(told.model, num_classes=len(classes)), data=told.data,
            objective=config.Distillation(teacher=str(reference), target=target),
        )  # fmt: skip
        found = teacher.load_teacher(cfg, classes)
        return found.params["head"]["kernel"], found

    plain, first = kernel(heads / "plain", NAMES)
    again, second = kernel(heads / "permuted", NAMES)
    np.testing.assert_array_equal(again, plain)
    assert second.digest == first.digest
    with pytest.warns(AssumptionWarning, match="teaches 2 of its 4 classes, those of the data"):
        some, third = kernel(heads / "permuted", ("fox", "cat"))
    np.testing.assert_array_equal(some, plain[:, [3, 0]])
    assert third.digest != first.digest
    with pytest.warns(AssumptionWarning, match="loss.name=sigmoid; its logits are used with soft"):
        kernel(heads / "sigmoid", NAMES)
    foreign = ("ant", "bee", "cow", "doe")
    with pytest.raises(
        config.ConfigError, match=r"^objective\.teacher=.*: no class of the data is"
    ):
        kernel(heads / "plain", foreign)
    whole, _ = kernel(heads / "permuted", foreign, target="features")
    assert whole.shape == (64, 4)
    numbers = types.SimpleNamespace(
        require_head=lambda: None, config=config.Config(loss=config.Regression(name="mse"))
    )
    with pytest.raises(config.ConfigError, match=r"teacher=x: predicts numbers, .* not logits of"):
        teacher._match_classes(numbers, "x", NAMES)


def test_a_teacher_is_not_calibrated_and_that_is_said():
    opened = types.SimpleNamespace(
        require_head=lambda: None, with_classes=lambda *given, **named: opened, classes=NAMES,
        config=config.Config(), temperature=1.25,
    )  # fmt: skip
    line = "teacher=x: its fitted temperature, 1.250, is left out: objective.temperature alone"
    with pytest.warns(AssumptionWarning, match=line):
        assert teacher._match_classes(opened, "x", NAMES) is opened


# What outputs mean. Expected: the image-classification pipeline of transformers 5.24.

SOFTMAX = [0.2003807, 0.1091305, 0.2412342, 0.1264692, 0.1476872, 0.1750982]
SIGMOID = [0.5615857, 0.4109416, 0.6066254, 0.4470443, 0.4856234, 0.5281522]


def variant(folder, rows=6, **fields):
    """Copies the stored ViT with other fields of config.json, and `rows` of its classes."""
    from safetensors import numpy as safetensors

    arrays = safetensors.load_file(VIT / "model.safetensors")
    arrays |= {name: arrays[name][:rows] for name in ("classifier.weight", "classifier.bias")}
    safetensors.save_file(arrays, folder / "model.safetensors")
    given = json.loads((VIT / "config.json").read_text())
    given |= {"id2label": {str(k): f"LABEL_{k}" for k in range(rows)}}
    (folder / "config.json").write_text(json.dumps(given | fields))
    return folder


def chances(reference, overrides=None):
    opened = loading.load(reference, overrides)
    (one,) = opened.predict(PIXELS, top=9)
    return opened, [dict(one.top)[name] for name in opened.classes]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, SOFTMAX),
        ({"problem_type": "single_label_classification"}, SOFTMAX),
        ({"problem_type": "multi_label_classification"}, SIGMOID),
    ],
)
def test_probabilities_are_those_of_transformers(tmp_path, fields, expected):
    opened, found = chances(variant(tmp_path, **fields))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    assert opened.config.loss.name == ("sigmoid" if expected is SIGMOID else "softmax")


def test_one_output_is_no_certainty(tmp_path):
    with pytest.warns(
        AssumptionWarning, match="assumed sigmoid for softmax: the head has one outp"
    ):
        _, found = chances(variant(tmp_path, rows=1))
    np.testing.assert_allclose(found, SIGMOID[:1], rtol=0, atol=1e-6)
    variant(tmp_path, rows=1, problem_type="regressio")
    with pytest.raises(weights.WeightsError, match="problem_type='regressio': is unknown; single"):
        loading.load(tmp_path)


def test_one_output_of_a_regression_is_a_number(tmp_path):
    opened = loading.load(variant(tmp_path, rows=1, problem_type="regression"))
    assert opened.config.loss.name == "mse"
    (one,) = opened.predict(PIXELS)
    expected = np.log(SIGMOID[0]) - np.log1p(-SIGMOID[0])
    assert one.top == ()
    assert dict(one.numbers) == pytest.approx({"class 0": expected}, abs=1e-6)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("hf", "hf"),
        ("timm", "timm"),
        ("timm", "x.safetensors"),
        pytest.param("orbax", "own", marks=pytest.mark.slow),
    ],
)
def test_what_a_head_means_travels(heads, tmp_path, kind, name):
    there, back = tmp_path / name, tmp_path / "back"
    conversion.convert(heads / "sigmoid", kind, there)
    conversion.convert(there, "hf", back)
    for reference in (there, back):
        opened = loading.load(reference)
        assert opened.config.loss.name == "sigmoid"
        assert opened.classes == NAMES
    assert json.loads((back / "config.json").read_text())["problem_type"] == (
        "multi_label_classification"
    )


def test_a_file_of_google_tells_its_head_in_a_comment(heads, tmp_path):
    path = tmp_path / "x.npz"
    lines = conversion.convert(heads / "sigmoid", "google", path, {"model.gelu": "tanh"})
    assert not [line for line in lines if "loss" in line or "classes" in line]
    with pytest.warns(AssumptionWarning) as told:
        opened = loading.load(path)
    assert (opened.config.loss.name, opened.classes) == ("sigmoid", NAMES)
    assert "softmax" not in str(told[0].message)
    with np.load(path) as file:  # any other reader sees its arrays and nothing else
        assert all(array.dtype == np.float32 for array in file.values())
    data = path.read_bytes()
    for at in range(data.index(b"vit_jax") - 2, len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        with pytest.raises(weights.WeightsError):
            weights.read_spec(path)


def test_names_beyond_the_room_of_a_comment_are_told(heads, tmp_path):
    opened = loading.load(heads / "sigmoid", {"model.gelu": "tanh"})
    names = tuple(f"{'name' * 5000}{i}" for i in range(4))
    spec = dataclasses.replace(opened.spec, classes=names)
    lines = weights.save(opened.params, spec, "google", tmp_path / "x.npz")
    assert "the names of the classes are not stored in this format" in lines
    assert weights.read_spec(tmp_path / "x.npz").loss == "sigmoid"


def test_damaged_words_about_a_head(heads, tmp_path):
    from safetensors import numpy as safetensors

    arrays = safetensors.load_file(heads / "named.safetensors")
    for text, reason in (
        ("{", "vit_jax.head: must be a JSON object"),
        ("[" * 100_000, "vit_jax.head: must be a JSON object"),
        ('{"label_names": ["a"]}', "label_names: names 1 classes; the head has 4"),
        ('{"label_names": [1, 2, 3, 4]}', "label_names: must be a list of names"),
    ):
        safetensors.save_file(arrays, tmp_path / "x.safetensors", {"vit_jax.head": text})
        with pytest.raises(weights.WeightsError, match=reason):
            loading.load(tmp_path / "x.safetensors")


def test_a_file_beside_another_config_keeps_its_names(heads, tmp_path):
    """It is read with that config.json, which names other classes and makes other views."""
    options = {"data.eval_crop": "central", "data.resize_to": "16"}
    there = tmp_path / "there"
    conversion.convert(heads / "plain", "timm", there, options)
    fields = json.loads((there / "config.json").read_text())
    fields["problem_type"] = "regression"
    (there / "config.json").write_text(json.dumps(fields))
    opened = loading.load(heads / "sigmoid")
    spec = dataclasses.replace(opened.spec, classes=NAMES[::-1])
    lines = weights.save(opened.params, spec, "timm", there / "x.safetensors")
    assert "data.eval_crop=resize: reads back as central" in lines
    again = loading.load(there / "x.safetensors")
    assert (again.classes, again.config.loss.name) == (NAMES[::-1], "sigmoid")


def test_a_program_says_what_its_outputs_mean(heads):
    opened, form = (
        loading.load(heads / "sigmoid"),
        export.ExportOptions(batch=1, platforms=("cpu",)),
    )
    about = export.describe_program(opened, form, export.trace(opened, form))
    assert about["outputs"]["probabilities"]["meaning"] == "sigmoid of the logits"
    assert about["classes"] == NAMES


def test_outputs_of_a_loaded_model(heads):
    opened = loading.load(heads / "plain")
    some = opened.with_outputs([3, 1])
    assert (some.classes, some.model.config.num_classes) == (("fox", "dog"), 2)
    flat, before = tree_utils.flatten(some.params), tree_utils.flatten(opened.params)
    np.testing.assert_array_equal(flat["head/kernel"], before["head/kernel"][:, [3, 1]])
    assert opened.with_outputs(range(4)) is opened
