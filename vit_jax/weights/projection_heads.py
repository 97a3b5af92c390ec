"""Projection heads of self-distillation beside an encoder: DINO's, iBOT's and DINOv2's layout.

    teacher.backbone....                          the encoder
    teacher.head.mlp.{0,2,4}, head.last_layer     the head; where it differs, of views
    teacher.head.last_layer2                      prototypes of patches (iBOT)
    teacher.dino_head...., teacher.ibot_head....  both heads (DINOv2)

The rows of `last_layer` are prototypes, by direction (`weight_v`) and length (`weight_g`, which is
1 with `norm_last_layer`).
"""

import itertools
import re
from collections.abc import Mapping

import numpy as np

from vit_jax import config, models
from vit_jax.weights.arrays import Arrays, WeightsError

LAST, PATCHES, MASK = "prototypes", "patches", "mask_token"  # names of the objective's parameters
VIEW_HEADS, PATCH_HEAD = ("head.", "dino_head."), "ibot_head."
DENSE = re.compile(r"mlp(?:\.(\d+))?\.weight")
MASKED = ("masked_embed", "mask_token")
# Direction and length of prototypes: of torch's weight_norm, older and newer.
FORMS = (
    ("weight_v", "weight_g"),
    ("parametrizations.weight.original1", "parametrizations.weight.original0"),
    ("weight", ""),
)


def from_arrays(arrays: Arrays, encoder: str, own: config.Dino, width: int) -> models.Params | None:
    """The parameters of the objective `own` in a file; None where it holds no such head.

    Args:
      arrays: of the whole file.
      encoder: the prefix of the encoder whose head is wanted, such as `teacher.backbone.`.
      own: the objective that goes on with the head.
      width: of the features that the head reads.

    Raises WeightsError, in one line with the options to set, for a head of another shape.
    """
    # The head is beside the backbone, in the module around both.
    around = encoder.removesuffix("backbone.")
    prefix = next((around + n for n in VIEW_HEADS if f"{around}{n}mlp.0.bias" in arrays.specs or
                   f"{around}{n}mlp.bias" in arrays.specs), None)  # fmt: skip
    if prefix is None:
        return None
    made = _head(arrays, prefix, "last_layer", own, width)
    second = f"{prefix}last_layer2."
    apart = f"{around}{PATCH_HEAD}"
    patches: models.Params | None = None
    if any(name.startswith(second) for name in arrays.specs):  # its dense layers are those of views
        patches = _head(arrays, prefix, "last_layer2", own, width)
    elif any(name.startswith(apart) for name in arrays.specs):
        patches = _head(arrays, apart, "last_layer", own, width)
    if own.patch_loss:
        if (patches is not None) != own.patch_head:
            set_, other = (str(value).lower() for value in (own.patch_head, not own.patch_head))
            raise WeightsError(
                f"objective.patch_head={set_}: the weights have {'a' if patches else 'no'} head of "
                f"patches; set {other}, or init_head=new"
            )
        name = next((encoder + n for n in MASKED if encoder + n in arrays.specs), None)
        # DINO's files have no mask token; zeros are its initial value in iBOT, DINOv2 and here.
        token = np.zeros(width) if name is None else arrays.read(name)
        if token.size != width:
            raise WeightsError(f"{name} is {token.shape}, not (1, {width})")
        made[MASK] = _float32(token).reshape(1, 1, width)
        if patches is not None:
            made[PATCHES] = patches
    return made


def names(arrays: Arrays, encoder: str, own: config.Dino) -> set[str]:
    """The arrays of an encoder's projection heads that the objective `own` reads."""
    around = encoder.removesuffix("backbone.")
    views = tuple(around + name for name in VIEW_HEADS)
    patches = (f"{around}{PATCH_HEAD}", *(f"{name}last_layer2." for name in views))
    masked = {encoder + name for name in MASKED}
    of_patches = {name for name in arrays.specs if name.startswith(patches) or name in masked}
    of_views = {name for name in arrays.specs if name.startswith(views)} - of_patches
    return of_views | of_patches if own.patch_loss else of_views


