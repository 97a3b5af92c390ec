"""The command line: verbs and flags only; what they do is imported when they do it."""

import argparse
import csv
import dataclasses
import json
import os
import pathlib
import shutil
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from vit_jax import __version__, backend, catalog, config, console

DESCRIPTION = """\
Train Vision Transformers in JAX, by config name.

  vit_jax train digits                          a whole run on embedded images, in a minute
  vit_jax train image_folder --config.data.root=DIR --workdir=runs/mine
  vit_jax train --workdir=runs/mine             resume it
  vit_jax evaluate --checkpoint=runs/mine       top-1, top-5, loss on the whole split
  vit_jax predict --checkpoint=runs/mine cat.jpg photos/
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
        _train,
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
        _evaluate,
        "measure a checkpoint on its whole evaluation split",
        knobs=True,
        more="Every example counts once, whatever the batch size and the number of devices.\n",
    )
    _add_checkpoint(evaluate)
    evaluate.add_argument("--json", action="store_true", help="print one line of JSON")

    predict = verb(
        "predict",
        _predict,
        "name what is in pictures",
        more="Preprocessing and class names come from the checkpoint. A Google .npz file has no\n"
        "names of classes; they are shown as numbers.\n",
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

    listing = verb(
        "list",
        _list,
        "list the config names",
        more="A name is all that `vit_jax train` and `vit_jax show` need. exaFLOPs are counted\n"
        "from the model; `paper` and core-days (TPUv3) are as printed, and so are the results:\n"
        "top-1 in % on ImageNet (IN), CIFAR-10 and -100 (C10, C100), ... after fine-tuning.\n",
    )
    listing.add_argument(
        "--table", metavar="T", help="only this table or figure: 3, d2, figure4, augreg, ..."
    )
    listing.add_argument("--model", metavar="PATTERN", help="only these models: 'ViT-L*'")
    listing.add_argument("--json", action="store_true", help="print one JSON object")

    show = verb("show", _show, "print every knob of a config: value, meaning", knobs=True)
    _add_config(show)
    show.add_argument("--json", action="store_true", help="print the resolved config as JSON")

    preflight = verb(
        "preflight",
        _preflight,
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

    bench = verb("bench", _bench, "measure speed on this machine, each against a named alternative")
    bench.add_argument(
        "what",
        choices=("attention", "startup"),
        help="attention: the implementations of model.attention; "
        "startup: import, --help, and train to its first step",
    )
    return parser


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="config name; see `vit_jax list`")
    parser.add_argument(
        "--config", metavar="FILE.py:NAME", help="the same, also from a file of yours"
    )


def _add_checkpoint(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--checkpoint",
        type=pathlib.Path,
        required=True,
        metavar="RUN_OR_FILE",
        help="run directory, one of its checkpoints, or (predict) a Google .npz file",
    )
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


def _reference(options: argparse.Namespace) -> str | None:
    if options.name and options.config:
        raise config.ConfigError(
            f"--config={options.config}: {options.name} is given already; keep one of them"
        )
    return options.name or options.config


def _profile(text: str) -> tuple[int, int]:
    first, colon, last = text.partition(":")
    if not (colon and first.isdigit() and last.isdigit()):
        raise argparse.ArgumentTypeError(f"{text}: must be FIRST:LAST, such as 10:15")
    return int(first), int(last)


def _step(text: str) -> int | str:
    if text == "best" or text.isdigit():
        return text if text == "best" else int(text)
    raise argparse.ArgumentTypeError(f"{text}: must be a step number or best")


def _train(options: argparse.Namespace, overrides: dict[str, str]) -> int:
    reference = _reference(options)
    if reference is None and options.workdir is None:
        raise config.ConfigError(
            "train: name a config (see `vit_jax list`), or a --workdir to resume"
        )
    if reference is None and options.smoke:
        raise config.ConfigError("--smoke: name a config to try; see `vit_jax list`")
    if reference is not None:
        _check_start(options, reference, overrides)
    from vit_jax import logs, run

    logs.setup()
    cfg = run.of_directory(options.workdir, reference, overrides, tiny=options.smoke)
    outcome = run.train(cfg, options.workdir, profile=options.profile)
    rows = [
        (key, f"{value:,.0f}" if key.endswith("count") else f"{value:.4f}")
        for key, value in outcome.results.items()
    ]
    rows += [("steps", f"{outcome.steps:,}"), ("time", logs.duration(outcome.seconds))]
    rows += [(path.name, str(path)) for path in outcome.files]
    console.table(("result", ""), rows)
    return 0


def _check_start(options: argparse.Namespace, reference: str, overrides: dict[str, str]) -> None:
    """Says what is wrong with a run or special about it, before jax is imported: that is quick."""
    values, about = catalog.load(reference), catalog.about(reference)
    config.build(config.override(values, overrides))
    if options.smoke:
        if options.workdir is None:
            options.workdir = pathlib.Path("runs", "smoke", values["name"])
            shutil.rmtree(options.workdir, ignore_errors=True)
        return
    if about.needs and not any(key in overrides for key in about.lifted_by):
        raise config.ConfigError(about.needs)
    if about.warning:
        print(f"vit_jax: {values['name']} {about.warning}", file=sys.stderr)
    options.workdir = options.workdir or pathlib.Path("runs", values["name"])


def _evaluate(options: argparse.Namespace, overrides: dict[str, str]) -> int:
    from vit_jax import logs, run

    logs.setup()
    results = run.evaluate(options.checkpoint, overrides, at=options.step)
    if options.json:
        print(json.dumps(results))
    else:
        rows = [
            (key, f"{value:,.0f}" if key in ("count", "step") else f"{value:.4f}")
            for key, value in results.items()
        ]
        console.table(("metric", "value"), rows)
    return 0


def _predict(options: argparse.Namespace, overrides: dict[str, str]) -> int:
    if overrides:
        raise config.ConfigError(
            f"--config.{next(iter(overrides))}: predict takes its config from the checkpoint"
        )
    if bool(options.images) == bool(options.examples):
        raise config.ConfigError("predict: give image files or folders, or --examples=N")
    if options.top < 1 or options.examples < 0:
        raise config.ConfigError("predict: --top and --examples must be at least 1")
    for path in options.images:
        if not path.exists():
            raise config.ConfigError(f"{path}: no such file or folder")
    from vit_jax import logs, predict

    logs.setup()
    predictor = predict.load(options.checkpoint, options.step)
    if options.images:
        pictures: Any = predict.files(options.images)
    else:
        pictures = predict.examples(predictor.cfg, options.examples)
    unreadable, rows = 0, []
    writer = csv.writer(sys.stdout)
    if options.csv:
        writer.writerow(("image", "rank", "class", "probability"))
    for one in predictor(pictures, options.top):
        if one.error:
            unreadable += 1
            print(f"vit_jax: {one.image}: {one.error}", file=sys.stderr)
        if options.json:
            print(json.dumps(predict.as_dict(one)))
        elif options.csv:
            writer.writerows(
                (one.image, rank, name, f"{value:.6f}")
                for rank, (name, value) in enumerate(one.top, start=1)
            )
        elif not one.error:
            named = "  ".join(f"{name} {value:.1%}" for name, value in one.top)
            rows.append((one.image, named, *((one.truth,) if one.truth is not None else ())))
    if rows:
        console.table(("image", "prediction", "truth")[: len(rows[0])], rows)
    return 2 if unreadable else 0


def _list(options: argparse.Namespace, overrides: dict[str, str]) -> int:
    _no_overrides("list", overrides)
    from vit_jax import listing

    chosen = listing.entries(table=options.table, model=options.model)
    if options.json:
        print(json.dumps({entry.name: listing.to_dict(entry) for entry in chosen}))
        return 0
    for group in listing.groups(chosen):
        print(group.title)
        if group.shared:
            print(f"all: {group.shared}")
        console.table(group.header, group.rows)
        print()
    return 0


def _show(options: argparse.Namespace, overrides: dict[str, str]) -> int:
    reference = _reference(options)
    if reference is None:
        raise config.ConfigError("show: name a config; see `vit_jax list`")
    from vit_jax import listing, models

    # Not checked as a whole: a recipe can be looked at before it is told where its images are.
    cfg = config.build(config.override(catalog.load(reference), overrides))
    cfg = dataclasses.replace(cfg, model=models.complete(cfg.model))
    about = catalog.about(reference)
    if options.json:
        print(json.dumps(config.to_dict(cfg) | {"about": listing.about_dict(about)}, indent=2))
        return 0
    console.table(("knob", "value", "meaning"), listing.knobs(cfg))
    if about.choices:
        print()
        console.table(("choice", "why", "to change it"), about.choices)
    if about.warning:
        print(f"\nnote: {about.warning}")
    return 0


def _preflight(options: argparse.Namespace, overrides: dict[str, str]) -> int:
    if bool(options.names) == bool(options.table):
        raise config.ConfigError("preflight: name a config (see `vit_jax list`), or a --table")
    if options.topology != "gpu":  # what is compiled for need not be here
        os.environ["JAX_PLATFORMS"] = "cpu"
    from vit_jax import listing, logs, preflight

    logs.setup()
    names = options.names or [e.name for e in listing.entries(table=options.table)]
    runs = []
    for name in names:
        about = catalog.about(name)
        cfg = preflight.prepare(config.build(config.override(catalog.load(name), overrides)))
        examples = options.examples or about.images
        if examples is None and cfg.train.duration.unit == "epochs":
            raise config.ConfigError(
                f"{name}: its length is {cfg.train.duration} and its images are not known; "
                "set --examples=N"
            )
        runs.append((cfg, examples or 1))
    slices = [preflight.open_slice(name) for name in options.topology.split(",")]
    reports = []
    for report in preflight.measure_all(
        runs,
        slices,
        fit=options.fit,
        loops=options.loops,
        output=options.output,
        say=lambda text: print(text, file=sys.stderr, flush=True),
    ):
        reports.append(report)
        if options.json:
            print(json.dumps(preflight.as_dict(report, options.mfu)), flush=True)
    if options.json:
        pass
    elif len(reports) == 1:
        rows = preflight.lines(reports[0], options.mfu)
        if options.fit:
            rows.append(("flags", reports[0].settings.flags()))
        console.table(("preflight", ""), rows)
    else:
        printed = {name: catalog.about(name).core_days for name in names}
        print("\n".join(preflight.markdown(reports, options.mfu, printed)))
    return 0 if all(report.fits for report in reports) else 78


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"{text}: must be a share of peak such as 0.4")
    return share


def _bench(options: argparse.Namespace, overrides: dict[str, str]) -> int:
    _no_overrides("bench", overrides)
    from vit_jax import bench

    header, rows = {"attention": bench.attention, "startup": bench.startup}[options.what]()
    console.table(header, rows)
    return 0


def _no_overrides(verb: str, overrides: dict[str, str]) -> None:
    if overrides:
        raise config.ConfigError(f"--config.{next(iter(overrides))}: {verb} takes no knobs")
