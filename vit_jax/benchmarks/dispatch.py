"""The cost of the loop around a step: a run of digits, against its step alone."""

import contextlib
import functools
import itertools
import pathlib
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence

import jax

from vit_jax import config, train_loop
from vit_jax.benchmarks import turns
from vit_jax.config import catalog
from vit_jax.data import prefetch
from vit_jax.data.sources import open_splits
from vit_jax.runs import saving
from vit_jax.runs.patience import Patience
from vit_jax.runs.resume import Start
from vit_jax.runs.run_log import Profiler, RunLog
from vit_jax.runs.session import Session
from vit_jax.runtime import device, preemption
from vit_jax.runtime.progress import Progress
from vit_jax.runtime.watchdog import PhaseTimer
from vit_jax.training import run_config
from vit_jax.training.build import build
from vit_jax.training.state import State

NAME = "digits"
ROUNDS = 5
STEPS = 110  # of a turn: 5 epochs
IN_MEMORY = "vit_jax, images in memory"
ALONE = "the compiled step alone"

Take = Callable[[int], State]  # takes steps, waits for the last one, and goes on there next time


def held_batches(
    batches: Sequence[prefetch.Batch], first: int
) -> Generator[prefetch.Batch, None, None]:
    """Yields batches in memory again and again, of a run after `first` steps."""
    # The steps of a run go round the epoch.
    yield from itertools.islice(itertools.cycle(batches), first % len(batches), None)


def create_config(steps: int) -> config.Config:
    """The config `digits` with a number of steps; it saves and evaluates after the last."""
    overrides = {"train.duration": f"{steps} steps", "schedule.warmup": "0 steps"}
    overrides |= dict.fromkeys(
        ("evaluation.every", "checkpoint.every", "checkpoint.minutes"), "none"
    )
    return run_config.config_from_values(catalog.load_values(NAME), overrides)


@contextlib.contextmanager
def programs(steps: int) -> Iterator[dict[str, Take]]:
    """Opens three ways to take up to this many steps of a run, each with its own state.

    The loop of a run, the same with the images of the first epoch in memory, and the step alone.
    """
    # As in a run; afterwards, jax has started its threads.
    device.step_by_step()
    with contextlib.ExitStack() as opened:
        session = Session(
            workdir=pathlib.Path(opened.enter_context(tempfile.TemporaryDirectory())),
            stop=preemption.Stop(),  # not entered: Ctrl-C ends a measurement at once
            phases=PhaseTimer("start"),
            progress=opened.enter_context(contextlib.closing(Progress())),
        )
        cfg = create_config(steps)
        splits = open_splits(cfg)
        trainer = build(config.with_classes(cfg, len(splits.classes)), len(splits.train))
        step = trainer.compile_step()
        files = opened.enter_context(session.open_files(trainer.cfg))
        manager = opened.enter_context(saving.open_manager(trainer.cfg, session))
        session.progress.begin(trainer.durations.steps)
        files.begin(0, age=session.age)
        load = functools.partial(trainer.load, splits.train, stop=session.stop)
        with contextlib.closing(load(0)) as batches:
            epoch = list(itertools.islice(batches, trainer.examples // cfg.train.batch_size))

        def loop(load: Callable[[int], prefetch.BatchIterator]) -> Take:
            start = Start(state=trainer.init_state(), step=0, facts={})
            log, patience = RunLog(trainer, session, files), Patience(cfg)
            saver = saving.Saver(manager, trainer, {}, session, files, patience)

            def take(steps: int) -> State:
                nonlocal start
                live, *_ = train_loop.run_steps(
                    trainer,
                    start,
                    step,
                    start.step + steps,
                    load=load,
                    teacher_params=None,
                    evaluate=lambda step, live: None,  # due after the last step alone
                    log=log,
                    saver=saver,
                    patience=patience,
                    profiler=Profiler(None, trainer.durations.steps, session),
                    session=session,
                )
                live = jax.block_until_ready(live)
                start = Start(state=live, step=start.step + steps, facts={})
                return live

            return take

        # On the device before the first step, so that only steps are timed.
        placed = itertools.cycle([trainer.put(batch) for batch in epoch])
        state = trainer.init_state()

        def alone(steps: int) -> State:
            nonlocal state
            for _ in range(steps):
                state, _ = step(state, next(placed), None)
            return jax.block_until_ready(state)

        held = loop(lambda first: held_batches(epoch, first))
        yield {turns.OURS: loop(load), IN_MEMORY: held, ALONE: alone}


def measure(rounds: int) -> turns.Compared:
    """Times the loop, the loop without loading, and its step alone."""
    # One step more than all turns take, so that the last turn does not save and evaluate.
    with programs((rounds + 1) * STEPS + 1) as ways:
        for take in ways.values():
            take(STEPS)
        results = turns.take(
            {name: functools.partial(take, STEPS) for name, take in ways.items()}, rounds=rounds
        )
    return turns.Compared(work=f"train {NAME}", unit="steps", amount=STEPS, results=results)


def title() -> list[str]:
    """Lines about the measurement and its machine."""
    return [
        f"{STEPS} steps of a run: its loop with loading, augmentation and logs; the same "
        "with images in memory; its compiled step alone with images on the device",
        turns.machine(),
    ]
