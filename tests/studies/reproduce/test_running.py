"""`vit_jax reproduce --smoke`: pre-training, transfer and few-shot end to end, as tiny copies."""

import dataclasses
import json

import jax
import pytest

from vit_jax import cli
from vit_jax.studies import reproduce, transfer
from vit_jax.studies.reproduce import planning, runner, tables
from vit_jax.studies.transfer import worker
from vit_jax.training import sharding


def cut(name, keep):
    """Returns a table with some of its cells."""
    table = tables.table(name)
    return dataclasses.replace(table, cells=tuple(c for c in table.cells if keep(c)))


def in_process(cells, workdir, places, *, started, ended, look):
    """Runs cells here: processes of their own take longer to start than tiny copies to train."""
    for cell in cells:
        started(cell)
        ended(cell, 1.0, worker.work(cell.cfg, workdir, cell.directory))


@pytest.fixture
def here(monkeypatch):
    """Runs commands in this process, on the first device alone: that is quicker to compile."""
    monkeypatch.setattr(runner, "_call", cli.main)
    sweep, create = transfer.sweep, sharding.create_mesh
    monkeypatch.setattr(transfer, "sweep", lambda p, w, _: sweep(p, w, run=in_process))
    monkeypatch.setattr(sharding, "create_mesh", lambda fsdp: create(fsdp, jax.devices()[:1]))


@pytest.mark.usefixtures("here")
@pytest.mark.slow
def test_a_small_table_end_to_end(tmp_path, monkeypatch, capsys):
    small = cut("table9", lambda c: (c.row, c.column) == ("dtd", "ViT-L/16, ImageNet-21k"))
    monkeypatch.setitem(tables._TABLES, "table9", lambda: small)
    arguments = ["reproduce", "table9", "--smoke", f"--workdir={tmp_path}"]
    assert cli.main([*arguments, "--json", f"--output={tmp_path / 'table9.md'}"]) == 0
    values = json.loads(capsys.readouterr().out.splitlines()[-1])
    origin, target = "pretrain/ViT-L_16-i21k-90ep", "vtab/ViT-L_16-i21k-dtd"
    assert [(one["run"], one["state"]) for one in values["steps"]] == [
        (origin, "done"), (target, "done"),
    ]  # fmt: skip
    (cell,) = values["cells"]
    # Two seeds of random pixels; the transfer began with the tiny pre-training.
    stored = json.loads((tmp_path / target / "transfer.json").read_text())
    assert cell["ours"]["seeds"] == 2
    assert cell["ours"]["mean"] == pytest.approx(100 * stored["results"]["top1"]["mean"])
    assert stored["config"]["init_from"] == str(tmp_path / origin)
    text = (tmp_path / "table9.md").read_text()
    assert f"| dtd | paper | 74.10 |\n|  | here | {cell['ours']['mean']:.2f}" in text
    # Nothing is run twice.
    monkeypatch.setattr(runner, "_call", lambda _: pytest.fail("was done"))
    assert cli.main(arguments) == 0


@pytest.mark.slow
@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("name", "row"),
    # Of Figure 9's curve over epochs a tiny copy has the end.
    [("table8", "relative"), ("figure9", "GAP, lr 0.0003"), ("figure8", "depth-2")],
)
def test_few_shot_is_measured_while_training(name, row, tmp_path):
    small = reproduce.tiny(cut(name, lambda c: c.row == row))
    assert reproduce.perform(small, tmp_path, {}, smoke=True) == 0
    planned, found = reproduce.plan(small, tmp_path, {})
    values = reproduce.as_dict(small, planned, found, tmp_path)
    (cell,) = values["cells"]
    assert 0 <= cell["ours"]["mean"] <= 100
    assert [one.state for one in planned] == [planning.DONE]


@pytest.fixture
def called(monkeypatch):
    """The commands that would be run; each ends with the next exit code of `codes`."""
    calls, codes = [], []

    def call(words):
        calls.append(words)
        return codes.pop(0) if codes else 0

    monkeypatch.setattr(runner, "_call", call)
    monkeypatch.setattr(runner, "_backend", lambda: "cpu")
    return calls, codes


def test_what_cannot_be_run_here_is_left_out(tmp_path, monkeypatch, caplog, called):
    calls, _ = called
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "data"))
    small = cut("table5", lambda c: c.row.startswith("ViT-B/16") and c.column == "Pets")
    caplog.set_level("INFO")
    assert reproduce.perform(small, tmp_path, {}, smoke=False) == 0
    assert not calls
    for line in (
        "finetune/ViT-B_16-i21k-pets: left out: lacks oxford_iiit_pet in",
        "finetune/ViT-B_16-jft-pets: left out: lacks pretrain/ViT-B_16-jft-7ep",
    ):
        assert line in caplog.text
    folder = tmp_path / "data" / "oxford_iiit_pet" / "4.0.0"
    folder.mkdir(parents=True)
    info = {"fileFormat": "array_record", "splits": [{"name": "train", "shardLengths": ["9"]}]}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    # 0.6 exaFLOPs at 0.1 TFLOP/s.
    assert reproduce.perform(small, tmp_path, {}, smoke=False) == 0
    assert not calls
    assert "no accelerator here, and a CPU would take some 69 days" in caplog.text
    monkeypatch.setattr(runner, "_backend", lambda: "tpu")
    assert reproduce.perform(small, tmp_path, {}, smoke=False) == 0
    name = "finetune/ViT-B_16-i21k-pets"
    assert calls == [["transfer", name, f"--workdir={tmp_path / name}"]]


def test_one_that_fails_keeps_no_other_from_running_but_a_stop_does(tmp_path, called):
    calls, codes = called
    small = cut("table8", lambda c: c.row in ("none", "relative"))
    codes += [2, 0]
    assert reproduce.perform(small, tmp_path, {}, smoke=True) == 2
    assert [words[:2] for words in calls] == [
        ["train", "posemb/none"],
        ["train", "posemb/relative"],
    ]
    assert calls[0][3:] == [
        "--config.evaluation.fewshot=self", "--config.evaluation.shots=5", "--smoke",
    ]  # fmt: skip
    codes += [75, 0]
    assert reproduce.perform(small, tmp_path, {}, smoke=True) == 75
    assert len(calls) == 3


def test_a_step_is_a_process_of_its_own():
    assert runner._call(["--version"]) == 0
    assert runner._call(["show", "no-such-config"]) == 2
