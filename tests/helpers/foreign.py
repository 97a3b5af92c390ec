"""Models of timm and transformers, as tests/fixtures/weights/README.md describes them."""

import json

import chex
import flax.serialization
import flax.traverse_util
import jax
import numpy as np
from safetensors import numpy as safetensors

import vit_reference
from containers import FIXTURES
from drawn import numbers, pictures
from vit_jax.weights import exporting, mapping

FOLDER = FIXTURES / "weights"


def record(name):
    """The record of a model: shapes of its arrays, its files and the logits of the reference."""
    return json.loads((FOLDER / f"{name}.json").read_text())


def images(described):
    """The pictures whose logits a fixture holds."""
    return pictures(described["image_size"], described["channels"])


def arrays(described):
    """All arrays of a model."""
    return {name: numbers(name, shape) for name, shape in described["arrays"].items()}


def write(folder, described, **changes):
    """Writes a model as its library did, and returns its path.

    `changes` are fields of the JSON files beside it: config={"hidden_act": "relu"}, say.
    """
    files, found = described.get("files", {}), arrays(described)
    if described.get("suffix") == ".msgpack":
        nested = flax.traverse_util.unflatten_dict(found, sep="/")
        (folder / "model.msgpack").write_bytes(flax.serialization.msgpack_serialize(nested))
        return folder / "model.msgpack"
    if "suffix" in described:
        np.savez(folder / "model.npz", **found)
        return folder / "model.npz"
    if not files and not changes:
        safetensors.save_file(found, folder / "model.safetensors")
        return folder / "model.safetensors"
    for name, fields in files.items():
        more = changes.get(name.removesuffix(".json"), {})
        (folder / name).write_text(json.dumps({**fields, **more}))
    for name in changes.keys() - {name.removesuffix(".json") for name in files}:
        (folder / f"{name}.json").write_text(json.dumps(changes[name]))
    index = files.get("model.safetensors.index.json", {"weight_map": {}})["weight_map"]
    for shard in sorted(set(index.values()) or {"model.safetensors"}):
        part = {n: a for n, a in found.items() if index.get(n, shard) == shard}
        safetensors.save_file(part, folder / shard)
    return folder


def parameters(spec):
    """Random parameters of the model of a spec."""
    return vit_reference.random_parameters(mapping.create_classifier(spec).shapes())


def exported(params, spec, project):
    """The arrays that an export to a project holds."""
    family = exporting.find_family(spec, project)
    return mapping.write_arrays(params, family.rules(None, spec), spec)


def changed(described, drop=(), **more):
    """A model with some arrays more (by name, dots as double underscores) or left out."""
    kept = {name: shape for name, shape in described["arrays"].items() if name not in drop}
    added = {name.replace("__", "."): list(shape) for name, shape in more.items()}
    return {**described, "arrays": {**kept, **added}}


def apply(loaded, pictures):
    """The logits of a loaded model and its other outputs, at the highest precision."""
    classifier = mapping.create_classifier(loaded.spec)
    with jax.default_matmul_precision("highest"):
        return jax.device_get(jax.jit(classifier.apply)(loaded.params, pictures))


def logits(loaded, pictures):
    """The logits of a loaded model."""
    return apply(loaded, pictures)[0]


def pre_logits(loaded, pictures):
    """The input of a loaded model's head."""
    return apply(loaded, pictures)[1]["pre_logits"]


def equal(one, other):
    """Asserts that parameters are the same, bit for bit."""
    chex.assert_trees_all_equal(one, other)
