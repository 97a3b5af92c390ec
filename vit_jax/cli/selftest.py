"""`vit_jax selftest`."""

import argparse

from vit_jax.cli import arguments

HELP = "examine devices for silent data corruption"
TAKES_CONFIG = False
EPILOG = """\
Every device takes the same training steps again and again, alone. A result that differs in a bit
from its other rounds or from another device names the device and its host, and the exit code is
71. In several processes (as for training: JAX_COORDINATOR_ADDRESS, or a TPU slice) it examines all
hosts, and checks that they compile the same program.

  vit_jax selftest                       two rounds, to see that devices and hosts agree
  vit_jax selftest --hours=2 --model=ViT-B/16 --batch=64
"""


def add_arguments(parser: arguments.Parser) -> None:
    parser.add("--hours N", "duration (default: two rounds)", type=arguments.amount, default=0.0)
    parser.add("--model MODEL", "by name", default="ViT-Ti/16")
    parser.add("--batch N", "images per device and step", type=arguments.positive, default=8)


def run(args: argparse.Namespace, overrides: dict[str, str]) -> int:
    """Runs the test; raises Corrupted."""
    from vit_jax.runtime import device, distributed
    from vit_jax.training import selftest

    # Before jax starts its threads.
    device.step_by_step()
    distributed.initialize()
    first = distributed.is_first()
    outcome = selftest.run(
        args.model, batch=args.batch, hours=args.hours, say=print if first else lambda _: None
    )
    if first:
        print(f"{outcome.rounds} rounds in {outcome.seconds:.0f} s: no difference")
    return 0
