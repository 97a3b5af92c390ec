"""`vit_jax reproduce --smoke`: pre-training, transfer and few-shot end to end, as tiny copies."""

import dataclasses
import functools
import json

import jax
import pytest

import sweeps
from vit_jax import cli, config
from vit_jax.config import ConfigError, catalog
from vit_jax.data import sources
from vit_jax.runtime.preemption import Preempted
from vit_jax.studies import reproduce
from vit_jax.studies.reproduce import runner, tables
from vit_jax.training import sharding


def cut(name, keep):
    """A table with some of its scores."""
    table = tables.table(name)
    return dataclasses.replace(table, scores=tuple(c for c in table.scores if keep(c)))


@pytest.fixture
def here(monkeypatch):
    """Runs cells in this process, on the first device alone: that is quicker to compile."""
    create = sharding.create_mesh
    monkeypatch.setattr(sharding, "create_mesh", lambda fsdp, *_: create(fsdp, jax.devices()[:1]))
    perform = functools.partial(reproduce.perform, run=sweeps.here)
    monkeypatch.setattr(reproduce, "perform", perform)


@pytest.mark.usefixtures("here")
@pytest.mark.slow
def test_a_small_table_end_to_end(tmp_path, monkeypatch, capsys):
    small = cut("table9", lambda c: (c.row, c.column) == ("dtd", "ViT-L/16, ImageNet-21k"))
    monkeypatch.setitem(tables._TABLES, "table9", lambda: small)
    arguments = ["reproduce", "table9", "--smoke", f"--workdir={tmp_path}"]
    assert cli.main([*arguments, "--json", f"--output={tmp_path / 'table9.md'}"]) == 0
    values = json.loads(capsys.readouterr().out.splitlines()[-1])
    origin, target = "pretrain/ViT-L_16-i21k-90ep", "vtab/ViT-L_16-i21k-dtd"
    assert [(one["run"], one["state"]) for one in values["runs"]] == [
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
    monkeypatch.setattr(sweeps, "here", lambda *_, **__: pytest.fail("was done"))
    assert cli.main(arguments) == 0


class Runs:
    """Runs nothing: notes the cells, which end with the next of some answers."""

    def __init__(self, *answers):
        self.answers, self.cells = [*answers], []

    def __call__(self, cells, workdir, shares, *, started, ended, watch):
        for cell in cells:
            self.cells.append(cell)
            answer = self.answers.pop(0) if self.answers else "done"
            if isinstance(answer, Exception):
                raise answer
            measured = {"results": {"top1": 0.5, "loss": 1.0}, "why": f"{answer} here"}
            ended(cell, 1.0, {"state": answer, "machine": sweeps.MACHINE} | measured)


def test_what_cannot_be_run_here_is_left_out(tmp_path, monkeypatch, caplog):
    ran = Runs()
    monkeypatch.setattr(runner, "find_platform", lambda: "cpu")
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "data"))
    small = cut("table5", lambda c: c.row.startswith("ViT-B/16") and c.column == "Pets")
    caplog.set_level("INFO")
    assert reproduce.perform(small, tmp_path, {}, smoke=False, run=ran) == 0
    assert not ran.cells
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
    assert reproduce.perform(small, tmp_path, {}, smoke=False, run=ran) == 0
    assert not ran.cells
    assert "no accelerator here, and a CPU would take some 69 days" in caplog.text
    monkeypatch.setattr(runner, "find_platform", lambda: "tpu")
    # The weights that it begins with are to be downloaded.
    assert reproduce.perform(small, tmp_path, {}, smoke=False, run=ran) == 2
    assert f"vit_jax transfer {PETS} --workdir={tmp_path / PETS}" in caplog.text


PETS = "finetune/ViT-B_16-i21k-pets"


def test_one_that_fails_keeps_no_other_from_running_but_a_stop_does(tmp_path, caplog):
    small = cut("table8", lambda c: c.row in ("none", "relative"))
    ran = Runs("failed", "done", Preempted("stopped"))
    assert reproduce.perform(small, tmp_path, {}, smoke=True, run=ran) == 70
    assert "posemb/none: failed here" in caplog.text
    assert [cell.directory for cell in ran.cells] == ["posemb/none", "posemb/relative"]
    evaluation = ran.cells[0].cfg.evaluation
    assert (evaluation.fewshot, evaluation.shots) == (("self",), (5,))
    with pytest.raises(Preempted):
        reproduce.perform(small, tmp_path, {}, smoke=True, run=ran)
    assert len(ran.cells) == 3


def test_tiny_copies_measure_few_shot_on_their_own_images_after_the_last_epoch():
    table = tables.table("figure9")
    small = reproduce.tiny(table)
    assert [c.measure for c in small.scores] == 3 * [runner.OWN]
    assert {c.epoch for c in small.scores} == {None}
    assert [c.row for c in small.scores] == [c.row for c in table.scores if c.epoch == 7]
    assert len(reproduce.tiny(tables.table("table8")).scores) == len(tables.table("table8").scores)


def test_a_tiny_transfer_tries_two_rates_and_two_seeds(tmp_path):
    run = next(one for one in tables.table("table5").runs if one.name == PETS)
    plan = runner._study(run, tmp_path, {}, smoke=True)._plan
    rates = catalog.about(PETS).transfer.rates
    assert [one.lr for one in plan.candidates] == list(rates[:2])
    assert plan.seeds == (0, 1)


def test_a_transfer_whose_data_are_missing_does_not_begin(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "data"))
    run = next(one for one in tables.table("table5").runs if one.name == PETS)
    with pytest.raises(ConfigError, match="data.name=oxford_iiit_pet: not in"):
        runner._study(run, tmp_path, {"init_from": "none"}, smoke=False)


def test_the_platform_is_the_last_word_of_the_process_that_looks_for_it(monkeypatch):
    words = ["a", "library", "says", "tpu"]
    monkeypatch.setattr(runner.backend, "ask", lambda code: words)
    assert runner.find_platform() == "tpu"


def test_images_of_a_pre_training_at_home_are_shares_of_half_the_digits():
    (quarter, _), (half, _), (whole, text) = reproduce.table("home").ticks
    digits = sources.open_source(config.Data(source="digits"), "train")
    count = sum(int(digits[at].label) < 5 for at in range(len(digits)))
    assert text == str(count)
    assert (quarter, half, whole) == (round(count / 4), round(count / 2), count)
