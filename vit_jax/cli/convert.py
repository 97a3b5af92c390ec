"""`vit_jax convert`."""

import argparse

from vit_jax.cli import arguments

# Those of `conversion.KINDS`, without importing jax.
KINDS = ("google", "timm", "hf", "flax", "orbax", "adapter", "peft")
DTYPES = ("float32", "float16", "bfloat16")  # those of `weights.writers`
HELP = "write a checkpoint in the format of another project"
TAKES_CONFIG = True
EPILOG = """\
google: the .npz files of vision_transformer and big_transfer; timm: a .safetensors file, or a
folder with its config.json; hf: a folder for Hugging Face transformers; flax: the same for its Flax
classes, with flax_model.msgpack; orbax: a checkpoint of this project, for every command here;
adapter: a folder with the trained parameters of a run that froze the rest (LoRA, a new head), which
loads together with its initial weights; peft: the same for PEFT, LoRA only. Folders of timm, hf
and flax get a model card, README.md, for `vit_jax push`.
"""


def add_arguments(parser: arguments.Parser) -> None:
    arguments.add_checkpoint(parser)
    parser.add("--to", "format to write", required=True, choices=KINDS)
    parser.add(
        "--dtype",
        "type of the arrays; half precision rounds and halves the file",
        choices=DTYPES,
        default=DTYPES[0],
    )
    parser.add(
        "--license ID", "license of the weights, for the folder's model card, such as apache-2.0"
    )
    arguments.add_output(parser, "PATH", "file or folder to write", required=True)


def run(args: argparse.Namespace, overrides: dict[str, str]) -> int:
    from vit_jax.inference import conversion

    for line in conversion.convert(
        args.checkpoint,
        args.to,
        args.output,
        overrides,
        step=args.step,
        dtype=args.dtype,
        license_id=args.license,
    ):
        print(line)
    return 0
