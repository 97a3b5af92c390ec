"""Prepares one name: downloads, converts, packs, imports or verifies."""

import dataclasses
import pathlib
import re
import shlex
import shutil
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import tensorflow_datasets as tfds
from etils import epath

from vit_jax import config
from vit_jax.data import (
    availability,
    example_lists,
    objectnet,
    real_labels,
    sources,
    splits,
    tasks,
)
from vit_jax.data.datasets import IMAGENET21K, MANUAL, OBJECTNET, PACKED
from vit_jax.data.decoding import BadImage
from vit_jax.data.prepare import dedup, download, pack, preview, shards, staging, tfrecords
from vit_jax.data.prepare.official import build
from vit_jax.data.prepare.official.recipe import Recipe
from vit_jax.data.prepare.shards import read_info
from vit_jax.data.prepare.verify import verify
from vit_jax.data.source import DataError
from vit_jax.data.splits import Split
from vit_jax.data.tasks import Task
from vit_jax.utils import messages, storage

REAL_TASK = "imagenet-real"
HOLDOUT = 0.1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """What to do with a name; the fields are the flags of the command.

    Attributes:
      data_dir: where datasets are; None: TFDS's default.
      sources: what to make it of; none: it is downloaded.
      verify: read what is prepared again.
      holdout: share of each class of images that becomes a validation split where a dataset of the
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
        """The folder of datasets; raises ConfigError unless it is on this machine."""
        folder = str(availability.directory(self.data_dir))
        if not messages.is_utf8(folder):  # array_record could not open a file there
            raise config.ConfigError(f"--data-dir={folder}: is not UTF-8; choose another folder")
        return _local(folder, "--data-dir")

    def paths(self) -> list[pathlib.Path]:
        """The sources; raises ConfigError unless they are on this machine."""
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
                f"--partial: is for datasets with an official number of images, and {name} has none"
            )


def _local(path: str, key: str) -> pathlib.Path:
    if "://" in path:
        raise config.ConfigError(
            f"{key}={path}: only a folder of this machine can be written to or packed from; "
            f"prepare it here, then: gcloud storage cp -r FOLDER gs://BUCKET"
        )
    return pathlib.Path(path).expanduser()


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
            if not packed and name.partition(":")[0].partition("/")[0] not in tfds.list_builders(
                with_community_datasets=False
            ):
                raise
            found.append(name)
    if request.sources and len(found) > 1:
        raise config.ConfigError("--from: is for one name at a time")
    return list(dict.fromkeys(found))


def prepare(name: str, request: Request) -> Iterator[str]:
    """Prepares a task or a dataset and yields lines for the user.

    Raises DataError if that is impossible, or if verification finds faults.
    """
    task = tasks.TASKS.get(name)
    if request.verify and request.sources:
        raise config.ConfigError("--verify: reads a prepared dataset; leave out --from")
    if request.verify:
        yield from _verify(name, task, request)
    elif name == REAL_TASK:
        yield from _import_real(request)
    elif request.sources:
        yield from _from_sources(name, task, request)
    else:
        yield from _download(name, task, request)
    if task is not None and name.startswith("vtab/"):
        if request.dry_run:
            yield preview.example_list(task, request.data_dir)
            return
        yield _list_examples(task, request.data_dir)


def _tfds_name(name: str, task: Task | None) -> str:
    return task.dataset.tfds if task else name


def _prepared(name: str, task: Task | None, request: Request) -> epath.Path | None:
    """The folder of the newest prepared version of a dataset, or None."""
    if task is not None:
        there = availability.find_prepared(task.dataset, request.data_dir)
        return there.path if there else None
    folder = availability.directory(request.data_dir) / name.partition(":")[0]
    return tfrecords.find_copy(folder, name) if folder.is_dir() else None


def _verify(name: str, task: Task | None, request: Request) -> Iterator[str]:
    if name == REAL_TASK and (file := request.directory() / availability.REAL_FILE).exists():
        labels = real_labels.load_real(file)
        expected = file.with_suffix(".sha256").read_text().strip()
        if labels.sha256 != expected:
            raise DataError(f"{file}: its SHA-256 has changed since it was imported")
        yield f"{name}: {len(labels):,} images, as imported"
        return
    folder = _prepared(name, task, request)
    if folder is None:
        where = availability.directory(request.data_dir)
        todo = (
            availability.prepare_command(name, request.data_dir)
            or f"vit_jax prepare {name} --from=FOLDER"
        )
        raise DataError(f"{name}: is not prepared in {where}; first: {todo}")
    if request.dry_run:
        yield from preview.verification(name, pathlib.Path(folder))
        return
    bad = 0
    limit = config.Data().max_pixels
    for line in verify(pathlib.Path(folder), workers=request.workers, max_pixels=limit):
        bad += 1
        yield f"{name}: {line}"
    if bad:
        raise DataError(f"{name}: {bad} faults in {folder}; remove it and prepare it again")
    count = read_info(folder).splits.total_num_examples
    yield f"{name}: {count:,} examples in {folder}, all good"


def _import_real(request: Request) -> Iterator[str]:
    target = request.directory() / availability.REAL_FILE
    if not request.sources and target.exists():
        yield f"{REAL_TASK}: is prepared already, in {target}"
        return
    if len(request.sources) != 1:
        files = tasks.TASKS[REAL_TASK].dataset.files
        raise DataError(f"{REAL_TASK}: is one file: {files}; give it as --from=real.json")
    source = request.paths()[0]
    labels = real_labels.load_real(source)
    if request.dry_run:
        yield from preview.one_file(REAL_TASK, source, len(labels), target)
        return
    with shards.disk_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        storage.write_atomically(target, source.read_text(encoding="utf-8"))
        storage.write_atomically(target.with_suffix(".sha256"), labels.sha256 + "\n")
    yield (
        f"{REAL_TASK}: {len(labels):,} images, {len(labels) - labels.scored:,} of them without a "
        f"label, in {target}"
    )


def _from_sources(name: str, task: Task | None, request: Request) -> Iterator[str]:
    copy = None
    if len(request.sources) == 1:
        with storage.readable_errors(f"--from={request.sources[0]}", DataError):
            copy = tfrecords.find_copy(epath.Path(request.sources[0]), _tfds_name(name, task))
    if copy is not None:
        request.refuse_packing(name)
        request.refuse_partial(name)
        if request.dry_run:
            with storage.readable_errors(f"--from={copy}", DataError):
                folder = tfrecords.check_copy(copy, _tfds_name(name, task), request.directory())
                yield from preview.conversion(name, copy, folder)
            return
        with storage.readable_errors(f"--from={copy}", DataError):
            folder = tfrecords.convert(copy, _tfds_name(name, task), request.directory())
        yield f"{name}: converted, in {folder}"
    elif (recipe := _recipe(task)) is not None:
        yield from _build(name, recipe, request)
    elif task is not None and task.dataset.obtained != PACKED:
        if task.dataset.obtained != MANUAL or len(request.sources) != 1:
            raise DataError(
                f"{name}: --from={request.sources[0]}: holds no copy that TFDS made (with a "
                "dataset_info.json); to pack images of your own, choose another name"
            )
        yield from _download(name, task, request, str(request.paths()[0]))
    else:
        yield from _pack(name, task, request)
        if task is not None and task.dataset is OBJECTNET and not request.dry_run:
            folder = availability.find_prepared(task.dataset, request.data_dir)
            assert folder is not None, "it is packed"
            yield _copy_mappings(request.paths(), pathlib.Path(folder.path))


def _recipe(task: Task | None) -> Recipe | None:
    return None if task is None else build.RECIPES.get(task.dataset.tfds)


def _build(name: str, recipe: Recipe, request: Request) -> Iterator[str]:
    """Packs official archives: those given, those in TFDS's folder for them, or downloaded ones."""
    request.refuse_packing(name)
    data_dir = request.directory()
    one = download.builder(recipe.builder, str(data_dir))
    if download.prepared(one) == "array_record":
        yield _already(name, one, request)
        return
    _check_format(name, one)
    sources = request.paths()
    downloads = {}
    if not sources and request.dry_run:
        sources = download.manual_archives(one, name, recipe, data_dir)
        downloads = {} if sources else preview.sizes_of_downloads(one, recipe.downloads)
    elif not sources:
        sources = download.archives(one, name, recipe, data_dir)
    job = build.Job(
        name=name,
        recipe=recipe,
        builder=one,
        sources=sources,
        partial=request.partial,
        workers=request.workers,
    )
    if request.dry_run:
        yield from preview.official(job, downloads)
        return
    facts = build.build(job)
    yield f"{name}: {build.counts(facts)}"
    yield f"{name}: prepared, in {one.data_path}"


