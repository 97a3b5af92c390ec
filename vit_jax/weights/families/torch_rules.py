"""Rules of torch's layers that timm, Meta, OpenAI and Hugging Face share."""

from collections.abc import Iterable, Iterator, Mapping

from vit_jax.weights.mapping import (
    CONVOLUTION,
    FLAT,
    ArrayLayout,
    ArraySpecs,
    Rule,
    array_shape,
    linear,
)
from vit_jax.weights.readers import WeightsError

QKV = ("query", "key", "value")
# SwiGLU by the names of its layers: gate and fc1 in one array, and fc2.
PACKED = (("fc1", "fc2"), ("w12", "w3"), ("weights_in", "weights_out"))
SEPARATE = (
    ("fc1_g", "fc1_x", "fc2"),
    ("gate_proj", "up_proj", "down_proj"),
    ("w1", "w2", "w3"),
)


def norm(source: str, target: str) -> Iterator[Rule]:
    """Yields the rules of a LayerNorm or GroupNorm."""
    yield Rule(f"{source}.weight", f"{target}/scale")
    yield Rule(f"{source}.bias", f"{target}/bias")


def dense(source: str, target: str, layout: ArrayLayout | None = None) -> Iterator[Rule]:
    """Yields the rules of a dense layer; `layout` is that of its kernel."""
    yield Rule(f"{source}.weight", f"{target}/kernel", layout or linear())
    yield Rule(f"{source}.bias", f"{target}/bias")


def query_key_value(names: Iterable[str], target: str) -> Iterator[Rule]:
    """Yields the rules of queries, keys and values, each a layer of its own."""
    for source, name in zip(names, QKV, strict=True):
        yield Rule(f"{source}.weight", f"{target}/{name}/kernel", linear())
        yield Rule(f"{source}.bias", f"{target}/{name}/bias", FLAT)


def parts(source: str, target: str, names: tuple[str, ...], dot: str = ".") -> Iterator[Rule]:
    """Yields the rules of dense layers stored in one array, one after another.

    `dot` stands between the name of the layers and `weight`, an underscore for torch's own.
    """
    for part, name in enumerate(names):
        yield Rule(f"{source}{dot}weight", f"{target}/{name}/kernel", linear(), part, len(names))
        yield Rule(f"{source}{dot}bias", f"{target}/{name}/bias", FLAT, part, len(names))


def mlp(source: str, target: str) -> Iterator[Rule]:
    """Yields the rules of two dense layers."""
    for name in ("fc1", "fc2"):
        yield from dense(f"{source}.{name}", f"{target}/{name}")


def swiglu(source: str, target: str, *, first: str = "fc1") -> Iterator[Rule]:
    """Yields the rules of a gated MLP under any of its names.

    Args:
      source: the prefix of its names.
      target: that of the parameters.
      first: the first of the names that come first, to write by.
    """
    for names in sorted((*PACKED, *SEPARATE), key=lambda names: names[0] != first):
        if len(names) == 2:
            yield from parts(f"{source}.{names[0]}", target, ("gate", "fc1"))
            yield from dense(f"{source}.{names[1]}", f"{target}/fc2")
            continue
        for name, part in zip(names, ("gate", "fc1", "fc2"), strict=True):
            yield from dense(f"{source}.{name}", f"{target}/{part}")


def resnet_units(source: str) -> Iterator[Rule]:
    """Yields the rules of a ResNet's units."""
    target = "resnet/unit"
    for number in (1, 2, 3):
        yield Rule(f"{source}.conv{number}.weight", f"{target}/conv{number}/kernel", CONVOLUTION)
        yield from norm(f"{source}.norm{number}", f"{target}/gn{number}")
    yield Rule(f"{source}.downsample.conv.weight", f"{target}/conv_proj/kernel", CONVOLUTION)
    yield from norm(f"{source}.downsample.norm", f"{target}/gn_proj")


def hidden(arrays: ArraySpecs, source: str) -> tuple[str, int]:
    """The kind of an MLP, as `model.mlp`, and its hidden width; raises WeightsError."""
    for *_, gate, last in (*PACKED, *SEPARATE):
        name = f"{source}.{gate}.weight"
        if name in arrays and f"{source}.{last}.weight" in arrays:
            outputs = array_shape(arrays, name, 2)[0]
            inputs = array_shape(arrays, f"{source}.{last}.weight", 2)[1]
            separate = any(names[1] == gate for names in SEPARATE)
            if separate or outputs == 2 * inputs:
                return "swiglu", inputs
            if gate != "fc1":
                raise WeightsError(f"{name} has {outputs} outputs, not twice {inputs}")
    return "plain", array_shape(arrays, f"{source}.fc1.weight", 2)[0]


def biasless(arrays: ArraySpecs, layers: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """`model.biasless` of a file: the parts of `layers`, by name, whose bias it lacks.

    A file says so by its first layer; what is missing from others is an error of the file.
    """
    lacking = (parts for name, parts in layers.items()
               if f"{name}.weight" in arrays and f"{name}.bias" not in arrays)  # fmt: skip
    return tuple(part for parts in lacking for part in parts)


def registers(arrays: ArraySpecs, *names: str) -> int:
    """The number of register tokens in an array of one of these names, which may be empty."""
    found = next((name for name in names if name in arrays), None)
    if found is None or 0 in arrays[found].shape:
        return 0
    return array_shape(arrays, found, 3)[1]
