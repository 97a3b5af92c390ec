"""Options from values and texts: what is accepted, what is refused, and what a config records."""

import dataclasses
import json
import pathlib
import pickle

import ml_collections
import numpy as np
import pytest

from commands import error_line
from vit_jax import cli, config
from vit_jax.config.other_names import OTHER_NAMES
from vit_jax.training import run_config

DURATION = "must be a number of steps, epochs or examples, such as '10 epochs'"
BAD = {  # argument after `vit_jax train digits`, and the line; nothing reads data or compiles
    "optimizer.lrr=1": "optimizer.lrr: unknown key; did you mean optimizer.lr?",
    "lr=1": "lr: unknown key; did you mean optimizer.lr?",
    "optimiser.lr=1": "optimiser.lr: unknown key; did you mean optimizer.lr?",
    "depth=3": "depth: unknown key; did you mean model.depth?",  # not data.depth
    "epochs=3": "epochs: unknown key; did you mean train.duration='3 epochs'?",
    "train.max_steps=3": "train.max_steps: unknown key; did you mean train.duration?",
    "model.name=x": "model.name: unknown key; did you mean model.variant?",  # not loss.name
    "data.foo=1": "data.foo: unknown key; `vit_jax show NAME --all` lists the options",
    "seed.x=1": "seed={'x': '1'}: must be a whole number",
    "optimizer=adam": "optimizer=adam: is a section; set one of its options, such as "
    "optimizer.name",
    "optimizer.lr": "--config.optimizer.lr: needs a value, as in --config.optimizer.lr=VALUE",
    "optimizer.lr=fast": "optimizer.lr=fast: must be a number",
    "optimizer.lr=none": "optimizer.lr=none: must be a number",
    "optimizer.lr=0": "optimizer.lr=0: must be more than 0",
    "optimizer.lr=nan": "optimizer.lr=nan: must be finite",
    "optimizer.lr=inf": "optimizer.lr=inf: must be finite",
    "optimizer.b2=1": "optimizer.b2=1: must be less than 1",
    "optimizer.weight_decay=-1": "optimizer.weight_decay=-1: must be at least 0",
    "train.mixup=1e7": "train.mixup=1e+07: must be at most 1e+06",
    "data.channels=65": "data.channels=65: must be at most 64",
    "train.batch_size=12.5": "train.batch_size=12.5: must be a whole number",
    "train.batch_size=1000000000000001": "train.batch_size=1000000000000001: must be at most 1e+15,"
    " whatever it counts",
    "train.duration=1e16": "train.duration=10000000000000000 steps: must be at most 1e+15, whatever"
    " it counts",
    "train.duration=3 fortnights": f"train.duration=3 fortnights: {DURATION}",
    "train.duration=nan epochs": f"train.duration=nan epochs: {DURATION}",
    "checkpoint.every=soon": f"checkpoint.every=soon: {DURATION}, or none",
    "model.gelu=relu": "model.gelu=relu: no such choice; known: tanh, erf, quick",
    "model.biasless=key,heads": "model.biasless=heads: no such choice; did you mean head?",
    "data.image_size=8x8x8": "data.image_size=8x8x8: must be two whole numbers (or one for both)",
    "data.image_size=100000": "data.image_size=100000,100000: must be at most 10000",
    "model.width=1000000000000": "model.width=1000000000000: must be at most 1000000",
    "train.batch_size=10000001": "train.batch_size=10000001: must be at most 10000000",
    "data.phases.small.image_size=16,10001": "data.phases.small.image_size=16,10001: must be at "
    "most 10000",
    "data.crop_area=0.5": "data.crop_area=0.5: must be two numbers",
    "data.randaugment=2,y": "data.randaugment=2,y: must be whole numbers, such as 3,4,6,3, or none",
    "data.flip=maybe": "data.flip=maybe: must be true or false",
    "optimizer.freeze=a b": "optimizer.freeze=a b: must be a path of parameters, such as head, "
    "*/bias or encoder[:8]/mlp",
}


