"""What an argument of the command line may be; what it may not is one line."""

import argparse
import pathlib

from vit_jax import messages


def profile(text: str) -> tuple[int, int]:
    """Returns the first and last step of FIRST:LAST."""
    first, colon, last = text.partition(":")
    if not (colon and first.isdigit() and last.isdigit()):
        raise argparse.ArgumentTypeError(f"{text}: must be FIRST:LAST, such as 10:15")
    return int(first), int(last)


def local(text: str) -> pathlib.Path:
    """Returns a path on a disk."""
    if "://" in text:
        raise argparse.ArgumentTypeError(
            f"{text}: must be on a disk; mount the bucket (gcsfuse), or a disk all hosts share"
        )
    return pathlib.Path(text)


def place(text: str) -> pathlib.Path:
    """Returns a path on a disk or in a bucket."""
    if not text.startswith("gs://"):
        return local(text)
    from vit_jax import storage  # only where it is wanted: it costs time

    return storage.as_path(text)


def local_output(text: str) -> pathlib.Path:
    """Returns a path on a disk to write to."""
    return local(_utf8(text))


def output(text: str) -> pathlib.Path:
    """Returns a path on a disk or in a bucket to write to."""
    return place(_utf8(text))


def _utf8(text: str) -> str:
    """Refuses names that neither Orbax nor Arrow can open, before anything is computed."""
    if not messages.is_utf8(text):
        raise argparse.ArgumentTypeError(
            f"{messages.printable(text)}: is not UTF-8; choose another name"
        )
    return text


def step(text: str) -> int | str:
    """Returns a step number, or best."""
    if text == "best" or text.isdigit():
        return text if text == "best" else int(text)
    raise argparse.ArgumentTypeError(f"{text}: must be a step number or best")


def positive(text: str) -> int:
    """Returns a number that is at least 1."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be a number, at least 1")
    return int(text)


def part(text: str) -> float:
    """Returns a share of a whole that may be none of it."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be a share from 0 on, below 1")
    return found


def port(text: str) -> int:
    """Returns the number of a TCP port."""
    if not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text}: must be a port, 1 to 65535")
    return int(text)


def rates(text: str) -> tuple[float, ...]:
    """Returns learning rates."""
    try:
        found = tuple(float(word) for word in text.split(","))
    except ValueError:
        found = ()
    if not found or not all(0 < rate < float("inf") for rate in found):
        raise argparse.ArgumentTypeError(f"{text}: must be learning rates, such as 0.003,0.01")
    return tuple(dict.fromkeys(found))


def seeds(text: str) -> tuple[int, ...]:
    """Returns seeds."""
    words = text.split(",")
    if not all(word.isdigit() and int(word) < 2**32 for word in words):
        raise argparse.ArgumentTypeError(f"{text}: must be seeds, such as 0,1,2")
    return tuple(dict.fromkeys(int(word) for word in words))


def seed(text: str) -> int:
    """Returns one seed."""
    found = seeds(text)
    if len(found) != 1:
        raise argparse.ArgumentTypeError(f"{text}: must be one seed, such as 0")
    return found[0]


def words(text: str) -> tuple[str, ...]:
    """Returns words, each once."""
    return tuple(dict.fromkeys(word for word in text.split(",") if word))


def sides(text: str) -> tuple[int, ...]:
    """Returns sides of images, in pixels."""
    words = text.split(",")
    if not all(word.isdigit() and 0 < int(word) <= 4096 for word in words):
        raise argparse.ArgumentTypeError(f"{text}: must be sides in pixels, such as 64,224")
    return tuple(dict.fromkeys(int(word) for word in words))


def share(text: str) -> float:
    """Returns a share of a whole."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text}: must be a share of peak such as 0.4")
    return value
