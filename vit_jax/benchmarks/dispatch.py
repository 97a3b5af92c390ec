"""Steps so small that the loop shows: a run of digits with its hooks, against its step alone."""

import contextlib
import itertools
import pathlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from vit_jax import config
from vit_jax.benchmarks import turns
from vit_jax.checkpoints.manager import Manager
from vit_jax.config import catalog
from vit_jax.data import prefetch
from vit_jax.evaluation.evaluation import Evaluation
from vit_jax.runtime import device, preemption
from vit_jax.runtime.progress import Progress
from vit_jax.runtime.session import Session
from vit_jax.runtime.watchdog import PhaseTimer
from vit_jax.training import hooks, inputs, loop, optimizers, run_config, schedules, state, step
from vit_jax.training.plan import Plan

NAME = "digits"
ROUNDS = 5
STEPS = 110  # of a turn: 5 epochs
IN_MEMORY = "vit_jax, images in memory"
ALONE = "the compiled step alone"


class Loop:
    """The training loop of a run, a number of steps at a time."""

    def __init__(
        self,
        live: Any,
        batches: Callable[[int], prefetch.BatchIterator],
        hooks_: Sequence[loop.Hook],
        session: Session,
        **given: Any,
    ) -> None:
        self.moment = loop.Moment(state=live, step=0)
        self._batches, self._hooks, self._session, self._given = batches, hooks_, session, given

    def take(self, steps: int) -> None:
        """Takes steps and waits for the last one."""
        last = self.moment.step + steps
        live, _ = loop.train(
            self.moment,
            steps=last,
            batches=self._batches,
            hooks=self._hooks,
            stop=self._session.stop,
            phases=self._session.phases,
            **self._given,
        )
        self.moment = loop.Moment(state=jax.block_until_ready(live), step=last)


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
        evaluation = Evaluation(cfg, stop=session.stop)
        cfg, model, mesh = evaluation.cfg, evaluation.model, evaluation.mesh
        source = evaluation.open_train()
        plan = Plan.of(cfg, len(source))
        tx = optimizers.create(cfg.optimizer, clip_norm=cfg.train.clip_norm)
        schedule = schedules.of(cfg, plan)
        target = state.abstract_state(model, tx, cfg, mesh)
        self._step = step.compile_step(step.create(model, tx, schedule, cfg), target, cfg, mesh)
        files = opened.enter_context(session.open_files(cfg))
        saver = opened.enter_context(
            contextlib.closing(Manager(session.workdir / "checkpoints", keep=1, best=None))
        )
        session.progress.begin(plan.steps)
        files.begin(0, age=session.age)
        batches, put = inputs.create(source, cfg, mesh, plan.steps, session.stop)
        with contextlib.closing(batches(0)) as loading:
            epoch = list(itertools.islice(loading, len(source) // cfg.train.batch_size))
        self._placed = itertools.cycle([put(batch) for batch in epoch])

        def create(batches: Callable[[int], prefetch.BatchIterator]) -> Loop:
            flops = None if model.flops is None else 3.0 * model.flops
            every = [
                hooks.Log(cfg, plan, session, files, len(source), flops),
                hooks.Evaluate(
                    plan, session, files, evaluation.evaluators, parameters=lambda live: live
                ),
                hooks.Save(cfg, plan, session, files, saver, record={}),
            ]
            live = state.initialize(model, tx, cfg, mesh)
            return Loop(live, batches, every, session, step=self._step, put=put)

        self.whole, self.held = create(batches), create(lambda first: Held(epoch, first))
        self.state = state.initialize(model, tx, cfg, mesh)

    def alone(self, steps: int) -> None:
        """Takes steps without a loop around them and waits for the last one."""
        for _ in range(steps):
            self.state, _ = self._step(self.state, next(self._placed))
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
        f"{STEPS} steps of a run: its loop with loading, augmentation, logs and hooks; the same "
        "with images in memory; its compiled step alone with images on the device",
        turns.machine(),
    ]
