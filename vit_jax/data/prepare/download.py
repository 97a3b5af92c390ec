"""Downloads datasets with TFDS and prepares them as array_record."""

import contextlib
import importlib.util
import pathlib
import re
import socket
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow_datasets as tfds

from vit_jax.config import NO_ROOM
from vit_jax.data import tfds_metadata
from vit_jax.data.availability import EXTRA, INFO
from vit_jax.data.prepare import request as lines
from vit_jax.data.prepare.official.recipe import Recipe
from vit_jax.data.prepare.request import Request
from vit_jax.data.prepare.shards import PrepareError, read_info
from vit_jax.data.source import DataError
from vit_jax.data.tasks import Task
from vit_jax.utils.storage import reason


def builder(name: str, data_dir: str | None) -> Any:
    """The TFDS builder of a dataset; raises DataError."""
    try:
        return tfds_metadata.builder(name, data_dir=data_dir, file_format="array_record")
    except tfds.core.DatasetNotFoundError:
        raise DataError(f"{name}: TFDS has no such dataset") from None
    # TFDS raises AssertionError for a version that it does not have.
    except (ValueError, AssertionError) as error:
        raise DataError(f"{name}: {reason(error)}") from None
    except ImportError as error:
        raise DataError(_needs(name, [error.name or "tensorflow"])) from None


def is_prepared(name: str, one: Any) -> bool:
    """Whether a dataset is there as array_record; raises DataError if it has another format."""
    if not (one.data_path / INFO).exists():
        return False
    found = read_info(one.data_path).file_format
    if found == tfds.core.FileFormat.ARRAY_RECORD:
        return True
    raise DataError(
        f"{name}: is prepared as {found.value if found else 'tfrecord'} in {one.data_path}; "
        f"convert it: vit_jax prepare {name} --from={one.data_path} --data-dir=ANOTHER"
    )


def prepare(
    name: str, task: Task | None, request: Request, manual: str | None = None
) -> Iterator[str]:
    """Has TFDS download a dataset, or read it from the folder `manual`, and yields lines.

    Raises DataError with one line that names what is missing, and PrepareError if another attempt
    may succeed.
    """
    request.refuse_packing(name)
    request.refuse_partial(name)
    dataset = task.dataset if task else None
    one = builder(dataset.name if dataset else name, str(request.directory()))
    if is_prepared(name, one):
        yield f"{name}: is prepared already, in {one.data_path}"
        return
    packages, files = (dataset.packages, dataset.files) if dataset else ((), "")
    manual = _check_requirements(one, name, packages, files, manual)
    if not request.dry_run:
        _download(one, name, manual)
        yield f"{name}: prepared, in {one.data_path}"
        return
    if manual is not None:
        sizes = lines.file_sizes(pathlib.Path(manual))
        yield lines.reads(name, [manual], f"{len(sizes):,} files", sum(sizes))
    else:
        yield lines.downloads(name, sizes_of_downloads(one))
    yield from lines.expected(name, dataset.images if dataset else {})
    yield from lines.writes(name, pathlib.Path(one.data_path), "converted by TFDS")


def sizes_of_downloads(one: Any, wanted: Sequence[str] = ()) -> dict[str, int]:
    """The size in bytes of each file that a builder downloads; `wanted` selects some."""
    infos = (one.url_infos or {}).values()
    return {i.filename: int(i.size or 0) for i in infos if not wanted or i.filename in wanted}


def _download(one: Any, name: str, manual: str | None) -> None:
    if manual is None:
        check_network(one, name)
    config = tfds.download.DownloadConfig(manual_dir=manual)
    with _one_line(name), contextlib.redirect_stdout(sys.stderr):
        # TFDS prints its progress to stdout, which is for the lines of the command.
        one.download_and_prepare(download_config=config)


def _check_requirements(
    one: Any, name: str, packages: Sequence[str], files: str, manual: str | None
) -> str | None:
    """The folder with the user's files, or None if TFDS downloads them.

    Raises DataError if `files` or `packages` are missing.
    """
    if one.MANUAL_DOWNLOAD_INSTRUCTIONS:
        # TFDS's own default for files that a user has to get.
        manual = manual or str(pathlib.Path(one._data_dir_root) / "downloads/manual")
        _check_manual(name, files or " ".join(one.MANUAL_DOWNLOAD_INSTRUCTIONS.split()), manual)
    modules = {"scikit-image": "skimage"}
    missing = [p for p in packages if importlib.util.find_spec(modules.get(p, p)) is None]
    if missing:
        raise DataError(_needs(name, missing))
    return manual if one.MANUAL_DOWNLOAD_INSTRUCTIONS else None


