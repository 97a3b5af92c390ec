"""ObjectNet's mapping to ImageNet's classes, copied from where its images come from."""

import pathlib
import shutil
from collections.abc import Iterable

from vit_jax.data import objectnet
from vit_jax.prepare import shards


def copy(sources: Iterable[pathlib.Path], folder: pathlib.Path) -> str:
    """Copies the files of `mappings`, in a source or beside it, to a packed data set.

    Returns a line that says what became of them.
    """
    places = [place / objectnet.FOLDER for one in sources for place in (one, one.parent)]
    found = next((p for p in places if all((p / f).is_file() for f in objectnet.FILES)), None)
    target = folder / objectnet.FOLDER
    if found is None:
        if target.is_dir():
            return f"objectnet: its mapping to ImageNet's classes is in {target}"
        return (
            f"objectnet: its mapping to ImageNet's classes is not in {places[0]} or beside it, and "
            "it cannot be evaluated without; again, with --from=objectnet-1.0 as it was unpacked"
        )
    with shards.disk_errors(target):
        target.mkdir(exist_ok=True)
        for name in objectnet.FILES:
            shutil.copyfile(found / name, target / name)
    return f"objectnet: its mapping to ImageNet's classes: in {target}"
