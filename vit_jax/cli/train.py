"""`vit_jax train`."""

import argparse

from vit_jax import config
from vit_jax.cli import arguments, tables
from vit_jax.runtime import logs

HELP = "train a model, or resume a run"
TAKES_CONFIG = True
EPILOG = """\
The same command resumes: a run lives in its --workdir and continues from its newest good
checkpoint, bit for bit. SIGTERM, Ctrl-C or a closed terminal saves first (exit code 75).
"""


def add_arguments(parser: arguments.Parser) -> None:
    arguments.add_config(parser)
    parser.add(
        "--workdir DIR|gs://...",
        "run directory (default: runs/NAME); without a NAME, the run to resume",
        type=arguments.output_path,
    )
    parser.add(
        "--smoke", "two steps of a tiny copy on random pixels, from scratch in runs/smoke/NAME"
    )
    parser.add(
        "--dry-run", "train nothing: check the config and the data, and print what would run"
    )
    parser.add(
        "--profile FIRST:LAST",
        "write a profiler trace of these steps to DIR/profile (TensorBoard, Perfetto)",
        type=arguments.profile,
    )
    parser.add(
        "--accept PART[,PART]",
        "resume although the run's config, data, plugins or teacher changed; it is recorded",
        type=arguments.words,
        default=(),
    )


def run(args: argparse.Namespace, overrides: dict[str, str]) -> int:
    reference = arguments.reference(args.name, args.config)
    if reference is None and args.workdir is None:
        raise config.ConfigError(
            "train: name a config (see `vit_jax list`), or a --workdir to resume"
        )
    if reference is None and args.smoke:
        raise config.ConfigError("--smoke: name a config to try; see `vit_jax list`")
    if args.dry_run and args.smoke:
        raise config.ConfigError("--dry-run: does not go with --smoke, which takes seconds")
    from vit_jax import api

    if args.dry_run:
        shown = api.preview(reference, args.workdir, overrides, accept=args.accept)
        tables.table(("run", ""), shown)
        return 0
    outcome = api.train(
        reference,
        args.workdir,
        overrides,
        smoke=args.smoke,
        profile=args.profile,
        accept=args.accept,
    )
    # Only where a split goes by another name in its dataset.
    rows = [(f"{name}/split", split) for name, split in outcome.splits.items() if name != split]
    rows += [(key, tables.metric(key, value)) for key, value in outcome.results.items()]
    rows += [("checkpoint", outcome.checkpoint)]
    rows += [("steps", f"{outcome.steps:,}"), ("time", logs.duration(outcome.seconds))]
    rows += [(path.name, str(path)) for path in outcome.files]
    tables.table(("result", ""), rows)
    return 0
