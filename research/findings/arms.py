"""The trainings that findings compare, at one scale: networks, optimizers and data."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping
from typing import Any

from research.findings.declaration import Measurement, Training
from research.findings.scales import Scale, hybrid, resnet, vit
from vit_jax import config, models

SHOTS, DRAWS, DRAWN_FROM, IMAGES = 10, 5, 2000, 128
SIZES = ("S", "M", "L")  # of each family, for readers; not those of the paper


class Arms:
    """The trainings of a scale.

    Pre-training is on CIFAR-100, by Adam with weight decay 0.1 and a linear decay after a warm-up;
    fine-tuning is on CIFAR-10 with a cosine, by Adam with weight decay 0.1 (edition 1: by SGD with
    momentum). Both clip gradients at norm 1.
    """

    def __init__(self, size: Scale, copies: str = "") -> None:
        """Names the data.

        `copies` is the ending of the names of re-encoded datasets, such as `webp`; empty: the
        originals.
        """
        self.size = size
        self.upstream, self.target = (
            f"{name}_{copies}" if copies else name for name in ("cifar100", "cifar10")
        )
        self.whole = size.subsets[-1]

    def pretraining(
        self,
        label: str,
        model: Mapping[str, Any],
        more: Mapping[str, Any] | None = None,
        *,
        images: int | None = None,
        steps: int | None = None,
        measurements: tuple[Measurement, ...] = (),
    ) -> Training:
        """A training on CIFAR-100 from random weights, measured by few-shot on CIFAR-10."""
        steps = steps or self.size.steps
        options = self._data(self.upstream, 100, images or self.whole) | {
            "train.duration": f"{steps} steps",
            "optimizer.name": "adam",
            "optimizer.weight_decay": 0.1,
            "schedule.warmup": f"{steps // 10} steps",
            "schedule.name": "linear",
        }
        return Training(
            label=label,
            options=sorted_options(options | dict(model) | dict(more or {})),
            rates=self.size.adam_rates,
            measurements=(self.few_shot, *measurements),
        )

    @property
    def few_shot(self) -> Measurement:
        """Linear accuracy on CIFAR-10 from a few images per class, mean over draws."""
        return Measurement(
            kind="fewshot" if self.size.edition == 1 else "fewshot_by_seed",
            options=sorted_options(
                {
                    "data.name": self.target,
                    "data.train_split": f"train[:{DRAWN_FROM}]",
                    "data.eval_split": "test",
                    "evaluation.fewshot": ("self",),
                    "evaluation.shots": (SHOTS,),
                    "evaluation.fewshot_seeds": DRAWS,
                }
            ),
        )

    def network(self, family: str, index: int, images: int | None = None, **more: Any) -> Training:
        """The pre-training of a family's network by size, 0 to 2, on all images or some."""
        few = f", {images:,} images" if images not in (None, self.whole) else ""
        label, model = f"{family} {SIZES[index]}{few}", self.model(family, index)
        return self.pretraining(label, model, images=images, **more)

    def model(self, family: str, index: int) -> dict[str, Any]:
        """The options of a network."""
        if family == "ViT":
            return vit(*self.size.encoders[index])
        if family == "hybrid":
            return hybrid(*self.size.hybrids[index])
        return resnet(*self.size.resnets[index])

    @property
    def base(self) -> Training:
        """The middle ViT, whose attention and positions are measured too."""
        attention = Measurement(
            kind="attention", options=(("data.eval_split", f"test[:{IMAGES}]"),)
        )
        return self.network("ViT", 1, measurements=(attention, Measurement(kind="positions")))

    def by_family(self, family: str) -> list[Training]:
        """The three sizes of a family."""
        steps = self.size.family_steps
        shared = family == "ViT" and steps == self.size.steps  # with the other findings
        return [
            self.base if shared and index == 1 else self._sized(family, index, steps)
            for index in range(len(SIZES))
        ]

    def _sized(self, family: str, index: int, steps: int) -> Training:
        found = self.network(family, index, steps=steps)
        if steps == self.size.steps:
            return found
        return dataclasses.replace(found, label=f"{found.label}, {steps:,} steps")

    def masked(self, label: str, target: str, rate: float) -> Training:
        """Masked patch prediction by the middle ViT on CIFAR-100 without labels."""
        options = dict(self.base.options) | {
            "objective.name": "masked_patches",
            "objective.target": target,
            "objective.rate": rate,
            "data.test_split": None,
            "schedule.name": "cosine",
            "checkpoint.best": "loss",
            "train.duration": f"{self.size.masked_steps} steps",
            "schedule.warmup": f"{self.size.masked_steps // 10} steps",
        }
        del options["model.num_classes"]
        # Its held-out loss is not comparable between targets, so no rate is chosen by it.
        return Training(
            label=label, options=sorted_options(options), rates=self.size.adam_rates[:1]
        )

    def finetuned(self, origin: Training, labels: int | None = None) -> Training:
        """Fine-tuning on CIFAR-10 after a pre-training, on the usual images or fewer."""
        options = self._finetuning(origin, labels or self.size.labels[-1])
        few = f" on {labels:,} images" if labels not in (None, self.size.labels[-1]) else ""
        return Training(
            label=f"{origin.label}, fine-tuned{few}",
            options=sorted_options(options),
            rates=self.size.finetune_rates,
            origin=origin,
        )

    def _finetuning(self, origin: Training, labels: int) -> dict[str, Any]:
        model = {key: value for key, value in origin.options if key.startswith("model.")}
        by_sgd = {"optimizer.name": "sgd"}
        by_adam = {"optimizer.name": "adam", "optimizer.weight_decay": 0.1}
        return model | self._data(self.target, 10, labels) | {
            "train.duration": f"{self.size.finetune_steps} steps",
            "schedule.warmup": f"{self.size.finetune_steps // 10} steps",
            "schedule.name": "cosine",
        } | (by_sgd if self.size.edition == 1 else by_adam)  # fmt: skip

    def scratch(self, labels: int | None = None) -> Training:
        """The middle ViT from random weights on the images to fine-tune on.

        It is trained as others are fine-tuned; in edition 1 by Adam, for as many steps as
        pre-training and fine-tuning take together.
        """
        options = self._finetuning(self.base, labels or self.size.labels[-1])
        few = f" on {labels:,} images" if labels not in (None, self.size.labels[-1]) else ""
        if self.size.edition == 1:
            options |= {
                "train.duration": f"{self.size.steps + self.size.finetune_steps} steps",
                "schedule.warmup": f"{self.size.steps // 10} steps",
                "optimizer.name": "adam",
                "optimizer.weight_decay": 0.1,
            }
        rates = self.size.adam_rates if self.size.edition == 1 else self.size.finetune_rates
        return Training(
            label=f"ViT M from scratch{few}", options=sorted_options(options), rates=rates
        )

    def _data(self, name: str, classes: int, images: int) -> dict[str, Any]:
        return {
            "model.num_classes": classes,
            "data.source": "tfds",
            "data.name": name,
            "data.train_split": f"train[:{images}]",
            "data.eval_split": f"train[{100 - self.size.held_out}%:]",
            "data.test_split": "test",
            "data.image_size": (32, 32),
            "data.train_crop": "random",
            "data.resize_to": 36,
            "data.threads": 1,
            "train.batch_size": self.size.batch_size,
            "train.clip_norm": 1.0,
            "checkpoint.every": None,
            "checkpoint.minutes": 3.0,
            "evaluation.every": None,
            "logging.tensorboard": False,
        }


