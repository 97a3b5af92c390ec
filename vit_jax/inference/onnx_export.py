"""Exports a checkpoint as an ONNX program, kept only if its outputs agree with the checkpoint's.

jax2onnx translates the program of `inference.export`; onnxruntime runs the file. Neither is a
requirement of this package: jax2onnx's bounds on others are narrower than what works with it.
"""

import importlib
import json
import logging
import pathlib
import warnings
from collections.abc import Callable
from importlib import metadata
from types import ModuleType

import jax
import jax.extend
import numpy as np

from vit_jax import __version__, config
from vit_jax.inference import export, loaded_model
from vit_jax.utils import storage
from vit_jax.utils.messages import size_text

# Versions that are tested together, with packages that onnxruntime and jax2onnx import.
TESTED = (
    "jax2onnx==0.17.1", "onnx==1.23.2", "onnx_ir==1.1.0", "onnxruntime==1.32.0",
    "equinox==0.13.8", "jaxtyping", "wadler-lindig", "sympy", "mpmath", "dm_pix",
)  # fmt: skip
PACKAGES = ("jax2onnx", "onnx", "onnxruntime")
TESTED_JAX = "0.10.2"  # jax 0.12 has moved what jax2onnx 0.17.1 imports
OPSET = 23  # jax2onnx's default; onnxruntime 1.22 and later run it
TOLERANCE = 1e-4  # of logits, in units of their range where that is above 1; a ViT's are 1e-6 apart
BATCHES = (1, 3)  # images of the runs that are compared: any number has to work
META = "vit_jax"


def write_onnx(
    loaded: loaded_model.LoadedModel, options: export.ExportOptions, path: pathlib.Path
) -> list[tuple[str, str]]:
    """Writes the program of a checkpoint to `path`; returns rows about it, for people.

    It maps pixels (B, H, W, C), named `images`, to float32 `logits` and `probabilities`, both
    (B, K), or to `logits` and `numbers`. Its metadata has the preprocessing, the classes and where
    it comes from, as JSON.

    Raises ConfigError, and leaves nothing behind, where a package is missing, an operation has no
    translation, or onnxruntime's outputs are further from ours than TOLERANCE.
    """
    check_options(options, path)
    jax2onnx, onnx, runtime = (_required(name) for name in PACKAGES)
    data = loaded.config.data
    program = export.create_program(loaded, options, unroll=True)

    second = export.second_output(loaded)

    def outputs(images: jax.Array) -> tuple[jax.Array, jax.Array]:
        found = program(images)
        return found["logits"], found[second]

    side = options.batch or "B"
    pixels = jax.ShapeDtypeStruct(
        jax.export.symbolic_shape(
            f"{side}, {data.image_size[0]}, {data.image_size[1]}, {data.channels}"
        ),
        np.dtype(data.pixel_type),
    )
    function: Callable[..., object] = outputs
    if loaded.config.model.resnet_units is None:
        # jax2onnx replaces functions of flax while it traces. Its linear layer insists on a bias,
        # so trace before; a ResNet's pooling is translated in no other way.
        function = jax.extend.core.jaxpr_as_fun(jax.make_jaxpr(outputs)(pixels))
    logging.getLogger("onnx_ir").setLevel(logging.ERROR)  # it warns of shapes it leaves open
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of flax, in jax2onnx's code
            model = jax2onnx.to_onnx(
                function,
                [pixels],
                model_name=META,
                opset=OPSET,
                input_names=["images"],
                output_names=["logits", second],
            )
    except Exception as error:  # its own, of many kinds
        reason = str(error).partition("\n")[0][:200]
        raise config.ConfigError(
            f"--to=onnx: jax2onnx {metadata.version('jax2onnx')} with jax {jax.__version__} "
            f"(tested with {TESTED_JAX}) cannot translate it: {reason}"
        ) from error
    about = {**export.describe_inputs(loaded, options), "versions": _versions()}
    entry = model.metadata_props.add()
    entry.key, entry.value = META, json.dumps(about, ensure_ascii=False)
    # After the metadata, so that all of the file is checked.
    onnx.checker.check_model(model)
    content = model.SerializeToString()
    loss = loaded.config.loss
    units = loss.std or 1.0 if isinstance(loss, config.Regression) else 1.0
    difference = _compare_outputs(runtime, content, program, pixels, options.batch, (second, units))
    # Only now: a program whose outputs differ is never on the disk.
    with storage.writing("--output", path), storage.replacing(path) as draft:
        draft.write_bytes(content)
    kinds = {node.op_type for node in model.graph.node}
    return [
        ("file", f"{path.name}, {size_text(len(content))}"),
        ("input", f"images: {data.pixel_type} ({side}, {', '.join(map(str, pixels.shape[1:]))})"),
        ("outputs", f"logits, {second}: float32"),
        ("opset", f"{OPSET}, {len(model.graph.node)} nodes of {len(kinds)} kinds"),
        (
            "proof",
            f"logits and {second} of onnxruntime {runtime.__version__} differ by at most "
            f"{difference:.1e}",
        ),
        *([("checkpoint", loaded.selection)] if loaded.selection else []),
    ]


def check_options(options: export.ExportOptions, path: pathlib.Path) -> None:
    """Raises ConfigError for options, a path or an environment that no program can be made with."""
    default = export.ExportOptions()
    for name in ("platforms", "any_size", "dtype"):
        if getattr(options, name) != getattr(default, name):
            flag = name.replace("_", "-")
            raise config.ConfigError(f"--{flag}: is for --to=stablehlo; leave it out")
    storage.check_creatable(path, path)
    for name in PACKAGES:
        _required(name)


def _required(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        command = f"pip install --no-deps {' '.join(TESTED)}"
        raise config.ConfigError(f"--to=onnx: needs {name} ({error}); {command}") from error


def _versions() -> dict[str, str]:
    own = {"vit_jax": __version__, "jax": jax.__version__}
    return own | {name: metadata.version(name) for name in PACKAGES}


def _compare_outputs(
    runtime: ModuleType,
    content: bytes,
    program: Callable[[jax.Array], dict[str, jax.Array]],
    pixels: jax.ShapeDtypeStruct,
    batch: int | None,
    result: tuple[str, float | tuple[float, ...]],
) -> float:
    """The largest difference between our outputs and onnxruntime's.

    That of logits is in units of their range, that of the `result` made of them in its own, given
    for each column. Raises ConfigError beyond TOLERANCE.
    """
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # errors alone
    # The one provider that every build has.
    session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    rng, largest = np.random.default_rng(0), 0.0
    for number in (batch,) if batch else BATCHES:
        most = np.iinfo(pixels.dtype).max
        shape = (number, *pixels.shape[1:])
        images = rng.integers(0, most, shape, dtype=pixels.dtype, endpoint=True)
        ours = jax.device_get(jax.jit(program)(images))
        scale = max(1.0, float(np.ptp(ours["logits"])))
        for name, unit in (("logits", scale), result):
            (found,) = session.run([name], {"images": images})
            if found.shape != ours[name].shape or not np.isfinite(found).all():
                raise config.ConfigError(
                    f"--to=onnx: onnxruntime gives no {name}; report this model"
                )
            largest = max(largest, float(np.abs((found - ours[name]) / unit).max()))
    if largest > TOLERANCE:
        raise config.ConfigError(
            f"--to=onnx: onnxruntime's outputs differ from the checkpoint's by {largest:.1e}, and "
            f"{TOLERANCE:.0e} is the limit; nothing is written. Use --to=stablehlo, or report it"
        )
    return largest
