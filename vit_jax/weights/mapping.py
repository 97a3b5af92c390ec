"""Rules that map arrays in other projects' files to parameters, in both directions.

Parameters of layers are stacked on a leading axis, arrays in most files are not, so one rule covers
an array of every layer: `{layer}` counts encoder layers, `{stage}` and `{unit}` those of a ResNet,
all from 0; `{stage1}` and `{unit1}` count from 1.
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import ml_dtypes
import numpy as np

from vit_jax import config, models
from vit_jax.models import mae, positions
from vit_jax.models.classifier import OBJECTIVE
from vit_jax.utils import tree_utils
from vit_jax.weights.arrays import Arrays, ArraySpec, WeightsError

Shape = tuple[int, ...]
Size = tuple[int, int]  # height and width
ArraySpecs = Mapping[str, ArraySpec]  # names, shapes and types of the arrays in a file
PORTION = 2**20  # numbers checked at a time
# Options that give a model further parameters, by a pattern of the names of those.
OPTIONS = {
    "(query|key)_norm/": "qk_norm",
    "sub_norm/": "sub_norm",
    "stem_norm/": "stem_norm",
    "patch_norm/": "patch_norm",
    "relative_bias/": "relative_bias",
    "position/": "position",
    "encoder/scale[12]/": "layer_scale",
    "mlp/gate/": "mlp",
    "registers": "registers",
    "distillation|head_dist/": "distillation",
    "pooling/": "pooling",
    "resnet/": "resnet_units",
    "frequencies": "rotary_learned",
    "pre_logits/": "representation_size",
}
STACKED = re.compile(rf"({OBJECTIVE}/)?encoder/")  # parameters of layers
LAYER = re.compile(r"(?<=[._])\d+(?=[./])")  # the number of a layer in the name of an array


class ArrayLayout(NamedTuple):
    """The layout of a parameter in a file."""

    shape: Callable[[Shape], Shape]  # shape in the file, from that of the parameter
    read: Callable[[np.ndarray, Shape], np.ndarray]  # from the file, to a parameter of this shape
    write: Callable[[np.ndarray], np.ndarray]  # to the file
    axes: tuple[int, ...] = ()  # of the file, in the parameter's order; (): as they are


def reshaped(stored: Callable[[Shape], Shape]) -> ArrayLayout:
    """The layout of the same values in the shape that `stored` makes of a parameter's."""
    return ArrayLayout(
        stored,
        lambda array, shape: array.reshape(shape),
        lambda array: array.reshape(stored(array.shape)),
    )


SAME = ArrayLayout(lambda shape: shape, lambda array, _: array, lambda array: array)
# GroupNorm parameters with the axes of a feature map.
SPREAD = reshaped(lambda shape: (1, 1, 1, *shape))
ROWS = reshaped(lambda shape: shape[1:])  # without the parameter's leading axis of one
FLAT = reshaped(lambda shape: (math.prod(shape),))
# torch's kernels: features before inputs.
CONVOLUTION = ArrayLayout(
    lambda shape: (shape[3], shape[2], shape[0], shape[1]),
    lambda array, _: array.transpose(2, 3, 1, 0),
    lambda array: array.transpose(3, 2, 0, 1),
    (2, 3, 1, 0),
)


def linear(inputs: int = 1) -> ArrayLayout:
    """The layout (out, in) in torch of a dense kernel with this number of leading input axes."""

    def two(shape: Shape) -> Shape:
        return math.prod(shape[inputs:]), math.prod(shape[:inputs])

    return ArrayLayout(
        two,
        lambda array, shape: array.T.reshape(shape),
        lambda array: array.reshape(two(array.shape)[::-1]).T,
        (1, 0),
    )


class Rule(NamedTuple):
    """The location of the parameter `target` in a file: the array `source`, or one part of it.

    `target` is a name in `Classifier.shapes()`, where `resnet/unit/` covers every unit of a ResNet.
    If several rules match a parameter, the first whose array is in the file applies.
    """

    source: str
    target: str
    layout: ArrayLayout = SAME
    part: int = 0  # of equal parts along an axis
    parts: int = 1
    axis: int = 0


