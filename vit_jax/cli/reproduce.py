"""`vit_jax reproduce`."""

import argparse
import json
import pathlib

from vit_jax.cli import arguments, tables

HELP = "run a table or figure of the paper, and compare its numbers with the paper's"
TAKES_CONFIG = True
EPILOG = """\
Pre-training runs first, then fine-tuning by the protocol of `vit_jax transfer`. Finished runs in
--workdir are not repeated, and their options that are not the table's are shown; whatever is
missing (private JFT-300M, data that is not prepared) is listed with the command that provides it.
Options such as --config.data.root=DIR --config.data.name=NAME replace JFT-300M by a dataset of
yours. Tables and figures have the names that `list --table` takes.

What the paper concludes from them is tested with small networks by `python -m research.findings`,
in a checkout.

  vit_jax reproduce table5 --dry-run
"""


def add_arguments(parser: arguments.Parser) -> None:
    parser.add(
        "table TABLE",
        "table2, table4 to table9, figure2 to figure5, figure8 (D.2), figure9 (D.3), "
        "figure13 (D.6), masked, home",
    )
    parser.add("--dry-run", "run nothing: print the plan with each run's state")
    parser.add(
        "--workdir DIR", "the folder of all runs (default: runs)", type=arguments.local_output_path
    )
    parser.add("--smoke", "run tiny copies of all runs on random pixels, in runs/smoke")
    arguments.add_output(
        parser, "FILE.md", "also write Markdown, and HTML next to it, with the plot of a figure"
    )
    parser.add("--json", "print one JSON object")


def run(args: argparse.Namespace, overrides: dict[str, str]) -> int:
    from vit_jax.studies import reproduce

    table, code = reproduce.table(args.table), 0
    workdir = args.workdir or pathlib.Path("runs", *(("smoke",) if args.smoke else ()))
    if args.smoke:
        table = reproduce.tiny(table)
    if not args.dry_run:
        code = reproduce.perform(table, workdir, overrides, smoke=args.smoke)
    # After the runs, whose states and results it reads.
    plan = reproduce.TablePlan(table, workdir, overrides, smoke=args.smoke)
    if args.output is not None:
        reproduce.write_document(plan, args.output)
    if args.json:
        print(json.dumps(reproduce.as_dict(plan)))
        return code
    tables.titled(reproduce.blocks(plan))
    return code
