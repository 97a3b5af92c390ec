"""An option that others leave unread is an error; what is declared to be read is."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import pytest

import plugins
import runs
import vit_jax
from vit_jax import cli, config, models
from vit_jax.config import catalog
from vit_jax.data import transforms
from vit_jax.training import run_config

UNREAD = [
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


def test_one_that_asks_for_nothing_passes():
    vit_jax.get_config("digits", {"masked.split": ()})


def test_what_a_file_sets_and_nothing_reads_is_an_error(tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text(
        'RUNS = ("a", "b")\n\n\ndef get_config(name):\n'
        '    rate = {"a": 0.4, "b": 0.5}[name]\n'
        '    return {"model": {"variant": "ViT-S/16"}, "masked": {"rate": rate}}\n'
    )
    assert cli.main(["train", f"--config={file}:a", f"--workdir={tmp_path / 'run'}"]) == 2
    assert (
        capsys.readouterr().err == "vit_jax: masked.rate=0.4: masked.target=none does not read it\n"
    )
    assert vit_jax.get_config(f"{file}:b").masked.rate == 0.5  # the default


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
def test_a_run_and_its_resumption(tmp_path):
    options = {"optimizer.name": "sgd", "optimizer.momentum": 0.8, "train.duration": "2 steps"}
    cfg = dataclasses.replace(
        vit_jax.get_config("digits", options | {"schedule.warmup": 0, "train.batch_size": 16}),
        masked=config.Masked(rate=0.4),  # of a config in memory nobody can tell who set it
    )
    assert vit_jax.train(cfg, tmp_path / "run").steps == 2
    assert vit_jax.train(cfg, tmp_path / "run").steps == 2
    with pytest.raises(config.ConfigError, match="optimizer.b1=0.8: sgd does not take it"):
        vit_jax.train(cfg, tmp_path / "run", {"optimizer.b1": 0.8})
    with pytest.raises(config.ConfigError, match="masked.rate=0.3: masked.target=none does not"):
        vit_jax.train(None, tmp_path / "run", {"masked.rate": 0.3})
    with pytest.raises(config.ConfigError, match="data.root=x: digits does not take it"):
        vit_jax.evaluate(tmp_path / "run", {"data.root": "x"})


def test_a_tiny_copy_takes_the_options_of_the_run():
    tiny = run_config.resolve("image_folder", {"data.root": "x", "data.flip": "false"}, tiny=True)
    assert (tiny.data.source, tiny.data.root, tiny.data.flip) == ("synthetic", None, False)
    with pytest.raises(config.ConfigError, match="data.root=x: digits does not take it"):
        run_config.resolve("digits", {"data.root": "x"}, tiny=True)


def test_a_model_of_a_plug_in_gets_its_whole_section():
    with plugins.loaded():
        options = {"model.resnet_version": "v2", "model.gelu": "erf"}
        cfg = resolve({"model.architecture": "convnet"} | options)
        run_config.check_read(cfg, options)


@pytest.mark.slow
def test_every_name_of_the_catalog_and_what_its_choices_change():
    for name in catalog.names():
        cfg = config.build(catalog.load(name))
        run_config.check_read(cfg, config.changed(cfg))
        for choice in catalog.about(name).choices:
            flags = re.findall(r"--config\.(\S+?)=('[^']*'|[^\s,]+)", choice.change)
            fixed = {k: v.strip("'") for k, v in flags if not re.search("LR|WD|N |N$|SHARES", v)}
            run_config.check_read(resolve(fixed, name), fixed)


def unread(cfg, name):
    try:
        run_config.check_read(cfg, [f"model.{name}"])
    except config.ConfigError:
        return True
    return False


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
            assert same == unread(config.Config(model=changed), key), key
    assert checked > 15


@pytest.mark.parametrize("crop", ["resize", "random", "inception"])
def test_crops_read_what_they_declare(crop):
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
    cfg = config.build(runs.TINY)
    run_config.check_read(cfg, config.changed(cfg))
