"""The argument parser, types of arguments, and the arguments that several commands share."""

import argparse
import difflib
import fnmatch
import functools
import math
import os
import pathlib
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

from vit_jax import config
from vit_jax.config import catalog
from vit_jax.config.options import MOST
from vit_jax.utils import messages, storage

CHECKPOINT = (
    "run directory or one of its checkpoints; weights of Google, Big Transfer, timm or Hugging "
    "Face (.npz, .safetensors, .pth, .msgpack, folder); or a published name, see "
    "`vit_jax list --weights`"
)

Number = TypeVar("Number", int, float)

WORKDIRS = ("output", "output_dir", "out_dir", "save_dir", "log_dir", "logdir")  # elsewhere

CHOICE = re.compile(r"invalid choice: '(.*)' \(choose from (.*)\)")  # argparse's own words


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line with the nearest valid flag."""

    def __init__(
        self, *, prog: str, description: str, epilog: str, usage: str | None = None
    ) -> None:
        # No abbreviations: one in a user's script would break once a second flag begins with it.
        super().__init__(
            prog=prog,
            usage=usage,
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def add(self, words: str, text: str, **settings: Any) -> None:
        """Adds an argument, named as --help shows it: `--top N`, or `images FOLDER` without a flag.

        A flag without a placeholder or choices is a switch. The help ends with the default, unless
        `text` has words for it.
        """
        name, _, placeholder = words.partition(" ")
        if placeholder:
            settings["metavar"] = placeholder
        elif "choices" not in settings:
            settings["action"] = "store_true"
        default = settings.get("default")
        if default not in (None, "", (), []) and "(default" not in text:
            shown = ",".join(default) if isinstance(default, tuple) else default
            text += f" (default: {shown})"
        self.add_argument(name, help=text, **settings)

    def error(self, message: str) -> NoReturn:
        """Prints the mistake and exits with code 2; of a choice, with the nearest one."""
        if found := CHOICE.search(message):
            near = difflib.get_close_matches(found[1], re.findall(r"[\w-]+", found[2]), n=1)
            message += f"; did you mean {near[0]}?" if near else ""
        messages.print_line(f"{self.prog}: {message}; see {self.prog} --help")
        self.exit(2)

    def parse_all(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parses every argument; an unknown flag ends with the nearest one."""
        # Intermixed: positional arguments may also follow flags, as in NAME --smoke NAME.
        args, rest = self.parse_known_intermixed_args(arguments)
        if rest:
            self.error(f"{rest[0]}: no such argument{self._nearest(rest[0])}")
        for flag, action in self._option_string_actions.items():
            value = getattr(args, action.dest, None)
            # As of a variable of the shell that is not set: it would count as if left out.
            if value in ("", ()) and value != action.default:
                self.error(f"argument {flag}: is empty; give it a value, or leave it out")
        return args

    def _nearest(self, argument: str) -> str:
        flag, equals, value = argument.partition("=")
        known = list(self._option_string_actions)
        if not flag.startswith("--"):
            # A folder of images, which other trainers take without a flag.
            folder = "--workdir" in known and os.path.isdir(argument)  # noqa: PTH112 (any text)
            return f"; did you mean --config.data.root={argument}?" if folder else ""
        leaf = flag.removeprefix("--").replace("-", "_")
        # Names of other trainers, too unlike ours for the search below.
        if leaf in WORKDIRS and "--workdir" in known:
            return f"; did you mean --workdir{equals}{value}?"
        close = difflib.get_close_matches(flag.replace("_", "-"), known, n=1, cutoff=0.7)
        command = self.get_default("command")
        meant = None
        # An option of the config typed as a flag, such as --lr for --config.optimizer.lr.
        if command is not None and command.TAKES_CONFIG:
            meant = config.namesake(leaf, value)
            if meant and "--checkpoint" in known:  # which does not read train.batch_size
                own = config.namesake(f"evaluation.{leaf}", value)
                meant = own if own and own[0].startswith("evaluation.") else meant
        if meant and flag not in close and ("--workdir" in known or not close):
            key, value = meant
            value = f"'{value}'" if " " in value else value
            return f"; did you mean --config.{key}{equals}{value}?"
        return f"; did you mean {close[0]}?" if close else ""


def add_config(parser: Parser) -> None:
    """Adds NAME and --config, which name a config."""
    parser.add("name NAME", "config name; see `vit_jax list`", nargs="?")
    parser.add("--config FILE.py:NAME", "config name, or a config in a file of yours")


def add_checkpoint(parser: Parser, default: str | None = None) -> None:
    """Adds --checkpoint, which is required without a default, and --step."""
    parser.add("--checkpoint RUN_OR_FILE", CHECKPOINT, default=default, required=default is None)
    parser.add(
        "--step N|best|newest",
        "which checkpoint of a run (default: the best where a validation split chose one, "
        "else the newest)",
        type=step,
    )


