"""Config files by name: the catalog's own, and those of a user."""

import os
import re
import sys

import pytest

from commands import error_line
from vit_jax import cli, config, models
from vit_jax.config import catalog, table_names
from vit_jax.training import run_config

NAMES = catalog.names()
MINE = """
import ml_collections

RUNS = ("mine", "other")

def get_config(name):
    return ml_collections.ConfigDict({"seed": 7 if name == "mine" else 8})
"""


def write(path, body):
    path.write_text(body)
    return path


@pytest.mark.parametrize("file", sorted({path.name for path in NAMES.values()}))
def test_every_name_is_a_config_that_fits_together(file):
    for name, path in NAMES.items():
        if path.name != file:
            continue
        assert re.fullmatch(r"[A-Za-z0-9+_./-]+", name)  # needs no quotes in a shell
        folder = name.startswith(("image_", "adapt/", "dino/folder", "mae/folder"))
        cfg = run_config.resolve(name, {"data.root": "somewhere"} if folder else {})
        assert cfg.name == name
        if cfg.model.num_classes is not None:
            models.create(cfg.model, image_size=cfg.data.image_size)


def test_a_config_is_in_the_tables_that_it_names_and_in_that_of_its_own_name():
    assert table_names.containing((), "masked/digits") == {"masked"}
    assert table_names.containing(("table2",), "pretrain/x") == {"table2"}
    assert table_names.containing(("6",), "scaling/x") == {"table6", "figure5"}  # the same runs


def test_what_choices_say_to_change_can_be_changed():
    """Every flag that a choice prints is an option, and takes the value printed."""
    texts = {c.change for name in NAMES for c in catalog.about(name).choices if c.change}
    flags = {flag for text in texts for flag in re.findall(r"--config\.(\S+?)=('[^']*'|\S+)", text)}
    assert len(flags) > 20
    placeholders = {"LR": "0.1", "N": "8", "SHARES": "0.5,0.9", "WD": "0.1"}
    for key, value in flags:
        text = value.strip("',").replace("N steps", "8 steps").replace("N epochs", "8 epochs")
        named = {"data": {"source": "tfds"}}
        if key.startswith("schedule.drops"):
            named["schedule"] = {"name": "step"}
        if key.startswith("objective."):
            named["objective"] = {"name": "dino"}
        config.build(config.override(named, {key: placeholders.get(text, text)}))
    for text in texts:
        assert text.startswith("--config.") or text.removeprefix("vit_jax train ") in NAMES


@pytest.mark.slow
def test_every_option_that_a_name_or_a_choice_sets_is_read():
    for name in NAMES:
        values = catalog.load_values(name)
        cfg = config.build(values)
        run_config.check_read(cfg, config.changed(cfg))
        for choice in catalog.about(name).choices:
            flags = re.findall(r"--config\.(\S+?)=('[^']*'|[^\s,]+)", choice.change)
            fixed = {k: v.strip("'") for k, v in flags if not re.search("LR|WD|N |N$|SHARES", v)}
            run_config.check_read(config.build(config.override(values, fixed)), fixed)


REFERENCES = """
from ml_collections import config_dict

def get_config():
    cfg = config_dict.ConfigDict({"optimizer": {"lr": config_dict.placeholder(float, True)}})
    cfg.data = {"examples": config_dict.placeholder(str)}
    cfg.train = {"batch_size": 64}
    cfg.seed = cfg.train.get_ref("batch_size") * 2
    return cfg
"""


def test_references_and_placeholders_of_ml_collections(tmp_path, capsys):
    """References are resolved; a required placeholder is an option that the user must set."""
    path = write(tmp_path / "mine.py", REFERENCES)
    values = catalog.load_values(str(path))
    assert (values["seed"], values["data"]) == (128, {"examples": None})
    cfg = config.build(config.override(values, {"optimizer.lr": "0.5"}))
    assert (cfg.optimizer.lr, cfg.seed) == (0.5, 128)
    assert cli.main(["show", str(path)]) == 2
    assert capsys.readouterr().err == "vit_jax: optimizer.lr=(required): must be a number\n"


