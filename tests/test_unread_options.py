"""An option that the chosen components do not read is an error; the tables say what is true."""

import dataclasses
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plugins
import runs
import vit_jax
from vit_jax import cli, config, models, run_config, unread_options
from vit_jax.config import catalog
from vit_jax.data import transforms
from vit_jax.training import optimizers, schedules

UNREAD = [
    (
        {"optimizer.momentum": "0.8"},
        "optimizer.momentum=0.8: optimizer.name=adam does not read it; it reads b1, b2, eps, "
        "moment_dtype",
    ),
    (
        {"optimizer.name": "sgd", "optimizer.b1": "0.9"},
        "optimizer.b1=0.9: optimizer.name=sgd does not read it; it reads momentum, moment_dtype",
    ),
    (
        {"optimizer.name": "lion(b2=0.95)", "optimizer.b1": "0.8"},
        "optimizer.b1=0.8: optimizer.name=lion(b2=0.95) does not read it; it takes arguments in "
        "parentheses, NAME(argument=value)",
    ),
    (
        {"schedule.decay": "rsqrt", "schedule.end": "1e-5"},
        "schedule.end=1e-05: schedule.decay=rsqrt does not read it; it reads timescale, cooldown",
    ),
    (
        {"schedule.cooldown": "5 steps"},
        "schedule.cooldown=5 steps: schedule.decay=cosine does not read it; it reads end",
    ),
    (
        {"schedule.timescale": "100"},
        "schedule.timescale=100: schedule.decay=cosine does not read it; it reads end",
    ),
    (
        {"schedule.decay": "constant", "schedule.drops": "0.5"},
        "schedule.drops=0.5: schedule.decay=constant does not read it; it reads cooldown",
    ),
    (
        {"data.root": "DIR"},
        "data.root=DIR: data.source=digits does not read it; only folder, csv, tfds does",
    ),
    (
        {"data.source": "synthetic", "data.name": "cifar10"},
        "data.name=cifar10: data.source=synthetic does not read it; it reads num_examples, "
        "multilabel",
    ),
    (
        {"data.crop_area": "0.5,1"},
        "data.crop_area=0.5,1: data.train_crop=resize does not read it",
    ),
    (
        {"data.resize_to": "16"},
        "data.resize_to=16: data.train_crop=resize and data.eval_crop=resize do not read it",
    ),
    ({"masked.rate": "0.3"}, "masked.rate=0.3: masked.target=none does not read it"),
    ({"evaluation.shots": "5"}, "evaluation.shots=5: evaluation.fewshot=() does not read it"),
    ({"init_head": "keep"}, "init_head=keep: init_from=none does not read it"),
    (
        {"model.resnet_version": "v2"},
        "model.resnet_version=v2: model.resnet_units=none does not read it",
    ),
    (
        {"model.activation": "relu", "model.gelu": "erf"},
        "model.gelu=erf: model.activation=relu does not read it",
    ),
]


def resolve(options, name="digits"):
    return config.build(config.override(catalog.load(name), options))


@pytest.mark.parametrize(
    ("options", "line"), UNREAD, ids=[line.split("=")[0] for _, line in UNREAD]
)
def test_an_option_that_is_not_read_is_one_line(options, line, tmp_path, capsys):
    with pytest.raises(config.ConfigError, match=f"^{re.escape(line)}$"):
        vit_jax.get_config("digits", options)
    for command in (["show", "digits"], ["train", "digits", f"--workdir={tmp_path / 'run'}"]):
        assert cli.main([*command, *plugins.flags(options)]) == 2
        assert capsys.readouterr().err == f"vit_jax: {line}\n"
    assert not (tmp_path / "run").exists()


def test_resnets_have_no_tokens():
    with pytest.raises(config.ConfigError, match="model.heads=4: model.architecture=resnet does n"):
        vit_jax.get_config("bit/R152x4-jft-pets", {"model.heads": 4, "init_from": None})


def test_options_of_a_row_stay_silent_under_another_component():
    sgd = vit_jax.get_config(
        "finetune/ViT-B_16-i21k-cifar10",
        {"optimizer.name": "adam", "data.source": "synthetic", "init_from": None},
    )
    assert (sgd.optimizer.momentum, sgd.data.name) == (0.9, "cifar10")
    vit_jax.get_config("digits", {"data.root": None, "data.holdout": 0})  # asks for nothing


