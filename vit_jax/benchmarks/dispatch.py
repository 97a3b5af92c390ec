"""Steps so small that the loop shows: a run of digits as it is, against its step alone."""

import contextlib
import functools
import itertools
import pathlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from vit_jax import config, train_loop
from vit_jax.benchmarks import turns
from vit_jax.config import catalog
from vit_jax.data import prefetch
from vit_jax.data.run_splits import open_splits
from vit_jax.runs import saving
from vit_jax.runs.profiling import Profiler
from vit_jax.runs.resume import Start
from vit_jax.runs.run_log import RunLog
from vit_jax.runs.session import Session
from vit_jax.runtime import device, preemption
from vit_jax.runtime.progress import Progress
from vit_jax.runtime.watchdog import PhaseTimer
from vit_jax.training import run_config
from vit_jax.training.build import Trainer, build

NAME = "digits"
ROUNDS = 5
STEPS = 110  # of a turn: 5 epochs
IN_MEMORY = "vit_jax, images in memory"
ALONE = "the compiled step alone"


class Loop:
    """The training loop of a run, a number of steps at a time."""

    def __init__(self, trainer: Trainer, **given: Any) -> None:
        self._trainer, self._given = trainer, given
        self.state, self.step = trainer.init_state(), 0

    def take(self, steps: int) -> None:
        """Takes steps and waits for the last one."""
        start = Start(state=self.state, step=self.step, facts={})
        self.step += steps
        live, _ = train_loop.run_steps(self._trainer, start, steps=self.step, **self._given)
        self.state = jax.block_until_ready(live)


class Held:
    """Batches in memory, again and again."""

    def __init__(self, batches: Sequence[prefetch.Batch], first: int) -> None:
        self._batches = itertools.islice(itertools.cycle(batches), first % len(batches), None)

    def __iter__(self) -> Iterator[prefetch.Batch]:
        return self

    def __next__(self) -> prefetch.Batch:
        """Returns the next batch."""
        return next(self._batches)

    def close(self) -> None:
        """Has nothing to stop."""


def config_of(steps: int) -> config.Config:
    """Returns the config `digits` with so many steps, which saves and evaluates after the last."""
    overrides = {"train.duration": f"{steps} steps", "schedule.warmup": "0 steps"}
    overrides |= dict.fromkeys(
        ("evaluation.every", "checkpoint.every", "checkpoint.minutes"), "none"
    )
    return run_config.config_from_values(catalog.load(NAME), overrides)


class Programs:
    """Three ways to take the same steps, each with a state of its own.

    Attributes:
      whole: the loop of a run.
      held: the same with the images of the first epoch in memory.
      state: that of the step alone.
    """

    def __init__(self, cfg: config.Config, session: Session, opened: contextlib.ExitStack) -> None:
        splits = open_splits(cfg)
        cfg = config.with_classes(cfg, len(splits.classes))
        trainer = build(cfg, len(splits.train))
        self._step = trainer.compile_step()
        files = opened.enter_context(session.open_files(trainer.cfg))
        manager = opened.enter_context(saving.open_manager(trainer.cfg, session))
        session.progress.begin(trainer.durations.steps)
        files.begin(0, age=session.age)
        load = functools.partial(trainer.load, splits.train, stop=session.stop)
        with contextlib.closing(load(0)) as batches:
            epoch = list(itertools.islice(batches, trainer.examples // cfg.train.batch_size))
        self._placed = itertools.cycle([trainer.put(batch) for batch in epoch])

        def create(load: Callable[[int], prefetch.BatchIterator]) -> Loop:
            return Loop(
                trainer,
                train_step=self._step,
                load=load,
                teacher_params=None,
                evaluate=lambda step, live: None,  # due after the last step alone
                log=RunLog(trainer, session, files),
                saver=saving.Saver(manager, trainer, {}, session, files),
                profiler=Profiler(None, trainer.durations.steps, session),
                session=session,
            )

        self.whole, self.held = create(load), create(lambda first: Held(epoch, first))
        self.state = trainer.init_state()

    def alone(self, steps: int) -> None:
        """Takes steps without a loop around them and waits for the last one."""
        for _ in range(steps):
            self.state, _ = self._step(self.state, next(self._placed), None)
        jax.block_until_ready(self.state)


@contextlib.contextmanager
def programs(steps: int) -> Iterator[Programs]:
    """Opens a run of digits in a temporary folder, of at most so many steps."""
    device.keep_freed_memory()
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.closing(Progress()) as progress,
        contextlib.ExitStack() as opened,
    ):
        session = Session(
            workdir=pathlib.Path(folder),
            stop=preemption.Stop(),  # not entered: Ctrl-C ends a measurement at once
            phases=PhaseTimer("start"),
            progress=progress,
        )
        yield Programs(config_of(steps), session, opened)


def measure(rounds: int) -> turns.Compared:
    """Returns the turns of the loop, of the loop without loading, and of its step alone."""
    steps = STEPS
    with programs((rounds + 1) * steps + 1) as found:
        ways = {
            turns.OURS: lambda: found.whole.take(steps),
            IN_MEMORY: lambda: found.held.take(steps),
            ALONE: lambda: found.alone(steps),
        }
        for way in ways.values():
            way()
        results = turns.take(ways, rounds=rounds)
    return turns.Compared(what=f"train {NAME}", unit="steps", amount=steps, results=results)


def title() -> list[str]:
    """Returns lines that say what was measured and where."""
    return [
        f"{STEPS} steps of a run: its loop with loading, augmentation and logs; the same "
        "with images in memory; its compiled step alone with images on the device",
        turns.machine(),
    ]
