"""Cells as processes: their answers, their shares of the devices, and what stops them."""

import io
import json
import os
import signal
import sys
import threading
import types

import pytest

import image_folders
import runs
from vit_jax import config
from vit_jax.data import sources
from vit_jax.runtime.preemption import Preempted
from vit_jax.studies import processes, worker
from vit_jax.studies.cells import Cell
from vit_jax.training import run_config

# Does what the directory of its cell says.
WORKER = """
import json, os, pathlib, signal, sys
workdir, what = pathlib.Path(sys.argv[1]), sys.argv[2].rpartition("/")[2]
job = json.loads(sys.stdin.readline())
print("of no interest\\nthe reason\\nnot a whole li", end="", file=sys.stderr, flush=True)
stopped = {"state": "stopped", "why": "saved", "exit_code": 75}
if what == "trains":
    signal.signal(signal.SIGTERM, lambda *_: print(json.dumps(stopped)) or sys.exit())
    (workdir / "trains/begun").touch()
    signal.alarm(20)  # if nobody stops it
    while True:
        signal.pause()
if what == "dies":
    sys.exit(3)
if what == "silent":
    sys.exit()
if what == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
answer = {"state": what, "seed": job["config"]["seed"], "share": os.environ.get("SHARE")}
answer["alone"] = os.getsid(0) == os.getpid()
if what == "stopped":
    answer |= {"why": "no data", "exit_code": 2}
print("not the answer")
print(json.dumps(answer))
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a cell for each directory; returns the ended ones, by directory, and the news."""
    (tmp_path / "toy_worker.py").write_text(WORKER)
    monkeypatch.syspath_prepend(tmp_path)
    log, news = {}, []

    def cell(seed, directory):
        cfg = config.Config(seed=seed)
        return Cell(directory=directory, cfg=cfg, worker="toy_worker")

    def ended(cell, seconds, answer):
        assert seconds > 0
        log[cell.directory] = answer

    def run(*directories, shares=({},)):
        processes.run(
            [cell(*pair) for pair in enumerate(directories)], tmp_path, shares,
            started=lambda cell: log.update({cell.directory: None}), ended=ended,
            watch=news.append,
        )  # fmt: skip
        return log

    run.log, run.news, run.workdir = log, news, tmp_path
    return run


def test_every_cell_has_its_config_and_a_share_of_the_devices(run):
    found = run("a/done", "b/done", "c/done", shares=({"SHARE": "0"}, {"SHARE": "1"}))
    assert [one["seed"] for one in found.values()] == [0, 1, 2]
    assert {one["share"] for one in found.values()} == {"0", "1"}
    assert all(one["alone"] for one in found.values())  # a terminal's Ctrl-C is the parent's alone
    assert {"the reason"} >= {line for news in run.news for line in news.values()} - {""}


