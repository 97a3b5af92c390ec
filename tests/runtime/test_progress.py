"""What a run shows: on terminals of 60 and 200 columns, in a log, and when."""

import contextlib
import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import textwrap
import time
import types
from unittest import mock

import pytest
from rich.cells import cell_len

import runs
from vit_jax.runtime import logs, progress
from vit_jax.runtime.progress import Field

FIELDS = [
    Field(4, "epoch 60.1"), Field(0, "loss 0.5404"), Field(2, "4,651 img/s"),
    Field(7, "581/device"), Field(6, "data wait 7%"), Field(5, "MFU 41.0%"), Field(1, "ETA 9s"),
]  # fmt: skip
WHOLE = "epoch 60.1  loss 0.5404  4,651 img/s  581/device  data wait 7%  MFU 41.0%  ETA 9s"


class Screen:
    """What a process has written to a terminal of some width."""

    def __init__(self, arguments, columns, **variables):
        parent, child = pty.openpty()
        fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        variables = {"TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"} | variables
        env = runs.environment(**variables)
        for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"):
            env.pop(name, None)
        chunks = []
        process = subprocess.Popen(arguments, stdin=child, stdout=child, stderr=child, env=env)
        os.close(child)
        with contextlib.suppress(OSError):  # how Linux says that the other end is closed
            while chunk := os.read(parent, 2**16):
                chunks.append(chunk)
        os.close(parent)
        self.code = process.wait()
        self.text = b"".join(chunks).decode()
        plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.text)
        # Whatever was in a line at some time: it is written anew from its beginning.
        self.lines = [line for line in re.split(r"[\r\n]+", plain) if line.strip()]
        # And what is left in the end.
        kept = [re.split(r"\x1b\[2K", line)[-1] for line in self.text.split("\n")]
        kept = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", line).rstrip() for line in kept]
        self.left = [line for line in kept if line]


def script(body):
    code = (
        "import sys, time\n"
        "from vit_jax.runtime import logs, progress\n"
        "from vit_jax.runtime.progress import Field\n"
        f"fields = {[tuple(field) for field in FIELDS]!r}\n"
        "fields = [Field(*field) for field in fields]\n"
        "logs.setup()\n"
    )
    return [sys.executable, "-c", code + textwrap.dedent(body)]


RUN = """
    shown = progress.Progress()
    shown.doing("opening the data")
    time.sleep(1.5)
    shown.say("home: 1,000 parameters, in /a/folder/" + "long/" * 30 + "[end]")
    shown.doing("compiling the step")
    time.sleep(0.6)
    shown.begin(2021, 7)
    time.sleep(0.6)
    for step in (8, 1350):
        shown.update(step, fields)
        time.sleep(0.6)
    logs.log.warning("a warning between two frames")
    shown.due(1351)
    shown.doing("evaluating test")
    time.sleep(0.6)
    shown.update(2021, fields, final=True)
    shown.close()
    print("after")
"""


@pytest.mark.parametrize("columns", [60, 200])
def test_a_terminal_has_one_live_line_that_fits(columns):
    screen = Screen(script(RUN), columns)
    assert screen.code == 0, screen.text
    (path,) = (line for line in screen.lines if "/a/folder/" in line)
    assert path.endswith("long/[end]")  # whole, for the terminal to wrap
    assert max(cell_len(line) for line in screen.lines if line != path) <= columns
    live = [line for line in screen.lines if "step 1350/2021" in line]
    assert live
    expected = WHOLE if columns == 200 else "loss 0.5404  4,651 img/s  ETA 9s"
    assert any(line.endswith(f"step 1350/2021  {expected}") for line in live)
    assert ("━" in live[0]) == (columns == 200)
    for what in ("opening the data 0s", "opening the data 1s", "compiling the step 0s"):
        assert any(what in line for line in screen.lines), what
    assert any("step 7/2021" in line and "first step 0s" in line for line in screen.lines)
    assert any("step 1351/2021" in line and "evaluating test" in line for line in screen.lines)
    # What stays: the lines that were said, the last state of the run, and what comes after.
    assert [line for line in screen.left if line != path][-3:] == [
        "a warning between two frames",
        [line for line in screen.lines if "step 2021/2021" in line][-1].rstrip(),
        "after",
    ]


def test_a_dumb_terminal_is_as_a_log():
    body = """
        shown = progress.Progress()
        shown.begin(9)
        shown.update(1, fields)
        shown.close()
    """
    screen = Screen(script(body), 80, TERM="dumb")
    assert screen.text == f"step 1/9  {WHOLE}\r\n"


