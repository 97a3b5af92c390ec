"""Layouts: names and shapes of arrays in other projects' files, as tables of rules.

A rule maps one of our parameters to its location in the other project's files, for import and
export. Our layers are stacked on a leading axis, theirs are not, so one rule covers an array of
every layer: `{layer}` counts encoder layers, `{stage}` and `{unit}` those of a ResNet, all from 0;
`{stage1}` and `{unit1}` count from 1.
"""

import dataclasses
import itertools
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from vit_jax import config, models
from vit_jax.utils import tree_utils
from vit_jax.weights import json_fields
from vit_jax.weights.readers import Arrays, Spec, WeightsError

Shape = tuple[int, ...]
PORTION = 2**20  # numbers
LAYER = re.compile(r"(?<=[._])\d+(?=[./])")  # its number in the name of an array
HEADLESS = "the file contains no head; it starts at zero"
SEVERAL = "multi_label_classification"  # transformers' `problem_type` of outputs by sigmoid
HEAD = "vit_jax.head"  # in the metadata of a .safetensors file that has no config.json
OWN_SIZE = "views of the model's size"  # assumed where a processor makes others
SOFTMAX = "train.loss=softmax"  # as an assumption
ONE_OUTPUT = "the head has one output, of which softmax always makes 1"


class Form(NamedTuple):
    """The layout of one of our arrays in a file."""

    shape: Callable[[Shape], Shape]  # shape in the file, from our shape
    read: Callable[[np.ndarray, Shape], np.ndarray]  # theirs, and the shape of ours, to ours
    write: Callable[[np.ndarray], np.ndarray]  # ours to theirs


SAME = Form(lambda shape: shape, lambda array, _: array, lambda array: array)
# GroupNorm parameters with the axes of a feature map.
SPREAD = Form(
    lambda shape: (1, 1, 1, *shape),
    lambda array, shape: array.reshape(shape),
    lambda array: array.reshape(1, 1, 1, -1),
)
# Without our leading axis of one.
ROWS = Form(lambda shape: shape[1:], lambda array, _: array[None], lambda array: array[0])
FLAT = Form(
    lambda shape: (math.prod(shape),),
    lambda array, shape: array.reshape(shape),
    lambda array: array.reshape(-1),
)
# torch's kernels: features before inputs.
CONVOLUTION = Form(
    lambda shape: (shape[3], shape[2], shape[0], shape[1]),
    lambda array, _: array.transpose(2, 3, 1, 0),
    lambda array: array.transpose(3, 2, 0, 1),
)


def linear(inputs: int = 1) -> Form:
    """Returns torch's layout (out, in) of a dense kernel with leading input axes."""

    def two(shape: Shape) -> Shape:
        return math.prod(shape[inputs:]), math.prod(shape[:inputs])

    return Form(
        two,
        lambda array, shape: array.T.reshape(shape),
        lambda array: array.reshape(two(array.shape)[::-1]).T,
    )


class Rule(NamedTuple):
    """The location of the parameter `ours`: the array `theirs`, or one part of it.

    `ours` is a name in `Classifier.shapes()`, where `resnet/unit/` covers every unit of a ResNet.
    If several rules match a parameter, the first whose array is in the file applies.
    """

    theirs: str
    ours: str
    form: Form = SAME
    part: int = 0  # of equal parts along an axis
    parts: int = 1
    axis: int = 0


