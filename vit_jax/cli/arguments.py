"""Argument types for argparse, and the arguments that several commands share."""

import argparse
import fnmatch
import math
import pathlib
from collections.abc import Sequence

from vit_jax import config
from vit_jax.config import catalog
from vit_jax.utils import messages, storage

CHECKPOINT = (
    "run directory or one of its checkpoints; weights of Google, Big Transfer, timm or Hugging "
    "Face (.npz, .safetensors, folder); or a published name, see `vit_jax list --weights`"
)


def add_config(parser: argparse.ArgumentParser) -> None:
    """Adds NAME and --config, which name a config."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="config name; see `vit_jax list`")
    parser.add_argument(
        "--config", metavar="FILE.py:NAME", help="the same, also from a file of yours"
    )


def add_checkpoint(parser: argparse.ArgumentParser) -> None:
    """Adds --checkpoint and --step."""
    parser.add_argument("--checkpoint", required=True, metavar="RUN_OR_FILE", help=CHECKPOINT)
    parser.add_argument(
        "--step",
        type=step,
        metavar="N|best|newest",
        help="which checkpoint of a run (default: the best where a validation split chose one, "
        "else the newest)",
    )


def add_seed(parser: argparse.ArgumentParser) -> None:
    """Adds --seed, which draws the images to show."""
    parser.add_argument(
        "--seed", type=seed, default=0, metavar="N", help="seed that draws the images (default: 0)"
    )


def reference(name: str | None, file: str | None) -> str | None:
    """The config that NAME or --config names, or None."""
    if name and file:
        raise config.ConfigError(f"--config={file}: {name} is given already; keep one of them")
    return name or file


def matching_names(patterns: Sequence[str]) -> list[str]:
    """Config names, with patterns such as `vtab/*` replaced by the names they match."""
    names = []
    for pattern in patterns:
        if not set("*?[") & set(pattern):
            names.append(pattern)
            continue
        found = [name for name in catalog.names() if fnmatch.fnmatchcase(name, pattern)]
        if not found:
            raise config.ConfigError(f"{pattern}: no config has such a name; see `vit_jax list`")
        names += found
    return names


def profile(text: str) -> tuple[int, int]:
    """The first and last step of FIRST:LAST."""
    first, colon, last = text.partition(":")
    if not (colon and first.isdigit() and last.isdigit()):
        raise argparse.ArgumentTypeError(f"{text}: must be FIRST:LAST, such as 10:15")
    return int(first), int(last)


def local_path(text: str) -> pathlib.Path:
    """A path on a disk."""
    return _path(text, remote=False)


def path(text: str) -> pathlib.Path:
    """A path on a disk or in a bucket."""
    return _path(text, remote=True)


def _path(text: str, *, remote: bool) -> pathlib.Path:
    if why := storage.path_problem(text, remote=remote):
        raise argparse.ArgumentTypeError(f"{text}: {why}")
    return storage.as_path(text)


def local_output_path(text: str) -> pathlib.Path:
    """A path on a disk to write to."""
    return local_path(_check_utf8(text))


def output_path(text: str) -> pathlib.Path:
    """A path on a disk or in a bucket to write to."""
    return path(_check_utf8(text))


def _check_utf8(text: str) -> str:
    """Rejects names that neither Orbax nor Arrow can open, before anything is computed."""
    if not messages.is_utf8(text):
        raise argparse.ArgumentTypeError(
            f"{messages.printable(text)}: is not UTF-8; choose another name"
        )
    return text


def step(text: str) -> int | str:
    """A step number, `best` or `newest`."""
    if text in ("best", "newest"):
        return text
    if text.isdecimal():
        return int(text)
    raise argparse.ArgumentTypeError(f"{text}: must be a step number, best or newest")


def positive(text: str) -> int:
    """A number that is at least 1."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be a number, at least 1")
    return int(text)


def holdout(text: str) -> float:
    """A fraction to hold out: at least 0, below 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be at least 0 and below 1, such as 0.1")
    return value


def port(text: str) -> int:
    """The number of a TCP port."""
    if not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text}: must be a port, 1 to 65535")
    return int(text)


def learning_rates(text: str) -> tuple[float, ...]:
    """Learning rates, each once."""
    try:
        found = tuple(float(word) for word in text.split(","))
    except ValueError:
        found = ()
    if not found or not all(0 < rate < float("inf") for rate in found):
        raise argparse.ArgumentTypeError(f"{text}: must be learning rates, such as 0.003,0.01")
    return tuple(dict.fromkeys(found))


def seeds(text: str) -> tuple[int, ...]:
    """Seeds, each once."""
    words = text.split(",")
    if not all(word.isdigit() and int(word) < 2**32 for word in words):
        raise argparse.ArgumentTypeError(f"{text}: must be seeds, such as 0,1,2")
    return tuple(dict.fromkeys(int(word) for word in words))


def seed(text: str) -> int:
    """One seed."""
    found = seeds(text)
    if len(found) != 1:
        raise argparse.ArgumentTypeError(f"{text}: must be one seed, such as 0")
    return found[0]


def words(text: str) -> tuple[str, ...]:
    """Words, each once."""
    return tuple(dict.fromkeys(word for word in text.split(",") if word))


def image_sizes(text: str) -> tuple[int, ...]:
    """Sides of square images in pixels, each once."""
    words = text.split(",")
    if not all(word.isdigit() and 0 < int(word) <= 4096 for word in words):
        raise argparse.ArgumentTypeError(f"{text}: must be sides in pixels, such as 64,224")
    return tuple(dict.fromkeys(int(word) for word in words))


def fraction(text: str) -> float:
    """A number above 0 and at most 1."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text}: must be a share of peak such as 0.4")
    return value


def amount(text: str) -> float:
    """A finite number above 0, such as a price or hours."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: must be a number above 0, such as 1.5")
    return value
