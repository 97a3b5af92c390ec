"""`vit_jax` in a process where one phase takes long, and says when it is in it.

python tests/helpers/slow_phases.py PHASE train ...
"""

import sys
import threading
import time

from vit_jax import cli
from vit_jax.checkpoints import record
from vit_jax.data import pipeline, prefetch
from vit_jax.evaluation import evaluators

SECONDS = 2.0


def slowly(owner, name, phase):
    """Makes a function say that it was called, and wait before it does anything."""
    original = getattr(owner, name)

    def slow(*arguments, **keywords):
        print(f"AT {phase}", flush=True)
        time.sleep(SECONDS)
        return original(*arguments, **keywords)

    setattr(owner, name, slow)


def without_data(after):
    """Makes a disk that does not answer any more after some batches."""
    load, take, left = pipeline.Loader._fill, prefetch.Prefetcher.__next__, [after]

    def fill(self, batch, slot, position, *others):
        if self.train and position >= after * self.batch_size:
            threading.Event().wait()
        load(self, batch, slot, position, *others)

    def next_(self):
        left[0] -= 1
        if left[0] < 0:
            print("AT data", flush=True)
        return take(self)

    pipeline.Loader._fill, prefetch.Prefetcher.__next__ = fill, next_


def main():
    phase = sys.argv[1]
    if phase == "evaluate":
        slowly(evaluators.Means, "__call__", phase)
    elif phase == "save":
        slowly(record, "write_commit", phase)
    else:
        without_data(7)
    del sys.argv[1]
    cli.entry()


if __name__ == "__main__":
    main()
