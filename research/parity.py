"""Prints the table of docs/weights.md: what each kind of model loses on its way in and out.

    JAX_PLATFORMS=cpu python -m research.parity [--record] [KIND ...]

With --record each row is added to docs/records/parity.jsonl too.

For a fixture of every kind (tests/fixtures/weights), as largest differences:
    in      between our logits and those of the library that made it
    out     the same once it is written and read back; `=` if its arrays are those that came in
    train   whether a step of SGD reaches every parameter and lowers the loss
    export  between the StableHLO program, read back, and our forward pass on the same pixels
"""

import argparse
import dataclasses
import pathlib
import sys
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
from jax import export as jax_export

import foreign
from containers import FIXTURES
from vit_jax import weights
from vit_jax.inference import export, loading
from vit_jax.runtime import provenance
from vit_jax.training import normalization
from vit_jax.utils import storage, tree_utils
from vit_jax.weights import mapping

RECORD = pathlib.Path(__file__).parents[1] / "docs/records/parity.jsonl"
KINDS = {
    "ViT, Google": ("vit_tiny_token.npz",),
    "ViT, big_vision": ("bv_vit_tok.npz", "bv_vit_map.npz"),
    "hybrid, Google": ("hybrid_tiny.npz",),
    "ResNet, Big Transfer": ("bit_tiny_legacy.npz",),
    "ViT": ("timm_folder", "hf_sharded"),
    "ViT, torchvision": ("backbones/torchvision",),
    "ViT, registers with positions": ("backbones/timm_reg4_placed", "backbones/timm_reg2_placed"),
    "DeiT": ("backbones/timm_deit", "backbones/hf_deit"),
    "DeiT, distilled": ("backbones/timm_deit_distilled", "backbones/hf_deit_teacher"),
    "DeiT-III": ("backbones/timm_deit3",),
    "DeiT, DeiT III, deit3-jax": ("backbones/deit3_jax_deit", "backbones/deit3_jax"),
    "MAE": ("backbones/timm_mae_tuned", "backbones/hf_mae"),
    "MSN": ("backbones/hf_msn",),
    "I-JEPA": ("backbones/hf_ijepa",),
    "DINOv2": ("backbones/timm_dinov2", "backbones/hf_dinov2_classifier"),
    "DINOv2, registers": ("backbones/timm_dinov2_reg4", "backbones/hf_dinov2_reg_giant"),
    "DINOv3": ("backbones/timm_dinov3", "backbones/hf_dinov3"),
    "CLIP": ("backbones/timm_clip", "backbones/hf_clip_projection"),
    "MetaCLIP 2": ("backbones/hf_metaclip2",),
    "SigLIP, SigLIP 2": ("backbones/timm_siglip2", "backbones/hf_siglip_classifier"),
    "EVA": ("backbones/timm_eva",),
    "EVA-02": ("backbones/timm_eva02", "backbones/timm_eva02_clip"),
    "Perception Encoder, spatial and lang": (
        "backbones/timm_pe_spatial_token",
        "backbones/timm_pe_lang",
    ),
    "Perception Encoder, core": (
        "backbones/timm_pe_core",
        "backbones/timm_pe_core_heads",
        "backbones/timm_pe_core_gigantic",
    ),
    "AIMv2": ("backbones/timm_aimv2", "backbones/hf_aimv2"),
    "RADIO, of one size": ("backbones/timm_radio", "backbones/timm_unnormed"),
    "RoPE-ViT": ("backbones/timm_rope", "backbones/timm_rope_avg"),
    "RoPE-ViT, mixed": ("backbones/timm_rope_mixed", "backbones/timm_rope_mixed_ape"),
    "BEiT, BEiT v2": ("backbones/timm_beit", "backbones/hf_beit"),
    "TIPS": ("backbones/tips_scenic", "backbones/tips_scenic_giant"),
}

# What made the fixture of this file pads its pooling with nothing; a ResNet's file has no size.
OPTIONS = {"bit_tiny_legacy.npz": {"model.resnet_pool": "nothing", "data.image_size": "64"}}


