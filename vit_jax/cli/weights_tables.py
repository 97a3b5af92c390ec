"""Published checkpoints as tables for `vit_jax list --weights`."""

import dataclasses
import fnmatch
from collections.abc import Iterator, Sequence
from typing import Any

from vit_jax import config
from vit_jax.pages import listing
from vit_jax.utils import storage
from vit_jax.weights import hub, zoo


def published(model: str | None) -> list[zoo.PublishedFile]:
    """The published checkpoints; raises ConfigError where none is of this model."""
    entries = zoo.entries(model)
    if not entries:
        listed = ", ".join(sorted({entry.model for entry in zoo.entries()}))
        raise config.ConfigError(f"--model={model}: no such published model; known: {listed}")
    return entries


def to_dict(entry: zoo.PublishedFile) -> dict[str, Any]:
    """Plain values for JSON."""
    values = dataclasses.asdict(entry) | {"reported_by": entry.reported_by}
    return {key: value for key, value in values.items() if key not in ("name", "optional")}


def groups(entries: Sequence[zoo.PublishedFile]) -> Iterator[listing.TitledTable]:
    """Yields a table per collection of published checkpoints."""
    header = ("name", "model", "pixels", "MiB", "top-1", "reported by", "trained on")
    header += ("license", "access")
    for collection in dict.fromkeys(entry.collection for entry in entries):
        members = [entry for entry in entries if entry.collection == collection]
        rows = [
            (
                entry.name,
                entry.model,
                "" if entry.image_size is None else str(entry.image_size),
                "" if entry.mib is None else f"{entry.mib:.0f}",
                "" if entry.top1 is None else f"{entry.top1:.2f}",
                entry.reported_by,
                entry.data,
                entry.license,
                entry.access,
            )
            for entry in members
        ]
        filled = [i for i in range(len(header)) if i == 0 or any(row[i] for row in rows)]
        layouts = ", ".join(dict.fromkeys(entry.layout for entry in members))
        yield listing.TitledTable(
            f"{collection}: in the layout of {layouts}",
            "",
            tuple(header[i] for i in filled),
            [tuple(row[i] for i in filled) for row in rows],
        )


def augreg_best(index: str, model: str | None) -> list[zoo.Upstream]:
    """The best of every model in an index of How to train your ViT; raises UserError.

    Args:
      index: path or address of index.csv.
      model: only those whose variant this pattern matches, such as `B/16`.
    """
    best = zoo.best_of_augreg(hub.fetch(index) if "://" in index else storage.as_path(index))
    pattern = zoo.variant(model or "*").lower()
    entries = [
        one for name, one in sorted(best.items()) if fnmatch.fnmatchcase(name.lower(), pattern)
    ]
    if not entries:
        raise config.ConfigError(
            f"--model={model}: not in {index}; known: {', '.join(sorted(best))}"
        )
    return entries


def augreg_group(entries: Sequence[zoo.Upstream]) -> listing.TitledTable:
    """The best models of an index as a table, two lines each: upstream, fine-tuned."""
    rows = []
    for one in entries:
        rows.append((one.file, one.model, zoo.DATA.get(one.data, one.data), f"{one.val:.4f}"))
        if one.tuned_val is not None:
            adapted = f"ImageNet, {one.resolution} pixels"
            rows.append((one.tuned_file, "", adapted, f"{one.tuned_val:.4f}"))
    title = "augreg: best by upstream validation accuracy, and their best on ImageNet"
    return listing.TitledTable(title, "", ("name", "model", "on", "val"), rows)
