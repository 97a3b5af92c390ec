"""What the verbs of the command line do: read the options, call the room, print the result.

Rooms are imported when they are needed, so that help and mistakes cost no import of jax.
"""

import argparse
import csv
import dataclasses
import json
import os
import pathlib
import shutil
import sys
from typing import Any

from vit_jax import catalog, config, console


def _reference(options: argparse.Namespace) -> str | None:
    if options.name and options.config:
        raise config.ConfigError(
            f"--config={options.config}: {options.name} is given already; keep one of them"
        )
    return options.name or options.config


def train(options: argparse.Namespace, overrides: dict[str, str]) -> int:
    """Trains a run, or goes on with one, and prints what it came to."""
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
    data = config.build(config.override(values, overrides)).data
    if options.smoke:
        if options.workdir is None:
            options.workdir = pathlib.Path("runs", "smoke", values["name"])
            shutil.rmtree(options.workdir, ignore_errors=True)
        return
    if about.needs and not any(key in overrides for key in about.lifted_by):
        raise config.ConfigError(about.needs)
    if about.warning and "init_from" not in overrides:
        print(f"vit_jax: {values['name']} {about.warning}", file=sys.stderr)
    if data.source == "tfds" and data.name:
        from vit_jax.data import presence

        presence.check(data.name, data.root)
    options.workdir = options.workdir or pathlib.Path("runs", values["name"])


def evaluate(options: argparse.Namespace, overrides: dict[str, str]) -> int:
    """Prints the metrics of a checkpoint."""
    from vit_jax import logs, run

    logs.setup()
    results = run.evaluate(options.checkpoint, overrides, at=options.step)
    if options.json:
        print(json.dumps(results))
    else:
        rows = [
            (key, f"{value:,.0f}" if key.endswith(("count", "step")) else f"{value:.4f}")
            for key, value in results.items()
        ]
        console.table(("metric", "value"), rows)
    return 0


def predict(options: argparse.Namespace, overrides: dict[str, str]) -> int:
    """Prints what is in pictures."""
    if bool(options.images) == bool(options.examples):
        raise config.ConfigError("predict: give image files or folders, or --examples=N")
    if options.top < 1 or options.examples < 0:
        raise config.ConfigError("predict: --top and --examples must be at least 1")
    for path in options.images:
        if not path.exists():
            raise config.ConfigError(f"{path}: no such file or folder")
    from vit_jax import logs, opening, predict

    logs.setup()
    if options.examples:
        opening.check_images(options.checkpoint, overrides)
    predictor = predict.load(options.checkpoint, overrides, at=options.step)
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


# The forms that `convert.KINDS` has, without importing jax.
CONVERT = ("google", "timm", "hf", "orbax")


def convert(options: argparse.Namespace, overrides: dict[str, str]) -> int:
    """Writes a checkpoint in the form of another project."""
    from vit_jax import convert, logs

    logs.setup()
    for line in convert.convert(
        options.checkpoint, options.to, options.output, overrides, at=options.step
    ):
        print(line)
    return 0


def export(options: argparse.Namespace, overrides: dict[str, str]) -> int:
    """Writes a checkpoint as a program that runs without vit_jax."""
    from vit_jax import export, logs, predict

    logs.setup()
    form = export.Form(
        platforms=tuple(dict.fromkeys(options.platforms.split(","))),
        batch=options.batch,
        any_size=options.any_size,
        dtype=options.dtype,
    )
    export.check_output(options.output)
    predictor = predict.load(options.checkpoint, overrides, at=options.step)
    console.table(("program", ""), export.lines(export.write(predictor, form, options.output)))
    return 0


def list_(options: argparse.Namespace, overrides: dict[str, str]) -> int:
    """Prints the catalog, the published checkpoints, or the tasks."""
    _no_overrides("list", overrides)
    if options.tasks:
        return _list_tasks(options)
    if options.data_dir:
        raise config.ConfigError(f"--data_dir={options.data_dir}: goes with --tasks")
    from vit_jax import listing

    if options.table and (options.weights or options.augreg_index):
        raise config.ConfigError(f"--table={options.table}: is of configs, not of --weights")
    if options.augreg_index:
        best = listing.augreg_best(options.augreg_index, options.model)
        values: dict[str, Any] = {one.model: one._asdict() for one in best}
        groups = [listing.augreg_group(best)]
    elif options.weights:
        published = listing.weights(options.model)
        values = {entry.name: listing.weights_dict(entry) for entry in published}
        groups = listing.weight_groups(published)
    else:
        chosen = listing.entries(table=options.table, model=options.model)
        values = {entry.name: listing.to_dict(entry) for entry in chosen}
        groups = listing.groups(chosen)
    if options.json:
        print(json.dumps(values))
        return 0
    for group in groups:
        print(group.title)
        if group.shared:
            print(f"all: {group.shared}")
        console.table(group.header, group.rows)
        print()
    return 0


