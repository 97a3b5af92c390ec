"""Prepares one name: downloads, converts, packs, imports or verifies."""

import pathlib
import shutil
from collections.abc import Iterator, Sequence

import tensorflow_datasets as tfds
from etils import epath

from vit_jax import config
from vit_jax.data import availability, bucket, example_lists, objectnet, real_labels, sources, tasks
from vit_jax.data.datasets import MANUAL, OBJECTNET, PACKED
from vit_jax.data.decoding import BadImage
from vit_jax.data.prepare import download, pack, shards, tfrecords
from vit_jax.data.prepare import request as lines
from vit_jax.data.prepare.official import build
from vit_jax.data.prepare.request import Request
from vit_jax.data.prepare.shards import read_info, shard_files
from vit_jax.data.prepare.verify import verify
from vit_jax.data.source import DataError
from vit_jax.data.tasks import Task
from vit_jax.utils import limits, storage
from vit_jax.utils.messages import size_text

REAL_TASK = "imagenet-real"


def names(given: Sequence[str], request: Request) -> list[str]:
    """The names to prepare: tasks, TFDS datasets or new datasets of the user.

    Raises ConfigError for an unknown name, with the nearest one.
    """
    found: list[str] = []
    for name in given:
        try:
            found += [task.name for task in tasks.select(name)]
        except config.ConfigError:
            packed = request.sources or request.verify
            # A name that is packed or verified may be of the user's own.
            if not packed and name.partition(":")[0].partition("/")[0] not in tfds.list_builders(
                with_community_datasets=False
            ):
                raise
            found.append(name)
    if request.sources and len(found) > 1:
        raise config.ConfigError("--from: is for one name at a time")
    # A group and one of its tasks may both be given.
    return list(dict.fromkeys(found))


def prepare(name: str, request: Request) -> Iterator[str]:
    """Prepares a task or a dataset and yields lines for the user.

    Raises DataError if that is impossible, or if verification finds faults.
    """
    task = tasks.TASKS.get(name)
    if request.verify and request.sources:
        raise config.ConfigError("--verify: reads a prepared dataset; leave out --from")
    if request.verify or name == REAL_TASK:
        request.refuse_packing("--verify" if request.verify else name)
    if request.verify:
        yield from _verify(name, task, request)
    elif name == REAL_TASK:
        yield from _import_real(request)
    elif request.sources:
        yield from _from_sources(name, task, request)
    elif task is not None and task.dataset.obtained == PACKED:
        request.refuse_packing(name)
        request.refuse_partial(name)
        raise DataError(
            f"{name}: is packed from files of yours: {task.dataset.files}; "
            f"{availability.prepare_command(name, request.data_dir)}"
        )
    elif task is not None and task.dataset.tfds in build.RECIPES:
        yield from build.prepare(name, task, request)
    else:
        yield from download.prepare(name, task, request)
    # VTAB's splits are slices, which would be other images in another order or version.
    if task is not None and name.startswith("vtab/"):
        yield list_examples(task, request)
    # Only now: an interrupted command goes on with them.
    if not request.dry_run:
        request.drop_copies()


def _from_sources(name: str, task: Task | None, request: Request) -> Iterator[str]:
    tfds_name, copy = task.dataset.tfds if task else name, None
    (first, *more) = request.sources
    if not more and (storage.is_remote(first) or not bucket.is_bucket(first)):  # TFDS reads gs://
        with storage.readable_errors(f"--from={first}", DataError):
            # A folder that TFDS made is converted, whatever else the name could mean.
            copy = tfrecords.find_copy(epath.Path(first), tfds_name)
    if copy is not None:
        yield from tfrecords.prepare(name, tfds_name, copy, request)
    elif request.buckets and request.dry_run:
        for source in request.buckets:
            yield f"{name}: {bucket.describe_copy(source, request.cache_folder())}"
    elif task is not None and tfds_name in build.RECIPES:
        yield from build.prepare(name, task, request)
    elif task is None or task.dataset.obtained == PACKED:
        yield from pack.prepare(name, task, request)
        if task is not None and task.dataset is OBJECTNET:
            yield _copy_mappings(request)
    elif task.dataset.obtained == MANUAL and len(request.sources) == 1:
        yield from download.prepare(name, task, request, str(request.paths()[0]))
    else:
        raise DataError(
            f"{name}: --from={request.sources[0]}: holds no copy that TFDS made (with a "
            "dataset_info.json); to pack images of your own, choose another name"
        )


