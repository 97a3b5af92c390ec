"""The index of the figures that `vit_jax inspect` writes: content and step of each."""

import dataclasses
import json
import pathlib
import re
from collections.abc import Sequence

from vit_jax.pages.document import Picture
from vit_jax.utils import limits, storage

FOLDER, INDEX = "inspect", "figures.json"
NAME = re.compile(r"[a-z0-9-]+\.png")
MAGIC = b"\x89PNG\r\n\x1a\n"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Figure:
    """A PNG of the folder: its kind, such as `rollout`, its name, what it shows, and its step."""

    what: str
    file: str
    caption: str
    step: int | None = None


def read_index(folder: pathlib.Path) -> list[Figure]:
    """The index of a folder; raises ValueError for a damaged one."""
    if not (folder / INDEX).exists():
        return []
    try:
        figures = [Figure(**one) for one in limits.read_json(folder / INDEX, limits.TABLE)]
    except TypeError as error:
        raise ValueError(f"{FOLDER}/{INDEX}: is not a list of figures") from error
    for one in figures:
        # A name with a slash could read any file into a report.
        if not (isinstance(one.file, str) and NAME.fullmatch(one.file)):
            raise ValueError(f"{FOLDER}/{INDEX}: {one.file!r} is not the name of a figure")
    return figures


def read_pictures(run: pathlib.Path) -> tuple[list[Picture], list[str]]:
    """The pictures of a run directory, and a line on each that is missing or damaged."""
    folder = run / FOLDER
    try:
        figures = read_index(folder)
    except (OSError, ValueError) as error:
        return [], [f"{FOLDER}/{INDEX}: cannot be read ({type(error).__name__})"]
    pictures, problems = [], []
    for one in figures:
        try:
            png = (folder / one.file).read_bytes()
        except OSError:
            problems.append(f"{FOLDER}/{one.file}: is missing")
            continue
        if not png.startswith(MAGIC):
            problems.append(f"{FOLDER}/{one.file}: is not a PNG")
            continue
        step = "" if one.step is None else f" Step {one.step:,}."
        path = f"{FOLDER}/{one.file}"
        pictures.append(Picture(png=png, path=path, caption=f"{one.caption}{step}"))
    return pictures, problems


def add_figures(folder: pathlib.Path, new: Sequence[Figure]) -> None:
    """Adds figures to the index of a folder, replacing older ones of their kinds."""
    kinds = {one.what for one in new}
    try:
        kept = [one for one in read_index(folder) if one.what not in kinds]
    except ValueError:
        # A damaged index is replaced.
        kept = []
    values = [dataclasses.asdict(one) for one in [*kept, *new]]
    storage.write_atomically(folder / INDEX, json.dumps(values, indent=2) + "\n")