def _head(arrays: Arrays, prefix: str, last: str, own: config.Dino, width: int) -> models.Params:
    inside = [name.removeprefix(prefix) for name in arrays.specs if name.startswith(prefix)]
    if any(name.endswith("running_mean") for name in inside):
        raise WeightsError(f"{prefix}mlp: has BatchNorm, which no head here has; set init_head=new")
    dense = sorted((int(m[1] or 0), name.removesuffix("weight")) for name in inside
                   if (m := DENSE.fullmatch(name)))  # fmt: skip
    form = next((f for f in FORMS if f"{last}.{f[0]}" in inside), None)
    if not dense or form is None:
        raise WeightsError(f"{prefix}: is no head of dense layers and prototypes ({last})")
    made: models.Params = {}
    for i, (_, name) in enumerate(dense):
        kernel, bias = (_read_array(arrays, f"{prefix}{name}{end}", n) for end, n in
                        (("weight", 2), ("bias", 1)))  # fmt: skip
        made[f"dense_{i}"] = {"kernel": np.ascontiguousarray(kernel.T), "bias": bias}
    rows = _read_array(arrays, f"{prefix}{last}.{form[0]}", 2)
    # Of a plain weight, which no parametrization splits, the rows have the lengths.
    lengths = np.linalg.norm(rows.astype(np.float64), axis=1)
    if form[1]:
        lengths = _read_array(arrays, f"{prefix}{last}.{form[1]}", 2).reshape(-1)
    shapes = [layer["kernel"].shape for layer in made.values()]
    known = {
        "head_layers": len(shapes),
        "head_hidden": shapes[0][1] if len(shapes) > 1 else own.head_hidden,
        "head_bottleneck": rows.shape[1],
        "prototypes": rows.shape[0],
        # Lengths that are free may be 1 as well, so only those that must be can contradict.
        "norm_last_layer": own.norm_last_layer and bool(np.allclose(lengths, 1, atol=1e-6)),
    }
    if wrong := {key: n for key, n in known.items() if getattr(own, key) != n}:
        text = " ".join(f"objective.{key}={config.show(n).lower()}" for key, n in wrong.items())
        raise WeightsError(f"{prefix}: is another projection head; set {text}, or init_head=new")
    hidden = [own.head_hidden] * (own.head_layers - 1)
    sides = [width, *hidden, own.head_bottleneck]
    if shapes != list(itertools.pairwise(sides)) or lengths.shape != rows.shape[:1]:
        raise WeightsError(
            f"{prefix}: has layers of {shapes}, not from {' to '.join(map(str, sides))}"
        )
    made[LAST] = {"kernel": np.ascontiguousarray(rows.T)}
    if not own.norm_last_layer:
        made[LAST]["length"] = lengths.astype(np.float32)
    return made


def to_arrays(params: models.Params) -> dict[str, np.ndarray]:
    """An objective's parameters as arrays, named as in the authors' files next to `backbone.`."""
    several = PATCHES in params
    found = _written(params, "dino_head." if several else "head.")
    if several:
        found |= _written(params[PATCHES], PATCH_HEAD)
    if MASK in params:
        found["backbone.masked_embed"] = _float32(params[MASK]).reshape(1, -1)
    return found


def _written(head: Mapping[str, models.Params], prefix: str) -> dict[str, np.ndarray]:
    layers = sorted(name for name in head if name.startswith("dense_"))
    found: dict[str, np.ndarray] = {}
    for i, name in enumerate(layers):
        # torch.nn.Sequential numbers the GELUs between dense layers too; one layer is in none.
        there = f"{prefix}mlp.{2 * i}" if len(layers) > 1 else f"{prefix}mlp"
        found[f"{there}.weight"] = np.ascontiguousarray(_float32(head[name]["kernel"]).T)
        found[f"{there}.bias"] = _float32(head[name]["bias"])
    rows = np.ascontiguousarray(_float32(head[LAST]["kernel"]).T)
    lengths = head[LAST].get("length", np.ones(len(rows)))
    found[f"{prefix}last_layer.weight_v"] = rows
    found[f"{prefix}last_layer.weight_g"] = _float32(lengths).reshape(-1, 1)
    return found


def _read_array(arrays: Arrays, name: str, axes: int) -> np.ndarray:
    if name not in arrays.specs or len(arrays.specs[name].shape) != axes:
        raise WeightsError(f"{name}: is missing, or has not {axes} axes")
    value = _float32(arrays.read(name))
    if not np.isfinite(value).all():
        raise WeightsError(f"{name} is not finite")
    return value


def _float32(value: object) -> np.ndarray:
    return np.asarray(value, np.float32)
