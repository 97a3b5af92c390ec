"""Options that cannot work together, or of which one is not read: one line each."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import pytest

import plugins
import runs
import vit_jax
from vit_jax import config, models
from vit_jax.config import catalog, checks
from vit_jax.training import build, run_config

DINO = {"objective.name": "dino", "data.train_crop": "inception", "train.label_smoothing": 0}
# After `vit_jax train digits`: the options, and the line.
REFUSED = [
    ({"schedule.end": 1}, "schedule.end=1: exceeds optimizer.lr 0.001"),
    ({"schedule.warmup": "-5"}, "schedule.warmup=-5 steps: must not be negative"),
    ({"train.duration": 0}, "train.duration=0 steps: must be more than 0"),
    ({"checkpoint.every": 0}, "checkpoint.every=0 steps: must be more than 0, or none"),
    (
        {"data.channels": 2},
        "data.channels=2: digits are gray; set 1, or 3 for three equal channels",
    ),
    ({"data.source": "folder"}, "data.root=none: set it to the folder of images"),
    ({"data.source": "tfds"}, "data.name=none: tfds needs a dataset, such as data.name=cifar10"),
    (
        {"data.train_crop": "inception", "data.crop_area": (0.5, 0.1)},
        "data.crop_area=0.5,0.1: the first must not exceed the second",
    ),
    (
        {"data.randaugment": 2},
        "data.randaugment=2: needs two numbers, operations and magnitude, such as 2,10",
    ),
    (
        {"data.randaugment": (0, 10)},
        "data.randaugment=0,10: needs at least 1 operation per image; none turns it off",
    ),
    ({"data.randaugment": (2, 31)}, "data.randaugment=2,31: magnitude 31 is more than 30"),
    ({"data.randaugment": (2, 30)}, None),
    ({"data.train_crop": "inception", "data.crop_area": (0.5, 0.5)}, None),
    ({"optimizer.groups.head.lr": 10.0}, None),
    ({"checkpoint.best": "rmse"}, "checkpoint.best=rmse: needs data.targets; set top1"),
    (
        {"data.source": "synthetic", "data.targets": ("a", "b")},
        "loss.name=softmax: is for classes, but data.targets=a,b has numbers; set mse, l1 or huber",
    ),
    (
        {"data.source": "synthetic", "data.targets": ("a", "a"), "loss.name": "l1"},
        "data.targets=a,a: names a column twice",
    ),
    (
        {
            "data.source": "synthetic",
            "data.targets": "a",
            "loss.name": "l1",
            "loss.std": (1, 2),
            "train.label_smoothing": 0,
        },
        "loss.std=1,2: needs 1 number, one for each of data.targets=a; none takes those of the "
        "training images",
    ),
    (
        {"data.source": "synthetic", "data.targets": "a", "objective.name": "mae"},
        "data.targets=a: objective.name=mae needs no targets; set ()",
    ),
    (
        {"loss.name": "huber"},
        "loss.name=huber: predicts numbers; set data.source=csv, and data.targets to columns of "
        "its lists, such as age",
    ),
]
UNREAD = [
    ({"data.crop_area": (0.5, 1)}, "data.crop_area=0.5,1: data.train_crop=resize does not read it"),
    (
        {"data.resize_to": 16},
        "data.resize_to=16: data.train_crop=resize and data.eval_crop=resize do not read it",
    ),
    ({"data.lengths": (9, 16)}, "data.lengths=9,16: data.aspect=fixed does not read it"),
    ({"evaluation.shots": 5}, "evaluation.shots=5: evaluation.fewshot=() does not read it"),
    (
        {"optimizer.decayed": "all", "optimizer.weight_decay": 0},
        "optimizer.decayed=all: optimizer.weight_decay=0 and optimizer.weight_decay_end=none and "
        "optimizer.name=adam do not read it",
    ),
    (
        {"model.mlp": "swiglu", "model.gelu": "erf"},
        "model.gelu=erf: model.mlp=swiglu and model.pooling=gap do not read it",
    ),
    (
        DINO | {"objective.gram_start": "3 steps"},
        "objective.gram_start=3 steps: objective.gram=0 does not read it",
    ),
    ({"init_head": "keep"}, "init_head=keep: init_from=none does not read it"),
    (
        {"model.resnet_version": "v2"},
        "model.resnet_version=v2: model.resnet_units=none does not read it",
    ),
    (
        {"model.activation": "relu", "model.gelu": "erf"},
        "model.gelu=erf: model.activation=relu does not read it",
    ),
    (
        {"model.class_position": False},
        "model.class_position=False: model.position=sincos_2d does not read it",
    ),
    ({"lora.where": ()}, None),  # asks for nothing
    (
        {"optimizer.name": "adafactor", "optimizer.weight_decay_rate": 0.01},
        "optimizer.weight_decay_rate=0.01: set optimizer.weight_decay, which is multiplied by the "
        "learning rate, and optimizer.decayed",
    ),
    (
        {"model.variant": "ViT-Ti/16", "model.width": 96, "model.mlp_dim": 384},
        "model.variant=ViT-Ti/16: the config sets other sizes, which it leaves as they are; set "
        "model.depth=12 model.heads=3 model.patch_size=16,16 too, or leave it out",
    ),
]


@pytest.mark.parametrize(("options", "line"), REFUSED + UNREAD)
def test_a_combination_is_refused_in_one_line(options, line):
    if line is None:
        vit_jax.get_config("digits", options)
        return
    with pytest.raises(config.ConfigError, match=f"^{re.escape(line)}$"):
        vit_jax.get_config("digits", options)


def test_what_a_file_sets_and_nothing_reads_is_an_error(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "RUNS = {'a': 20, 'b': 16}\n\n\ndef get_config(name):\n"
        "    return {'model': {'variant': 'ViT-S/16'}, 'lora': {'alpha': RUNS[name]}}\n"
    )
    with pytest.raises(config.ConfigError, match="lora.alpha=20: lora.rank=none does not"):
        vit_jax.get_config(f"{file}:a")
    assert vit_jax.get_config(f"{file}:b").lora.alpha == 16  # the default


@pytest.mark.parametrize(
    ("devices", "options", "line"),
    [
        (8, {"train.batch_size": 96, "mesh.fsdp": 3}, "mesh.fsdp=3: does not divide the 8 devices"),
        (8, {"train.batch_size": 100}, "train.batch_size=100: not a multiple of 8 devices; near"),
        (
            8,
            {"train.batch_size": 96, "train.accumulation": 8},
            "train.batch_size=96: not a multiple of 8 devices x train.accumulation 8; nearest: 128",
        ),
        (8, {"evaluation.batch_size": 9}, "evaluation.batch_size=9: not a multiple of 8 devices"),
        (
            1,
            {"train.batch_size": 9, "train.mixup": 0.1},
            "train.batch_size=9: train.mixup needs pairs, a multiple of 2; nearest: 8",
        ),
        (
            1,
            {"train.batch_size": 12, "train.mixup": 0.1, "train.accumulation": 4},
            "train.batch_size=12: train.mixup needs pairs, a multiple of 8; nearest: 16, or set "
            "train.microbatch=2",
        ),
        (1, {"train.batch_size": 12, "train.mixup": 0.1, "train.accumulation": 2}, None),
    ],
)
def test_devices_divide_mesh_and_batch(devices, options, line):
    cfg = vit_jax.get_config("digits", options)
    if line is None:
        checks.check_devices(cfg, devices)
        return
    with pytest.raises(config.ConfigError, match=re.escape(line)):
        checks.check_devices(cfg, devices)


@pytest.mark.parametrize(
    ("schedule", "line"),
    [
        ({"warmup": 99}, None),
        pytest.param(
            {"warmup": 100},
            "schedule.warmup=100 steps: 100 steps, but the run has 100; at most 99 steps; "
            "set schedule.warmup=99 or less, or raise train.duration",
            id="warmup",
        ),
        ({"name": "constant", "warmup": 20, "cooldown": 80}, None),
        (
            {"name": "constant", "warmup": 20, "cooldown": 81},
            "schedule.cooldown=81 steps: 81 steps, but 80 of 100 follow the warm-up; at most 80 "
            "steps; set schedule.cooldown=80 or less, or raise train.duration",
        ),
    ],
)
def test_warmup_and_cooldown_fit_the_run(schedule, line):
    cfg = config.build({"schedule": schedule})
    arguments = (cfg, 100, schedule["warmup"], schedule.get("cooldown", 0))
    if line is None:
        checks.check_length(*arguments)
        return
    with pytest.raises(config.ConfigError, match=f"^{line}$"):
        checks.check_length(*arguments)


@pytest.mark.parametrize(
    ("examples", "repeats", "line"),
    [
        (154, 1, "one of the 154 training images about 26.6 times; .*train.batch_size=32"),
        (3, 1, "train.batch_size=8"),
        (4096, 1, None),
        (1500, 3, None),
        (1000, 3, "about 1.4 times"),
    ],
)
def test_a_batch_of_more_images_than_there_are_is_said(examples, repeats, line):
    cfg = runs.configure(train={"batch_size": 4096 + 8 * (repeats == 3)}, data={"repeats": repeats})
    lines = checks.large_batch(cfg, examples, 1)
    assert bool(lines) == bool(line)
    assert not line or re.search(line, lines[0])


@pytest.mark.parametrize(
    ("target", "weight", "smoothing", "lines"),
    [
        ("logits", 0.9, 0.1, []),
        ("logits", 1.0, 0.0, []),
        ("logits", 1.0, 0.1, ["leaves out the loss of labels, and with it train.label_smoothing"]),
        ("tokens", 1.0, 0.0, []),
        ("features", 0.5, 0.1, []),
    ],
)
def test_labels_without_a_part_in_the_loss_are_said(target, weight, smoothing, lines):
    cfg = runs.configure(
        objective={"name": "distillation", "teacher": "x", "target": target, "weight": weight},
        train={"label_smoothing": smoothing},
        checkpoint={"best": "auto"},
    )
    found = checks.unused_labels(cfg)
    assert len(found) == len(lines)
    assert all(line in text for line, text in zip(lines, found, strict=True))
    assert checks.unused_labels(runs.configure()) == []


def test_an_untrained_head_has_no_metrics():
    learned = {"name": "distillation", "teacher": "x", "target": "tokens"}
    with pytest.raises(config.ConfigError, match=r"metrics=f1: objective\.target=tokens trains no"):
        runs.configure(objective=learned, evaluation={"metrics": ("f1",)})
    with pytest.raises(config.ConfigError, match=r"best=top1: objective\.target=tokens trains no"):
        runs.configure(objective=learned, checkpoint={"best": "top1"})


@pytest.mark.parametrize(
    ("options", "steps", "line"),
    [
        ({"train.ema": 0.999}, 1400, None),
        (
            {"train.ema": 0.999},
            1000,
            "after which 37% of the average, which is evaluated, are still the initial parameters; "
            "set --config.train.ema=0.99$",
        ),
        ({"train.ema": 0.999}, 20, "98% of the average.*train.ema=none$"),
        ({"train.ema": 0.9999}, 9000, r"41% of the average.*train.ema=0.999$"),
        ({"optimizer.head_first": 9}, 10, None),
        (
            {"optimizer.head_first": 10},
            10,
            "optimizer.head_first=10: the run has 10 steps, so noth",
        ),
        (DINO, 11, None),
        (DINO, 10, "objective.freeze_last_layer=1 epochs: the run has 10 steps, so the prototypes"),
        (DINO | {"objective.gram": 2, "objective.gram_start": 20}, 21, None),
        (DINO | {"objective.gram": 2, "objective.gram_start": 20}, 20, "=2 never begins$"),
        ({"train.ema": 0.999, "data.source": "synthetic"}, 20, None),
    ],
)
def test_a_run_too_short_for_its_options_is_told(options, steps, line):
    lines = checks.short_run(vit_jax.get_config("digits", options), steps, 640)
    assert len(lines) == bool(line)
    assert not line or re.search(line, lines[0])


def test_masked_patches_refuse_augmentations():
    with plugins.loaded():
        texts = {"objective.name": "masked_patches", "train.augmentations": "jitter"}
        with pytest.raises(
            config.ConfigError, match=r"train.augmentations=jitter: objective.name=masked"
        ):
            vit_jax.get_config("digits-token", texts | {"train.label_smoothing": 0})


def test_a_model_of_a_plug_in_gets_its_whole_section():
    with plugins.loaded():
        options = {"model.resnet_version": "v2", "model.gelu": "erf"}
        named = {"model.architecture": "convnet"} | options
        cfg = config.build(config.override(catalog.load_values("digits"), named))
        run_config.check_read(cfg, options)


OTHER_MODEL = {
    "patch_size": (2, 2), "width": 64, "depth": 1, "mlp_dim": 24, "heads": 4, "pooling": "map",
    "position": "sincos_2d", "class_position": False, "position_place": "layers",
    "activation": "relu", "gelu": "erf", "norm_epsilon": 0.1, "norm_place": "pooled",
    "attention": "xla", "representation_size": 8, "representation_activation": "relu",
    "head_bias": -1.0, "resnet_version": "v2", "resnet_pool": "nothing",
    "resnet_epsilons": "timm", "resnet_width": 2.0, "dropout": 0.1, "stochastic_depth": 0.1,
}  # fmt: skip
TOKENS = {"patch_size": (4, 4), "width": 32, "depth": 2, "mlp_dim": 16, "heads": 2}
MODELS = {
    "vit": TOKENS,
    "hybrid": TOKENS | {"patch_size": (1, 1), "resnet_units": (2, 2)},
    "stem": TOKENS | {"patch_size": (4, 4), "resnet_units": ()},
    "axial_vit": TOKENS | {"architecture": "axial_vit", "pooling": "gap"},
    "resnet v2": {"architecture": "resnet", "resnet_units": (2, 2), "resnet_version": "v2"},
    "axial_resnet": {"architecture": "axial_resnet", "resnet_units": (2, 2)},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_network_is_the_same_whatever_it_does_not_read(name):
    def program(model):
        made = models.create(model, image_size=(32, 32), channels=3, dtype="float32")
        images = jax.ShapeDtypeStruct((2, 32, 32, 3), jnp.float32)
        key = jax.random.key(0)
        traced = jax.make_jaxpr(lambda p, x: made.apply(p, x, key=key))(made.shapes(), images)
        return re.sub("0x[0-9a-f]+", "", f"{traced}{jax.make_jaxpr(made.init)(key)}")

    def is_unread(model, key):
        try:
            run_config.check_read(config.Config(model=model), [f"model.{key}"])
        except config.ConfigError:
            return True
        return False

    model = models.complete(config.Model(num_classes=3, **MODELS[name]))
    usual = program(model)
    checked = 0
    for key, value in OTHER_MODEL.items():
        changed = dataclasses.replace(model, **{key: value})
        try:
            same = program(changed) == usual
        except config.ConfigError:  # options that do not fit each other
            continue
        if getattr(model, key) != value:
            checked += 1
            assert same == is_unread(changed, key), key
    assert checked > 15


DINO_HEAD = {"name": "dino", "prototypes": 16, "head_hidden": 8, "head_bottleneck": 8}
STEPS = {
    "adam": {},
    "lars": {"optimizer": {"name": "lars"}, "train": {"mixup": 0.2}},
    "dino": {"objective": DINO_HEAD},
    "dino v2": {
        "objective": DINO_HEAD
        | {"patch_loss": 1.0, "centering": "sinkhorn", "gram": 2.0, "local_views": 0}
    },
    "mae": {"objective": {"name": "mae", "decoder_width": 16, "decoder_heads": 2}},
}
# Read by the loop, the log or the compiler.
OUTSIDE = {"train.max_bad_steps", "train.replay", "train.sdc_checker", "train.duration"}
OUTSIDE |= {"objective.collapse_steps", "objective.stop_on_collapse"}


def others(value, field):
    """Values to try in place of one."""
    if choices := field.metadata["choices"]:
        return [one for one in choices if one != value]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, tuple):
        return [tuple(0.9 * one for one in value)] if value and isinstance(value[0], float) else []
    if isinstance(value, config.Duration):
        return ["7 steps", "3 steps"]
    return (
        [0.5, "5 steps", 1]
        if value is None
        else [value / 2 or 0.125, value + 1, 2 * value or 1, 0.125]
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
def test_a_step_is_the_same_whatever_it_does_not_read(name):
    def program(cfg):
        made = build.build(cfg, 64, devices=jax.devices()[:1])
        step = jax.jit(made.step).lower(made.state_shapes, made.batch_shapes, None).as_text()
        begin = re.sub("0x[0-9a-f]+", "", str(jax.make_jaxpr(made.create_state)()))
        rates = [float(made.schedule(at)) for at in range(0, 40, 4)]
        return step, begin, rates, made.durations, made.objective.views

    small = {
        "model": {"num_classes": 10},
        "data": {"train_crop": "inception", "channels": 3},
        "train": {"duration": "40 steps", "batch_size": 8, "ema": None},
        "checkpoint": {"best": "auto"},
    }
    values = runs.merged(runs.merged(runs.TINY, STEPS[name]), small)
    usual = run_config.complete(config.build(values))
    own = ("objective.",) if "objective" in STEPS[name] else ("train.", "optimizer.", "schedule.")
    before, checked = program(usual), 0
    for key, field, _ in config.fields(usual):
        if key in OUTSIDE or key.endswith(".name") or not key.startswith(own):
            continue
        for other in others(config.get(usual, key), field):
            try:
                cfg = run_config.complete(config.build(config.override(values, {key: other})))
                same = program(cfg) == before
            except config.ConfigError:  # options that do not fit each other
                continue
            try:
                run_config.check_read(cfg, [key])
            except config.ConfigError:
                assert same, key
            else:
                assert not same, key
            checked += 1
            break
    assert checked > 4