def _already(name: str, one: Any, request: Request) -> str:
    """A line about an existing dataset; raises DataError if it is partial."""
    facts = build.held(pathlib.Path(one.data_path))
    if facts is not None and build.is_partial(facts) and not request.partial:
        raise DataError(
            f"{name}: is prepared in part, in {one.data_path}: {build.counts(facts)}; to prepare "
            f"all of it, remove that: rm -r {one.data_path}"
        )
    return f"{name}: is prepared already, in {one.data_path}"


def _check_format(name: str, one: Any) -> None:
    if there := download.prepared(one):
        raise DataError(
            f"{name}: is prepared as {there} in {one.data_path}; convert it: vit_jax prepare "
            f"{name} --from={one.data_path} --data-dir=ANOTHER"
        )


def _download(
    name: str, task: Task | None, request: Request, manual: str | None = None
) -> Iterator[str]:
    request.refuse_packing(name)
    request.refuse_partial(name)
    dataset = task.dataset if task else None
    if dataset is not None and dataset.obtained == PACKED:
        raise DataError(
            f"{name}: is packed from files of yours: {dataset.files}; "
            f"{availability.prepare_command(name, request.data_dir)}"
        )
    recipe = _recipe(task)
    if recipe is not None:
        yield from _build(name, recipe, request)
        return
    folder = request.directory()
    one = download.builder(dataset.name if dataset else name, str(folder))
    if download.prepared(one) == "array_record":
        yield f"{name}: is prepared already, in {one.data_path}"
        return
    _check_format(name, one)
    packages, files = (dataset.packages, dataset.files) if dataset else ((), "")
    if request.dry_run:
        manual = download.check_requirements(one, name, packages, files, manual)
        yield from preview.tfds_download(one, name, task, manual)
        return
    download.download(one, name, packages, files, manual)
    yield f"{name}: prepared, in {one.data_path}"