def _list_tasks(options: argparse.Namespace) -> int:
    for flag in ("table", "model", "weights", "augreg_index"):
        if getattr(options, flag):
            raise config.ConfigError(f"--tasks: --{flag.replace('_', '-')} is not of tasks")
    from vit_jax.data import inventory, presence

    chosen = inventory.entries(options.data_dir)
    if options.json:
        print(json.dumps({entry.task.name: inventory.to_dict(entry) for entry in chosen}))
        return 0
    for group in inventory.groups(chosen):
        print(group.title)
        console.table(inventory.HEADER, group.rows)
        for command in group.commands:
            print(command)
        print()
    here = sum(entry.here for entry in chosen)
    print(f"{here} of {len(chosen)} are in {presence.directory(options.data_dir)}")
    return 0


def show(options: argparse.Namespace, overrides: dict[str, str]) -> int:
    """Prints every knob of a config, and where its source left a choice."""
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
    for line in listing.notes(about):
        print(line)
    return 0


def preflight(options: argparse.Namespace, overrides: dict[str, str]) -> int:
    """Prints what the compiler of an accelerator says of runs."""
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
    if not options.json and len(reports) == 1:
        rows = preflight.lines(reports[0], options.mfu)
        if options.fit:
            rows.append(("flags", reports[0].settings.flags()))
        console.table(("preflight", ""), rows)
    elif not options.json:
        printed = {name: catalog.about(name).core_days for name in names}
        print("\n".join(preflight.markdown(reports, options.mfu, printed)))
    return 0 if all(report.fits for report in reports) else 78


def prepare(options: argparse.Namespace, overrides: dict[str, str]) -> int:
    """Prepares data sets, one after another, and says what became of each."""
    _no_overrides("prepare", overrides)
    from vit_jax import logs
    from vit_jax.prepare import dispatch

    logs.setup()
    request = dispatch.Request(
        data_dir=options.data_dir,
        sources=tuple(options.sources),
        verify=options.verify,
        max_side=options.max_side,
        against=tuple(name for names in options.against for name in names.split(",")),
        distance=options.distance,
        workers=options.workers or len(os.sched_getaffinity(0)),
    )
    code = 0
    for name in dispatch.names(options.tasks, request):
        try:
            for line in dispatch.prepare(name, request):
                print(line, flush=True)
        except config.UserError as error:  # of many tasks the others can still be prepared
            print(f"vit_jax: {error}", file=sys.stderr, flush=True)
            code = max(code, error.exit_code)
    return code


def bench(options: argparse.Namespace, overrides: dict[str, str]) -> int:
    """Prints measurements of this machine."""
    _no_overrides("bench", overrides)
    if options.what == "input":
        return _bench_input(options)
    for key in ("data", "threads", "peer_python", "rounds", "feed", "topology"):
        if getattr(options, key) is not None:
            flag = key.replace("_", "-")
            raise config.ConfigError(f"--{flag}={getattr(options, key)}: is of bench input")
    from vit_jax.bench import compute

    header, rows = {"attention": compute.attention, "startup": compute.startup}[options.what]()
    console.table(header, rows)
    return 0


def _bench_input(options: argparse.Namespace) -> int:
    if bool(options.feed) != bool(options.topology):
        raise config.ConfigError("bench input: --feed=MODEL and --topology=SLICE go together")
    from vit_jax.bench import feed, input

    if options.feed:  # mistakes cost no minute of measuring
        feed.needs(options.feed, options.topology, 1.0)
    given = {
        "data": options.data,
        "threads": options.threads and tuple(options.threads),
        "peer_python": options.peer_python,
        "rounds": options.rounds,
    }
    chosen = input.Input(**{key: value for key, value in given.items() if value is not None})
    for line in input.title(chosen):
        print(line)
    results = input.measure(chosen)
    console.table(*input.table(results))
    if options.feed:
        print()
        last = [one for one in results if one.name.startswith(input.OURS)][-2]
        per_core = last.rate / last.cores
        console.table(("host", ""), feed.needs(options.feed, options.topology, per_core))
    return 0


def _no_overrides(verb: str, overrides: dict[str, str]) -> None:
    if overrides:
        raise config.ConfigError(f"--config.{next(iter(overrides))}: {verb} takes no knobs")
