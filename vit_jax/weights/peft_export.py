"""Writes adapter folders of PEFT, which `peft_files` reads: LoRA and the head of a run."""

import pathlib
import re
from collections.abc import Mapping

import numpy as np

from vit_jax import config, models
from vit_jax.utils import tree_utils
from vit_jax.weights import exporting, mapping, peft_files, readers, writers, zoo
from vit_jax.weights.arrays import WeightsError
from vit_jax.weights.families import hf_vit

SAVED = re.compile(rf"(^|\.)encoder\.layer\.(\d+)\.({'|'.join(map(re.escape, hf_vit.DENSE))})$")
NEWER = dict(zip(hf_vit.DENSE, hf_vit.NEWER_DENSE, strict=True))


def write_peft(
    folder: pathlib.Path,
    params: models.Params,
    spec: mapping.ModelSpec,
    adapters: Mapping[str, np.ndarray],
    lora: config.Lora,
    base_name: str | None,
) -> list[str]:
    """Writes an adapter folder for a base in the form of Hugging Face; returns its modules.

    Modules have the names of transformers 5; a head is there whole. Raises WeightsError for a
    model that transformers cannot hold, or whose layers are others there.

    Args:
      folder: must not exist.
      params: of the model with its adapters merged, of which the head is written.
      spec: describes that model.
      adapters: `a` (inputs, rank) and `b` (rank, outputs) under the name of each matrix; those of
        stacked layers have the layers in front.
      lora: of the run.
      base_name: of the base's repository on the Hub, if it has one.
    """
    params, spec, family, _ = exporting.prepare(params, spec, "hf")
    kind = family.files(spec)["config.json"]["model_type"]
    shapes = tree_utils.flatten(mapping.create_classifier(spec).shapes())
    whole = mapping.write_arrays(params, family.rules(None, spec), spec)
    arrays: dict[str, np.ndarray] = {}
    modules, heads = [], []
    places = mapping.locate(shapes, family.rules(None, spec), None, spec.model)
    for target, index, _, source, rule in places:
        module = _trained_name(source.removesuffix(".weight"), kind)
        if target.startswith("head/"):
            if spec.headless:
                continue
            arrays[f"{peft_files.PREFIX}{source}"] = whole[source]
            # Once for each layer, which has a bias too.
            heads += [module] if source.endswith(".weight") else []
        elif f"{target}/a" in adapters:
            # PEFT has one pair of A and B for a module, so a part of one has no place. Dense layers
            # are (1, 0).
            if rule.parts > 1 or rule.layout.axes != (1, 0):
                raise WeightsError(f"lora.where: {target} is not a separate layer in transformers")
            for side in "ab":
                values = adapters[f"{target}/{side}"]
                values = values if index is None else values[index]
                name = f"{peft_files.PREFIX}{module}.lora_{side.upper()}.weight"
                # PyTorch's layers have (out, in).
                arrays[name] = np.ascontiguousarray(values.T)
            modules.append(module)
    alpha = lora.alpha
    fields = {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": base_name,
        # As PEFT's save_pretrained writes it, whatever the adapter is for.
        "inference_mode": True,
        "r": lora.rank,
        # PEFT declares lora_alpha as an int.
        "lora_alpha": int(alpha) if alpha == int(alpha) else alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "use_rslora": False,
        "init_lora_weights": True,
        "target_modules": modules,  # by their whole names: an end could be that of another layer
        "modules_to_save": heads,
    }
    writers.write_weights(folder, arrays, {peft_files.CONFIG: fields}, folded=peft_files.FILES[0])
    return modules


def repository(base: str) -> str | None:
    """The repository on the Hub that `init_from` is the address of, if transformers reads it."""
    name = zoo.hub_repository(base)
    if name is None:
        return None
    fields = readers.read_json(zoo.resolve(base) / "config.json")
    return name if "model_type" in fields else None


def _trained_name(module: str, kind: str) -> str:
    """The name of a module while transformers 5 runs it, by the name that it saves."""
    block = "encoder.layer" if kind.startswith("dinov2") else "layers"
    return SAVED.sub(lambda match: f"{match[1]}{block}.{match[2]}.{NEWER[match[3]]}", module)
