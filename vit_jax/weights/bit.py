"""Big Transfer's ResNets: the .npz files of big_transfer, and those of big_vision.

resnet/block1/unit01/a/standardized_conv2d/kernel    big_transfer, pre-activation
block1/unit01/conv1/kernel, root_block/...           big_vision's bit_paper, pre-activation
block1/unit1/conv1/kernel, conv_root/...             big_vision's bit, post-activation
"""

from collections.abc import Iterator, Mapping

from vit_jax import config, models
from vit_jax.weights import google
from vit_jax.weights.files import Arrays, Spec
from vit_jax.weights.layout import Facts, Form, Hints, Layout, Rule, shape_of

LEGACY, PRE, POST = "resnet/root_block/standardized_conv2d", "root_block/conv_root", "conv_root"
# The head of big_transfer is a convolution of one pixel.
PIXEL = Form(
    lambda shape: (1, 1, *shape),
    lambda array, shape: array.reshape(shape),
    lambda array: array.reshape(1, 1, *array.shape),
)
SIZE = {"data.image_size": "224,224 as in training; a ResNet takes any"}


def recognises(arrays: Arrays) -> bool:
    """Returns whether the arrays are a ResNet of this kind without an encoder."""
    names = arrays.specs
    return any(f"{root}/kernel" in names for root in (LEGACY, PRE, POST)) and not any(
        name.startswith("Transformer/") for name in names
    )


def facts(arrays: Arrays, hints: Hints) -> Facts:
    """Returns the model that names and shapes describe; raises WeightsError."""
    specs = arrays.specs
    root = next(name for name in (LEGACY, PRE, POST) if f"{name}/kernel" in specs)
    _, _, channels, width = shape_of(specs, f"{root}/kernel", 4)
    head = "resnet/head/conv2d/kernel" if root == LEGACY else "head/kernel"
    found = google.units(arrays, r"(?:resnet/)?block(\d{1,2})/unit(\d{1,3})/")
    model = config.Model(
        architecture="resnet",
        resnet_units=found,
        resnet_width=width / 64,
        resnet_version="v1" if root == POST else "v2",
        resnet_pool="nothing" if root == PRE else "zeros",
        num_classes=shape_of(specs, head, 4 if root == LEGACY else 2)[-1],
    )
    return Facts(
        model=models.complete(model),
        data=config.Data(
            image_size=hints.image_size or (224, 224), channels=channels, eval_crop="resize"
        ),
        assumed={} if hints.image_size else SIZE,
    )


def rules(specs: Mapping[str, Spec] | None, facts: Facts) -> list[Rule]:
    """Returns the rules to read a file of these arrays, or (None) to write one."""
    if specs is None:
        version, padded = facts.model.resnet_version, facts.model.resnet_pool == "zeros"
        root = POST if version == "v1" else LEGACY if padded else PRE
    else:
        root = next(name for name in (LEGACY, PRE, POST) if f"{name}/kernel" in specs)
    if root == LEGACY:
        return list(_legacy())
    scale = "gn_root/scale" if root == POST else "norm-pre-head/scale"
    spread = specs is None or (scale in specs and len(specs[scale].shape) == 4)
    unit = "block{stage1}/unit{unit1}" if root == POST else "block{stage1}/unit{unit1:02d}"
    return [
        Rule(f"{root}/kernel", "resnet/conv_root/kernel"),
        *google.norm("gn_root", "resnet/gn_root", spread=spread),
        *google.resnet(unit, spread=spread),
        *google.norm("norm-pre-head", "resnet/gn_final", spread=spread),
        Rule("head/kernel", "head/kernel"),
        Rule("head/bias", "head/bias"),
    ]


def _legacy() -> Iterator[Rule]:
    """Yields the rules of big_transfer's own names."""
    unit = "resnet/block{stage1}/unit{unit1:02d}"
    yield Rule(f"{LEGACY}/kernel", "resnet/conv_root/kernel")
    for number, letter in enumerate("abc", start=1):
        yield Rule(
            f"{unit}/{letter}/standardized_conv2d/kernel", f"resnet/unit/conv{number}/kernel"
        )
        yield from _norm(f"{unit}/{letter}/group_norm", f"resnet/unit/gn{number}")
    yield Rule(f"{unit}/a/proj/standardized_conv2d/kernel", "resnet/unit/conv_proj/kernel")
    yield from _norm("resnet/group_norm", "resnet/gn_final")
    yield Rule("resnet/head/conv2d/kernel", "head/kernel", PIXEL)
    yield Rule("resnet/head/conv2d/bias", "head/bias")


def _norm(theirs: str, ours: str) -> Iterator[Rule]:
    yield Rule(f"{theirs}/gamma", f"{ours}/scale")
    yield Rule(f"{theirs}/beta", f"{ours}/bias")


LAYOUT = Layout("bit", recognises, facts, rules, (google.OPTIMIZER,))