@pytest.mark.parametrize("argument", BAD)
def test_a_bad_value_is_one_line_and_exit_2(argument, tmp_path, capsys):
    workdir = tmp_path / "run"
    assert cli.main(["train", "digits", f"--workdir={workdir}", f"--config.{argument}"]) == 2
    assert capsys.readouterr().err == f"vit_jax: {BAD[argument]}\n"
    assert not workdir.exists()


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"train": {"batch_size": True}}, "train.batch_size=True: must be a whole number"),
        ({"train": {"batch_size": 8.0}}, "train.batch_size=8: must be a whole number"),
        ({"optimizer": {"lr": "1e-3"}}, "optimizer.lr=1e-3: must be a number"),
        ({"optimizer": {"lr": 10**400}}, f"optimizer.lr={10**400}"[:60]),
        ({"data": {"flip": 1}}, "data.flip=1: must be true or false"),
        ({"seed": None}, "seed=none: must be a whole number"),
        ({"model": 3}, "model=3: is a section; set one of its options, such as model.variant"),
        ({"model": {"patch_size": (2, 2, 2)}}, "model.patch_size=2,2,2: must be two whole numbers"),
        (
            {"data": {"image_sise": 8}},
            "data.image_sise: unknown key; did you mean data.image_size?",
        ),
        ({"optimizer": {"momentum": 0.3}}, "optimizer.momentum=0.3: adam does not take it"),
        ({"optimizer": {"name": 3}}, "optimizer.name=3: must be text"),
        ({"init_from": "a\0"}, r"init_from='a\x00': has a null character"),
        ({"init_from": ""}, "init_from=: is empty; give it a value, or leave it out"),
        ({"logging": {"loggers": [{"name": "wandb", "a": 2}]}}, "logging.loggers.wandb.a=2: wandb"),
        ({"logging": {"loggers": [{"project": 2}]}}, "logging.loggers={'project': 2}: must be a n"),
        ({"logging": {"loggers": 3}}, "logging.loggers=3: must be a list of names"),
    ],
)
def test_values_of_a_file_have_their_type(values, line):
    with pytest.raises(config.ConfigError) as caught:
        config.build(ml_collections.ConfigDict(values))
    assert str(caught.value).startswith(line)


def build(texts):
    return config.build(config.override({}, texts))


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("model.patch_size", "2x4", (2, 4)),
        ("data.image_size", "32", (32, 32)),
        ("data.crop_area", "(0.1, 0.9)", (0.1, 0.9)),
        ("data.randaugment", "[2,15]", (2, 15)),
        ("train.clip_norm", "None", None),
        ("data.flip", "False", False),
        ("data.max_pixels", "1000000000000000", 10**15),
        ("train.ema", "0.9999", 0.9999),
        ("checkpoint.every", "1 epochs", config.Duration(1.0, "epochs")),
        ("data.examples", "/a b/c", "/a b/c"),
        ("optimizer.freeze", "encoder[:8],*/bias", ("encoder[:8]", "*/bias")),
        ("optimizer.freeze", "[encoder[:8]]", ("encoder[:8]",)),
        ("evaluation.tasks", "imagenet-v2, next", ("imagenet-v2", "next")),
        ("evaluation.tasks", "()", ()),
    ],
)
def test_texts_are_parsed_by_the_type_of_their_option(key, text, value):
    assert config.get(build({key: text}), key) == value


def test_a_value_and_its_text_are_equal():
    typed = {"optimizer.lr": 3e-4, "model.patch_size": (4, 4), "evaluation.every": None}
    typed |= {"data.fill": 0, "data.mean": 0.5}
    texts = {key: config.show(value) for key, value in typed.items()}
    assert build(typed) == build(texts)


@pytest.mark.parametrize(
    ("key", "value", "plain"),
    [
        ("train.batch_size", np.int64(8), 8),
        ("optimizer.lr", np.float32(0.5), 0.5),
        ("data.flip", np.bool_(True), True),
        ("data.image_size", np.array([8, 16]), (8, 16)),
        ("data.image_size", (np.int32(8), np.int32(16)), (8, 16)),
        ("data.crop_area", np.array([0.25, 1.0]), (0.25, 1.0)),
        ("data.examples", pathlib.Path("a b/c,d"), "a b/c,d"),
    ],
)
def test_values_of_numpy_and_paths_are_plain(key, value, plain):
    kept = config.get(build({key: value}), key)
    assert kept == plain
    assert type(kept) is type(plain)


def test_a_section_is_not_replaced_whole():
    for given in ({"lr": 3e-4}, ml_collections.ConfigDict({"lr": 3e-4})):
        with pytest.raises(config.ConfigError) as caught:
            config.override({"optimizer": {"weight_decay": 0.1}}, {"optimizer": given})
        assert str(caught.value) == (
            "optimizer: is a section; set its options one by one: optimizer.lr"
        )


