"""The story of a training run: build, restore, then batch, step, log, evaluate, save."""

import contextlib
import functools
import pathlib
from collections.abc import Callable, Collection, Mapping
from typing import NoReturn

import jax

from vit_jax import config, models
from vit_jax.data.prefetch import BatchIterator, StoppedError
from vit_jax.data.sources import open_splits
from vit_jax.runs import preview, resume, saving
from vit_jax.runs.evaluating import Outcome, RunEvaluation, collect_outcome
from vit_jax.runs.patience import Patience
from vit_jax.runs.run_log import Profiler, RunLog
from vit_jax.runs.session import Session, open_session
from vit_jax.runs.teacher import load_teacher
from vit_jax.runtime.preemption import Preempted
from vit_jax.training import replay
from vit_jax.training.build import Trainer, build
from vit_jax.training.losses import count_classes, with_scale
from vit_jax.training.state import State
from vit_jax.training.step import Step


def train(
    cfg: config.Config,
    workdir: pathlib.Path,
    *,
    profile: tuple[int, int] | None = None,
    accept: Collection[str] = (),
    like: pathlib.Path | None = None,
) -> Outcome:
    """Trains to the end, resuming where `workdir` left off.

    `profile`: first and last step to trace; `accept`: changes to resume with (`directory.PARTS`);
    `like`: another run, which a new one must have the data, plug-ins and teacher of.
    Raises Preempted (exit 75), Diverged or SaveFailed (70), InUse (2), or another UserError.
    """
    # Locks the directory, joins the other processes, hears signals, watches for hangs.
    with open_session(cfg, workdir) as session:
        session.progress.doing("opening the data")
        splits = open_splits(cfg)
        # The data decide how many outputs the head has, and the scale of numbers.
        cfg = with_scale(config.with_classes(cfg, len(splits.classes)), splits.train)
        teacher = load_teacher(cfg, splits.classes)
        counts = count_classes(cfg, splits.train)
        trainer = build(cfg, len(splits.train), teacher=teacher and teacher.teacher, counts=counts)
        trainer.check_memory()  # before anything is allocated
        cfg, mesh, steps = trainer.cfg, trainer.mesh, trainer.durations.steps
        evaluation = RunEvaluation.from_splits(trainer, splits, session)
        profiler, patience = Profiler(profile, steps, session), Patience(cfg)
        notes = preview.notes(trainer, splits, session)

        # Nothing was written so far: a mistake in the options leaves no run behind.
        with session.open_files(cfg) as files, saving.open_manager(cfg, session) as manager:
            for line in notes:
                session.progress.say(line)
            start = resume.start(trainer, splits, teacher, manager, session, files, accept, like)
            files.open(cfg)  # not of a resume that was refused
            teacher_params = teacher and teacher.put(mesh, cfg.mesh)
            del teacher  # its copy in host memory
            patience.resume(start.patience)
            end = start.step if patience.over else steps
            at_end = evaluation.at_end
            tested = at_end and at_end.recorded(end, files)

            train_step = None
            if start.step < end:
                with session.compiling():
                    train_step = trainer.compile_step()
                # With `train.replay`, every K-th step runs twice and must give the same bits.
                train_step = replay.checked(train_step, cfg, mesh, start.step, session.progress.say)
            log = RunLog(trainer, session, files)
            log.begin(start.step, complete=start.step == end and start.evaluated and tested != {})
            live, end, last = run_steps(
                trainer,
                start,
                train_step,
                end,
                load=functools.partial(trainer.load, splits.train, stop=session.stop),
                teacher_params=teacher_params,
                evaluate=functools.partial(evaluation, log),
                log=log,
                saver=saving.Saver(manager, trainer, start.facts, session, files, patience),
                patience=patience,
                profiler=profiler,
                session=session,
            )
            if jax.process_count() == 1:
                session.stop.release()  # all is saved: from here on a signal ends the process
            log.end(end)
            # Once, at the very end, and on the checkpoint that validation chose: started again, a
            # finished run only reads its numbers, unless its state was just measured anew.
            if at_end and (tested := at_end.recorded(end, files)) == {}:
                tested = at_end(end, trainer.eval_params(live), manager, session, files)
            return collect_outcome(cfg, end, last, tested or {}, session, files)


def run_steps(
    trainer: Trainer,
    start: resume.Start,
    train_step: Step | None,
    steps: int,
    *,
    load: Callable[[int], BatchIterator],
    teacher_params: models.Params | None,
    evaluate: Callable[[int, State], Mapping[str, float] | None],
    log: RunLog,
    saver: saving.Saver,
    patience: Patience,
    profiler: Profiler,
    session: Session,
) -> tuple[State, int, Mapping[str, float]]:
    """The training loop to step `steps`, or early: last state, its step, last evaluation."""
    evaluates, stop, phases = trainer.durations.evaluates, session.stop, session.phases
    live, number, last = start.state, start.step, {}

    def preempt() -> NoReturn:
        if saver.step != number and not (start.restored and start.step == number):
            saver.save(number, live, None)
        saver.wait()  # a save in the background may still fail
        log.stop(number)
        raise Preempted(f"stopped and saved at step {number}; resume with the same command")

    stop.hold()  # there is a state to save now: a signal is noted, and acted upon between steps
    # A restored state may lack its evaluation: a signal came first, or the evaluators are others.
    # Published weights that learn on without labels have theirs before they change.
    begins = start.restored or trainer.durations.first
    missing = begins and not start.evaluated and evaluates(number)
    if missing and not stop() and (results := evaluate(number, live)):
        patience.observe(number, results)
        saver.save(number, live, last := results)
    if stop():
        preempt()
    if train_step is None:
        return live, number, last

    with contextlib.closing(load(number)) as batches, phases("step"):
        log.start()  # throughput counts neither the start of a run nor its first evaluation
        while number < steps and not patience.over:
            profiler.before(number + 1)
            try:
                with phases("data"):
                    batch = next(batches)
            except StoppedError:  # asked to stop while waiting for data
                log.flush()
                preempt()
            # Batch, augmentation and dropout are functions of (seed, step): a resumed run repeats
            # an unbroken one bit for bit. The call returns before the devices are done ...
            live, metrics = train_step(live, trainer.put(batch), teacher_params)
            number += 1
            # ... so the log reads the metrics of the step before, while this one runs.
            log.dispatched(number, metrics, batch["index"])
            saver.poll()  # a save in the background that failed ends the run here

            # Asked at every step: the processes of a run agree on the answers.
            stopping, saves, evaluated = stop(number), saver.due(number), evaluates(number)
            if not (stopping or saves or evaluated):
                continue
            with log.paused():  # reads this step's metrics first: a run that diverged saves nothing
                results = None
                if evaluated and not stopping:
                    results = evaluate(number, live)  # None if a signal cut it short
                    last, stopping = results or last, stop()
                    if results is not None:  # else it is repeated, and counted, after a resume
                        patience.observe(number, results)
                # Saved after its evaluation, so that the record holds the results.
                best = results and saver.is_best(results)
                if saves or stopping or best or patience.over:
                    saver.save(number, live, results)
                if stopping:
                    preempt()
    profiler.end()
    saver.wait()
    if patience.over and number < steps:
        session.progress.say(
            f"stopped early at step {number} of {steps}: no better {patience.metric} "
            f"(checkpoint.patience={patience.allowed})"
        )
    return live, number, last
