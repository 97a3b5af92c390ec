"""Splits of a dataset: expressions such as `train[:80%]`, and names that mean the same split."""

import re
from collections.abc import Collection
from typing import NamedTuple

from vit_jax.config import ConfigError

TRAIN = ("train", "training")
VALIDATION = ("validation", "val", "valid", "dev", "eval", "evaluation", "minival")
TEST = ("test", "testing")
KNOWN = (*TRAIN, *VALIDATION, *TEST)


class Split(NamedTuple):
    """A split expression such as `train[:80%]`: its name and its bounds as written."""

    name: str
    low: str
    high: str

    @classmethod
    def parse(cls, text: str, key: str) -> "Split":
        """Parses `name`, or `name[low:high]` with bounds as counts or percentages, either empty.

        A negative bound counts from the end. Raises ConfigError, which names the option `key`.
        """
        match = re.fullmatch(r"([^\[\]]+)(?:\[(-?\d+%?)?:(-?\d+%?)?\])?", text)
        if not match:
            raise ConfigError(f"{key}={text}: not a split; write train, train[:80%] or train[100:]")
        return cls(*(part or "" for part in match.groups()))

    def select(self, length: int, key: str) -> range:
        """The selected part of `length` examples; raises ConfigError if it is empty or outside."""
        low = position(self.low or "0", length)
        high = position(self.high or "100%", length)
        if not 0 <= low < high <= length:
            raise ConfigError(
                f"{key}={self.name}[{self.low}:{self.high}]: selects nothing, or more than the "
                f"{length} examples of {self.name}"
            )
        return range(low, high)


def parts(expression: str) -> list[Split]:
    """The parts of an expression such as `train[:800]+validation[:200]`, unchecked."""
    found = []
    for part in expression.split("+"):
        name, _, bounds = part.partition("[")
        low, _, high = bounds.rstrip("]").partition(":")
        found.append(Split(name.strip(), low, high))
    return found


def position(bound: str, length: int) -> int:
    """A bound as a position in `length` examples; a percentage rounds to the nearest one."""
    # TFDS rounds percentages alike.
    number = round(int(bound[:-1]) * length / 100) if bound.endswith("%") else int(bound)
    return number + length if bound.startswith("-") else number


def overlap(one: str, other: str) -> bool:
    """Whether two expressions certainly have images in common.

    Bounds in percent and in images cannot be compared, and count as disjoint.
    """
    return any(
        a.name == b.name and _is_before(a.low, b.high) and _is_before(b.low, a.high)
        for a in parts(one)
        for b in parts(other)
    )


def _is_before(low: str, high: str) -> bool:
    """Whether a lower bound is certainly before an upper one."""
    # Every part begins before the end, and ends after the beginning.
    if low in ("", "0", "0%") or high in ("", "100%"):
        return True
    if low.endswith("%") != high.endswith("%") or low.startswith("-") != high.startswith("-"):
        return False
    try:
        return int(low.rstrip("%")) < int(high.rstrip("%"))
    except ValueError:
        return False


def is_split(name: str) -> bool:
    """Whether a folder has the name of a split, ignoring case."""
    return name.lower() in KNOWN


def find_splits(folders: Collection[str]) -> set[str]:
    """The folders that are splits: all, or several with training among them; else none.

    A class may be called `train` or `test`.
    """
    named = set(filter(is_split, folders))
    several = len(named) > 1 and find_folder("train", named)
    return named if several or named == set(folders) else set()


def within_classes(inside: Collection[tuple[str, str]]) -> list[str]:
    """Notes for class folders, and folders right inside them, that have names of splits."""
    lines = [
        f"its folder {name} is taken for a class, whatever folders it holds; if it is a split, "
        "move the other folders away"
        for name in sorted({name for name, _ in inside if is_split(name)})
    ]
    named = sorted({name for _, name in inside if is_split(name)})
    if len(named) > 1:  # one may be called so for another reason
        lines.append(
            f"its class folders hold folders called {' and '.join(named)}, which are not taken for "
            "splits: all their images are of the class, and any may be held out; for splits, "
            f"arrange {named[0]}/CLASS/IMAGE"
        )
    return lines


def find_folder(wanted: str, there: Collection[str]) -> str | None:
    """The folder of a split, or None if there is none or more than one candidate.

    This is the folder of that name, else the only one with a synonym. Without a test split, a
    validation split replaces it. A test split never replaces validation, because choosing a
    checkpoint on it would invalidate the test.
    """
    if wanted in there:
        return wanted
    for kind in (TRAIN, VALIDATION, TEST):
        if wanted.lower() in kind:
            found = [name for name in there if name.lower() in kind]
            if not found and kind is TEST:
                found = [name for name in there if name.lower() in VALIDATION]
            return found[0] if len(found) == 1 else None
    return None


def in_folder(expression: str, there: Collection[str]) -> str:
    """An expression such as `val[:9]` with the name that `find_folder` finds, if any."""
    name = expression.partition("[")[0]
    return (find_folder(name, there) or name) + expression[len(name) :]


def for_evaluation(there: Collection[str]) -> str | None:
    """The split to evaluate while training: validation, else test."""
    for kind in (VALIDATION, TEST):
        for name in sorted(there):
            if name.lower() in kind:
                return name
    return None
