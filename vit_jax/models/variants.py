"""Networks by name: `ViT-B/16` is the Base encoder on patches of 16 x 16 pixels."""

import dataclasses
import difflib
import itertools
import re
from typing import Any, NamedTuple, TypeVar

from vit_jax import config

T = TypeVar("T")


class Size(NamedTuple):
    """One encoder size; heads are always 64 wide, except in H where they are 80."""

    width: int
    depth: int
    mlp_dim: int
    heads: int


SIZES = {
    "Ti": Size(192, 12, 768, 3),  # How to train your ViT, table 2
    "S": Size(384, 12, 1536, 6),  # How to train your ViT, table 2
    "b": Size(384, 12, 1536, 6),  # ViT, figure 4: B with halved widths; the heads are our choice
    "B": Size(768, 12, 3072, 12),  # ViT, table 1
    "L": Size(1024, 24, 4096, 16),  # ViT, table 1
    "H": Size(1280, 32, 5120, 16),  # ViT, table 1
}
UNITS = {  # bottleneck units per stage
    26: (2, 2, 2, 2),  # How to train your ViT, section 3.2
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
    200: (3, 24, 36, 3),  # Big Transfer
}
PATCHES = (8, 14, 16, 32)  # published ones, to suggest; any other patch is as good a name
FORMS = "ViT-B/16, R50+ViT-B/32, R50x1, AxialViT-B/16 or AxialResNet50"

_SIZE = r"([A-Za-z]+)[/_]([1-9][0-9]{0,3})"


def parse(name: str) -> dict[str, Any]:
    """Returns the options of `config.Model` that a name such as `ViT-B/16` or `R50x2` stands for.

    A hybrid's number is its total down-sampling: /32 takes the map of stage 4; /16 that of stage 3
    with the units of stage 4 added to it (ViT, section 4.1). Raises ConfigError for a name that is
    not of one of the FORMS, or an unknown size.
    """
    if match := re.fullmatch(r"(Axial)?ViT-" + _SIZE, name):
        if match[2] in SIZES:
            architecture = "axial_vit" if match[1] else "vit"
            side = int(match[3])
            return {
                "architecture": architecture,
                "patch_size": (side, side),
                **SIZES[match[2]]._asdict(),
            }
        reason = f"no size {match[2]} (sizes: {', '.join(SIZES)})"
    elif match := re.fullmatch(r"R([0-9]*)(?:x1)?\+ViT-" + _SIZE, name):
        units = () if not match[1] else UNITS.get(int(match[1]))
        # The stem alone divides by 4; AugReg's R+ViT-Ti/16 takes 8 x 8 of its positions as a patch.
        sampling = {"16"} if units == () else {"16", "32"}
        if match[2] not in SIZES:
            reason = f"no size {match[2]} (sizes: {', '.join(SIZES)})"
        elif units is None:
            reason = f"no ResNet R{match[1]} (ResNets: {', '.join(f'R{d}' for d in UNITS)})"
        elif match[3] not in sampling:
            reason = f"no hybrid samples down by {match[3]} ({' or '.join(sorted(sampling))})"
        else:
            if units and match[3] == "16":
                units = (*units[:2], units[2] + units[3])
            side = 1 if units else 8
            return {
                "architecture": "vit",
                "resnet_units": units,
                "resnet_width": 1.0,
                "patch_size": (side, side),
                **SIZES[match[2]]._asdict(),
            }
    elif match := re.fullmatch(r"R([0-9]+)x([1-9][0-9]?)", name):
        if int(match[1]) in UNITS:
            return {
                "architecture": "resnet",
                "resnet_units": UNITS[int(match[1])],
                "resnet_width": float(match[2]),
            }
        reason = f"no ResNet R{match[1]} (ResNets: {', '.join(f'R{d}' for d in UNITS)})"
    elif name == "AxialResNet50":
        return {"architecture": "axial_resnet", "resnet_units": UNITS[50], "resnet_width": 1.0}
    else:
        reason = f"not a name like {FORMS}"
    raise config.ConfigError(f"model.variant={name}: {reason}{_nearest(name)}")


def _nearest(name: str) -> str:
    sizes = list(SIZES)
    known = [f"ViT-{size}/{patch}" for size, patch in itertools.product(sizes, PATCHES)]
    known += [f"R{d}+ViT-{s}/{n}" for d, s, n in itertools.product(UNITS, sizes, (16, 32))]
    known += [f"R{d}x{w}" for d, w in itertools.product(UNITS, range(1, 5))]
    known += ["R+ViT-Ti/16", "AxialViT-B/16", "AxialViT-B/32", "AxialResNet50"]
    typed = name.replace("_", "/")

    def likeness(other: str) -> float:
        # b and B differ by case alone, so case counts, but for half.
        pairs = ((typed, other), (typed.lower(), other.lower()))
        return sum(difflib.SequenceMatcher(None, *pair).ratio() for pair in pairs) / 2

    alike = [other for other in known if likeness(other) >= 0.65]
    near = sorted(alike, key=likeness, reverse=True)[:3]
    return f"; nearest: {', '.join(near)}" if near else ""


def complete(model: config.Model) -> config.Model:
    """Returns `model` with the sizes left at None taken from its variant; set ones win.

    Raises ConfigError for a wrong name.
    """
    variant = model.variant
    named: dict[str, Any] = {"architecture": "vit"} if variant is None else parse(variant)
    if named.get("resnet_width") is None and model.resnet_units is not None:
        named["resnet_width"] = 1.0
    missing = {key: value for key, value in named.items() if getattr(model, key) is None}
    return dataclasses.replace(model, **missing)


