"""Counts a compiled program's traffic between devices, and the arithmetic that overlaps it."""

import collections
import dataclasses
import math
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "u16": 2, "s16": 2, "f32": 4, "s32": 4,
         "u32": 4, "f64": 8, "s64": 8, "u64": 8}  # fmt: skip


class Transfer(NamedTuple):
    """One collective of a program, per device."""

    kind: str
    bytes: int  # of the whole: what is gathered, or what is reduced before it is scattered
    count: int  # a step: the turns of the loop that it is in
    beside: float  # share of the step's compute that is scheduled beside one; 0: synchronous

    @property
    def sent(self) -> int:
        """Bytes that a device of a large slice sends for one, at least.

        Reducing B bytes everywhere takes 2 B with any algorithm (P. Patarasu and X. Yuan, 2009):
        B to scatter the sums, B to gather them.
        """
        return self.bytes * (2 if self.kind == "all-reduce" else 1)


def count_collectives(transfers: Iterable[Transfer]) -> dict[str, dict[str, int]]:
    """`{kind: {count, bytes}}` of a compiled program, per device and step."""
    totals: dict[str, dict[str, int]] = collections.defaultdict(lambda: {"count": 0, "bytes": 0})
    for one in transfers:
        totals[one.kind]["count"] += one.count
        totals[one.kind]["bytes"] += one.count * one.bytes
    return {kind: dict(totals[kind]) for kind in COLLECTIVES if kind in totals}


def read_transfers(text: str) -> list[Transfer]:
    """Parses the collectives of a compiled program, in the order of its schedule.

    Beside a collective is what the schedule puts between its start and its end, in the cycles that
    the compiler estimates for it. What runs beside several is shared out by their bytes. The text
    is optimized HLO; the body of a loop counts once per iteration.
    """
    return _Schedule(text).read()


@dataclasses.dataclass
class _Seen:
    """A collective of the program, and the cycles of compute that overlap it."""

    kind: str
    bytes: int
    count: int
    cycles: float = 0.0


