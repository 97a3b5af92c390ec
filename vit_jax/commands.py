"""What the verbs of the command line do: read the options, call the room, print the result.

Rooms are imported when they are needed, so that help and mistakes cost no import of jax.
"""

import argparse
import contextlib
import csv
import dataclasses
import fnmatch
import json
import os
import pathlib
import sys
from typing import Any

from vit_jax import catalog, config, console, locking, messages, progress


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
    with progress.doing("loading libraries"):
        from vit_jax import logs, run

    logs.setup()
    cfg = run.config_for_workdir(options.workdir, reference, overrides, tiny=options.smoke)
    outcome = run.train(cfg, options.workdir, profile=options.profile)
    rows = [(f"{name}/split", split) for name, split in outcome.splits.items() if name != split]
    rows += [(key, _number(key, value)) for key, value in outcome.results.items()]
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
            locking.clear(options.workdir)
        return
    if about.needs and not any(key in overrides for key in about.lifted_by):
        raise config.ConfigError(about.needs)
    if about.warning and "init_from" not in overrides:
        messages.print_error(f"{values['name']} {about.warning}")
    if data.source == "tfds" and data.name:
        from vit_jax.data import availability

        availability.check(data.name, data.root)
    options.workdir = options.workdir or pathlib.Path("runs", values["name"])


def transfer(options: argparse.Namespace, overrides: dict[str, str]) -> int:
    """Brings configs through the transfer protocol, one after another, and prints the results."""
    names, given = _matching(options.names), options.workdir
    starts = []
    for name in names:  # what is wrong with the last one is said before the first is run
        options.workdir = given and (given / name if len(names) > 1 else given)
        _check_start(options, name, overrides)
        starts.append((name, options.workdir))
    from vit_jax import logs, transfer

    logs.setup()
    cut = {
        "rates": options.rates,
        "choose_seeds": options.choose_seeds,
        "seeds": options.seeds,
        "tiny": options.smoke,
    }
    plans = [(transfer.create(name, overrides, **cut), workdir) for name, workdir in starts]
    places, finished = transfer.shares(options.parallel), []
    for plan, workdir in plans:
        finished.append(transfer.sweep(plan, workdir, places))
        if options.json:
            print(json.dumps(finished[-1]), flush=True)
        else:
            console.table(*transfer.table(finished[-1]))
            print(f"\n{workdir / 'transfer.md'}\n", flush=True)
    for model, means in transfer.vtab_means(finished).items():
        if options.json:
            print(json.dumps({"name": model, "results": means}))
        else:
            console.table(*transfer.spreads(model, means))
    return 0


def _matching(patterns: list[str]) -> list[str]:
    """Returns the names that are given, those of the catalog for patterns among them."""
    names = []
    for pattern in patterns:
        if not set("*?[") & set(pattern):
            names.append(pattern)
            continue
        found = [name for name in catalog.names() if fnmatch.fnmatchcase(name, pattern)]
        if not found:
            raise config.ConfigError(f"{pattern}: no config has such a name; see `vit_jax list`")
        names += found
    return names


def evaluate(options: argparse.Namespace, overrides: dict[str, str]) -> int:
    """Prints the metrics of a checkpoint."""
    from vit_jax import logs, run

    logs.setup()
    results = run.evaluate(options.checkpoint, overrides, at=options.step)
    if options.json:
        print(json.dumps(results))
    else:
        rows = [(key, _number(key, value)) for key, value in results.items()]
        console.table(("metric", "value"), rows)
    return 0


def _number(key: str, value: float | str) -> str:
    """Returns the value of a metric for people; a split is there as it is written."""
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if key.endswith(("count", "step")) else f"{value:.4f}"


def predict(options: argparse.Namespace, overrides: dict[str, str]) -> int:
    """Prints what is in pictures."""
    if bool(options.images) == bool(options.examples):
        raise config.ConfigError("predict: give image files or folders, or --examples=N")
    if options.top < 1 or options.examples < 0:
        raise config.ConfigError("predict: --top and --examples must be at least 1")
    for path in options.images:
        if not path.exists():
            raise config.ConfigError(f"{path}: no such file or folder")
    from vit_jax import loading, logs, predict

    logs.setup()
    if options.examples:
        loading.check_images(options.checkpoint, overrides)
    predictor = predict.load(options.checkpoint, overrides, at=options.step)
    if options.images:
        pictures: Any = predict.files(options.images)
    else:
        pictures = predict.examples(predictor.cfg, options.examples, options.seed)
    unreadable, rows = 0, []
    writer = csv.writer(sys.stdout)
    if options.csv:
        writer.writerow(("image", "rank", "class", "probability"))
    for one in predictor(pictures, options.top):
        if one.error:
            unreadable += 1
            messages.print_error(f"{one.image}: {one.error}")
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


