"""Lines of `vit_jax prepare --dry-run`: sources, splits, sizes and target. Writes nothing."""

import os
import pathlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vit_jax.data import availability, example_lists, objectnet
from vit_jax.data.prepare import dedup, pack, shards, staging
from vit_jax.data.prepare.official import archives, build
from vit_jax.data.prepare.shards import read_info, shard_files
from vit_jax.data.source import DataError
from vit_jax.data.tasks import Task
from vit_jax.utils.messages import size_text

UNPACKED_LIMIT = 2**26  # bytes of a compressed file that are unpacked to count its images


def packing(
    name: str, job: pack.Packing, against: Sequence[Task], data_dir: str | None
) -> Iterator[str]:
    """Yields the plan for packing folders, tars and zips; lists them without unpacking any.

    Raises DataError like the packing itself: for unusable sources, a full disk, a missing task.
    """
    listing, layout = pack.inspect_sources(job)
    planned = list(pack.plan_shards(job, listing, layout))
    sizes = listing.sizes()
    yield _reads(name, job.sources, f"{len(listing):,} images", int(sizes.sum()))
    for source in dedup.open_test_sets(against, data_dir):
        title = source.name(0).rpartition(" example")[0]
        yield f"{name}: would read {len(source):,} images: {title}, to leave out duplicates"
    for split, order in layout.order.items():
        size = size_text(int(sizes[order].sum()))
        yield f"{name}: {split}: {len(order):,} images of {len(layout.classes):,} classes, {size}"
    if listing.ignored or layout.ignored:
        yield f"{name}: would skip {pack.why_ignored(listing, layout)}"
    missing = [one for one in planned if shards.outcome(one.path) is None]
    needed = sum(one.size for one in missing)
    total = f"{len(planned):,} shards, "
    if job.max_side is None:
        total += f"about {size_text(int(sizes.sum()))}"
    else:  # the size of a shrunk image is known only afterwards
        needed = 0
        total += f"images shrunk to {job.max_side} pixels"
    yield from _writes(name, job.folder, total, needed, len(planned) - len(missing))


def official(job: build.Job, downloads: Mapping[str, int]) -> Iterator[str]:
    """Yields the plan for building a dataset from its official archives.

    Counts the images unless that takes unpacking large files; small ones are unpacked to a
    temporary folder. `downloads` maps the files that TFDS would
    download first to their sizes in bytes. Raises DataError like `build.build`.
    """
    name, recipe = job.name, job.recipe
    if downloads:
        yield _downloads(name, downloads)
        yield from _official_counts(name, recipe.splits)
        yield from _writes(name, job.folder, f"about {size_text(sum(downloads.values()))}")
        return
    given = [(path, size) for source in job.sources for path, size in _files(source)]
    total = sum(size for _, size in given)
    yield _reads(name, job.sources, f"{len(given):,} files", total)
    try:
        with tempfile.TemporaryDirectory() as scratch:
            contents = build.find_examples(job, pathlib.Path(scratch), UNPACKED_LIMIT)
            splits = {
                split: (len(one), int(one.sizes().sum())) for split, one in contents.splits.items()
            }
    except archives.NeedsUnpackingError as error:
        yield f"{name}: would unpack {error} next to the target; the images are counted only then"
        yield from _official_counts(name, recipe.splits)
        yield from _writes(name, job.folder, f"at least {size_text(total)}", total)
        return
    for split, (number, size) in splits.items():
        yield f"{name}: {split}: {number:,} of {recipe.splits[split]:,} images, {size_text(size)}"
    needed = sum(size for _, size in splits.values())
    yield from _writes(name, job.folder, f"about {size_text(needed)}", needed)


def tfds_download(one: Any, name: str, task: Task | None, manual: str | None) -> Iterator[str]:
    """Yields the plan for a dataset that TFDS downloads, or reads from the folder `manual`."""
    if manual is not None:
        given = list(_files(pathlib.Path(manual)))
        total = sum(size for _, size in given)
        yield _reads(name, [pathlib.Path(manual)], f"{len(given):,} files", total)
    else:
        yield _downloads(name, sizes_of_downloads(one))
    yield from _official_counts(name, task.dataset.images if task else {})
    yield from _writes(name, pathlib.Path(one.data_path), "converted by TFDS")


