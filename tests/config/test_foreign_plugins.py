"""A run that uses plug-ins records them; whoever opens it names them, or gets one line."""

import itertools
import json
import shutil

import pytest

import plugins
import runs
import vit_jax
from vit_jax import cli, config
from vit_jax.checkpoints import record
from vit_jax.config import components
from vit_jax.inference import loading

TRAINED = plugins.NINE | plugins.SHORT | {"train.duration": "2 steps"}


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("foreign") / "run"
    given = ["train", "digits", f"--workdir={folder}", *plugins.flags(TRAINED)]
    with plugins.loaded(), runs.on_one_device(), runs.untrained():
        assert cli.main([*given, "--plugins=my_project"]) == 0
    return folder


def commands(folder, output):
    checkpoint = f"--checkpoint={folder}"
    return {
        "train": [f"--workdir={folder}"],
        "evaluate": [checkpoint],
        "predict": [checkpoint, "--examples=1"],
        "embed": [checkpoint, f"--output={output / 'x.npz'}"],
        "inspect": ["filters", checkpoint, f"--output={output}"],
        "export": [checkpoint, "--to=stablehlo", f"--output={output / 'x.stablehlo'}"],
        "convert": [checkpoint, "--to=google", f"--output={output / 'x.npz'}"],
    }


NAMES = list(commands("folder", plugins.PROJECT))
LINE = "comes from a plug-in; give --plugins=my_project, or import it first in Python"


@pytest.mark.slow
def test_a_report_without_them_shows_what_it_can(workdir, tmp_path, forgotten):
    assert cli.main(["report", str(workdir), f"--output={tmp_path}"]) == 0
    assert "give --plugins=my_project" in (tmp_path / "report.md").read_text()


def test_python_gets_the_same_line(workdir, forgotten):
    for function in (vit_jax.load, vit_jax.evaluate, lambda run: vit_jax.train(None, run)):
        with pytest.raises(config.ConfigError, match=f"model.architecture=convnet: {LINE}"):
            function(workdir)
    forgotten.syspath_prepend(str(plugins.PROJECT))
    import my_project  # noqa: F401

    assert vit_jax.load(workdir).classes == ("across", "down")


def test_weights_to_begin_with_get_the_same_line(workdir, tmp_path, forgotten, capsys):
    given = [f"--config.init_from={workdir}", f"--workdir={tmp_path / 'run'}"]
    assert cli.main(["train", "digits", *given]) == 2
    assert LINE in capsys.readouterr().err


def test_what_is_overridden_is_not_needed(workdir, forgotten):
    other = {
        "model.architecture": "vit", "data.source": "digits", "data.transforms": (),
        "train.augmentations": (), "loss.name": "softmax", "optimizer.name": "adam",
        "schedule.name": "constant", "evaluation.evaluators": (), "logging.loggers": (),
    }  # fmt: skip
    stored = json.loads((workdir / "config.json").read_text())
    cfg = config.build(config.override(stored, other))
    assert "plugins" not in config.to_dict(cfg)


RECORDED = (["evil"], ["evil.part"], "evil", {"evil": 1}, [["evil"], 7])


@pytest.mark.parametrize(
    ("name", "recorded"), [*zip(NAMES, itertools.cycle(RECORDED), strict=False)]
)
def test_a_hostile_module_is_never_imported(name, recorded, workdir, tmp_path, forgotten, capsys):
    """Also not where it stands ready to be imported."""
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')\n")
    forgotten.syspath_prepend(str(tmp_path))
    folder = tmp_path / "run"
    shutil.copytree(workdir, folder)
    stored = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(stored | {"plugins": recorded}))
    for file in folder.glob("checkpoints/*/commit.json"):
        body = json.loads(file.read_text())["commit"]
        body["facts"]["config"]["plugins"] = recorded
        file.write_text(record.encode_commit(body))
    assert cli.main([name, *commands(folder, tmp_path)[name]]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "model.architecture=convnet: " in line
    assert not (tmp_path / "imported").exists()


def test_a_name_that_is_no_module_is_not_shown(forgotten):
    values = {"loss": {"name": "squared"}, "plugins": ["x; rm -rf ~", "a b", "good.one"]}
    with pytest.raises(config.ConfigError, match=r"give --plugins=good\.one, or"):
        config.build(values)


@pytest.mark.parametrize("option", ["loss.name=squared", "data.transforms=speckle"])
def test_unknown_components_say_where_others_come_from(option, forgotten, capsys):
    assert cli.main(["show", "digits", f"--config.{option}"]) == 2
    said = capsys.readouterr().err
    assert f"{option}: no such" in said
    assert "--plugins=MODULE adds those of a plug-in" in said


@pytest.mark.slow
def test_transfer_gives_them_to_its_processes(tmp_path, monkeypatch):
    options = TRAINED | {"data.train_split": "train", "logging.loggers": "()"}
    with plugins.loaded():
        given = ["transfer", "digits", f"--workdir={tmp_path}", *plugins.flags(options)]
        assert cli.main([*given, "--rates=0.1,0.01", "--seeds=0", "--plugins=my_project"]) == 0
    stored = json.loads((tmp_path / "transfer.json").read_text())
    assert [cell["state"] for cell in stored["cells"]] == 3 * ["done"]
    assert stored["config"]["plugins"] == ["my_project"]


def test_reproduce_gives_them_to_its_commands():
    from vit_jax.studies.reproduce import planning
    from vit_jax.studies.reproduce.exhibit import TableRun

    with plugins.loaded():
        run = TableRun(kind="train", name="digits", directory="digits")
        words = planning.command(run, plugins.PROJECT, {})
    assert words[-1] == "--plugins=my_project"
    assert components.plugins() == ()
    assert loading.is_run(plugins.PROJECT) is False
