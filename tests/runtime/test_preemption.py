"""A signal in any phase, or announced maintenance: the run saves, and exits with 75."""

import contextlib
import http.server
import os
import signal
import sys
import threading
import time
import types

import pytest
from PIL import Image

import runs
import serving
from vit_jax.inference import loading
from vit_jax.runtime import preemption

# Where the run is saved when the signal comes at the first time in the phase.
SAVED = {"evaluate": {10}, "save": range(5, 26), "data": {7}}


def start_in(phase, workdir):
    """Starts a run whose phase takes long, and waits until it is in that."""
    command = runs.command(workdir)
    process = runs.start(
        [sys.executable, str(runs.ROOT / "tests/helpers/slow_phases.py"), phase, *command[3:]],
        env=runs.environment(),
    )
    read_to(process, "AT ")
    return process


def read_to(process, start):
    """The lines up to one with this start; fails where the process ends before it."""
    lines = []
    for line in iter(process.stdout.readline, ""):
        lines.append(line)
        if line.startswith(start):
            return lines
    pytest.fail("".join(lines))


@pytest.mark.slow  # of phases before the first step: test_signals.py
@pytest.mark.parametrize(
    ("phase", "times"), [("data", 1), ("data", 2), ("evaluate", 1), ("save", 1), ("save", 2)]
)
def test_a_signal_in_any_phase_saves(phase, times, tmp_path):
    workdir = tmp_path / "run"
    process = start_in(phase, workdir)
    with process, runs.killed_after(600, process):
        for _ in range(times):
            process.send_signal(signal.SIGTERM)
            # Two signals that wait for their handler are one, to Python as to the kernel; and one
            # that comes just before a wait for data is handled when that ends, up to 0.5 s later.
            read_to(process, "SIGTERM received: saving and stopping")
        output = process.stdout.read()  # communicate would lose what is read ahead
        assert process.wait() == 75, output
    assert "resume with the same command" in output
    assert "SIGTERM received" not in output
    assert loading.find_checkpoint(workdir, "newest")[1] in SAVED[phase]


# Run by every Python process that finds it: once there is a file `stuck`, images are never opened.
STUCK_DISK = """
import os
import time

open_ = os.open

def stuck(path, *arguments, **keywords):
    while str(path).endswith(".png") and os.path.exists(os.environ["STUCK"]):
        time.sleep(1)
    return open_(path, *arguments, **keywords)

os.open = stuck
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_disk_that_does_not_answer_keeps_no_process(workers, tmp_path):
    folder, workdir = tmp_path / "images", tmp_path / "run"
    files = [
        folder / part / label / f"{number}.png"
        for part in ("train", "test")
        for label in "ab"
        for number in range(32)
    ]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8)).save(file)
    cfg = runs.configure(
        data={"source": "folder", "root": str(folder), "workers": workers,
              "train_split": "train", "eval_split": "test"},
        model={"num_classes": 2}, train={"duration": 100_000}, checkpoint={"every": 50_000},
    )  # fmt: skip
    (tmp_path / "sitecustomize.py").write_text(STUCK_DISK)
    environment = runs.environment(STUCK=str(tmp_path / "stuck"))
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), environment["PYTHONPATH"]])
    process = runs.start(runs.command(workdir, cfg=cfg), env=environment)
    lines = iter(process.stdout.readline, "")
    assert any(line.startswith("step 10/") for line in lines)
    (tmp_path / "stuck").touch()
    time.sleep(3)  # until what was read ahead is used up
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 75, output
    assert f"saved at step {loading.find_checkpoint(workdir, 'newest')[1]}; resume" in output


@contextlib.contextmanager
def metadata_server(answers):
    """Runs a server that gives these answers one after another, the last one for ever."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            asked.append((self.path, self.headers["Metadata-Flavor"]))
            answer = answers.pop(0) if len(answers) > 1 else answers[0]
            status = 503 if answer is None else 200
            text = (answer or "").encode()
            self.send_response(status)
            self.send_header("ETag", f"tag{len(asked)}")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    with serving.running(http.server.ThreadingHTTPServer(("localhost", 0), Handler)) as server:
        yield f"localhost:{server.server_port}", asked


