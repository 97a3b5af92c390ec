"""Ctrl-C and SIGTERM at any moment: never lost, heard at once, and the documented exit code."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
import types
from concurrent import futures

import cv2
import numpy as np
import pytest

import runs
from vit_jax.runs import session
from vit_jax.runtime import preemption, signals

# What the main thread does when the signals come, one after each line "now".
MOMENTS = {
    "sleeps": """
        now()
        time.sleep(60)
    """,
    # As jax does at each collection, and as `except:` does.
    "loses it": """
        gc.callbacks.append(lambda *_: time.sleep(0.5))
        now()
        gc.collect()
        gc.callbacks.clear()
        try:
            time.sleep(0.4)
        except BaseException:
            pass
        time.sleep(60)
    """,
    # A mutex locked twice: no signal wakes the thread, as none wakes one that compiles.
    "is outside Python": """
        libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
        libc.pthread_mutex_lock(mutex)
        now()
        libc.pthread_mutex_lock(mutex)
    """,
    "imports": """
        sys.path.insert(0, os.environ["FOLDER"])
        import takes_long
        time.sleep(60)
    """,
    "starts a child": """
        with signals.kept_from_children(signal.SIGINT):
            try:
                now()
                time.sleep(0.5)
            except KeyboardInterrupt:
                os._exit(3)
        time.sleep(60)
    """,
    "fails of it": """
        now()
        try:
            time.sleep(60)
        except KeyboardInterrupt:
            raise RuntimeError("INTERNAL: of a library's own")
    """,
    "has ended": """
        signals.finish(0)
        now()
        time.sleep(60)
    """,
    "saves": """
        try:
            with signals.StopSignal() as stop:
                stop.waiting_for = lambda: "compiling"
                now()
                while not stop.signal:
                    time.sleep(0.1)
                time.sleep(0.3)
                raise ValueError
        except ValueError:
            time.sleep(1.4)  # what comes after a save takes time, too
            sys.exit(75)
    """,
    "saves, and is asked twice": """
        with signals.StopSignal() as stop:
            libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
            libc.pthread_mutex_lock(mutex)
            now()
            time.sleep(0.3)
            now()
            libc.pthread_mutex_lock(mutex)
    """,
    "has forked": """
        signals.listen()
        child = os.fork()
        if not child:
            time.sleep(20)
            os._exit(0)
        time.sleep(0.2)  # the child has to give its signals back first
        os.kill(child, signal.SIGTERM)
        assert os.waitpid(child, 0)[1] == signal.SIGTERM
        time.sleep(0.5)
        now()
        time.sleep(60)
    """,
}
PROGRAM = """
import ctypes, gc, os, signal, sys, time
from vit_jax import cli
from vit_jax.runtime import signals

def now():
    os.write(1, b"now\\n")

def run(args, overrides):
{}
import vit_jax.cli.list_
vit_jax.cli.list_.run = run
sys.argv = ["vit_jax", os.environ["NAME"], *sys.argv[1:]]
if os.environ["NAME"] == "train":
    vit_jax.cli.train = sys.modules["vit_jax.cli.train"] = vit_jax.cli.list_