class Place(NamedTuple):
    """One of our arrays, for one layer, and its location in the file."""

    ours: str
    index: int | None  # on our leading axis
    shape: Shape  # of ours, without that axis
    theirs: str
    rule: Rule


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """The arrays used, dropped and fresh, the latter two with a reason."""

    used: int = 0
    dropped: Mapping[str, str] = dataclasses.field(default_factory=dict)
    fresh: Mapping[str, str] = dataclasses.field(default_factory=dict)
    resized: Mapping[str, str] = dataclasses.field(default_factory=dict)
    prefix: str = ""  # of the names in the file

    def lines(self) -> list[str]:
        """Returns the report as text, one line per category and reason."""
        lines = [f"used: {self.used} arrays{f' under {self.prefix}' if self.prefix else ''}"]
        for use in ("dropped", "fresh", "resized"):
            reasons: dict[str, list[str]] = {}
            for name, reason in getattr(self, use).items():
                reasons.setdefault(reason, []).append(name)
            for reason, names in reasons.items():
                shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" * (len(names) > 4))
                lines.append(f"{use}: {shown} ({reason})")
        return lines


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts about a model from its source, in addition to the arrays.

    `data` describes the preprocessing of its training, image size to resampling, not its source.
    """

    model: config.Model
    data: config.Data
    classes: tuple[str, ...] = ()
    # How outputs become probabilities: `softmax`, `sigmoid`, a loss of a plug-in; None: not said.
    loss: str | None = None
    kind: str = ""  # Hugging Face's model_type, which decides the rules to read by
    # What names, shapes and config files leave open, with the reason for each choice: options by
    # dotted name, and in words what is no option.
    assumed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # Parameters that the source lacks and that start at zero, and why; `write` omits them.
    fresh: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hints:
    """Other information: JSON files next to the arrays by name, and the user's config.

    The config only provides what the files leave open, such as `image_size` for learned positions
    if it has equally many patches.
    """

    files: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    image_size: tuple[int, int] | None = None
    heads: int | None = None


def head_metadata(facts: Facts) -> dict[str, str]:
    """What a .safetensors file alone says of its head: the names of its classes, and their loss."""
    said: dict[str, Any] = {"label_names": facts.classes} if facts.classes else {}
    said |= {"problem_type": SEVERAL} if facts.loss == "sigmoid" else {}
    return {HEAD: json.dumps(said)} if said and "head/kernel" not in facts.fresh else {}


def with_head(facts: Facts, metadata: Mapping[str, str]) -> Facts:
    """Adds what `head_metadata` has said, where nothing else did; raises WeightsError."""
    if "head/kernel" in facts.fresh:
        return facts
    if HEAD in metadata:
        try:
            said = json.loads(metadata[HEAD])
        except (ValueError, RecursionError):
            said = None
        if not isinstance(said, dict):
            raise WeightsError(f"__metadata__: {HEAD}: must be a JSON object")
        count = facts.model.num_classes or 0
        names = facts.classes or json_fields.labels(said, "label_names", count)
        sigmoid = facts.loss is None and said.get("problem_type") == SEVERAL
        loss = "sigmoid" if sigmoid else facts.loss
        facts = dataclasses.replace(facts, classes=names, loss=loss)
    if facts.loss is None and facts.model.num_classes == 1:
        assumed = {key: why for key, why in facts.assumed.items() if key != SOFTMAX}
        assumed["sigmoid for softmax"] = ONE_OUTPUT
        facts = dataclasses.replace(facts, loss="sigmoid", assumed=assumed)
    return facts


class Layout(NamedTuple):
    """A file format for models, for import and export."""

    name: str
    recognizes: Callable[[Arrays], bool]  # by the names of the arrays
    facts: Callable[[Arrays, Hints], Facts]  # raises WeightsError
    rules: Callable[[Mapping[str, Spec] | None, Facts], list[Rule]]  # None: those to write by
    dropped: tuple[tuple[str, str], ...] = ()  # other names, and why they are left out


def array_shape(specs: Mapping[str, Spec], name: str, axes: int) -> Shape:
    """Returns the shape of an array that a model of this kind must have; raises WeightsError."""
    shape = specs[name].shape if name in specs else ()
    if len(shape) != axes or 0 in shape:
        raise WeightsError(f"contains no model of this kind: no {name} with {axes} axes")
    return shape


def read(
    arrays: Arrays, rules: Sequence[Rule], dropped: Sequence[tuple[str, str]], facts: Facts
) -> tuple[models.Params, Report]:
    """Returns float32 parameters, nested by name, and a report on every array.

    Args:
      arrays: arrays of the file.
      rules: rules of its layout for this model.
      dropped: regular expressions of other names, each with the reason to leave it out.
      facts: facts about the model.

    Allocates only arrays with the model's own shapes, plus one array of the file at a time; if
    anything is wrong, only the latter.

    Raises WeightsError, in one line with every problem: an array that is unknown, missing, of the
    wrong shape or type, or not finite.
    """
    shapes = tree_utils.flatten(create_classifier(facts).shapes())
    left = set(arrays.specs)
    flat: dict[str, np.ndarray] = {}
    # Grouped, so that an array with several parts is read once and freed.
    wanted: dict[str, list[Place]] = {}
    for place in _places(shapes, rules, arrays.specs):
        if place.ours not in facts.fresh:
            wanted.setdefault(place.theirs, []).append(place)
    wrong = {theirs: _wrong(arrays, theirs, places) for theirs, places in wanted.items()}
    left -= wanted.keys()
    sound = not any(wrong.values()) and all(reason(name, dropped, arrays.specs) for name in left)
    problems: list[str] = []
    for theirs, places in wanted.items():
        if wrong[theirs]:
            problems.append(f"{theirs} is {wrong[theirs]}")
            continue
        with np.errstate(over="ignore"):  # what is too large becomes infinite
            array = arrays.read(theirs).astype(np.float32, copy=False)
        if not all(np.isfinite(part).all() for part in _portions(array)):
            problems.append(f"{theirs} is not finite")
        elif sound and not problems:
            _put(array, places, shapes, flat)
        del array  # before the next is read
    reasons = {}
    for name in sorted(left):
        why = reason(name, dropped, arrays.specs)
        if why is None:
            problems.append(f"{name} is not part of the model")
        else:
            reasons[name] = why
    if problems:
        raise WeightsError(summary(_by_layer(problems)))
    flat |= {name: np.zeros(shapes[name].shape, np.float32) for name in facts.fresh}
    params = tree_utils.nest({name: flat[name] for name in shapes})
    used = len(arrays.specs) - len(left)
    return params, Report(used=used, dropped=reasons, fresh=facts.fresh)


def write(params: models.Params, rules: Sequence[Rule], facts: Facts) -> dict[str, np.ndarray]:
    """Returns the arrays of a layout, by name, float32, in C order; the inverse of `read`.

    Raises WeightsError if the layout does not support a parameter.
    """
    shapes = tree_utils.flatten(create_classifier(facts).shapes())
    flat = tree_utils.flatten(params)
    found: dict[str, np.ndarray] = {}
    parts: dict[str, dict[int, np.ndarray]] = {}
    for place in _places(shapes, rules, None):
        if place.ours in facts.fresh:
            continue
        array = np.asarray(flat[place.ours], np.float32)
        array = place.rule.form.write(array if place.index is None else array[place.index])
        if place.rule.parts == 1:
            found[place.theirs] = np.ascontiguousarray(array)
            continue
        some = parts.setdefault(place.theirs, {})
        some[place.rule.part] = array
        if len(some) == place.rule.parts:
            whole = np.concatenate([some[i] for i in range(len(some))], place.rule.axis)
            found[place.theirs] = np.ascontiguousarray(whole)
    return found


def create_classifier(facts: Facts) -> models.Classifier:
    """Returns the float32 classifier of a source's model."""
    return models.create(
        facts.model, image_size=facts.data.image_size, channels=facts.data.channels
    )