def test_cells_import_what_their_parent_would(run, tmp_path, monkeypatch):
    """A folder of the package's name in the current one, such as a clone, is no module of cells."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "toy_worker.py").write_text("raise SystemExit('the wrong one')")
    monkeypatch.chdir(folder)
    assert run("a/done")["a/done"]["state"] == "done"
    (folder / "toy_worker.py").write_text(WORKER)
    monkeypatch.setattr(sys, "path", ["", *(one for one in sys.path if one != str(tmp_path))])
    assert run("b/done")["b/done"]["state"] == "done"  # as in a notebook


@pytest.mark.parametrize(
    ("what", "code", "why"),
    [
        ("stopped", 2, "a/stopped: no data"),
        ("dies", 70, "a/dies: ended with code 3: the reason; see .*log.txt; the same command resu"),
        ("killed", 70, "a/killed: killed: the reason; see"),
        ("silent", 70, "a/silent: ended with code 0: the reason; see"),  # as by a plug-in
    ],
)
def test_a_cell_that_cannot_go_on_stops_the_others(run, what, code, why):
    with pytest.raises(processes.CellStopped, match=why) as caught:
        run(f"a/{what}", "trains", "c/done", shares=({}, {}))
    assert caught.value.exit_code == code
    assert run.log["trains"]["why"] in ("saved", "stopped")  # it may not have begun to listen
    assert "c/done" not in run.log


def test_a_signal_stops_all_after_they_have_saved(run):
    def interrupt():
        while not (run.workdir / "trains/begun").exists():
            threading.Event().wait(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(Preempted):
        run("trains", "b/done")
    thread.join()
    assert run.log == {"trains": {"state": "stopped", "why": "saved", "exit_code": 75}}


@pytest.mark.parametrize("state", ["done", "failed", "stopped"])
def test_a_cell_that_has_ended_well_is_measured(state, tmp_path, monkeypatch, capsys):
    """The thread that ends the process with its parent does not keep it alive.

    One that is stopped does not wait for threads that still compile.
    """
    job = {"config": config.to_dict(config.Config()), "alike": True}
    job["measurements"] = [{"top": 1}, {"top": 5}]
    trained, watching, ended, answers = [], [], [], io.StringIO()

    def train_cell(cfg, workdir, directory, *, alike):
        print("of a plug-in", end="")
        trained.append((cfg, workdir, directory, alike))
        if state == "stopped":
            raise Preempted("saved")
        return {"state": state, "results": {"loss": 0.5}}

    def measure(path, one):
        assert path == tmp_path / "cell"
        return {f"top{one['top']}": 0.25}

    class Thread:
        def __init__(self, target, daemon=False):
            watching.append((target, daemon))

        def start(self):
            watching.append("started")

    for name in ("device.step_by_step", "backend.choose_platform", "logs.setup"):
        monkeypatch.setattr(f"vit_jax.runtime.{name}", lambda: None)
    monkeypatch.setattr(worker, "_take_output", lambda: answers)
    monkeypatch.setattr(worker, "train_cell", train_cell)
    monkeypatch.setattr(worker, "threading", types.SimpleNamespace(Thread=Thread))
    monkeypatch.setattr(sys, "argv", ["worker", str(tmp_path), "cell"])
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(job) + "\n"))
    monkeypatch.setattr(worker.os, "_exit", ended.append)
    worker.serve(measure)
    assert ended == ([0] if state == "stopped" else [])
    assert trained == [(config.Config(), tmp_path, "cell", True)]
    assert watching == [(worker._end_with_parent, True), "started"]
    measured = {"top1": 0.25, "top5": 0.25} if state == "done" else {}
    expected = {"state": state, "results": {"loss": 0.5} | measured}
    if state == "stopped":
        expected = {"state": state, "why": "saved", "exit_code": 75}
    assert json.loads(answers.getvalue()) == expected
    assert capsys.readouterr().out == "of a plug-in"


def test_what_a_cell_prints_is_no_part_of_its_answer(capfd):
    """Nor does it fill the pipe, which is read at the end."""
    own = os.dup(1)
    try:
        with worker._take_output() as answers:
            os.write(1, b"progress")
            answers.write("answer")
    finally:
        os.dup2(own, 1)
        os.close(own)
    assert capfd.readouterr() == ("answer", "progress")


def test_a_cell_is_trained_in_its_directory_unless_that_holds_another_run(tmp_path, monkeypatch):
    cfg, calls = runs.configure(), []
    (tmp_path / "cell").mkdir()
    record = config.to_dict(run_config.complete(cfg))
    (tmp_path / "cell/config.json").write_text(json.dumps(record))

    def train(*given, like):
        calls.append((*given, like))
        return types.SimpleNamespace(steps=25, last={"validation/loss": 0.5})

    monkeypatch.setattr(worker.train_loop, "train", train)
    monkeypatch.setattr(worker.device, "cache_programs", lambda: None)
    found = worker.train_cell(cfg, tmp_path, "cell")
    assert calls == [(cfg, tmp_path / "cell", None)]
    assert (found["state"], found["steps"]) == ("done", 25)
    (tmp_path / "cell/metrics.jsonl").write_text('{"step": 1}\n')
    another = runs.configure(seed=1)
    with pytest.raises(config.ConfigError, match=r"holds another run \(seed: 0 -> 1\); choose"):
        worker.train_cell(another, tmp_path, "cell")
    assert len(calls) == 1
    for name in ("began", "trained", "waits"):  # one has a checkpoint
        (tmp_path / name).mkdir()
    (tmp_path / "trained/checkpoints/00000003").mkdir(parents=True)
    (tmp_path / "trained/checkpoints/00000003/commit.json").write_text("")
    for name, like in (("cell", tmp_path / "trained"), ("trained", None)):
        worker.train_cell(cfg, tmp_path, name, alike=True)
        assert calls.pop() == (cfg, tmp_path / name, like)


def test_a_stage_reads_the_images_of_the_one_before(tmp_path, monkeypatch):
    """Which trained on a part of them, so that the fingerprints of the runs differ anyway."""
    names = [f"train/{c}/{i}.jpg" for c in "ab" for i in range(9)]
    image_folders.fill(tmp_path / "images", *names)
    data = {"source": "folder", "root": str(tmp_path / "images")}
    parts = {"train_split": "train[:50%]", "eval_split": "train[50%:]"}
    cfg = config.build({"data": data | parts, "model": {"num_classes": 2}})
    train, held = (sources.open_split(cfg, split).fingerprint() for split in parts.values())
    trained_on, open_source = [], sources.open_source
    monkeypatch.setattr(
        sources,
        "open_source",
        lambda data, split, *, train, **given: (
            trained_on.extend([split] * train) or open_source(data, split, train=train, **given)
        ),
    )
    record = {"config": config.to_dict(cfg), "data": train, "measured": {"validation": held}}
    monkeypatch.setattr(worker.records, "find_step", lambda *given: (3, record))
    monkeypatch.setattr(worker.device, "cache_programs", lambda: None)
    ended = types.SimpleNamespace(steps=25, last={})
    monkeypatch.setattr(worker.train_loop, "train", lambda *given, like: ended)
    (tmp_path / "final/seed0").mkdir(parents=True)
    done = tmp_path / "choose/vit/checkpoints/00000003"
    done.mkdir(parents=True)
    (done / "commit.json").write_text("")
    assert worker.train_cell(cfg, tmp_path, "final/seed0", alike=True)["state"] == "done"
    assert trained_on == [parts["train_split"]]  # so that it has `data.examples`
    image_folders.fill(tmp_path / "images", *(f"train/a/new{i}.jpg" for i in range(4)))
    with pytest.raises(config.ConfigError, match=r"compared with .*/vit: .* of train\[:50%\] are"):
        worker.train_cell(cfg, tmp_path, "final/seed0", alike=True)
    assert worker.train_cell(cfg, tmp_path, "final/seed0")["state"] == "done"
    record["data"] = sources.open_split(cfg, parts["train_split"]).fingerprint()
    with pytest.raises(config.ConfigError, match=r"the examples of train\[50%:\] are not those"):
        worker.train_cell(cfg, tmp_path, "final/seed0", alike=True)


def test_a_worker_that_a_user_starts_says_what_it_is(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/code/research/label_neighbors.py", "--help"])
    with pytest.raises(SystemExit, match=r"^label_neighbors.py: runs a cell of a study, which st"):
        worker.serve()


def test_a_cell_ends_once_its_standard_input_is_closed(monkeypatch):
    """Whatever else comes on it."""
    read = iter([b"a", b"b", b""])
    calls = []
    monkeypatch.setattr(worker, "os", types.SimpleNamespace(
        read=lambda *given: calls.append(given) or next(read), _exit=calls.append
    ))  # fmt: skip
    worker._end_with_parent()
    assert calls == [(0, 1), (0, 1), (0, 1), 1]
