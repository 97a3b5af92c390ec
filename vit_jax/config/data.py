"""Options of the images."""

import dataclasses
import math
from typing import Any, ClassVar

from vit_jax.config.durations import Duration
from vit_jax.config.options import Section, option

RESAMPLINGS = (
    *("bilinear", "area"),  # TensorFlow's
    *("antialiased_bilinear", "antialiased_bicubic", "nearest", "box", "hamming", "lanczos"),
)
CROPS = ("central", "squash", "border")  # evaluation views that are cut, or bordered
RESIZED = {"data.train_crop": ("random",), "data.eval_crop": CROPS}  # where a crop follows


@dataclasses.dataclass(frozen=True, kw_only=True)
class Transform(Section, kind="transform"):
    """A transform of one training image."""

    name: str = option(
        "",
        "Transform: three_augment, color_jitter, gray, blur, solarize, or one of a plug-in.",
        kind="transform",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ThreeAugment(Transform, components=("three_augment",)):
    """The argument of three_augment."""

    jitter: float = option(0.3, "Brightness, contrast, saturation: 1 +- jitter.", at_least=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sometimes(Transform, components=("gray", "blur", "solarize")):
    """The argument of a transform that is applied sometimes."""

    probability: float = option(1.0, "How often it is applied.", at_least=0, at_most=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ColorJitter(Sometimes, components=("color_jitter",)):
    """Arguments of color_jitter."""

    brightness: float = option(0.4, "Factor 1 +- this, not below 0.", at_least=0)
    contrast: float = option(0.4, "Likewise.", at_least=0)
    saturation: float = option(0.2, "Likewise.", at_least=0)
    hue: float = option(0.1, "Turn of the color circle, +- this.", at_least=0, at_most=0.5)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Phase:
    """The first part of a run, with training views of its own."""

    name: str = option("", "Name of the phase.")
    until: Duration = option(
        Duration(0, "steps"), "Its end, from the start of the run: N steps, epochs or examples."
    )
    image_size: tuple[int, int] | None = option(
        None, "Height and width of its views; none: data.image_size.", at_least=1, at_most=10_000
    )
    crop_area: tuple[float, float] | None = option(
        None, "Its crop_area; none: data.crop_area.", above=0, at_most=1
    )
    randaugment: tuple[int, ...] | None = option(
        None, "Its RandAugment, (): off; none: data.randaugment.", at_least=0
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data(
    Section,
    kind="source",
    chooser="source",
    given=2,  # these options and the split
    given_by_name=("train",),
    components=("digits",),
):
    """The source of images and the preprocessing of their pixels."""

    # What a source has that takes no such argument.
    name: ClassVar[str | None] = None
    root: ClassVar[str | None] = None
    cache: ClassVar[str | None] = None
    cache_size: ClassVar[float] = 0.0
    labels: ClassVar[str | None] = None
    multilabel: ClassVar[bool] = False
    exclude: ClassVar[str | None] = None
    targets: ClassVar[tuple[str, ...]] = ()
    holdout: ClassVar[float] = 0.0

    source: str = option(
        "digits",
        "Where images are: embedded digits, a folder, CSV lists, tars, Parquet or Arrow files, a "
        "TFDS dataset, or random pixels.",
        kind="source",
    )
    examples: str | None = option(
        None,
        "List of the images of data.train_split, to be found by hash; `vit_jax prepare` writes it.",
        free=True,
    )
    classes: tuple[str, ...] | None = option(
        None, "Classes to keep, by name and in this order, such as 0,1,2; none: all of the data's."
    )
    train_split: str = option("train", "Split to train on; TFDS slices such as train[:99%] work.")
    eval_split: str = option(
        "test",
        "Split to evaluate on while training; auto: a validation split if there is one, else test, "
        "or the training split where nothing is measured.",
    )
    test_split: str | None = option(
        None,
        "Split to measure once, at the end; auto: test, where a validation split is evaluated on.",
    )
    image_size: tuple[int, int] = option(
        (224, 224), "Input height and width in pixels.", at_least=1, at_most=10_000
    )
    aspect: str = option(
        "fixed",
        "Views: of image_size, or of about as many patches at the image's own aspect ratio.",
        choices=("fixed", "native"),
    )
    lengths: tuple[int, ...] = option(
        (),
        "Patches of padded views: a training step draws one, evaluation has the most; (): those of "
        "image_size, in evaluation unpadded views of a few shapes.",
        at_least=1,
        when={"data.aspect": ("native",)},
    )
    phases: tuple[Phase, ...] = option(
        (),
        "First parts of the run with training views of their own, ordered by their ends: "
        "phases.small.until='10 epochs' phases.small.image_size=16.",
    )
    channels: int = option(
        3, "Channels: 3 for RGB, 1 for gray, or as many as every image has.", at_least=1, at_most=64
    )
    depth: int = option(
        8,
        "Bits of a channel the model is fed: 8, or 16 without loss from 16-bit PNG and TIFF.",
        choices=(8, 16),
    )
    # The defaults map pixels to [-1, 1], as in Google's code.
    mean: tuple[float, ...] = option(
        (0.5,), "Pixel value, of 0 to 1, the model sees as 0; one, or one for each channel."
    )
    std: tuple[float, ...] = option(
        (0.5,), "Pixel values between the model's 0 and 1; one, or one for each channel.", above=0
    )
    resampling: str = option(
        "bilinear",
        "Resizing: bilinear or area as in TensorFlow; the others as in Pillow.",
        choices=RESAMPLINGS,
    )
    eval_resampling: str | None = option(
        None,
        "Resizing of evaluation views: area in big_vision's resize_small; none: as resampling.",
        choices=RESAMPLINGS,
    )
    train_crop: str = option(
        "inception",
        "Training view: resize to image_size, random crop of resize_to, or Inception crop.",
        choices=("resize", "random", "inception"),
    )
    eval_crop: str = option(
        "resize",
        "Evaluation view: resize to image_size, or central crop of a resized, squashed or bordered "
        "image.",
        choices=("resize", "central", "squash", "border"),
        when={"data.aspect": ("fixed",)},
    )
    resize_to: int | None = option(
        None,
        "Side before a random crop, short side before a central crop; none: 8/7 of image_size. One "
        "that a config sets changes with image_size.",
        at_least=1,
        when=RESIZED,
    )
    crop_pct: float | None = option(
        None,
        "In place of resize_to, timm's share: sides are image_size / crop_pct before a crop.",
        above=0,
        at_most=10,
        when=RESIZED,
    )
    crop_rounding: str = option(
        "down",
        "Odd margins of a central crop: rounded down, or half to even as in torchvision and timm.",
        choices=("down", "even"),
        when={"data.eval_crop": CROPS},
    )
    fill: tuple[float, ...] | None = option(
        None,
        "Border of evaluation views, of 0 to 1; none: data.mean if eval_crop=border, else refused.",
        at_least=0,
        at_most=1,
        when={"data.eval_crop": CROPS},
    )
    # TensorFlow's defaults, which Google's code uses; those of crop_aspect, too.
    crop_area: tuple[float, float] = option(
        (0.05, 1.0),
        "Inception crop: smallest and largest share of the image.",
        above=0,
        at_most=1,
        when={"data.train_crop": ("inception",)},
    )
    crop_aspect: tuple[float, float] = option(
        (0.75, 4 / 3),
        "Inception crop: smallest and largest width / height; with aspect=native, as factors of "
        "the image's own.",
        above=0,
        when={"data.train_crop": ("inception",)},
    )
    randaugment: tuple[int, ...] | None = option(
        None,
        "RandAugment as big_vision's at 224 pixels: operations, magnitude to 30 (2,10); none: off.",
        at_least=0,
    )
    erase: float = option(
        0.0,
        "Random erasing: probability that a rectangle, 2 to 33 % of the view, becomes noise.",
        at_least=0,
        at_most=1,
    )
    transforms: tuple[Transform, ...] = option(
        (),
        "Transforms of one training image after all others: three_augment, color_jitter, gray, "
        "blur, solarize, and those of plug-ins.",
        kind="transform",
    )
    sampling: str = option(
        "uniform",
        "Draws of an epoch: every image once, equally many of each class, or by the square root of "
        "the class's images.",
        choices=("uniform", "balanced", "sqrt"),
    )
    repeats: int = option(
        1,
        "Views of an image one after another (repeated augmentation, as timm's sampler).",
        at_least=1,
    )
    flip: bool = option(True, "Mirror left-right with probability 1/2 while training.")
    rotation: float = option(
        0.0, "Random rotation up to this many degrees.", at_least=0, at_most=180
    )
    scale: float = option(0.0, "Random zoom up to this share, either way.", at_least=0, below=1)
    shift: float = option(0.0, "Random shift up to this share of the side.", at_least=0, below=1)
    # Free, as are threads and prefetch: batches do not depend on them.
    workers: int | None = option(
        None,
        "Loader processes; 0 loads in this one, none chooses by the cores of the machine.",
        at_least=0,
        at_most=256,
        free=True,
    )
    threads: int = option(2, "Loader threads per process.", at_least=1, at_most=256, free=True)
    prefetch: int = option(
        4, "Batches made ahead of the step.", at_least=1, at_most=1024, free=True
    )
    max_bad_examples: int = option(
        0,
        "Unreadable images to replace by their neighbor before the run stops.",
        at_least=0,
        free=True,
    )
    max_pixels: int = option(
        100_000_000, "Largest image, in pixels, that is decoded at all.", at_least=1, free=True
    )
    partial_decoding: bool = option(
        True,
        "Decode only the part of a JPEG that a training crop needs; pixels are the same.",
        free=True,
    )

    def synthetic(self, **options: Any) -> "Data":
        """The same views of random pixels."""
        # In two steps: another source drops the arguments of the one before, these two among them.
        made = dataclasses.replace(self, source="synthetic")
        facts = {"multilabel": self.multilabel, "targets": self.targets}
        return dataclasses.replace(made, **facts, **options)

    def in_phase(self, phase: Phase) -> "Data":
        """The options of the training views of a phase."""
        own = {
            name: value
            for name in ("image_size", "crop_area", "randaugment")
            if (value := getattr(phase, name)) is not None
        }
        # A phase needs a value for off, as none stands for that of the run.
        if own.get("randaugment") == ():
            own["randaugment"] = None
        return dataclasses.replace(self, phases=(), **own)

    @property
    def pixel_type(self) -> str:
        """The type of pixels before they are normalized: uint8 or uint16."""
        return f"uint{self.depth}"

    @property
    def padded(self) -> int | None:
        """Patches of evaluation views that are padded sequences; None: views are whole images."""
        return max(self.lengths, default=None) if self.aspect == "native" else None

    @property
    def before_crop(self) -> tuple[int, int]:
        """Height and width that an image is resized to before a crop of `image_size`."""
        height, width = self.image_size
        if self.crop_pct is not None:
            # timm rounds down here.
            return math.floor(height / self.crop_pct), math.floor(width / self.crop_pct)
        if self.resize_to is not None:
            return self.resize_to, self.resize_to
        # 256 pixels for 224, as is usual for ImageNet.
        return round(height * 8 / 7), round(width * 8 / 7)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Files(Data):
    """Arguments of image files and archives."""

    # Free: a run may move together with its images, whose fingerprint resuming compares.
    root: str | None = option(
        None,
        "Folder of images, lists, tars or tables; of a bucket, s3://, gs:// or hf://, a copy.",
        free=True,
    )
    cache: str | None = option(
        None, "Folder for copies of buckets and listings; none: below ~/.cache/vit_jax.", free=True
    )
    cache_size: float = option(100.0, "GB that all copies of buckets may take.", above=0, free=True)


# Sources of image files and archives, which have a root and may have a validation split.
PACKED = ("tar", "parquet", "arrow")  # sources of many images in a file
FILES = ("folder", "csv", *PACKED)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Listed(Files):
    """The argument of image files of which some are left out."""

    exclude: str | None = option(
        None,
        "CSV file of images to leave out, by their paths below root; `vit_jax doctor` writes it.",
        free=True,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Folder(Listed, components=("folder",)):
    """Arguments of a folder of images."""

    holdout: float = option(
        0.0,
        "Share of each class of unsplit data kept for evaluation; 0: root has splits.",
        at_least=0,
        below=1,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Csv(Listed, components=("csv",)):
    """Arguments of lists of images."""

    multilabel: bool = option(
        False, "Whether an image has any number of classes, for loss.name=sigmoid."
    )
    targets: tuple[str, ...] = option(
        (), "Columns of numbers to predict in place of classes, such as age,weight."
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tar(Folder, components=("tar",)):
    """Arguments of tars that are read where they are."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parquet(Folder, components=("parquet", "arrow")):
    """Arguments of Parquet and Arrow files that are read where they are."""

    labels: str | None = option(None, "Column of labels; none: the only one there is.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tfds(Data, components=("tfds",)):
    """Arguments of a dataset of TFDS."""

    name: str | None = option(None, "TFDS dataset, such as cifar10 or cifar10:3.0.2.")
    root: str | None = option(None, "TFDS data_dir.", free=True)
    labels: str | None = option(
        None, "Labels: a rule such as clevr-count, or a class label by name; none: the data's own."
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Synthetic(Data, components=("synthetic",)):
    """Arguments of random pixels."""

    num_examples: int = option(1024, "Examples per epoch.", at_least=1)
    multilabel: bool = option(False, "Whether an image has any number of classes.")
    targets: tuple[str, ...] = option((), "Names of numbers in place of classes.")
