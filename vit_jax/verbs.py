"""The verbs of the command line, their flags and their help."""

import argparse
from collections.abc import Callable
from typing import NoReturn, Protocol

from vit_jax import __version__, arguments, commands, messages

DESCRIPTION = """\
Train Vision Transformers in JAX, by config name.

  vit_jax train digits                          a whole run on embedded images, two minutes
  vit_jax train image_folder --config.data.root=DIR --workdir=runs/mine
  vit_jax train --workdir=runs/mine             resume it
  vit_jax evaluate --checkpoint=runs/mine       top-1, top-5, loss on the whole split
  vit_jax predict --checkpoint=runs/mine cat.jpg photos/
  vit_jax report runs/mine                      a page about it: curves, mistakes, settings
  vit_jax list --table=3                        the paper's pre-training runs, by name
  vit_jax reproduce table5 --dry_run            what a table takes, and what is here of it
  vit_jax preflight pretrain/ViT-L_16-i21k-90ep --topology=v5e-256 --fit
"""

EXITS = """\
exit codes: 0 done, 2 wrong usage or input, 70 failed but worth a retry (not finite, disk full),
75 stopped by a signal and saved (resume with the same command), 78 will fail again (out of memory,
no usable checkpoint)
"""

OVERRIDES = """\
Any option of the config can be set: --config.optimizer.lr=3e-4 --config.train.duration='10 epochs'
--config.data.image_size=32x48 --config.train.clip_norm=none. `vit_jax show NAME` prints them all.
"""


