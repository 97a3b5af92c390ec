"""Every task as plain data: dataset, splits by role, labels, permitted augmentation.

The paper's scores are in `vit_jax/config/paper.py`, by the same names. VTAB-1k follows
google-research/task_adaptation at d7630d3, few-shot sets big_vision's fewshot_lsr.py.
"""

import dataclasses
import fnmatch
import functools
from collections.abc import Iterator

from vit_jax import config
from vit_jax.data import datasets, splits
from vit_jax.data.datasets import Dataset


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """A dataset with its splits by role; empty: no such split."""

    name: str  # its name on the command line, such as `cifar100` or `vtab/clevr-count`
    title: str  # its name in the paper
    group: str  # group of tasks
    dataset: Dataset  # dataset of its images
    classes: int  # number of classes
    train: str = ""  # training images during the selection of settings
    held_out: str = ""  # images that settings are selected on
    whole: str = ""  # both together, for the final run
    test: str = ""  # images to report results on
    # Rule of `data.labels` for the label, and the pixels if they are not simply the image;
    # None: the dataset's own class and image.
    labels: str | None = None
    several: bool = False  # whether an image may have several correct classes
    restricted: bool = False  # whether only classes of its images are predicted, as by its authors
    mirrored: bool = True  # whether training may mirror images (exceptions: BiT, appendix F)
    cropped: bool = True  # whether training may crop images (likewise)

    @property
    def splits(self) -> dict[str, str]:
        """The existing splits by role."""
        roles = ("train", "held_out", "whole", "test")
        return {role: getattr(self, role) for role in roles if getattr(self, role)}

    def count(self, split: str) -> int | None:
        """The number of images in an expression such as `train[:99%]+validation[:200]`.

        None if `dataset.images` lacks a size.
        """
        total = 0
        for name, low, high in splits.parts(split):
            length = self.dataset.images.get(name)
            bounds = low or "0", high or "100%"
            # Bounds in plain numbers need no size of the split.
            if length is None and not all(map(str.isdecimal, bounds)):
                return None
            first, last = (splits.position(bound, length or 0) for bound in bounds)
            total += last - first
        return total


def find_task(name: str, key: str = "") -> Task:
    """The task of this name.

    Raises ConfigError with the nearest name; `key` is the option that contains the name, such as
    `evaluation.tasks=`.
    """
    if name in TASKS:
        return TASKS[name]
    hint = config.suggest(name, list(TASKS))
    listed = hint if "did you mean" in hint else "; `vit_jax list --tasks` shows all"
    raise config.ConfigError(f"{key}{name}: no such task{listed}")


def select(pattern: str, key: str = "") -> list[Task]:
    """The tasks that match a pattern such as `vtab/*`, or a group such as `vtab`.

    Raises ConfigError, like `find_task`, if there are none.
    """
    if pattern in TASKS:
        return [TASKS[pattern]]
    found = [
        task
        for name, task in TASKS.items()
        if fnmatch.fnmatchcase(name, pattern) or name.startswith(f"{pattern}/")
    ]
    return found or [find_task(pattern, key)]


def _finetuning(name: str, title: str, dataset: Dataset, percent: int) -> Task:
    """A task of Table 4: a part of `train` for selection (appendix B.1.1), then all."""
    return Task(
        name=name, title=title, group="Fine-tuning", dataset=dataset, classes=dataset.classes,
        train=f"train[:{percent}%]", held_out=f"train[{percent}%:]", whole="train", test="test",
    )  # fmt: skip


def _vtab(
    group: str,
    name: str,
    title: str,
    dataset: Dataset,
    held_out: str,
    test: str = "test",
    *,
    classes: int | None = None,
    mirrored: bool = True,
    cropped: bool = True,
) -> Task:
    """A VTAB-1k task; with `classes`, the rule of its name makes the labels."""
    return Task(
        name=f"vtab/{name}", title=title, group=f"VTAB {group}", dataset=dataset,
        classes=classes or dataset.classes, train="train[:800]", held_out=held_out,
        whole=f"train[:800]+{held_out}", test=test, labels=name if classes else None,
        mirrored=mirrored, cropped=cropped,
    )  # fmt: skip


