"""Exports a checkpoint as one self-contained StableHLO program with a JSON description.

The program maps uint8 pixels to logits and probabilities, or to numbers in the units they were
trained on: it includes preprocessing and scale, and the parameters are its constants. `jax.export`
writes and reads it; running it needs only JAX and NumPy.
"""

import dataclasses
import hashlib
import json
import pathlib
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export as jax_export

from vit_jax import __version__, config, models
from vit_jax.data import transforms
from vit_jax.inference import export_resizing, loaded_model
from vit_jax.training import losses, normalization
from vit_jax.utils import storage, tree_utils
from vit_jax.utils.messages import size_text
from vit_jax.weights import exporting

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
MAX_BYTES = 2**31 - 2**20  # of a FlatBuffer, minus 1 MiB for all but parameters
# Parameters that layers only use in the compute dtype: nearly all of a Vision Transformer.
CAST_BEFORE_USE = re.compile(r"encoder/.*kernel")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Options of an exported program; raises ConfigError for impossible ones."""

    platforms: tuple[str, ...] = ("cpu", "cuda", "tpu")
    batch: int | None = None  # images at a time; None: any number
    any_size: bool = False  # resizes the images itself, as evaluation does
    dtype: str = "float32"  # compute dtype

    def __post_init__(self) -> None:
        for name in self.platforms:
            if name not in PLATFORMS:
                known = ", ".join(PLATFORMS)
                raise config.ConfigError(f"--platforms={name}: no such platform; known: {known}")
        if self.batch is not None:
            config.check_count("--batch", self.batch)


def check_output(path: pathlib.Path) -> None:
    """Raises ConfigError unless the two files of a program can be written there."""
    storage.check_creatable(path, path, description(path))


def description(path: pathlib.Path) -> pathlib.Path:
    """Path of a program's description: next to it, with the suffix `.json`."""
    return path.with_name(f"{path.name}.json")


def trace(loaded: loaded_model.LoadedModel, options: ExportOptions) -> jax_export.Exported:
    """The program of a checkpoint.

    It maps pixels (B, H, W, C) to a dict of float32 `logits` and `probabilities`, both (B, K); of
    numbers to `logits` and `numbers`.
    Float32 programs compute in full float32: matrix products request the highest precision, which
    a TPU or GPU would otherwise lower. Raises ConfigError for a checkpoint that is too large.
    """
    cfg = loaded.config
    batch = "b" if options.batch is None else str(options.batch)
    height, width = ("h", "w") if options.any_size else cfg.data.image_size
    # Letters become symbolic sizes, so one program takes any batch.
    shape = jax_export.symbolic_shape(f"{batch}, {height}, {width}, {cfg.data.channels}")
    pixels = jax.ShapeDtypeStruct(shape, jnp.dtype(cfg.data.pixel_type))
    program = create_program(loaded, options)
    return jax_export.export(jax.jit(program), platforms=options.platforms)(pixels)


def create_program(
    loaded: loaded_model.LoadedModel, options: ExportOptions, *, unroll: bool = False
) -> Callable[[jax.Array], dict[str, jax.Array]]:
    """The function that a program computes; `unroll` writes out each layer, without a loop."""
    cfg, model = loaded.config, _portable(loaded, options, unroll=unroll)
    _check_size(loaded, options)
    params = {
        name: np.asarray(leaf).astype(_type(name, options.dtype, cfg.model), copy=False)
        for name, leaf in tree_utils.flatten(loaded.params).items()
    }
    loss = cfg.loss

    # jax names the program after this function.
    def vit_jax(images: jax.Array) -> dict[str, jax.Array]:
        if options.any_size:
            images = export_resizing.view(images, cfg.data)
        # Cast inside the program, so that its constants keep the stored type.
        whole = {name: jnp.asarray(x).astype(jnp.float32) for name, x in params.items()}
        precision = "highest" if options.dtype == "float32" else "default"
        with jax.default_matmul_precision(precision):
            logits, _ = model.apply(
                tree_utils.nest(whole), normalization.normalize_pixels(images, cfg.data)
            )
        if isinstance(loss, config.Regression):
            return {"logits": logits, "numbers": losses.scaled(logits, loss)}
        return {
            "logits": logits,
            "probabilities": losses.probabilities(loaded.scaled(logits), loss),
        }

    return vit_jax


def _check_size(loaded: loaded_model.LoadedModel, options: ExportOptions) -> None:
    cfg = loaded.config

    def stored(dtype: str) -> int:
        return sum(
            leaf.size * jnp.dtype(_type(name, dtype, cfg.model)).itemsize
            for name, leaf in tree_utils.flatten(loaded.params).items()
        )

    if stored(options.dtype) <= MAX_BYTES:
        return
    smaller = "; set --dtype=bfloat16, which takes half" if stored("bfloat16") <= MAX_BYTES else ""
    raise config.ConfigError(
        f"{cfg.model.variant or cfg.name}: has {stored(options.dtype) / 1e9:.2f} GB of parameters, "
        f"and a program holds at most {MAX_BYTES / 1e9:.2f} GB{smaller}"
    )


def _portable(
    loaded: loaded_model.LoadedModel, options: ExportOptions, *, unroll: bool
) -> models.Classifier:
    """The model in the program's compute dtype, with attention that runs anywhere."""
    cfg = loaded.config
    model = cfg.model
    if unroll and model.depth:
        model = dataclasses.replace(model, unroll=model.depth)
    if model.attention == "cudnn":
        model = dataclasses.replace(model, attention="explicit")
    return models.create(
        model, image_size=cfg.data.image_size, channels=cfg.data.channels, dtype=options.dtype
    )