def _verify(name: str, task: Task | None, request: Request) -> Iterator[str]:
    data_dir = availability.directory(request.data_dir)
    if name == REAL_TASK and (file := request.directory() / availability.REAL_FILE).exists():
        labels = real_labels.load_real(file)
        with storage.errors_as(DataError, str(file.with_suffix(".sha256"))):
            expected = file.with_suffix(".sha256").read_bytes().strip()
        if labels.sha256.encode() != expected:
            raise DataError(f"{file}: its SHA-256 has changed since it was imported")
        yield f"{name}: {len(labels):,} images, as imported"
        return
    if task is not None:
        there = availability.find_prepared(task.dataset, request.data_dir)
        found = there.path if there else None
    else:
        folder = data_dir / name.partition(":")[0]
        found = tfrecords.find_copy(folder, name) if folder.is_dir() else None
    if found is None:
        todo = (
            availability.prepare_command(name, request.data_dir)
            or f"vit_jax prepare {name} --from=FOLDER"
        )
        raise DataError(f"{name}: is not prepared in {data_dir}; first: {todo}")
    folder = pathlib.Path(found)
    info = read_info(folder)
    if request.dry_run:
        files = shard_files(info)
        # A dry run reports what is there: a missing shard is a fault that the real one finds.
        total = sum(path.stat().length for path, _ in files if path.exists())
        contents = f"{info.splits.total_num_examples:,} examples in {len(files):,} shards"
        yield lines.reads(name, [folder], contents, total)
        return
    bad = 0
    for line in verify(folder, workers=request.workers):
        bad += 1
        yield f"{name}: {line}"
    if bad:
        raise DataError(f"{name}: {bad} faults in {folder}; remove it and prepare it again")
    yield f"{name}: {info.splits.total_num_examples:,} examples in {folder}, all good"


def _import_real(request: Request) -> Iterator[str]:
    target = request.directory() / availability.REAL_FILE
    if not request.sources and target.exists():
        yield f"{REAL_TASK}: is prepared already, in {target}"
        return
    if len(request.sources) != 1:
        files = tasks.TASKS[REAL_TASK].dataset.files
        raise DataError(f"{REAL_TASK}: is one file: {files}; give it as --from=real.json")
    if request.buckets and request.dry_run:
        yield f"{REAL_TASK}: {bucket.describe_copy(request.buckets[0], request.cache_folder())}"
        return
    source = request.paths()[0]
    labels = real_labels.load_real(source)
    if request.dry_run:
        size = source.stat().st_size
        yield lines.reads(REAL_TASK, [source], f"labels of {len(labels):,} images", size)
        yield from lines.writes(REAL_TASK, target, size_text(size), size)
        return
    with shards.disk_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        # The labels last: by their file they count as imported.
        storage.write_atomically(target.with_suffix(".sha256"), labels.sha256 + "\n")
        storage.write_atomically(target, limits.read_file(source, limits.LABELS))
    yield (
        f"{REAL_TASK}: {len(labels):,} images, {len(labels) - labels.scored:,} of them without a "
        f"label, in {target}"
    )


def list_examples(task: Task, request: Request) -> str:
    """Writes the list of a task's images, or checks an existing list; returns a line for the user.

    Raises DataError if an image of the list is missing, or cannot be read.
    """
    root = availability.directory(request.data_dir)
    path = example_lists.list_path(root, task.name)
    if request.dry_run and path.exists():
        return f"{task.name}: would check that the images listed in {path} exist"
    if request.dry_run:
        return f"{task.name}: would list its {task.count(task.whole):,} images in {path}"
    if path.exists():
        data = config.Tfds(
            name=task.dataset.name,
            root=str(root),
            labels=task.labels,
            examples=str(path),
        )
        # Opening them compares every image with the list.
        sources.open_source(data, task.whole, train=True)
        return f"{task.name}: the images of {path} are all there"
    source = sources.open_task(task, task.whole, str(root))
    try:
        sha256 = example_lists.write_list(
            source,
            path,
            task=task.name,
            dataset=source.dataset,
            version=source.version,
            split=task.whole,
        )
    except BadImage as error:
        raise DataError(f"{task.name}: {task.whole}: an image {error}") from None
    return f"{task.name}: its {len(source):,} images are listed in {path}, SHA-256 {sha256[:16]}"


def _copy_mappings(request: Request) -> str:
    """Copies ObjectNet's folder `mappings`, in or next to a source, to the packed dataset.

    Returns a line for the user.
    """
    given = request.paths()
    target = request.directory() / OBJECTNET.tfds / pack.VERSION / objectnet.FOLDER
    found = objectnet.find_mappings(given)
    what = "its mapping to ImageNet's classes"
    if found is None:
        if target.is_dir():
            return f"objectnet: {what} is in {target}"
        return (
            f"objectnet: cannot be evaluated without {what}, which is neither in "
            f"{given[0] / objectnet.FOLDER} nor next to it; run this again with "
            "--from=objectnet-1.0, as unpacked"
        )
    if request.dry_run:
        return f"objectnet: would copy {what} from {found} to {target}"
    with shards.disk_errors(target):
        target.mkdir(exist_ok=True)
        for name in objectnet.FILES:
            with storage.replacing(target / name) as part:
                shutil.copyfile(found / name, part)
    return f"objectnet: {what}: in {target}"
