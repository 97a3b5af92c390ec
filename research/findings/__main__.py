"""`python -m research.findings`, from a checkout."""

import argparse
import json
import pathlib
import shlex
import sys

from research import findings
from vit_jax import cli, config
from vit_jax.cli import arguments, tables
from vit_jax.studies import devices

PROG = "python -m research.findings"
HELP = "re-derive what the paper concludes with small networks on CIFAR"
TAKES_CONFIG = True
EPILOG = """\
Each finding has seeds, 95 % intervals and a verdict. Cells that are recorded are not repeated.

  python -m research.findings --dry-run                    every cell, with its estimated time
  python -m research.findings --only=positions,pooling --parallel=2 --config.data.root=DIR
  python -m research.findings --verify=3 --config.data.root=DIR    repeat three recorded cells
  python -m research.findings --verify=3 --config.data.root=DIR --copies=webp \\
      --records=docs/records/findings.jsonl                        of those in the repository
"""


def add_arguments(parser: arguments.Parser) -> None:
    """Adds the command's arguments."""
    parser.add(
        "--only NAME,...",
        "findings, by name or pattern (default: all): attention-distance, rows-and-columns, "
        "positions, pooling, little-data, regularization, shape, masked, hybrids, compute, adam",
    )
    parser.add(
        "--scale cpu|cpu-long|gpu",
        "cpu: two cores, some 12 hours in all; cpu-long: some 80; gpu: one GPU, at most a day",
        default="cpu",
    )
    parser.add(
        "--copies NAME",
        "train on re-encoded copies, the datasets cifar10_NAME and cifar100_NAME",
        default="",
    )
    parser.add(
        "--workdir DIR",
        "the folder of all runs (default: runs/findings/SCALE)",
        type=arguments.local_output_path,
    )
    parser.add(
        "--records FILE.jsonl",
        "where each cell adds a line (default: findings.jsonl in --workdir)",
        type=arguments.local_output_path,
    )
    parser.add("--parallel N", "cells at a time", type=arguments.positive, default=1)
    parser.add(
        "--verify N",
        "repeat N recorded cells drawn at random; exit code 70 if one is not within what "
        "the seeds allow",
        type=arguments.positive,
    )
    parser.add("--dry-run", "run nothing: print every cell with its state")
    arguments.add_output(
        parser, "FILE.md", "also write Markdown with pictures, and HTML next to it"
    )
    parser.add("--json", "print one JSON object")


def run(args: argparse.Namespace, overrides: dict[str, str]) -> int:
    """Runs the cells that are not recorded, and prints the verdicts."""
    if args.verify and args.dry_run:
        raise config.ConfigError("--verify: runs cells; leave out --dry-run")
    size = findings.scale(args.scale)
    names = findings.select(args.only)
    workdir = args.workdir or pathlib.Path("runs", "findings", size.name)
    records = findings.open_records(args.records or workdir / "findings.jsonl")
    arms = findings.Arms(size, args.copies)
    study = findings.FindingsStudy(
        size, findings.declare(arms), records, workdir, overrides, only=names
    )
    if args.dry_run and args.records and not args.records.exists():
        print(f"--records={args.records}: not there yet; no cell is recorded", file=sys.stderr)
    if args.verify:
        return _verify(args, study)
    if not args.dry_run:
        findings.check_data(study)
        study.perform(_shares(args.parallel))
    if args.output is not None:
        findings.write(study, args.output, _command(args))
    if args.json:
        print(json.dumps(findings.as_dict(study)))
        return 0
    tables.titled(findings.blocks(study, planned=args.dry_run))
    return 0


def _verify(args: argparse.Namespace, study: findings.FindingsStudy) -> int:
    findings.check_data(study)
    repeated = findings.verify(study, args.verify, _shares(args.parallel))
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


def _shares(parallel: int) -> list[dict[str, str]]:
    return findings.one_core_each(devices.shares(parallel))


def _command(args: argparse.Namespace) -> str:
    words = [*shlex.split(PROG), *([f"--scale={args.scale}"] if args.scale != "cpu" else [])]
    words += [f"--copies={args.copies}"] if args.copies else []
    return f"{shlex.join(words)} \\\n    --config.data.root=DIR"


if __name__ == "__main__":
    cli.entry(sys.modules[__name__])
