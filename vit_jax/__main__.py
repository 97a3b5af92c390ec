"""`python -m vit_jax` is the command `vit_jax`."""

from vit_jax.cli import entry

if __name__ == "__main__":
    entry()
