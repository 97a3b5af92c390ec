"""Describes a training run before it starts: the dry run's table, the log's first lines."""

import contextlib
import math
import pathlib

import jax

from vit_jax import config
from vit_jax.checkpoints import record
from vit_jax.config import checks
from vit_jax.data import pipeline, split_roles
from vit_jax.data.sources import RunSplits, open_splits
from vit_jax.evaluation.evaluation import Evaluation
from vit_jax.inference import loading
from vit_jax.models.variants import find_architecture
from vit_jax.runs.patience import Patience
from vit_jax.runs.session import Session
from vit_jax.runs.teacher import load_teacher
from vit_jax.runtime import provenance
from vit_jax.training.build import Trainer, build
from vit_jax.training.losses import count_classes, with_scale
from vit_jax.utils.messages import size_text


def preview(cfg: config.Config, workdir: pathlib.Path) -> list[tuple[str, str]]:
    """The facts of a run, each with its label; opens the data and writes nothing.

    Raises ConfigError, DataError or WeightsError, as training would.
    """
    count = jax.device_count()
    checks.check_devices(checks.with_accumulation(cfg, count), count)
    splits = open_splits(cfg)
    patience = Patience(cfg)  # raises as the run would
    cfg, counts = with_scale(cfg, splits.train), count_classes(cfg, splits.train)
    cfg = config.with_classes(cfg, len(splits.classes))
    teacher = load_teacher(cfg, splits.classes)
    trainer = build(cfg, len(splits.train), teacher=teacher and teacher.teacher, counts=counts)
    cfg, model = trainer.cfg, trainer.model
    evaluation = Evaluation(cfg, splits.evaluation, splits.classes, model, trainer.mesh)
    done, evaluations = _steps_done(workdir), trainer.durations.evaluations
    times = f"{evaluations:,} times" if evaluations > 1 else "once"
    measured = _images(evaluation.role.split, len(splits.evaluation))
    if not cfg.measured:  # features of any split may be
        measured = ", ".join(evaluation.evaluators)
    training = _images(cfg.data.train_split, len(splits.train), len(splits.train.classes))
    if cfg.data.targets:
        training = _images(cfg.data.train_split, len(splits.train))
        training += f", each with {', '.join(cfg.data.targets)}"
    progress = _progress(workdir, done, trainer.durations.steps, patience)
    rows = [
        ("config", cfg.name),
        ("run directory", f"{workdir}, {progress}"),
        ("starts from", _start(trainer, splits, begun=done is not None)),
        *([("teacher", str(cfg.distillation.teacher))] if cfg.distillation else []),
        ("training", training),
        ("evaluation", f"{measured}, {times}" if evaluation.evaluators else "none"),
    ]
    if splits.test is not None:
        images = _images(cfg.data.test_split or "", len(splits.test))
        rows.append(("test", images + ", once, at the end"))
    if splits.files:
        rows.append(("files", splits.files))
    flops = "" if model.flops is None else f", {model.flops / 1e9:.3g} GFLOPs per image (forward)"
    rows += trainer.objective.describe()
    rows.append(("model", f"{model.num_params:,} parameters{flops}"))
    if trained := trainer.trainable.describe():
        rows.append(("trains", trained))
    return rows + _steps(trainer)


def notes(trainer: Trainer, splits: RunSplits, session: Session) -> list[str]:
    """The first lines of a run's log; raises ConfigError if processes have different data."""
    cfg, model = trainer.cfg, trainer.model
    hosts = session.compare(data=splits.train.fingerprint())
    devices = f"{jax.device_count()} x {jax.devices()[0].device_kind}"
    if jax.process_count() > 1:
        devices += f" in {jax.process_count()} processes"
    trained = trainer.trainable.describe()
    return [
        f"{cfg.name}: {model.num_params:,} parameters{trained and f' ({trained})'}, "
        f"{len(splits.train):,} examples, {trainer.durations.steps:,} steps of "
        f"{cfg.train.batch_size:,} images on {devices}, in {session.workdir}",
        *hosts,
        *_of_machine(trainer),
        *_on_cpu(trainer),
        *([splits.files] if splits.files else []),
        *_remarks(trainer),
    ]


