"""Rules of torch's layers that timm, Meta and Hugging Face share."""

from collections.abc import Iterator, Mapping

from vit_jax.weights.mapping import FLAT, Form, Rule, array_shape, linear
from vit_jax.weights.readers import Spec, WeightsError


def norm(theirs: str, ours: str) -> Iterator[Rule]:
    """Yields the rules of a LayerNorm or GroupNorm."""
    yield Rule(f"{theirs}.weight", f"{ours}/scale")
    yield Rule(f"{theirs}.bias", f"{ours}/bias")


def dense(theirs: str, ours: str, form: Form | None = None) -> Iterator[Rule]:
    """Yields the rules of a dense layer; `form` is the layout of its kernel."""
    yield Rule(f"{theirs}.weight", f"{ours}/kernel", form or linear())
    yield Rule(f"{theirs}.bias", f"{ours}/bias")


def parts(theirs: str, ours: str, names: tuple[str, ...], dot: str = ".") -> Iterator[Rule]:
    """Yields the rules of dense layers stored in one array, one after another.

    `dot` stands between the name of the layers and `weight`, an underscore for torch's own.
    """
    for part, name in enumerate(names):
        yield Rule(f"{theirs}{dot}weight", f"{ours}/{name}/kernel", linear(), part, len(names))
        yield Rule(f"{theirs}{dot}bias", f"{ours}/{name}/bias", FLAT, part, len(names))


def mlp(theirs: str, ours: str) -> Iterator[Rule]:
    """Yields the rules of two dense layers."""
    for name in ("fc1", "fc2"):
        yield from dense(f"{theirs}.{name}", f"{ours}/{name}")


def biasless(specs: Mapping[str, Spec], layers: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Returns `model.biasless`: the parts of `layers`, by name, whose bias a file lacks.

    A file says so by its first layer; what is missing from others is an error of the file.
    """
    lacking = (parts for name, parts in layers.items()
               if f"{name}.weight" in specs and f"{name}.bias" not in specs)  # fmt: skip
    return tuple(part for parts in lacking for part in parts)


def registers(specs: Mapping[str, Spec], *names: str) -> int:
    """The number of register tokens in an array of one of these names, which may be empty."""
    found = next((name for name in names if name in specs), None)
    if found is None or 0 in specs[found].shape:
        return 0
    return array_shape(specs, found, 3)[1]


# SwiGLU by the names of its layers: gate and fc1 in one array, and fc2.
PACKED = (("fc1", "fc2"), ("w12", "w3"), ("weights_in", "weights_out"))
SEPARATE = (
    ("fc1_g", "fc1_x", "fc2"),
    ("gate_proj", "up_proj", "down_proj"),
    ("w1", "w2", "w3"),
)


def swiglu(theirs: str, ours: str, *, first: str = "fc1") -> Iterator[Rule]:
    """Yields the rules of a gated MLP under any of its names.

    Args:
      theirs: the prefix of its names.
      ours: that of our parameters.
      first: the first of the names that come first, to write by.
    """
    for names in sorted((*PACKED, *SEPARATE), key=lambda names: names[0] != first):
        if len(names) == 2:
            yield from parts(f"{theirs}.{names[0]}", ours, ("gate", "fc1"))
            yield from dense(f"{theirs}.{names[1]}", f"{ours}/fc2")
            continue
        for name, part in zip(names, ("gate", "fc1", "fc2"), strict=True):
            yield from dense(f"{theirs}.{name}", f"{ours}/{part}")


def hidden(specs: Mapping[str, Spec], theirs: str) -> tuple[str, int]:
    """Returns the kind of an MLP, as `model.mlp`, and its hidden width; raises WeightsError."""
    for *_, gate, last in (*PACKED, *SEPARATE):
        name = f"{theirs}.{gate}.weight"
        if name in specs and f"{theirs}.{last}.weight" in specs:
            outputs = array_shape(specs, name, 2)[0]
            inputs = array_shape(specs, f"{theirs}.{last}.weight", 2)[1]
            separate = any(names[1] == gate for names in SEPARATE)
            if separate or outputs == 2 * inputs:
                return "swiglu", inputs
            if gate != "fc1":
                raise WeightsError(f"{name} has {outputs} outputs, not twice {inputs}")
    return "plain", array_shape(specs, f"{theirs}.fc1.weight", 2)[0]
