"""Counts what a compiled program moves between devices."""

import collections
import math
import re

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "u16": 2, "s16": 2, "f32": 4, "s32": 4,
         "u32": 4, "f64": 8, "s64": 8, "u64": 8}  # fmt: skip


def count_collectives(text: str) -> dict[str, dict[str, int]]:
    """Returns `{kind: {count, bytes}}` of a compiled program, per device and step.

    Bytes are those of the whole: what is gathered, or what is reduced before it is scattered.

    Args:
      text: optimized HLO. The body of a loop counts once per iteration.
    """
    bodies: dict[str, list[str]] = {}
    entry, current = "", None
    for line in text.splitlines():
        if match := re.match(r"(ENTRY )?%?([\w.\-]+) .*\{$", line):
            current = match[2]
            bodies[current] = []
            entry = current if match[1] else entry
        elif current is not None:
            bodies[current].append(line)
    totals: dict[str, dict[str, int]] = collections.defaultdict(lambda: {"count": 0, "bytes": 0})
    chains: set[tuple[str, str]] = set()

    def turns(loop_: str) -> int:
        # On CPU the loop states its trip count; on TPU its condition compares with a constant,
        # and scan counts from 0 by 1.
        said = re.search(r'"known_trip_count":\{"n":"(\d+)"', loop_)
        condition = "\n".join(bodies[_named("condition", loop_)])
        bound = said or re.search(r" constant\((\d+)\)", condition)
        assert bound is not None
        return int(bound[1])

    def visit(name: str, times: int) -> None:
        # On TPU, a scattered sum is a fusion of a whole one and a slice, by this name.
        scattered = name.startswith("all-reduce-scatter")
        for line in bodies.get(name, ()):
            match = re.match(r"\s+(?:ROOT )?%?[\w.\-]+ = (.*?) ([a-z\-]+)\(", line)
            if match is None:
                continue
            kind = match[2].removesuffix("-start")
            if kind in COLLECTIVES:
                shapes = match[1]
                if match[2].endswith("-start") and kind != "all-reduce":
                    shapes = shapes[len(shapes) // 2 :]  # (operands, results, ...)
                size = _bytes(shapes) * (_group(line) if kind == "reduce-scatter" else 1)
                kind = "reduce-scatter" if scattered else kind
                # One that runs beside arithmetic is written in every fusion it passes through.
                if chain := re.search(r'chain_id="(\d+)"', line):
                    if (kind, chain[1]) in chains:
                        continue
                    chains.add((kind, chain[1]))
                totals[kind]["count"] += times
                totals[kind]["bytes"] += times * size
            elif kind == "while":
                visit(_named("body", line), times * turns(line))
            elif kind in ("call", "async", "fusion"):
                visit(_named("(?:calls|to_apply)", line), times)

    visit(entry, 1)
    return {kind: dict(totals[kind]) for kind in COLLECTIVES if kind in totals}


def _group(line: str) -> int:
    """Returns how many devices an instruction's collective joins."""
    # Written as {{0,1},{2,3}}, as [2,2]<=[4], or as mesh['a'=2,'b'=2] {'b'}.
    if found := re.search(r"replica_groups=mesh\[(.*?)\][^{]*\{(.*?)\}", line):
        sizes = {name: int(size) for name, size in re.findall(r"('\w+')=(\d+)", found[1])}
        return math.prod(sizes[name] for name in re.findall(r"'\w+'", found[2]))
    found = re.search(r"replica_groups=(?:\{\{([\d,]+)\}|\[\d+,(\d+)\])", line)
    assert found is not None
    return found[1].count(",") + 1 if found[1] else int(found[2])


def _named(attribute: str, line: str) -> str:
    """Returns the computation that an attribute of an instruction names."""
    found = re.search(attribute + r"=%?([\w.\-]+)", line)
    assert found is not None
    return found[1]


def _bytes(shapes: str) -> int:
    found = re.findall(r"\b(" + "|".join(BYTES) + r")\[([\d,]*)\]", shapes)
    return sum(
        BYTES[kind] * math.prod(int(side) for side in sides.split(",") if side)
        for kind, sides in found
    )
