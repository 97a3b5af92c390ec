"""Adapter folders of PEFT: LoRA and replaced layers, added to the weights they were trained on.

A folder has adapter_config.json and adapter_model.safetensors (or .bin). With r = rank, a layer of
weight W becomes W + s B A, s = alpha / r, or alpha / sqrt(r) with `use_rslora` (Hu et al. 2021;
Kalajdzievski 2023). Layers of `modules_to_save`, such as a new classifier, are there whole.
"""

import math
import pathlib
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from vit_jax.weights import json_fields, readers, zoo
from vit_jax.weights.arrays import Arrays, ArraySpec, WeightsError
from vit_jax.weights.families import hf_vit

CONFIG = "adapter_config.json"
FILES = ("adapter_model.safetensors", "adapter_model.bin")
PREFIX = "base_model.model."
MERGE = "merge it with PEFT (merge_and_unload, save_pretrained)"
LORA = re.compile(r"(?P<layer>.+)\.lora_(?P<side>[AB])(?:\.[\w-]+)?\.weight")
PARTS = re.compile(r"\.(?:modules_to_save\.[\w-]+|base_layer)(?=\.)")  # of PEFT's modules
# Version 5 of transformers trains a ViT under other names than those it saves: `layers.0` (in
# DINOv2 `encoder.layer.0`) and other dense layers.
TRAINED = "|".join(map(re.escape, hf_vit.NEWER_DENSE))
NEWER = re.compile(rf"(^|\.)(?:encoder\.layer|layers)\.(\d+)\.({TRAINED})(?=\.)")
OLDER = dict(zip(hf_vit.NEWER_DENSE, hf_vit.DENSE, strict=True))
# Fields of LoRA as it is here. Any other that is set belongs to a variant with other arithmetic.
READ = {
    *("alpha_pattern", "auto_mapping", "base_model_name_or_path", "bias", "ensure_weight_tying"),
    *("exclude_modules", "inference_mode", "init_lora_weights", "layers_pattern"),
    *("layers_to_transform", "loftq_config", "lora_alpha", "lora_dropout", "megatron_core"),
    *("modules_to_save", "peft_type", "peft_version", "qalora_group_size", "r", "rank_pattern"),
    *("revision", "runtime_config", "target_modules", "task_type", "use_rslora"),
}
# Initializations of A and B; most others change the base too.
INITIAL = (None, True, False, "gaussian", "orthogonal")
OTHER = re.compile(r"(?:^|\.)(?:lora|ia3|vera|hada|lokr|oft|boft|prompt)_\w+(?:\.|$)")
LARGEST = 1e9  # of alpha, which JSON may write with more digits than a float has
NAME = re.compile(r"[\w.]{1,200}", re.ASCII)
HEAD = re.compile(r"(?:classifier|head|fc)\.weight")


def recognizes(folder: pathlib.Path) -> bool:
    """Whether a folder holds an adapter of PEFT."""
    return (folder / CONFIG).is_file()


def base(folder: pathlib.Path, given: str | None) -> pathlib.Path:
    """The file or folder of the weights that an adapter adds to; raises WeightsError.

    The user may have `given` a path or name. Else the one in the folder is taken, if it is a
    published name: a path in somebody's file is not followed.
    """
    if given is not None:
        return zoo.resolve(given)
    name = readers.read_json(folder / CONFIG).get("base_model_name_or_path")
    try:
        published = zoo.find_published(str(name)).name
    except WeightsError as error:
        raise WeightsError(
            f"{CONFIG}: base_model_name_or_path={json_fields.shown(name)}: is not a published "
            "name; set --config.init_from=PATH to those weights"
        ) from error
    return zoo.resolve(published)


