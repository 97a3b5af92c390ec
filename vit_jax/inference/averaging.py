"""The mean of the parameters of several checkpoints: the last of a run, or a soup of runs."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from etils import epath

from vit_jax import config
from vit_jax.checkpoints import record as records
from vit_jax.inference import conversion, loaded_model, loading
from vit_jax.utils import storage, tree_utils
from vit_jax.weights import exporting

# May differ: read in training alone or for images of another size, or a name for sizes.
UNREAD = ("variant", "init", "head_bias", "layer_scale", "dropout", "stochastic_depth", "dtype",
          "patch_remainder", "position_resize")  # fmt: skip


def average(
    references: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    overrides: Mapping[str, Any] | None = None,
    *,
    last: int | None = None,
) -> list[str]:
    """Writes the mean of checkpoints as a checkpoint of this project; lines about it, for people.

    Every number is the mean in float64, rounded once. Runs of one model that began with the same
    weights are a soup (Wortsman et al. 2022), also with those weights; means of others are rarely
    of use.

    Args:
      references: checkpoints, as in `load`; one run or several.
      output: the folder to write, which must not exist.
      overrides: options, as in `load`.
      last: of a single run, how many of its newest checkpoints.

    Raises a UserError, such as ConfigError for unlike models, classes or preprocessing.
    """
    output = storage.given_path("--output", output, remote=False)
    conversion.check_free(output)
    named = storage.as_paths(references)
    members = [(reference, None) for reference in named]
    if last is not None:
        config.check_count("--last", last)
        members = _newest(named, last)
    if len(members) < 2:
        raise config.ConfigError(
            "average: needs two checkpoints; name several, or one run and --last=N"
        )
    totals: dict[str, np.ndarray] = {}
    first: loaded_model.LoadedModel | None = None
    names: list[str] = []
    notes: dict[str, None] = {}  # each once, in order
    calibrated: list[str] = []
    seen: set[tuple[str, int | None]] = set()
    for reference, step in members:
        opened = loading.load(reference, overrides, step)
        names.append(f"{reference} {opened.selection}".strip())
        notes |= dict.fromkeys((*opened.notes, *conversion.left_behind(opened)))
        calibrated += [names[-1]] if opened.temperature is not None else []
        # A run has many paths: relative, through a link, of its `checkpoints`.
        path = os.path.realpath(opened.checkpoint or reference)
        if (member := (path, step or opened.step)) in seen:
            raise config.ConfigError(f"{reference}: is named twice; name each checkpoint once")
        seen.add(member)
        # Heads of numbers predict in the scale of their own data; a mean needs one for all.
        scale = opened.config.loss if first is None else first.config.loss
        if isinstance(scale, config.Regression) and opened.config.loss.meaning == scale.meaning:
            opened = opened.rescaled(scale.mean or (0.0,), scale.std or (1.0,))
        if first is None:
            first = opened
        elif (difference := _difference(first, opened)) is not None:
            raise config.ConfigError(
                f"{reference}: is unlike {members[0][0]} ({difference}); average checkpoints of "
                "one model"
            )
        for name, leaf in tree_utils.flatten(jax.device_get(opened.params)).items():
            # One checkpoint in memory at a time, in addition to the sum.
            totals[name] = totals.get(name, 0.0) + np.asarray(leaf, np.float64)
    assert first is not None
    mean = {name: (total / len(members)).astype(np.float32) for name, total in totals.items()}
    # The temperature was fitted to other logits.
    whole = dataclasses.replace(first, params=tree_utils.nest(mean), temperature=None)
    conversion.save_checkpoint(whole, whole.params, output, f"mean of {', '.join(names)}")
    said = [*(f"averaged: {name}" for name in names), *notes]
    if calibrated:
        said.append("temperature: left out, as each was fitted to other logits than the mean's")
    return [*said, f"written: {output} (orbax)"]


def _newest(
    references: Sequence[str | os.PathLike[str]], last: int
) -> list[tuple[str | os.PathLike[str], int]]:
    """The newest checkpoints of the only run, the newest first: the mean is called by its step."""
    if len(references) != 1 or not loading.is_run(references[0]):
        raise config.ConfigError(f"--last={last}: is for the checkpoints of one run directory")
    directory, _, _ = loading.find_checkpoint(references[0])
    steps = sorted(records.readable(epath.Path(directory)))
    if last > len(steps):
        raise config.ConfigError(
            f"--last={last}: {references[0]} has {len(steps)} checkpoints; checkpoint.keep={last} "
            "keeps as many in the next run"
        )
    return [(references[0], step) for step in reversed(steps[-last:])]


def _difference(one: loaded_model.LoadedModel, other: loaded_model.LoadedModel) -> str | None:
    """The first difference between two models, in words; None if there is none."""
    # The defaults on both sides, so that these options never differ.
    unread = {key: getattr(config.Model(), key) for key in UNREAD}
    described = [
        config.Config(
            model=dataclasses.replace(opened.config.model, **unread),
            data=config.Data(channels=opened.config.data.channels),
            loss=config.Loss(name=opened.config.loss.meaning),
        )
        for opened in (one, other)
    ]
    changed = config.differences(*described)
    if changed:
        return ", ".join(
            f"{key} {config.show(a)} and {config.show(b)}" for key, (a, b) in changed.items()
        )
    for key, (a, b) in exporting.other_views(one.config.data, other.config.data).items():
        option = "data.eval_resampling" if key == "resampling" else f"data.{key}"
        return f"{option} {a} and {b}; --config.{option}={a} sets it for all"
    if one.fresh.keys() != other.fresh.keys():
        return f"one of them has no {min(one.fresh.keys() ^ other.fresh.keys())}"
    if one.classes != other.classes:
        return "other classes, or in another order"
    shapes = [
        {name: np.shape(leaf) for name, leaf in tree_utils.flatten(opened.params).items()}
        for opened in (one, other)
    ]
    return None if shapes[0] == shapes[1] else "other parameters"
