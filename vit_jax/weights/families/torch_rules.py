"""Rules of the layers and arrays of a PyTorch model, from a table of their names."""

from collections.abc import Collection, Iterable, Iterator

from vit_jax.weights.mapping import CONVOLUTION, FLAT, SAME, ArrayLayout, Rule, linear

# Entries (name in the file, name here) of a layer or an array, or with a layout of its own (name in
# the file, name here, layout). Layers stored one after another in one array are `query|key|value`.
# A name that ends in _ is followed by `weight` without a dot, as in torch's own attention.
Names = Iterable[tuple[str, str] | tuple[str, str, ArrayLayout]]

ARRAYS = {"cls", "distillation", "registers", "mask_token", "table", "probe", "scale", "bias"}
ARRAYS |= {"frequencies"}  # no layers
QKV = ("query", "key", "value")
# SwiGLU by all names of its layers but fc1, which is no gated layer in a plain MLP.
SWIGLU = {
    **{"fc1_g": "gate", "fc1_x": "fc1", "fc2": "fc2"},
    **{"w12": "gate|fc1", "w3": "fc2", "w1": "gate", "w2": "fc1"},
    **{"weights_in": "gate|fc1", "weights_out": "fc2"},
    **{"gate_proj": "gate", "up_proj": "fc1", "down_proj": "fc2"},
}


def rules(names: Names, prefix: str = "", without: Collection[str] = ()) -> Iterator[Rule]:
    """Yields the rules of a table of names below a prefix, but for some of its names."""
    for name, target, *layouts in names:
        if name in without:
            continue
        source, layout = f"{prefix}{name}", next(iter(layouts), None)
        # The kind of a layer follows from its name here, so the tables need only pairs of names.
        *path, last = target.split("/")
        parts = last.split("|")
        if last in ARRAYS:
            yield Rule(source, target, layout or SAME)
        elif "norm" in last or last.startswith("gn"):
            yield Rule(f"{source}.weight", f"{target}/scale", layout or SAME)
            yield Rule(f"{source}.bias", f"{target}/bias", layout or SAME)
        else:
            dot = "" if source.endswith("_") else "."
            for part, layer in enumerate(parts):
                one = "/".join((*path, layer))
                kernel = layout or _kernel(layer)
                yield Rule(f"{source}{dot}weight", f"{one}/kernel", kernel, part, len(parts))
                bias = FLAT if layer in QKV else SAME
                yield Rule(f"{source}{dot}bias", f"{one}/bias", bias, part, len(parts))


def _kernel(layer: str) -> ArrayLayout:
    if layer == "embedding" or layer.startswith("conv"):
        return CONVOLUTION
    # The kernel of attention's projection is (H, d, D) here: two axes of inputs.
    return linear(2 if layer == "out" else 1)


def resnet_units(unit: str) -> Iterator[tuple[str, str]]:
    """Yields the names of the layers in a ResNet's unit, given the unit's."""
    for number in (1, 2, 3):
        yield f"{unit}.conv{number}", f"resnet/unit/conv{number}"
        yield f"{unit}.norm{number}", f"resnet/unit/gn{number}"
    yield f"{unit}.downsample.conv", "resnet/unit/conv_proj"
    yield f"{unit}.downsample.norm", "resnet/unit/gn_proj"
