"""Biases that a model lacks (`model.biasless`) where the form that it is written in has them."""

import dataclasses

import numpy as np

from vit_jax import config, models
from vit_jax.utils import tree_utils
from vit_jax.weights import huggingface_beit, mapping, timm_eva

Parts = frozenset[str]
QKV: Parts = frozenset(("query", "key", "value"))
CONNECTED: Parts = frozenset(("out", "mlp"))


def written(
    params: models.Params, facts: mapping.Facts, kind: str
) -> tuple[models.Params, mapping.Facts, tuple[str, ...]]:
    """Returns the same function with zeros for biases that a form has, and what changed.

    Args:
      params: of the model in `facts`.
      facts: with a model of any biases.
      kind: of the form, as in `exporting.save`.
    """
    lacking = frozenset(facts.model.biasless)
    kept = _kept(lacking, facts.model, kind)
    if kept == lacking:
        return params, facts, ()
    model = dataclasses.replace(facts.model, biasless=tuple(sorted(kept)))
    facts = dataclasses.replace(facts, model=model)
    flat = tree_utils.flatten(params)
    shapes = tree_utils.flatten(mapping.create_classifier(facts).shapes())
    zeros = {n: np.zeros(leaf.shape, np.float32) for n, leaf in shapes.items() if n not in flat}
    told = (
        f"model.biasless={config.show(tuple(sorted(lacking - kept)))}: the file has these biases; "
        "they are written as zeros, and would be trained",
    )
    return tree_utils.nest({**flat, **zeros}), facts, told


def _kept(lacking: Parts, model: config.Model, kind: str) -> Parts:
    """Returns the parts of those without a bias that a form can leave without."""
    groups: dict[str, list[Parts]] = {"google": [], "timm": [QKV, CONNECTED], "hf": [QKV]}
    together = groups[kind]
    if model.rotary is not None and kind == "hf":  # DINOv3: each by itself
        together = [frozenset((part,)) for part in (*QKV, "out", "mlp")]
    elif kind == "hf" and huggingface_beit.expresses(model):  # keys never have one
        together = [frozenset(("key",))]
    elif kind == "timm" and timm_eva.written_kind(model):
        together = [QKV if lacking >= QKV else frozenset(("key",))]
    elif model.stem_norm and kind == "hf":  # CLIP
        together = [frozenset(("patches",)), frozenset(("head",))]
    elif model.stem_norm and kind == "timm":
        together = [*together, frozenset(("patches",))]
    return frozenset(part for parts in together if parts <= lacking for part in parts)
