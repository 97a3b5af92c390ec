"""What a step minimizes: (params, batch, key, mix, teacher_params) -> (loss, measures).

`key` is that of dropout, or None; `mix` is how mixup and CutMix blend this step's images, or None;
`teacher_params` are the parameters of a teacher, or None.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from vit_jax import config, models
from vit_jax.models.variants import required
from vit_jax.training import distillation, losses, masked_objective, mixup, normalization

Batch = dict[str, jax.Array]


class Objective(NamedTuple):
    """A loss to minimize.

    Attributes:
      loss: the function above; loss and measures are float32 scalars.
      measures: names of the measures, which microbatches are averaged by.
    """

    loss: Callable[..., tuple[jax.Array, dict[str, jax.Array]]]
    measures: tuple[str, ...]


def create(
    model: models.Classifier, cfg: config.Config, teacher: distillation.Teacher | None = None
) -> Objective:
    """The objective that a config asks for."""
    if cfg.masked.target is not None:
        return _masked_patches(model, cfg)
    return _supervised(model, cfg, teacher)


def _supervised(
    model: models.Classifier, cfg: config.Config, teacher: distillation.Teacher | None
) -> Objective:
    """The loss against labels, with top-1; with a teacher, mixed with the distillation loss."""
    train, distill = cfg.train, cfg.distill

    def classify(
        params: models.Params,
        batch: Batch,
        key: jax.Array | None,
        mix: mixup.Mix | None,
        teacher_params: models.Params | None,
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        images, labels = batch["image"], batch["label"]
        if not train.augmentations:  # else they have normalized the pixels
            images = normalization.normalize_pixels(images, cfg.data)
        if mix is not None:
            images = mixup.blend(images, mix.pixels)
        logits, out = model.apply(params, images, key=key)
        classes = logits.shape[-1]
        targets = labels if labels.ndim == 2 else jax.nn.one_hot(labels, classes, dtype=jnp.float32)
        if mix is not None:
            targets = mixup.blend(targets, mix.labels)
        loss = losses.cross_entropy(logits, targets, loss=cfg.loss, smoothing=train.label_smoothing)
        # Of a blend, the label with the larger part is the row's own; of CutMix, it may be less.
        correct = losses.best_is_right(logits, labels, several=cfg.data.multilabel)
        measured = {"top1": jnp.mean(correct, dtype=jnp.float32)}
        loss = jnp.mean(loss)
        if teacher is None:
            return loss, measured
        assert teacher_params is not None
        target = teacher.apply(teacher_params, batch["image"], mix, cfg.mesh)
        divergence = distillation.divergence(
            distill, model, teacher, {**out, "logits": logits}, target
        )
        loss = (1 - distill.weight) * loss + distill.weight * divergence
        return loss, measured | {distillation.MEASURE: divergence}

    return Objective(classify, ("top1",) if teacher is None else ("top1", distillation.MEASURE))


def _masked_patches(model: models.Classifier, cfg: config.Config) -> Objective:
    """The loss of masked patch prediction."""
    target = required(cfg.masked.target)

    def predict(
        params: models.Params,
        batch: Batch,
        key: jax.Array | None,
        mix: mixup.Mix | None,
        teacher_params: models.Params | None,
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        images, chosen = batch["image"], batch["masked"]
        outputs = model.predict_masked(
            params,
            normalization.normalize_pixels(images, cfg.data),
            batch["source"],
            chosen,
            key=key,
        )
        patch = required(cfg.model.patch_size)
        found = masked_objective.measure(outputs, images, chosen, patch, target, cfg.data)
        means = {name: jnp.mean(value, dtype=jnp.float32) for name, value in found.items()}
        return means.pop("loss"), means

    return Objective(predict, masked_objective.MEASURES[target])
