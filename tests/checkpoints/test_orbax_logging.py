"""Of what orbax leaves behind nothing is shown, and all else is."""

import asyncio
import logging
import sys
import types
import warnings

import absl.logging
import pytest

from vit_jax.checkpoints import orbax_logging


@pytest.mark.parametrize("kind", [logging.Logger, absl.logging.ABSLLogger])
@pytest.mark.parametrize(
    ("path", "shown"),
    [("/x/orbax/checkpoint/handler.py", []), ("/x/orbax_user/train.py", ["said"])],
)
def test_orbax_is_silent_whoever_made_the_logger_of_absl(kind, path, shown, monkeypatch):
    """A plain logger names absl's own file as the place of every entry."""
    logger, entries = kind("absl"), []
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", lambda entry: entries.append(entry.getMessage()))
    logger.addHandler(handler)
    monkeypatch.setattr(absl.logging, "_absl_logger", logger)
    get = logging.getLogger
    with warnings.catch_warnings(), monkeypatch.context() as patch:
        patch.setattr(
            logging, "getLogger", lambda name=None: logger if name == "absl" else get(name)
        )
        orbax_logging.silence_orbax()
    exec(compile("log.error('said')", path, "exec"), {"log": absl.logging})
    assert entries == shown


def coroutine(path):
    """One that nobody awaits, of a file."""
    names = {}
    exec(compile("async def save(): pass", path, "exec"), names)
    made = names["save"]()
    made.close()
    return made


def refused():
    """The error of a call of a closed event loop, as a thread without Python of its own has it."""
    loop = asyncio.new_event_loop()
    loop.close()
    with pytest.raises(RuntimeError) as caught:
        loop.call_soon_threadsafe(print)
    whole = caught.value.__traceback__
    return caught.value, whole, whole.tb_next


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_unraisable_errors_are_shown_but_those_of_abandoned_saves(monkeypatch):
    shown = []
    monkeypatch.setattr(sys, "unraisablehook", lambda one: shown.append(one.case))
    with warnings.catch_warnings():
        for _ in range(2):
            orbax_logging.silence_orbax()
    closed, ours, inner = refused()
    other = RuntimeError("another")
    cases = {
        "a coroutine of orbax": (coroutine("/x/orbax/checkpoint/a.py"), other, None),
        "a coroutine": (coroutine("/x/ours.py"), other, None),
        "a thread of tensorstore": (None, closed, inner),
        "a call of ours": (None, closed, ours),
        "another error of a thread": (None, other, inner),
        "in a destructor": (object(), closed, inner),
        "without a traceback": (None, closed, None),
    }
    for case, (owner, error, traceback) in cases.items():
        facts = {"object": owner, "exc_value": error, "exc_traceback": traceback, "case": case}
        sys.unraisablehook(types.SimpleNamespace(**facts))
    assert shown == [
        case for case in cases if case.partition(" of ")[2] not in ("orbax", "tensorstore")
    ]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("Task exception was never retrieved: /x/orbax/checkpoint/a.py", False),
        ("Future exception was never retrieved: tensorstore", False),
        ("Task exception was never retrieved: /x/ours.py", True),
        ("orbax is slow", True),
    ],
)
def test_tasks_that_orbax_abandons_are_not_logged(text, kept, monkeypatch):
    logger = logging.getLogger("asyncio")
    monkeypatch.setattr(logger, "filters", [])
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    with warnings.catch_warnings():
        orbax_logging.silence_orbax()
    entry = logging.LogRecord("asyncio", logging.ERROR, "x.py", 1, text, (), None)
    assert bool(logger.filter(entry)) == kept
