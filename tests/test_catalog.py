"""Config files by name: what the catalog promises about its own, and about a user's."""

import os
import re
import sys

import pytest

from vit_jax import cli, config, models
from vit_jax.config import catalog
from vit_jax.training import run_config

NAMES = catalog.names()
UNPRINTED = (
    "digits",
    "posemb/sincos",
    "home/",
    "masked/digits",
    "cifar10/",
)  # in no table of the paper
CSV = {f"image_csv{kind}{size}" for kind in ("", "-multilabel") for size in ("", "-32")}
ALONE = {"image_folder", "image_folder-32", "tfds", "tfds-32"} | CSV


def write(path, body):
    path.write_text("import ml_collections\n" + body)
    return path


MINE = """
RUNS = ("mine", "other")

def get_config(name):
    return ml_collections.ConfigDict({"seed": 7 if name == "mine" else 8})
"""


REFERENCES = """
from ml_collections import config_dict

RUNS = ("references",)

def get_config(name):
    cfg = ml_collections.ConfigDict({"optimizer": {"lr": config_dict.placeholder(float, True)}})
    cfg.data = {"examples": config_dict.placeholder(str)}
    cfg.train = {"batch_size": 64}
    cfg.seed = cfg.train.get_ref("batch_size") * 2
    return cfg
"""


def test_references_and_placeholders_of_ml_collections(tmp_path, capsys):
    """References are resolved; a required placeholder is an option that the user must set."""
    path = write(tmp_path / "mine.py", REFERENCES)
    values = catalog.load(str(path))
    assert (values["seed"], values["data"]) == (128, {"examples": None})
    with pytest.raises(config.ConfigError) as caught:
        config.build(values)
    assert str(caught.value) == "optimizer.lr=(required): must be a number"
    cfg = config.build(config.override(values, {"optimizer.lr": "0.5"}))
    assert (cfg.optimizer.lr, cfg.seed) == (0.5, 128)
    assert cli.main(["show", f"{path}:references"]) == 2
    assert capsys.readouterr().err == "vit_jax: optimizer.lr=(required): must be a number\n"


def test_names_are_grouped_by_file_and_safe_to_type():
    for name, path in NAMES.items():
        assert name.partition("-")[0] == path.stem or name.startswith(f"{path.stem}/")
        assert re.fullmatch(r"[A-Za-z0-9+_./-]+", name)
    assert len(NAMES) == len({name.lower().replace("b_32", name) for name in NAMES})
    assert len(NAMES) > 240


@pytest.mark.parametrize("file", sorted({path.name for path in NAMES.values()}))
def test_every_name_is_a_config_that_fits_together(file):
    for name, path in NAMES.items():
        if path.name != file:
            continue
        folder = name.startswith("image_") or name.startswith("adapt/")
        overrides = {"data.root": "somewhere"} if folder else {}
        cfg = run_config.resolve(name, overrides)
        assert cfg.name == name
        assert catalog.summary(path)
        if cfg.model.num_classes is None:
            continue
        models.create(cfg.model, image_size=cfg.data.image_size)


def test_what_names_say_about_themselves():
    yours = {name for name in NAMES if name.startswith("adapt/")}  # your own images
    for name in set(NAMES) - ALONE - yours:
        about = catalog.about(name)
        assert about.row
        assert about.dataset
        assert about.images
        assert about.tables or name.startswith(
            ("digits", "posemb/sincos", "home/", "masked/digits", "cifar10/")
        )
        for choice in about.choices:
            assert choice.what
            assert choice.why
        # One line each, and never of nothing.
        for line in (about.needs, about.warning):
            assert "\n" not in line
        assert bool(about.lifted_by) or not about.needs
    for name in ALONE:  # they say nothing but what they choose
        about = catalog.about(name)
        assert about == catalog.About(choices=about.choices)


def test_what_choices_say_to_change_can_be_changed():
    """Every flag that a choice prints is a option, and takes the value printed."""
    texts = {c.change for name in NAMES for c in catalog.about(name).choices if c.change}
    flags = {flag for text in texts for flag in re.findall(r"--config\.(\S+?)=('[^']*'|\S+)", text)}
    assert len(flags) > 20
    placeholders = {"LR": "0.1", "N": "8", "SHARES": "0.5,0.9", "WD": "0.1"}
    for key, value in flags:
        text = value.strip("',")
        text = text.replace("N steps", "8 steps").replace("N epochs", "8 epochs")
        named = {"data": {"source": "tfds"}, "schedule": {"name": "step"}}
        named |= {"optimizer": {"name": "sgd"}} if key == "optimizer.momentum" else {}
        named = named if key != "schedule.end" else {}
        config.build(config.override(named, {key: placeholders.get(text, text)}))
    for text in texts:
        assert text.startswith("--config.") or text.startswith("vit_jax train ")
        if text.startswith("vit_jax train "):
            assert text.removeprefix("vit_jax train ") in NAMES


def test_a_file_of_the_user(tmp_path):
    path = write(tmp_path / "mine.py", MINE)
    assert catalog.load(f"{path}:mine") == {"name": "mine", "seed": 7}
    assert catalog.about(f"{path}:mine") == catalog.About()
    with pytest.raises(catalog.ConfigError, match=r"name one of its configs: \S+:mine, \S+:other$"):
        catalog.load(str(path))
    with pytest.raises(catalog.ConfigError, match="no such config; did you mean mine\\?$"):
        catalog.load(f"{path}:min")