def summary(problems: Sequence[str], length: int = 350) -> str:
    """Returns the first problems, in about `length` characters, and the number of the others.

    This leaves space for a path in the message, which is not truncated.
    """
    ends = itertools.accumulate(len(problem) + 2 for problem in problems)
    shown = max(1, sum(end <= length for end in ends))
    more = len(problems) - shown
    return "; ".join(problems[:shown]) + (f"; and {more} more" if more > 0 else "")


def _by_layer(problems: Sequence[str]) -> list[str]:
    """Problems that arrays of several layers share, once."""
    alike: dict[str, list[str]] = {}
    for problem in problems:
        alike.setdefault(LAYER.sub("*", problem, count=1), []).append(problem)
    return [
        first if not others else f"{first} (and so in {len(others)} more layers)"
        for first, *others in alike.values()
    ]


def depth(specs: Mapping[str, Spec], pattern: str) -> int:
    """Returns the number of layers in a file: 1 + the largest number in its names."""
    found = [int(m[1]) for name in specs if (m := re.match(pattern, name))]
    return 1 + max(found, default=-1)


def _places(
    shapes: Mapping[str, Any], rules: Sequence[Rule], present: Mapping[str, Spec] | None
) -> Iterator[Place]:
    by_ours: dict[str, list[Rule]] = {}
    for rule in rules:
        by_ours.setdefault(rule.ours, []).append(rule)
    for ours, leaf in shapes.items():
        own = by_ours.get(ours, [])
        stacked = ours.startswith("encoder/") and own and all("{" not in r.theirs for r in own)
        layers = _layers(ours, tuple(leaf.shape))
        if stacked:  # in the file too
            layers = iter([(None, ours, {}, tuple(leaf.shape))])
        for index, general, counts, shape in layers:
            if general not in by_ours:
                raise WeightsError(f"this layout has no place for {ours}")
            options = [Place(ours, index, shape, r.theirs.format(**counts), r)
                       for r in by_ours[general]]  # fmt: skip
            here = [p for p in options if present is not None and p.theirs in present]
            yield (here or options)[0]


