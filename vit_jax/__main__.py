"""`python -m vit_jax` is the command `vit_jax`."""

import os
import sys

from vit_jax.runtime import signals


def entry() -> None:
    """Runs the command of this process, which hears signals before it imports anything else."""
    signals.listen()
    try:
        from vit_jax import cli

        cli.entry()
    except KeyboardInterrupt:
        sys.stderr.write(f"vit_jax: {signals.last_line()}\n")
        os._exit(signals.stopped())


if __name__ == "__main__":
    entry()
