"""Models by name, such as `ViT-B/16`, and what their options imply; without jax."""

import dataclasses
import difflib
import functools
import itertools
import re
from collections.abc import Iterable
from typing import NamedTuple, TypeVar

from vit_jax import config
from vit_jax.config import components
from vit_jax.config.options import is_nothing
from vit_jax.models.architecture import Architecture

T = TypeVar("T")

KEY = "model.architecture"
METHODS = [
    name for name, value in vars(Architecture).items() if callable(value) and name[0] != "_"
]  # fmt: skip


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
PATCHES = (8, 14, 16, 32)  # published ones, to suggest in errors; any other is valid too
FORMS = "ViT-B/16, R50+ViT-B/32, R50x1, AxialViT-B/16 or AxialResNet50"

_SIZE = r"([A-Za-z]+)[/_]([1-9][0-9]{0,3})"


def parse_variant(name: str) -> dict[str, object]:
    """Parses a name such as `ViT-B/16` or `R50x2` into options of `config.Model`.

    A hybrid's number is its total down-sampling: /32 takes the map of stage 4; /16 that of stage 3
    with the units of stage 4 added to it (ViT, section 4.1). Raises ConfigError for a name of
    none of the FORMS, or an unknown size.
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
    # Of timm, transformers and torchvision: vit_base_patch16_224, vit-base-patch16-224, vit_b_16.
    if match := re.search(r"(?:vi|dei)t[-_]?([tsblh])[a-z]*[-_]?(?:patch)?([0-9]+)", name):
        size = {"t": "Ti"}.get(match[1], match[1].upper())
        return f"; nearest: ViT-{size}/{match[2]}"
    known = [f"ViT-{size}/{patch}" for size, patch in itertools.product(sizes, PATCHES)]
    known += [f"R{d}+ViT-{s}/{n}" for d, s, n in itertools.product(UNITS, sizes, (16, 32))]
    known += [f"R{d}x{w}" for d, w in itertools.product(UNITS, range(1, 5))]
    known += ["R+ViT-Ti/16", "AxialViT-B/16", "AxialViT-B/32", "AxialResNet50"]
    typed = name.replace("_", "/")

    def likeness(other: str) -> float:
        # The sizes b and B differ by case alone, so case has half the weight.
        pairs = ((typed, other), (typed.lower(), other.lower()))
        return sum(difflib.SequenceMatcher(None, *pair).ratio() for pair in pairs) / 2

    alike = [other for other in known if likeness(other) >= 0.65]
    near = sorted(alike, key=likeness, reverse=True)[:3]
    return f"; nearest: {', '.join(near)}" if near else ""


def complete(model: config.Model) -> config.Model:
    """Fills in sizes left at None from the variant; raises ConfigError for a wrong name."""
    variant = model.variant
    named: dict[str, object] = (
        {"architecture": "vit"} if variant is None else parse_variant(variant)
    )
    # Units that are set without a variant.
    if named.get("resnet_width") is None and model.resnet_units is not None:
        named["resnet_width"] = 1.0
    missing = {key: value for key, value in named.items() if getattr(model, key) is None}
    model = dataclasses.replace(model, **missing)
    return find_architecture(model).complete(model)


def reduction(model: config.Model) -> int:
    """The spatial downsampling factor of the ResNet; 1 if the model has none.

    The stem divides by 4, every stage after the first by 2.
    """
    return 1 if model.resnet_units is None else 4 * 2 ** max(len(model.resnet_units) - 1, 0)


def reduced(model: config.Model, image_size: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of the ResNet's last map, or of pixels without a ResNet."""
    factor = reduction(model)
    return -(-image_size[0] // factor), -(-image_size[1] // factor)  # a ResNet rounds up


def find_architecture(model: config.Model) -> Architecture:
    """The architecture that `model.architecture` names; raises ConfigError."""
    named = model if model.architecture else dataclasses.replace(model, architecture="vit")
    made = components.make(named, KEY)
    if not isinstance(made, Architecture):
        raise config.ConfigError(
            f"{KEY}={named.architecture}: must be a subclass of models.Architecture"
        )
    if is_plugged_in(named):
        guarded = components.guarded(KEY, str(named.architecture))
        for name in METHODS:
            # An argument may have the name of a method that the plug-in does not need.
            if callable(method := getattr(made, name)):
                # Not setattr: a plug-in may be a frozen dataclass.
                object.__setattr__(made, name, guarded(method))
    return made


def is_plugged_in(model: config.Model) -> bool:
    """Whether a plug-in has the architecture of a complete model: its errors are ConfigErrors."""
    return bool(components.modules("model", model.architecture))


def grid(model: config.Model, image_size: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of an encoder's patches, or of a ResNet's last map."""
    return find_architecture(model).grid(model, image_size)


def covered(model: config.Model, image_size: tuple[int, int]) -> tuple[int, int]:
    """Height and width of the pixels that patches cover.

    All of the image, unless `model.patch_remainder` drops pixels that fill no whole patch.
    """
    return find_architecture(model).covered(model, image_size)


@functools.cache
def flops(
    model: config.Model,
    image_size: tuple[int, int],
    channels: int,
    masked: config.MaskedPatches | config.Mae | None = None,
) -> int | None:
    """FLOPs of the forward pass of one image, two per multiply-accumulate; None: not counted."""
    return find_architecture(model).flops(model, image_size, channels, masked)


def has_class_token(model: config.Model) -> bool:
    """Whether a class token precedes the patches of an encoder."""
    return default_class_token(model.pooling) if model.class_token is None else model.class_token


def default_class_token(pooling: str) -> bool:
    """Whether a kind of pooling reads the class token, which the model then has."""
    return pooling in ("token", "token_gap", "distilled")


def reads_one_token(model: config.Model) -> bool:
    """Whether pooling reads the first token, alone or (token_gap, distilled) with others."""
    return model.pooling in ("token", "first", "token_gap", "distilled")


def prefix_tokens(model: config.Model) -> int:
    """The number of tokens before the patches: class, distillation and registers."""
    return has_class_token(model) + model.distillation + model.registers


def first_pooled(model: config.Model) -> int:
    """The first token that attention pooling sees: a patch, unless it sees those before too."""
    return 0 if model.pooling_prefix else prefix_tokens(model)


def placed_tokens(model: config.Model) -> int:
    """The number of tokens before the patches that have a learned position."""
    return (1 + model.distillation) * has_class_position(model)


def pooled_features(model: config.Model) -> int:
    """The width of pooled tokens: D for each of the vectors that pooling joins."""
    joined = model.pooled_layers + (model.pooling in ("token_gap", "distilled"))
    return required(model.width) * joined


def joins_features(model: config.Model) -> bool:
    """Whether one head reads several vectors side by side."""
    return model.pooling == "token_gap" or model.pooled_layers > 1


def has_class_position(model: config.Model) -> bool:
    """Whether the class token has a learned position."""
    return has_class_token(model) and model.class_position


def check_model(model: config.Model, image_size: tuple[int, int]) -> None:
    """Raises ConfigError for a complete `model` whose parts do not fit each other or the images."""
    find_architecture(model).validate_model(model, image_size)


def check_masked(model: config.Model, objective: config.Objective) -> None:
    """Raises ConfigError for a model that an objective of masked patches cannot train."""
    masked, dropped = (isinstance(objective, c) for c in (config.MaskedPatches, config.Mae))
    found = find_architecture(model)
    if (masked and not found.maskable) or (dropped and not found.droppable):
        name, what = ("masked_patches", "mask") if masked else ("mae", "drop")
        raise config.ConfigError(
            f"objective.name={name}: {model.architecture} has no patches to {what}; set supervised"
        )


def check_sequences(model: config.Model) -> None:
    """Raises ConfigError for a complete model that takes no sequences of unlike grids."""
    key = f"{KEY}={model.architecture}"
    if not find_architecture(model).droppable:
        raise config.ConfigError(f"{key}: takes no padded patches; set data.aspect=fixed")
    for name, other, without in (
        ("resnet_units", model.resnet_units, None),
        ("relative_bias", model.relative_bias, "none"),
        ("position", "relative" if model.position == "relative" else None, None),
    ):
        if other != without:
            raise config.ConfigError(
                f"model.{name}={config.show(other)}: needs one grid for all images of a batch, and "
                "padded patches have many; set data.aspect=fixed"
            )


def check_read(model: config.Model, names: Iterable[str]) -> None:
    """Raises ConfigError for the first of the options `names` that the architecture ignores.

    One whose value asks for nothing (`options.is_nothing`) passes.
    """
    unread = find_architecture(model).unread
    for name in names:
        value = getattr(model, name)
        if name in unread and not is_nothing(value):
            raise config.ConfigError(
                f"model.{name}={config.show(value)}: model.architecture={model.architecture} does "
                "not read it"
            )


def check_variant(model: config.Model, names: Iterable[str]) -> None:
    """Raises ConfigError if a complete model has other sizes than its variant.

    Those of the options `names` may differ.
    """
    sizes = {} if model.variant is None else parse_variant(model.variant)
    wanted = {key: sizes[key] for key in sorted(sizes.keys() - {*names})}
    other = [f"model.{k}={config.show(v)}" for k, v in wanted.items() if getattr(model, k) != v]
    if other:
        raise config.ConfigError(
            f"model.variant={model.variant}: the config sets other sizes, which it leaves as they "
            f"are; set {' '.join(other)} too, or leave it out"
        )


def required(value: T | None) -> T:
    """A size of a complete model, in which none is None (see `complete` and `check_model`)."""
    assert value is not None
    return value


# Masked patch prediction (ViT, appendix B.1.2)

COLOR_SIDES = {"color": 1, "color_4x4": 4}  # colors predicted along each side of a patch
COLOR_BITS = 3  # per channel


def masked_patches(masked: config.MaskedPatches, patches: int) -> int:
    """The number of patches of an image that are corrupted and predicted."""
    return round(masked.rate * patches)


def color_count(channels: int) -> int:
    """The number of colors: 512 for RGB."""
    return 2 ** (COLOR_BITS * channels)


def masked_outputs(masked: config.MaskedPatches, patch: tuple[int, int], channels: int) -> int:
    """The size of a patch's prediction: logits of its colors, or its pixels."""
    if masked.target not in COLOR_SIDES:
        return patch[0] * patch[1] * channels
    return COLOR_SIDES[masked.target] ** 2 * color_count(channels)


# Masked autoencoding (He et al. 2022)


def kept_patches(mae: config.Mae, patches: int) -> int:
    """The number of patches of an image that the encoder sees, rounded down as in MAE's code."""
    return int(patches * (1 - mae.mask_ratio))


def decoder(model: config.Model, mae: config.Mae, *, unroll: int | None = None) -> config.Model:
    """The layers of the decoder of an encoder: plain ones, with its numerics."""
    return config.Model(
        architecture="vit",
        patch_size=model.patch_size,
        patch_remainder=model.patch_remainder,
        width=mae.decoder_width,
        depth=mae.decoder_depth,
        mlp_dim=4 * mae.decoder_width,
        heads=mae.decoder_heads,
        pooling="gap",  # has no class token of its own: the encoder's is passed on
        position="none",
        init="mae",
        activation=model.activation,
        gelu=model.gelu,
        norm_epsilon=model.norm_epsilon,
        attention=model.attention,
        remat=model.remat,
        dtype=model.dtype,
        unroll=unroll,
    )
