"""Metrics of a checkpoint."""

import os
from collections.abc import Mapping
from typing import Any

from vit_jax.data import class_matching
from vit_jax.evaluation import task_sets
from vit_jax.evaluation.evaluation import open_evaluation
from vit_jax.inference import loading
from vit_jax.runtime import device, distributed, logs
from vit_jax.weights import WeightsError

# Options that bring images of their own.
DATASETS = {f"evaluation.{option}" for option in ("tasks", *task_sets.KINDS)}


def evaluate(
    checkpoint: str | os.PathLike[str],
    overrides: Mapping[str, str],
    *,
    step: int | str | None = None,
) -> dict[str, Any]:
    """Evaluates a checkpoint on its evaluation split, or on the one overridden.

    Metrics are called after that split, such as `test/top1`, and `test/split` is the expression,
    such as `test[:100]`. Those of `evaluation.tasks` are called `TASK/top1` and so on, of
    `evaluation.fewshot` `fewshot/SET/5shot`. Weights of other projects bring no images: for them
    `overrides` must name some, or such datasets, which are then all that is evaluated. So they are,
    with a warning, of a head that does not know the data's classes.
    """
    device.keep_freed_memory()
    with device.memory_errors():
        split = loading.has_images(checkpoint, overrides) or not DATASETS & set(overrides)
        if split:
            loading.require_images(checkpoint, overrides)
        opened = loading.load(checkpoint, overrides, step=step)
        cfg = opened.config
        if task_sets.asks_for_real(cfg) or task_sets.asks_for_own(cfg):
            loading.require_images(checkpoint, overrides)
        distributed.initialize(None, wait=cfg.watchdog.join, heartbeat=cfg.watchdog.heartbeat)
        head = opened.classes if cfg.needs_labels else None
        try:
            if head is not None and (split or cfg.evaluation.tasks):
                opened.require_head()
            evaluation = open_evaluation(cfg, split=split, head=head)
        except (class_matching.UnmatchedError, WeightsError) as error:
            features = any(getattr(cfg.evaluation, kind) for kind in task_sets.KINDS)
            if not features or not split or cfg.evaluation.tasks:
                raise
            note = f"features alone are measured, and not the head: {error}"
            logs.warn_of_assumptions(checkpoint, [note])
            split, evaluation = False, open_evaluation(cfg, split=False, head=head)
        results: dict[str, Any] = {} if opened.step is None else {"step": opened.step}
        results |= evaluation(opened.params) or {}
        role = evaluation.role
        return results | ({f"{role.name}/split": role.split} if split else {})
