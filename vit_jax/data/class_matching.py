"""Matches the classes of data with the outputs of a head by name, wherever the two meet.

An index means nothing outside the head that it belongs to: folders are sorted as text by one
program and as numbers by another, and fine-tuning begins with the classes of somebody's data. So
every label is translated through its class's name. In order of trust:

1. the same name;
2. the same but for case, spaces, underscores, hyphens, slashes (no folder has one in its name) and
   Unicode form, or a placeholder's number (`class 3`, `LABEL_3`, `003`, and pandas' `3.0`);
3. two names of one ImageNet class: its WordNet id, or words (`n01440764`, `tench, Tinca tinca`);
4. where the head has no names: ImageNet's if it has 1,000 outputs and the data's classes are some
   of ImageNet; else those of the data, if there are as many: number k for output k, other names in
   order, unless somebody called the outputs by numbers, as digits are;
5. where the data has 1,000 numbers, and the head the names of ImageNet: ImageNet's numbers.

All but the first are assumptions, and said. A class without an output is an error, as its images
could not be right. Outputs without a class stay and compete, as they do in `predict`.

The words of `imagenet.csv` are WordNet 3.0's, in the order of ImageNet's class numbers.
"""

import collections
import csv
import dataclasses
import functools
import pathlib
import re
import shlex
import unicodedata
from collections.abc import Hashable, Sequence

import numpy as np

from vit_jax.config import ConfigError
from vit_jax.data.source import Record, Source
from vit_jax.runtime import logs
from vit_jax.utils import messages
from vit_jax.utils.digests import digest

TABLE = pathlib.Path(__file__).with_name("imagenet.csv")
IN_PLACE = 0.9  # share of 1,000 names by which a list is ImageNet's in order, whoever spelled them
RENAME = "rename the data's classes as the head's, or train a new head"
LISTED = 110  # characters of a list of names in a message

Outputs = tuple[int | None, ...]  # of each class of the data; None: no output has its name