def test_a_file_of_one_config_is_one_function(tmp_path):
    path = write(tmp_path / "mine.py", 'def get_config():\n    return {"seed": 3}\n')
    assert catalog.load_values(str(path)) == {"seed": 3, "name": "mine"}
    assert catalog.load_values(f"{path}:mine") == catalog.load_values(str(path))
    assert catalog.about(str(path)) == catalog.About()


def test_a_file_of_several_configs_names_them(tmp_path):
    path = write(tmp_path / "mine.py", MINE)
    assert catalog.load_values(f"{path}:mine") == {"name": "mine", "seed": 7}
    with pytest.raises(catalog.ConfigError, match=r"name one of its configs: \S+:mine, \S+:other$"):
        catalog.load_values(str(path))
    with pytest.raises(catalog.ConfigError, match="no such config; did you mean mine\\?$"):
        catalog.load_values(f"{path}:min")


def test_a_file_is_run_once_until_it_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)  # byte code of 7 would serve for 9
    body = MINE + f"\nwith open({str(tmp_path / 'count')!r}, 'a') as file:\n    file.write('x')\n"
    path = write(tmp_path / "mine.py", body)
    os.utime(path, ns=(0, 10**18))
    for _ in range(3):
        catalog.load_values(f"{path}:mine")
    assert (tmp_path / "count").read_text() == "x"
    write(path, body.replace('seed": 7', 'seed": 9'))
    os.utime(path, ns=(0, 10**18 + 1))
    assert catalog.load_values(f"{path}:mine")["seed"] == 9
    assert (tmp_path / "count").read_text() == "xx"


def test_a_config_is_made_once_and_what_is_loaded_is_a_copy(tmp_path):
    """Configs build on others: hundreds of them on a handful."""
    note = f"with open({str(tmp_path / 'count')!r}, 'a') as file: file.write(name[0])"
    body = MINE.replace("    return ml_col", f"    {note}\n    return ml_col")
    path = write(tmp_path / "mine.py", body.replace('{"seed"', '{"data": {"root": "a"}, "seed"'))
    first = catalog.load_values(f"{path}:mine")
    first["data"]["root"] = "b"
    assert catalog.load_values(f"{path}:mine") == {"name": "mine", "seed": 7, "data": {"root": "a"}}
    assert catalog.load_values(f"{path}:other")["seed"] == 8
    assert (tmp_path / "count").read_text() == "mo"


@pytest.mark.parametrize("name", ["../up", "/absolute", "a/../../b", ""])
def test_a_name_that_would_leave_the_folder_of_runs(tmp_path, name):
    path = write(tmp_path / "mine.py", MINE.replace('"mine", "other"', f"{name!r},"))
    with pytest.raises(catalog.ConfigError, match="cannot name the folder of a run$"):
        catalog.load_values(f"{path}:{name}" if name else str(path))


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("RUNS = ()", "has no function get_config(); see configs/digits.py"),
        (
            MINE.replace("return ml_col", "1 / 0, ml_col"),
            "get_config('mine'): ZeroDivisionError: division by zero",
        ),
        pytest.param(
            "import vit_jax\n@vit_jax.register('loss', 'mine')\ndef mine(): ...",
            "ValueError: loss mine: is defined in a config file, where no command but train finds "
            "it; move it to a module, and name that with --plugins",
            id="registers",
        ),
        *(
            (
                f"RUNS = {names}\ndef get_config(name): ...",
                f"RUNS={names}: must be the names of its configs",
            )
            for names in ("5", "'mine'", "('mine', 5)")
        ),
    ],
)
def test_a_file_that_fails_is_one_line(body, line, tmp_path):
    path = write(tmp_path / "mine.py", body)
    with pytest.raises(catalog.ConfigError) as caught:
        catalog.load_values(f"{path}:mine")
    assert str(caught.value) == f"--config={path}: {line}"


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("def about(name): return 5", "about('mine') must return a catalog.About"),
        ("def about(name): 1 / 0", "about('mine'): ZeroDivisionError: division by zero"),
    ],
)
def test_provenance_that_fails_is_one_line(body, line, tmp_path):
    path = write(tmp_path / "mine.py", f"{body}\ndef get_config():\n    return {{}}\n")
    assert error_line(catalog.ConfigError, catalog.about, str(path)) == f"--config={path}: {line}"