def _vtab_in_order() -> list[Task]:
    """The 19 tasks in the order of Table 9."""
    d, validation = datasets, "validation[:200]"
    natural, specialized, structured = (
        functools.partial(_vtab, group) for group in ("Natural", "Specialized", "Structured")
    )
    # Held out are 200 images of task_adaptation's validation part. Where a dataset has none, that
    # begins at 90 % of `train` (Pets, dSprites 80 %, EuroSAT, Resisc45 60 %); SmallNORB's is half
    # of `test`.
    clevr, sprites, norb = (
        ("train[63000:63200]", "validation"),
        ("train[589824:590024]", "train[663552:]"),
        ("test[:200]", "test[50%:]"),
    )
    return [
        natural("caltech101", "Caltech101", d.CALTECH101, "train[2754:2954]"),
        natural("cifar100", "CIFAR-100", d.CIFAR100, "train[45000:45200]"),
        natural("dtd", "DTD", d.DTD, validation),
        natural("flowers102", "Flowers102", d.FLOWERS, validation),
        natural("pets", "Pets", d.PETS, "train[2944:3144]"),
        natural("sun397", "Sun397", d.SUN397, validation),
        natural("svhn", "SVHN", d.SVHN, "train[65931:66131]"),
        specialized("camelyon", "Camelyon", d.CAMELYON, validation),
        specialized("eurosat", "EuroSAT", d.EUROSAT, "train[16200:16400]", "train[21600:]"),
        specialized("resisc45", "Resisc45", d.RESISC45, "train[18900:19100]", "train[25200:]"),
        specialized("retinopathy", "Retinopathy", d.RETINOPATHY, validation),
        structured("clevr-count", "Clevr-Count", d.CLEVR, *clevr, classes=8, cropped=False),
        structured("clevr-distance", "Clevr-Dist", d.CLEVR, *clevr, classes=6, cropped=False),
        structured("dmlab", "DMLab", d.DMLAB, validation, cropped=False),
        structured(
            "dsprites-location", "dSpr-Loc", d.DSPRITES, *sprites,
            classes=16, mirrored=False, cropped=False,
        ),
        structured(
            "dsprites-orientation", "dSpr-Ori", d.DSPRITES, *sprites, classes=16, mirrored=False
        ),
        structured("kitti-distance", "KITTI-Dist", d.KITTI, validation, classes=4, cropped=False),
        structured(
            "smallnorb-azimuth", "sNORB-Azim", d.SMALLNORB, *norb, classes=18, mirrored=False
        ),
        structured("smallnorb-elevation", "sNORB-Elev", d.SMALLNORB, *norb, classes=9),
    ]  # fmt: skip


def _measured(
    name: str,
    title: str,
    dataset: Dataset,
    train: str = "",
    test: str = "test",
    *,
    group: str = "ImageNet variants",
    several: bool = False,
    restricted: bool = False,
) -> Task:
    """A set for evaluation only; few-shot evaluation draws its shots from `train`."""
    return Task(
        name=name, title=title, group=group, dataset=dataset, classes=dataset.classes, train=train,
        test=test, several=several, restricted=restricted,
    )  # fmt: skip


def _all() -> Iterator[Task]:
    """Yields every task in the order of the tables; the splits of pre-training are big_vision's."""
    d, group = datasets, "Pre-training"
    yield Task(
        name="imagenet", title="ImageNet", group=group, dataset=d.IMAGENET, classes=1000,
        train="train[:99%]", held_out="train[99%:]", whole="train", test="validation",
    )  # fmt: skip
    yield Task(
        name="imagenet21k", title="ImageNet-21k", group=group, dataset=d.IMAGENET21K,
        classes=21_843, train="full[51200:]", held_out="full[25600:51200]", whole="full[25600:]",
        test="full[:25600]",
    )  # fmt: skip
    yield Task(
        name="jft", title="JFT-300M", group=group, dataset=d.JFT, classes=18_291,
        train="train", held_out="validation",
    )  # fmt: skip
    yield _finetuning("cifar10", "CIFAR-10", d.CIFAR10, 98)
    yield _finetuning("cifar100", "CIFAR-100", d.CIFAR100, 98)
    yield _finetuning("pets", "Pets", d.PETS, 90)
    yield _finetuning("flowers", "Flowers", d.FLOWERS, 90)
    yield from _vtab_in_order()
    yield _measured("imagenet-real", "ImageNet ReaL", d.REAL, test="validation", several=True)
    yield _measured("imagenet-v2", "ImageNet-V2", d.IMAGENET_V2)
    yield _measured("imagenet-a", "ImageNet-A", d.IMAGENET_A, restricted=True)
    yield _measured("imagenet-r", "ImageNet-R", d.IMAGENET_R, restricted=True)
    yield _measured("imagenet-sketch", "ImageNet-Sketch", d.IMAGENET_SKETCH)
    yield _measured("objectnet", "ObjectNet", d.OBJECTNET, several=True)
    for kind, dataset in d.IMAGENET_C.items():
        title = f"ImageNet-C {kind.replace('_', ' ')}"
        yield _measured(f"imagenet-c/{kind}", title, dataset, test="validation", group="ImageNet-C")
    few = functools.partial(_measured, group="Few-shot")
    yield few("fewshot/caltech101", "Caltech101", d.CALTECH101, "train")
    yield few("fewshot/cars", "Cars", d.CARS, "train")
    yield few("fewshot/cifar100", "CIFAR-100", d.CIFAR100, "train")
    yield few("fewshot/dtd", "DTD", d.DTD, "train")
    yield few("fewshot/pets", "Pets", d.PETS, "train")
    yield few("fewshot/uc_merced", "UC Merced", d.UC_MERCED, "train[:1000]", "train[1000:]")
    # The first 65,000 images contain at least 30 of every class.
    yield few("fewshot/imagenet", "ImageNet", d.IMAGENET, "train[:65000]", "validation")


TASKS: dict[str, Task] = {task.name: task for task in _all()}