def opened(name, folder):
    """A fixture: its path, overrides, pictures, and the outputs of its library."""
    if name.endswith(".npz"):
        with np.load(FIXTURES / name.replace("_legacy", "").replace(".npz", ".io.npz")) as file:
            return FIXTURES / name, OPTIONS.get(name, {}), file["images"], file["logits"], "logits"
    one = foreign.record(name)
    path = foreign.write(folder, one)
    return (
        path,
        one.get("options", {}),
        foreign.images(one),
        np.asarray(one["logits"]),
        one.get("output", "logits"),
    )


def answers(params, facts, pictures, output):
    """The logits, or the input of a head, at the highest precision."""
    loaded = weights.Weights(kind="", params=params, spec=facts, report=mapping.MappingReport())
    return getattr(foreign, output)(loaded, pictures)


def headed(params, facts):
    """The parameters, with a random head where there is none."""
    flat = tree_utils.flatten(params)
    rng = np.random.default_rng(0)
    for name in facts.fresh:
        flat[name] = rng.normal(0, 0.3, flat[name].shape).astype(np.float32)
    return tree_utils.nest(flat)


def trained(params, facts, pictures):
    """Whether a small step of SGD lowers the loss and every parameter has a gradient."""
    classifier = mapping.create_classifier(facts)

    def loss(params):
        return jnp.square(classifier.apply(params, pictures)[0] - 1).mean()

    value, grads = jax.jit(jax.value_and_grad(loss))(params)
    norm = sum(float((leaf**2).sum()) for leaf in jax.tree.leaves(grads))
    after = jax.tree.map(lambda leaf, grad: leaf - 1e-3 / norm**0.5 * grad, params, grads)
    reached = all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(grads))
    return reached and float(jax.jit(loss)(after)) < float(value)


def exported(path, options, params):
    """The largest difference between a program and our forward pass."""
    predictor = dataclasses.replace(loading.load(path, options), params=params)
    program = export.trace(predictor, export.ExportOptions(platforms=("cpu",), batch=2))
    data = predictor.config.data
    pixels = np.random.default_rng(0).integers(0, 256, (2, *data.image_size, 3), np.uint8)
    again = jax_export.deserialize(program.serialize())
    given = jax.jit(again.call)(pixels)["logits"]
    facts = mapping.ModelSpec(model=predictor.config.model, data=data)
    scaled = normalization.normalize_pixels(jnp.asarray(pixels), data)
    return np.abs(answers(params, facts, np.asarray(scaled), "logits") - given).max()


def measured(name):
    """The errors of a fixture by column."""
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        path, options, pictures, wanted, output = opened(name, folder)
        loaded = weights.load(path, options)
        params, facts = loaded.params, loaded.spec
        kind = loaded.kind if loaded.kind in weights.KINDS else "timm"
        out = folder / ("out.npz" if kind == "google" else "out")
        weights.save(params, facts, kind, out)
        back = weights.load(out, options if kind == "google" else {})
        same = all(map(np.array_equal, jax.tree.leaves(params), jax.tree.leaves(back.params)))
        whole = headed(params, facts)
        return {
            "in": np.abs(answers(params, facts, pictures, output) - wanted).max(),
            "out": np.abs(answers(back.params, back.spec, pictures, output) - wanted).max(),
            "same": same,
            "train": trained(whole, facts, pictures),
            "export": exported(path, options, whole),
        }


def summarized(kind):
    """The columns of a kind, over all its fixtures."""
    found = [measured(name) for name in KINDS[kind]]
    worst = {key: float(max(one[key] for one in found)) for key in ("in", "out", "export")}
    return {"kind": kind, **worst} | {
        key: all(bool(one[key]) for one in found) for key in ("same", "train")
    }


def row(found):
    """A line of the table."""
    equal = " =" if found["same"] else ""
    steps = "yes" if found["train"] else "no"
    errors = "{kind} | {in:.0e} | {out:.0e}".format_map(found)
    return f"| {errors}{equal} | {steps} | {found['export']:.0e} |"


def main():
    """Measures, prints and records."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("kinds", nargs="*", metavar="KIND", help="those of the table")
    parser.add_argument("--record", action="store_true", help="add the rows to docs/records")
    options = parser.parse_args()
    if unknown := set(options.kinds) - KINDS.keys():
        parser.error(f"{min(unknown)}: no such kind; there are: {', '.join(KINDS)}")
    for kind in options.kinds or KINDS:
        found = summarized(kind)
        print(row(found), flush=True)
        if options.record:
            storage.append_line(RECORD, found | provenance.fields("cpu", {"jax": jax.__version__}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