def embed(options: argparse.Namespace, overrides: dict[str, str]) -> int:
    """Writes features of images to a file."""
    from vit_jax import embed, loading, logs

    logs.setup()
    request = embed.Request(
        output=options.output,
        images=options.images,
        features=options.features,
        batch_size=options.batch_size,
    )
    embed.check(request, options.checkpoint, overrides)
    opened = loading.load_checkpoint(options.checkpoint, overrides, at=options.step)
    print(f"{options.output}: {embed.embed(opened, request):,} images")
    return 0


# What `inspect` can be asked: the kinds that `inspect.drawing.KINDS` has, without importing jax.
INSPECT = {
    "filters": "principal components of the filters that see pixels (ViT, figure 7 left)",
    "posemb": "how alike the position embeddings of patches are (figures 7 and 10)",
    "attention-distance": "how many pixels away each head attends (figures 7 and 11)",
    "rollout": "what the output is made of, as light on the image (figures 6 and 14)",
    "attention": "what the output attends to in every layer and head",
    "reconstruct": "patches that a model trained by masked patch prediction fills in",
    "all": "each of these that the model has an answer to",
    "view": "a page to click through: where each patch, head and layer looks (FILE.html)",
}


def inspect(options: argparse.Namespace, overrides: dict[str, str]) -> int:
    """Draws what is inside a model."""
    for path in options.images:
        if not path.exists():
            raise config.ConfigError(f"--images={path}: no such file or folder")
    if options.what == "view":
        return _inspect_view(options, overrides)
    if options.serve is not None:
        raise config.ConfigError(f"--serve={options.serve}: is of inspect view")
    from vit_jax import logs
    from vit_jax.inspect import outputs

    logs.setup()
    for path in outputs.inspect(
        options.what,
        options.checkpoint,
        overrides,
        at=options.step,
        images=options.images,
        count=options.count,
        seed=options.seed,
        output=options.out,
        formats=("png", "svg") if options.format == "both" else (options.format,),
    ):
        print(path)
    return 0


