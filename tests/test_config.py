"""The schema: what it accepts, what it refuses and in which words."""

import dataclasses
import json
import math

import ml_collections
import pytest

from vit_jax import cli, config
from vit_jax.config import catalog, checks
from vit_jax.training import run_config

D = "digits"

A_DURATION = "must be a number of steps, epochs or examples, such as '10 epochs'"

# (arguments after `vit_jax train digits`, the exact line). Nothing here reads data or compiles.
BAD = [
    ("--config.optimizer.lrr=1", "optimizer.lrr: unknown key; did you mean optimizer.lr?"),
    ("--config.lr=1", "lr: unknown key; did you mean optimizer.lr?"),
    ("--config.optimiser.lr=1", "optimiser.lr: unknown key; did you mean optimizer.lr?"),
    ("--config.train.batchsize=8", "train.batchsize: unknown key; did you mean train.batch_size?"),
    ("--config.model.dropuot=0.1", "model.dropuot: unknown key; did you mean model.dropout?"),
    (
        "--config.optimizer=adam",
        "optimizer=adam: is a section; set one of its options, such as optimizer.name",
    ),
    (
        "--config.optimizer.lr",
        "--config.optimizer.lr: needs a value, as in --config.optimizer.lr=VALUE",
    ),
    ("--config.optimizer.lr=fast", "optimizer.lr=fast: must be a number"),
    ("--config.optimizer.lr=0", "optimizer.lr=0: must be more than 0"),
    ("--config.optimizer.lr=-0.1", "optimizer.lr=-0.1: must be more than 0"),
    ("--config.optimizer.lr=nan", "optimizer.lr=nan: must be finite"),
    ("--config.optimizer.lr=inf", "optimizer.lr=inf: must be finite"),
    ("--config.optimizer.lr=none", "optimizer.lr=none: must be a number"),
    ("--config.optimizer.b2=1", "optimizer.b2=1: must be less than 1"),
    ("--config.optimizer.eps=0", "optimizer.eps=0: must be more than 0"),
    ("--config.optimizer.weight_decay=-1", "optimizer.weight_decay=-1: must be at least 0"),
    (
        "--config.optimizer.name=adamw",
        "optimizer.name=adamw: no such optimizer; did you mean adam?",
    ),
    (
        "--config.optimizer.moment_dtype=half",
        "optimizer.moment_dtype=half: no such choice; known: float32, bfloat16",
    ),
    (
        "--config.schedule.name=cosin",
        "schedule.name=cosin: no such schedule; did you mean cosine?",
    ),
    ("--config.schedule.end=1", "schedule.end=1: exceeds optimizer.lr 0.001"),
    ("--config.schedule.warmup=-5", "schedule.warmup=-5 steps: must not be negative"),
    ("--config.train.batch_size=0", "train.batch_size=0: must be at least 1"),
    ("--config.train.batch_size=-8", "train.batch_size=-8: must be at least 1"),
    ("--config.train.batch_size=12.5", "train.batch_size=12.5: must be a whole number"),
    ("--config.train.batch_size=many", "train.batch_size=many: must be a whole number"),
    (
        "--config.train.accumulation=3",
        "train.batch_size=64: not a multiple of train.accumulation 3; nearest: 63, "
        "or set train.microbatch=16",
    ),
    ("--config.train.duration=0", "train.duration=0 steps: must be more than 0"),
    (
        "--config.train.duration='long'",
        "train.duration='long': must be a number of steps, epochs or examples, such as '10 epochs'",
    ),
    (
        "--config.train.duration=3 fortnights",
        "train.duration=3 fortnights: " + A_DURATION,
    ),
    (
        "--config.train.duration=nan epochs",
        "train.duration=nan epochs: " + A_DURATION,
    ),
    (
        "--config.loss.name=hinge",
        "loss.name=hinge: no such loss; known: softmax, sigmoid; --plugins=MODULE adds those of a "
        "plug-in",
    ),
    ("--config.train.label_smoothing=1", "train.label_smoothing=1: must be less than 1"),
    ("--config.train.mixup=-0.1", "train.mixup=-0.1: must be at least 0"),
    ("--config.train.clip_norm=0", "train.clip_norm=0: must be more than 0"),
    ("--config.train.ema=1.0", "train.ema=1: must be less than 1"),
    ("--config.model.depth=0", "model.depth=0: must be at least 1"),
    ("--config.model.heads=5", "model.heads=5: does not divide model.width 64; nearest: 4"),
    ("--config.model.width=66", "model.heads=4: does not divide model.width 66; nearest: 3"),
    (
        "--config.model.patch_size=3",
        "data.image_size=8,8: height 8 is not a multiple of model.patch_size 3; nearest: 9",
    ),
    ("--config.model.patch_size=0", "model.patch_size=0,0: must be at least 1"),
    ("--config.model.unroll=5", "model.unroll=5: more than model.depth 4"),
    (
        "--config.model.pooling=avg",
        "model.pooling=avg: no such choice; known: token, first, gap, max, gap_max, map, "
        "token_gap, distilled",
    ),
    ("--config.model.gelu=relu", "model.gelu=relu: no such choice; known: tanh, erf, quick"),
    (
        "--config.model.biasless=key,heads",
        "model.biasless=heads: no such choice; did you mean head?",
    ),
    (
        "--config.model.remat=al",
        "model.remat=al: no such choice; known: none, attention, full, dots, dots_no_batch",
    ),
    ("--config.model.norm_epsilon=0", "model.norm_epsilon=0: must be more than 0"),
    ("--config.model.dropout=1", "model.dropout=1: must be less than 1"),
    ("--config.model.head_bias=-inf", "model.head_bias=-inf: must be finite"),
    (
        "--config.model.depth=none",
        "model.depth=none: not known; set it, or name a size with model.variant=ViT-B/16",
    ),
    (
        "--config.data.image_size=8x8x8",
        "data.image_size=8x8x8: must be two whole numbers (or one for both)",
    ),
    (
        "--config.data.image_size=9",
        "data.image_size=9,9: height 9 is not a multiple of model.patch_size 2; nearest: 8",
    ),
    (
        "--config.data.channels=2",
        "data.channels=2: digits are gray; set 1, or 3 for three equal channels",
    ),
    ("--config.data.channels=65", "data.channels=65: must be at most 64"),
    ("--config.data.flip=maybe", "data.flip=maybe: must be true or false"),
    ("--config.data.source=folders", "data.source=folders: no such source; did you mean folder?"),
    ("--config.data.source=folder", "data.root=none: set it to the folder of images"),
    (
        "--config.data.source=tfds",
        "data.name=none: tfds needs a dataset; set data.name=cifar10, say",
    ),
    ("--config.data.crop_area=0.5,2", "data.crop_area=0.5,2: must be at most 1"),
    (
        "--config.data.randaugment=2",
        "data.randaugment=2: needs two numbers, operations and magnitude, such as 2,10",
    ),
    (
        "--config.data.randaugment=2,10,0.5",
        "data.randaugment=2,10,0.5: must be whole numbers, such as 3,4,6,3, or none",
    ),
    (
        "--config.data.randaugment=0,10",
        "data.randaugment=0,10: needs at least 1 operation per image; none turns it off",
    ),
    ("--config.data.randaugment=2,31", "data.randaugment=2,31: magnitude 31 is more than 30"),
    ("--config.data.randaugment=2,-1", "data.randaugment=2,-1: must be at least 0"),
    ("--config.data.rotation=270", "data.rotation=270: must be at most 180"),
    ("--config.data.workers=-1", "data.workers=-1: must be at least 0"),
    ("--config.checkpoint.every=0", "checkpoint.every=0 steps: must be more than 0, or none"),
    ("--config.checkpoint.keep=0", "checkpoint.keep=0: must be at least 1"),
    ("--config.seed=-1", "seed=-1: must be at least 0"),
    ("--config.seed=4294967296", "seed=4294967296: must be less than 4294967296"),
    (
        "--config=configs/digits.py",
        "--config=configs/digits.py: digits is given already; keep one of them",
    ),
]


