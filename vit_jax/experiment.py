"""From a config to live objects, and from those to results: train and evaluate."""

import contextlib
import dataclasses
import math
import os
import pathlib
from collections.abc import Collection, Mapping
from typing import Any

import jax

from vit_jax import config, models, starting, teaching
from vit_jax.checkpoints import manager
from vit_jax.checkpoints.manager import Manager
from vit_jax.checkpoints.record import NEWEST
from vit_jax.config import checks
from vit_jax.data import class_matching, folder_check, split_roles
from vit_jax.data.source import Source
from vit_jax.evaluation import linear_data, registry, test_split
from vit_jax.evaluation.evaluation import Evaluation
from vit_jax.inference import loading
from vit_jax.runtime import collectives, device, distributed, goodput, logs
from vit_jax.runtime.run_files import RunFiles
from vit_jax.runtime.session import Session, open_session
from vit_jax.training import (
    hooks,
    inputs,
    loop,
    optimizers,
    replay,
    schedules,
    state,
    step,
    trainable,
)
from vit_jax.training.plan import Plan
from vit_jax.utils import storage
from vit_jax.weights import WeightsError

SETS = {f"evaluation.{option}" for option in ("tasks", *linear_data.KINDS)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """The results of a finished run.

    Attributes:
      workdir: the run directory.
      steps: the last step.
      seconds: duration of this process.
      results: the evaluation of the checkpoint that stands for the run, and the test split's.
      last: the evaluation after the last step.
      checkpoint: which checkpoint stands for the run, and why, as `loading.load` chooses it.
      files: what the run wrote.
      splits: expressions of the measured splits, by the name of their metrics.
    """

    workdir: pathlib.Path
    steps: int
    seconds: float
    results: Mapping[str, float]
    last: Mapping[str, float]
    checkpoint: str
    files: tuple[pathlib.Path, ...]
    splits: Mapping[str, str] = dataclasses.field(default_factory=dict)


def train(
    cfg: config.Config,
    workdir: pathlib.Path,
    *,
    profile: tuple[int, int] | None = None,
    accept: Collection[str] = (),
) -> Outcome:
    """Trains to the end, resuming where `workdir` left off.

    `accept` names parts of the run's seal that may have changed (`run_directory.PARTS`).

    Raises Preempted (exit 75), Diverged or SaveFailed (70), InUse (2) where another process trains
    in `workdir`, or another UserError.
    """
    checks.check_fixed(cfg, "a run")
    with open_session(cfg, workdir) as session:
        session.progress.doing("opening the data")
        evaluation = Evaluation(cfg, stop=session.stop)
        cfg, model, mesh = evaluation.cfg, evaluation.model, evaluation.mesh
        source, test = evaluation.open_train(), evaluation.open_test()
        plan = Plan.of(cfg, len(source))
        notes = _check_data(evaluation, source, test, plan, session)
        trace, chosen = _trace(profile, plan, session), trainable.of(model, cfg)

        tx = optimizers.create(cfg.optimizer, clip_norm=cfg.train.clip_norm)
        schedule = schedules.of(cfg, plan)
        target = state.abstract_state(model, tx, cfg, mesh)
        taught = teaching.load(cfg, model, evaluation.classes, mesh)
        directory, best = workdir / "checkpoints", split_roles.best_metric(cfg)
        with (
            session.open_files(cfg) as files,
            contextlib.closing(
                Manager(
                    directory,
                    keep=cfg.checkpoint.keep,
                    best=best,
                    check_lease=session.check_lease,
                )
            ) as saver,
        ):
            for line in (_banner(evaluation, len(source), plan, workdir), *notes):
                session.progress.say(line)
            seal = starting.seal(
                cfg,
                data=source.fingerprint(),
                measured=_measured_images(evaluation, test),
                examples=len(source),
                classes=evaluation.classes,
                taught=taught,
                mesh=mesh.shape,
            )
            moment = starting.restore(saver, target, seal, session, files, accept=accept)
            moment = moment or starting.begin(model, tx, cfg, evaluation.classes, mesh, session)
            final = None if test is None else _final(evaluation, test, plan.steps, directory)
            tested = None if final is None else final.recorded(files)
            train_step = None
            if moment.step < plan.steps:
                pure = step.create(model, tx, schedule, cfg, taught and taught.teacher)
                train_step = _compile(pure, target, cfg, mesh, taught, moment.step, session)
            log = hooks.Log(
                cfg, plan, session, files, len(source), _flops_per_image(model, cfg, taught)
            )
            evaluate = hooks.Evaluate(
                plan,
                session,
                files,
                evaluation.evaluators,
                parameters=lambda live: state.evaluated(live, cfg.mesh, chosen),
                named=evaluation.named,
                splits={f"{evaluation.role.name}/split": evaluation.role.split},
            )
            save = hooks.Save(cfg, plan, session, files, saver, record=seal)
            batches, put = inputs.create(source, cfg, mesh, plan.steps, session.stop)
            session.progress.begin(plan.steps, moment.step)
            if moment.step < plan.steps or not moment.measured or tested == {}:
                files.begin(moment.step, age=session.age)
            else:
                session.progress.say("nothing is left to train or to measure")
            live, last = loop.train(
                moment,
                steps=plan.steps,
                step=train_step,
                batches=batches,
                put=put,
                hooks=[*trace, log, evaluate, save],
                stop=session.stop,
                phases=session.phases,
            )
            if jax.process_count() == 1:
                session.stop.release()
            if spent := files.spent(plan.steps):
                session.progress.say(goodput.describe(spent))
            if final is not None and not tested:
                tested = final(state.evaluated(live, cfg.mesh, chosen), saver, session, files)
            return _finish(evaluation, last, tested or {}, plan.steps, session, files)


def evaluate(
    checkpoint: str | os.PathLike[str],
    overrides: Mapping[str, str],
    *,
    at: int | str | None = None,
) -> dict[str, Any]:
    """Returns the metrics of a checkpoint on its evaluation split, or on the one overridden.

    They are called after that split, such as `test/top1`, and `test/split` is the expression, such
    as `test[:100]`. Those of `evaluation.tasks` are called `TASK/top1` and so on, of
    `evaluation.fewshot` `fewshot/SET/5shot`. Weights of other projects bring no images: for them
    `overrides` must name some, or such sets, which are then all that is measured. So they are,
    with a warning, of a head that does not know the data's classes.
    """
    device.keep_freed_memory()
    with device.memory_errors():
        split = loading.has_images(checkpoint, overrides) or not SETS & set(overrides)
        if split:
            loading.check_images(checkpoint, overrides)
        opened = loading.load(checkpoint, overrides, step=at)
        cfg = opened.config
        if registry.asks_for_real(cfg) or linear_data.asks_for_own(cfg):
            loading.check_images(checkpoint, overrides)
        distributed.initialize(None, wait=cfg.watchdog.join, heartbeat=cfg.watchdog.heartbeat)
        head = opened.classes if cfg.needs_labels else None
        try:
            if head is not None and (split or cfg.evaluation.tasks):
                opened.check_head()
            evaluation = Evaluation(cfg, split=split, head=head)
        except (class_matching.UnmatchedError, WeightsError) as error:
            features = any(getattr(cfg.evaluation, kind) for kind in linear_data.KINDS)
            if not features or not split or cfg.evaluation.tasks:
                raise
            told = f"features alone are measured, and not the head: {error}"
            logs.warn_of_assumptions(checkpoint, [told])
            split, evaluation = False, Evaluation(cfg, split=False, head=head)
        results: dict[str, Any] = {} if opened.step is None else {"step": opened.step}
        for name, evaluator in evaluation.evaluators.items():
            one = evaluator(opened.params, stop=lambda: False)
            assert one is not None
            results |= {f"{name}/{key}": value for key, value in one.items()}
        role = evaluation.role
        return results | ({f"{role.name}/split": role.split} if split else {})


def _check_data(
    evaluation: Evaluation, source: Source, test: Source | None, plan: Plan, session: Session
) -> list[str]:
    """Returns lines about the processes, images and splits; raises ConfigError, DataError."""
    data = evaluation.cfg.data
    split_roles.check_test_split(data)
    checked = folder_check.check_files(data, source, evaluation.source, test)
    ready = session.compare(data=source.fingerprint())
    notes = split_roles.notes(evaluation.cfg, plan.evaluations)
    notes += checks.large_batch(evaluation.cfg, len(source), jax.device_count())
    return [*ready, *([checked] if checked else []), *notes]


def _measured_images(evaluation: Evaluation, test: Source | None) -> dict[str, str]:
    """Returns the fingerprints of the measured splits by the name of their metrics."""
    final = split_roles.final(evaluation.cfg.data)
    splits = {evaluation.role.name: evaluation.source, final.name if final else "": test}
    return {name: one.fingerprint() for name, one in splits.items() if one is not None}


def _trace(profile: tuple[int, int] | None, plan: Plan, session: Session) -> list[hooks.Profile]:
    """Returns the hook that traces the steps of `--profile`; raises ConfigError."""
    if profile is None:
        return []
    first, last = profile
    if not 1 <= first <= last <= plan.steps:
        raise config.ConfigError(
            f"--profile={first}:{last}: must be FIRST:LAST within steps 1 to {plan.steps}"
        )
    if storage.is_remote(session.workdir):
        raise config.ConfigError(f"--profile: needs a --workdir on a disk, not {session.workdir}")
    return [hooks.Profile(first, last, str(session.workdir / "profile"), session.progress.say)]


def _compile(
    function: Any,
    target: Any,
    cfg: config.Config,
    mesh: Any,
    taught: teaching.Teaching | None,
    first: int,
    session: Session,
) -> loop.Step:
    """Returns the compiled step, which repeats itself after `first` as `train.replay` asks."""
    before = session.age
    session.progress.doing("compiling the step", slow=0.0)
    with session.phases("compile"):
        compiled = step.compile_step(function, target, cfg, mesh, taught and taught.teacher)
    session.progress.say(
        f"step compiled in {session.age - before:.1f} s, ready after {session.age:.1f} s"
    )
    bound = compiled if taught is None else taught.bind(compiled)
    return replay.checked(bound, cfg, mesh, first, session.progress.say)


def _flops_per_image(
    model: models.Classifier, cfg: config.Config, taught: teaching.Teaching | None
) -> float | None:
    """Returns the FLOPs of training on one image: forward, and of what trains backward."""
    if model.flops is None:
        logs.log.info("model.architecture=%s: counts no FLOPs; no MFU", model.config.architecture)
        return None
    teacher = 0.0 if taught is None else taught.teacher.model.flops or 0.0
    return trainable.of(model, cfg).passes() * model.flops + teacher


def _final(
    evaluation: Evaluation, source: Source, steps: int, directory: pathlib.Path
) -> test_split.Final:
    """Returns what measures the test split after the last step."""
    cfg = evaluation.cfg
    role = split_roles.final(cfg.data)
    assert role is not None
    return test_split.Final(
        test=role,
        evaluator=evaluation.of_split(source, real=True),
        steps=steps,
        metric=split_roles.best_metric(cfg),
        load=lambda number: loading.load_params(directory, number, cfg),
    )


def _finish(
    evaluation: Evaluation,
    last: Mapping[str, float],
    tested: Mapping[str, float],
    steps: int,
    session: Session,
    files: RunFiles,
) -> Outcome:
    """Draws the curves, and returns the outcome."""
    workdir, final = session.workdir, split_roles.final(evaluation.cfg.data)
    last = last or _measured(workdir, NEWEST)[1]  # of a run that was complete before
    checkpoint, results = _measured(workdir)
    measured = [evaluation.role, *([final] if final else [])]
    written = ["config.json", "metrics.jsonl", "checkpoints"]
    if (folder := files.folder) is not None:
        from vit_jax.pages import curves  # matplotlib is slow to import

        names = [one.name for one in measured]
        curves.draw(folder / "metrics.jsonl", folder / "curves.png", names)
        written.append("curves.png")
    return Outcome(
        workdir=workdir,
        steps=steps,
        seconds=session.age,
        results={**results, **tested},
        last={**last, **tested},
        checkpoint=checkpoint,
        files=tuple(workdir / name for name in written),
        splits={one.name: one.split for one in measured},
    )


def _measured(workdir: pathlib.Path, at: str | None = None) -> tuple[str, dict[str, float]]:
    """Returns which checkpoint is meant, and its evaluation."""
    found = collectives.broadcast_from_main(lambda: manager.find(workdir / "checkpoints", at)[1])
    metrics = found["metrics"].items()  # which has None for what was not finite
    return found["chosen"], {key: math.nan if one is None else one for key, one in metrics}


def _banner(evaluation: Evaluation, examples: int, plan: Plan, workdir: pathlib.Path) -> str:
    cfg = evaluation.cfg
    devices = f"{jax.device_count()} x {jax.devices()[0].device_kind}"
    if jax.process_count() > 1:
        devices += f" in {jax.process_count()} processes"
    model = evaluation.model
    trained = trainable.of(model, cfg).describe()
    return (
        f"{cfg.name}: {model.num_params:,} parameters{trained and f' ({trained})'}, "
        f"{examples:,} examples, "
        f"{plan.steps:,} steps of {cfg.train.batch_size:,} images on {devices}, in {workdir}"
    )