@pytest.mark.parametrize(
    ("text", "batch", "examples", "steps"),
    [
        ("500", 8, 100, 500),
        ("1 step", 8, 100, 1),
        ("2 epochs", 8, 100, 25),
        ("1.5 epochs", 8, 100, 19),
        ("1e3 examples", 8, 100, 125),
        ("7 epochs", 4096, 303_000_000, 517_823),
        ("0.1 epochs", 10, 100, 1),
        ("1.1 epochs", 10, 100, 11),  # 11 steps and 2e-15
    ],
)
def test_a_duration_is_rounded_up_to_whole_steps(text, batch, examples, steps):
    duration = config.Duration.parse(text)
    assert duration.steps(batch, examples) == steps
    assert config.Duration.parse(str(duration)) == duration


def test_the_text_of_a_duration_loses_no_digit():
    third = config.Duration(1 / 3, "epochs")
    assert config.Duration.parse(str(third)) == config.Duration.parse(third) == third


def test_the_fingerprint_moves_exactly_with_what_decides_the_result():
    base = config.build({})
    other_value = {
        bool: lambda v: not v,
        int: lambda v: v + 1,
        float: lambda v: v / 2 + 0.01,
        tuple: lambda v: (v[0] / 2, *v[1:]) if v else ("x",),
        str: lambda v: v + "x",
        type(None): lambda v: "1",
        config.Duration: lambda v: config.Duration(v.amount + 1, v.unit),
    }
    for key, field, _ in config.fields():
        if field.metadata["kind"]:
            continue  # names of components: below
        section, _, leaf = key.rpartition(".")
        part = getattr(base, section) if section else base
        value = config.get(base, key)
        new = dataclasses.replace(part, **{leaf: other_value[type(value)](value)})
        other = dataclasses.replace(base, **{section: new}) if section else new
        differs = bool(config.differences(base, other))
        assert differs != field.metadata["free"], key
        assert (config.fingerprint(base) != config.fingerprint(other)) == differs, key


def test_differences_are_listed_as_the_command_line_takes_them():
    phases = {"data.phases.small.until": "2 epochs", "data.phases.small.image_size": "16x16"}
    old, new = (run_config.resolve("digits", one) for one in ({}, phases | {"seed": "2"}))
    assert config.listed(config.differences(old, new)) == (
        "seed: 0 -> 2, data.phases: () -> small until=2 epochs image_size=16,16"
    )


def test_names_of_other_projects_are_of_options_that_exist():
    assert OTHER_NAMES.keys() <= {key for key, _, _ in config.declared()}


def test_a_section_has_the_arguments_of_its_component():
    cfg = build({"optimizer.b1": "0.8", "optimizer.name": "lion"})  # in any order
    assert (cfg.optimizer.b1, cfg.optimizer.b2) == (0.8, 0.99)
    assert config.build(json.loads(json.dumps(config.to_dict(cfg)))) == cfg
    assert pickle.loads(pickle.dumps(cfg)) == cfg
    assert config.changed(cfg) == {"optimizer.name": "lion", "optimizer.b1": 0.8}
    assert config.Adam(b1=0.5) == config.Optimizer(name="adam", b1=0.5)


def test_another_component_drops_the_arguments_of_the_one_before():
    stored = config.to_dict(build({"optimizer.b2": "0.5", "optimizer.lr": "3"}))
    cfg = config.build(config.override(stored, {"optimizer.name": "lion"}))
    assert (cfg.optimizer.lr, cfg.optimizer.b2) == (3, 0.99)
    same = config.build(config.override(stored, {"optimizer.name": "adam"}))
    assert same.optimizer.b2 == 0.5
    replaced = dataclasses.replace(same.optimizer, name="sgd")
    assert replaced == config.Optimizer(name="sgd", lr=3.0)


WANDB = {"logging.loggers": "jsonl,wandb", "logging.loggers.wandb.project": "x"}


def test_a_list_has_sections_by_name():
    cfg = build(WANDB)
    assert cfg == build({"logging.loggers": "jsonl", "logging.loggers.wandb.project": "x"})
    for loggers in (
        ["jsonl", {"name": "wandb", "project": "x"}],
        {"jsonl": {}, "wandb": {"project": "x"}},
    ):
        assert config.build({"logging": {"loggers": loggers}}) == cfg
    stored = config.to_dict(cfg)
    assert config.build(stored) == cfg
    other = config.build(config.override(stored, {"logging.loggers.wandb.project": "y"}))
    assert [config.show(one) for one in other.logging.loggers] == ["jsonl", "wandb project=y"]
    assert config.build(config.override(stored, {"logging.loggers": "()"})) == config.Config()
    twice = {"logging": {"loggers": ["wandb", "wandb"]}}
    with pytest.raises(config.ConfigError, match="loggers: wandb is there twice; set it in a con"):
        config.override(twice, {"logging.loggers.wandb.project": "y"})