@pytest.mark.parametrize(("argument", "line"), BAD, ids=[argument for argument, _ in BAD])
def test_bad_value_is_one_line_and_exit_2(argument, line, tmp_path, capsys):
    workdir = tmp_path / "run"
    assert cli.main(["train", D, f"--workdir={workdir}", argument]) == 2
    assert capsys.readouterr().err == f"vit_jax: {line}\n"
    assert not workdir.exists()


def test_the_bounds_of_a_crop_are_in_order():
    given = {"data.train_crop": "inception", "data.crop_area": "0.5,0.1"}
    with pytest.raises(config.ConfigError) as caught:
        run_config.resolve(D, given)
    assert str(caught.value) == "data.crop_area=0.5,0.1: the first must not exceed the second"


def test_config_file_values_are_checked_like_overrides():
    cases = [
        ({"train": {"batch_size": True}}, "train.batch_size=True: must be a whole number"),
        ({"train": {"batch_size": 8.0}}, "train.batch_size=8: must be a whole number"),
        (
            {"model": {"patch_size": (2, 2, 2)}},
            "model.patch_size=2,2,2: must be two whole numbers (or one for both), or none",
        ),
        ({"model": 3}, "model=3: is a section; set one of its options, such as model.variant"),
        ({"optimizer": {"lr": "1e-3"}}, "optimizer.lr=1e-3: must be a number"),
        ({"optimizer": {"lr": 10**400}}, None),
        ({"data": {"flip": 1}}, "data.flip=1: must be true or false"),
        ({"seed": None}, "seed=none: must be a whole number"),
    ]
    for values, line in cases:
        with pytest.raises(config.ConfigError) as caught:
            config.build(values)
        if line is not None:
            assert str(caught.value) == line