def _type(name: str, dtype: str, model: config.Model) -> str:
    """Stored dtype of a parameter: the compute dtype if that gives the same results."""
    reads = models.find_architecture(model).reads_in_compute_type  # a plug-in may have such names
    return dtype if CAST_BEFORE_USE.fullmatch(name) and reads(name) else "float32"


def write_program(
    loaded: loaded_model.LoadedModel, options: ExportOptions, path: pathlib.Path
) -> dict[str, Any]:
    """Writes the program of a checkpoint to `path` and its description next to it.

    Returns the description. Both files appear whole or not at all; raises ConfigError for files
    that exist or cannot be written.
    """
    check_output(path)
    exported = trace(loaded, options)
    content = exported.serialize()
    about = describe_program(loaded, options, exported)
    about["file"] = {
        "name": path.name,
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    text = json.dumps(about, indent=2, ensure_ascii=False) + "\n"
    with (
        storage.writing("--output", path),
        storage.replacing(path) as program,  # last: where it stands, its description does
        storage.replacing(description(path)) as words,
    ):
        program.write_bytes(content)
        # A file name that is not UTF-8 has surrogates, which become escapes that JSON knows.
        words.write_bytes(text.encode(errors="backslashreplace"))
    return about


def lines(about: dict[str, Any]) -> list[tuple[str, str]]:
    """The description of a program as rows for people."""

    def shown(array: dict[str, Any]) -> str:
        return f"{array['dtype']} ({', '.join(map(str, array['shape']))})"

    file = about["file"]
    return [
        ("file", f"{file['name']}, {size_text(file['bytes'])}, described in {file['name']}.json"),
        ("input", shown(about["input"])),
        *((name, shown(array)) for name, array in about["outputs"].items()),
        ("platforms", ", ".join(about["platforms"])),
        ("dtype", about["dtype"]),
        *([("checkpoint", selection)] if (selection := about["checkpoint"]["selection"]) else []),
    ]


def describe_program(
    loaded: loaded_model.LoadedModel, options: ExportOptions, exported: jax_export.Exported
) -> dict[str, Any]:
    """A description of a program for its users, as JSON-able values."""
    (pixels,), (logits, result) = exported.in_avals, exported.out_avals
    about = describe_inputs(loaded, options)
    return {
        "format": "StableHLO; in Python: jax.export.deserialize(bytearray(content)).call(images)",
        **about,
        "input": {**_array(pixels), **about["input"]},
        "outputs": {
            "logits": _array(logits),
            **{name: {**_array(result), **said} for name, said in about["outputs"].items()},
        },
        "platforms": exported.platforms,
        "dtype": options.dtype,
        "versions": {
            "vit_jax": __version__,
            "jax": jax.__version__,
            "calling_convention": exported.calling_convention_version,
        },
    }


def describe_inputs(loaded: loaded_model.LoadedModel, options: ExportOptions) -> dict[str, Any]:
    """The preprocessing, outputs and origin of a program, as JSON-able values."""
    data, loss = loaded.config.data, loaded.config.loss
    divided = "" if loaded.temperature is None else f" divided by {loaded.temperature:g}"
    meaning = f"{loss.meaning} of the logits{divided}"
    if isinstance(loss, config.Regression):
        meaning = f"logits x {config.show(loss.std)} + {config.show(loss.mean)}, one of each column"
    most, last = np.iinfo(data.pixel_type).max, transforms.eval_transforms(data)[-1]
    sizes = "of any size, resized inside as `view` says" if options.any_size else "as `view` says"
    color = {1: "gray", 3: "red, green, blue"}.get(data.channels, "channel")
    return {
        "input": {
            "axes": ["image", "row", "column", color],
            "meaning": f"pixels from 0 to {most}, not normalized, of images {sizes}",
        },
        "view": {
            "image_size": data.image_size,
            "eval_crop": data.eval_crop,
            "resize_to": exporting.preprocessing(data).get("resize_to"),
            "crop_rounding": data.crop_rounding,
            "fill": getattr(last, "fill", None),  # pixels of a border, if one is needed
            "resampling": transforms.eval_resampling(data),
        },
        "outputs": {second_output(loaded): {"meaning": meaning}},
        "classes" if second_output(loaded) == "probabilities" else "columns": loaded.classes,
        "checkpoint": {"step": loaded.step, "selection": loaded.selection},
        "config": _without_places(config.to_dict(loaded.config)),
    }


def _without_places(value: object) -> object:
    """Values without absolute paths and addresses, which say whose machine trained the model."""

    def is_place(value: object) -> bool:
        return isinstance(value, str) and (value.startswith(("/", "~")) or "://" in value)

    if isinstance(value, dict):
        return {key: _without_places(v) for key, v in value.items() if not is_place(v)}
    if isinstance(value, list | tuple):
        return [_without_places(v) for v in value if not is_place(v)]
    return value


def second_output(loaded: loaded_model.LoadedModel) -> str:
    """The name of a program's second output, computed from the logits."""
    return "numbers" if isinstance(loaded.config.loss, config.Regression) else "probabilities"


def _array(aval: Any) -> dict[str, Any]:
    """Shape and dtype; variable sides are letters, equal sides the same letter."""
    return {
        "shape": [side if isinstance(side, int) else str(side) for side in aval.shape],
        "dtype": str(aval.dtype),
    }