def test_what_a_file_sets_and_its_own_components_ignore_is_an_error(tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text(
        'def names():\n    return ("a", "b")\n\n\ndef get_config(name):\n'
        '    momentum = {"a": 0.8, "b": 0.9}[name]\n'
        '    return {"model": {"variant": "ViT-S/16"}, "optimizer": {"momentum": momentum}}\n'
    )
    assert cli.main(["train", f"--config={file}:a", f"--workdir={tmp_path / 'run'}"]) == 2
    assert capsys.readouterr().err.startswith("vit_jax: optimizer.momentum=0.8: optimizer.name=ad")
    assert vit_jax.get_config(f"{file}:b").optimizer.momentum == 0.9  # the default


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
def test_a_run_and_its_resumption(tmp_path):
    options = {"optimizer.name": "sgd", "optimizer.momentum": 0.8, "train.duration": "2 steps"}
    cfg = dataclasses.replace(
        vit_jax.get_config("digits", options | {"schedule.warmup": 0, "train.batch_size": 16}),
        schedule=config.Schedule(timescale=5.0),  # of a config in memory nobody can tell who set it
    )
    assert vit_jax.train(cfg, tmp_path / "run").steps == 2
    assert vit_jax.train(cfg, tmp_path / "run").steps == 2
    with pytest.raises(config.ConfigError, match="optimizer.b1=0.8: optimizer.name=sgd does not"):
        vit_jax.train(cfg, tmp_path / "run", {"optimizer.b1": 0.8})
    with pytest.raises(config.ConfigError, match="schedule.end=1e-05: schedule.decay=rsqrt does"):
        vit_jax.train(None, tmp_path / "run", {"schedule.end": 1e-5, "schedule.decay": "rsqrt"})
    with pytest.raises(config.ConfigError, match="data.root=x: data.source=digits does not read"):
        vit_jax.evaluate(tmp_path / "run", {"data.root": "x"})


def test_a_tiny_copy_takes_the_options_of_the_run():
    tiny = run_config.resolve("image_folder", {"data.root": "x"}, tiny=True)
    assert (tiny.data.source, tiny.data.root) == ("synthetic", str(pathlib.Path("x").absolute()))
    with pytest.raises(config.ConfigError, match="data.root=x: data.source=digits does not read"):
        run_config.resolve("digits", {"data.root": "x"}, tiny=True)


def test_plug_ins_get_whole_sections():
    with plugins.loaded():
        cfg = resolve(
            {
                "model.architecture": "convnet", "model.resnet_version": "v2", "model.gelu": "erf",
                "data.source": "stripes", "data.root": "x", "data.num_examples": "7",
                "optimizer.name": "sign_momentum",
            }
        )  # fmt: skip
        keys = ("model.resnet_version", "model.gelu", "data.root", "data.num_examples")
        unread_options.check(cfg, keys)
        with pytest.raises(config.ConfigError, match="optimizer.b1=0.9: optimizer.name=sign_mom"):
            unread_options.check(cfg, ["optimizer.b1"])


@pytest.mark.slow
def test_every_name_of_the_catalog_and_what_its_choices_change():
    for name in catalog.names():
        unread_options.check_file(catalog.load(name))
        for choice in catalog.about(name).choices:
            flags = re.findall(r"--config\.(\S+?)=('[^']*'|[^\s,]+)", choice.change)
            fixed = {k: v.strip("'") for k, v in flags if not re.search("LR|WD|N |N$|SHARES", v)}
            unread_options.check(resolve(fixed, name), fixed)


# Every entry of the tables: what is said not to be read changes nothing, what is read changes it.
OTHER = {
    "b1": 0.5, "b2": 0.5, "eps": 0.5, "momentum": 0.5, "moment_dtype": "bfloat16",
    "end": 1e-4, "timescale": 3.0, "drops": (0.5,),
    "cooldown": config.Duration(5, "steps"),
}  # fmt: skip


def update(optimizer):
    params = {"kernel": jnp.arange(1.0, 7).reshape(2, 3)}
    tx = optimizers.create(optimizer, clip_norm=None)
    state = tx.init(params)
    for scale in (1.0, 0.3, 2.0):
        grads = jax.tree.map(lambda x, scale=scale: scale * jnp.cos(x), params)
        updates, state = tx.update(grads, state, params)
    return np.asarray(updates["kernel"])


def rates(schedule):
    cooldown = schedule.cooldown.amount
    schedule = schedules.create(schedule, lr=0.1, steps=20, warmup=2, cooldown=cooldown)
    return np.asarray([schedule(step) for step in range(20)])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("chooser", "make", "measure"),
    [
        ("optimizer.name", config.Optimizer, update),
        ("schedule.decay", config.Schedule, rates),
    ],
)
def test_the_table_is_that_of_the_code(chooser, make, measure):
    leaf = chooser.rpartition(".")[2]
    readers = unread_options.READS[chooser]
    every = {name for names in readers.values() for name in names}
    for chosen in (*readers, *{"name": ("lion",), "decay": ()}[leaf]):
        usual = measure(make(**{leaf: chosen}))
        for name in every:
            other = measure(make(**{leaf: chosen, name: OTHER[name]}))
            assert np.array_equal(usual, other) == (name not in readers.get(chosen, ()))


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
    "vit without positions": TOKENS | {"pooling": "gap", "position": "none"},
    "hybrid": TOKENS | {"patch_size": (1, 1), "resnet_units": (2, 2)},
    "axial_vit": TOKENS | {"architecture": "axial_vit", "pooling": "gap"},
    "resnet": {"architecture": "resnet", "resnet_units": (2, 2)},
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
            problem = unread_options.problem(config.Config(model=changed), f"model.{key}")
            assert same == bool(problem), key
    assert checked > 15


@pytest.mark.parametrize("crop", ["resize", "random", "inception"])
def test_crops_read_what_the_table_says(crop):
    data = config.Data(train_crop=crop)
    assert {"random": "resize_to", "inception": "crop_area"}.get(crop) == next(
        (
            name
            for name, value in (("resize_to", 300), ("crop_area", (0.5, 1.0)))
            if transforms.train_transforms(dataclasses.replace(data, **{name: value}))
            != transforms.train_transforms(data)
        ),
        None,
    )


def test_runs_of_the_tests_read_their_options():
    unread_options.check_file(runs.TINY)