def sorted_options(values: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Options in the form that a training holds."""
    return tuple(sorted(values.items()))


@functools.cache
def forward_flops(training: Training) -> float:
    """The floating-point operations of one image through the network."""
    cfg = config.build(config.override({}, dict(training.options)))
    cfg = dataclasses.replace(cfg, model=models.complete(cfg.model))
    found = models.flops(cfg.model, cfg.data.image_size, cfg.data.channels, cfg.masked)
    assert found is not None, "built-in networks count theirs"
    return found


def compute(training: Training) -> float:
    """The compute of a training in petaFLOPs: three forward passes per image."""
    options = dict(training.options)
    steps = int(options["train.duration"].split()[0])
    return 3 * forward_flops(training) * steps * options["train.batch_size"] / 1e15


def at_compute(arms: list[tuple[float, Training]], where: float) -> list[tuple[float, Training]]:
    """Weights of trainings that interpolate linearly in the logarithm of compute.

    `arms` are compute and training, in ascending order; beyond their ends, the end counts.
    """
    if where <= arms[0][0]:
        return [(1.0, arms[0][1])]
    for (low, first), (high, second) in itertools.pairwise(arms):
        if where <= high:
            share = math.log(where / low) / math.log(high / low)
            return [(1 - share, first), (share, second)]
    return [(1.0, arms[-1][1])]