class UnmatchedError(ConfigError):
    """Some classes of the data have no output in the head."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassMatch:
    """The outputs of some classes."""

    outputs: Outputs  # index of the output of each class, None for one that the head does not know
    notes: tuple[str, ...] = ()  # what was assumed, a line each
    repeated: tuple[str, ...] = ()  # names that several outputs have, so that none could be chosen


def find_outputs(
    head: Sequence[str], classes: Sequence[str], *, in_order: bool = True
) -> ClassMatch:
    """Finds the output of every class that has one; takes `head` and `classes` as `match`.

    `in_order`: whether classes may be outputs in order where the head or they have no names.
    """
    head, classes = _printable(head), _printable(classes)
    if head == classes:
        return ClassMatch(outputs=tuple(range(len(head))))
    times = collections.Counter(head)
    repeated = tuple(dict.fromkeys(name for name in classes if times[name] > 1))
    places = {name: place for place, name in enumerate(head) if times[name] == 1}
    outputs: list[int | None] = [places.get(name) for name in classes]
    notes, numbered = [], _is_numbered(head)
    # A head of mere numbers matches numbered classes only if both have as many: class 3 of 10 is
    # not class 3 of 100.
    if not (numbered and len(head) != len(classes)) and (
        near := _pair(outputs, [_folded(name) for name in head], [_folded(n) for n in classes])
    ):
        lacking = "the head's outputs have no names; " if numbered else ""
        notes.append(lacking + _taken(near, head, classes))
        by_text = sorted((classes[k], output) for k, output in near)
        if numbered and by_text != sorted(by_text, key=lambda pair: pair[1]):
            first = ", ".join(name for name, _ in by_text[:4])
            notes[-1] += f"; wrong if it was trained on folders in the order of texts: {first}, ..."
    if None in outputs and (
        same := _pair(outputs, _imagenet_numbers(head), _imagenet_numbers(classes))
    ):
        notes.append(f"{_taken(same, head, classes)}: names of one class of ImageNet")
    # ImageNet's two cranes share a name; in its whole list, their places told them apart.
    repeated = tuple(name for name in repeated if outputs[classes.index(name)] is None)
    # Places count only where no name does: both at once would be a guess.
    if in_order and not any(output is not None for output in outputs) and not repeated:
        assumed, note = _without_names(head, classes)
        return ClassMatch(outputs=assumed, notes=(note,) if note else ())
    return ClassMatch(outputs=tuple(outputs), notes=tuple(notes), repeated=repeated)


def match(
    head: Sequence[str],
    classes: Sequence[str],
    where: str,
    *,
    remedy: str = "",
    keep: str = "",
    what: tuple[str, str] = ("class", "classes"),
) -> list[int]:
    """Matches every class to its output, and logs its assumptions.

    Args:
      head: name of each output; `class 3` for output 3 without a name.
      classes: names of the data's classes.
      where: what brought the two together, such as `data.eval_split=test`.
      remedy: what to do if they do not match.
      keep: option that keeps some classes only, if there is one: `data.classes`.
      what: one and several of them, in words.

    Raises UnmatchedError for a class that no output has, or several have.
    """
    found = find_outputs(head, classes)
    if found.repeated:
        name = found.repeated[0]
        numbers = [str(place) for place, one in enumerate(_printable(head)) if one == name]
        raise UnmatchedError(
            f"{where}: several outputs of the head are called {name} ({_listed(numbers)}); give "
            "each a name of its own"
        )
    known = [k for k, output in enumerate(found.outputs) if output is not None]
    if not known:
        raise UnmatchedError(
            f"{where}: no {what[0]} of the data is one of the head; data ({len(classes)}): "
            f"{_listed(classes)}; head ({len(head)}{', without names' * _is_numbered(head)}): "
            f"{_listed(head)}{remedy and f'; {remedy}'}"
        )
    if len(known) < len(classes):
        lacking = [classes[k] for k, output in enumerate(found.outputs) if output is None]
        # For a shell: names may have spaces.
        kept = shlex.quote(",".join(classes[k] for k in known))
        least = f"set {keep}={kept} to leave their images out"
        if any("," in classes[k] for k in known):  # which separates names there
            keep = ""
        raise UnmatchedError(
            f"{where}: the head has no output for {len(lacking)} of the {len(classes)} {what[1]} "
            f"of the data: {_listed(lacking)}; head: {_listed(head)}; {least if keep else remedy}"
        )
    logs.warn_of_assumptions(where, found.notes)
    return [output for output in found.outputs if output is not None]


class Relabeled:
    """A source whose labels are indices of a head's outputs.

    Attributes:
      classes: names of the outputs.
      outputs: those that the source has a class for, ascending.
    """

    def __init__(self, source: Source, head: Sequence[str], outputs: Sequence[int]) -> None:
        self.source, self.classes = source, tuple(head)
        self._outputs = np.array(outputs)
        self.outputs = tuple(sorted(set(outputs)))

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Record:
        image, label = self.source[index]
        if isinstance(label, tuple):
            # A set, as two classes of the data may be one output.
            return Record(image, tuple(sorted({int(self._outputs[int(one)]) for one in label})))
        return Record(image, int(self._outputs[label]))

    def name(self, index: int) -> str:
        """The source's name of the example."""
        return self.source.name(index)

    def file_name(self, index: int) -> str:
        """The file name of the image where the source stores it, else its name."""
        return getattr(self.source, "file_name", self.source.name)(index)

    def fingerprint(self) -> str:
        """Covers the source's fingerprint and the outputs."""
        return digest(self.source.fingerprint().encode(), repr(self._outputs.tolist()).encode())