def _pack(name: str, task: Task | None, request: Request) -> Iterator[str]:
    request.refuse_partial(name)
    known = _tfds_name(name, task)
    if not re.fullmatch(r"[a-z][a-z0-9_]*", known):
        raise config.ConfigError(f"{name}: no name for a dataset; small letters, digits and _")
    if task is None and known in tfds.list_builders(with_community_datasets=False):
        raise DataError(
            f"{name}: TFDS has a dataset of this name, with other versions; choose another"
        )
    flag = "--dedup-against="
    excluded = [task for pattern in request.against for task in tasks.select(pattern, flag)]
    packing = pack.Packing(
        sources=request.paths(),
        name=known,
        data_dir=request.directory(),
        unsplit=Split.parse(task.train or task.test, "train").name if task else "train",
        holdout=0.0 if task else HOLDOUT if request.holdout is None else request.holdout,
        max_side=request.max_side,
        max_pixels=config.Data().max_pixels,
        against=sorted({task.name for task in excluded}),
        distance=request.distance,
        workers=request.workers,
    )
    if packing.folder.exists():
        held = pack.check_same(packing, keep_part=request.dry_run)
        yield (
            f"{name}: is packed already, {held:,} images in {packing.folder}; to pack others, "
            f"remove it: rm -r {packing.folder}"
        )
        return
    if request.dry_run:
        yield from preview.packing(name, packing, excluded, request.data_dir)
        if task is not None and task.dataset is OBJECTNET:
            yield preview.mapping(packing.sources, packing.folder)
        return
    if excluded:
        pack.check_sources(packing)  # before minutes are spent on the others
        prints = pack.kept_prints(packing)
        prints = prints or dedup.collect_prints(excluded, request.data_dir, request.workers)
        packing = dataclasses.replace(packing, prints=prints)
    facts = pack.pack(packing)
    if request.holdout and not facts["holdout"]:
        yield f"{name}: --holdout={request.holdout:g}: not used, as splits are given"
    yield from _report(name, packing, facts)
    classes = IMAGENET21K.classes
    if task is not None and task.dataset is IMAGENET21K and facts["classes"] != classes:
        yield (
            f"{name}: has {facts['classes']:,} classes, not the {classes:,} of the paper's models, "
            "whose heads do not fit"
        )