def archives(one: Any, name: str, recipe: Recipe, data_dir: pathlib.Path) -> list[pathlib.Path]:
    """The folders with the archives of a recipe: the user's, or downloads of TFDS.

    TFDS checks their SHA-256; links give them their official names. Raises like `download`.
    """
    if manual := manual_archives(one, name, recipe, data_dir):
        return manual
    check_network(one, name, f"; or get {recipe.files}, and give their folder by --from=")
    infos = {u: i for u, i in one.url_infos.items() if i.filename in recipe.downloads}
    folder = data_dir / "downloads"
    with _one_line(name), contextlib.redirect_stdout(sys.stderr):
        manager = tfds.download.DownloadManager(
            download_dir=folder, dataset_name=one.name, url_infos=infos
        )
        found: Any = manager.download({info.filename: url for url, info in infos.items()})
        # TFDS names a download after its address and digest, recipes use the official name.
        links = folder / "official" / one.name
        links.mkdir(parents=True, exist_ok=True)
        for official, path in found.items():
            link = links / official
            link.unlink(missing_ok=True)  # an earlier call's, perhaps to a download that is gone
            link.symlink_to(pathlib.Path(path).resolve())
    return [links]


def manual_archives(
    one: Any, name: str, recipe: Recipe, data_dir: pathlib.Path
) -> list[pathlib.Path]:
    """TFDS's folder for archives that the user downloads; empty if TFDS downloads them.

    Raises DataError if that folder is empty, or nobody can download the archives.
    """
    if one.MANUAL_DOWNLOAD_INSTRUCTIONS:
        manual = data_dir / "downloads/manual"
        _check_manual(name, recipe.files, str(manual), all_of_them=False)
        return [manual]
    if not recipe.downloads:
        raise DataError(f"{name}: is not downloaded; get {recipe.files}; then --from=FOLDER")
    return []


def _needs(name: str, missing: Sequence[str]) -> str:
    return f"{name}: TFDS needs {', '.join(missing)} to prepare it, once: {EXTRA}"


def _check_manual(name: str, files: str, folder: str, *, all_of_them: bool = True) -> None:
    """Raises DataError for an empty folder or, with `all_of_them`, for missing files."""
    path = pathlib.Path(folder)
    if not path.is_dir() or not any(path.iterdir()):
        raise DataError(f"{name}: put into {folder}: {files}; or give their folder by --from=")
    wanted = re.findall(r"\b[\w.-]+\.(?:tar|zip|csv)\b", files.partition(", unpacked")[0])
    lacking = [each for each in wanted if not (path / each).exists()]
    # Of what is to be unpacked, the archives themselves may be gone.
    if all_of_them and wanted and lacking and "unpacked" not in files:
        raise DataError(f"{name}: {folder} lacks {', '.join(lacking)}; it takes {files}")


def check_network(one: Any, name: str, otherwise: str = "") -> None:
    """Raises PrepareError without a network, where TFDS would retry for minutes."""
    # A proxy looks names up, so that a failure to do so here would mean nothing.
    if urllib.request.getproxies():
        return
    # One address is enough to tell whether names are looked up at all.
    for url in list(one.url_infos or ())[:1]:
        host = urllib.parse.urlsplit(url).hostname
        if host:
            try:
                socket.getaddrinfo(host, 443)
            except OSError as error:
                raise PrepareError(
                    f"{name}: cannot reach {host} ({error.strerror}); check the network, "
                    f"or give a copy that TFDS prepared elsewhere: --from=FOLDER{otherwise}"
                ) from None


@contextlib.contextmanager
def _one_line(name: str) -> Iterator[None]:
    """Turns any error of a TFDS builder into one line."""
    try:
        yield
    except ImportError as error:
        raise DataError(_needs(name, [error.name or "tensorflow"])) from None
    except OSError as error:
        if error.errno in NO_ROOM or "disk space" in str(error):
            raise PrepareError(
                f"{name}: {reason(error)}; free some space, or choose another --data-dir"
            ) from None
        raise PrepareError(f"{name}: {reason(error)}") from None
    except Exception as error:
        # Builders have many authors and raise many types for a wrong file.
        if "tensorflow" in str(error).lower() and "import" in str(error).lower():
            raise DataError(_needs(name, ["tensorflow"])) from None
        raise DataError(f"{name}: {type(error).__name__}: {reason(error)}") from None
