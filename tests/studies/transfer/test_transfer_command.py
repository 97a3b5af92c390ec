"""`vit_jax transfer` up to the running of cells: names, flags, what is printed."""

import functools
import json
import re

import pytest

import sweeps
from vit_jax import cli
from vit_jax.config import paper
from vit_jax.studies import transfer

NO_DATA = ["--config.data.source=synthetic", "--config.init_from=none"]


@pytest.fixture(autouse=True)
def pretend(tmp_path, monkeypatch):
    """Every cell has top-1 0.5, and runs go to an empty folder."""
    monkeypatch.chdir(tmp_path)

    class Half(dict):
        def __missing__(self, directory):
            return 0.5

    run = functools.partial(transfer.perform, run=sweeps.pretending(Half()))
    monkeypatch.setattr(transfer.study, "perform", run)


def test_a_config(tmp_path, capsys):
    begun = ["transfer", sweeps.NAME, "--rates=0.03,0.01,0.03", "--choose-seeds=0", *NO_DATA]
    assert cli.main(begun) == 0
    out, err = capsys.readouterr()
    assert re.search(r"choose/vit-lr0.01 +0.01 +50.00 % +chosen", out)
    assert re.search(rf"{sweeps.NAME} +lr +top1 +± 95 % interval", out)
    assert re.search(r"top1, mean, n = 3 +50.00 % +± 0.00 %", out)
    assert f"runs/{sweeps.NAME}/transfer.md" in out
    assert "final/seed2: lr 0.01, seed 2" in err
    assert "final/seed2: done  top1 0.5000, loss 0.5000  1s" in err
    stored = json.loads((tmp_path / f"runs/{sweeps.NAME}/transfer.json").read_text())
    assert [cell["lr"] for cell in stored["cells"]] == [0.03, 0.01, 0.01, 0.01, 0.01]
    assert cli.main([*begun, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == stored


def test_all_tasks_of_vtab_and_their_means(tmp_path, capsys):
    options = [*NO_DATA, "--workdir=w", "--seeds=0,1"]
    arguments = ["transfer", "vtab/ViT-L_16-i21k-*", *options]
    assert cli.main(arguments) == 0
    out = capsys.readouterr().out
    for task in paper.TABLE_9:
        assert f"w/vtab/ViT-L_16-i21k-{task}/transfer.md" in out
    assert re.search(r"vtab/ViT-L_16-i21k +mean +95 % interval +n", out)
    for group in ("natural", "specialized", "structured", "overall"):
        assert re.search(rf"vtab/{group} +50.00 % +± 0.00 % +2", out)
    assert cli.main([*arguments, "--json"]) == 0
    *tasks, means = map(json.loads, capsys.readouterr().out.splitlines())
    assert len(tasks) == 19
    assert means["name"] == "vtab/ViT-L_16-i21k"
    expected = {"mean": 0.5, "std": 0.0, "ci95": 0.0, "values": [0.5, 0.5]}
    assert means["results"]["vtab/overall"] == expected


def test_what_is_wrong_with_the_last_is_said_before_the_first_runs(tmp_path, monkeypatch, capsys):
    names = [sweeps.NAME, "finetune/ViT-B_16-jft-pets"]
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    assert cli.main(["transfer", *names, "--config.init_from=none"]) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert "oxford_iiit_pet" in line
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["zzz*"], "zzz*: no config has such a name; see `vit_jax list`"),
        ([sweeps.NAME], "init_from=none: run `vit_jax train home/ViT-half` first"),
        ([sweeps.NAME, "--rates=0.1,x"], "0.1,x: must be learning rates, such as 0.003,0.01"),
        ([sweeps.NAME, "--rates=-1"], "-1: must be learning rates"),
        ([sweeps.NAME, "--seeds=a"], "a: must be seeds, such as 0,1,2"),
        ([sweeps.NAME, "--choose-seeds=1,"], "1,: must be seeds, such as 0,1,2"),
        ([sweeps.NAME, "--parallel=0"], "0: must be a number, at least 1"),
        ([sweeps.NAME, *NO_DATA, "--config.seed=1"], "seed=1: differs between cells"),
    ],
)
def test_mistakes(arguments, line, capsys, tmp_path):
    try:
        code = cli.main(["transfer", *arguments])
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    err = capsys.readouterr().err
    assert line in err
    assert err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_writes_nothing_and_says_what_is_done(tmp_path, capsys):
    begun = ["transfer", sweeps.NAME, "--rates=0.03,0.01", "--choose-seeds=0", *NO_DATA]
    assert cli.main([*begun, "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert not list(tmp_path.iterdir())
    assert re.search(r"choose/vit-lr0.01 +0.01 +0 +[\d.]+ steps +waiting", out)
    assert re.search(r"final/seed2 +the chosen one +2 +[\d.]+ steps +waiting", out)
    assert "left" not in out
    assert cli.main(begun) == 0
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    capsys.readouterr()
    assert cli.main([*begun, "--dry-run", "--json"]) == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert [(one["lr"], one["state"]) for one in cells] == [
        (0.03, "done"), (0.01, "done"), (0.01, "done"), (0.01, "done"), (0.01, "done"),
    ]  # fmt: skip
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    assert cli.main(["transfer", sweeps.NAME, "--rates=0.5,0.01", *NO_DATA, "--dry-run"]) == 2
    assert "holds another transfer" in capsys.readouterr().err
    assert cli.main([*begun, "--dry-run", "--smoke"]) == 2
    assert capsys.readouterr().err.startswith("vit_jax: --dry-run: does not go with --smoke")