def _remarks(trainer: Trainer) -> list[str]:
    """Lines on what is measured on which split, and on options that do less than they seem to."""
    cfg, examples = trainer.cfg, trainer.examples
    return [
        *split_roles.notes(cfg, trainer.durations.evaluations),
        *trainer.trainable.remarks(),
        *checks.unused_labels(cfg),
        *checks.short_run(cfg, trainer.durations.steps, examples),
        *checks.large_batch(cfg, examples, jax.device_count()),
    ]


def _of_machine(trainer: Trainer) -> list[str]:
    """A line on options chosen for this machine, where data are loaded in processes."""
    cfg, workers = trainer.cfg, pipeline.loader_processes(trainer.cfg.data)
    if cfg.data.workers is not None or not workers:
        return []
    unroll = "" if cfg.model.unroll else f", model.unroll={trainer.model.config.unroll}"
    return [f"set for this machine: data.workers={workers}{unroll}"]


def _on_cpu(trainer: Trainer) -> list[str]:
    """Lines on rematerialization that saves nothing, and on slow products, of CPUs."""
    model, platform = trainer.model.config, trainer.mesh.devices.flat[0].platform
    if platform != "cpu":
        return []
    lines = []
    has_layers = "depth" not in find_architecture(model).unread
    if model.remat != "none" and not has_layers:
        lines.append(
            f"model.remat={model.remat}: saves no memory of a ResNet on a CPU, and costs time; "
            "set --config.model.remat=none"
        )
    fast = provenance.multiplies_bfloat16()
    if model.dtype == "bfloat16":
        better = "bfloat16_matmul" if fast else "float32"
        lines.append(
            "model.dtype=bfloat16: slower than float32 on a CPU, which converts before and after "
            f"every operation; set --config.model.dtype={better}"
        )
    if model.dtype == "bfloat16_matmul" and not fast:
        lines.append(
            "model.dtype=bfloat16_matmul: this CPU has neither AVX512-BF16 nor AMX; float32 may be "
            "faster"
        )
    return lines


def _start(trainer: Trainer, splits: RunSplits, *, begun: bool) -> str:
    """The starting point of a run, in words; raises WeightsError for weights that do not fit."""
    cfg = trainer.cfg
    if cfg.init_from is None:
        return f"random weights, seed {cfg.seed}"
    # A run with checkpoints reads these weights no more; they may be gone.
    if not begun:
        loading.initial_params(cfg, trainer.model, splits.classes)
    return cfg.init_from


def _steps(trainer: Trainer) -> list[tuple[str, str]]:
    cfg, durations = trainer.cfg, trainer.durations
    rows, devices = cfg.train.batch_size, jax.device_count()
    at_once = rows // devices // cfg.train.accumulation
    # By shapes alone: a dry run allocates no state.
    leaves = jax.tree.leaves(trainer.state_shapes)
    size = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)
    cooldown = f", {durations.cooldown:,} cooldown" if durations.cooldown else ""
    often = "after the last step" if durations.save is None else f"every {durations.save:,} steps"
    return [
        *(("note", line) for line in _on_cpu(trainer)),
        *(("note", line) for line in _remarks(trainer)),
        (
            "steps",
            f"{durations.steps:,} of {rows:,} images, {durations.warmup:,} of them "
            f"warm-up{cooldown}",
        ),
        (
            "devices",
            f"{devices:,} x {jax.devices()[0].device_kind}, {at_once:,} images each at a time",
        ),
        (
            "checkpoints",
            f"{size_text(size)} each, {often}; {cfg.checkpoint.keep:,} and the best are kept",
        ),
    ]


def _steps_done(workdir: pathlib.Path) -> int | None:
    directory = workdir / "checkpoints"
    steps = record.steps(record.absolute(directory)) if directory.is_dir() else []
    return steps[-1] if steps else None


def _progress(workdir: pathlib.Path, done: int | None, steps: int, patience: Patience) -> str:
    if done is None:
        return "new"
    # A damaged record is set aside by the run, which then goes on from an earlier step.
    with contextlib.suppress(record.DamagedCheckpoint):
        commit = record.read_commit(record.folder(workdir / "checkpoints", done))
        patience.resume(commit["facts"].get("patience"))
    if patience.over:
        return f"complete, as it stopped early at step {done:,}"
    return "complete" if done >= steps else f"resumes after step {done:,}"


def _images(split: str, count: int, classes: int | None = None) -> str:
    text = f"{split}: {count:,} images"
    if classes is None:
        return text
    return f"{text} of {classes:,} classes" if classes else f"{text} without labels"