class Location(NamedTuple):
    """A parameter, or one layer of it, and its array in the file."""

    target: str
    index: int | None  # on the parameter's leading axis
    shape: Shape  # of the parameter, without that axis
    source: str
    rule: Rule


@dataclasses.dataclass(frozen=True, kw_only=True)
class MappingReport:
    """The arrays used, dropped, fresh and resized, the latter three with a reason."""

    used: int = 0
    dropped: Mapping[str, str] = dataclasses.field(default_factory=dict)
    fresh: Mapping[str, str] = dataclasses.field(default_factory=dict)
    resized: Mapping[str, str] = dataclasses.field(default_factory=dict)
    prefix: str = ""  # of the names in the file

    def lines(self) -> list[str]:
        """The report as text, one line per category and reason."""
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
class ModelSpec:
    """A source's description of its model, besides the parameters.

    `data` describes the preprocessing of its training, image size to resampling, not its dataset.
    """

    model: config.Model
    data: config.Data
    classes: tuple[str, ...] = ()
    # How outputs become probabilities: `softmax`, `sigmoid`, a loss of a plug-in; None: not said.
    loss: str | None = None
    # What names, shapes and config files leave open, with the reason for each choice: options by
    # dotted name, and other facts in words.
    assumed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # How it was trained, where the source has the decoder of a masked autoencoder too.
    mae: config.Mae | None = None
    # Parameters that the source lacks and that start at zero, and why; exports omit them.
    fresh: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def headless(self) -> bool:
        """Whether the source has no classification layer."""
        return "head/kernel" in self.fresh


def array_shape(arrays: ArraySpecs, name: str, axes: int) -> Shape:
    """The shape of an array that every model of a family has; raises WeightsError without it."""
    shape = arrays[name].shape if name in arrays else ()
    if len(shape) != axes or 0 in shape:
        raise WeightsError(f"contains no model of this kind: no {name} with {axes} axes")
    return shape


# Parts in `model.biasless`, by the layer whose bias they lack.
BIASES = {
    "embedding": "patches",
    **{f"encoder/attention/{name}": name for name in ("query", "key", "value", "out")},
    "encoder/mlp/fc1": "mlp",
    "head": "head",
}
FIRST = {"layer": 0, "stage": 0, "stage1": 1, "unit": 0, "unit1": 1}
UNIT = re.compile(r"(.*)\{stage(1?)\}(.*)\{unit(1?)(?::02d)?\}")