def relabel(
    source: Source,
    head: Sequence[str],
    where: str,
    *,
    remedy: str = RENAME,
    keep: str = "",
    several: bool = False,
) -> Source:
    """Translates the labels of a source to outputs of a head; logs its assumptions.

    Takes and raises as `match`; `several`: images have any number of classes, so that outputs do
    not compete.
    """
    if tuple(source.classes) == tuple(head):
        return source
    made = Relabeled(source, head, match(head, source.classes, where, remedy=remedy, keep=keep))
    if len(made.outputs) < len(head):
        absent = [name for k, name in enumerate(head) if k not in set(made.outputs)]
        rest = "are left out" if several else "compete all the same"
        subset = f"has {len(made.outputs)} of the head's {len(head)} classes"
        logs.warn_of_assumptions(where, [f"{subset}; the other outputs {rest}: {_listed(absent)}"])
    return made


def differences(before: Sequence[str], now: Sequence[str]) -> str:
    """The changes of a dataset's classes, in words; empty for none."""
    before, now = _printable(before), _printable(now)
    if before == now:
        return ""
    parts = {
        "gone": [n for n in before if n not in set(now)],
        "new": [n for n in now if n not in set(before)],
    }
    changes = [f"{word}: {_listed(names)}" for word, names in parts.items() if names]
    return "; ".join(changes) or f"another order: {_listed(before)} before, {_listed(now)} now"


def names_in(head: Sequence[str], classes: Sequence[str], where: str) -> tuple[str, ...]:
    """The head's name of each class; the data's own where no output has it. Arguments as `match`.

    Says what it assumes.
    """
    found = find_outputs(head, classes)
    logs.warn_of_assumptions(where, found.notes)
    pairs = zip(classes, found.outputs, strict=True)
    return tuple(own if output is None else head[output] for own, output in pairs)


def alike(classes: Sequence[str]) -> list[str]:
    """Lines for names of a dataset that people would take for one class, or none; few have any."""
    by_key = collections.defaultdict[Hashable, list[str]](list)
    for name in classes:
        by_key[_folded(name)].append(name)
    same = [" and ".join(map(repr, names)) for names in by_key.values() if len(set(names)) > 1]
    lines = []
    if same:
        lines += [
            f"{_listed(same)} are taken for different classes; if they are one, spell it alike"
        ]
    if "-1" in classes and len(classes) > 2:  # of two, it may be the other of 1
        lines += ["'-1' is taken for a class; if its images have none, leave them out"]
    return lines


def other_form(names: Sequence[str], classes: Sequence[str]) -> str:
    """The remedy where a name is a class in another spelling: Unicode form, case, spaces."""
    forms = {unicodedata.normalize("NFC", name): name for name in classes}
    for name in names:
        if name not in forms.values() and unicodedata.normalize("NFC", name) in forms:
            return f"; {name} is there in another Unicode form (NFC or NFD); write both in NFC"
    spelled = {_folded(name): name for name in classes}
    for name in names:
        if (other := spelled.get(_folded(name), name)) != name:
            return f"; {name!r} is {other!r} there; spell it alike"
    return ""


def imagenet() -> tuple[str, ...]:
    """WordNet ids of ImageNet's 1,000 classes, in the order of their numbers."""
    return tuple(wnid for wnid, _ in imagenet_table())


