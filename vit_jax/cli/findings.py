"""`vit_jax reproduce findings`."""

import argparse
import json
import pathlib
import shlex
import sys

from vit_jax import config
from vit_jax.cli import arguments, tables

NAME = "findings"
ONLY = ("only", "scale", "copies", "records", "parallel", "verify")  # options of findings alone


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `reproduce findings`."""
    group = parser.add_argument_group("findings")
    group.add_argument(
        "--only",
        metavar="NAME,...",
        help="findings, by name or pattern (default: all): attention-distance, rows-and-columns, "
        "positions, pooling, little-data, regularization, shape, masked, hybrids, compute, adam",
    )
    group.add_argument(
        "--scale",
        metavar="cpu|gpu",
        help="cpu: two cores, some 12 hours in all; gpu: one GPU, at most a day (default: cpu)",
    )
    group.add_argument(
        "--copies",
        metavar="NAME",
        help="train on re-encoded copies, the data sets cifar10_NAME and cifar100_NAME",
    )
    group.add_argument(
        "--records",
        type=arguments.local_output_path,
        metavar="FILE.jsonl",
        help="where each cell adds a line (default: findings.jsonl in --workdir)",
    )
    group.add_argument(
        "--parallel", type=arguments.positive, metavar="N", help="cells at a time (default: 1)"
    )
    group.add_argument(
        "--verify",
        type=arguments.positive,
        metavar="N",
        help="repeat N recorded cells drawn at random; exit code 70 if one is not within what "
        "the seeds allow",
    )


def check(args: argparse.Namespace) -> None:
    """Raises ConfigError for options that go with tables alone, or with findings alone."""
    if args.table == NAME:
        if args.smoke:
            raise config.ConfigError("--smoke: is for tables and figures; see --dry-run and --only")
        if args.verify and args.dry_run:
            raise config.ConfigError("--verify: runs cells; leave out --dry-run")
        return
    for option in ONLY:
        if getattr(args, option) is not None:
            raise config.ConfigError(f"--{option}: is for `vit_jax reproduce {NAME}`")


def run(args: argparse.Namespace, overrides: dict[str, str]) -> int:
    """Runs the cells of findings that are not recorded, and prints the verdicts."""
    from vit_jax import findings
    from vit_jax.runtime import logs

    if not args.dry_run:
        logs.setup()
    size = findings.scale(args.scale or "cpu")
    names = findings.select(args.only)
    workdir = args.workdir or pathlib.Path("runs", NAME, size.name)
    records = findings.Records(args.records or workdir / "findings.jsonl")
    arms = findings.Arms(size, args.copies or "")
    study = findings.Study(size, findings.declare(names, arms), records, overrides)
    if args.dry_run and args.records and not args.records.exists():
        print(f"--records={args.records}: not there yet; no cell is recorded", file=sys.stderr)
    if args.verify:
        return _verify(args, study, workdir)
    if not args.dry_run:
        findings.check_data(study)
        findings.perform(study, workdir, _places(args.parallel or 1))
    if args.output is not None:
        findings.write(study, args.output, _command(args))
    if args.json:
        print(json.dumps(findings.as_dict(study)))
        return 0
    for title, block in findings.blocks(study, planned=args.dry_run):
        print(title)
        tables.table(block.header, block.rows)
        print(f"{block.caption}\n" if block.caption else "")
    return 0


def _verify(args: argparse.Namespace, study, workdir: pathlib.Path) -> int:
    from vit_jax import findings

    findings.check_data(study)
    repeated = findings.verify(study, workdir, args.verify, _places(args.parallel or 1))
    if args.json:
        values = [one.__dict__ | {"good": one.good} for one in repeated]
        print(json.dumps({"cells": values}))
    else:
        rows = [
            (
                one.directory,
                one.measure,
                f"{one.recorded:.4f}",
                "diverged" if one.repeated is None else f"{one.repeated:.4f}",
                f"{one.low:.4f} to {one.high:.4f}",
                "good" if one.good else "outside",
            )
            for one in repeated
        ]
        header = ("cell", "measure", "recorded", "repeated", "95 % of seeds", "")
        tables.table(header, rows)
    return 0 if all(one.good for one in repeated) else 70


def _places(parallel: int) -> list[dict[str, str]]:
    from vit_jax import findings, transfer_learning

    return findings.places(transfer_learning.shares(parallel))


def _command(args: argparse.Namespace) -> str:
    words = ["vit_jax", "reproduce", NAME]
    words += [f"--scale={args.scale}"] if args.scale else []
    words += [f"--copies={args.copies}"] if args.copies else []
    return f"{shlex.join(words)} \\\n    --config.data.root=DIR"
