"""`python -m vit_jax` is the command `vit_jax`."""

import os


def entry() -> None:
    """Runs the command of this process, which hears signals before it imports anything else."""
    try:
        from vit_jax.runtime import signals

        signals.listen()
    except KeyboardInterrupt:  # the import takes some milliseconds itself
        os.write(2, b"vit_jax: interrupted\n")
        os._exit(130)
    try:
        from vit_jax import cli

        cli.entry()
    except KeyboardInterrupt:
        os.write(2, f"vit_jax: {signals.last_line()}\n".encode())
        os._exit(signals.stopped())


if __name__ == "__main__":
    entry()
