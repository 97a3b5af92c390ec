"""The arguments of `vit_jax prepare`, and the lines that `--dry-run` prints."""

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from vit_jax import config
from vit_jax.data import availability, bucket
from vit_jax.data.prepare import dedup, staging
from vit_jax.data.source import DataError
from vit_jax.utils import messages, storage
from vit_jax.utils.messages import size_text

CACHE_SIZE = 100  # GB


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """The arguments for one name; the fields are the flags of the command."""

    data_dir: str | None = None  # TFDS's default
    sources: Sequence[str] = ()  # --from; none: it is downloaded
    verify: bool = False
    label: str | None = None  # column of Parquet files
    labels: bool = True  # of the user's own images
    holdout: float | None = None  # `pack.HOLDOUT`
    max_side: int | None = None
    against: Sequence[str] = ()  # --dedup-against
    distance: int = dedup.THRESHOLD  # --dedup-distance
    partial: bool = False
    cache: str | None = None  # of buckets; None: .buckets in the folder of datasets
    cache_size: float | None = None  # GB; None: CACHE_SIZE
    dry_run: bool = False
    workers: int = 1

    def __post_init__(self) -> None:
        """Raises ConfigError for sources at addresses that are not read."""
        for source in self.sources:
            if not bucket.is_bucket(source):
                storage.given_path("--from", source)
        # An option that nothing reads would be a mistake that nobody hears of.
        for flag, value in (("cache", self.cache), ("cache-size", self.cache_size)):
            if value is not None and not self.buckets:
                raise config.ConfigError(f"--{flag}={value}: is for --from=s3://..., and none is")
        if self.distance != dedup.THRESHOLD and not self.against:
            raise config.ConfigError(
                f"--dedup-distance={self.distance}: is for --dedup-against=TASK,..., and none is"
            )

    def directory(self) -> Path:
        """The folder of datasets; raises ConfigError unless it is on this machine."""
        folder = str(availability.directory(self.data_dir))
        if not messages.is_utf8(folder):  # array_record could not open a file there
            raise config.ConfigError(f"--data-dir={folder}: is not UTF-8; choose another folder")
        return _local(folder, "--data-dir")

    @property
    def buckets(self) -> list[str]:
        """The sources that are in buckets."""
        return [source for source in self.sources if bucket.is_bucket(source)]

    def cache_folder(self) -> Path:
        """The folder of copies; raises ConfigError unless it is on this machine."""
        if self.cache is None:
            return self.directory() / ".buckets"
        return _local(self.cache, "--cache")

    def paths(self) -> list[Path]:
        """The sources on this machine, those in buckets copied to it; raises a UserError."""
        if self.buckets and self.dry_run:
            raise config.ConfigError(f"--from={self.buckets[0]}: has no dry run, as it is copied")
        most = round((self.cache_size or CACHE_SIZE) * 1e9)
        return [
            bucket.copy(source, self.cache_folder(), most)
            if bucket.is_bucket(source)
            else _local(source, "--from")
            for source in self.sources
        ]

    def drop_copies(self) -> None:
        """Removes the copies of buckets, once they are packed."""
        for source in self.buckets:
            bucket.remove_copy(source, self.cache_folder())

    def refuse_packing(self, name: str) -> None:
        """Raises ConfigError for flags of packing if `name` is not packed from folders and tars."""
        for flag, value in (
            ("label", self.label),
            ("no-labels", not self.labels),
            ("holdout", self.holdout),
            ("max-side", self.max_side),
            ("dedup-against", self.against),
        ):
            if value:
                raise config.ConfigError(
                    f"--{flag}: is for folders, tars and tables that are packed; {name} packs none"
                )

    def refuse_partial(self, name: str) -> None:
        """Raises ConfigError for --partial if `name` has no official number of images."""
        if self.partial:
            raise config.ConfigError(
                f"--partial: is for datasets with an official number of images, and {name} has none"
            )


def _local(path: str, flag: str) -> Path:
    if "://" in path:
        raise config.ConfigError(
            f"{flag}={path}: only a folder of this machine can be written to; "
            f"prepare it here, then: gcloud storage cp -r FOLDER gs://BUCKET"
        )
    return storage.as_path(path)


# --- The lines of a dry run -----------------------------------------------------------------------


def reads(name: str, sources: Sequence[object], contents: str, size: int) -> str:
    """The line of a dry run about the sources."""
    return f"{name}: would read {', '.join(map(str, sources))}: {contents}, {size_text(size)}"


def downloads(name: str, files: Mapping[str, int]) -> str:
    """The line about files that would be downloaded, with their sizes in bytes."""
    if not files:
        return f"{name}: would download files of unknown size"
    shown = ", ".join(f"{file} ({size_text(size)})" for file, size in list(files.items())[:10])
    more = f" and {len(files) - 10} more files" if len(files) > 10 else ""
    return f"{name}: would download {shown}{more}: {size_text(sum(files.values()))} in all"


def expected(name: str, images: Mapping[str, int]) -> list[str]:
    """The lines about official numbers of images by split."""
    return [f"{name}: {split}: {number:,} images expected" for split, number in images.items()]


def writes(
    name: str, folder: Path, contents: str, needed: int = 0, finished: int = 0
) -> Iterator[str]:
    """Yields the target; raises DataError if it cannot be written, PrepareError if disk is short.

    `finished` shards of an earlier attempt are kept, if it used the same images and settings.
    """
    # The folder itself is made later: a dry run writes nothing.
    existing = storage.nearest_existing(folder)
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise DataError(f"{folder}: {existing} is not a writable folder; choose another --data-dir")
    free = storage.free_bytes(folder)
    kept = f"; {finished:,} shards of an earlier attempt are there" if finished else ""
    yield f"{name}: would write {folder}: {contents}{kept}; {size_text(free)} of disk space is free"
    staging.check_free(folder, needed, "free some space, or choose another --data-dir")


def file_sizes(source: Path) -> list[int]:
    """The bytes of each file below a folder, or of the file itself; raises DataError."""
    if not source.exists():
        raise DataError(f"--from={source}: no such file or folder")
    paths = source.rglob("*") if source.is_dir() else [source]
    return [path.stat().st_size for path in paths if path.is_file()]