class Shapes:
    """The facts about a model that follow from the names and shapes of its arrays.

    Attributes:
      arrays: those of the file.
      has: the parameters in the file as rules name them, each with its array (of the first layer).
    """

    def __init__(self, arrays: ArraySpecs, rules: Iterable[Rule]):
        self.has: dict[str, str] = {}
        self.arrays = arrays
        self._rules: dict[str, Rule] = {}
        self._all = list(rules)
        for rule in self._all:
            name = rule.source.format(**FIRST)
            # Projects renamed arrays, so a parameter may have several rules: that of an array in
            # the file counts, or else the first, whose array messages call missing.
            if rule.target not in self._rules or (name in arrays and rule.target not in self.has):
                self._rules[rule.target] = rule
            if name in arrays:
                self.has.setdefault(rule.target, name)

    def expected(self, target: str) -> str:
        """The array of a parameter, in the file or missing."""
        return self._rules[target].source.format(**FIRST)

    @property
    def headless(self) -> bool:
        """Whether the file has no classification layer."""
        return not {"head/kernel", "head/bias"} & self.has.keys()

    @property
    def outputs(self) -> int:
        """The number of outputs of the head, 1 without one."""
        return 1 if self.headless else self.shape("head/kernel", 2)[-1]

    @property
    def channels(self) -> int:
        """The number of channels of the images."""
        root = "resnet/conv_root/kernel"
        first = root if root in self.has else "embedding/kernel"
        return self.shape(first if first in self._rules else root, 4)[2]

    def shape(self, target: str, axes: int) -> Shape:
        """The shape of a parameter with `axes` axes; those of heads are merged if the file's are.

        Raises WeightsError without it.
        """
        rule = self._rules[target]
        # A source without a count is one array of all layers, stacked on a leading axis.
        stacked = bool(STACKED.match(target)) and "{" not in rule.source
        count = len(rule.layout.shape((1,) * axes)) + stacked
        sides = list(array_shape(self.arrays, self.expected(target), count))[stacked:]
        sides[rule.axis] //= rule.parts
        return tuple(sides[axis] for axis in rule.layout.axes or range(len(sides)))

    def encoder(self, biases: Collection[str] = ()) -> dict[str, Any]:
        """The options of a transformer that arrays tell; raises WeightsError.

        `biases` are the parts whose bias may be missing; that of another is an error of the file.
        """
        *patch, channels, width = self.shape("embedding/kernel", 4)
        torch = self._rules["embedding/kernel"].layout is CONVOLUTION
        if torch and patch[0] == channels > 4 >= patch[1]:  # as MLX and Keras have them
            name = self.expected("embedding/kernel")
            raise WeightsError(
                f"{name} is {self.arrays[name].shape}: its channels are last, unlike PyTorch's; "
                "save it in PyTorch's order"
            )
        query = self.shape("encoder/attention/query/kernel", 3)
        stacked = "{" not in self._rules["encoder/norm1/scale"].source
        layers = self.depth("encoder/")
        if stacked:
            layers = array_shape(self.arrays, self._rules["encoder/norm1/scale"].source, 2)[0]
        shared = "shared" if "relative_bias/table" in self.has else "none"
        return {
            "patch_size": tuple(patch),
            # As a convolution without padding, which their patch embeddings are.
            "patch_remainder": "drop",
            "width": width,
            "depth": layers,
            "heads": query[1] if len(query) == 3 else None,
            "mlp": "swiglu" if "encoder/mlp/gate/kernel" in self.has else "plain",
            "mlp_dim": self.shape("encoder/mlp/fc1/kernel", 2)[1],
            "num_classes": self.outputs,
            "representation_size": (
                self.shape("pre_logits/kernel", 2)[1] if "pre_logits/kernel" in self.has else None
            ),
            "distillation": "distillation" in self.has,
            "registers": self._registers(),
            "position": "learned_1d" if "position/table" in self.has else "none",
            "stem_norm": "stem_norm/scale" in self.has,
            "patch_norm": "patch_norm/scale" in self.has,
            "qk_norm": "encoder/attention/query_norm/scale" in self.has,
            "sub_norm": tuple(
                part for part in ("attention", "mlp")
                if f"encoder/{part}/sub_norm/scale" in self.has
            ),
            "relative_bias": (
                "layers" if "encoder/attention/relative_bias/table" in self.has else shared
            ),
            "biasless": tuple(
                part for layer, part in BIASES.items()
                if part in biases
                and f"{layer}/kernel" in self.has and f"{layer}/bias" not in self.has
            ),
            **(self.resnet() if "resnet/conv_root/kernel" in self.has else {}),
        }  # fmt: skip

    def depth(self, targets: str) -> int:
        """The number of layers with parameters of this prefix."""
        blocks = {
            re.escape(rule.source.partition("{layer}")[0])
            for rule in self._all
            if rule.target.startswith(targets) and "{layer}" in rule.source
        }
        # Three digits: a name alone must not ask for a billion layers.
        layer = re.compile(rf"(?:{'|'.join(sorted(blocks))})(\d{{1,3}})[./]")
        found = [int(match[1]) for name in self.arrays if (match := layer.match(name))]
        return 1 + max(found, default=-1)

    def resnet(self) -> dict[str, Any]:
        """The options of a ResNet that arrays tell; raises WeightsError if a stage is missing."""
        counts: dict[int, int] = {}
        units = {match.groups() for rule in self._all if (match := UNIT.match(rule.source))}
        for before, stage_from, between, unit_from in units:
            pattern = re.compile(
                rf"{re.escape(before)}(\d{{1,2}}){re.escape(between)}(\d{{1,3}})[./]"
            )
            for name in self.arrays:
                if match := pattern.match(name):
                    stage, unit = int(match[1]) + (not stage_from), int(match[2]) + (not unit_from)
                    counts[stage] = max(counts.get(stage, 0), unit)
        if set(counts) != set(range(1, len(counts) + 1)) or len(counts) > 4:
            raise WeightsError(f"its ResNet has the stages {sorted(counts)}, not 1, 2, ... up to 4")
        return {
            "resnet_units": tuple(counts[stage] for stage in sorted(counts)),
            "resnet_width": self.shape("resnet/conv_root/kernel", 4)[3] / 64,
        }

    def _registers(self) -> int:
        name = self.has.get("registers", "")
        return 0 if not name or 0 in self.arrays[name].shape else self.shape("registers", 3)[1]

    def model(self, **options: Any) -> config.Model:
        """The complete model of these options, with the class token that the arrays tell."""
        made = config.Model(**options)
        token = "cls" in self.has
        if token and not models.default_class_token(made.pooling):
            made = dataclasses.replace(made, class_token=True)
        return models.complete(made)


