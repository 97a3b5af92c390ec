"""`vit_jax export`."""

import argparse

from vit_jax import config
from vit_jax.cli import arguments, tables

HELP = "write a checkpoint as one program that JAX or ONNX runs without vit_jax"
TAKES_CONFIG = True
EPILOG = """\
The program takes uint8 pixels (B, H, W, C), normalizes them, and returns a dict of float32
`logits` and `probabilities`, both (B, K), or with data.targets `logits` and `numbers`, the
latter in the units it was trained on; it contains the parameters. FILE.json has the class
names, the preprocessing and the shapes. To run it with jax, numpy and flatbuffers alone:

  program = jax.export.deserialize(bytearray(pathlib.Path(FILE).read_bytes()))
  outputs = jax.jit(program.call)(images)

--to=onnx writes the same program as ONNX, its description in the metadata, after onnxruntime has
compared it with the checkpoint; it needs jax2onnx and onnxruntime.
"""


def add_arguments(parser: arguments.Parser) -> None:
    arguments.add_checkpoint(parser)
    parser.add("--to", "format to write", required=True, choices=("stablehlo", "onnx"))
    arguments.add_output(parser, "FILE", "file to write", required=True)
    parser.add(
        "--platforms P,...", "platforms to run on, of cpu, cuda, rocm, tpu", default="cpu,cuda,tpu"
    )
    parser.add("--batch N", "images at a time (default: any number)", type=int)
    parser.add(
        "--any-size",
        "take images of any size and resize them inside, as evaluation does; each new size "
        "compiles again",
    )
    parser.add(
        "--dtype",
        "compute type (default: float32, in full precision on every platform); bfloat16 is "
        "faster on TPU and GPU, and halves the file of a Vision Transformer",
        choices=("float32", "bfloat16"),
        default="float32",
    )


def run(args: argparse.Namespace, overrides: dict[str, str]) -> int:
    from vit_jax.config import checks
    from vit_jax.inference import export, loading, onnx_export

    if "model.dtype" in overrides:
        value = overrides["model.dtype"]
        raise config.ConfigError(f"model.dtype={value}: is not read here; set --dtype")
    form = export.ExportOptions(
        platforms=tuple(dict.fromkeys(args.platforms.split(","))),
        batch=args.batch,
        any_size=args.any_size,
        dtype=args.dtype,
    )
    if args.to == "onnx":  # before anything is loaded
        onnx_export.check_options(form, args.output)
    else:
        export.check_output(args.output)
    predictor = loading.load(args.checkpoint, overrides, args.step)
    checks.check_fixed(predictor.config, "export")
    predictor.require_head()
    if args.to == "onnx":
        rows = onnx_export.write_onnx(predictor, form, args.output)
    else:
        rows = export.lines(export.write_program(predictor, form, args.output))
    tables.table(("program", ""), rows)
    return 0