cli.entry()
"""


@pytest.fixture(scope="module")
def endings(tmp_path_factory):
    """The exit code and standard error of each moment, for a command and for `train`."""
    folder = tmp_path_factory.mktemp("moments")
    (folder / "takes_long.py").write_text(
        "import os, time\nos.write(1, b'now\\n')\ntime.sleep(0.6)\n"
    )

    def end(key):
        moment, name = key
        lines = textwrap.indent(textwrap.dedent(MOMENTS[moment]), "    ")
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM.format(lines)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=runs.environment(NAME=name, FOLDER=str(folder)),
        )
        with process, runs.killed_after(60, process):
            for line in iter(process.stdout.readline, ""):
                assert line == "now\n"
                process.send_signal(signal.SIGINT)
            return process.wait(), process.stderr.read()

    keys = [(moment, "list") for moment in MOMENTS]
    keys += [("sleeps", "train"), ("is outside Python", "train")]
    with futures.ThreadPoolExecutor(len(keys)) as pool:  # they sleep most of the time
        return dict(zip(keys, pool.map(end, keys), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("moment", sorted({*MOMENTS} - {"saves", "has ended"}))
def test_ctrl_c_ends_a_command_wherever_it_comes(moment, endings):
    code, errors = endings[moment, "list"]
    assert code == 130, errors
    assert errors.splitlines()[-1] == "vit_jax: interrupted"
    assert not re.search("Traceback|ignored", errors)


@pytest.mark.slow
def test_a_command_that_the_same_command_continues_ends_with_75(endings):
    for moment in ("sleeps", "is outside Python"):
        code, errors = endings[moment, "train"]
        assert (code, errors.splitlines()[-1]) == (
            75,
            "vit_jax: stopped before there was anything to save; the same command continues",
        )
    code, errors = endings["saves", "list"]
    assert (code, errors) == (75, "SIGINT received: saving and stopping\n")


@pytest.mark.slow
def test_a_signal_while_python_exits_prints_nothing(endings):
    assert endings["has ended", "list"] == (130, "")


@pytest.mark.parametrize("number", signals.NUMBERS)
def test_a_run_that_has_nothing_to_save_stops_at_once(number, tmp_path):
    with (
        pytest.raises(preemption.Preempted, match="nothing left to save; resume"),
        session.open_session(runs.configure(), tmp_path),
    ):
        signal.raise_signal(number)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_signal_that_came_before_is_not_forgotten():
    with preemption.Stop(holding=False) as stop:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):  # something swallowed the first one
            stop.hold()
    with preemption.Stop() as stop:
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            stop.release()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "workers"), [(signal.SIGINT, 2), (signal.SIGTERM, 0)])
def test_a_signal_at_any_time_of_a_run(number, workers, tmp_path):
    """From the first line on; before it, while Python starts, signals are Python's own.

    A terminal sends Ctrl-C to the loader processes, too.
    """

    def command(name):
        options = ["train.duration=3 steps", "schedule.warmup=1 steps", "logging.tensorboard=false"]
        options.append(f"data.workers={workers}")
        flags = [f"--config.{option}" for option in options]
        return [sys.executable, "-m", "vit_jax", "train", "digits", *flags, f"--workdir={name}"]

    whole, broken = tmp_path / "whole", tmp_path / "broken"
    begun = time.monotonic()
    subprocess.run(command(whole), env=runs.environment(), check=True)
    seconds = time.monotonic() - begun
    for part in range(1, 16):
        process = runs.start(command(broken), env=runs.environment(), start_new_session=True)
        try:
            output = process.communicate(timeout=seconds * part / 16)[0]
            assert process.returncode == 0  # quicker than the first, as it resumes
            continue
        except subprocess.TimeoutExpired:
            (os.killpg if workers else os.kill)(process.pid, number)
        output = process.communicate(timeout=240)[0]
        if process.returncode == 0:  # it had printed its results
            assert "curves.png" in output
            continue
        assert process.returncode == 75, (part, output)
        assert "Traceback" not in output
        # A line says so, unless all results are printed: then a signal ends the process at once.
        assert "the same command" in output or "curves.png" in output
    subprocess.run(command(broken), env=runs.environment(), check=True)
    assert runs.digests(broken) == runs.digests(whole)


def test_a_child_never_gets_the_signals_of_its_parent():
    """Not even while it imports; the parent gets them once it has started the child."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    code = "import signal; print(*map(int, signal.pthread_sigmask(signal.SIG_BLOCK, [])))"
    with signals.kept_from_children(signal.SIGINT, signal.SIGHUP):
        child = subprocess.run([sys.executable, "-Sc", code], stdout=-1, text=True, check=True)
    assert {*map(int, child.stdout.split())} >= {signal.SIGINT, signal.SIGHUP}
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


def test_the_first_child_of_multiprocessing_lets_no_signals_through():
    code = """if True:
        import multiprocessing, signal
        from vit_jax.runtime import signals
        with signals.kept_from_children(signal.SIGINT, signal.SIGTERM):
            multiprocessing.get_context("spawn").Event()  # Python starts a process for its name
            print(len(signal.pthread_sigmask(signal.SIG_BLOCK, [])))
        print(len(signal.pthread_sigmask(signal.SIG_BLOCK, [])))
    """
    child = subprocess.run([sys.executable, "-c", code], stdout=-1, text=True, check=True)
    assert child.stdout.split() == ["2", "0"]


@pytest.mark.slow
def test_ctrl_c_in_a_terminal_reaches_all_processes_of_a_command(tmp_path):
    """Workers that still import print nothing."""
    rng = np.random.default_rng(0)
    for name in ("a/0", "a/1", "b/0", "b/1"):
        (tmp_path / f"images/train/{name}").parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (9, 9, 3), np.uint8)
        assert cv2.imwrite(f"{tmp_path}/images/train/{name}.png", pixels)
    words = ["prepare", "mine", f"--from={tmp_path}/images", "--holdout=0.5", "--workers=2"]
    begun = time.monotonic()
    for part in (8, 4, 6):
        data_dir = f"--data-dir={tmp_path}/{part}"
        command = [sys.executable, "-m", "vit_jax", *words, data_dir]
        process = runs.start(command, env=runs.environment(), start_new_session=True)
        if part == 8:
            assert process.communicate(timeout=240)[1] is None
            whole = time.monotonic() - begun
            continue
        time.sleep(whole * part / 8)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
        output = process.communicate(timeout=60)[0]
        assert process.returncode in (0, 130), output
        assert "Traceback" not in output, output


@pytest.fixture
def listener(monkeypatch):
    """A listener that has not begun to listen."""
    made = signals._Listener(resumable=True)
    monkeypatch.setattr(signals, "_listener", made)
    return made


def test_the_exit_code_says_whether_the_same_command_goes_on(listener):
    listener._hear(signal.SIGTERM)
    assert listener.code() == 75
    listener.heard = [signal.SIGINT, signal.SIGINT]
    assert listener.code() == 130
    listener.resumable, listener.heard = False, [signal.SIGTERM, signal.SIGINT]
    assert listener.code() == 143