class _Schedule:
    """A walk through a program in the order in which it runs."""

    def __init__(self, text: str):
        self.bodies, self.entry = _computations(text)
        self.cycles = 0
        self.seen: list[_Seen] = []
        self.chains: dict[tuple[str, str], _Seen] = {}

    def read(self) -> list[Transfer]:
        self.visit(self.entry, 1)
        total = self.cycles or 1
        return [Transfer(one.kind, one.bytes, one.count, one.cycles / total) for one in self.seen]

    def visit(self, name: str, count: int) -> None:
        started: dict[str, list[_Seen]] = {}
        for line in self.bodies.get(name, ()):
            # Non-greedy up to the operation: the shape before it may be a tuple, in parentheses.
            match = re.match(r"\s+(?:ROOT )?%?([\w.\-]+) = .*? ([a-z\-]+)\(%?([\w.\-]*)", line)
            if match is None:
                continue
            label, operation, operand = match.groups()
            if operation == "while":
                self.visit(_named("body", line), count * self.turns(line))
            elif operation == "call":
                self.visit(_named("to_apply", line), count)
            elif operation.endswith("-done"):
                started.pop(operand, None)
            # Later instructions name an asynchronous operation by its latest update.
            elif operation == "async-update":
                started[label] = started.pop(operand, [])
            else:
                passing = self.note(line, count)
                if operation.endswith("-start"):
                    started[label], passing = passing, []
                self.compute(
                    line, count, [*passing, *(each for s in started.values() for each in s)]
                )

    def note(self, line: str, count: int) -> list[_Seen]:
        """Notes the collectives of an instruction; returns those that its compute overlaps."""
        beside = []
        for kind, size, chain in self.collectives(line, ""):
            one = _Seen(kind, size, count)
            # One that overlaps arithmetic is listed in every fusion it passes through.
            known = self.chains.setdefault((kind, chain), one) if chain else one
            if known is one:
                self.seen.append(one)
            beside.append(known)
        return beside

    def compute(self, line: str, count: int, beside: list[_Seen]) -> None:
        said = re.search(r'"estimated_cycles":"(\d+)"', line)
        cycles = int(said[1]) if said else 0
        self.cycles += count * cycles
        total = sum(one.bytes for one in beside) or 1
        for one in beside:
            one.cycles += cycles * one.bytes / total

    def collectives(self, line: str, inside: str) -> Iterator[tuple[str, int, str | None]]:
        """Yields the kind, bytes and chain of the collectives in an instruction."""
        match = re.match(r"\s+(?:ROOT )?%?[\w.\-]+ = (.*?) ([a-z\-]+)\(", line)
        if match is None:
            return
        shapes, operation = match.groups()
        kind = operation.removesuffix("-start")
        if kind in COLLECTIVES:
            # Unlike the others, all-reduce-start lists results only.
            if operation.endswith("-start") and kind != "all-reduce":
                shapes = shapes[len(shapes) // 2 :]  # (operands, results, ...)
            # Its result is the share of one device.
            size = _bytes(shapes) * (_group(line) if kind == "reduce-scatter" else 1)
            # On TPU, a scattered sum is a fusion of a whole one and a slice, by this name.
            kind = "reduce-scatter" if inside.startswith("all-reduce-scatter") else kind
            chain = re.search(r'chain_id="(\d+)"', line)
            yield kind, size, chain[1] if chain else None
        elif kind in ("call", "async", "fusion"):
            called = _named("(?:calls|to_apply)", line)
            for each in self.bodies.get(called, ()):
                yield from self.collectives(each, called)

    def turns(self, loop: str) -> int:
        # On CPU the loop states its trip count; on TPU its condition compares with a constant,
        # and scan counts from 0 by 1.
        said = re.search(r'"known_trip_count":\{"n":"(\d+)"', loop)
        condition = "\n".join(self.bodies[_named("condition", loop)])
        bound = said or re.search(r" constant\((\d+)\)", condition)
        assert bound is not None
        return int(bound[1])


def _computations(text: str) -> tuple[dict[str, list[str]], str]:
    """The lines of each computation by its name, and the name of the entry."""
    bodies: dict[str, list[str]] = {}
    entry, current = "", None
    for line in text.splitlines():
        # Computations start at the margin, with a brace at the end of the line; they never nest.
        if match := re.match(r"(ENTRY )?%?([\w.\-]+) .*\{$", line):
            current = match[2]
            bodies[current] = []
            entry = current if match[1] else entry
        elif current is not None:
            bodies[current].append(line)
    return bodies, entry


def _group(line: str) -> int:
    """The number of devices that an instruction's collective joins."""
    # Written as {{0,1},{2,3}}, as [2,2]<=[4], or as mesh['a'=2,'b'=2] {'b'}.
    if found := re.search(r"replica_groups=mesh\[(.*?)\][^{]*\{(.*?)\}", line):
        sizes = {name: int(size) for name, size in re.findall(r"('\w+')=(\d+)", found[1])}
        return math.prod(sizes[name] for name in re.findall(r"'\w+'", found[2]))
    found = re.search(r"replica_groups=(?:\{\{([\d,]+)\}|\[\d+,(\d+)\])", line)
    assert found is not None
    return found[1].count(",") + 1 if found[1] else int(found[2])


def _named(attribute: str, line: str) -> str:
    """The computation that an attribute of an instruction names."""
    found = re.search(attribute + r"=%?([\w.\-]+)", line)
    assert found is not None
    return found[1]


def _bytes(shapes: str) -> int:
    # A scalar, f32[], has no sides; the product of none is 1.
    found = re.findall(r"\b(" + "|".join(BYTES) + r")\[([\d,]*)\]", shapes)
    return sum(
        BYTES[kind] * math.prod(int(side) for side in sides.split(",") if side)
        for kind, sides in found
    )
