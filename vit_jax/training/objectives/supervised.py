"""Learning from classes or numbers, with mixup, CutMix and the augmentations of plug-ins."""

import functools

import jax
import jax.numpy as jnp

from vit_jax import config, models
from vit_jax.config import components
from vit_jax.data.pipeline import View
from vit_jax.training import losses, mixup, normalization, streams
from vit_jax.training.objectives.objective import Batch, Inputs, Objective, Setup
from vit_jax.utils.tree_utils import Tree

AUGMENTATIONS = "train.augmentations"  # the option


@components.register("objective", "supervised")
class Supervised(Objective):
    """The loss against labels; of classes, with top-1."""

    measures: tuple[str, ...] = ("top1",)

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        train = setup.cfg.train
        # Numbers have no classes, and a head that no loss reaches knows none.
        if setup.cfg.data.targets or not setup.cfg.knows_classes:
            self.measures = tuple(name for name in self.measures if name != "top1")
        self._augmentations = [components.make(one, AUGMENTATIONS) for one in train.augmentations]
        counts = setup.counts
        self._log_shares = None if counts is None else counts.log_shares
        weighted = train.class_weights if counts is not None else ()
        self._weights = counts.weights(weighted) if counts is not None and weighted else None
        # Rows are mixed with their neighbors: pairs stay together.
        self.rows_together = 2 if train.mixup or train.cutmix else 1
        data = setup.cfg.data
        self._phases = tuple((setup.steps(p.until), data.in_phase(p)) for p in setup.phases)

    @property
    def views(self) -> tuple[View, ...]:
        """The image, whole or as a padded sequence of patches (`data.aspect=native`).

        The size of whole images may change during the run (`data.phases`).
        """
        patch = self.model.config.patch_size if self.cfg.data.aspect == "native" else None
        return (View("image", self.cfg.data, patch=patch, phases=self._phases),)

    def draw(self, batch: Batch, step: jax.Array) -> mixup.Mix | None:
        """Draws how mixup and CutMix blend the images of a step; None without them."""
        cfg, (height, width) = self.cfg, batch["image"].shape[1:3]
        return mixup.draw_mix(cfg.seed, step, cfg.train, (height, width))

    def prepare(self, batch: Batch, step: jax.Array) -> Batch:
        """Augments the batch, which then has normalized pixels."""
        # Before microbatches are cut: an augmentation may combine any images of the batch.
        if not self._augmentations:
            return batch
        images = normalization.normalize_pixels(batch["image"], self.cfg.data)
        labels = batch["label"]
        step_key = streams.key(self.cfg.seed, streams.AUGMENTATION, step)
        for index, augment in enumerate(self._augmentations):
            key = jax.random.fold_in(step_key, index)
            before, name = images, self.cfg.train.augmentations[index].name
            with components.calling(AUGMENTATIONS, name):
                images, labels = augment(key, images, labels)
            if (images.shape, images.dtype) != (before.shape, before.dtype) or (
                labels.shape[:1] != before.shape[:1]
            ):
                raise config.ConfigError(
                    f"{AUGMENTATIONS}={name}: returned images {images.dtype} {images.shape} and "
                    f"labels {labels.shape}; images must stay {before.dtype} {before.shape}, "
                    "labels (B,) or (B, K)"
                )
        return batch | {"image": images, "label": labels}

    def classify(
        self, params: models.Params, batch: Batch, inputs: Inputs
    ) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
        """Loss and, of classes, correctness of each image (B,), and the model's outputs by name."""
        cfg, mix = self.cfg, inputs.drawn
        images, labels = batch["image"], batch["label"]
        if not self._augmentations:  # else `prepare` has normalized them
            images = normalization.normalize_pixels(images, cfg.data)
        if mix is not None:
            images = mixup.blend(images, mix.pixels)
        if "grids" in batch:
            apply = functools.partial(self.model.apply_sequences, grids=batch["grids"])
        else:
            apply = self.model.apply
        logits, out = apply(params, images, key=inputs.key)
        classes = logits.shape[-1]
        targets = labels if labels.ndim == 2 else jax.nn.one_hot(labels, classes, dtype=jnp.float32)
        if mix is not None:
            targets = mixup.blend(targets, mix.labels)
        if isinstance(cfg.loss, config.Regression):
            each = {"loss": losses.regression(logits, targets, cfg.loss)}
            return each, {**out, "logits": logits}
        smoothing = cfg.train.label_smoothing
        loss = losses.cross_entropy(
            logits, targets, loss=cfg.loss, smoothing=smoothing, log_shares=self._log_shares
        )
        if self._weights is not None:  # of a blend, in proportion to its parts
            loss *= targets @ jnp.asarray(self._weights, jnp.float32)
        # Of a blend, the label with the larger part is the row's own; of CutMix, it may be less.
        scores = losses.ranked(logits, cfg.loss)
        correct = losses.best_is_right(scores, labels, several=cfg.data.multilabel)
        each = {"loss": loss, "correct": correct.astype(jnp.float32)}
        if cfg.data.multilabel:
            each["labeled"] = jnp.any(labels > 0, axis=-1).astype(jnp.float32)
        return each, {**out, "logits": logits}

    def forward(self, params: models.Params, batch: Batch, inputs: Inputs) -> Tree:
        """Loss, and of classes correctness, of each image, (B,) float32."""
        return self.classify(params, batch, inputs)[0]

    def loss(self, outputs: Tree, inputs: Inputs) -> tuple[jax.Array, dict[str, jax.Array]]:
        """The mean loss, and of classes `top1`."""
        found = {"top1": jnp.mean(outputs["correct"])} if "top1" in self.measures else {}
        if found and "labeled" in outputs:
            found["labeled"] = jnp.mean(outputs["labeled"])
        return jnp.mean(outputs["loss"]), found

    def summarize(self, measures: dict[str, jax.Array], inputs: Inputs) -> dict[str, jax.Array]:
        """`top1` of the images that have a class, as evaluation counts them."""
        if (labeled := measures.pop("labeled", None)) is not None:
            measures["top1"] /= labeled
        return measures