def square(patches: int) -> Size:
    """Rows and columns of a square grid; raises WeightsError if it is not square."""
    side = math.isqrt(max(patches, 0))
    if side * side != patches or not patches:
        raise WeightsError(
            f"contains positions of {patches} patches, which is not a square; "
            "give the image size: --config.data.image_size=HEIGHT,WIDTH"
        )
    return side, side


def size_of_positions(
    model: config.Model, patches: int, given: Size | None
) -> tuple[Size, dict[str, str]]:
    """The image size of learned positions, and the assumptions made.

    The size `given` by another source is used if it has equally many patches; otherwise the grid is
    assumed to be square. Raises WeightsError for a non-square number of patches without a size.
    """
    fits = given is not None and math.prod(models.grid(model, given)) == patches
    if given is not None and (fits or math.isqrt(patches) ** 2 != patches):
        return given, {}  # the shape check reports one that does not fit
    (rows, columns), patch = square(patches), model.patch_size or (1, 1)
    factor = models.reduction(model)
    why = f"{patches} positions as a square of {rows} x {columns}; the file does not say"
    size = rows * patch[0] * factor, columns * patch[1] * factor
    return size, {"data.image_size": why}


def create_classifier(spec: ModelSpec) -> models.Classifier:
    """The float32 classifier of a source's model."""
    return models.create(spec.model, image_size=spec.data.image_size, channels=spec.data.channels)


def parameters(spec: ModelSpec) -> models.Params:
    """Shapes of the parameters of a source's model, with those of its decoder if it has one."""
    model = create_classifier(spec)
    if spec.mae is None:
        return model.shapes()
    return model.shapes() | {OBJECTIVE: mae.create_decoder(model, spec.mae).shapes()}


def decoder_positions(spec: ModelSpec) -> np.ndarray:
    """The fixed positions of a decoder, (1, 1 + P, D) float32, as files of it hold them."""
    assert spec.mae is not None
    rows, columns = models.grid(spec.model, spec.data.image_size)
    table = positions.sincos_2d(rows, columns, spec.mae.decoder_width, whole=False)
    # MAE's code has zeros for the class token.
    return np.pad(np.asarray(table), ((1, 0), (0, 0)))[None]