def test_config_dict_with_unknown_key():
    values = ml_collections.ConfigDict({"data": {"image_sise": 8}})
    with pytest.raises(config.ConfigError, match="did you mean data.image_size"):
        config.build(values)


@pytest.mark.parametrize(
    ("batch", "accumulation", "line"),
    [
        (9, 1, "train.batch_size=9: train.mixup needs pairs, a multiple of 2; nearest: 8"),
        (
            12,
            4,
            "train.batch_size=12: train.mixup needs pairs, a multiple of 8; nearest: 16, or "
            "set train.microbatch=2",
        ),
        (12, 2, None),
    ],
)
def test_mixup_needs_pairs(batch, accumulation, line):
    train = {"batch_size": batch, "accumulation": accumulation}
    checks.check_options(config.build({"train": train}))
    cfg = config.build({"train": train | {"mixup": 0.2}})
    if line is None:
        checks.check_options(cfg)
        return
    with pytest.raises(config.ConfigError) as caught:
        checks.check_options(cfg)
    assert str(caught.value) == line


def test_devices():
    cfg = config.build({"train": {"batch_size": 96}, "mesh": {"fsdp": 3}})
    with pytest.raises(config.ConfigError) as caught:
        checks.check_devices(cfg, 8)
    assert str(caught.value) == "mesh.fsdp=3: does not divide the 8 devices; nearest: 2"
    cfg = config.build({"train": {"batch_size": 96, "accumulation": 8}})
    with pytest.raises(config.ConfigError) as caught:
        checks.check_devices(cfg, 8)
    assert str(caught.value) == (
        "train.batch_size=96: not a multiple of 8 devices x train.accumulation 8; nearest: 128, "
        "or set train.microbatch=1"
    )
    cfg = config.build({"train": {"batch_size": 96}, "evaluation": {"batch_size": 9}})
    with pytest.raises(config.ConfigError, match="evaluation.batch_size=9: .* nearest: 8"):
        checks.check_devices(cfg, 8)