def test_announced_maintenance_stops_the_run_as_a_signal_does():
    answers = ["NONE", "MIGRATE_ON_HOST_MAINTENANCE", "TERMINATE_ON_HOST_MAINTENANCE"]
    with metadata_server(answers) as (address, asked), preemption.Stop() as stop:
        preemption.start_watching(address, lambda: os.kill(os.getpid(), signal.SIGTERM))
        until = time.monotonic() + 60
        while not stop() and time.monotonic() < until:
            time.sleep(0.01)
        assert stop.signal == signal.SIGTERM
    paths, flavours = zip(*asked, strict=True)
    assert set(flavours) == {"Google"}
    assert [path.partition("?")[0] for path in paths] == [preemption.KEY] * 3
    assert paths[0].partition("?")[2] == ""  # what holds now, then what changes
    assert paths[1].endswith("?wait_for_change=true&timeout_sec=60&last_etag=tag1")
    assert paths[2].endswith("&last_etag=tag2")


def test_a_server_that_fails_is_asked_again(monkeypatch):
    monkeypatch.setattr(preemption, "PAUSE", 0.01)
    told = threading.Event()
    with metadata_server(["NONE"]) as (nobody, _):
        pass  # nobody listens there any more
    done = preemption.start_watching(nobody, told.set)
    (thread,) = (one for one in threading.enumerate() if one.name == "notices")
    assert thread.daemon  # a server that does not answer keeps no process alive
    time.sleep(0.05)
    done.set()
    with metadata_server([None, "", "TERMINATE_ON_HOST_MAINTENANCE"]) as (address, asked):
        preemption.start_watching(address, told.set)
        assert told.wait(60)
    assert len(asked) == 3


def test_a_server_without_an_answer_is_left_alone_for_a_while():
    pauses = []
    done = types.SimpleNamespace(is_set=lambda: False, wait=pauses.append)
    with metadata_server([None, "TERMINATE_ON_HOST_MAINTENANCE"]) as (address, _):
        preemption._ask(address, lambda: None, done)
    assert pauses == [preemption.PAUSE]


def test_elsewhere_nobody_is_asked(monkeypatch):
    monkeypatch.setattr(preemption, "start_watching", lambda *_: 1 / 0)
    with preemption.watch_maintenance():
        pass


def test_maintenance_is_a_signal_to_this_process(monkeypatch):
    sent, done = [], threading.Event()
    monkeypatch.setattr(preemption.jax, "default_backend", lambda: "tpu")
    monkeypatch.setattr(preemption.os, "kill", lambda *given: sent.append(given))
    monkeypatch.setattr(preemption, "start_watching", lambda server, notify: notify() or done)
    with preemption.watch_maintenance():
        assert sent == [(os.getpid(), signal.SIGTERM)]
        assert not done.is_set()
    assert done.is_set()


@pytest.mark.parametrize(
    ("number", "several", "passed"),
    [(signal.SIGINT, True, True), (signal.SIGTERM, True, False), (signal.SIGINT, False, False)],
)
def test_the_other_processes_of_a_run_are_told_by_the_signal_of_jax(
    number, several, passed, monkeypatch
):
    sent = []
    monkeypatch.setattr(preemption.os, "kill", lambda *given: sent.append(given))
    monkeypatch.setattr(preemption.jax.distributed, "is_initialized", lambda: several)
    preemption.Stop().noted(number)
    assert sent == [(os.getpid(), signal.SIGTERM)] * passed


def test_processes_do_not_stop_between_steps(monkeypatch):
    stop = preemption.Stop()
    stop.signal = signal.SIGTERM
    assert stop()
    monkeypatch.setattr(preemption.jax, "process_count", lambda: 2)
    assert not stop()
