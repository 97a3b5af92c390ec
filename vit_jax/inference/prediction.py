"""Predicted classes or numbers of image files and folders, or of examples of a split."""

import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from vit_jax import config
from vit_jax.config import checks
from vit_jax.data import (
    bucket,
    class_matching,
    decoding,
    folder_check,
    folders,
    sampling,
    sources,
    split_roles,
)
from vit_jax.data.source import label_text
from vit_jax.inference import loaded_model, loading
from vit_jax.inference.loaded_model import Prediction
from vit_jax.runtime import logs
from vit_jax.utils import messages, storage


def predict(
    reference: str | os.PathLike[str],
    images: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = (),
    overrides: Mapping[str, Any] | None = None,
    *,
    step: int | str | None = None,
    top: int | None = None,
    examples: int = 0,
    seed: int = 0,
) -> Iterator[Prediction]:
    """The `top` classes, or the numbers, of image files, or of examples of a split.

    For arrays use `load(reference).predict(images)`.

    Args:
      reference: a checkpoint, as in `load`.
      images: image files, and folders of them, on a disk or in a bucket; one or several.
      overrides: options, as in `load`.
      step: as in `load`.
      top: classes per image; None: 3.
      examples: without `images`: how many examples of the evaluation split, drawn by `seed`.
      seed: draws the examples.

    Raises a UserError; an image that cannot be decoded has an `error` instead of classes.

    Examples:
        >>> import vit_jax
        >>> for one in vit_jax.predict("runs/digits", examples=2, top=1):
        ...     print(one.image, len(one.top))
        digits test[85] 1
        digits test[64] 1
    """
    images = storage.as_paths(images)
    if bool(images) == bool(examples):
        raise config.ConfigError("predict: give images or examples, and not both")
    if top is not None:
        config.check_count("--top", top)
    if examples:
        config.check_count("--examples", examples)
        config.check_seed("--seed", seed)
    elif seed:
        raise config.ConfigError(
            f"--seed={seed}: draws examples, but images are given; leave it out"
        )
    # Before the checkpoint: a wrong path shows at once.
    found = list_files(images)
    if examples:
        loading.require_images(reference, overrides or {})
    else:
        loading.check_given(overrides)
    loaded = loading.load(reference, overrides, step)
    loaded.require_head()
    if top is not None and isinstance(loaded.config.loss, config.Regression):
        raise config.ConfigError(
            f"top={top}: {reference} predicts numbers, all of them; leave it out"
        )
    count = 3 if top is None else top
    if images:
        return loaded.classify(read_files(found), count)
    loaded = loaded.for_columns()
    return loaded.classify(read_examples(loaded, examples, seed), count)


def list_files(
    images: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    count: int | None = None,
    seed: int = 0,
) -> list[pathlib.Path]:
    """Image files, those in folders sorted; raises a UserError.

    Where there are more than `count`, so many are drawn by `seed`.
    """
    found: list[pathlib.Path] = []
    for given in storage.as_paths(images):
        path = bucket.given_path("images", given)
        name = bucket.shown(path)
        if path.is_dir():
            inside, left_out = folders.all_images(path, name, name)
            if left_out:
                logs.warn_of_assumptions(name, [f"{len(inside)} images; not used: {left_out}"])
            found += sorted(path / one for one in inside)
        elif not path.exists():
            raise config.ConfigError(f"{name}: no such file or folder")
        else:
            found.append(path)
    if count is not None and len(found) > count:
        logs.log.info("%d of %d image files, drawn by seed %d", count, len(found), seed)
        found = [found[index] for index in sampling.draw_indices(len(found), count, seed)]
    return found


def read_files(files: Iterable[pathlib.Path]) -> Iterator[tuple[str, bytes, None]]:
    """Yields (name, bytes, None) of image files; raises ConfigError."""
    for file in files:
        name = bucket.shown(file)
        try:
            yield messages.printable(name), decoding.read_file(file), None
        except (OSError, decoding.BadImage) as error:
            reason = getattr(error, "strerror", None) or error
            raise config.ConfigError(f"{name}: {reason}") from error


def read_examples(
    loaded: loaded_model.LoadedModel, count: int, seed: int = 0
) -> Iterator[tuple[str, bytes | np.ndarray, str]]:
    """Yields `count` examples of the evaluation split, drawn by seed, with their true classes.

    These are called as the head calls them; what it has no output for is called as in the data.
    """
    cfg = loaded.config
    checks.check_numbers(cfg)
    source = sources.open_unmatched(cfg, cfg.data.eval_split, labels=cfg.needs_labels)
    folder_check.warn_of_left_out(cfg.data, source)
    names = source.classes
    if not cfg.data.targets:
        where = f"data.eval_split={cfg.data.eval_split}"
        names = class_matching.names_in(loaded.names, source.classes, where)
    drawn = sampling.draw_indices(len(source), count, seed)
    shown = split_roles.evaluation(cfg.data).shown
    logs.log.info(
        "%d of %d images of the split %s, drawn by seed %d", len(drawn), len(source), shown, seed
    )
    for index in drawn:
        record = source[index]
        name = messages.printable(source.name(index))
        yield name, record.image, label_text(record.label, names)


def as_dict(prediction: Prediction) -> Mapping[str, Any]:
    """A prediction as JSON-able values."""
    found: dict[str, Any] = {"image": prediction.image}
    if prediction.numbers:
        found["numbers"] = dict(prediction.numbers)
    else:
        top = [{"class": name, "probability": value} for name, value in prediction.top]
        found["top"] = top
    extra = {"truth": prediction.truth, "error": prediction.error}
    return found | {k: v for k, v in extra.items() if v is not None}