def test_get_config_returns_options(tmp_path):
    path = write(tmp_path / "mine.py", MINE.replace("ml_collections.ConfigDict", "list"))
    with pytest.raises(catalog.ConfigError, match="must return a ConfigDict$"):
        catalog.load_values(f"{path}:mine")


@pytest.mark.parametrize(
    ("section", "names", "label"),
    [
        ("data", ("solarize", "gray"), "name"),
        ("train", ("second", "first"), "name"),
        ("optimizer", ("layers", "head"), "pattern"),
    ],
)
def test_an_order_that_a_configdict_has_lost_is_refused(section, names, label, tmp_path):
    leaf = {"data": "transforms", "train": "augmentations", "optimizer": "groups"}[section]
    members = {key: {} for key in names}
    body = "import ml_collections\ndef get_config():\n    return ml_collections.ConfigDict(%r)\n"
    path = str(write(tmp_path / "mine.py", body % {section: {leaf: members}}))
    with pytest.raises(catalog.ConfigError) as caught:
        catalog.load_values(path)
    second, first = names
    assert str(caught.value) == (
        f"{section}.{leaf}={first},{second}: a ConfigDict sorts its keys, and here their order "
        f'counts; write a list in yours: [{{"{label}": "{first}", ...}}, '
        f'{{"{label}": "{second}", ...}}]'
    )
    for number, kept in enumerate(([{label: name} for name in names], {second: {}})):
        path = str(write(tmp_path / f"{number}.py", body % {section: {leaf: kept}}))
        assert list(catalog.load_values(path)[section][leaf]) == list(kept)


def test_an_override_leaves_the_members_of_a_list_in_order():
    groups = ({"pattern": "layers", "lr": 2.0}, {"pattern": "head", "lr": 3.0})
    for given in (groups, {"layers": {"lr": 2.0}, "head": {"lr": 3.0}}):
        values = catalog.derive(None, {"optimizer.groups": given, "optimizer.groups.new.lr": 4.0})
        found = config.build(values).optimizer.groups
        assert [(one.pattern, one.lr) for one in found] == [
            ("layers", 2.0), ("head", 3.0), ("new", 4.0)
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ("pretrain/ViT-L_16-jft-7", "; did you mean pretrain/ViT-L_16-jft-7ep?"),
        pytest.param(
            "dino",
            "; did you mean one of dino/ViT-S_16-imagenet, dino/ViT-S_16-imagenet-300ep, "
            "dino/ViT-B_16-imagenet, dino/ViT-S_16-imagenet-ibot, dino/ViT-L_16-imagenet-v2, "
            "dino/ViT-L_16-imagenet-v3, dino/folder?",
            id="folder",
        ),
        ("zzz", "; `vit_jax list` shows all"),
    ],
)
def test_a_wrong_name_proposes_the_nearest(wrong, hint):
    with pytest.raises(catalog.ConfigError) as caught:
        catalog.load_values(wrong)
    assert str(caught.value) == f"--config={wrong}: no such config{hint}"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(catalog, "directory", lambda: tmp_path)
    for stem in ("one", "two"):
        write(tmp_path / f"{stem}.py", MINE.replace('"mine", "other"', f'"{stem}", "{stem}/small"'))
    return tmp_path


def test_a_broken_file_breaks_only_its_own_names(folder, caplog):
    write(folder / "two.py", "1 / 0")
    assert catalog.load_values("one/small")["seed"] == 8
    assert list(catalog.names()) == ["one", "one/small"]
    assert f"--config={folder / 'two.py'}: ZeroDivisionError: division by zero" in caplog.text
    with pytest.raises(catalog.ConfigError, match="two.py: ZeroDivisionError"):
        catalog.load_values("two/small")


@pytest.mark.parametrize(
    ("names", "line"),
    [
        ('"two", "one"', "its name one belongs to FOLDER/one.py; rename one"),
        ('"two", "two"', "has the name two twice; rename one"),
    ],
)
def test_a_name_belongs_to_one_file(names, line, folder):
    write(folder / "two.py", MINE.replace('"mine", "other"', names))
    with pytest.raises(catalog.ConfigError) as caught:
        catalog.load_values("two")
    said = str(caught.value).replace(str(folder), "FOLDER")
    assert said == f"--config=FOLDER/two.py: {line}"
