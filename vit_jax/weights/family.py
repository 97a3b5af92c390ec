"""Foreign model families: one object holds all knowledge of one architecture's files.

A new family is one new file: a subclass of `Family` with what its files look like, what they leave
open and where they store each parameter. `register` adds it; `families/` has the built-in ones.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

import numpy as np

from vit_jax import config
from vit_jax.weights import json_fields
from vit_jax.weights.arrays import Arrays, WeightsError
from vit_jax.weights.json_fields import Fields
from vit_jax.weights.mapping import ArraySpecs, ModelSpec, Rule, Size

Files = Mapping[str, Fields]  # the JSON files beside the arrays, by name
# Mean and standard deviation of pixels from 0 to 1.
Pixels = tuple[tuple[float, ...], tuple[float, ...]]
HALF: Pixels = ((0.5,), (0.5,))
IMAGENET: Pixels = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CLIP: Pixels = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
# Pillow's filters by the names of timm and open_clip.
FILTERS = {
    "bilinear": "antialiased_bilinear",
    "bicubic": "antialiased_bicubic",
    **{name: name for name in ("nearest", "box", "hamming", "lanczos")},
}
HEADLESS = "the file contains no head; it starts at zero"
NO_HEAD: Mapping[str, str] = {"head/kernel": HEADLESS, "head/bias": HEADLESS}
# Prefix of the reason if a file needs preprocessing that this package lacks: refused unless the
# user sets a replacement.
NOT_OFFERED = "not offered: "
NO_SIZE = (
    "contains no position embeddings; give the image size: --config.data.image_size=HEIGHT,WIDTH"
)
ANY_SIZE = {"data.image_size": "as in training; a ResNet takes any"}  # as an assumption


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hints:
    """What comes with the arrays: JSON files by name, and the user's config.

    The config only provides what the files leave open, such as `image_size` for learned positions
    if it has equally many patches.
    """

    files: Files = dataclasses.field(default_factory=dict)
    image_size: Size | None = None
    heads: int | None = None


class Family:
    """The files of one architecture of another project."""

    project = ""  # whose files they are; in an export, the value of `--to`
    # Arrays of which every file has one; they tell below which prefix a model is.
    anchors: tuple[str, ...] = ()
    head = "classifier"  # its classification layer beside a backbone, as in `head.weight`
    # Regular expressions of arrays that are no part of a model here, each with a reason.
    dropped: tuple[tuple[str, str], ...] = ()
    # Kinds of `model.position` that an export keeps; it makes a table of others.
    positions: tuple[str, ...] = ("learned_1d", "relative")
    pooled_norm = False  # whether exports of a model that reads one token keep `model.norm_place`
    norms: tuple[str, ...] = ("layer",)  # kinds of `model.norm` that its models have
    autoencoders = False  # whether exports hold the decoder of a masked autoencoder

    # Import

    def recognizes(self, arrays: ArraySpecs, files: Files) -> bool:
        """Whether the arrays, with the JSON files that come with them, belong to this family."""
        raise NotImplementedError

    def prepared(self, arrays: Arrays, hints: Hints) -> Arrays:
        """The arrays as `read_spec` and `rules` take them, where a file stores sums of them."""
        return arrays

    def read_spec(self, arrays: ArraySpecs, hints: Hints) -> ModelSpec:
        """Infers the model from names, shapes and files; raises WeightsError."""
        raise NotImplementedError

    def rules(self, arrays: ArraySpecs | None, spec: ModelSpec | None) -> Iterable[Rule]:
        """The rules by which a file with these arrays, or (None) an export, stores each parameter.

        Without a model, which is read with them (`Shapes`), the rules of all that it may have.
        """
        raise NotImplementedError

    # Export, for families that are written too

    def expresses(self, spec: ModelSpec) -> bool:
        """Whether exports to `project` write this model as one of the family.

        The first family that does is taken. The model may have parts that `validate_spec` refuses.
        """
        return False

    def validate_spec(self, spec: ModelSpec) -> None:
        """Raises WeightsError for a model that `expresses` but that the family cannot hold."""

    def files(self, spec: ModelSpec) -> Files:
        """The JSON files to write along with the arrays."""
        return {}

    def constants(self, spec: ModelSpec) -> Mapping[str, np.ndarray]:
        """Arrays of a file that are no parameters here, as they follow from the model."""
        return {}

    def bias_groups(self, spec: ModelSpec) -> Iterable[frozenset[str]]:
        """Groups of parts whose biases a file can leave out; others are written as zeros."""
        return ()

    def class_rows(self, model: config.Model) -> tuple[bool, ...]:
        """Whether a position table has a row for the class token: (True,), (False,), or both."""
        return (True, False)


# In the order in which they are tried; `families/` fills it.
FAMILIES: list[Family] = []


def register(family: Family) -> None:
    """Adds a family, which is tried before all others."""
    FAMILIES.insert(0, family)


def refuse_options(model: config.Model, wrong: Mapping[str, bool], who: str) -> None:
    """Raises WeightsError for the first option of `wrong` that is true: `who` has no such part."""
    for key, odd in wrong.items():
        if odd:
            refuse(model, key, f"{who} has no equivalent")


def refuse(model: config.Model, option: str, why: str) -> NoReturn:
    """Raises WeightsError for the value of an option that a family cannot hold."""
    raise WeightsError(f"model.{option}={config.show(getattr(model, option)).lower()}: {why}")


def set_otherwise(model: config.Model, *options: str) -> dict[str, bool]:
    """Options, each with whether a model has another value than by default."""
    plain = config.Model()
    return {key: getattr(model, key) != getattr(plain, key) for key in options}


def refuse_other_model(
    fields: Fields, model: Mapping[str, Any], where: str = "config.json: "
) -> None:
    """Raises WeightsError for fields of a config that contradict the arrays.

    Such a file describes another model, and its heads, which no array shows, are of that.
    """
    for key, found in model.items():
        said = fields.get(key)
        # One number may stand for height and width, as in patch_size.
        pair = tuple(said) if isinstance(said, list) else (said, said)
        if said is not None and said != found and pair != found:
            raise WeightsError(
                f"{where}{key}={json_fields.shown(said)}: the arrays have "
                f"{config.show(found)}, so it describes another model"
            )


def share_of_crop(crop: str, share: float, fill: float | None = None) -> dict[str, Any]:
    """The options of an evaluation view that torchvision's classes make.

    Args:
      crop: `data.eval_crop`.
      share: timm's crop_pct.
      fill: of the border, as `data.fill`; None: the mean. That of a crop is black.
    """
    if crop == "squash" and share == 1:
        return {"eval_crop": "resize"}
    # Python's `round`, by which torchvision's center_crop places its box, rounds halves to even.
    view: dict[str, Any] = {"eval_crop": crop, "crop_pct": share, "crop_rounding": "even"}
    if crop != "border":
        # The resized image is then smaller than its crop, which torchvision fills with black.
        fill = 0.0 if share > 1 else None
    return view | ({} if fill is None else {"fill": (fill,)})
