"""Model sizes by name: `ViT-B/16` is the Base encoder on patches of 16 x 16 pixels."""

import dataclasses
import difflib
import re
from typing import NamedTuple, TypeVar

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
    "B": Size(768, 12, 3072, 12),  # ViT, table 1
    "L": Size(1024, 24, 4096, 16),  # ViT, table 1
    "H": Size(1280, 32, 5120, 16),  # ViT, table 1
}
PATCHES = (8, 14, 16, 32)  # published ones, to suggest; any other patch is as good a name


def parse(name: str) -> tuple[Size, int]:
    """Returns the size and the patch side in pixels that `ViT-B/16` or `ViT-B_16` names.

    Raises ConfigError for any other form, an unknown size, or a patch that is no whole number.
    """
    match = re.fullmatch(r"ViT-([A-Za-z]+)[/_]([1-9][0-9]{0,3})", name)
    if match and match[1] in SIZES:
        return SIZES[match[1]], int(match[2])
    if match:
        reason = f"no size {match[1]} (sizes: {', '.join(SIZES)})"
    else:
        reason = "not a name like ViT-B/16, a size and a patch side in pixels"
    known = {
        f"vit-{size.lower()}/{patch}": f"ViT-{size}/{patch}" for size in SIZES for patch in PATCHES
    }
    near = difflib.get_close_matches(name.lower().replace("_", "/"), known, n=1)
    hint = f"; did you mean {known[near[0]]}?" if near else ""
    raise config.ConfigError(f"model.variant={name}: {reason}{hint}")


def complete(model: config.Model) -> config.Model:
    """Returns `model` with the sizes left at None taken from its variant; set ones win.

    A model without a variant is returned unchanged. Raises ConfigError for a wrong name.
    """
    if model.variant is None:
        return model
    size, patch = parse(model.variant)
    named = {"patch_size": (patch, patch), **size._asdict()}
    missing = {key: value for key, value in named.items() if getattr(model, key) is None}
    return dataclasses.replace(model, **missing)


def known(value: T | None) -> T:
    """Returns a size of a complete model: `complete` and `config.check` leave none at None."""
    assert value is not None
    return value
