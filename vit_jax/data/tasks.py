"""Every task as plain data: the data set, its splits by role, its labels, what views may do.

The paper's scores are in `vit_jax/paper.py`, by the names here. VTAB-1k is as in
google-research/task_adaptation at d7630d3; few-shot sets as in big_vision's fewshot_lsr.py.
"""

import dataclasses
import fnmatch

from vit_jax import config
from vit_jax.data import datasets
from vit_jax.data.datasets import Dataset


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """A data set with its splits by role; empty: there is no such split.

    Attributes:
      name: what commands call it, such as `cifar100` or `vtab/clevr-count`.
      title: what the paper calls it.
      group: what it belongs to.
      dataset: where its images are.
      classes: number of classes.
      train: images to train on while settings are being chosen.
      held_out: images to choose them on.
      whole: both together, for the final run.
      test: images to report results on.
      labels: rule of `data.labels` that makes the label, and the pixels where these are not simply
        the image; None: the data set's own class and image.
      several: whether an image may have several right classes.
      mirrored: whether a training view may mirror the image (BiT, appendix F, says where not).
      cropped: whether it may cut some of the image off (likewise).
    """

    name: str
    title: str
    group: str
    dataset: Dataset
    classes: int
    train: str = ""
    held_out: str = ""
    whole: str = ""
    test: str = ""
    labels: str | None = None
    several: bool = False
    mirrored: bool = True
    cropped: bool = True

    @property
    def splits(self) -> dict[str, str]:
        """The splits that there are, by role."""
        roles = ("train", "held_out", "whole", "test")
        return {role: getattr(self, role) for role in roles if getattr(self, role)}

    def count(self, split: str) -> int | None:
        """Returns the number of images in an expression such as `train[:99%]+validation[:200]`.

        None where the sizes in `dataset.images` do not tell.
        """
        total = 0
        for part in split.split("+"):
            name, _, bounds = part.partition("[")
            low, _, high = bounds.rstrip("]").partition(":")
            length = self.dataset.images.get(name)
            first, last = _position(low or "0", length), _position(high or "100%", length)
            if first is None or last is None:
                return None
            total += last - first
        return total


def find(name: str, key: str = "") -> Task:
    """Returns the task of this name.

    Raises ConfigError with the nearest name; `key` says where the name was given, as in
    `evaluation.tasks=`.
    """
    if name in TASKS:
        return TASKS[name]
    hint = config.suggest(name, list(TASKS))
    listed = hint if "did you mean" in hint else "; `vit_jax list --tasks` shows all"
    raise config.ConfigError(f"{key}{name}: no such task{listed}")


def select(pattern: str, key: str = "") -> list[Task]:
    """Returns the tasks that a pattern such as `vtab/*` names, or a group of names such as `vtab`.

    Raises ConfigError, like `find`, where there are none.
    """
    if pattern in TASKS:
        return [TASKS[pattern]]
    found = [
        task
        for name, task in TASKS.items()
        if fnmatch.fnmatchcase(name, pattern) or name.startswith(f"{pattern}/")
    ]
    return found or [find(pattern, key)]


def _position(bound: str, length: int | None) -> int | None:
    """Returns an end of a slice as a number of images, rounded to the nearest for percentages."""
    if bound == "0":
        return 0
    if length is None:
        return None if bound.endswith("%") or bound.startswith("-") else int(bound)
    number = round(int(bound[:-1]) * length / 100) if bound.endswith("%") else int(bound)
    return number + length if bound.startswith("-") else number


def _whole_tasks() -> list[Task]:
    """Returns what the paper pre-trains on and fine-tunes on; held-out shares: appendix B.1.1."""
    d, pretraining, finetuning = datasets, "Pre-training", "Fine-tuning"

    def tuned(name: str, title: str, dataset: Dataset, percent: int) -> Task:
        return Task(
            name=name,
            title=title,
            group=finetuning,
            dataset=dataset,
            classes=dataset.classes,
            train=f"train[:{percent}%]",
            held_out=f"train[{percent}%:]",
            whole="train",
            test="test",
        )

    return [
        Task(
            name="imagenet",
            title="ImageNet",
            group=pretraining,
            dataset=d.IMAGENET,
            classes=1000,
            train="train[:99%]",
            held_out="train[99%:]",
            whole="train",
            test="validation",
        ),
        Task(
            name="imagenet21k",  # splits: big_vision's vit_i21k.py
            title="ImageNet-21k",
            group=pretraining,
            dataset=d.IMAGENET21K,
            classes=21_843,
            train="full[51200:]",
            held_out="full[25600:51200]",
            whole="full[25600:]",
            test="full[:25600]",
        ),
        Task(
            name="jft",
            title="JFT-300M",
            group=pretraining,
            dataset=d.JFT,
            classes=18_291,
            train="train",
            held_out="validation",
        ),
        tuned("cifar10", "CIFAR-10", d.CIFAR10, 98),
        tuned("cifar100", "CIFAR-100", d.CIFAR100, 98),
        tuned("pets", "Pets", d.PETS, 90),
        tuned("flowers", "Flowers", d.FLOWERS, 90),
    ]


