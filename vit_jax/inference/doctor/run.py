"""`vit_jax doctor`: lists, reads and examines a folder, then writes a page and a list."""

import csv
import io
import os
import pathlib
from collections.abc import Collection, Mapping
from typing import Any

from vit_jax.config import ConfigError, suggest
from vit_jax.data import bucket
from vit_jax.inference import loading
from vit_jax.inference.doctor import CHECKPOINT, COSINE, KINDS, LEFT_OUT, examination
from vit_jax.inference.doctor.listing import list_images
from vit_jax.inference.doctor.page import document
from vit_jax.inference.doctor.reading import read_images
from vit_jax.pages import html
from vit_jax.runtime import logs
from vit_jax.utils import messages, storage


def doctor(
    folder: str | os.PathLike[str],
    checkpoint: str | os.PathLike[str] = CHECKPOINT,
    overrides: Mapping[str, Any] | None = None,
    *,
    step: int | str | None = None,
    output: str | os.PathLike[str] | None = None,
    fix_list: str | os.PathLike[str] | None = None,
    leave_out: Collection[str] = LEFT_OUT,
    holdout: float = 0.1,
    labels: bool = True,
    cosine: float = COSINE,
) -> examination.Examination:
    """Finds copies, leaks between splits, wrong labels, outliers and broken files of a folder.

    Args:
      folder: CSV lists, folders of splits or classes, or images at any depth; on a disk or in a
        bucket.
      checkpoint: whose features are compared, as in `load`.
      overrides: options, as in `load`.
      step: as in `load`.
      output: an HTML page to write.
      fix_list: a CSV file to write, for `data.exclude`.
      leave_out: kinds of findings that the fix list has.
      holdout: the `data.holdout` that a folder without splits will be trained with.
      labels: whether folders are classes.
      cosine: the least of the features of near duplicates.

    Raises a UserError.
    """
    if not 0 <= holdout < 1:
        raise ConfigError(f"--holdout={holdout}: must be at least 0 and below 1, such as 0.1")
    if not 0 < cosine <= 1:
        raise ConfigError(f"--cosine={cosine}: must be above 0 and at most 1, such as 0.8")
    if "data.holdout" in (overrides or {}):
        raise ConfigError("data.holdout: is set by --holdout here")
    loading.check_given(overrides)
    page = storage.given_page("--output", output)
    listed = None if fix_list is None else storage.given_path("--fix-list", fix_list, remote=False)
    for kind in leave_out:
        if kind not in KINDS:
            raise ConfigError(f"--leave-out={kind}: no such kind{suggest(kind, list(KINDS))}")
    if listed is not None and listed.suffix.lower() != ".csv":
        raise ConfigError(f"--fix-list={listed}: must end in .csv")
    if listed is not None:
        storage.check_creatable(listed, flag="--fix-list")
    listing = list_images(bucket.given_path("DIR", folder), holdout, labels=labels)
    model = loading.load(checkpoint, overrides, step)
    found = examination.examine(
        listing, read_images(listing, model), os.fspath(checkpoint), tuple(leave_out), cosine
    )
    for note in found.notes:
        logs.log.warning("%s", note)
    if listed is not None:
        write_fix_list(listed, found)
    if page is not None:
        with storage.writing("--output", page):
            storage.write_atomically(page, html.page(document(found, model.config.data)))
    return found


def write_fix_list(path: pathlib.Path, found: examination.Examination) -> int:
    """Writes `image,reason` rows for `data.exclude`, and returns how many; raises ConfigError.

    A third column names splits where an image is in several lists and stays in one of them.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    kept = found.kept_elsewhere
    writer.writerow(("image", "reason", *["split"] * bool(kept)))
    rows = {name: reason for name, reason in found.left_out.items() if _fits(name)}
    if unfit := [name for name in found.left_out if not _fits(name)]:
        logs.log.warning(
            "--fix-list=%s: a list cannot have %s%s: rename it",
            path, messages.printable(unfit[0]), messages.more(unfit),
        )  # fmt: skip
    for row in rows.items():
        writer.writerow((*row, *[";".join(kept.get(row[0], ()))] * bool(kept)))
    with storage.writing("--fix-list", path):
        storage.write_atomically(path, text.getvalue())
    return len(rows)


def _fits(name: str) -> bool:
    """Whether the reader of a fix list would accept this spelling of a path."""
    return messages.is_utf8(name) and name == name.strip() and "\\" not in name