def add_output(parser: Parser, placeholder: str, text: str, **settings: Any) -> None:
    """Adds --output, which names a file or folder on a disk to write."""
    parser.add(f"--output {placeholder}", text, type=local_output_path, **settings)


def add_seed(parser: Parser) -> None:
    """Adds --seed, which draws the images to show."""
    parser.add("--seed N", "seed that draws the images", type=seed, default=0)


def reference(name: str | None, file: str | None) -> str | None:
    """The config that NAME or --config names, or None."""
    if name and file:
        raise config.ConfigError(f"--config={file}: {name} is given already; keep one of them")
    return name or file


def matching_names(patterns: Sequence[str]) -> list[str]:
    """Config names, each once, with patterns such as `vtab/*` replaced by those they match."""
    names = []
    for pattern in patterns:
        # A plain name is kept even if unknown: its own error suggests the nearest.
        if not set("*?[") & set(pattern):
            names.append(pattern)
            continue
        found = [name for name in catalog.names() if fnmatch.fnmatchcase(name, pattern)]
        if not found:
            raise config.ConfigError(f"{pattern}: no config has such a name; see `vit_jax list`")
        names += found
    return list(dict.fromkeys(names))


def profile(text: str) -> tuple[int, int]:
    """The first and last step of FIRST:LAST."""
    first, colon, last = text.partition(":")
    if not (colon and first.isdigit() and last.isdigit()):
        raise argparse.ArgumentTypeError(f"{text}: must be FIRST:LAST, such as 10:15")
    return int(first), int(last)


def _path(text: str, *, remote: bool = False, written: bool = False) -> pathlib.Path:
    """A path on a disk or, if `remote`, in a bucket; one that is `written` is valid UTF-8."""
    if written and not messages.is_utf8(text):  # neither Orbax nor Arrow can open others
        raise argparse.ArgumentTypeError(
            f"{messages.printable(text)}: is not UTF-8; choose another name"
        )
    if why := storage.path_problem(text, remote=remote):
        raise argparse.ArgumentTypeError(f"{text}: {why}" if text else why)
    return storage.as_path(text)


local_path = _path
path = functools.partial(_path, remote=True)
local_output_path = functools.partial(_path, written=True)
output_path = functools.partial(_path, remote=True, written=True)


def step(text: str) -> int | str:
    """A step number, `best` or `newest`."""
    if text in ("best", "newest"):
        return text
    if text.isdecimal():
        return int(text)
    raise argparse.ArgumentTypeError(f"{text}: must be a step number, best or newest")


def words(text: str) -> tuple[str, ...]:
    """Words, each once."""
    # A dict, which keeps the order of the user; a set does not.
    return tuple(dict.fromkeys(word for word in text.split(",") if word))


def _several(
    kind: type[Number], fits: Callable[[Number], bool], what: str
) -> Callable[[str], tuple[Number, ...]]:
    def read(text: str) -> tuple[Number, ...]:
        try:
            found = tuple(kind(word) for word in text.split(","))
        except ValueError:
            found = ()
        # int() also takes signs, spaces, underscores and the digits of other scripts.
        plain = kind is float or (text.replace(",", "").isdecimal() and text.isascii())
        if not (found and plain and all(map(fits, found))):
            raise argparse.ArgumentTypeError(f"{text}: must be {what}")
        return tuple(dict.fromkeys(found))

    return read


def _one(kind: type[Number], fits: Callable[[Number], bool], what: str) -> Callable[[str], Number]:
    several = _several(kind, fits, what)

    def read(text: str) -> Number:
        if "," in text:
            raise argparse.ArgumentTypeError(f"{text}: must be {what}")
        return several(text)[0]

    return read


positive = _one(int, lambda n: 1 <= n <= MOST, f"a number, at least 1, at most {MOST:.0e}")
holdout = _one(float, lambda x: 0 <= x < 1, "at least 0 and below 1, such as 0.1")
fraction = _one(float, lambda x: 0 < x <= 1, "above 0 and at most 1, such as 0.4")
amount = _one(float, lambda x: 0 < x < math.inf, "a number above 0, such as 1.5")
port = _one(int, lambda n: 0 <= n < 2**16, "a port, 1 to 65535")
seed = _one(int, lambda n: 0 <= n < 2**32, "one seed, such as 0")
seeds = _several(int, lambda n: 0 <= n < 2**32, "seeds, such as 0,1,2")
# Sides of images in pixels, or counts of threads.
numbers = _several(int, lambda n: 0 < n <= 4096, "numbers, such as 64,224")
learning_rates = _several(float, lambda x: 0 < x < math.inf, "learning rates, such as 0.003,0.01")