@pytest.mark.parametrize(
    ("values", "key", "line"),
    [
        ({"model": 3}, "model.width", "model.width: model=3 has no options"),
        ({"seed": 7}, "seed.x", "seed.x: seed=7 has no options"),
    ],
)
def test_an_override_replaces_no_value_by_a_section(values, key, line):
    with pytest.raises(config.ConfigError, match=f"^{line}$"):
        config.override(values, {key: "1"})


@pytest.mark.parametrize(
    ("texts", "line"),
    [
        (
            {"optimizer.momentum": "0.8"},
            "optimizer.momentum=0.8: adam does not take it; it takes b1, b2, eps, moment_dtype; "
            "optimizer.name=sgd takes momentum",
        ),
        (
            {"data.source": "folder", "data.root": "x", "data.targets": "age"},
            "data.targets=age: folder does not take it; it takes root, cache, cache_size, exclude, "
            "holdout; data.source=csv takes targets",
        ),
        (
            {"optimizer.name": "sgd", "optimizer.momntum": "0.8"},
            "optimizer.momntum=0.8: sgd does not take it; did you mean optimizer.momentum?",
        ),
        (
            {"optimizer.name": "lion", "optimizer.eps": "0.1"},
            "optimizer.eps=0.1: lion does not take it; it takes b1, b2, mu_dtype",
        ),
        ({"optimizer.name": "lyon"}, "optimizer.name=lyon: no such optimizer; did you mean lion?"),
        ({"optimizer.name": "none"}, "optimizer.name=none: no such optimizer"),
        ({"optimizer.name": "lion(b1=0.9)"}, "optimizer.name=lion(b1=0.9): no such optimizer"),
        (
            {"data.root": "x"},
            "data.root=x: digits does not take it; set data.source=folder, or csv, tar, parquet, ",
        ),
        ({"data.source": "folder", "data.holdout": "1"}, "data.holdout=1: must be less than 1"),
        (
            {"loss.name": "hinge"},
            "loss.name=hinge: no such loss; known: softmax, sigmoid, emd, focal, "
            "logit_adjusted, mse, l1, huber; --plug",
        ),
        (
            {"logging.loggers.wandb.projct": "x"},
            "logging.loggers.wandb.projct=x: wandb does not take it; did you mean "
            "logging.loggers.wandb.project?",
        ),
        (
            {"logging.loggers.jsonl.project": "x"},
            "logging.loggers.jsonl.project=x: jsonl does not take it; wandb would",
        ),
        (
            {"logging.loggers.wandbb.project": "x"},
            "logging.loggers=wandbb: no such logger; did you mean wandb?",
        ),
        (
            {"logging.loggers.wandb": "x"},
            "logging.loggers.wandb=x: write logging.loggers=wandb, or set one of its options",
        ),
        (
            {"logging.loggers.mlflow.zzz": "x"},
            "logging.loggers.mlflow.zzz=x: mlflow does not take it; it takes experiment, uri",
        ),
        (
            {"data.source": "folder", "data.val_split": "0.1"},
            "data.val_split: unknown key; did you mean data.holdout?",
        ),
        (  # not data.cache_size
            {"data.source": "folder", "data.batch_size": "8"},
            "data.batch_size: unknown key; did you mean train.batch_size?",
        ),
        ({"logging.loggers.wandb.mode": "of"}, "logging.loggers.wandb.mode=of: no such choice"),
        (
            {"optimizer.groups.head.lrr": "2"},
            "optimizer.groups.head.lrr: unknown key; did you mean optimizer.groups.head.lr?",
        ),
        (  # not masked.rate
            {"optimizer.groups.head.rate": "2"},
            "optimizer.groups.head.rate: unknown key; did you mean optimizer.groups.head.",
        ),
        ({"optimizer.groups.head.lr": "-1"}, "optimizer.groups.head.lr=-1: must be at least 0"),
        ({"optimizer.groups.a b.lr": "1"}, "optimizer.groups.a b.pattern=a b: must be a path of p"),
    ],
)
def test_what_a_component_does_not_take_is_one_line(texts, line):
    assert error_line(config.ConfigError, build, texts).startswith(line)
