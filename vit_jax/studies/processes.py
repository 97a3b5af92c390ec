"""Runs cells as subprocesses, several at a time, each on its share of the devices."""

import collections
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vit_jax import config
from vit_jax.config import components
from vit_jax.runtime import signals
from vit_jax.runtime.preemption import Preempted
from vit_jax.studies.cells import Cell
from vit_jax.studies.devices import Environment

LOG = "log.txt"
POLL_EVERY = 0.1  # seconds
RunCells = Callable[..., None]  # with the arguments of `run`


class CellStopped(config.UserError):
    """A cell ended for a reason unrelated to its learning rate."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


class CellProcess(subprocess.Popen[str]):
    """A process that runs one cell; it ends with its parent and ignores terminal signals."""

    def __init__(self, cell: Cell, workdir: pathlib.Path, environment: Environment) -> None:
        self.cell, self._log, self._began = cell, workdir / cell.directory / LOG, time.monotonic()
        self._log.parent.mkdir(parents=True, exist_ok=True)
        values = config.to_dict(cell.in_workdir(workdir))
        plugins = [*components.plugins()]
        plugins += [name for name in values.get(config.PLUGINS, ()) if name not in plugins]
        # The process finds plug-ins and its own module where this one has found them.
        # -P: not first in the current folder, where a clone called vit_jax may lie.
        path = {"PYTHONPATH": os.pathsep.join(one or str(pathlib.Path.cwd()) for one in sys.path)}
        # Filtering ends tracebacks with a note about itself, and `answer` quotes the last line.
        whole = {"JAX_TRACEBACK_FILTERING": "off"}
        # Appended: a resumed cell goes on below what its earlier processes wrote.
        with self._log.open("ab") as log:
            # Later mappings win: the user's own choice of filtering stays. In a session of its own,
            # as Ctrl-C reaches all of a terminal's group: the parent alone decides who stops.
            super().__init__(
                [sys.executable, "-P", "-m", cell.worker, str(workdir), cell.directory],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=whole | os.environ | environment | path,
                start_new_session=True,
            )
        job = {
            "config": values | {config.PLUGINS: plugins},
            "measurements": cell.measurements,
            "alike": cell.alike,
        }
        assert self.stdin is not None
        # The pipe stays open after the job: the worker ends when it closes, as when this process is
        # killed.
        with contextlib.suppress(BrokenPipeError):  # its answer says why it ended at once
            self.stdin.write(json.dumps(job) + "\n")
            self.stdin.flush()

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    @property
    def news(self) -> str:
        """The newest line of its log."""
        with self._log.open("rb") as log:
            # A seek before the beginning of a file is an error.
            log.seek(-min(2000, self._log.stat().st_size), os.SEEK_END)
            lines = log.read().decode(errors="replace").split("\n")
        # The last part is empty, or a line that is still being written.
        return next((line for line in reversed(lines[:-1]) if line.strip()), "")

    def answer(self) -> dict[str, Any]:
        """The result of `worker.train_cell`, or `stopped` with the reason."""
        # This also closes the standard input of the process.
        output, _ = self.communicate()
        code = self.returncode
        if code == 0 and output:  # none if a plug-in has called `sys.exit`
            # The last line: libraries may have printed before.
            return json.loads(output.splitlines()[-1])
        by = "killed" if code == -signal.SIGKILL else f"ended with code {code}"
        if code == -signal.SIGTERM:  # before it could save: its last checkpoint stays
            return {"state": "stopped", "why": "stopped", "exit_code": Preempted.exit_code}
        why = f"{by}: {self.news}; see {self._log}; the same command resumes"
        return {"state": "stopped", "why": why, "exit_code": 70}


def run(
    cells: Sequence[Cell],
    workdir: pathlib.Path,
    shares: Sequence[Environment],
    *,
    started: Callable[[Cell], None],
    ended: Callable[[Cell, float, Mapping[str, Any]], None],
    watch: Callable[[Mapping[str, str]], None],
) -> None:
    """Runs cells, as many at a time as there are shares of the devices.

    `started` is called with each cell that starts; `ended` with a cell, its duration in seconds,
    and its result; `watch` periodically with the newest line of every running cell, by directory.

    Raises Preempted if a signal asked to stop, CellStopped if a cell could not continue; both after
    the running cells have saved their state.
    """
    waiting, free = collections.deque(cells), collections.deque(shares)
    running: list[tuple[CellProcess, Environment]] = []
    troubles: list[CellStopped] = []
    stopping = False
    with signals.StopSignal() as stop:
        try:
            while waiting or running:
                if (stop.signal is not None or troubles) and not stopping:
                    stopping = True
                    # What has not started has nothing to save: the next call starts it.
                    waiting.clear()
                    for process, _ in running:
                        process.terminate()  # it saves, and exits
                while waiting and free:
                    share = free.popleft()
                    process = CellProcess(waiting.popleft(), workdir, share)
                    running.append((process, share))
                    started(process.cell)
                # A copy, as `running` changes meanwhile.
                for process, share in [pair for pair in running if pair[0].poll() is not None]:
                    running.remove((process, share))
                    free.append(share)
                    answer = process.answer()
                    ended(process.cell, process.seconds, answer)
                    # A cell that was asked to stop and has saved is no trouble.
                    saved = answer.get("exit_code") == Preempted.exit_code
                    if answer["state"] == "stopped" and not (stopping and saved):
                        text = f"{process.cell.directory}: {answer['why']}"
                        troubles.append(CellStopped(text, answer["exit_code"]))
                watch({process.cell.directory: process.news for process, _ in running})
                time.sleep(POLL_EVERY)
        finally:
            # Of no use but after an exception: otherwise the loop has waited for all of them.
            for process, _ in running:
                process.kill()
                process.communicate()
    if troubles:
        raise troubles[0]
    if stop.signal is not None:
        raise Preempted("stopped; every cell has saved its state; the same command resumes")
