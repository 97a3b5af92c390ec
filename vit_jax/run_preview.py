"""What a training run would do: its data, model, steps and checkpoints, without starting it."""

import math
import pathlib

import jax

from vit_jax import config
from vit_jax.checkpoints import record
from vit_jax.config import checks
from vit_jax.data import folder_check, split_roles
from vit_jax.evaluation.evaluation import Evaluation
from vit_jax.inference import loading
from vit_jax.training import optimizers, state, trainable
from vit_jax.training.plan import Plan
from vit_jax.utils.messages import size_text


def preview(cfg: config.Config, workdir: pathlib.Path) -> list[tuple[str, str]]:
    """Returns the facts of a run, each with its label; opens the data and writes nothing.

    Raises ConfigError, DataError or WeightsError, as training would.
    """
    evaluation = Evaluation(cfg)
    cfg, model = evaluation.cfg, evaluation.model
    split_roles.check_test_split(cfg.data)
    source, test = evaluation.open_train(), evaluation.open_test()
    checked = folder_check.check_files(cfg.data, source, evaluation.source, test)
    plan = Plan.of(cfg, len(source))
    done = _steps_done(workdir)
    rows = [
        ("config", cfg.name),
        ("run directory", f"{workdir}, {_progress(done, plan.steps)}"),
        ("starts from", _beginning(evaluation, begun=done is not None)),
        *([("teacher", cfg.distill.teacher)] if cfg.distill.teacher else []),
        ("training", _images(cfg.data.train_split, len(source), len(source.classes))),
    ]
    if evaluation.source is not None:
        times = f"{plan.evaluations:,} times" if plan.evaluations > 1 else "once"
        images = _images(evaluation.role.split, len(evaluation.source))
        rows.append(("evaluation", f"{images}, {times}"))
    if test is not None:
        rows.append(("test", _images(cfg.data.test_split or "", len(test)) + ", once, at the end"))
    if checked:
        rows.append(("files", checked))
    flops = "" if model.flops is None else f", {model.flops / 1e9:.3g} GFLOPs per image (forward)"
    rows.append(("model", f"{model.num_params:,} parameters{flops}"))
    if trained := trainable.of(model, cfg).describe():
        rows.append(("trains", trained))
    return rows + _steps(cfg, plan, evaluation, len(source))


def _beginning(evaluation: Evaluation, *, begun: bool) -> str:
    """Returns what a run starts from; raises WeightsError for weights that do not fit."""
    cfg = evaluation.cfg
    if cfg.init_from is None:
        return f"random weights, seed {cfg.seed}"
    if not begun:
        loading.initial_params(cfg, evaluation.model, evaluation.classes)
    return cfg.init_from


def _steps(
    cfg: config.Config, plan: Plan, evaluation: Evaluation, examples: int
) -> list[tuple[str, str]]:
    rows, devices = cfg.train.batch_size, jax.device_count()
    at_once = rows // devices // cfg.train.accumulation
    tx = optimizers.create(cfg.optimizer, clip_norm=cfg.train.clip_norm)
    target = state.abstract_state(evaluation.model, tx, cfg, evaluation.mesh)
    size = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(target))
    cooldown = f", {plan.cooldown:,} cooldown" if plan.cooldown else ""
    often = "after the last step" if plan.save is None else f"every {plan.save:,} steps"
    return [
        *(("note", line) for line in checks.large_batch(cfg, examples, devices)),
        ("steps", f"{plan.steps:,} of {rows:,} images, {plan.warmup:,} of them warm-up{cooldown}"),
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
    """Returns the step of the newest checkpoint; None if there is none."""
    directory = workdir / "checkpoints"
    steps = record.steps(record.absolute(directory)) if directory.is_dir() else []
    return steps[-1] if steps else None


def _progress(done: int | None, steps: int) -> str:
    if done is None:
        return "new"
    return "complete" if done >= steps else f"resumes after step {done:,}"


def _images(split: str, count: int, classes: int | None = None) -> str:
    text = f"{split}: {count:,} images"
    if classes is None:
        return text
    return f"{text} of {classes:,} classes" if classes else f"{text} without labels"