@pytest.mark.parametrize(("code", "heard", "ends"), [
    (0, [], 0), (0, [signal.SIGTERM], 75), (2, [signal.SIGTERM], 2), (70, [], 70),
])  # fmt: skip
def test_no_signal_is_in_vain_as_a_command_ends(code, heard, ends, listener):
    listener.heard = heard
    assert signals.finish(code) == listener.final == ends
    assert listener.heard == []


def test_an_interrupt_is_noted_where_it_is_raised(listener):
    with pytest.raises(signals.Interrupted) as caught:
        signals._interrupt(signal.SIGTERM)
    assert listener.raised() is caught.value
    assert listener.unwound
    assert listener.code() == 75
    listener.resumable = False
    assert listener.code() == 143


def test_a_lost_interrupt_is_raised_again_in_the_main_thread(listener, monkeypatch):
    sent = []
    monkeypatch.setattr(signal, "pthread_kill", lambda *given: sent.append(given))
    listener._raise_in_main(7.0)
    assert sent == [(threading.main_thread().ident, signal.SIGINT)]
    assert (listener._own, listener._again) == (1, 7.0)


def test_what_is_done_about_a_signal_is_said_once(listener, monkeypatch):
    said = []
    monkeypatch.setattr(signals.log, "warning", lambda text, *values: said.append(text % values))
    listener._hear(signal.SIGTERM)
    for doing in ("stopping", "stopping"):
        listener._announce(doing)
    assert said == ["SIGTERM received: stopping"]
    listener._hear(signal.SIGINT)
    listener._announce("saving")
    assert said[1:] == ["SIGINT received: saving"]
    listener._hear(signal.SIGINT)
    listener._announce("")  # by a stop that says nothing
    assert len(said) == 2


@pytest.mark.parametrize(
    ("words", "resumable"), [(["x", "train"], True), (["x", "list"], False), (["x"], False)]
)
def test_a_process_listens_for_the_command_that_it_runs(words, resumable, monkeypatch):
    handlers = {}
    monkeypatch.setattr(signals, "_listener", None)
    monkeypatch.setattr(signals._Listener, "start", lambda self: handlers.update(started=self))
    monkeypatch.setattr(signal, "signal", handlers.__setitem__)
    monkeypatch.setattr(signals.os, "register_at_fork", lambda **given: None)
    monkeypatch.setattr(signals.atexit, "register", lambda function: None)
    monkeypatch.setattr(sys, "unraisablehook", print)
    monkeypatch.setattr(sys, "argv", words)
    signals.listen()
    assert handlers.pop("started").resumable == resumable
    assert handlers == dict.fromkeys(signals.NUMBERS, signals._handle)


def test_a_save_is_waited_for_unless_the_user_insists(listener, monkeypatch):
    said, ended = [], []
    monkeypatch.setattr(signals.log, "warning", lambda text, *values: said.append(text % values))
    monkeypatch.setattr(listener, "_end", lambda: ended.append(1))
    stop = types.SimpleNamespace(holding=True, says="saving", waiting_for=lambda: "step 3")
    monkeypatch.setattr(signals, "_stops", [stop])
    listener._hear(signal.SIGINT)
    for seconds in (0.0, signals.GRACE + 1, signals.PATIENCE + 1, signals.UNWIND + 1):
        listener._act(listener._since + seconds)
    assert said == [
        "SIGINT received: saving",
        "waiting for: step 3; a second Ctrl-C ends this at once, unsaved",
    ]
    assert not ended
    listener._hear(signal.SIGINT)
    listener._act(listener._since + signals.GRACE + 0.1)
    assert ended


def test_an_interrupt_that_was_swallowed_is_raised_again_within_a_tick(listener, monkeypatch):
    again = []
    monkeypatch.setattr(listener, "_raise_in_main", again.append)
    listener._hear(signal.SIGINT)
    listener.raised, listener._again = (lambda: None), listener._since  # nobody handles it
    for share, raised in ((0.4, 0), (0.6, 1)):
        listener._act(listener._since + share * signals.TICK)
        assert len(again) == raised


def test_a_handled_signal_keeps_its_number(listener):
    listener.handled(signal.SIGTERM, None)
    listener.handled(0, None)
    assert listener.code() == 75
    listener.resumable = False
    assert listener.code() == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    ("final", "resumable", "code"),
    [(3, True, 3), (0, True, 75), (0, False, 143), (None, True, None)],
)
def test_a_signal_after_the_end_does_not_delay_it(final, resumable, code, listener, monkeypatch):
    def end(code):
        raise SystemExit(code)

    monkeypatch.setattr(signals.os, "_exit", end)
    noted = []
    stop = types.SimpleNamespace(note=lambda number: noted.append(number) or True)
    monkeypatch.setattr(signals, "_stops", [stop])
    listener.final, listener.resumable = final, resumable
    if code is None:
        signals._handle(signal.SIGTERM, None)
        assert noted == [signal.SIGTERM]
        return
    with pytest.raises(SystemExit) as ended:
        signals._handle(signal.SIGTERM, None)
    assert ended.value.code == code
    assert noted == []