def _layers(ours: str, shape: Shape) -> Iterator[tuple[int | None, str, dict[str, int], Shape]]:
    """Yields index, rule name, counts and shape of every layer stacked in a parameter."""
    if ours.startswith("encoder/"):
        for layer in range(shape[0]):
            yield layer, ours, {"layer": layer}, shape[1:]
    elif match := re.fullmatch(r"resnet/stage(\d+)/(first|rest)/(.+)", ours):
        stage, general = int(match[1]) - 1, f"resnet/unit/{match[3]}"
        count = 1 if match[2] == "first" else shape[0]
        for index in range(count):
            unit = 0 if match[2] == "first" else 1 + index
            counts = {"stage": stage, "stage1": stage + 1, "unit": unit, "unit1": unit + 1}
            first = match[2] == "first"
            yield (None if first else index), general, counts, shape if first else shape[1:]
    else:
        yield None, ours, {}, shape


def _wrong(arrays: Arrays, theirs: str, places: Sequence[Place]) -> str:
    """Returns the error in the name, shape or type of an array; empty if there is none."""
    if theirs not in arrays.specs:
        return "missing"
    return next(filter(None, (_misfit(arrays.specs[theirs], place) for place in places)), "")


def reason(name: str, dropped: Sequence[tuple[str, str]], specs: Mapping[str, Spec]) -> str | None:
    """Returns why an array is left out; None if it should not be there."""
    if 0 in specs[name].shape:  # as transformers writes no registers
        return "it is empty"
    return next((why for pattern, why in dropped if re.fullmatch(pattern, name)), None)


def _portions(array: np.ndarray) -> Iterator[np.ndarray]:
    """Yields an array in small pieces, to bound the memory of checks."""
    flat = array.reshape(-1) if array.flags.c_contiguous else array.T.reshape(-1)
    yield from (flat[i : i + PORTION] for i in range(0, flat.size, PORTION))


def _put(
    array: np.ndarray,
    places: Sequence[Place],
    shapes: Mapping[str, Any],
    flat: dict[str, np.ndarray],
) -> None:
    """Stores an array of a file in our parameters, without a copy if it is a whole parameter."""
    for ours, index, shape, _, rule in places:
        part = np.split(array, rule.parts, rule.axis)[rule.part] if rule.parts > 1 else array
        part = rule.form.read(part, shape)
        if index is None and rule.parts == 1:
            flat[ours] = part
            continue
        if ours not in flat:
            flat[ours] = np.empty(shapes[ours].shape, np.float32)
        flat[ours][() if index is None else index] = part


def _misfit(spec: Spec, place: Place) -> str:
    """Returns why an array does not fit its location; empty if it fits."""
    one, rule = place.rule.form.shape(place.shape), place.rule
    shape = (*one[: rule.axis], one[rule.axis] * rule.parts, *one[rule.axis + 1 :])
    if spec.shape != shape:
        return f"{spec.shape}, not {shape}"
    if spec.dtype not in (np.float32, np.float16, ml_dtypes.bfloat16, np.float64):
        return f"{spec.dtype}, not a type of weights"
    return ""