def _report(name: str, packing: pack.Packing, facts: dict[str, Any]) -> Iterator[str]:
    for split, about in facts["splits"].items():
        yield f"{name}: {split}: {about['examples']:,} images of {facts['classes']:,} classes"
    report = packing.folder / staging.FACTS
    for key, what in (
        ("resized", f"were larger than {packing.max_side} pixels and are resized"),
        ("corrupt", f"cannot be read and are left out; {report} names them"),
        ("duplicates", f"are test images of other tasks and are left out; {report} has the pairs"),
        ("ignored", f"are left out: {facts['ignored_why']}"),
    ):
        value = facts[key]
        number = value if isinstance(value, int) else len(value)
        if number:
            yield f"{name}: {number:,} files {what}"
    yield f"{name}: in {packing.folder}; to train on it: {_training(packing, facts['splits'])}"


def _training(packing: pack.Packing, names: Collection[str]) -> str:
    """A command that trains and evaluates on the packed splits."""
    flags = [("name", packing.name), ("root", str(packing.data_dir))]
    evaluation = splits.for_evaluation(names)
    train = splits.find_folder("train", names) or next(
        (split for split in sorted(names) if split != evaluation), evaluation
    )
    if evaluation is None or evaluation == train:  # its order is by hash: any part is a sample
        flags += [("train_split", f"{train}[:90%]"), ("eval_split", f"{train}[90%:]")]
    else:
        flags += [("train_split", train)] if train != "train" else []
        flags += [("eval_split", evaluation)]
    words = (f"--config.data.{key}={value}" for key, value in flags)
    return shlex.join(["vit_jax", "train", "tfds", *words])


def _list_examples(task: Task, data_dir: str | None) -> str:
    """Writes the list of a task's images, or checks an existing list; returns a line for the user.

    Raises DataError if an image of the list is missing, or cannot be read.
    """
    root = availability.directory(data_dir)
    path = example_lists.list_path(root, task.name)
    if path.exists():
        data = config.Tfds(
            name=task.dataset.name,
            root=str(root),
            labels=task.labels,
            examples=str(path),
        )
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


def _copy_mappings(given: Sequence[pathlib.Path], folder: pathlib.Path) -> str:
    """Copies the folder `mappings`, in or next to a source, to a packed dataset.

    Returns a line for the user.
    """
    found = objectnet.find_mappings(given)
    target = folder / objectnet.FOLDER
    if found is None:
        if target.is_dir():
            return f"objectnet: its mapping to ImageNet's classes is in {target}"
        return (
            "objectnet: cannot be evaluated without its mapping to ImageNet's classes, which is "
            f"neither in {given[0] / objectnet.FOLDER} nor next to it; run this again with "
            "--from=objectnet-1.0, as unpacked"
        )
    with shards.disk_errors(target):
        target.mkdir(exist_ok=True)
        for name in objectnet.FILES:
            with storage.replacing(target / name) as part:
                shutil.copyfile(found / name, part)
    return f"objectnet: its mapping to ImageNet's classes: in {target}"