def sizes_of_downloads(one: Any, wanted: Sequence[str] = ()) -> dict[str, int]:
    """The size in bytes of each file that a builder downloads; `wanted` selects some."""
    infos = (one.url_infos or {}).values()
    return {i.filename: int(i.size or 0) for i in infos if not wanted or i.filename in wanted}


def conversion(name: str, copy: Any, folder: pathlib.Path) -> Iterator[str]:
    """Yields the plan for converting a copy of a dataset in TFRecord files to array_record."""
    info = read_info(copy)
    files = list(shard_files(info))
    total = sum(path.stat().length for path, _ in files)
    yield _reads(name, [copy], f"{len(files):,} TFRecord files", total)
    for split, one in info.splits.items():
        yield f"{name}: {split}: {one.num_examples:,} examples"
    yield from _writes(name, folder, f"{len(files):,} shards, about {size_text(total)}", total)


def one_file(name: str, source: pathlib.Path, images: int, target: pathlib.Path) -> Iterator[str]:
    """Yields the plan for importing a file of labels."""
    size = source.stat().st_size
    yield _reads(name, [source], f"labels of {images:,} images", size)
    yield from _writes(name, target, size_text(size), size)


def verification(name: str, folder: pathlib.Path) -> Iterator[str]:
    """Yields what `--verify` would read."""
    info = read_info(folder)
    files = list(shard_files(info))
    total = sum(path.stat().length for path, _ in files if path.exists())
    examples = f"{info.splits.total_num_examples:,} examples in {len(files):,} shards"
    yield _reads(name, [folder], examples, total)


def example_list(task: Task, data_dir: str | None) -> str:
    """A line about the list of the 1,000 images of a VTAB task."""
    path = example_lists.list_path(availability.directory(data_dir), task.name)
    if path.exists():
        return f"{task.name}: would check that the images listed in {path} exist"
    return f"{task.name}: would list its {task.count(task.whole):,} images in {path}"


def mapping(sources: Sequence[pathlib.Path], folder: pathlib.Path) -> str:
    """A line about ObjectNet's mapping to the classes of ImageNet."""
    found = objectnet.find_mappings(sources)
    if found is None:
        return (
            "objectnet: no mapping to ImageNet's classes in or next to the source; it is needed "
            "for evaluation"
        )
    return f"objectnet: would copy the mapping to ImageNet's classes from {found} to {folder}"


def _reads(name: str, sources: Sequence[Any], contents: str, size: int) -> str:
    return f"{name}: would read {', '.join(map(str, sources))}: {contents}, {size_text(size)}"


def _downloads(name: str, files: Mapping[str, int]) -> str:
    if not files:
        return f"{name}: would download files of unknown size"
    shown = ", ".join(f"{file} ({size_text(size)})" for file, size in list(files.items())[:10])
    more = f" and {len(files) - 10} more files" if len(files) > 10 else ""
    return f"{name}: would download {shown}{more}: {size_text(sum(files.values()))} in all"


def _official_counts(name: str, images: Mapping[str, int]) -> Iterator[str]:
    for split, number in images.items():
        yield f"{name}: {split}: {number:,} images expected"


def _writes(
    name: str, folder: pathlib.Path, contents: str, needed: int = 0, finished: int = 0
) -> Iterator[str]:
    """Yields the target; raises DataError if it cannot be written, PrepareError if disk is short.

    `finished` shards of an earlier attempt are kept, if it used the same images and settings.
    """
    existing = staging.nearest_existing(folder)
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise DataError(f"{folder}: {existing} is not a writable folder; choose another --data-dir")
    free = staging.free_bytes(folder)
    kept = f"; {finished:,} shards of an earlier attempt are there" if finished else ""
    yield f"{name}: would write {folder}: {contents}{kept}; {size_text(free)} of disk space is free"
    staging.check_free(folder, needed, "free some space, or choose another --data-dir")


def _files(source: pathlib.Path) -> Iterator[tuple[pathlib.Path, int]]:
    """Yields the files of a folder, or the file itself, with their sizes."""
    if not source.exists():
        raise DataError(f"--from={source}: no such file or folder")
    paths = source.rglob("*") if source.is_dir() else [source]
    for path in sorted(paths):
        if path.is_file():
            yield path, path.stat().st_size