class Verb(Protocol):
    """Adds a verb to the command line."""

    def __call__(
        self, name: str, do: Callable[..., int], text: str, *, more: str = "", options: bool = False
    ) -> argparse.ArgumentParser:
        """Returns its parser; `text` says what it does, `more` its --help besides."""
        ...


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        messages.print_line(f"{self.prog}: {message}; see {self.prog} --help")
        self.exit(2)


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the whole command line."""
    form = argparse.RawDescriptionHelpFormatter
    top = _Parser(
        prog="vit_jax",
        description=DESCRIPTION,
        epilog=EXITS,
        formatter_class=form,
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"vit_jax {__version__}")
    verbs = top.add_subparsers(metavar="VERB", required=True, title="verbs")

    def verb(
        name: str, do: Callable[..., int], text: str, *, more: str = "", options: bool = False
    ) -> argparse.ArgumentParser:
        epilog = (more + "\n" if more else "") + (OVERRIDES if options else "")
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

    for add in VERBS:
        add(verb)
    return top


def _train(verb: Verb) -> None:
    one = verb(
        "train",
        commands.train,
        "train a model, or resume a run",
        options=True,
        more="The same command resumes: a run lives in its --workdir, and goes on from its newest\n"
        "good checkpoint, bit for bit. SIGTERM or Ctrl-C saves first (exit code 75).\n",
    )
    _add_config(one)
    one.add_argument(
        "--workdir",
        type=arguments.output,
        metavar="DIR|gs://...",
        help="run directory (default: runs/NAME); without a NAME, the run to resume",
    )
    one.add_argument(
        "--smoke",
        action="store_true",
        help="two steps of a tiny copy on random pixels, afresh in runs/smoke/NAME",
    )
    one.add_argument(
        "--profile",
        type=arguments.profile,
        metavar="FIRST:LAST",
        help="write a profiler trace of these steps to DIR/profile (TensorBoard, Perfetto)",
    )


def _transfer(verb: Verb) -> None:
    one = verb(
        "transfer",
        commands.transfer,
        "fine-tune by the paper's protocol: choose the rate, train three times, test once each",
        options=True,
        more="Every learning rate of the config is trained on a part of the training images and\n"
        "measured on the rest of them; the best one is trained on all, with each seed, and\n"
        "measured once on the test images, which are not read before. With several --choose_seeds\n"
        "the best mean counts, and the lowest rate within one standard error of it is taken; a\n"
        "rate that diverges with any of them is out. Means are printed with 95 % confidence\n"
        "intervals over seeds (Student's t) and the number of seeds. Each cell is a run\n"
        "directory below DIR; the same command goes on from wherever it was stopped or killed.\n"
        "DIR/transfer.json and transfer.md have the results.\n\n"
        "  vit_jax transfer finetune/ViT-B_16-i21k-cifar10\n"
        "  vit_jax transfer 'vtab/ViT-L_16-i21k-*' --parallel=4\n"
        "  vit_jax transfer image_folder --rates=0.003,0.01,0.03 --config.data.root=DIR \\\n"
        "      --config.init_from=augreg/ViT-S_16 --config.optimizer.name=sgd\n",
    )
    one.add_argument(
        "names", nargs="+", metavar="NAME", help="config names, also by pattern; see `vit_jax list`"
    )
    one.add_argument(
        "--workdir",
        type=arguments.local_output,
        metavar="DIR",
        help="where the cells' run directories are (default: runs/NAME; of several, DIR/NAME)",
    )
    one.add_argument(
        "--rates",
        type=arguments.rates,
        default=(),
        metavar="LR,...",
        help="learning rates to choose among (default: the config's)",
    )
    one.add_argument(
        "--seeds",
        type=arguments.seeds,
        default=(0, 1, 2),
        metavar="N,...",
        help="seeds of the final runs (default: 0,1,2)",
    )
    one.add_argument(
        "--choose_seeds",
        type=arguments.seeds,
        default=(),
        metavar="N,...",
        help="seeds to try each rate with; the mean over them counts (default: the config's, which "
        "for the paper's rows is one run a rate, as in the paper)",
    )
    one.add_argument(
        "--parallel",
        type=arguments.positive,
        default=1,
        metavar="N",
        help="cells at a time, each on its share of the devices (default: 1, on all of them)",
    )
    one.add_argument(
        "--smoke",
        action="store_true",
        help="the whole protocol on tiny copies and random pixels, afresh in runs/smoke/NAME",
    )
    one.add_argument("--json", action="store_true", help="print one line of JSON per config")


def _evaluate(verb: Verb) -> None:
    one = verb(
        "evaluate",
        commands.evaluate,
        "measure a checkpoint on its whole evaluation split",
        options=True,
        more="Every example counts once, whatever the batch size and the number of devices.\n",
    )
    _add_checkpoint(one)
    one.add_argument("--json", action="store_true", help="print one line of JSON")


def _predict(verb: Verb) -> None:
    one = verb(
        "predict",
        commands.predict,
        "name what is in pictures",
        more="Preprocessing and class names come from the checkpoint, or from the JSON beside it.\n"
        "Classes without a name, such as those of .npz files, are shown as numbers.\n",
        options=True,
    )
    _add_checkpoint(one)
    one.add_argument(
        "images",
        nargs="*",
        type=arguments.local,
        metavar="IMAGE_OR_FOLDER",
        help="image files, or folders of them",
    )
    one.add_argument(
        "--examples",
        type=int,
        default=0,
        metavar="N",
        help="instead of files: N examples of the evaluation split, drawn by --seed",
    )
    _add_seed(one)
    one.add_argument(
        "--top", type=int, default=3, metavar="K", help="classes per image (default: 3)"
    )
    form_group = one.add_mutually_exclusive_group()
    form_group.add_argument("--json", action="store_true", help="print one line of JSON per image")
    form_group.add_argument(
        "--csv", action="store_true", help="print image,rank,class,probability rows"
    )


def _embed(verb: Verb) -> None:
    one = verb(
        "embed",
        commands.embed,
        "write the features of images to a file: what the head sees, or every token",
        options=True,
        more="  vit_jax embed --checkpoint=runs/mine --images=photos/ --output=photos.npz\n"
        "  vit_jax embed --checkpoint=augreg/ViT-B_16 --output=pets.parquet \\\n"
        "      --config.data.source=tfds --config.data.name=oxford_iiit_pet\n\n"
        "Rows are in the order of the paths, or of the data set, and do not depend on batch size\n"
        "or devices but for rounding. FILE.npz has features, names, labels (-1: not known) and\n"
        "classes; FILE.parquet has columns name, label, features. Features are float32, and only\n"
        "a few batches of them are ever in memory. A file in a folder that is called as a class\n"
        "of the model has that label. An unreadable image is an error, or within\n"
        "data.max_bad_examples a row of NaN.\n",
    )
    _add_checkpoint(one)
    one.add_argument(
        "--images",
        type=arguments.local,
        metavar="FOLDER",
        help="image files at any depth (default: data.eval_split of the config's data set)",
    )
    one.add_argument(
        "--output",
        type=arguments.local_output,
        required=True,
        metavar="FILE.npz|.parquet",
        help="file to make",
    )
    one.add_argument(
        "--features",
        choices=("pre_logits", "tokens"),
        default="pre_logits",
        help="pre_logits: what the head sees (default); tokens: all of them, the class token first",
    )
    one.add_argument(
        "--batch_size",
        type=arguments.positive,
        metavar="N",
        help="images at a time on all devices together (default: 32 for each)",
    )


def _inspect(verb: Verb) -> None:
    one = verb(
        "inspect",
        commands.inspect,
        "draw what is inside a model: filters, positions, attention",
        options=True,
        more="".join(f"  {what:20}{text}\n" for what, text in commands.INSPECT.items())
        + "\nThe numbers are written beside the figures (.npz, .csv). `vit_jax report` shows the\n"
        "figures in a run directory.\n",
    )
    one.add_argument("what", choices=commands.INSPECT, metavar="WHAT", help="see below")
    _add_checkpoint(one)
    one.add_argument(
        "--images",
        nargs="+",
        action="extend",
        default=[],
        type=arguments.local,
        metavar="FILE_OR_FOLDER",
        help="images to look at (default: the evaluation split of a run)",
    )
    one.add_argument(
        "--count",
        type=arguments.positive,
        metavar="N",
        help="images, at most, drawn by --seed where there are more (default: 128 for "
        "attention-distance, 32 for rollout, 18 for reconstruct, 8 for view, 4 for attention)",
    )
    _add_seed(one)
    one.add_argument(
        "--out",
        type=arguments.output,
        metavar="DIR|FILE.html",
        help="folder to write to (default: inspect in the run directory, else inspect/CHECKPOINT); "
        "view: FILE.html (default: view.html)",
    )
    one.add_argument(
        "--format", choices=("png", "svg", "both"), default="png", help="of figures (default: png)"
    )
    one.add_argument(
        "--serve",
        nargs="?",
        const=0,
        type=arguments.port,
        metavar="PORT",
        help="view: show the page on 127.0.0.1 instead, where it takes images of yours too "
        "(default port: any that is free)",
    )


def _reproduce(verb: Verb) -> None:
    one = verb(
        "reproduce",
        commands.reproduce,
        "run what a table of the paper takes, and put the numbers beside the paper's",
        options=True,
        more="Pre-training first, then fine-tuning by the protocol of `vit_jax transfer`. What is\n"
        "in --workdir already is not run again; what is lacking (private JFT-300M, data that is\n"
        "not prepared) is listed with the command that provides it.\n"
        "Options, such as --config.data.root=DIR --config.data.name=NAME, put a data set of yours\n"
        "in the place of JFT-300M. Names of tables and figures are those of `list --table`.\n",
    )
    one.add_argument(
        "table",
        metavar="TABLE",
        help="table2, table4 to table9, figure2 to figure5, figure8 (D.2), figure9 (D.3), "
        "figure13 (D.6), masked, home",
    )
    one.add_argument(
        "--dry_run", action="store_true", help="run nothing: print the plan and what is there"
    )
    one.add_argument(
        "--workdir",
        type=arguments.local_output,
        metavar="DIR",
        help="the folder of all runs (default: runs)",
    )
    one.add_argument(
        "--smoke",
        action="store_true",
        help="run tiny copies of all runs on random pixels, in runs/smoke",
    )
    one.add_argument(
        "--output",
        type=arguments.local_output,
        metavar="FILE.md",
        help="write it as Markdown too, and as HTML beside it; of figures that has the plot",
    )
    one.add_argument("--json", action="store_true", help="print one JSON object")


def _report(verb: Verb) -> None:
    one = verb(
        "report",
        commands.report,
        "make a page about runs: curves, numbers, settings, predictions",
        more="One HTML file that needs nothing besides itself, and the same in Markdown. Several\n"
        "runs are compared first. A run that is not finished is shown as far as it is.\n",
    )
    one.add_argument(
        "workdirs",
        nargs="+",
        type=arguments.place,
        metavar="WORKDIR",
        help="directories of runs, or of transfers",
    )
    one.add_argument(
        "--out",
        type=arguments.output,
        metavar="FILE.html|DIR",
        help="what to write (default: report.html and report.md in the first WORKDIR)",
    )
    one.add_argument(
        "--images",
        type=arguments.positive,
        default=512,
        metavar="N",
        help="images of the evaluation split to show to each model, at most (default: 512)",
    )
    _add_seed(one)
    one.add_argument(
        "--no-predictions", action="store_true", help="open no model: quick, needs no jax"
    )


def _convert(verb: Verb) -> None:
    one = verb(
        "convert",
        commands.convert,
        "write a checkpoint in the form of another project",
        options=True,
        more="google: the .npz files of vision_transformer and big_transfer; timm: a .safetensors\n"
        "file, or a folder with its config.json; hf: a folder for Hugging Face transformers;\n"
        "orbax: a checkpoint of ours, for every verb here.\n",
    )
    _add_source(one)
    one.add_argument("--to", required=True, choices=commands.CONVERT, help="what to write")
    one.add_argument(
        "--output",
        type=arguments.local_output,
        required=True,
        metavar="PATH",
        help="file or folder to make",
    )


def _export(verb: Verb) -> None:
    one = verb(
        "export",
        commands.export,
        "write a checkpoint as one program that JAX runs without vit_jax",
        options=True,
        more="It takes uint8 pixels (B, H, W, C), normalizes them, and gives a dict of float32\n"
        "`logits` and `probabilities`, (B, K); parameters are inside. FILE.json says the rest:\n"
        "names of classes, view, shapes. To run it, with jax, numpy and flatbuffers alone:\n\n"
        "  program = jax.export.deserialize(bytearray(pathlib.Path(FILE).read_bytes()))\n"
        "  outputs = jax.jit(program.call)(images)\n",
    )
    _add_source(one)
    one.add_argument("--to", required=True, choices=("stablehlo",), help="what to write")
    one.add_argument(
        "--output", type=arguments.local_output, required=True, metavar="FILE", help="file to make"
    )
    one.add_argument(
        "--platforms",
        default="cpu,cuda,tpu",
        metavar="P,...",
        help="what it is to run on, of cpu, cuda, rocm, tpu (default: cpu,cuda,tpu)",
    )
    one.add_argument(
        "--batch", type=int, metavar="N", help="images at a time (default: any number)"
    )
    one.add_argument(
        "--any-size",
        action="store_true",
        help="take images of any size and resize them inside, as evaluation does; each new size "
        "is compiled anew",
    )
    one.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        default="float32",
        help="compute type (default: float32, in full precision on every platform); bfloat16 is "
        "faster on TPU and GPU, and the file of a Vision Transformer half as large",
    )


def _listing(verb: Verb) -> None:
    one = verb(
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
    one.add_argument(
        "--table", metavar="T", help="only this table or figure: table3, figure8 (D.2), augreg, ..."
    )
    one.add_argument("--model", metavar="PATTERN", help="only these models: 'ViT-L*'")
    one.add_argument(
        "--weights", action="store_true", help="published checkpoints instead of configs"
    )
    one.add_argument("--tasks", action="store_true", help="data sets instead of configs")
    one.add_argument(
        "--data_dir", metavar="DIR", help="with --tasks: where data sets are (default: TFDS's)"
    )
    one.add_argument(
        "--augreg-index",
        nargs="?",
        const="gs://vit_models/augreg/index.csv",
        metavar="PATH_OR_URL",
        help="the best checkpoints of How to train your ViT by its index.csv (default: downloaded)",
    )
    one.add_argument("--json", action="store_true", help="print one JSON object")


def _show(verb: Verb) -> None:
    one = verb(
        "show", commands.show, "print every option of a config: value, meaning", options=True
    )
    _add_config(one)
    one.add_argument("--json", action="store_true", help="print the resolved config as JSON")


def _preflight(verb: Verb) -> None:
    one = verb(
        "preflight",
        commands.preflight,
        "compile a run for a TPU slice, from any machine: memory, FLOPs, days",
        options=True,
        more="Nothing runs and no data is read; the TPU compiler comes with pip install "
        "'vit_jax[tpu]'.\n"
        "With several runs or slices the result is a Markdown table of settings; peak GiB per\n"
        "device; core-days.\n",
    )
    one.add_argument("names", nargs="*", metavar="NAME", help="config names; see `vit_jax list`")
    one.add_argument("--table", metavar="T", help="instead of names: those of a paper table")
    one.add_argument(
        "--topology",
        required=True,
        metavar="SLICE,...",
        help="v3:8x8 by chips, v3-128 by Google's name; also v2, v4, v5e, v5p, v6e, cpu, gpu",
    )
    one.add_argument(
        "--fit",
        action="store_true",
        help="search accumulation x rematerialization x fsdp for the fastest that fits",
    )
    one.add_argument(
        "--loops",
        action="store_true",
        help="with --fit: only programs that loop over layers; they compile several times faster",
    )
    one.add_argument(
        "--scaling",
        action="store_true",
        help="print a table of what all-reduces move in a step, and the speed that leaves",
    )
    one.add_argument(
        "--mfu",
        type=arguments.share,
        default=0.4,
        metavar="SHARE",
        help="share of peak FLOP/s to reckon days with (default: 0.4, as in the paper's runs)",
    )
    one.add_argument(
        "--examples",
        type=int,
        metavar="N",
        help="images of an epoch, where the config does not know",
    )
    one.add_argument(
        "--output",
        type=arguments.local_output,
        metavar="FILE.jsonl",
        help="keep every result in a file; what it holds is not compiled again",
    )
    one.add_argument("--json", action="store_true", help="print one JSON object per result")


def _prepare(verb: Verb) -> None:
    one = verb(
        "prepare",
        commands.prepare,
        "make data sets ready: download, convert, pack, de-duplicate, verify",
        more="  vit_jax prepare flowers                          what can be downloaded\n"
        "  vit_jax prepare imagenet --from=FOLDER           what you have: tars, or unpacked\n"
        "  vit_jax prepare imagenet --from=FOLDER --partial     also if images are missing\n"
        "  vit_jax prepare cifar10 --from=cifar-10-python.tar.gz\n"
        "  vit_jax prepare cifar10 --from=OLD --data_dir=NEW    a copy in TFRecord files\n"
        "  vit_jax prepare my_photos --from=FOLDER          CLASS/IMAGE or SPLIT/CLASS/IMAGE\n"
        "  vit_jax prepare imagenet21k --from=fall11_whole.tar --max_side=512 \\\n"
        "      --dedup-against=imagenet,cifar10,pets        class tars; nothing is unpacked\n"
        "  vit_jax prepare imagenet-real --from=real.json\n"
        "  vit_jax prepare flowers --verify                 read every record again\n\n"
        "A command that was stopped goes on with what is finished when it is given again.\n",
    )
    one.add_argument(
        "tasks",
        nargs="+",
        metavar="TASK",
        help="tasks, see `vit_jax list --tasks`; 'vtab/*'; a data set of TFDS; a new name of yours",
    )
    one.add_argument(
        "--data_dir", metavar="DIR", help="where data sets are (default: as TFDS has it)"
    )
    one.add_argument(
        "--from",
        dest="sources",
        nargs="+",
        action="extend",
        default=[],
        metavar="FOLDER|TAR|ZIP",
        help="what to make it of (default: download it)",
    )
    one.add_argument(
        "--verify", action="store_true", help="read every record again and say what is bad"
    )
    one.add_argument(
        "--partial",
        action="store_true",
        help="pack a data set of an official size also where images are missing",
    )
    one.add_argument(
        "--holdout",
        type=arguments.part,
        metavar="SHARE",
        help="share of each class of your images that becomes a validation split, where there is "
        "none (default: 0.1; 0: none)",
    )
    one.add_argument(
        "--max_side",
        type=arguments.positive,
        metavar="N",
        help="shrink packed images whose longer side is more, as JPEG of quality 95",
    )
    one.add_argument(
        "--dedup-against",
        dest="against",
        nargs="+",
        action="extend",
        default=[],
        metavar="TASK,...",
        help="leave out images that are, exactly or nearly, test images of these tasks",
    )
    one.add_argument(
        "--dedup-distance",
        dest="distance",
        type=int,
        choices=range(17),
        default=8,
        metavar="N",
        help="how much a near duplicate may differ: 0 to 16 bits of its 64-bit hash (default: 8)",
    )
    one.add_argument(
        "--workers", type=arguments.positive, metavar="N", help="processes (default: one per core)"
    )


def _bench(verb: Verb) -> None:
    one = verb(
        "bench",
        commands.bench,
        "measure speed on this machine, each against a named alternative",
        more="input: images/s from JPEG files to batches, on one core and on all of them, against\n"
        "decoding whole images and, where TensorFlow is, against tf.data, in turns.\n"
        "infer: images/s and the largest batch over models and input sizes, as in figure 12 of\n"
        "the paper; with --topology, the largest batch of a device (a core of v2 and v3, a chip\n"
        "of later ones) by its compiler. On a CPU time limits the batch, and it says so.\n\n"
        "  vit_jax bench infer --models=ViT-Ti/16,R50x1 --sizes=64,224 --output=speed\n"
        "  vit_jax bench infer --models=ViT-B/16 --topology=v3-8\n",
    )
    one.add_argument(
        "what",
        choices=("attention", "startup", "input", "infer"),
        help="attention: the implementations of model.attention; "
        "startup: import, --help, and train to its first step; input: loading of images; "
        "infer: naming images",
    )
    one.add_argument(
        "--data",
        type=arguments.local,
        metavar="FOLDER|TAR",
        help="input: JPEG files to load (default: some like ImageNet's are made)",
    )
    one.add_argument(
        "--threads",
        type=int,
        nargs="+",
        metavar="N",
        help="input: loader threads to try (default: one per core)",
    )
    one.add_argument(
        "--rounds",
        type=arguments.positive,
        metavar="N",
        help="input: turns of each; infer: passes of each (default: 5)",
    )
    one.add_argument(
        "--peer-python",
        metavar="PATH",
        help="input: an interpreter that has TensorFlow (default: this one)",
    )
    one.add_argument(
        "--feed",
        metavar="MODEL",
        help="input: say how many cores a model needs, such as ViT-B/32, with --topology",
    )
    one.add_argument(
        "--topology",
        metavar="SLICE",
        help="input: the slice to feed; infer: the one to compile for: v3-8, v5e:2x2, ...",
    )
    one.add_argument(
        "--models",
        type=arguments.words,
        metavar="MODEL,...",
        help="infer: models by name (default: the paper's eight; on a CPU four small ones)",
    )
    one.add_argument(
        "--sizes",
        type=arguments.sides,
        metavar="PIXELS,...",
        help="infer: sides of the images, made the nearest multiple of a model's patch "
        "(default: 64,128,224,384,512)",
    )
    one.add_argument(
        "--output",
        type=arguments.local_output,
        metavar="DIR",
        help="infer: write infer.csv and infer.png there",
    )


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="config name; see `vit_jax list`")
    parser.add_argument(
        "--config", metavar="FILE.py:NAME", help="the same, also from a file of yours"
    )


CHECKPOINT = (
    "run directory or one of its checkpoints; weights of Google, Big Transfer, timm or Hugging "
    "Face (.npz, .safetensors, folder); or a published name, see `vit_jax list --weights`"
)


def _add_seed(one: argparse.ArgumentParser) -> None:
    one.add_argument(
        "--seed",
        type=arguments.seed,
        default=0,
        metavar="N",
        help="what images are drawn by (default: 0)",
    )


def _add_checkpoint(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--checkpoint", required=True, metavar="RUN_OR_FILE", help=CHECKPOINT)
    _add_step(parser)


def _add_source(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", metavar="RUN_OR_FILE", help=CHECKPOINT)
    _add_step(parser)


def _add_step(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--step", type=arguments.step, metavar="N|best", help="which checkpoint (default: newest)"
    )


VERBS = (
    _train,
    _transfer,
    _evaluate,
    _predict,
    _embed,
    _inspect,
    _reproduce,
    _report,
    _convert,
    _export,
    _listing,
    _show,
    _preflight,
    _prepare,
    _bench,
)