def _vtab() -> list[Task]:
    """Returns VTAB-1k in the order of Table 9: 800 images, 200 to choose on, all test images."""
    d, group = datasets, ""

    def task(
        name: str, title: str, dataset: Dataset, val200: str, test: str = "test", **rest: object
    ) -> Task:
        facts = {"classes": dataset.classes} | rest
        return Task(
            name=f"vtab/{name}",
            title=title,
            group=f"VTAB {group}",
            dataset=dataset,
            train="train[:800]",
            held_out=val200,
            whole=f"train[:800]+{val200}",
            test=test,
            **facts,  # pyright: ignore[reportArgumentType]
        )

    validation = "validation[:200]"
    group = "Natural"
    natural = [
        task("caltech101", "Caltech101", d.CALTECH101, "train[2754:2954]"),
        task("cifar100", "CIFAR-100", d.CIFAR100, "train[45000:45200]"),
        task("dtd", "DTD", d.DTD, validation),
        task("flowers102", "Flowers102", d.FLOWERS, validation),
        task("pets", "Pets", d.PETS, "train[2944:3144]"),
        task("sun397", "Sun397", d.SUN397, validation),
        task("svhn", "SVHN", d.SVHN, "train[65931:66131]"),
    ]
    group = "Specialized"
    specialized = [
        task("camelyon", "Camelyon", d.CAMELYON, validation),
        task("eurosat", "EuroSAT", d.EUROSAT, "train[16200:16400]", "train[21600:]"),
        task("resisc45", "Resisc45", d.RESISC45, "train[18900:19100]", "train[25200:]"),
        task("retinopathy", "Retinopathy", d.RETINOPATHY, validation),
    ]
    group = "Structured"
    clevr = {"val200": "train[63000:63200]", "test": "validation", "cropped": False}
    sprites = {"val200": "train[589824:590024]", "test": "train[663552:]", "mirrored": False}
    norb = {"val200": "test[:200]", "test": "test[50%:]"}
    structured = [
        task("clevr-count", "Clevr-Count", d.CLEVR, classes=8, labels="clevr-count", **clevr),
        task("clevr-distance", "Clevr-Dist", d.CLEVR, classes=6, labels="clevr-distance", **clevr),
        task("dmlab", "DMLab", d.DMLAB, validation, cropped=False),
        task(
            "dsprites-location", "dSpr-Loc", d.DSPRITES, classes=16, labels="dsprites-location",
            cropped=False, **sprites,
        ),
        task(
            "dsprites-orientation", "dSpr-Ori", d.DSPRITES, classes=16,
            labels="dsprites-orientation", **sprites,
        ),
        task(
            "kitti-distance", "KITTI-Dist", d.KITTI, validation, classes=4,
            labels="kitti-distance", cropped=False,
        ),
        task(
            "smallnorb-azimuth", "sNORB-Azim", d.SMALLNORB, classes=18,
            labels="smallnorb-azimuth", mirrored=False, **norb,
        ),
        task(
            "smallnorb-elevation", "sNORB-Elev", d.SMALLNORB, classes=9,
            labels="smallnorb-elevation", **norb,
        ),
    ]  # fmt: skip
    return [*natural, *specialized, *structured]


def _measured() -> list[Task]:
    """Returns what is only evaluated on: other labels and other images for ImageNet's classes."""
    d = datasets

    def variant(name: str, title: str, dataset: Dataset, **rest: str | bool) -> Task:
        return Task(
            name=name,
            title=title,
            dataset=dataset,
            classes=dataset.classes,
            **({"group": "ImageNet variants", "test": "test"} | rest),  # pyright: ignore
        )

    return [
        variant("imagenet-real", "ImageNet ReaL", d.REAL, test="validation", several=True),
        variant("imagenet-v2", "ImageNet-V2", d.IMAGENET_V2),
        variant("imagenet-a", "ImageNet-A", d.IMAGENET_A),
        variant("imagenet-r", "ImageNet-R", d.IMAGENET_R),
        variant("imagenet-sketch", "ImageNet-Sketch", d.IMAGENET_SKETCH),
        variant("objectnet", "ObjectNet", d.OBJECTNET),
        *(
            variant(
                f"imagenet-c/{kind}",
                f"ImageNet-C {kind.replace('_', ' ')}",
                dataset,
                group="ImageNet-C",
                test="validation",
            )
            for kind, dataset in d.IMAGENET_C.items()
        ),
    ]


def _few_shot() -> list[Task]:
    """Returns the sets of few-shot linear evaluation: examples are drawn from `train`."""
    d = datasets

    def task(name: str, title: str, dataset: Dataset, train: str, test: str) -> Task:
        return Task(
            name=f"fewshot/{name}",
            title=title,
            group="Few-shot",
            dataset=dataset,
            classes=dataset.classes,
            train=train,
            test=test,
        )

    return [
        task("caltech101", "Caltech101", d.CALTECH101, "train", "test"),
        task("cars", "Cars", d.CARS, "train", "test"),
        task("cifar100", "CIFAR-100", d.CIFAR100, "train", "test"),
        task("dtd", "DTD", d.DTD, "train", "test"),
        task("pets", "Pets", d.PETS, "train", "test"),
        task("uc_merced", "UC Merced", d.UC_MERCED, "train[:1000]", "train[1000:]"),
        # The first 65,000 images have at least 30 of every class.
        task("imagenet", "ImageNet", d.IMAGENET, "train[:65000]", "validation"),
    ]


TASKS: dict[str, Task] = {
    task.name: task for task in (*_whole_tasks(), *_vtab(), *_measured(), *_few_shot())
}