def _inspect_view(options: argparse.Namespace, overrides: dict[str, str]) -> int:
    if options.format != "png":
        raise config.ConfigError(f"--format={options.format}: is of figures, not of inspect view")
    if options.out is not None and options.serve is not None:
        raise config.ConfigError(f"--out={options.out}: --serve writes no file; leave one out")
    from vit_jax import logs
    from vit_jax.inspect import serve, view

    logs.setup()
    viewer, pictures = view.open_(
        options.checkpoint,
        overrides,
        at=options.step,
        paths=options.images,
        count=options.count,
        seed=options.seed,
        needed=options.serve is None,
    )
    if options.serve is None:
        print(view.write(view.page(viewer, pictures), options.out))
        return 0
    page = view.page(viewer, pictures, live=True)
    with serve.Server(viewer, page, options.serve) as server:
        print(f"{server.url} (on this machine only; Ctrl-C ends it)", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
    return 0


def report(options: argparse.Namespace, overrides: dict[str, str]) -> int:
    """Writes a page about run directories."""
    _no_overrides("report", overrides)
    from vit_jax import report

    images = 0 if options.no_predictions else options.images
    for path in report.write(options.workdirs, options.out, images=images, seed=options.seed):
        print(path)
    return 0


def reproduce(options: argparse.Namespace, overrides: dict[str, str]) -> int:
    """Runs what of a table can be run here, and prints it beside the paper's."""
    from vit_jax import reproduce

    table, code = reproduce.table(options.table), 0
    workdir = options.workdir or pathlib.Path("runs", *(("smoke",) if options.smoke else ()))
    if options.smoke:
        table = reproduce.tiny(table)
    if not options.dry_run:
        from vit_jax import logs

        logs.setup()
        code = reproduce.perform(table, workdir, overrides, smoke=options.smoke)
    planned, found = reproduce.plan(table, workdir, overrides)
    if options.output is not None:
        reproduce.write(table, planned, found, options.output)
    if options.json:
        print(json.dumps(reproduce.as_dict(table, planned, found, workdir)))
        return code
    for title, block in reproduce.blocks(table, planned, found):
        print(title)
        console.table(block.header, block.rows)
        print(f"{block.caption}\n" if block.caption else "")
    return code


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
    from vit_jax.data import availability, task_tables

    chosen = task_tables.entries(options.data_dir)
    if options.json:
        print(json.dumps({entry.task.name: task_tables.to_dict(entry) for entry in chosen}))
        return 0
    for group in task_tables.groups(chosen):
        print(group.title)
        console.table(task_tables.HEADER, group.rows)
        for command in group.commands:
            print(command)
        print()
    here = sum(entry.here for entry in chosen)
    print(f"{here} of {len(chosen)} are in {availability.directory(options.data_dir)}")
    return 0


def show(options: argparse.Namespace, overrides: dict[str, str]) -> int:
    """Prints every option of a config, and where its source left a choice."""
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
    console.table(("option", "value", "meaning"), listing.options(cfg))
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
    slices = [preflight.open_slice(name) for name in options.topology.split(",")]
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
    if not options.json and options.scaling:
        print("\n".join(preflight.scaling_table(reports, options.mfu)))
    elif not options.json and len(reports) == 1:
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
    from vit_jax.prepare import tasks

    logs.setup()
    request = tasks.Request(
        data_dir=options.data_dir,
        sources=tuple(options.sources),
        verify=options.verify,
        holdout=options.holdout,
        max_side=options.max_side,
        against=tuple(name for names in options.against for name in names.split(",")),
        distance=options.distance,
        partial=options.partial,
        workers=options.workers or len(os.sched_getaffinity(0)),
    )
    code = 0
    for name in tasks.names(options.tasks, request):
        try:
            for line in tasks.prepare(name, request):
                print(line, flush=True)
        except config.UserError as error:  # of many tasks the others can still be prepared
            messages.print_error(str(error))
            code = max(code, error.exit_code)
    return code


# What `bench` can measure, and the flags that are of it.
BENCH = {
    "attention": (),
    "startup": (),
    "input": ("data", "threads", "peer_python", "rounds", "feed", "topology"),
    "infer": ("models", "sizes", "output", "rounds", "topology"),
}


def bench(options: argparse.Namespace, overrides: dict[str, str]) -> int:
    """Prints measurements of this machine."""
    _no_overrides("bench", overrides)
    for key in dict.fromkeys(flag for flags in BENCH.values() for flag in flags):
        if getattr(options, key) is not None and key not in BENCH[options.what]:
            of = " or ".join(f"bench {what}" for what, flags in BENCH.items() if key in flags)
            flag = key.replace("_", "-")
            raise config.ConfigError(f"--{flag}={_shown(getattr(options, key))}: is of {of}")
    if options.what == "input":
        return _bench_input(options)
    if options.what == "infer":
        return _bench_fits(options) if options.topology else _bench_infer(options)
    from vit_jax.benchmarks import compute

    header, rows = {"attention": compute.attention, "startup": compute.startup}[options.what]()
    console.table(header, rows)
    return 0


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def _bench_infer(options: argparse.Namespace) -> int:
    import jax

    from vit_jax.benchmarks import forward, infer, infer_files

    device = jax.devices()[0]
    names = options.models or (forward.SMALL if device.platform == "cpu" else forward.PAPER)
    forwards = forward.create(names, options.sizes or forward.SIZES, device.platform)
    if options.output is not None:
        infer_files.check(options.output)
    rounds = options.rounds or infer.ROUNDS
    for line in infer.title(rounds):
        print(line, flush=True)
    results = list(infer.measure(forwards, rounds=rounds, say=_say))
    console.table(*infer.table(results))
    if options.output is not None:
        where = f"{device.device_kind}, vit_jax bench infer"
        for path in infer_files.write_measured(results, options.output, where):
            print(path)
    return 0


def _bench_fits(options: argparse.Namespace) -> int:
    if options.rounds is not None:
        raise config.ConfigError(f"--rounds={options.rounds}: nothing runs with --topology")
    os.environ["JAX_PLATFORMS"] = "cpu"  # what is compiled for need not be here
    from vit_jax import preflight
    from vit_jax.benchmarks import forward, infer, infer_files, max_batch

    if options.topology in ("cpu", "gpu"):
        raise config.ConfigError(
            f"--topology={options.topology}: name a TPU slice, or leave it out to measure here"
        )
    names, sizes = options.models or forward.PAPER, options.sizes or forward.SIZES
    forwards = forward.create(names, sizes, "tpu")
    if options.output is not None:
        infer_files.check(options.output)
    where = preflight.open_slice(options.topology)
    found = list(max_batch.search(forwards, where, _say))
    console.table(*infer.table_of_fits(found))
    if options.output is not None:
        title = f"{options.topology}, by its compiler, vit_jax bench infer"
        for path in infer_files.write_fits(found, options.output, title):
            print(path)
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _bench_input(options: argparse.Namespace) -> int:
    if bool(options.feed) != bool(options.topology):
        raise config.ConfigError("bench input: --feed=MODEL and --topology=SLICE go together")
    from vit_jax.benchmarks import host_cores, input

    if options.feed:  # mistakes cost no minute of measuring
        host_cores.needs(options.feed, options.topology, 1.0)
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
        console.table(("host", ""), host_cores.needs(options.feed, options.topology, per_core))
    return 0


def _no_overrides(verb: str, overrides: dict[str, str]) -> None:
    if overrides:
        raise config.ConfigError(f"--config.{next(iter(overrides))}: {verb} takes no options")
