"""Processes that work on command: training steps (`train_worker`), or batches (`worker`)."""

import contextlib
import json
import os
import subprocess
import tempfile
from typing import Any

from vit_jax import config


class DoesNotFit(Exception):
    """A worker's device has too little memory."""


class Worker:
    """A process that takes steps, or loads batches, on command and answers in lines of JSON."""

    def __init__(self, bench: str, name: str, command: list[str]) -> None:
        """Takes the measurement and the program, for messages, and the command line."""
        self._what, self._command = f"bench {bench}: {name}", command

    def __enter__(self) -> "Worker":
        # On a GPU each worker takes the memory it needs, so that several fit beside each other.
        environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        self._errors = tempfile.TemporaryFile()  # a pipe would block the process once it is full
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        with contextlib.suppress(BrokenPipeError):
            self._process.__exit__(None, None, None)  # closes the pipes and waits
        self._errors.close()

    def read(self) -> dict[str, Any]:
        """Returns the next answer; raises ConfigError where there is none."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                found = json.loads(line)
            except json.JSONDecodeError:
                continue  # a library that prints
            if not isinstance(found, dict):
                continue
            if "memory" in found:
                raise DoesNotFit(found["memory"])
            if "error" in found:
                raise config.ConfigError(f"{self._what}: {found['error']}")
            return found
        code = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()
        last = said[-1] if said else f"exit code {code}"
        raise config.ConfigError(f"{self._what} ended early: {last}")

    def take(self, count: int) -> dict[str, Any]:
        """Takes steps, or loads batches, and returns the answer."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{count}\n")
            self._process.stdin.flush()
        return self.read()
