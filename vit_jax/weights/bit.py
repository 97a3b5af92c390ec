"""Big Transfer's ResNets: the .npz files of big_transfer, and those of big_vision.

resnet/block1/unit01/a/standardized_conv2d/kernel    big_transfer, pre-activation
block1/unit01/conv1/kernel, root_block/...           big_vision's bit_paper, pre-activation
block1/unit1/conv1/kernel, conv_root/...             big_vision's bit, post-activation

In some files of big_transfer TensorFlow numbered the convolutions through the whole network:
`standardized_conv2d_12/kernel`.
"""

import re
from collections.abc import Iterator, Mapping

from vit_jax import config, models
from vit_jax.weights import google
from vit_jax.weights.mapping import HEADLESS, Facts, Form, Hints, Layout, Rule, array_shape
from vit_jax.weights.readers import Arrays, Spec

PRE, POST = "root_block/conv_root/kernel", "conv_root/kernel"
LEGACY = "resnet/root_block/standardized_conv2d/kernel"
NUMBERED = re.compile(r"(resnet/.*/standardized_conv2d)(_\d{1,3})/kernel")
# The head of big_transfer is a 1 x 1 convolution.
PIXEL = Form(
    lambda shape: (1, 1, *shape),
    lambda array, shape: array.reshape(shape),
    lambda array: array.reshape(1, 1, *array.shape),
)
SIZE = {"data.image_size": "as in training; a ResNet takes any"}


def recognizes(arrays: Arrays) -> bool:
    """Returns whether the arrays are a ResNet of this kind without an encoder."""
    names = arrays.specs
    return _root(names) is not None and not any(n.startswith("Transformer/") for n in names)


def facts(arrays: Arrays, hints: Hints) -> Facts:
    """Infers the model from names and shapes; raises WeightsError."""
    specs = arrays.specs
    root = _root(specs) or POST
    legacy = root not in (PRE, POST)
    _, _, channels, width = array_shape(specs, root, 4)
    head = "resnet/head/conv2d/kernel" if legacy else "head/kernel"
    headless = not {head, head.replace("kernel", "bias")} & specs.keys()
    found = google.units(arrays, r"(?:resnet/)?block(\d{1,2})/unit(\d{1,2})/")
    model = config.Model(
        architecture="resnet",
        resnet_units=found,
        resnet_width=width / 64,
        resnet_version="v1" if root == POST else "v2",
        resnet_pool="nothing" if root == PRE else "zeros",
        num_classes=1 if headless else array_shape(specs, head, 4 if legacy else 2)[-1],
    )
    return Facts(
        model=models.complete(model),
        data=config.Data(
            image_size=hints.image_size or (224, 224), channels=channels, eval_crop="resize"
        ),
        assumed=({} if hints.image_size else SIZE)
        | dict.fromkeys(("model.resnet_epsilons", *google.PIXELS), google.CODE),
        fresh={"head/kernel": HEADLESS, "head/bias": HEADLESS} if headless else {},
    )


def rules(specs: Mapping[str, Spec] | None, facts: Facts) -> list[Rule]:
    """Returns the rules to read a file with these arrays, or to write one (None)."""
    if specs is None:
        version, padded = facts.model.resnet_version, facts.model.resnet_pool == "zeros"
        root = POST if version == "v1" else LEGACY if padded else PRE
    else:
        root = _root(specs) or POST
    if root not in (PRE, POST):
        numbers = {m[2] for name in specs or () if (m := NUMBERED.fullmatch(name))}
        return list(_legacy(["", *sorted(numbers)]))
    scale = "gn_root/scale" if root == POST else "norm-pre-head/scale"
    spread = specs is None or (scale in specs and len(specs[scale].shape) == 4)
    unit = "block{stage1}/unit{unit1}" if root == POST else "block{stage1}/unit{unit1:02d}"
    return [
        Rule(root, "resnet/conv_root/kernel"),
        *google.norm("gn_root", "resnet/gn_root", spread=spread),
        *google.resnet(unit, spread=spread),
        *google.norm("norm-pre-head", "resnet/gn_final", spread=spread),
        Rule("head/kernel", "head/kernel"),
        Rule("head/bias", "head/bias"),
    ]


def _root(specs: Mapping[str, Spec]) -> str | None:
    """Returns the name of the first convolution, which identifies the format."""
    roots = (PRE, POST, LEGACY)
    return next((name for name in specs if NUMBERED.sub(r"\1/kernel", name) in roots), None)


def _legacy(numbers: list[str]) -> Iterator[Rule]:
    """Yields the rules for big_transfer's names, with optional suffixes of convolutions."""
    unit = "resnet/block{stage1}/unit{unit1:02d}"
    for after in numbers:
        conv = f"standardized_conv2d{after}/kernel"
        yield Rule(f"resnet/root_block/{conv}", "resnet/conv_root/kernel")
        for number, letter in enumerate("abc", start=1):
            yield Rule(f"{unit}/{letter}/{conv}", f"resnet/unit/conv{number}/kernel")
        yield Rule(f"{unit}/a/proj/{conv}", "resnet/unit/conv_proj/kernel")
    for number, letter in enumerate("abc", start=1):
        yield from _norm(f"{unit}/{letter}/group_norm", f"resnet/unit/gn{number}")
    yield from _norm("resnet/group_norm", "resnet/gn_final")
    yield Rule("resnet/head/conv2d/kernel", "head/kernel", PIXEL)
    yield Rule("resnet/head/conv2d/bias", "head/bias")


def _norm(theirs: str, ours: str) -> Iterator[Rule]:
    yield Rule(f"{theirs}/gamma", f"{ours}/scale")
    yield Rule(f"{theirs}/beta", f"{ours}/bias")


LAYOUT = Layout("bit", recognizes, facts, rules, google.DROPPED)