def test_a_file_is_run_once_until_it_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)  # byte code of 7 would serve for 9
    body = MINE + f"\nwith open({str(tmp_path / 'count')!r}, 'a') as file:\n    file.write('x')\n"
    path = write(tmp_path / "mine.py", body)
    os.utime(path, ns=(0, 10**18))
    for _ in range(3):
        catalog.load(f"{path}:mine")
    assert (tmp_path / "count").read_text() == "x"
    write(path, body.replace('seed": 7', 'seed": 9'))
    os.utime(path, ns=(0, 10**18 + 1))
    assert catalog.load(f"{path}:mine")["seed"] == 9
    assert (tmp_path / "count").read_text() == "xx"


def test_a_config_is_made_once_and_what_is_loaded_is_a_copy(tmp_path):
    """Configs build on others: hundreds of them on a handful."""
    note = f"with open({str(tmp_path / 'count')!r}, 'a') as file: file.write(name[0])"
    body = MINE.replace("    return ml_col", f"    {note}\n    return ml_col")
    path = write(tmp_path / "mine.py", body.replace('{"seed"', '{"data": {"root": "a"}, "seed"'))
    first = catalog.load(f"{path}:mine")
    first["data"]["root"] = "b"
    assert catalog.load(f"{path}:mine") == {"name": "mine", "seed": 7, "data": {"root": "a"}}
    assert catalog.load(f"{path}:other")["seed"] == 8
    assert (tmp_path / "count").read_text() == "mo"


@pytest.mark.parametrize("name", ["../up", "/absolute", "a/../../b", ""])
def test_a_name_that_would_leave_the_folder_of_runs(tmp_path, name):
    path = write(tmp_path / "mine.py", MINE.replace('"mine", "other"', f"{name!r},"))
    with pytest.raises(catalog.ConfigError, match="cannot name the folder of a run$"):
        catalog.load(f"{path}:{name}" if name else str(path))


def test_files_that_are_no_config_files(tmp_path):
    for body, line in (
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("RUNS = ()", "has no function get_config(); see configs/digits.py"),
    ):
        path = write(tmp_path / f"bad{len(body)}.py", body)
        with pytest.raises(catalog.ConfigError, match=re.escape(line)) as caught:
            catalog.load(f"{path}:x")
        assert str(caught.value) == f"--config={path}: {line}"
    path = write(tmp_path / "late.py", MINE.replace("return ml_col", "1 / 0, ml_col"))
    with pytest.raises(catalog.ConfigError) as caught:
        catalog.load(f"{path}:mine")
    line = "get_config('mine'): ZeroDivisionError: division by zero"
    assert str(caught.value) == f"--config={path}: {line}"
    path = write(tmp_path / "wrong.py", MINE.replace("ml_collections.ConfigDict", "list"))
    with pytest.raises(catalog.ConfigError, match="must return a ConfigDict$"):
        catalog.load(f"{path}:mine")


def test_a_wrong_name_gets_one_readable_line():
    for wrong, hint in (
        ("pretrain/ViT-L_16-jft-7", "; did you mean pretrain/ViT-L_16-jft-7ep?"),
        ("zzz", "; `vit_jax list` shows all"),
    ):
        with pytest.raises(catalog.ConfigError) as caught:
            catalog.load(wrong)
        assert str(caught.value) == f"--config={wrong}: no such config{hint}"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(catalog, "directory", lambda: tmp_path)
    for stem in ("one", "two"):
        body = MINE.replace('"mine", "other"', f'"{stem}", "{stem}/small"')
        write(tmp_path / f"{stem}.py", body)
    return tmp_path


def test_a_bare_name_runs_only_its_own_file(folder):
    write(folder / "two.py", "raise RuntimeError")
    assert catalog.load("one/small")["seed"] == 8


def test_a_broken_file_breaks_only_its_own_names(folder, caplog):
    write(folder / "two.py", "1 / 0")
    assert list(catalog.names()) == ["one", "one/small"]
    assert f"--config={folder / 'two.py'}: ZeroDivisionError: division by zero" in caplog.text
    with pytest.raises(catalog.ConfigError, match="two.py: ZeroDivisionError"):
        catalog.load("two/small")


def test_a_name_of_another_file_names_both(folder):
    write(folder / "two.py", MINE.replace('"mine", "other"', '"two", "one"'))
    with pytest.raises(catalog.ConfigError) as caught:
        catalog.load("two")
    assert str(caught.value) == (
        f"--config={folder / 'two.py'}: its name one belongs to {folder / 'one.py'}; rename one"
    )


def test_a_name_twice_in_a_file(folder):
    write(folder / "two.py", MINE.replace('"mine", "other"', '"two", "two"'))
    with pytest.raises(catalog.ConfigError, match="has the name two twice; rename one$"):
        catalog.load("two")


def test_a_file_of_one_config_is_one_function(tmp_path):
    path = write(tmp_path / "mine.py", 'def get_config():\n    return {"seed": 3}\n')
    assert catalog.load(str(path)) == {"seed": 3, "name": "mine"}
    assert catalog.load(f"{path}:mine") == catalog.load(str(path))
