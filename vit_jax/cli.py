"""The command line: verbs and flags; `commands` does what they say."""

import argparse
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from vit_jax import __version__, backend, commands, config

DESCRIPTION = """\
Train Vision Transformers in JAX, by config name.

  vit_jax train digits                          a whole run on embedded images, in a minute
  vit_jax train image_folder --config.data.root=DIR --workdir=runs/mine
  vit_jax train --workdir=runs/mine             resume it
  vit_jax evaluate --checkpoint=runs/mine       top-1, top-5, loss on the whole split
  vit_jax predict --checkpoint=runs/mine cat.jpg photos/
  vit_jax list --table=3                        the paper's pre-training runs, by name
  vit_jax preflight pretrain/ViT-L_16-i21k-90ep --topology=v5e-256 --fit
"""

EXITS = """\
exit codes: 0 done, 2 wrong usage or input, 70 failed but worth a retry (not finite, disk full),
75 stopped by a signal and saved (resume with the same command), 78 will fail again (out of memory,
no usable checkpoint)
"""

OVERRIDES = """\
Any knob of the config can be set: --config.optimizer.lr=3e-4 --config.train.duration='10 epochs'
--config.data.image_size=32x48 --config.train.clip_norm=none. `vit_jax show NAME` prints them all.
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        arguments, overrides = _split_overrides(arguments)
        options = _parser().parse_args(arguments)
        backend.choose()
        return options.do(options, overrides)
    except config.UserError as error:
        print("vit_jax: " + " ".join(str(error).split("\n")), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("vit_jax: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 0


def _parser() -> argparse.ArgumentParser:
    form = argparse.RawDescriptionHelpFormatter
    parser = _Parser(
        prog="vit_jax",
        description=DESCRIPTION,
        epilog=EXITS,
        formatter_class=form,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"vit_jax {__version__}")
    verbs = parser.add_subparsers(metavar="VERB", required=True, title="verbs")

    def verb(
        name: str, do: Callable[..., int], text: str, *, more: str = "", knobs: bool = False
    ) -> argparse.ArgumentParser:
        epilog = (more + "\n" if more else "") + (OVERRIDES if knobs else "")
        one = verbs.add_parser(
            name,
            help=text,
            description=text[0].upper() + text[1:] + ".",
            epilog=epilog,
            formatter_class=form,
            allow_abbrev=False,
        )
        one.set_defaults(do=do)
        return one

    train = verb(
        "train",
        commands.train,
        "train a model, or resume a run",
        knobs=True,
        more="The same command resumes: a run lives in its --workdir, and goes on from its newest\n"
        "good checkpoint, bit for bit. SIGTERM or Ctrl-C saves first (exit code 75).\n",
    )
    _add_config(train)
    train.add_argument(
        "--workdir",
        type=pathlib.Path,
        metavar="DIR",
        help="run directory (default: runs/NAME); without a NAME, the run to resume",
    )
    train.add_argument(
        "--smoke",
        action="store_true",
        help="two steps of a tiny copy on random pixels, afresh in runs/smoke/NAME",
    )
    train.add_argument(
        "--profile",
        type=_profile,
        metavar="FIRST:LAST",
        help="write a profiler trace of these steps to DIR/profile (TensorBoard, Perfetto)",
    )

    evaluate = verb(
        "evaluate",
        commands.evaluate,
        "measure a checkpoint on its whole evaluation split",
        knobs=True,
        more="Every example counts once, whatever the batch size and the number of devices.\n",
    )
    _add_checkpoint(evaluate)
    evaluate.add_argument("--json", action="store_true", help="print one line of JSON")

    predict = verb(
        "predict",
        commands.predict,
        "name what is in pictures",
        more="Preprocessing and class names come from the checkpoint, or from the JSON beside it.\n"
        "Classes without a name, such as those of .npz files, are shown as numbers.\n",
        knobs=True,
    )
    _add_checkpoint(predict)
    predict.add_argument(
        "images",
        nargs="*",
        type=pathlib.Path,
        metavar="IMAGE_OR_FOLDER",
        help="image files, or folders of them",
    )
    predict.add_argument(
        "--examples",
        type=int,
        default=0,
        metavar="N",
        help="instead of files: the first N examples of the evaluation split",
    )
    predict.add_argument(
        "--top", type=int, default=3, metavar="K", help="classes per image (default: 3)"
    )
    form_group = predict.add_mutually_exclusive_group()
    form_group.add_argument("--json", action="store_true", help="print one line of JSON per image")
    form_group.add_argument(
        "--csv", action="store_true", help="print image,rank,class,probability rows"
    )

    convert = verb(
        "convert",
        commands.convert,
        "write a checkpoint in the form of another project",
        knobs=True,
        more="google: the .npz files of vision_transformer and big_transfer; timm: a .safetensors\n"
        "file, or a folder with its config.json; hf: a folder for Hugging Face transformers;\n"
        "orbax: a checkpoint of ours, for every verb here.\n",
    )
    _add_source(convert)
    convert.add_argument("--to", required=True, choices=commands.CONVERT, help="what to write")
    convert.add_argument(
        "--output", type=pathlib.Path, required=True, metavar="PATH", help="file or folder to make"
    )

    export = verb(
        "export",
        commands.export,
        "write a checkpoint as one program that JAX runs without vit_jax",
        knobs=True,
        more="It takes uint8 pixels (B, H, W, C), normalises them, and gives a dict of float32\n"
        "`logits` and `probabilities`, (B, K); parameters are inside. FILE.json says the rest:\n"
        "names of classes, view, shapes. To run it, with jax, numpy and flatbuffers alone:\n\n"
        "  program = jax.export.deserialize(bytearray(pathlib.Path(FILE).read_bytes()))\n"
        "  outputs = jax.jit(program.call)(images)\n",
    )
    _add_source(export)
    export.add_argument("--to", required=True, choices=("stablehlo",), help="what to write")
    export.add_argument(
        "--output", type=pathlib.Path, required=True, metavar="FILE", help="file to make"
    )
    export.add_argument(
        "--platforms",
        default="cpu,cuda,tpu",
        metavar="P,...",
        help="what it is to run on, of cpu, cuda, rocm, tpu (default: cpu,cuda,tpu)",
    )
    export.add_argument(
        "--batch", type=int, metavar="N", help="images at a time (default: any number)"
    )
    export.add_argument(
        "--any-size",
        action="store_true",
        help="take images of any size and resize them inside, as evaluation does; each new size "
        "is compiled anew",
    )
    export.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        default="float32",
        help="compute type (default: float32, in full precision on every platform); bfloat16 is "
        "faster on TPU and GPU, and the file of a Vision Transformer half as large",
    )

    listing = verb(
        "list",
        commands.list_,
        "list the config names, published checkpoints, or tasks",
        more="A name is all that `vit_jax train` and `vit_jax show` need. exaFLOPs are counted\n"
        "from the model; `paper` and core-days (TPUv3) are as printed, and so are the results:\n"
        "top-1 in % on ImageNet (IN), CIFAR-10 and -100 (C10, C100), ... after fine-tuning.\n"
        "--weights: names to start from or predict with; top-1 on ImageNet as their source\n"
        "reports it, of models trained on ImageNet-21k alone once they are fine-tuned.\n"
        "--tasks: data sets with their splits, whether they are on this machine, and the command\n"
        "for each that is not.\n",
    )
    listing.add_argument(
        "--table", metavar="T", help="only this table or figure: 3, d2, figure4, augreg, ..."
    )
    listing.add_argument("--model", metavar="PATTERN", help="only these models: 'ViT-L*'")
    listing.add_argument(
        "--weights", action="store_true", help="published checkpoints instead of configs"
    )
    listing.add_argument("--tasks", action="store_true", help="data sets instead of configs")
    listing.add_argument(
        "--data_dir", metavar="DIR", help="with --tasks: where data sets are (default: TFDS's)"
    )
    listing.add_argument(
        "--augreg-index",
        nargs="?",
        const="gs://vit_models/augreg/index.csv",
        metavar="PATH_OR_URL",
        help="the best checkpoints of How to train your ViT by its index.csv (default: downloaded)",
    )
    listing.add_argument("--json", action="store_true", help="print one JSON object")

    show = verb("show", commands.show, "print every knob of a config: value, meaning", knobs=True)
    _add_config(show)
    show.add_argument("--json", action="store_true", help="print the resolved config as JSON")

    preflight = verb(
        "preflight",
        commands.preflight,
        "compile a run for a TPU slice, from any machine: memory, FLOPs, days",
        knobs=True,
        more="Nothing runs and no data is read; the TPU compiler comes with pip install "
        "'vit_jax[tpu]'.\n"
        "With several runs or slices the result is a Markdown table of settings; peak GiB per\n"
        "device; core-days.\n",
    )
    preflight.add_argument(
        "names", nargs="*", metavar="NAME", help="config names; see `vit_jax list`"
    )
    preflight.add_argument("--table", metavar="T", help="instead of names: those of a paper table")
    preflight.add_argument(
        "--topology",
        required=True,
        metavar="SLICE,...",
        help="v3:8x8 by chips, v3-128 by Google's name; also v2, v4, v5e, v5p, v6e, cpu, gpu",
    )
    preflight.add_argument(
        "--fit",
        action="store_true",
        help="search accumulation x rematerialisation x fsdp for the fastest that fits",
    )
    preflight.add_argument(
        "--loops",
        action="store_true",
        help="with --fit: only programs that loop over layers; they compile several times faster",
    )
    preflight.add_argument(
        "--mfu",
        type=_share,
        default=0.4,
        metavar="SHARE",
        help="share of peak FLOP/s to reckon days with (default: 0.4, as in the paper's runs)",
    )
    preflight.add_argument(
        "--examples",
        type=int,
        metavar="N",
        help="images of an epoch, where the config does not know",
    )
    preflight.add_argument(
        "--output",
        type=pathlib.Path,
        metavar="FILE.jsonl",
        help="keep every result in a file; what it holds is not compiled again",
    )
    preflight.add_argument("--json", action="store_true", help="print one JSON object per result")

    prepare = verb(
        "prepare",
        commands.prepare,
        "make data sets ready: download, convert, pack, de-duplicate, verify",
        more="  vit_jax prepare flowers                          what TFDS can download\n"
        "  vit_jax prepare imagenet --from=FOLDER_OF_TARS   what you have to download\n"
        "  vit_jax prepare cifar10 --from=OLD --data_dir=NEW    a copy in TFRecord files\n"
        "  vit_jax prepare my_photos --from=FOLDER          CLASS/IMAGE or SPLIT/CLASS/IMAGE\n"
        "  vit_jax prepare imagenet21k --from=fall11_whole.tar --max_side=512 \\\n"
        "      --dedup-against=imagenet,cifar10,pets        class tars; nothing is unpacked\n"
        "  vit_jax prepare imagenet-real --from=real.json\n"
        "  vit_jax prepare flowers --verify                 read every record again\n\n"
        "A command that was stopped goes on with what is finished when it is given again.\n",
    )
    prepare.add_argument(
        "tasks",
        nargs="+",
        metavar="TASK",
        help="tasks, see `vit_jax list --tasks`; 'vtab/*'; a data set of TFDS; a new name of yours",
    )
    prepare.add_argument(
        "--data_dir", metavar="DIR", help="where data sets are (default: as TFDS has it)"
    )
    prepare.add_argument(
        "--from",
        dest="sources",
        nargs="+",
        action="extend",
        default=[],
        metavar="FOLDER|TAR|ZIP",
        help="what to make it of (default: download it)",
    )
    prepare.add_argument(
        "--verify", action="store_true", help="read every record again and say what is bad"
    )
    prepare.add_argument(
        "--max_side",
        type=_positive,
        metavar="N",
        help="shrink packed images whose longer side is more, as JPEG of quality 95",
    )
    prepare.add_argument(
        "--dedup-against",
        dest="against",
        nargs="+",
        action="extend",
        default=[],
        metavar="TASK,...",
        help="leave out images that are, exactly or nearly, test images of these tasks",
    )
    prepare.add_argument(
        "--dedup-distance",
        dest="distance",
        type=int,
        choices=range(17),
        default=8,
        metavar="N",
        help="how much a near duplicate may differ: 0 to 16 bits of its 64-bit hash (default: 8)",
    )
    prepare.add_argument(
        "--workers", type=_positive, metavar="N", help="processes (default: one per core)"
    )

    bench = verb(
        "bench",
        commands.bench,
        "measure speed on this machine, each against a named alternative",
        more="input: images/s from JPEG files to batches, on one core and on all of them, against\n"
        "decoding whole images and, where TensorFlow is, against tf.data, in turns.\n",
    )
    bench.add_argument(
        "what",
        choices=("attention", "startup", "input"),
        help="attention: the implementations of model.attention; "
        "startup: import, --help, and train to its first step; input: loading of images",
    )
    bench.add_argument(
        "--data",
        type=pathlib.Path,
        metavar="FOLDER|TAR",
        help="input: JPEG files to load (default: some like ImageNet's are made)",
    )
    bench.add_argument(
        "--threads",
        type=int,
        nargs="+",
        metavar="N",
        help="input: loader threads to try (default: one per core)",
    )
    bench.add_argument("--rounds", type=int, metavar="N", help="input: turns of each (default: 5)")
    bench.add_argument(
        "--peer-python",
        metavar="PATH",
        help="input: an interpreter that has TensorFlow (default: this one)",
    )
    bench.add_argument(
        "--feed",
        metavar="MODEL",
        help="input: say how many cores a model needs, such as ViT-B/32, with --topology",
    )
    bench.add_argument("--topology", metavar="SLICE", help="input: the slice to feed: v3:2x2, ...")
    return parser


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="config name; see `vit_jax list`")
    parser.add_argument(
        "--config", metavar="FILE.py:NAME", help="the same, also from a file of yours"
    )


CHECKPOINT = (
    "run directory or one of its checkpoints; weights of Google, Big Transfer, timm or Hugging "
    "Face (.npz, .safetensors, folder); or a published name, see `vit_jax list --weights`"
)


def _add_checkpoint(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--checkpoint", required=True, metavar="RUN_OR_FILE", help=CHECKPOINT)
    _add_step(parser)


def _add_source(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", metavar="RUN_OR_FILE", help=CHECKPOINT)
    _add_step(parser)


def _add_step(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--step", type=_step, metavar="N|best", help="which checkpoint (default: newest)"
    )


def _split_overrides(arguments: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Takes `--config.KEY=VALUE` and `--config.KEY VALUE` out of the arguments."""
    rest, overrides = [], {}
    words = iter(arguments)
    for word in words:
        if not word.startswith("--config."):
            rest.append(word)
            continue
        key, equals, value = word.removeprefix("--config.").partition("=")
        if not equals:
            value = next(words, "")
            if not value or value.startswith("--"):
                raise config.ConfigError(
                    f"--config.{key}: needs a value, as in --config.{key}=VALUE"
                )
        overrides[key] = value
    return rest, overrides


def _profile(text: str) -> tuple[int, int]:
    first, colon, last = text.partition(":")
    if not (colon and first.isdigit() and last.isdigit()):
        raise argparse.ArgumentTypeError(f"{text}: must be FIRST:LAST, such as 10:15")
    return int(first), int(last)


def _step(text: str) -> int | str:
    if text == "best" or text.isdigit():
        return text if text == "best" else int(text)
    raise argparse.ArgumentTypeError(f"{text}: must be a step number or best")


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be a number, at least 1")
    return int(text)


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"{text}: must be a share of peak such as 0.4")
    return share
