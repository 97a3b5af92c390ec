"""Names for pictures: the top classes of image files, folders, or examples of a split."""

import dataclasses
import functools
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax import config, loading, logs, messages, models
from vit_jax.data import decoding, folders, sampling, sources, split_roles, transforms
from vit_jax.data.skipped_files import Skipped
from vit_jax.training import losses, step

BATCH = 32


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prediction:
    """One picture: its best classes with probabilities, or why it could not be read."""

    image: str
    top: tuple[tuple[str, float], ...] = ()
    truth: str | None = None
    error: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Predictor:
    """A model with everything needed to name pictures, all of it from the checkpoint."""

    cfg: config.Config
    model: models.Classifier
    params: Any
    classes: tuple[str, ...]

    def __call__(
        self, pictures: Iterable[tuple[str, bytes | np.ndarray, str | None]], k: int
    ) -> Iterator[Prediction]:
        """Yields a prediction for each (name, encoded or uint8 HWC image, true class or None)."""
        views = transforms.eval_transforms(self.cfg.data)
        waiting: list[tuple[str, np.ndarray, str | None]] = []
        for name, picture, truth in pictures:
            try:
                view = decoding.load(
                    picture, channels=self.cfg.data.channels, max_pixels=self.cfg.data.max_pixels
                )
            except decoding.BadImage as error:
                yield Prediction(image=name, error=str(error))
                continue
            for transform in views:
                view = transform(view, np.random.default_rng(0))
            waiting.append((name, view, truth))
            if len(waiting) == BATCH:
                yield from self._predict(waiting, k)
                waiting = []
        yield from self._predict(waiting, k)

    def _predict(
        self, waiting: Sequence[tuple[str, np.ndarray, str | None]], k: int
    ) -> Iterator[Prediction]:
        if not waiting:
            return
        batch = np.stack([view for _, view, _ in waiting])
        # One batch size, one compilation.
        batch = np.pad(batch, [(0, BATCH - len(waiting)), (0, 0), (0, 0), (0, 0)])
        most = min(k, len(self.classes))
        values, indices = _top(
            self.model, self.cfg.data, most, self.cfg.train.loss, self.params, batch
        )
        values, indices = np.asarray(values), np.asarray(indices)
        for row, (name, _, truth) in enumerate(waiting):
            pairs = zip(indices[row], values[row], strict=True)
            top = tuple((self.classes[index], float(value)) for index, value in pairs)
            yield Prediction(image=name, top=top, truth=truth)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _top(
    model: models.Classifier, data: config.Data, k: int, loss: str, params: Any, batch: jax.Array
) -> tuple[jax.Array, jax.Array]:
    logits, _ = model.apply(params, step.normalize_pixels(jnp.asarray(batch), data))
    return jax.lax.top_k(losses.probabilities(logits, loss), k)


def load(
    checkpoint: str | os.PathLike[str],
    overrides: Mapping[str, str] | None = None,
    *,
    at: int | str | None = None,
) -> Predictor:
    """Returns the predictor of anything `opening.open_` takes; raises likewise."""
    opened = loading.load_checkpoint(checkpoint, overrides, at=at)
    opened.check_head()
    return Predictor(
        cfg=opened.cfg,
        model=loading.create_model(opened.cfg),
        params=opened.params,
        classes=opened.classes,
    )


def files(
    paths: Sequence[pathlib.Path], count: int | None = None, seed: int = 0
) -> Iterator[tuple[str, bytes, None]]:
    """Yields (path, bytes, None) of image files, those in folders sorted; raises ConfigError.

    Where there are more than `count`, so many are drawn by `seed`.
    """
    found: list[pathlib.Path] = []
    for path in paths:
        if path.is_dir():
            skipped = Skipped()
            names = folders.image_files(path, str(path), skipped=skipped)
            inside = sorted(path / name for name in names)
            left_out = skipped.describe()
            if not inside:
                held = left_out and f"; it holds {left_out}"
                raise config.ConfigError(
                    f"{path}: holds no {', '.join(sources.SUFFIXES)} files{held}"
                )
            if left_out:
                logs.log.info("%s: %d images; not used: %s", path, len(inside), left_out)
            found += inside
        else:
            found.append(path)
    if count is not None and len(found) > count:
        logs.log.info("%d of %d image files, drawn by seed %d", count, len(found), seed)
        found = [found[index] for index in sampling.draw(len(found), count, seed)]
    for file in found:
        try:
            yield messages.printable(str(file)), decoding.read(file), None
        except (OSError, decoding.BadImage) as error:
            reason = getattr(error, "strerror", None) or error
            raise config.ConfigError(f"{file}: {reason}") from error


def examples(
    cfg: config.Config, count: int, seed: int = 0
) -> Iterator[tuple[str, bytes | np.ndarray, str]]:
    """Yields `count` examples of the evaluation split, drawn by seed, with their true classes."""
    source = sources.open_source(cfg.data, cfg.data.eval_split, num_classes=cfg.model.num_classes)
    drawn = sampling.draw(len(source), count, seed)
    shown = split_roles.evaluation(cfg.data).shown
    logs.log.info(
        "%d of %d images of the split %s, drawn by seed %d", len(drawn), len(source), shown, seed
    )
    for index in drawn:
        record = source[index]
        name = messages.printable(source.name(index))
        yield name, record.image, source.classes[record.label]


def as_dict(prediction: Prediction) -> Mapping[str, Any]:
    """Returns a prediction as JSON-able values."""
    top = [{"class": name, "probability": value} for name, value in prediction.top]
    extra = {"truth": prediction.truth, "error": prediction.error}
    return {"image": prediction.image, "top": top} | {
        k: v for k, v in extra.items() if v is not None
    }
