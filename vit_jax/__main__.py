"""`python -m vit_jax` is the command `vit_jax`."""

import contextlib
import os
import sys

TUNABLES, LARGE_PAGES = "GLIBC_TUNABLES", "glibc.malloc.hugetlb"


def entry() -> None:
    """Runs the command of this process, which hears signals before it imports anything else."""
    try:
        from vit_jax.runtime import signals

        if sys.argv[1:] and sys.argv[1] not in signals.WITHOUT_DEVICES:
            _use_large_pages()
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


def _use_large_pages() -> None:
    """Starts the process again, if need be, with transparent huge pages for large blocks.

    XLA's CPU client maps the temporary buffers of every step anew, 1.2 GB for `cifar10/ViT-6_4`: in
    pages of 4 KiB, the kernel takes an eighth of the CPU time to clear them. Kept in glibc's heap
    instead, they leave gaps that the next step does not fit: three times the memory. glibc (2.35 or
    later) reads this setting when a process begins, and at no other time.
    """
    chosen = os.environ.get(TUNABLES, "")
    if sys.platform == "linux" and LARGE_PAGES not in chosen:
        settings = [*filter(None, [chosen]), f"{LARGE_PAGES}=1"]
        os.environ[TUNABLES] = ":".join(settings)
        with contextlib.suppress(OSError, ValueError):  # forbidden: small pages will do
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606


if __name__ == "__main__":
    entry()
