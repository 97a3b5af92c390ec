"""Finds the model among the names of a file: below which prefix, in which wrappers.

Training programs nest a model in others (`model.module.`, `teacher.backbone.`, `opt/target/`),
wrappers add a part to names (torch.compile's `_orig_mod.`), and DINOv2 groups layers in chunks
(`blocks.1.7.`, where 7 counts all layers).
"""

import heapq
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from vit_jax.weights import bit, google, huggingface, open_clip, timm, tips
from vit_jax.weights.mapping import Layout, reason
from vit_jax.weights.readers import Arrays, WeightsError

LAYOUTS = (
    google.LAYOUT,
    tips.LAYOUT,
    bit.LAYOUT,
    timm.LAYOUT,
    huggingface.LAYOUT,
    open_clip.LAYOUT,
)
# Arrays that every model of a layout has, by which a prefix is found.
ANCHORS = ("embedding/kernel", "root_block/conv_root/kernel", "conv_root/kernel",
           "resnet/root_block/standardized_conv2d/kernel", "patch_embed.proj.weight",
           "stem.conv.weight", "visual.conv1.weight")  # fmt: skip
WRAPPERS = re.compile(r"(?<![^.])(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
BLOCK = re.compile(r"((?:^|.*\.)blocks\.)\d+\.")
CHUNK = re.compile(r"((?:^|.*\.)blocks\.)\d+\.(\d+\.)")
# Of several models in a file: what is evaluated rather than what is trained, its moments last.
BETTER = {"params", "target", "teacher", "ema"}  # or a word of it, as in model_ema
WORSE = re.compile(r"(?:^|[./])(?:student|mu|nu|opt_state|optimizer|state|exp_avg\w*)(?=[./])")
TRIED = 16  # prefixes
OUTER = 8  # modules around a backbone that may hold its head
# Layers outside a backbone that belong to it; the first three are one, by its own name.
HEADS = re.compile(
    r"(?:(head|classifier|fc)|head_dist|fc_norm|norm|pooler\.dense)\.(?:weight|bias)"
)


class Found(NamedTuple):
    """The arrays of a model by its layout's names, and where they were."""

    arrays: Arrays
    layout: Layout
    prefix: str = ""
    beside: Mapping[str, str] = {}  # other arrays, each with why it is left out
    assumed: Mapping[str, str] = {}


def find(arrays: Arrays) -> Found:
    """The model in a file; raises WeightsError where there is none that is known."""
    arrays = _renamed(arrays, _unwrapped(arrays.specs))
    if layout := _layout(arrays):
        return Found(arrays, layout)
    found = []
    for prefix in heapq.nsmallest(TRIED, _prefixes(arrays.specs), key=_rank):
        inside = any(prefix.startswith(outer.prefix) for outer in found)
        below, beside = _below(arrays, prefix)
        if not inside and (layout := _layout(below)):
            reasons = {
                name: reason(name, layout.dropped, arrays.specs) or f"not under {prefix}"
                for name in beside
            }
            found.append(Found(below, layout, prefix, reasons))
    if not found:
        names = ", ".join(sorted(arrays.specs)[:3]) or "no arrays at all"
        raise WeightsError(
            f"is not one of the supported model layouts ({', '.join(o.name for o in LAYOUTS)}); "
            f"it contains {names}, ..."
        )
    chosen, *others = found
    if others:
        told = f"the model under {chosen.prefix}, not that under {others[0].prefix}"
        chosen = chosen._replace(assumed={told: "the file holds several"})
    return chosen


def _layout(arrays: Arrays) -> Layout | None:
    return next((one for one in LAYOUTS if one.recognizes(arrays)), None)


def _unwrapped(names: Iterable[str]) -> dict[str, str]:
    """Names without wrappers and chunks, by the names in the file."""
    plain = {name: WRAPPERS.sub("", name) for name in names}
    blocks = {short: found[1] for short in plain.values() if (found := BLOCK.match(short))}
    whole = {blocks[short] for short in blocks if not CHUNK.match(short)}  # models without chunks

    def one(short: str) -> str:
        found = CHUNK.match(short)
        if found is None or found[1] in whole:
            return short
        return f"{found[1]}{found[2]}{short[found.end() :]}"

    return {name: one(short) for name, short in plain.items()}


def _renamed(arrays: Arrays, names: Mapping[str, str]) -> Arrays:
    """The arrays under other names, by their names; raises WeightsError where two are the same."""
    long: dict[str, str] = {}
    for name, short in names.items():
        if short in long:
            raise WeightsError(f"{long[short]} and {name} are the same array")
        long[short] = name
    specs = {short: arrays.specs[name] for short, name in long.items()}
    return Arrays(specs, lambda short: arrays.read(long[short]), arrays.metadata)


def _prefixes(names: Iterable[str]) -> Iterator[str]:
    """The prefixes below which models could be, each once."""
    seen: set[str] = set()
    for name in names:
        for anchor in (*ANCHORS, *huggingface.ANCHORS):
            prefix = name.removesuffix(anchor)
            if prefix != name and prefix.endswith((".", "/")) and prefix not in seen:
                seen.add(prefix)
                yield prefix


def _rank(prefix: str) -> tuple[bool, bool, int, str]:
    better = BETTER & set(re.split(r"[./_]", prefix))
    return bool(WORSE.search(prefix)), not better, len(prefix), prefix


def _below(arrays: Arrays, prefix: str) -> tuple[Arrays, list[str]]:
    """The arrays below a prefix and a head beside it; the names of all others."""
    names = {name: name.removeprefix(prefix) for name in arrays.specs if name.startswith(prefix)}
    taken = set(names.values())
    last = "head" if "patch_embed.proj.weight" in taken else "classifier"
    ends = (i for i in range(len(prefix) - 1, -1, -1) if not i or prefix[i - 1] in "./")
    for end in itertools.islice(ends, OUTER):
        outer = [name for name in arrays.specs if name not in names]
        for name in (name for name in outer if name.startswith(prefix[:end])):
            if found := HEADS.fullmatch(name, end):
                short = f"{last}{name[found.end(1) :]}" if found[1] else name[end:]
                if short not in taken:
                    names[name] = short
                    taken.add(short)
    return _renamed(arrays, names), [name for name in arrays.specs if name not in names]
