"""`vit_jax show NAME --python`: a file of one's own that is the same run."""

import dataclasses

import pytest

from vit_jax import cli, config
from vit_jax.config import catalog
from vit_jax.training import run_config

SAMPLE = (
    "digits",
    "cifar10/ViT-3_4-distilled",  # a teacher
    "masked/ViT-B_16-jft-color_4x4",
    "bit/R152x4-jft-vtab-dtd",
    "adapt/ViT-S_16-lora",
    "image_csv-multilabel",
)
LAST = {file: name for name, file in catalog.names().items()}  # of every file its last name


@pytest.mark.parametrize(
    "name",
    [*SAMPLE, *(pytest.param(n, marks=pytest.mark.slow) for n in LAST.values() if n not in SAMPLE)],
)
def test_the_printed_file_is_the_same_config(name, tmp_path, capsys):
    assert cli.main(["show", name, "--python"]) == 0
    file = tmp_path / "mine.py"
    file.write_text(capsys.readouterr().out)
    given = (
        {"data.root": "x"} if "root" in vars(config.build(catalog.load_values(name)).data) else {}
    )
    copy, cfg = run_config.resolve(str(file), given), run_config.resolve(name, given)
    assert dataclasses.replace(copy, name=cfg.name) == cfg
    assert config.fingerprint(copy) == config.fingerprint(cfg)


@pytest.mark.parametrize(
    "options",
    [
        {"data.image_size": "256", "model.patch_size": "2"},  # resize_to changes with it
        {"data.source": "folder", "data.root": "photos", "data.holdout": "0.1"},  # without splits
    ],
    ids=["size", "source"],
)
def test_options_that_others_make_void_are_not_shown(options, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    name = "vtab/ViT-H_14-jft-caltech101"
    given = [f"--config.{key}={value}" for key, value in options.items()]
    assert cli.main(["show", name, "--python", *given]) == 0
    (tmp_path / "mine.py").write_text(capsys.readouterr().out)
    shown, cfg = run_config.resolve("mine.py", {}), run_config.resolve(name, options)
    assert shown == dataclasses.replace(cfg, name=shown.name)


@pytest.mark.parametrize("given", [{}, {"data.eval_split": "test"}, {"data.test_split": "none"}])
def test_splits_of_files_that_are_set_and_that_are_found(given, tmp_path, capsys):
    for split in ("train", "val", "test"):
        (tmp_path / "photos" / split).mkdir(parents=True)
    given |= {"data.source": "folder", "data.root": str(tmp_path / "photos")}
    flags = [f"--config.{key}={value}" for key, value in given.items()]
    assert cli.main(["show", "digits", "--python", *flags]) == 0
    (tmp_path / "mine.py").write_text(capsys.readouterr().out)
    shown = run_config.resolve(str(tmp_path / "mine.py"), {})
    assert shown.data == run_config.resolve("digits", given).data


def test_what_weights_decide_is_not_shown_and_that_is_said(capsys):
    said = "init_from: options that belong to its weights, such as model.gelu and data.mean"
    for given, count in (((), 0), (("--config.init_from=AugReg",), 1)):
        assert cli.main(["show", "digits", *given]) == 0
        assert capsys.readouterr().out.count(said) == count


def test_the_printed_file_has_overrides_and_lists(tmp_path, capsys):
    given = [
        "--config.optimizer.groups.layers.lr=10",
        "--config.optimizer.groups.head.lr=5",
        "--config.data.transforms.three_augment.jitter=0.2",
        "--config.optimizer.freeze=embedding,*/bias",
    ]
    assert cli.main(["show", "digits", "--python", *given]) == 0
    file = tmp_path / "mine.py"
    file.write_text(text := capsys.readouterr().out)
    assert max(map(len, text.splitlines())) <= 100
    cfg = run_config.resolve(str(file), {})
    assert [(one.pattern, one.lr) for one in cfg.optimizer.groups] == [("layers", 10), ("head", 5)]
    assert [config.show(one) for one in cfg.data.transforms] == ["three_augment jitter=0.2"]
    assert cfg.optimizer.freeze == ("embedding", "*/bias")
