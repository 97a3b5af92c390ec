"""The protocol: what is chosen, what is read when, what is written, what is not run twice."""

import io
import json
import sys

import jax
import numpy as np
import pytest

import sweeps
from vit_jax import config, paper, transfer
from vit_jax.data import sources
from vit_jax.training import loop, sharding
from vit_jax.transfer import results, vtab, worker

CHOOSE = ("choose/vit-lr0.003", "choose/vit-lr0.03")
FINAL = ("final/seed0", "final/seed1")
GOOD = dict(zip((*CHOOSE, *FINAL), (0.7, 0.8, 0.5, 0.625), strict=True))


def read(workdir):
    return json.loads((workdir / "transfer.json").read_text())


@pytest.mark.parametrize(
    ("candidates", "chosen"),
    [
        ((0.7, 0.8), 0.03),
        ((0.8, 0.8), 0.003),  # of equal ones the lower rate
        ((0.1, "not finite"), 0.003),
        (("not finite", 0.1), 0.03),
    ],
)
def test_the_best_finite_rate_is_chosen(candidates, chosen, tmp_path):
    run = sweeps.pretending(GOOD | dict(zip(CHOOSE, candidates, strict=True)))
    found = transfer.sweep(sweeps.plan(), tmp_path, run=run)
    assert found["chosen"] == {"setup": "vit", "lr": chosen}
    final = [cell for cell in found["cells"] if cell["stage"] == "final"]
    assert [cell["lr"] for cell in final] == [chosen] * 2
    assert "config" in found
    assert found == read(tmp_path)


def test_the_better_setup_is_chosen_and_of_equal_ones_the_configs_own(tmp_path):
    plan = transfer.create("finetune/R50x1-jft7ep-pets", {}, rates=(0.003,))
    for number, (ours, bit, setup) in enumerate(((0.5, 0.6, "bit"), (0.6, 0.6, "vit"))):
        top1 = {"choose/vit-lr0.003": ours, "choose/bit-lr0.003": bit}
        run = sweeps.pretending(top1 | {f"final/seed{seed}": 0.5 for seed in range(3)})
        found = transfer.sweep(plan, tmp_path / str(number), run=run)
        assert found["chosen"] == {"setup": setup, "lr": 0.003}
        assert {c["setup"] for c in found["cells"] if c["stage"] == "final"} == {setup}


def test_all_failed_is_one_line_and_no_test_image(tmp_path):
    run = sweeps.pretending(dict.fromkeys(CHOOSE, "loss is nan"))
    with pytest.raises(results.Failed) as caught:
        transfer.sweep(sweeps.plan(), tmp_path, run=run)
    assert str(caught.value) == (
        "transfer: every candidate failed, so none is chosen: choose/vit-lr0.003: loss is nan"
    )
    assert caught.value.exit_code == 70
    stored = read(tmp_path)
    assert (stored["chosen"], stored["results"]) == (None, None)
    assert {cell["stage"] for cell in stored["cells"]} == {"choose"}


def test_mean_and_deviation(tmp_path):
    found = transfer.sweep(sweeps.plan(), tmp_path, run=sweeps.pretending(GOOD))
    top1 = found["results"]["top1"]
    assert top1["values"] == [0.5, 0.625]
    assert top1["mean"] == np.mean(top1["values"])
    assert top1["std"] == pytest.approx(np.std(top1["values"], ddof=1), rel=1e-15)
    assert set(found["results"]) == {"top1", "loss"}
    text = (tmp_path / "transfer.md").read_text()
    assert "| top1 | 56.25 % | 8.84 % |" in text
    assert "| vit | 0.03 | 80.00 % | chosen |" in text
    one = transfer.sweep(sweeps.plan(seeds=(0,)), tmp_path / "one", run=sweeps.pretending(GOOD))
    assert one["results"]["top1"] == {"mean": 0.5, "std": None, "values": [0.5]}


def test_the_papers_number_is_beside_ours(tmp_path):
    plan = transfer.create("finetune/ViT-L_16-jft-cifar10", {}, rates=(0.01,), seeds=(0,))
    transfer.sweep(plan, tmp_path, run=sweeps.pretending({"final/seed0": 0.9}))
    mean, std = paper.TABLE_2["ViT-L/16", "jft"].cifar10
    text = (tmp_path / "transfer.md").read_text()
    assert f"{mean:g} ± {std:g} % | 5, 6, 2 |" in text


@pytest.mark.slow
def test_no_test_image_is_opened_before_the_choice(tmp_path, monkeypatch):
    """Every split that is opened, in order, in a whole transfer that trains."""
    opened, begin = [], sources.Digits.__init__

    def spy(self, split, key):
        opened.append(split)
        begin(self, split, key)

    def run(cells, *places, started, **keywords):
        def starting(cell):
            opened.append(cell.stage)
            started(cell)

        sweeps.here(cells, *places, started=starting, **keywords)

    monkeypatch.setattr(sources.Digits, "__init__", spy)
    transfer.sweep(sweeps.plan(seeds=(0,)), tmp_path, run=run)
    before = opened[: opened.index("final")]
    assert set(before) == {"choose", "train[:80%]", "train[80%:]"}
    after = opened[opened.index("final") :]
    assert set(after) == {"final", "train", "test"}
    assert after.count("test") == 1  # once for each run
    # And it was measured once.
    lines = (tmp_path / "final/seed0/metrics.jsonl").read_text().splitlines()
    assert sum("test/top1" in line for line in lines) == 1


