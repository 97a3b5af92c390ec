"""The process of a command, from its first line."""

import os
import subprocess
import sys

import pytest

from vit_jax import __main__, cli
from vit_jax.runtime import signals


class Ended(Exception):
    """Stands for the end of the process."""


@pytest.fixture
def happened(monkeypatch):
    """What the process does, in order."""
    found = []
    monkeypatch.setenv(__main__.TUNABLES, __main__.LARGE_PAGES + "=1")

    def end(code):
        found.append(("exit", code))
        raise Ended

    monkeypatch.setattr(signals, "listen", lambda: found.append("listens"))
    monkeypatch.setattr(cli, "entry", lambda: found.append("command"))
    monkeypatch.setattr(os, "write", lambda *words: found.append(words))
    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(os, "execv", lambda *words: found.append("again"))
    return found


def interrupt():
    raise KeyboardInterrupt


def test_signals_are_heard_before_the_command_begins(happened):
    __main__.entry()
    assert happened == ["listens", "command"]


def test_an_interrupt_before_signals_are_heard_is_one_line(happened, monkeypatch):
    monkeypatch.setattr(signals, "listen", interrupt)
    with pytest.raises(Ended):
        __main__.entry()
    assert happened == [(2, b"vit_jax: interrupted\n"), ("exit", 130)]


def test_an_interrupt_of_the_command_is_the_last_line_of_what_was_heard(happened, monkeypatch):
    monkeypatch.setattr(cli, "entry", interrupt)
    monkeypatch.setattr(signals, "last_line", lambda: "stopped by SIGTERM")
    monkeypatch.setattr(signals, "stopped", lambda: 143)
    with pytest.raises(Ended):
        __main__.entry()
    assert happened == ["listens", (2, b"vit_jax: stopped by SIGTERM\n"), ("exit", 143)]


@pytest.mark.skipif(sys.platform != "linux", reason="a setting of glibc")
@pytest.mark.parametrize("others", [[], ["glibc.malloc.check=0"]])
def test_a_command_begins_again_with_large_pages_and_with_its_arguments(others):
    begun = [sys.executable, "-m", "vit_jax", "train", "digits"]
    variables = os.environ | {__main__.TUNABLES: ":".join(others)}
    code = (
        f"import os, sys; sys.orig_argv = {begun}; sys.argv = {begun[2:]}\n"
        "from vit_jax import __main__\n"
        "os.execv = lambda *words: sys.exit(repr((words, os.environ[__main__.TUNABLES])))\n"
        "__main__.entry()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], env=variables, capture_output=True, text=True
    )
    setting = ":".join([*others, "glibc.malloc.hugetlb=1"])
    assert ended.stderr.strip() == repr(((sys.executable, begun), setting))


def test_a_process_that_cannot_begin_again_goes_on(happened, monkeypatch):
    def refuse(*words):
        raise OSError

    monkeypatch.setattr(sys, "argv", ["vit_jax", "train"])
    monkeypatch.setenv(__main__.TUNABLES, "")
    monkeypatch.setattr(os, "execv", refuse)
    __main__.entry()
    assert happened == ["listens", "command"]


@pytest.mark.parametrize("arguments", [[], ["list"]])
def test_a_command_that_runs_no_program_begins_once(arguments, happened, monkeypatch):
    monkeypatch.setenv(__main__.TUNABLES, "")
    monkeypatch.setattr(sys, "argv", ["vit_jax", *arguments])
    __main__.entry()
    assert happened == ["listens", "command"]


def test_a_setting_of_the_user_stays(happened, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["vit_jax", "train"])
    monkeypatch.setenv(__main__.TUNABLES, "glibc.malloc.hugetlb=0")
    __main__.entry()
    assert os.environ[__main__.TUNABLES] == "glibc.malloc.hugetlb=0"
    assert happened == ["listens", "command"]
