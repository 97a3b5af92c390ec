"""Metrics of a checkpoint, and CSV tables of its predictions."""

import csv
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from vit_jax import config
from vit_jax.config import ConfigError
from vit_jax.data import class_matching, folder_check, split_roles
from vit_jax.data.source import Source, read_targets
from vit_jax.evaluation import measures, metrics, task_sets
from vit_jax.evaluation.evaluation import open_evaluation
from vit_jax.inference import conversion, loaded_model, loading
from vit_jax.runtime import device, distributed, logs
from vit_jax.training import losses
from vit_jax.utils import messages, storage
from vit_jax.weights import WeightsError

# Options that bring images of their own.
DATASETS = {f"evaluation.{option}" for option in ("tasks", *task_sets.KINDS)}


def evaluate(
    reference: str | os.PathLike[str],
    overrides: Mapping[str, Any] | None = None,
    step: int | str | None = None,
    *,
    output: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """The metrics of a checkpoint on its whole evaluation split, by name.

    Metrics are named after that split, such as `test/top1`, and `test/split` is the expression,
    such as `test[:100]`. Those of `evaluation.tasks` are named `TASK/top1` and so on, those of
    `evaluation.fewshot` `fewshot/SET/5shot`. Weights of other projects name no images: `overrides`
    must name some, or such datasets, which are then evaluated alone. They are also evaluated alone,
    with a warning, if the head does not know the data's classes.

    Args:
      reference: a checkpoint, as in `load`.
      overrides: options, as in `load`.
      step: as in `load`.
      output: a folder to write, which must not exist: `images.csv` with the truth and the
        prediction of every image, `classes.csv`, `confusion.csv`.

    Raises a UserError.

    Examples:
        >>> import vit_jax
        >>> vit_jax.evaluate("runs/digits", {"data.eval_split": "test[:20]"})["test/count"]
        20
    """
    overrides, folder = overrides or {}, None
    config.check_overrides(overrides)
    if output is not None:
        folder = storage.given_path("output", output, remote=False)
        conversion.check_free(folder)
    kept: list[metrics.Outputs] = []
    # Both act before the first call that asks jax for devices, which loading a checkpoint is.
    device.step_by_step()
    distributed.initialize()
    with device.memory_errors("lower evaluation.batch_size"):
        # If nothing at all names images, `require_images` below says what to set.
        split = loading.has_images(reference, overrides) or not DATASETS & set(overrides)
        if split:
            loading.require_images(reference, overrides)
        opened = loading.load(reference, overrides, step=step)
        cfg = opened.config
        if task_sets.asks_for_real(cfg) or split_roles.asks_for_own(cfg):
            loading.require_images(reference, overrides)
        head = opened.classes if cfg.needs_labels else None
        try:
            if head is not None and (split or cfg.evaluation.tasks):
                opened.require_head()
            if split and head is not None:
                opened = opened.for_columns()
                head, cfg = opened.classes, opened.config
            evaluation = open_evaluation(
                cfg,
                split=split,
                head=head,
                temperature=opened.temperature,
                keep=kept.append if folder is not None else None,
            )
        except (class_matching.UnmatchedError, WeightsError) as error:
            features = any(getattr(cfg.evaluation, kind) for kind in task_sets.KINDS)
            if not features or not split or cfg.evaluation.tasks:
                raise
            note = f"only features are measured, not the head: {error}"
            logs.warn_of_assumptions(reference, [note])
            split, evaluation = False, open_evaluation(cfg, split=False, head=head)
        if not evaluation.evaluators:
            nothing = "nothing is measured; set evaluation.knn=SET, such as cifar10"
            unmeasured = [nothing] if cfg.measured else split_roles.notes(cfg, 1)
            raise ConfigError(f"{reference}: {unmeasured[0]}")
        if evaluation.source is not None:
            folder_check.warn_of_left_out(cfg.data, evaluation.source)
        results: dict[str, Any] = {} if opened.step is None else {"step": opened.step}
        if folder is not None and (evaluation.source is None or not cfg.needs_labels):
            raise ConfigError(f"--output={folder}: needs a split with labels that the head knows")
        results |= evaluation(opened.params) or {}
        role = evaluation.role
        if folder is not None and evaluation.source is not None and jax.process_index() == 0:
            write_tables(folder, kept[0], evaluation.source, opened)
        return results | ({f"{role.name}/split": role.split} if split else {})


def write_tables(
    folder: pathlib.Path, outputs: metrics.Outputs, source: Source, opened: loaded_model.LoadedModel
) -> None:
    """Writes a head's predictions for a split as CSV; raises ConfigError where that cannot be.

    Of numbers there is `images.csv` alone: the truth and the prediction of each, in their units. Of
    classes, `images.csv` has the truth, the prediction and their probabilities of every image;
    `classes.csv` images, precision, recall, F1, AUROC and average precision of every class, empty
    where undefined, as recall without an image, and for one of several that the data does not know;
    `confusion.csv`, of images of one class, how many of each (rows) were taken for each (columns).
    """
    logits, labels, index = outputs
    several, classes, loss = labels.ndim == 2, opened.names, opened.config.loss
    if isinstance(loss, config.Regression):
        found = losses.scaled(logits.astype(np.float64), loss)
        # Interleaved as in the header: truth and prediction of one column, then of the next.
        both = np.stack([read_targets(source)[index], found], axis=-1).reshape(len(index), -1)
        names = (messages.printable(source.name(int(at))) for at in index)
        rows = ((name, *map(repr, row)) for name, row in zip(names, both.tolist(), strict=True))
        header = ("image", *(word for name in classes for word in (name, f"{name}_predicted")))
        with storage.writing("--output", folder), storage.replacing(folder) as part:
            part.mkdir(parents=True)
            _write_table(part / "images.csv", header, rows)
        return
    truth = labels > 0 if several else labels
    best = measures.predicted(logits, loss, several=several)
    chances = np.asarray(losses.probabilities(opened.scaled(logits), loss))

    def named(value: Any) -> str:
        marked = np.flatnonzero(value) if several else [value]
        # -1 is the prediction of an output with a NaN.
        return "; ".join(classes[number] for number in marked if number >= 0)

    def chance(row: int, value: Any) -> str:
        marked = np.flatnonzero(value) if several else [max(value, 0)]
        return "; ".join(f"{chances[row, number]:.6f}" for number in marked)

    images = (
        (
            messages.printable(source.name(int(at))),
            *(named(found[row]) for found in (truth, best)),
            *(chance(row, found[row]) for found in (truth, best)),
        )
        for row, at in enumerate(index)
    )
    # `count` weighs images for bootstrap replicates; here every image counts once.
    ones = np.ones((1, len(logits)))
    counts = metrics.count(truth, best, len(classes), ones)
    # The denominators of precision, recall and F1: without any, these are undefined.
    occurs = (counts.predicted, counts.support, counts.predicted + counts.support)
    values = (counts.precision, counts.recall, counts.f1)
    columns = [np.where(n > 0, x, np.nan) for x, n in zip(values, occurs, strict=True)]
    # Without the temperature, so that AUROC is that of `evaluation.metrics`.
    scores = measures.scores(logits, loss)
    areas = [
        metrics.curve_areas(scores[:, k], truth[:, k] if several else truth == k, ones)
        for k in range(len(classes))
    ]
    shares = np.concatenate([*columns, np.stack(areas, axis=-1)[:, 0]])  # (5, K)
    # Which images show a class that the data has not is unknown, where outputs do not compete.
    known = getattr(source, "outputs", range(len(classes))) if several else range(len(classes))
    each = (
        (
            name,
            int(counts.support[0, k]) if k in known else "",
            *("" if np.isnan(x) or k not in known else f"{x:.6f}" for x in shares[:, k]),
        )
        for k, name in enumerate(classes)
    )
    with storage.writing("--output", folder), storage.replacing(folder) as part:
        part.mkdir(parents=True)
        header = ("image", "truth", "prediction", "truth_probability", "prediction_probability")
        _write_table(part / "images.csv", header, images)
        header = ("class", "images", "precision", "recall", "f1", "auroc", "average_precision")
        _write_table(part / "classes.csv", header, each)
        if not several:
            matrix = metrics.confusion(truth, best, len(classes))
            rows = zip(classes, matrix.tolist(), strict=True)
            listed = ((name, *row) for name, row in rows)
            _write_table(part / "confusion.csv", ("truth", *classes), listed)


def _write_table(
    file: pathlib.Path, header: Sequence[str], rows: Iterable[Sequence[object]]
) -> None:
    # csv ends lines itself; newline="" keeps them as they are.
    with file.open("w", newline="", encoding="utf-8", errors="backslashreplace") as opened:
        writer = csv.writer(opened, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
