"""The protocol: what is chosen, what is read when, what is written, what is not run twice."""

import dataclasses
import io
import json
import re
import sys

import numpy as np
import pytest

import sweeps
from vit_jax import config
from vit_jax.config import paper
from vit_jax.runs import run_log
from vit_jax.runs.evaluating import Outcome
from vit_jax.studies import transfer, worker
from vit_jax.studies.transfer import study, tables

CHOOSE = ("choose/vit-lr0.003", "choose/vit-lr0.03")
FINAL = ("final/seed0", "final/seed1")
GOOD = dict(zip((*CHOOSE, *FINAL), (0.7, 0.8, 0.5, 0.625), strict=True))


def read(workdir):
    return json.loads((workdir / "transfer.json").read_text())


def test_a_run_that_trains_on_is_no_beginning_of_all_cells(tmp_path, monkeypatch):
    source = tmp_path / "source"
    (source / "checkpoints").mkdir(parents=True)
    steps = [36]
    assert study._newest_step(str(source)) is study._newest_step("augreg/ViT-B_16") is None
    monkeypatch.setenv("HOME", str(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(study.loading, "find_checkpoint", lambda name: (name, 36, {}))
        assert study._newest_step("~/source") == study._newest_step("~/source/checkpoints") == 36
    monkeypatch.setattr(study, "_newest_step", lambda name: steps[-1])
    plan = sweeps.plan()
    base = dataclasses.replace(plan.base, init_from=str(source))
    plan = dataclasses.replace(plan, base=base)
    log, run = [], sweeps.pretending(GOOD)

    def trains_on(cells, *rest, **options):
        log.extend(cell.directory for cell in cells)
        run(cells, *rest, **options)
        if len(log) == len(CHOOSE):
            steps.append(48)

    line = "source: is at step 48 now, and runs in .* began with step 36; .*/checkpoints/00000048"
    with pytest.raises(config.ConfigError, match=line):
        transfer.perform(plan, tmp_path / "t", run=trains_on)
    assert log == list(CHOOSE)
    assert read(tmp_path / "t")["began_with"] == {str(source): 36}
    with pytest.raises(config.ConfigError, match=line):
        transfer.perform(plan, tmp_path / "t", run=run)
    steps.append(36)
    assert transfer.perform(plan, tmp_path / "t", run=run)["results"]["top1"]["mean"] == 0.5625

    def within(cells, *rest, started, **options):
        run(cells, *rest, started=lambda cell: steps.append(steps[-1] + 1), **options)

    with pytest.raises(config.ConfigError, match="is at step 37 now"):
        transfer.perform(plan, tmp_path / "u", run=within)
    assert [cell["state"] for cell in read(tmp_path / "u")["cells"]] == ["done", "waiting"]


SEEDED = [f"choose/vit-lr{lr}-seed{seed}" for seed in (0, 1, 2) for lr in ("0.01", "0.03", "0.1")]


@pytest.mark.parametrize(
    ("lowest", "middle", "highest", "rate"),
    [
        # The mean counts, not the best run: 0.80 of which one is 0.95, against 0.85 throughout.
        ((0.70, 0.71, 0.72), (0.85, 0.85, 0.85), (0.95, 0.75, 0.70), 0.03),
        # One standard error of 0.80, 0.90, 1.00 is 0.0577: 0.85 is as good as 0.90, 0.84 is not.
        ((0.84, 0.84, 0.84), (0.85, 0.85, 0.85), (0.80, 0.90, 1.00), 0.03),
        ((0.83, 0.83, 0.83), (0.84, 0.84, 0.84), (0.80, 0.90, 1.00), 0.1),
        # One seed that diverges, and a rate is out, however good the others are.
        ((0.70, 0.70, 0.70), (0.99, "not finite", 0.99), (0.60, 0.60, 0.60), 0.01),
        # Equal means of other values, whose sums differ by a rounding.
        ((0.1, 0.2, 0.3), (0.2, 0.2, 0.2), (0.3, 0.2, 0.1), 0.01),
    ],
)
def test_the_best_mean_over_seeds_is_chosen(lowest, middle, highest, rate, tmp_path):
    plan = sweeps.plan(rates=(0.01, 0.03, 0.1), choose_seeds=(0, 1, 2))
    each = [value for run in zip(lowest, middle, highest, strict=True) for value in run]
    values = dict(zip(SEEDED, each, strict=True))
    assert [cell.directory for cell in plan.choosing()] == SEEDED
    run = sweeps.pretending(values | dict.fromkeys(FINAL, 0.5))
    found = transfer.perform(plan, tmp_path, run=run)
    assert found["selected"] == {"setup": "vit", "lr": rate}
    assert found["choose_seeds"] == [0, 1, 2]
    assert [cell["lr"] for cell in found["cells"][9:]] == [rate] * 2
    text = (tmp_path / "transfer.md").read_text()
    assert "Of those within one standard error of the best mean the lowest rate is chosen." in text


def test_the_choice_is_shown_with_intervals(tmp_path):
    plan = sweeps.plan(rates=(0.01, 0.03, 0.1), choose_seeds=(0, 1, 2))
    values = dict.fromkeys(SEEDED, 0.5) | {SEEDED[1]: 0.9, SEEDED[4]: 0.8, SEEDED[7]: 0.7}
    values |= {SEEDED[5]: "step 3: loss nan"}
    transfer.perform(plan, tmp_path, run=sweeps.pretending(values | dict.fromkeys(FINAL, 0.5)))
    text = (tmp_path / "transfer.md").read_text()
    # The deviation is 0.1, and 4.3027 standard errors are 0.2484.
    assert "| **vit** | **0.03** | **80.00 %** | **± 24.84 %** | **3** |" in text
    assert f"| vit | 0.1 | failed: {SEEDED[5]}: step 3: loss nan |  | 2 |" in text


def test_a_choice_over_seeds_that_was_killed_goes_on(tmp_path):
    """Killed after any number of cells, it comes to the same table, and runs no cell twice."""

    class Killed(Exception):
        pass

    plan = sweeps.plan(rates=(0.01, 0.1), choose_seeds=(0, 1))
    choose = [cell.directory for cell in plan.choosing()]
    values = {place: 0.5 + index / 100 for index, place in enumerate(choose)}
    values |= dict.fromkeys(FINAL, 0.5)
    unbroken = transfer.perform(plan, tmp_path / "whole", run=sweeps.pretending(values))
    for stop in range(1, 6):
        log, workdir = [], tmp_path / f"{stop}"

        def run(cells, *places, started, workdir=workdir, log=log, stop=stop, **keywords):
            for cell in cells:
                if len(log) == stop:
                    started(cell)
                    raise Killed
                sweeps.pretending(values, log)([cell], *places, started=started, **keywords)

        with pytest.raises(Killed):
            transfer.perform(plan, workdir, run=run)
        again = sweeps.pretending(values, log)
        assert transfer.perform(plan, workdir, run=again) == unbroken
        assert log == [*choose, *FINAL]


def test_what_was_changed_by_hand_is_refused(tmp_path):
    transfer.perform(sweeps.plan(), tmp_path, run=sweeps.pretending(GOOD))
    with pytest.raises(config.ConfigError, match=r"\(choose_seeds: 0 -> 0,1\)"):
        transfer.perform(sweeps.plan(choose_seeds=(0, 1)), tmp_path)
    for name, line in (
        ("cells.jsonl", "line 1 is not a record (was"),
        ("transfer.json", "unreadable"),
    ):
        whole = (tmp_path / name).read_text()
        (tmp_path / name).write_text(whole.replace("0.7", "0.9", 1))
        with pytest.raises(config.ConfigError, match=re.escape(line)) as caught:
            transfer.perform(sweeps.plan(), tmp_path)
        assert "was changed after it was written: sha256 does not fit" in str(caught.value)
        (tmp_path / name).write_text(whole)


def test_the_better_setup_is_chosen_and_of_equal_ones_the_configs_own(tmp_path):
    plan = transfer.create_plan("finetune/R50x1-jft7ep-pets", {}, rates=(0.003,))
    for number, (ours, bit, setup) in enumerate(((0.5, 0.6, "bit"), (0.6, 0.6, "vit"))):
        top1 = {"choose/vit-lr0.003": ours, "choose/bit-lr0.003": bit}
        run = sweeps.pretending(top1 | {f"final/seed{seed}": 0.5 for seed in range(3)})
        found = transfer.perform(plan, tmp_path / str(number), run=run)
        assert found["selected"] == {"setup": setup, "lr": 0.003}
        assert {c["setup"] for c in found["cells"] if c["stage"] == "final"} == {setup}


def test_all_failed_is_one_line_and_no_test_image(tmp_path):
    run = sweeps.pretending(dict.fromkeys(CHOOSE, "loss is nan"))
    with pytest.raises(transfer.Failed) as caught:
        transfer.perform(sweeps.plan(), tmp_path, run=run)
    assert str(caught.value) == (
        "transfer: every candidate failed, so none is chosen: choose/vit-lr0.003: loss is nan"
    )
    assert caught.value.exit_code == 70
    stored = read(tmp_path)
    assert (stored["selected"], stored["results"]) == (None, None)
    assert {cell["stage"] for cell in stored["cells"]} == {"choose"}


def test_final_runs_that_all_fail_are_one_line_and_a_page(tmp_path):
    failing = GOOD | dict.fromkeys(FINAL, "loss is nan")
    with pytest.raises(transfer.Failed, match="^transfer: every final run failed; loss is nan$"):
        transfer.perform(sweeps.plan(), tmp_path, run=sweeps.pretending(failing))
    assert read(tmp_path)["results"] is None
    assert "loss is nan" in (tmp_path / "transfer.md").read_text()


def test_a_directory_that_has_become_another_transfers_meanwhile_is_left(tmp_path):
    study = transfer.TransferStudy(sweeps.plan(), tmp_path)
    other = sweeps.plan(train__batch_size="8")
    transfer.perform(other, tmp_path, run=sweeps.pretending(GOOD))
    with pytest.raises(config.ConfigError, match="holds another transfer"):
        study.perform(run=sweeps.pretending(GOOD))


def test_mean_and_deviation(tmp_path):
    found = transfer.perform(sweeps.plan(), tmp_path, run=sweeps.pretending(GOOD))
    top1 = found["results"]["top1"]
    assert top1["values"] == [0.5, 0.625]
    assert top1["mean"] == np.mean(top1["values"])
    assert top1["std"] == pytest.approx(np.std(top1["values"], ddof=1), rel=1e-15)
    assert set(found["results"]) == {"top1", "loss"}
    assert found["date"] == sweeps.MACHINE["date"]  # that of the runs
    text = (tmp_path / "transfer.md").read_text()
    # Two values: 12.7062 standard errors, by the table of Student's t.
    assert top1["ci95"] == pytest.approx(12.706205 * 0.0625, rel=1e-7)
    assert "| top-1 | 56.25 ± 79.41 | 2 |" in text
    assert "± is half the 95 % confidence interval of the mean over n seeds" in text
    assert "| **vit** | **0.03** | **80.00 %** |  | **1** |" in text  # one run: no interval
    one = transfer.perform(sweeps.plan(seeds=(0,)), tmp_path / "one", run=sweeps.pretending(GOOD))
    assert one["results"]["top1"] == {"mean": 0.5, "std": None, "ci95": None, "values": [0.5]}
    assert "| top-1 | 50.00 | 1 |" in (tmp_path / "one" / "transfer.md").read_text()


def test_the_papers_number_is_beside_ours(tmp_path):
    plan = transfer.create_plan("finetune/ViT-L_16-jft-cifar10", {}, rates=(0.01,), seeds=(0,))
    transfer.perform(plan, tmp_path, run=sweeps.pretending({"final/seed0": 0.9}))
    mean, std = paper.TABLE_2["ViT-L/16", "jft"].cifar10
    text = (tmp_path / "transfer.md").read_text()
    assert f"| top-1 | 90.00 | 1 | {mean:.2f} ± {std:.2f} | {90 - mean:+.2f} | Table 2 |" in text


def test_a_terminal_shows_a_table_of_cells(tmp_path, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    failing = GOOD | {CHOOSE[0]: "loss is nan"}
    transfer.perform(sweeps.plan(), tmp_path, run=sweeps.pretending(failing))
    shown = sys.stderr.getvalue()
    for words in ("choose/vit-lr0.003", "failed", "loss is nan", "0.8000", "final/seed1"):
        assert words in shown


def test_another_seed_can_be_added_another_rate_cannot(tmp_path):
    transfer.perform(sweeps.plan(seeds=(0,)), tmp_path, run=sweeps.pretending(GOOD))
    log = []
    found = transfer.perform(sweeps.plan(), tmp_path, run=sweeps.pretending(GOOD, log))
    assert log == ["final/seed1"]
    assert found["results"]["top1"]["values"] == [0.5, 0.625]
    with pytest.raises(config.ConfigError) as caught:
        transfer.perform(sweeps.plan(rates=(0.003, 0.01), train__batch_size="8"), tmp_path)
    assert str(caught.value) == (
        f"--workdir={tmp_path}: holds another transfer (train.batch_size: 32 -> 8, rates: "
        "0.003,0.03 -> 0.003,0.01); go on without these changes, or choose another --workdir"
    )
    (tmp_path / "transfer.json").write_text("{")
    message = r"transfer.json is unreadable: .*; restore it, or choose another --workdir$"
    with pytest.raises(config.ConfigError, match=message):
        transfer.perform(sweeps.plan(), tmp_path)


def test_a_search_goes_on_with_its_values_in_the_same_order(tmp_path):
    """Its runs are numbered by them: in another order, results would be beside other runs."""
    scores = {f"choose/try{n}-lr0.06": 0.5 + n / 10 for n in (0, 1)} | {"final/seed0": 0.5}

    def plan(*decays):
        return transfer.create_plan(
            sweeps.NAME, sweeps.TINY, rates=(0.06,), choose_seeds=(0,), seeds=(0,),
            search={"optimizer.weight_decay": decays},
        )  # fmt: skip

    transfer.perform(plan(0.1, 0.2), tmp_path, run=sweeps.pretending(scores))
    log = []
    transfer.perform(plan(0.1, 0.2), tmp_path, run=sweeps.pretending(scores, log))
    assert log == []
    with pytest.raises(config.ConfigError, match=r"holds another transfer \(rates: optimizer.w"):
        transfer.perform(plan(0.2, 0.1), tmp_path)


def test_a_run_that_diverges_fails(tmp_path, monkeypatch):
    def diverge(cfg, workdir, like):
        raise run_log.Diverged("step 3: loss nan")

    cell, _ = sweeps.plan().candidates
    with monkeypatch.context() as patch:
        patch.setattr(worker.train_loop, "train", diverge)
        answer = worker.train_cell(cell.cfg, tmp_path, "a")
    assert (answer["state"], answer["why"]) == ("failed", "step 3: loss nan")
    # Finite steps, but parameters whose held-out loss is not.
    results = {"validation/loss": float("inf")}
    outcome = Outcome(
        workdir=tmp_path,
        steps=3,
        seconds=1.0,
        results=results,
        last=results,
        checkpoint="",
        files=(),
    )
    monkeypatch.setattr(worker.train_loop, "train", lambda cfg, workdir, like: outcome)
    answer = worker.train_cell(cell.cfg, tmp_path, "a")
    assert (answer["state"], answer["why"]) == ("failed", "loss is inf after step 3")


def test_vtab_means():
    """The group means that follow from Table 9, as paper.md derives them; Table 2's overall."""
    expected = (
        (86.69, 87.00, 65.03, 77.6),
        (85.56, 86.72, 62.96, 76.3),
        (83.27, 84.65, 57.50, 72.7),
    )

    def one(task, values):
        return {"task": f"vtab/{task}", "results": {"top1": {"values": values}}}

    for column, wanted in enumerate(expected):
        tasks = [one(task, [row[column], row[column] + 2]) for task, row in paper.TABLE_9.items()]
        found = tables.means(tasks)
        names = ("vtab/natural", "vtab/specialized", "vtab/structured", tables.OVERALL)
        assert tuple(found) == names
        for name, mean in zip(names, wanted, strict=True):
            assert found[name]["values"][0] == pytest.approx(mean, abs=0.051)
            assert found[name]["mean"] == pytest.approx(found[name]["values"][0] + 1)
            assert found[name]["std"] == pytest.approx(2**0.5)
            assert found[name]["ci95"] == pytest.approx(12.706205)
        named = [t | {"name": f"vtab/ViT-{t['task'].removeprefix('vtab/')}"} for t in tasks]
        assert transfer.vtab_means([*named, {"name": "other", "task": "pets"}]) == {
            "vtab/ViT": found
        }
        assert transfer.vtab_means(named[1:]) == {}
        assert tables.means(tasks[:-1]) is None
        assert tables.means([*tasks[:-1], one("dtd", [1.0, 2.0])]) is None
