"""`vit_jax transfer`."""

import argparse
import json
from typing import Any

from vit_jax import config
from vit_jax.cli import arguments, tables

HELP = "fine-tune by the paper's protocol: choose a learning rate, train with it, test once"
TAKES_CONFIG = True
EPILOG = """\
Every learning rate of the config, with --try every combination with values of other options, is
measured on the validation split or, without one, on training images held out for it. The best
setting is trained on all training images, once per seed, and measured once on the test images,
which are not read before. With several --choose-seeds their mean decides, and the lowest rate
within one standard error of the best is taken; a rate that diverges with any seed is excluded.
Means are printed with 95 % confidence intervals over seeds (Student's t) and the number of seeds.
Each cell is a run directory below DIR; the same command continues where it was stopped or killed.
DIR/transfer.json and its page transfer.html (and .md) hold the results.

  vit_jax transfer finetune/ViT-B_16-i21k-cifar10
  vit_jax transfer 'vtab/ViT-L_16-i21k-*' --parallel=4
  vit_jax transfer image_folder --rates=0.001,0.003 --try=optimizer.weight_decay=0.01,0.1 \\
      --try=train.mixup=0,0.2 --draws=5 --config.data.root=DIR
  vit_jax transfer image_folder --rates=0.003,0.01,0.03 --config.data.root=DIR \\
      --config.init_from=augreg/ViT-S_16 --config.optimizer.name=sgd
"""


def add_arguments(parser: arguments.Parser) -> None:
    parser.add("names NAME", "config names or patterns; see `vit_jax list`", nargs="+")
    parser.add(
        "--workdir DIR",
        "where the cells' run directories are (default: runs/NAME; of several, DIR/NAME)",
        type=arguments.local_output_path,
    )
    parser.add(
        "--rates LR,...",
        "learning rates to choose among (default: the config's)",
        type=arguments.learning_rates,
        default=(),
    )
    parser.add(
        "--try OPTION=VALUE,...",
        "values of another option to choose among, with every rate; of several, every "
        "combination. Semicolons separate values that have commas",
        dest="search",
        action="append",
        type=_tried,
        default=[],
    )
    parser.add(
        "--draws N",
        "try N of the combinations, drawn by the config's seed (default: all)",
        type=arguments.positive,
    )
    parser.add(
        "--seeds N,...",
        "seeds of the final runs (default: the config's, mostly 0,1,2)",
        type=arguments.seeds,
        default=(),
    )
    parser.add(
        "--choose-seeds N,...",
        "seeds to try each learning rate with (default: the config's, which for the paper's "
        "rows is one run per rate, as in the paper)",
        type=arguments.seeds,
        default=(),
    )
    parser.add(
        "--parallel N",
        "cells at a time, each on its share of the devices (default: 1, on all of them)",
        type=arguments.positive,
        default=1,
    )
    parser.add(
        "--smoke",
        "the whole protocol on tiny copies and random pixels, from scratch in runs/smoke/NAME",
    )
    parser.add("--dry-run", "run nothing: print the cells and their state")
    parser.add("--json", "print one line of JSON per config")


def _tried(text: str) -> tuple[str, tuple[str, ...]]:
    key, equals, values = text.partition("=")
    if not (key and equals and values):
        raise argparse.ArgumentTypeError(
            f"{text}: must be OPTION=VALUE,... such as optimizer.weight_decay=0.01,0.1"
        )
    return key, tuple(values.split(";" if ";" in values else ","))


def run(args: argparse.Namespace, overrides: dict[str, str]) -> int:
    if args.draws and not args.search:
        raise config.ConfigError(f"--draws={args.draws}: draws combinations of --try; add --try")
    if len(dict(args.search)) < len(args.search):
        raise config.ConfigError("--try: names an option twice; give all its values at once")
    if args.dry_run and args.smoke:
        raise config.ConfigError("--dry-run: does not go with --smoke, which always starts over")
    from vit_jax.training import run_config

    names = arguments.matching_names(args.names)
    starts = []
    for name in names:  # a mistake in the last one is reported before the first one runs
        given = args.workdir / name if args.workdir and len(names) > 1 else args.workdir
        starts.append((name, run_config.start(name, overrides, given, tiny=args.smoke)[1]))
    from vit_jax.studies import transfer

    choices = {
        "rates": args.rates,
        "search": dict(args.search),
        "draws": args.draws,
        "choose_seeds": args.choose_seeds,
        "seeds": args.seeds,
        "tiny": args.smoke,
    }
    plans = [
        (transfer.create_plan(name, overrides, **choices), workdir) for name, workdir in starts
    ]
    if args.dry_run:
        for plan, workdir in plans:
            _preview(transfer.preview(plan, workdir), as_json=args.json)
        return 0
    finished = []
    for plan, workdir in plans:
        finished.append(transfer.transfer(plan, workdir, parallel=args.parallel))
        if args.json:
            print(json.dumps(finished[-1]), flush=True)
        else:
            tables.table(*transfer.table(finished[-1]))
            if "=" in (selected := finished[-1]["selected"])["setup"]:
                print(f"\nchosen: {selected['setup']} optimizer.lr={selected['lr']:g}")
            print(f"\n{workdir / 'transfer.md'}\n", flush=True)
    for model, means in transfer.vtab_means(finished).items():
        if args.json:
            print(json.dumps({"name": model, "results": means}))
        else:
            tables.table(*transfer.spreads(model, means))
    return 0


def _preview(planned: dict[str, Any], *, as_json: bool) -> None:
    from vit_jax.runtime import logs
    from vit_jax.studies import transfer

    if as_json:
        print(json.dumps(planned))
        return
    tables.table(*transfer.preview_table(planned))
    tried = {cell["directory"]: cell["setup"] for cell in planned["cells"]}
    for place, setup in tried.items():
        if "=" in setup and place.startswith("choose/"):
            print(f"{place}: {setup}")
    left = transfer.time_left(planned)
    if left:
        print(f"\nabout {logs.duration(left)} left, one cell at a time")
    print()