def merged(folder: pathlib.Path, arrays: Arrays) -> Arrays:
    """The arrays of the base with an adapter added, each as it is read; raises WeightsError.

    They are (out, in) or (out, in, rows, columns) where LoRA adapts them.
    """
    settings = readers.read_json(folder / CONFIG)
    initial = settings.get("init_lora_weights")
    odd = {key for key, value in settings.items() if value and key not in READ}
    odd |= {"peft_type"} if settings.get("peft_type") != "LORA" else set()
    odd |= {"init_lora_weights"} if initial not in INITIAL else set()
    if odd:
        key = min(odd)
        shown = json_fields.shown(settings.get(key))
        raise WeightsError(f"{CONFIG}: {key}={shown}: is not supported; {MERGE}")
    file = next((folder / name for name in FILES if (folder / name).is_file()), None)
    if file is None:
        raise WeightsError(f"{folder}: has no {FILES[0]}")
    adapter = readers.open_arrays(file)
    short = {name: PARTS.sub("", name.removeprefix(PREFIX)) for name in adapter.specs}
    layers = {name: match for name, one in short.items() if (match := LORA.fullmatch(one))}
    if not layers:
        raise WeightsError(f"{file.name}: has no layers of LoRA")
    located = _locator(f"{next(iter(layers.values()))['layer']}.weight", arrays.specs)
    pairs: dict[str, dict[str, str]] = {}
    replaced: dict[str, str] = {}
    for name, one in short.items():
        if match := layers.get(name):
            target = located(f"{match['layer']}.weight")
            if target is None:
                raise WeightsError(f"{file.name}: {one[:80]}: the base has no such layer")
            sides = pairs.setdefault(target, {})
            if sides.setdefault(match["side"], name) != name:
                raise WeightsError(f"{file.name}: {target}: has two adapters; {MERGE}")
        elif OTHER.search(one):
            raise WeightsError(f"{file.name}: {one[:80]}: is not supported; {MERGE}")
        else:
            # A new head that the base lacks keeps the adapter's name.
            if replaced.setdefault(located(one) or one, name) != name:
                raise WeightsError(f"{file.name}: {one[:80]}: is there twice")
    scales = {}
    for target, sides in pairs.items():
        if sides.keys() != {"A", "B"}:
            raise WeightsError(f"{file.name}: {target}: has lora_{min(sides)} alone")
        if target in replaced:
            raise WeightsError(f"{file.name}: {target}: is adapted and replaced; {MERGE}")
        shapes = [adapter.specs[sides[side]].shape for side in "BA"]
        _check_shapes(target, arrays.specs[target].shape, *shapes)
        # The rank is that of A itself: rank_pattern may give layers others than r.
        scales[target] = _scale(settings, layers[sides["A"]]["layer"], shapes[1][0])
    specs = dict(arrays.specs) | {name: adapter.specs[one] for name, one in replaced.items()}

    def read(name: str) -> np.ndarray:
        if name in replaced:
            return adapter.read(replaced[name])
        values = arrays.read(name)
        if name in pairs:
            a, b = (adapter.read(pairs[name][side]).astype(np.float32) for side in "AB")
            # Of a convolution B is 1 x 1, so the product of flat kernels is its kernel too.
            product = b.reshape(len(b), -1) @ a.reshape(len(a), -1)
            # In float32 for a base in half precision too: rounded to 11 bits, W + s B A would lose
            # small updates.
            values = values.astype(np.float32) + scales[name] * product.reshape(values.shape)
        return values

    single = {name: ArraySpec(specs[name].shape, np.dtype("<f4")) for name in pairs}
    return Arrays(specs | single, read)


def outputs(arrays: Arrays, before: Arrays) -> int | None:
    """The number of outputs of an adapter's own head; None if it keeps the base's head."""
    for name, spec in arrays.specs.items():
        if HEAD.fullmatch(name) and before.specs.get(name) != spec:
            return spec.shape[0]
    return None


def _locator(name: str, there: Collection[str]) -> Callable[[str], str | None]:
    """A function from the names of an adapter to those of the base, None for one that it lacks.

    Made by one layer: its model may be nested in another, or that of the base.
    """
    name = name if name in there else _older(name)
    more = [one.removesuffix(name) for one in there if one.endswith(f".{name}")]
    less = [name.removesuffix(one) for one in there if name.endswith(f".{one}")]
    before, after = (part[0] if len(part) == 1 else "" for part in (more, less))

    def locate(name: str) -> str | None:
        saved = _older(name)
        names = (name, saved, f"{before}{saved}", saved.removeprefix(after))
        return next((one for one in names if one in there), None)

    return locate


def _older(name: str) -> str:
    return NEWER.sub(lambda match: f"{match[1]}encoder.layer.{match[2]}.{OLDER[match[3]]}", name)


def _check_shapes(
    name: str, shape: tuple[int, ...], b: tuple[int, ...], a: tuple[int, ...]
) -> None:
    fits = len(b) == len(a) == len(shape) in (2, 4) and a[0] > 0
    if not fits or (b[0], *a[1:]) != shape or b[1:] != (a[0],) + (1,) * (len(shape) - 2):
        raise WeightsError(f"{name}: lora_B {b} times lora_A {a} is not {shape}")


def _scale(settings: Mapping[str, Any], layer: str, rank: int) -> float:
    """The factor of B A in a layer, by its name in the adapter."""
    alpha = settings.get("lora_alpha")
    patterns = settings.get("alpha_pattern") or {}
    if patterns:
        # PEFT takes keys as regular expressions for the end of a name; of several, the first.
        if not isinstance(patterns, dict) or not all(NAME.fullmatch(str(key)) for key in patterns):
            raise WeightsError(f"{CONFIG}: alpha_pattern: is not numbers by name; {MERGE}")
        fits = (value for key, value in patterns.items() if re.fullmatch(rf"(.*\.)?{key}", layer))
        alpha = next(fits, alpha)
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not abs(alpha) < LARGEST:
        raise WeightsError(f"{CONFIG}: lora_alpha={json_fields.shown(alpha)}: must be a number")
    return alpha / math.sqrt(rank) if settings.get("use_rslora") else alpha / rank