@pytest.fixture
def log(caplog, monkeypatch):
    """What a log gets of a run; standard error is no terminal in tests."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)
    with caplog.at_level("INFO", "vit_jax"):
        yield caplog


def test_a_log_gets_the_first_step_at_once_and_then_lines_by_time(log, monkeypatch):
    clock = types.SimpleNamespace(now=100.0)
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock.now)
    shown = progress.Progress()
    shown.begin(100)
    for step in range(1, 61):
        clock.now += 4.0
        logged = step % 5 == 0  # every 20 s
        if logged or shown.due(step):
            shown.update(step, [Field(0, f"loss {step}")])
    assert log.messages == [f"step {s}/100  loss {s}" for s in (1, *range(5, 61, 5))]
    log.clear()
    for step in range(61, 100):  # nothing is logged: a line a minute
        clock.now += 4.0
        if shown.due(step):
            shown.update(step, [])
    assert log.messages == ["step 76/100", "step 92/100"]
    log.clear()
    for step in range(100, 130):  # more often than every 10 s it is too much
        clock.now += 1.0
        shown.update(step, [], final=step == 129)
    assert len(log.messages) == 4
    assert log.messages[-1] == "step 129/100"


def test_a_log_says_what_takes_long(log):
    shown = progress.Progress()
    shown.doing("opening the data", slow=60.0)
    shown.doing("compiling the step", slow=0.0)
    assert log.messages == ["compiling the step ..."]
    shown.doing("looking for a checkpoint", slow=0.05)
    until = time.monotonic() + 30
    while len(log.messages) < 2 and time.monotonic() < until:
        time.sleep(0.01)
    shown.doing("never said", slow=0.2)
    shown.close()
    time.sleep(0.4)
    assert log.messages == ["compiling the step ...", "looking for a checkpoint ..."]


def test_other_processes_of_a_run_say_nothing(log):
    shown = progress.Progress(active=False)
    shown.doing("compiling the step", slow=0.0)
    shown.say("resuming")
    shown.begin(9)
    assert not shown.due(1)
    shown.update(9, FIELDS, final=True)
    shown.close()
    assert log.messages == []


def test_a_live_line_is_on_standard_error_and_stays_once_there_were_steps(monkeypatch):
    consoles, lives = [], []

    def console(**given):
        consoles.append(given)
        return mock.Mock(is_interactive=True, encoding="utf-8")

    def live(shown, **given):
        lives.append(mock.Mock())
        return lives[-1]

    monkeypatch.setattr(progress, "Console", console)
    monkeypatch.setattr(progress, "Live", live)
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: True)
    for steps in (0, 3):
        shown = progress.Progress()
        shown.begin(9)
        assert "step 0/9" in [field.text for field in shown._line(ascii_only=True)]
        shown.say("resuming")
        if steps:
            shown.update(steps, FIELDS)
        shown.close()
        assert lives[-1].transient == (steps == 0)
        ((said,), _) = lives[-1].console.print.call_args
        assert said == "resuming"
        lives[-1].stop.assert_called_once_with()
    assert consoles == 2 * [{"stderr": True}]


def test_messages_follow_standard_error(monkeypatch):
    """The handler is made before a live line takes the place of the stream."""
    logs.setup()
    for text in ("one", "two"):
        monkeypatch.setattr(sys, "stderr", io.StringIO())
        logs.log.warning(text)
        assert sys.stderr.getvalue() == f"{text}\n"


@pytest.mark.parametrize(
    ("bar", "counts", "line"),
    [
        (progress.Bar("photos", 1000), [(100,), (320,)], "photos: 320 of 1,000, 20/s, 34s left"),
        (progress.Bar("photos", 10), [(2,), (5,)], "photos: 5 of 10, 0.27/s, 18s left"),
        (
            progress.Bar("b.npz", bytes_=True),
            [(0, 48_000_000), (22_000_000, 44_000_000)],
            "b.npz: 22,000,000 of 44,000,000 bytes, 2.0 MB/s, 11s left",
        ),
    ],
    ids=["images", "slow", "bytes"],
)
def test_a_bar_is_a_log_line_off_a_terminal(bar, counts, line, monkeypatch, caplog):
    caplog.set_level("INFO")
    clock = iter([0.0, 11.0])
    monkeypatch.setattr(bar, "_said", -5.0)
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    with bar:
        for count in counts:
            bar.update(*count)
    assert caplog.messages == [line]
