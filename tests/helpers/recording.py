"""`vit_jax` in a process that writes down which examples it loads, and stops at a step.

python tests/helpers/recording.py FILE STEP train ...
"""

import json
import os
import pathlib
import signal
import sys

from vit_jax import cli
from vit_jax.runs.run_log import RunLog


def command(folder, number, stop):
    """The beginning of the command of a process; a signal comes at step `stop`."""
    folder.mkdir(exist_ok=True)
    return [sys.executable, __file__, str(folder / str(number)), str(stop or 0)]


def read(folder, number):
    """{step: ids} of a process."""
    lines = (folder / str(number)).read_text().splitlines()
    return dict(map(json.loads, lines))


def main():
    file, stop = pathlib.Path(sys.argv[1]).open("w"), int(sys.argv[2])  # noqa: SIM115
    check = RunLog.check_step

    def recorded(self, step, metrics, ids):
        file.write(json.dumps([step, ids.tolist()]) + "\n")
        file.flush()
        if step == stop:
            os.kill(os.getpid(), signal.SIGTERM)
        check(self, step, metrics, ids)

    RunLog.check_step = recorded
    return cli.main(sys.argv[3:])


if __name__ == "__main__":
    sys.exit(main())