def read_params(
    arrays: Arrays, rules: Iterable[Rule], dropped: Sequence[tuple[str, str]], spec: ModelSpec
) -> tuple[models.Params, MappingReport]:
    """Reads float32 parameters, nested by name, and reports on every array.

    `rules` say where a family stores this model; `dropped` are regular expressions of other names,
    each with the reason to leave it out.

    Allocates only arrays with the model's own shapes, plus one array of the file at a time; if
    anything is wrong, only the latter.

    Raises WeightsError, in one line with every problem: an array that is unknown, missing, of the
    wrong shape or type, or not finite.
    """
    rules = list(rules)  # first, as they refuse what cannot even be built
    shapes = tree_utils.flatten(parameters(spec))
    stored = {name: leaf for name, leaf in shapes.items() if name not in spec.fresh}
    left = set(arrays.specs)
    flat: dict[str, np.ndarray] = {}
    # Grouped, so that an array with several parts is read once and freed.
    wanted: dict[str, list[Location]] = {}
    for location in locate(stored, rules, arrays.specs, spec.model):
        wanted.setdefault(location.source, []).append(location)
    wrong = {
        source: next(filter(None, (misfit(arrays.specs.get(source), one) for one in locations)), "")
        for source, locations in wanted.items()
    }
    left -= wanted.keys()
    # Known from names and shapes alone: a file with a problem is still checked for values that are
    # not finite, but fills no parameters.
    sound = not any(wrong.values()) and all(reason(name, dropped, arrays.specs) for name in left)
    problems: list[str] = []
    for source, locations in wanted.items():
        if wrong[source]:
            problems.append(f"{source} is {wrong[source]}")
            continue
        with np.errstate(over="ignore"):  # what is too large becomes infinite
            array = arrays.read(source).astype(np.float32, copy=False)
        if not all(np.isfinite(part).all() for part in _portions(array)):
            problems.append(f"{source} is not finite")
        elif sound and not problems:
            _put(array, locations, shapes, flat)
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
    flat |= {name: np.zeros(shapes[name].shape, np.float32) for name in spec.fresh}
    params = tree_utils.nest({name: flat[name] for name in shapes})
    used = len(arrays.specs) - len(left)
    return params, MappingReport(used=used, dropped=reasons, fresh=spec.fresh)


def write_arrays(
    params: models.Params, rules: Iterable[Rule], spec: ModelSpec
) -> dict[str, np.ndarray]:
    """The arrays to write, by name, float32, in C order; the inverse of `read_params`.

    Raises WeightsError for a parameter that no rule covers.
    """
    shapes = tree_utils.flatten(parameters(spec))
    flat = tree_utils.flatten(params)
    found: dict[str, np.ndarray] = {}
    parts: dict[str, dict[int, np.ndarray]] = {}
    stored = {name: leaf for name, leaf in shapes.items() if name not in spec.fresh}
    for location in locate(stored, rules, None, spec.model):
        array = np.asarray(flat[location.target], np.float32)
        array = location.rule.layout.write(
            array if location.index is None else array[location.index]
        )
        if location.rule.parts == 1:
            found[location.source] = np.ascontiguousarray(array)
            continue
        some = parts.setdefault(location.source, {})
        some[location.rule.part] = array
        if len(some) == location.rule.parts:
            whole = np.concatenate([some[i] for i in range(len(some))], location.rule.axis)
            found[location.source] = np.ascontiguousarray(whole)
    return found


