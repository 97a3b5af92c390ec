"""Copies ObjectNet's mapping to ImageNet's classes from the source of its images."""

import pathlib
import shutil
from collections.abc import Iterable

from vit_jax.data import objectnet
from vit_jax.data.prepare import shards
from vit_jax.utils import storage


def copy(sources: Iterable[pathlib.Path], folder: pathlib.Path) -> str:
    """Copies the folder `mappings`, in or next to a source, to a packed data set.

    Returns a line for the user.
    """
    sources = list(sources)
    found = find(sources)
    target = folder / objectnet.FOLDER
    if found is None:
        if target.is_dir():
            return f"objectnet: its mapping to ImageNet's classes is in {target}"
        return (
            "objectnet: cannot be evaluated without its mapping to ImageNet's classes, which is "
            f"neither in {sources[0] / objectnet.FOLDER} nor next to it; run this again with "
            "--from=objectnet-1.0, as unpacked"
        )
    with shards.disk_errors(target):
        target.mkdir(exist_ok=True)
        for name in objectnet.FILES:
            with storage.replacing(target / name) as part:
                shutil.copyfile(found / name, part)
    return f"objectnet: its mapping to ImageNet's classes: in {target}"


def find(sources: Iterable[pathlib.Path]) -> pathlib.Path | None:
    """Returns the folder `mappings` that is in a source or next to it, or None."""
    folders = [folder / objectnet.FOLDER for one in sources for folder in (one, one.parent)]
    complete = (f for f in folders if all((f / name).is_file() for name in objectnet.FILES))
    return next(complete, None)