def test_warmup_longer_than_run():
    cfg = config.build({"schedule": {"warmup": 100}})
    with pytest.raises(config.ConfigError) as caught:
        checks.check_length(cfg, 100, 100, 0)
    assert (
        str(caught.value)
        == "schedule.warmup=100 steps: 100 steps, but the run has 100; at most 99 steps"
    )


def test_cooldown_longer_than_what_follows_the_warmup():
    cfg = config.build({"schedule": {"name": "constant", "warmup": 20, "cooldown": 81}})
    with pytest.raises(config.ConfigError) as caught:
        checks.check_length(cfg, 100, 20, 81)
    assert str(caught.value) == (
        "schedule.cooldown=81 steps: 81 steps, but 80 of 100 follow the warm-up; at most 80 steps"
    )
    checks.check_length(cfg, 100, 20, 80)


def test_round_trip_through_json():
    for name in catalog.names():
        cfg = config.build(catalog.load(name))
        again = config.build(json.loads(json.dumps(config.to_dict(cfg))))
        assert again == cfg
        assert config.fingerprint(again) == config.fingerprint(cfg)


def test_fingerprint_moves_exactly_with_what_decides_the_result():
    base = config.build({})
    for key, field, _ in config.fields():
        value = config.get(base, key)
        if field.metadata["kind"]:
            continue  # names of components: test_components
        section, _, leaf = key.rpartition(".")
        changed = {
            bool: lambda v: not v,
            int: lambda v: v + 1,
            float: lambda v: v / 2 + 0.01,
            tuple: lambda v: (v[0] / 2, *v[1:]) if v else ("x",),
            str: lambda v: v + "x",
            type(None): lambda v: "1",
            config.Duration: lambda v: config.Duration(v.amount + 1, v.unit),
        }[type(value)](value)
        part = getattr(base, section) if section else base
        new = dataclasses.replace(part, **{leaf: changed})
        other = dataclasses.replace(base, **{section: new}) if section else new
        differs = bool(config.differences(base, other))
        assert differs != field.metadata["free"], key
        assert (config.fingerprint(base) != config.fingerprint(other)) == differs, key


@pytest.mark.parametrize(
    ("text", "batch", "examples", "steps"),
    [
        ("500", 8, 100, 500),
        ("500 steps", 8, 100, 500),
        ("1 step", 8, 100, 1),
        ("2 epochs", 8, 100, 25),
        ("1.5 epochs", 8, 100, 19),
        ("1e3 examples", 8, 100, 125),
        ("7 epochs", 4096, 303_000_000, 517_823),
        ("0.1 epochs", 10, 100, 1),
    ],
)
def test_durations(text, batch, examples, steps):
    assert config.Duration.parse(text).steps(batch, examples) == steps


def test_text_values():
    cases = {
        "model.patch_size": ("2x4", (2, 4)),
        "data.crop_area": ("(0.1, 0.9)", (0.1, 0.9)),
        "data.image_size": ("32", (32, 32)),
        "train.clip_norm": ("none", None),
        "data.flip": ("False", False),
        "train.ema": ("0.9999", 0.9999),
        "checkpoint.every": ("1 epochs", config.Duration(1.0, "epochs")),
        "data.randaugment": ("2,15", (2, 15)),
        "data.examples": ("/a b/c", "/a b/c"),
        "evaluation.tasks": ("imagenet-v2, next", ("imagenet-v2", "next")),
    }
    for key, (text, value) in cases.items():
        assert config.get(config.build(config.override({}, {key: text})), key) == value
    assert math.isclose(
        config.build(config.override({}, {"optimizer.lr": "3e-4"})).optimizer.lr, 3e-4
    )


def test_every_option_has_a_meaning():
    for key, field, _ in config.fields():
        assert field.metadata["doc"].endswith("."), key
        assert len(field.metadata["doc"]) < 100, key
