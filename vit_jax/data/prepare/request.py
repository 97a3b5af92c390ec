"""What a user asks `vit_jax prepare` to do with a name."""

import dataclasses
import pathlib
from collections.abc import Sequence

from vit_jax import config
from vit_jax.data import availability
from vit_jax.data.prepare import dedup
from vit_jax.utils import messages, storage

HOLDOUT = 0.1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """What to do with a name; the fields are the flags of the command.

    Attributes:
      data_dir: where data sets are; None: TFDS's default.
      sources: what to make it of; none: it is downloaded.
      verify: read what is prepared again.
      holdout: share of each class of images that becomes a validation split where a data set of the
        user's has none; None: HOLDOUT.
      max_side: longest side of packed images, or None.
      against: tasks whose test images must not be packed.
      distance: most bits, of 64, in which the hash of a near duplicate differs.
      partial: pack official archives also where images are missing.
      dry_run: report what would be read and written, and write nothing.
      workers: processes or threads.
    """

    data_dir: str | None = None
    sources: Sequence[str] = ()
    verify: bool = False
    holdout: float | None = None
    max_side: int | None = None
    against: Sequence[str] = ()
    distance: int = dedup.THRESHOLD
    partial: bool = False
    dry_run: bool = False
    workers: int = 1

    def __post_init__(self) -> None:
        """Raises ConfigError for sources at addresses that are not read."""
        for source in self.sources:
            storage.given_path("--from", source)

    def directory(self) -> pathlib.Path:
        """Returns the folder of data sets; raises ConfigError unless it is on this machine."""
        folder = str(availability.directory(self.data_dir))
        if not messages.is_utf8(folder):  # array_record could not open a file there
            raise config.ConfigError(f"--data-dir={folder}: is not UTF-8; choose another folder")
        return _local(folder, "--data-dir")

    def paths(self) -> list[pathlib.Path]:
        """Returns the sources; raises ConfigError unless they are on this machine."""
        return [_local(source, "--from") for source in self.sources]

    def refuse_packing(self, name: str) -> None:
        """Raises ConfigError for flags of packing if `name` is not packed from folders and tars."""
        for flag, value in (
            ("holdout", self.holdout),
            ("max-side", self.max_side),
            ("dedup-against", self.against),
        ):
            if value:
                raise config.ConfigError(
                    f"--{flag}: is for folders and tars that are packed, and {name} is not"
                )

    def refuse_partial(self, name: str) -> None:
        """Raises ConfigError for --partial if `name` has no official number of images."""
        if self.partial:
            raise config.ConfigError(
                "--partial: is for data sets with an official number of images, and "
                f"{name} has none"
            )


def _local(path: str, key: str) -> pathlib.Path:
    if "://" in path:
        raise config.ConfigError(
            f"{key}={path}: only a folder of this machine can be written to or packed from; "
            f"prepare it here, then: gcloud storage cp -r FOLDER gs://BUCKET"
        )
    return pathlib.Path(path).expanduser()