def _printable(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(messages.printable(name) for name in names)


def _pair(
    outputs: list[int | None], head: Sequence[Hashable], classes: Sequence[Hashable]
) -> list[tuple[int, int]]:
    """Fills in outputs of equal keys that occur once on either side; returns (class, output)."""
    taken = {output for output in outputs if output is not None}
    free = [k for k, key in enumerate(head) if k not in taken and key is not None]
    open_ = [k for k, output in enumerate(outputs) if output is None and classes[k] is not None]
    there = collections.Counter(head[k] for k in free)
    here = collections.Counter(classes[k] for k in open_)
    places = {head[k]: k for k in free if there[head[k]] == 1}
    found = [(k, places[classes[k]]) for k in open_
             if here[classes[k]] == 1 and classes[k] in places]  # fmt: skip
    for k, output in found:
        outputs[k] = output
    return found


def _without_names(head: Sequence[str], classes: Sequence[str]) -> tuple[Outputs, str]:
    """The outputs and the assumption made if one side has no names."""
    count, known = len(head), _imagenet_numbers(classes)
    if not _is_numbered(head):
        numbers = [_number(name) for name in classes]
        all_of_them = list(range(len(imagenet_table())))
        complete = collections.Counter(numbers) == collections.Counter(all_of_them)
        if complete and _imagenet_numbers(head) == all_of_them:
            return tuple(numbers), "the data's classes are numbers, taken for those of ImageNet"
    elif count == len(imagenet_table()) and None not in known:
        return tuple(known), (
            f"the head's {count:,} outputs have no names; taken for the classes of ImageNet in the "
            "order of WordNet ids"
        )
    elif count == len(classes) and not any(name.strip().isdigit() for name in head):
        shown = ", ".join(f"{place} is {name}" for place, name in enumerate(classes))
        return tuple(range(count)), (
            "the head's outputs have no names; taken for the data's classes in order: "
            f"{_short(shown)}"
        )
    return (None,) * len(classes), ""


def _is_numbered(head: Sequence[str]) -> bool:
    """Whether the names are only the numbers of the outputs."""
    return all(_number(name) == place for place, name in enumerate(head))


def _taken(pairs: Sequence[tuple[int, int]], head: Sequence[str], classes: Sequence[str]) -> str:
    (first, output), *others = pairs
    text = f"{classes[first]!r} of the data is taken for {head[output]!r} of the head"
    count = f"{len(others):,} other{'s' * (len(others) > 1)}"
    return text + (f", and {count} likewise" if others else "")


def _listed(names: Sequence[str]) -> str:
    return _short(", ".join(names))


def _short(text: str) -> str:
    text = messages.printable(text)
    if len(text) <= LISTED:
        return text
    start = text[:LISTED]
    return f"{start.rpartition(', ')[0] or start}, ..."


def _folded(name: str) -> Hashable:
    """A key shared by spellings that people would take for the same name."""
    number = _number(name)
    if number is not None:
        return number
    # NFKC also folds forms that look alike, such as wide letters and ligatures.
    return re.sub(r"[\s_/-]+", " ", unicodedata.normalize("NFKC", name).casefold()).strip()


def _number(name: str) -> int | None:
    """The number of a class that is called by it: `3`, `003`, `3.0`, `class 3` or `LABEL_3`."""
    found = re.fullmatch(
        r"\s*(?:(?:class|label)[ _-]?)?(\d{1,9})(?:\.0+)?\s*", name, re.ASCII | re.IGNORECASE
    )
    return None if found is None else int(found[1])


@functools.cache
def imagenet_table() -> tuple[tuple[str, str], ...]:
    """ImageNet's 1,000 classes in order: WordNet id and names."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        return tuple((row["wnid"], row["words"]) for row in csv.DictReader(file))


@functools.cache
def _aliases() -> dict[Hashable, set[int]]:
    """Class numbers of ImageNet by every folded name: WordNet id, all words, else one of them."""
    whole: dict[Hashable, set[int]] = {}
    parts: dict[Hashable, set[int]] = {}
    for number, (wnid, words) in enumerate(imagenet_table()):
        for name in (wnid, words):
            whole.setdefault(_folded(name), set()).add(number)
        for name in words.split(", "):
            parts.setdefault(_folded(name), set()).add(number)
    # A class's whole entry wins over a word that other classes list among theirs.
    return parts | whole


def _imagenet_numbers(names: Sequence[str]) -> list[int | None]:
    """The ImageNet class number of each name; None if it has none or several."""
    known = [_aliases().get(_folded(name), set()) for name in names]
    if len(names) == len(imagenet_table()):
        in_place = sum(place in numbers for place, numbers in enumerate(known))
        if in_place >= IN_PLACE * len(names):  # which also tells the two cranes apart
            return list(range(len(names)))
    return [next(iter(numbers)) if len(numbers) == 1 else None for numbers in known]