def reduction(model: config.Model) -> int:
    """Returns what the ResNet of a model, or before its encoder, divides a side by; 1 without one.

    The stem divides by 4, every stage after the first by 2.
    """
    return 1 if model.resnet_units is None else 4 * 2 ** max(len(model.resnet_units) - 1, 0)


def grid(model: config.Model, image_size: tuple[int, int]) -> tuple[int, int]:
    """Returns the rows and columns of tokens of an encoder, or of the last map of a ResNet."""
    factor = reduction(model)
    height, width = (-(-side // factor) for side in image_size)  # a ResNet rounds up
    if model.architecture in ("resnet", "axial_resnet"):
        return height, width
    patch = required(model.patch_size)
    return height // patch[0], width // patch[1]


def covered(model: config.Model, image_size: tuple[int, int]) -> tuple[int, int]:
    """Returns height and width of the pixels that the patches of an image lie on.

    That is the image itself but where `model.patch_remainder` drops what fills no whole patch.
    """
    if model.architecture in ("resnet", "axial_resnet"):
        return image_size
    factor, patch = reduction(model), required(model.patch_size)
    rows, columns = grid(model, image_size)
    whole = rows * patch[0] * factor, columns * patch[1] * factor
    return min(whole[0], image_size[0]), min(whole[1], image_size[1])


def has_class_token(model: config.Model) -> bool:
    """Returns whether a class token stands before the patches of an encoder."""
    return model.pooling == "token" if model.class_token is None else model.class_token


def has_class_position(model: config.Model) -> bool:
    """Returns whether learned positions of an encoder have one for the class token."""
    return has_class_token(model) and model.class_position


def check(model: config.Model, image_size: tuple[int, int]) -> None:
    """Raises ConfigError for a complete `model` whose parts do not fit each other or the images."""
    convolutional = model.architecture in ("resnet", "axial_resnet")
    if convolutional:
        _check_resnet(model)
        return
    sizes = ("patch_size", "width", "depth", "mlp_dim", "heads")
    missing = [name for name in sizes if getattr(model, name) is None]
    if missing:
        raise config.ConfigError(
            f"model.{missing[0]}=none: not known; set it, or name a size with "
            "model.variant=ViT-B/16"
        )
    _check_patches(model, image_size)
    width, heads, depth = required(model.width), required(model.heads), required(model.depth)
    if width % heads:
        fits = [h for h in range(1, width + 1) if width % h == 0]
        nearest = min(fits, key=lambda h: abs(h - heads))
        raise config.ConfigError(
            f"model.heads={heads}: does not divide model.width {width}; nearest: {nearest}"
        )
    multiple = {"sincos_2d": 4, "sincos_1d": 2, "learned_2d": 2}.get(model.position, 1)
    if width % multiple:
        raise config.ConfigError(
            f"model.width={width}: model.position {model.position} needs a multiple of "
            f"{multiple}; nearest: {max(multiple, round(width / multiple) * multiple)}"
        )
    if model.position_place != "stem" and model.position not in ("learned_1d", "learned_2d"):
        raise config.ConfigError(
            f"model.position_place={model.position_place}: only learned_1d and learned_2d can be "
            f"added at every layer, not {model.position}; set stem"
        )
    if model.pooling == "token" and not has_class_token(model):
        raise config.ConfigError(
            "model.class_token=false: model.pooling token is what the class token becomes; set "
            "none, or model.pooling=first"
        )
    if model.architecture == "axial_vit":
        if has_class_token(model):
            said = "pooling=token" if model.pooling == "token" else "class_token=true"
            remedy = "gap" if model.pooling == "token" else "none"
            raise config.ConfigError(
                f"model.{said}: axial_vit keeps its tokens in rows and columns, without a "
                f"class token; set {remedy}"
            )
        if model.position == "relative":
            raise config.ConfigError(
                "model.position=relative: axial_vit has no relative positions; set learned_1d"
            )
    if model.position == "relative" and model.attention != "explicit":
        raise config.ConfigError(
            f"model.attention={model.attention}: relative positions need explicit"
        )
    if model.unroll > depth:
        raise config.ConfigError(f"model.unroll={model.unroll}: more than model.depth {depth}")


def _check_patches(model: config.Model, image_size: tuple[int, int]) -> None:
    factor = reduction(model)
    for side, pixels, patch in zip(
        ("height", "width"), image_size, required(model.patch_size), strict=True
    ):
        whole = patch * factor
        if pixels % whole and (model.patch_remainder == "refuse" or pixels < whole):
            below, over = pixels // whole * whole, -(-pixels // whole) * whole
            nearest = over if below == 0 or over - pixels < pixels - below else below
            of = f"model.patch_size {patch}"
            if factor > 1:
                of += f" x {factor} (the ResNet's down-sampling)"
            raise config.ConfigError(
                f"data.image_size={config.show(image_size)}: {side} {pixels} is not a multiple of "
                f"{of}; nearest: {nearest}"
            )


def _check_resnet(model: config.Model) -> None:
    if not model.resnet_units:
        raise config.ConfigError(
            f"model.resnet_units={config.show(model.resnet_units)}: {model.architecture} needs "
            "the units of its stages; set 3,4,6,3, or name one with model.variant=R50x1"
        )
    for key in ("dropout", "stochastic_depth"):
        if getattr(model, key):
            raise config.ConfigError(
                f"model.{key}={getattr(model, key):g}: {model.architecture} has none; set 0"
            )


def required(value: T | None) -> T:
    """Returns a size of a complete model: `complete` and `check` leave none at None."""
    assert value is not None
    return value
