"""`vit_jax preflight`."""

import argparse
import json
import os
import sys
from collections.abc import Iterable

from vit_jax import config
from vit_jax.cli import arguments, tables
from vit_jax.config import catalog

# Options on which the images of an epoch depend.
IMAGES = ("source", "name", "train_split", "examples", "classes", "exclude", "holdout")
HELP = "compile a run for a TPU slice, from any machine: memory, FLOPs, days"
TAKES_CONFIG = True
EPILOG = """\
Nothing runs and no data is read; the TPU compiler comes with pip install 'vit_jax[tpu]'. With
several runs or slices the result is a Markdown table of settings; peak GiB per device; core-days;
with --price, cost.
"""


def add_arguments(parser: arguments.Parser) -> None:
    parser.add("names NAME", "config names; see `vit_jax list`", nargs="*")
    parser.add("--table T", "instead of names: those of a paper table")
    parser.add(
        "--topology SLICE,...",
        "v3:8x8 in chips, v3-128 by Google's name; v2 to v6e, tpu7x:2x2x1; cpu, gpu",
        required=True,
    )
    parser.add("--fit", "search accumulation x rematerialization x fsdp for the fastest that fits")
    parser.add(
        "--loops",
        "with --fit: only programs that loop over layers; they compile several times faster",
    )
    parser.add(
        "--scaling", "print the bytes that devices send in a step, and the scaling efficiency"
    )
    parser.add(
        "--mfu SHARE",
        "share of peak FLOP/s to estimate days with (default: that of public runs of the "
        "nearest width)",
        type=arguments.fraction,
    )
    parser.add(
        "--price AMOUNT",
        "price of a chip per hour, in any currency, to print the cost of the whole run",
        type=arguments.amount,
    )
    parser.add(
        "--examples N",
        "images of an epoch, if the config does not say, or of other data",
        type=arguments.positive,
    )
    parser.add(
        "--output FILE.jsonl",
        "keep every result in a file; what this jax and libtpu compiled is not compiled again",
        type=arguments.local_output_path,
    )
    parser.add("--json", "print one JSON object per result")


def run(args: argparse.Namespace, overrides: dict[str, str]) -> int:
    """Prints the compiler's memory, FLOPs and cost of runs; 78 if one does not fit."""
    if bool(args.names) == bool(args.table):
        raise config.ConfigError("preflight: name a config (see `vit_jax list`), or a --table")
    if args.loops and not args.fit:
        raise config.ConfigError("--loops: restricts what --fit searches; add --fit")
    if args.scaling and (args.json or args.price is not None):
        other = "--json" if args.json else f"--price={args.price:g}"
        raise config.ConfigError(f"{other}: does not go with the table of --scaling")
    if args.topology != "gpu":  # the target device need not be here
        os.environ["JAX_PLATFORMS"] = "cpu"
    from vit_jax import preflight
    from vit_jax.pages import listing

    slices = [preflight.open_slice(name) for name in args.topology.split(",")]
    names = args.names or [e.name for e in listing.entries(table=args.table)]
    runs, reports = [_run(name, overrides, args.examples) for name in names], []
    for report in preflight.measure_all(
        runs,
        slices,
        fit=args.fit,
        loops=args.loops,
        output=args.output,
        say=lambda text: print(text, file=sys.stderr, flush=True),
        teachers=_teachers(cfg for cfg, _ in runs),
    ):
        reports.append(report)
        if args.json:
            # Flushed, as the next report may take minutes.
            print(json.dumps(preflight.as_dict(report, args.mfu, args.price)), flush=True)
    if not args.json and args.scaling:
        print("\n".join(preflight.scaling_table(reports, args.mfu)))
    elif not args.json and len(reports) == 1:
        rows = preflight.lines(reports[0], args.mfu, args.price)
        if args.fit:
            rows.append(("flags", reports[0].settings.flags()))
        tables.table(("preflight", ""), rows)
    elif not args.json:
        printed = {name: catalog.about(name).core_days for name in names}
        print("\n".join(preflight.markdown(reports, args.mfu, printed, args.price)))
    return 0 if all(report.fits for report in reports) else 78


def _teachers(cfgs: Iterable[config.Config]) -> dict[str, config.Config]:
    names = {str(one.teacher) for cfg in cfgs if (one := cfg.distillation) is not None}
    if not names:
        return {}
    from vit_jax.inference import loading

    facts = {name: loading.describe_checkpoint(name) for name in sorted(names)}
    return {name: config.Config(model=one.model, data=one.data) for name, one in facts.items()}


def _run(name: str, overrides: dict[str, str], examples: int | None) -> tuple[config.Config, int]:
    from vit_jax import preflight
    from vit_jax.runtime import logs
    from vit_jax.training import run_config

    cfg = config.build(config.override(run_config.named_values(name, overrides), overrides))
    own = config.build(catalog.load_values(name))
    run_config.check_read(cfg, overrides)
    # The catalog knows the number of images of the config's own data alone.
    other = any(getattr(cfg.data, key) != getattr(own.data, key) for key in IMAGES)
    cfg, images = preflight.prepare_config(cfg), catalog.about(name).images
    ends = {f"data.phases.{phase.name}.until": phase.until for phase in cfg.data.phases}
    # Steps and examples need no number of images.
    ends = {what: end for what, end in {"its length": cfg.train.duration, **ends}.items()
            if end.unit == "epochs"}  # fmt: skip
    if examples is None and images is None and ends:
        (what, end), *_ = ends.items()
        raise config.ConfigError(
            f"{name}: {what} is {end} and its number of images is not known; set --examples=N"
        )
    if examples is None and other and ends:
        logs.log.warning(
            "%s: epochs are of %s images, as of the config's own data; set --examples=N for others",
            name,
            f"{images:,}",
        )
    # Any number will do: without one, nothing here is counted in epochs.
    return cfg, examples or images or 1