def summary(problems: Sequence[str], length: int = 350) -> str:
    """The first problems, in about `length` characters, and the number of the others.

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
        # The first number is the layer's; one after it tells parts of a layer apart.
        alike.setdefault(LAYER.sub("*", problem, count=1), []).append(problem)
    return [
        first if not others else f"{first} (and so in {len(others)} more layers)"
        for first, *others in alike.values()
    ]


def locate(
    shapes: Mapping[str, jax.ShapeDtypeStruct],
    rules: Iterable[Rule],
    present: ArraySpecs | None,
    model: config.Model,
) -> Iterator[Location]:
    """The array of every parameter: of those present in a file, or (None) those to write.

    Raises WeightsError, with the option of `model`, for a parameter that no rule covers.
    """
    by_target: dict[str, list[Rule]] = {}
    for rule in rules:
        by_target.setdefault(rule.target, []).append(rule)
    for target, leaf in shapes.items():
        own = by_target.get(target, [])
        stacked = STACKED.match(target) and own and all("{" not in r.source for r in own)
        layers = _layers(target, tuple(leaf.shape))
        if stacked:  # in the file too
            layers = iter([(None, target, {}, tuple(leaf.shape))])
        for index, general, counts, shape in layers:
            if general not in by_target:
                raise WeightsError(_no_place(target, model))
            options = [Location(target, index, shape, r.source.format(**counts), r)
                       for r in by_target[general]]  # fmt: skip
            here = [p for p in options if present is not None and p.source in present]
            yield (here or options)[0]


def _no_place(target: str, model: config.Model) -> str:
    """Why a layout without rules for a parameter cannot hold a model, with its option."""
    option = next((one for name, one in OPTIONS.items() if re.search(name, target)), None)
    said = f"model.{option}={config.show(getattr(model, option)).lower()}: " if option else ""
    return f"{said}this layout has no place for {target}"


def _layers(target: str, shape: Shape) -> Iterator[tuple[int | None, str, dict[str, int], Shape]]:
    """Index, rule name, counts and shape of every layer stacked in a parameter."""
    if STACKED.match(target):
        for layer in range(shape[0]):
            yield layer, target, {"layer": layer}, shape[1:]
    elif match := re.fullmatch(r"resnet/stage(\d+)/(first|rest)/(.+)", target):
        stage, general = int(match[1]) - 1, f"resnet/unit/{match[3]}"
        count = 1 if match[2] == "first" else shape[0]
        for index in range(count):
            unit = 0 if match[2] == "first" else 1 + index
            counts = {"stage": stage, "stage1": stage + 1, "unit": unit, "unit1": unit + 1}
            first = match[2] == "first"
            yield (None if first else index), general, counts, shape if first else shape[1:]
    else:
        yield None, target, {}, shape


def misfit(spec: ArraySpec | None, location: Location) -> str:
    """Why an array does not fit its location; empty if it fits."""
    if spec is None:
        return "missing"
    one, rule = location.rule.layout.shape(location.shape), location.rule
    shape = (*one[: rule.axis], one[rule.axis] * rule.parts, *one[rule.axis + 1 :])
    if spec.shape != shape:
        return f"{spec.shape}, not {shape}"
    if spec.dtype not in (np.float32, np.float16, ml_dtypes.bfloat16, np.float64):
        return f"{spec.dtype}, not a type of weights"
    return ""


def reason(name: str, dropped: Sequence[tuple[str, str]], arrays: ArraySpecs) -> str | None:
    """Why an array is left out; None if it should not be there."""
    if 0 in arrays[name].shape:  # as transformers writes no registers
        return "it is empty"
    return next((why for pattern, why in dropped if re.fullmatch(pattern, name)), None)


def _portions(array: np.ndarray) -> Iterator[np.ndarray]:
    """Small pieces of an array, to bound the memory of checks."""
    # An array in Fortran's order is flattened without a copy by its transpose.
    flat = array.reshape(-1) if array.flags.c_contiguous else array.T.reshape(-1)
    yield from (flat[i : i + PORTION] for i in range(0, flat.size, PORTION))


def _put(
    array: np.ndarray,
    locations: Sequence[Location],
    shapes: Mapping[str, jax.ShapeDtypeStruct],
    flat: dict[str, np.ndarray],
) -> None:
    """Stores an array of a file in parameters, without a copy if it is a whole parameter."""
    for target, index, shape, _, rule in locations:
        # Views alone, so that the parts of an array cost no copy of it.
        part = np.split(array, rule.parts, rule.axis)[rule.part] if rule.parts > 1 else array
        part = rule.layout.read(part, shape)
        if index is None and rule.parts == 1:
            flat[target] = part
            continue
        if target not in flat:
            flat[target] = np.empty(shapes[target].shape, np.float32)
        flat[target][() if index is None else index] = part