def test_a_terminal_shows_a_table_of_cells(tmp_path, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    failing = GOOD | {CHOOSE[0]: "loss is nan"}
    transfer.sweep(sweeps.plan(), tmp_path, run=sweeps.pretending(failing))
    shown = sys.stderr.getvalue()
    for words in ("choose/vit-lr0.003", "failed", "loss is nan", "0.8000", "final/seed1"):
        assert words in shown


def test_what_is_finished_is_not_run_again(tmp_path):
    class Killed(Exception):
        pass

    def killed_after(count):
        log = []

        def run(cells, *places, **keywords):
            for cell in cells:
                if len(log) == count:
                    keywords["started"](cell)
                    raise Killed
                sweeps.pretending(GOOD, log)([cell], *places, **keywords)

        return run, log

    for stop, expected in ((1, CHOOSE[:1]), (1, CHOOSE[1:]), (1, FINAL[:1])):
        run, log = killed_after(stop)
        with pytest.raises(Killed):
            transfer.sweep(sweeps.plan(), tmp_path, run=run)
        assert tuple(log) == expected
    log = []
    found = transfer.sweep(sweeps.plan(), tmp_path, run=sweeps.pretending(GOOD, log))
    assert tuple(log) == FINAL[1:]
    unbroken = transfer.sweep(sweeps.plan(), tmp_path / "other", run=sweeps.pretending(GOOD))
    assert found == unbroken
    log.clear()
    assert transfer.sweep(sweeps.plan(), tmp_path, run=sweeps.pretending(GOOD, log)) == found
    assert not log


def test_another_seed_can_be_added_another_rate_cannot(tmp_path):
    transfer.sweep(sweeps.plan(seeds=(0,)), tmp_path, run=sweeps.pretending(GOOD))
    log = []
    found = transfer.sweep(sweeps.plan(), tmp_path, run=sweeps.pretending(GOOD, log))
    assert log == ["final/seed1"]
    assert found["results"]["top1"]["values"] == [0.5, 0.625]
    with pytest.raises(config.ConfigError) as caught:
        transfer.sweep(sweeps.plan(rates=(0.003,), train__batch_size="8"), tmp_path)
    assert str(caught.value) == (
        f"--workdir={tmp_path}: holds another transfer (train.batch_size: 32 -> 8, rates: "
        "0.003,0.03 -> 0.003); go on without these changes, or choose another --workdir"
    )
    (tmp_path / "transfer.json").write_text("{")
    with pytest.raises(config.ConfigError, match=r"transfer.json is unreadable"):
        transfer.sweep(sweeps.plan(), tmp_path)


@pytest.mark.slow
def test_a_cell_is_never_continued_with_other_knobs(tmp_path):
    cell, other = sweeps.plan(train__duration="4 steps").candidates
    worker.work(cell.cfg, tmp_path, "final/seed0")
    with pytest.raises(config.ConfigError, match=r"another run \(optimizer.lr: 0.003 -> 0.03\)"):
        worker.work(other.cfg, tmp_path, "final/seed0")
    again = worker.work(cell.cfg, tmp_path, "final/seed0")  # only measured again
    assert (again["state"], again["steps"]) == ("done", 4)


def test_a_run_that_diverges_fails(tmp_path, monkeypatch):
    def diverge(cfg, workdir):
        raise loop.Diverged("step 3: loss nan")

    cell, _ = sweeps.plan().candidates
    with monkeypatch.context() as patch:
        patch.setattr(worker.run, "train", diverge)
        answer = worker.work(cell.cfg, tmp_path, "a")
    assert (answer["state"], answer["why"]) == ("failed", "step 3: loss nan")
    # Finite steps, but parameters whose held-out loss is not.
    outcome = worker.run.Outcome(
        workdir=tmp_path, steps=3, seconds=1.0, results={"validation/loss": float("inf")}, files=()
    )
    monkeypatch.setattr(worker.run, "train", lambda cfg, workdir: outcome)
    answer = worker.work(cell.cfg, tmp_path, "a")
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
        found = vtab.means(tasks)
        names = ("vtab/natural", "vtab/specialized", "vtab/structured", vtab.OVERALL)
        assert tuple(found) == names
        for name, mean in zip(names, wanted, strict=True):
            assert found[name]["values"][0] == pytest.approx(mean, abs=0.051)
            assert found[name]["mean"] == pytest.approx(found[name]["values"][0] + 1)
            assert found[name]["std"] == pytest.approx(2**0.5)
        named = [t | {"name": f"vtab/ViT-{t['task'].removeprefix('vtab/')}"} for t in tasks]
        assert transfer.vtab_means([*named, {"name": "other", "task": "pets"}]) == {
            "vtab/ViT": found
        }
        assert transfer.vtab_means(named[1:]) == {}
        assert vtab.means(tasks[:-1]) is None
        assert vtab.means([*tasks[:-1], one("dtd", [1.0, 2.0])]) is None


def test_a_tiny_copy_of_a_whole_transfer(tmp_path, monkeypatch):
    create = sharding.create_mesh
    monkeypatch.setattr(sharding, "create_mesh", lambda fsdp: create(fsdp, jax.devices()[:1]))
    plan = transfer.create(
        "finetune/ViT-H_14-jft-imagenet-518", {}, rates=(0.003, 0.06), seeds=(0,), tiny=True
    )
    found = transfer.sweep(plan, tmp_path, run=sweeps.here)
    assert [cell["steps"] for cell in found["cells"]] == [2, 2, 2]
    assert [cell["results"]["count"] for cell in found["cells"]] == [3, 3, 32]
    assert found["results"]["top1"]["values"] == [found["cells"][-1]["results"]["top1"]]
