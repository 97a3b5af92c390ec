"""Commit records: the file, written last, that makes a folder a checkpoint. No jax needed.

    DIRECTORY/00000200/state/...      arrays, written by orbax
    DIRECTORY/00000200/commit.json    step, facts of the run, metrics, a digest of every array, size
                                      and CRC-32 of every file, and a SHA-256 of all that

A folder without commit.json is an unfinished save, to be removed; one that turned out damaged is
renamed to NUMBER.bad and kept for whoever wants to know why.
"""

import contextlib
import errno
import hashlib
import json
import logging
import math
import os
import re
import uuid
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, TypedDict

from etils import epath

from vit_jax.utils import limits, storage
from vit_jax.utils.errors import CheckpointError, DamagedCheckpoint

COMMIT, STATE = "commit.json", "state"
BEST, NEWEST = "best", "newest"  # checkpoints by name instead of by step
# Errors of a process or a network share: the file may be whole.
PASSING = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE, errno.ETIMEDOUT}
PARTS = {"step": int, "facts": dict, "metrics": dict, "leaves": dict, "files": dict}
FACTS = {"config": dict, "classes": list, "data": str, "examples": int, "measured": dict}
FACTS |= {"plugins": dict, "versions": dict, "changes": list}  # optional ones
ERRORS = ("loss", "ece", "mae", "rmse")  # metrics that are better when lower
Commit = dict[str, Any]  # the content of commit.json
BLOCK = 2**20  # bytes read at a time: a core's cache has room for them
OWN = re.compile(r"(?P<step>\d{8,})(?P<suffix>|\.old|\.bad\d*)")

log = logging.getLogger("vit_jax")


class Leaf(TypedDict):
    """An array in a commit record."""

    dtype: str
    shape: list[int]
    digest: str  # by `digests.Digests`: 16 hex digits


def absolute(directory: epath.PathLike) -> epath.Path:
    """A directory as an absolute path, which orbax requires."""
    path = epath.Path(directory)
    return path if storage.is_remote(path) else path.absolute()


def folder(directory: epath.PathLike, step: int) -> epath.Path:
    """The folder of a step's checkpoint."""
    return epath.Path(directory) / f"{step:08d}"


def steps(directory: epath.PathLike) -> list[int]:
    """The committed steps in a directory, ascending; raises CheckpointError."""
    return sorted(
        int(match["step"])
        for path, match in checkpoint_folders(directory)
        if not match["suffix"] and is_committed(path)
    )


def is_committed(path: epath.Path) -> bool:
    """Whether a folder has a commit record, readable or not.

    A link that leads nowhere, or in a circle, is damage to report, not an unfinished save.
    """
    if storage.is_remote(path):
        return (path / COMMIT).exists()
    try:
        os.lstat(path / COMMIT)
    except (FileNotFoundError, NotADirectoryError):
        return os.path.islink(path) and not path.exists()  # noqa: PTH114 (epath has none)
    except OSError:
        # Not known to lack one, as after an I/O error: `tidy` would delete it.
        pass
    return True


def checkpoint_folders(directory: epath.PathLike) -> list[tuple[epath.Path, re.Match[str]]]:
    """Checkpoint folders of a directory, whole or not, with the match of their name."""
    directory = epath.Path(directory)
    try:
        with storage.os_errors():
            paths = list(directory.iterdir()) if directory.exists() else []
    except OSError as error:
        raise CheckpointError(f"{directory}: cannot be read: {first_line(error)}") from error
    return [(path, match) for path in sorted(paths) if (match := OWN.fullmatch(path.name))]


def write_commit(path: epath.Path, commit: Commit) -> None:
    """Commits the checkpoint in folder `path`: everything durable first, the record last.

    Ends once the record has been read back. Raises OSError, ValueError or DamagedCheckpoint.
    """
    local = not storage.is_remote(path)
    # Empty in a bucket: objects are durable once written, and digests verify the arrays.
    files: dict[str, list[int]] = {}
    if local:
        # Orbax leaves its metadata in the page cache; a power cut would empty those files.
        for root, _, names in os.walk(path / STATE, topdown=False):
            for name in names:
                file = os.path.join(root, name)  # noqa: PTH118
                files[os.path.relpath(file, path)] = size_and_crc(file)
                storage.sync(file)
            # Bottom up, so that a folder is synced after all that it names.
            storage.sync(root)
    # Through JSON, so that it equals what is read back: tuples become lists.
    body = json.loads(json.dumps({**commit, "files": files}, allow_nan=False))
    text = encode_commit(body)
    if local:
        storage.sync(path)
        part = path / f"{COMMIT}.part"
        # Durable before it is renamed, and the folders after: a power cut leaves no record or all
        # of it.
        part.write_text(text)
        storage.sync(part)
        part.replace(path / COMMIT)
        storage.sync(path)
        storage.sync(path.parent)
    else:
        (path / COMMIT).write_text(text)  # an object appears whole or not at all
    if read_commit(path) != body:
        raise DamagedCheckpoint(f"{COMMIT} reads back differently")


def _unreadable(path: epath.Path, name: str, error: OSError) -> CheckpointError | DamagedCheckpoint:
    """Damage, unless the error says nothing about the file, which may be read the next time."""
    # What a disk cannot read is lost; a bucket may answer the next time.
    if isinstance(error, PermissionError) or error.errno in PASSING or storage.is_remote(path):
        return CheckpointError(f"{path}: {first_line(error)}")
    return DamagedCheckpoint(f"{name} cannot be read ({first_line(error)})")


def encode_commit(body: object) -> str:
    """A record as its file holds it, with its digest."""
    return json.dumps({"commit": body, "sha256": _sha256(body)})


def read_commit(path: epath.Path) -> Commit:
    """The commit record in folder `path`; raises DamagedCheckpoint unless it is intact."""
    try:
        with storage.os_errors():
            text = limits.read_file(path / COMMIT, limits.RECORD)
    except limits.LimitError as error:
        raise DamagedCheckpoint(f"{COMMIT} {error}") from None
    except FileNotFoundError:
        raise DamagedCheckpoint(f"{COMMIT} is missing") from None
    except OSError as error:
        raise _unreadable(path / COMMIT, COMMIT, error) from error
    try:
        outer = limits.load_json(text)
        body, digest = outer["commit"], outer["sha256"]
    except (ValueError, LookupError, TypeError) as error:
        raise DamagedCheckpoint(f"{COMMIT} cannot be read ({first_line(error)})") from error
    if _sha256(body) != digest:
        raise DamagedCheckpoint(f"{COMMIT} does not match its own digest")
    if not isinstance(body, dict) or any(not isinstance(body.get(k), t) for k, t in PARTS.items()):
        raise DamagedCheckpoint(f"{COMMIT} lacks {', '.join(PARTS)}")
    # The digest says only that nobody changed it: a wrong type would be a traceback later.
    for name, kind in FACTS.items():
        if not isinstance(body["facts"].get(name, kind()), kind):
            raise DamagedCheckpoint(f"{COMMIT} has no {name}")
    # A folder under another step's name would resume at the wrong step.
    match = OWN.fullmatch(path.name)
    if match and body["step"] != int(match["step"]):
        raise DamagedCheckpoint(f"{COMMIT} is that of step {body['step']}")
    return body


def read_leaves(directory: epath.PathLike, step: int) -> dict[str, Leaf]:
    """Shape, dtype and digest of each array of a checkpoint, by name; raises DamagedCheckpoint."""
    return read_commit(folder(directory, step))["leaves"]


def check_files(path: epath.Path, commit: Commit, share: slice = slice(None)) -> None:
    """Reads a share of the checkpoint's files; raises DamagedCheckpoint at one that has changed.

    Orbax would find some of this damage itself, and fill the terminal about it.
    """
    for name, (size, crc) in sorted(commit["files"].items())[share]:
        try:
            found = size_and_crc(path / name)
        except FileNotFoundError:
            raise DamagedCheckpoint(f"{name} is missing") from None
        except OSError as error:
            raise _unreadable(path / name, name, error) from error
        if found[0] != size:
            raise DamagedCheckpoint(f"{name} has {found[0]} bytes instead of {size}")
        if found[1] != crc:
            raise DamagedCheckpoint(f"{name} has changed")


def bad_steps(directory: epath.PathLike) -> list[int]:
    """The steps of checkpoints that were set aside because they are damaged."""
    return [
        int(match["step"])
        for _, match in checkpoint_folders(directory)
        if match["suffix"].startswith(".bad")
    ]


def set_aside(path: epath.Path) -> epath.Path | None:
    """Renames a damaged checkpoint to NUMBER.bad, NUMBER.bad1, ...; None if it cannot be."""
    names = (f"{path.name}.bad{count or ''}" for count in range(1000))
    aside = next(aside for name in names if not (aside := path.with_name(name)).exists())
    try:
        move_checkpoint(path, aside)
    except OSError:
        return None
    return aside


def move_checkpoint(path: epath.Path, to: epath.Path) -> None:
    """Renames a checkpoint's folder; raises OSError.

    In a bucket each object is copied and then deleted. The record goes last into the new folder and
    first out of the old one, so that a checkpoint is never taken for one that is cut short.
    """
    if not storage.is_remote(path):
        path.rename(to)
        return
    with storage.os_errors():
        for file in sorted(_files(path), key=lambda file: file == path / COMMIT):
            file.copy(to / file.relative_to(path), overwrite=True)
        (path / COMMIT).unlink(missing_ok=True)
        path.rmtree(missing_ok=True)


def tidy(directory: epath.Path) -> list[epath.Path]:
    """Removes the remains of interrupted and failed saves, and returns their names."""
    removed = []
    for path, match in checkpoint_folders(directory):
        committed = is_committed(path)
        if match["suffix"] == ".old":
            # A save over this step was under way: if it got there, this one is superseded.
            successor = folder(directory, int(match["step"]))
            if is_committed(successor):
                path.rmtree(missing_ok=True)
            else:
                successor.rmtree(missing_ok=True)
                move_checkpoint(path, successor)
        # Eight digits can also be the name of a folder that the user has put here.
        elif not match["suffix"] and not committed and _only_ours(path):
            path.rmtree(missing_ok=True)
            removed.append(path)
    return removed


def prepare_directory(directory: epath.Path) -> str:
    """Makes the directory, proves it writable, tidies it; returns the name of a probe file.

    Raises CheckpointError.
    """
    # Orbax would look for the arrays by a pattern, or write them elsewhere, and report no failure.
    if sign := next((sign for sign in "[\\" if sign in str(directory)), None):
        raise CheckpointError(
            f"{directory}: cannot hold checkpoints: orbax could not read them below a name with "
            f"{sign}; choose another"
        )
    try:
        with storage.os_errors():
            directory.mkdir(parents=True, exist_ok=True)
            for stale in directory.glob(".probe-*"):
                stale.unlink(missing_ok=True)
            # Proves the directory writable, and shared once the other processes see it, too.
            probe = directory / f".probe-{uuid.uuid4().hex}"
            probe.write_text("")
            # A new directory's entry is in its parent: a power cut would lose all that it holds.
            if not storage.is_remote(directory):
                storage.sync(directory.parent)
            for path in tidy(directory):
                log.warning("checkpoint %s was never finished; removed", path)
    except OSError as error:
        reason = error.strerror or first_line(error)
        raise CheckpointError(f"{directory}: cannot hold checkpoints: {reason}") from error
    return probe.name


def best(commits: Mapping[int, Commit], metric: str | None) -> int | None:
    """The step that `score` ranks first, the earliest of equals; None without metrics.

    Only of those measured on the images of the newest: a run may go on with others (`--accept`).
    """
    scores = {step: score(commit["metrics"], metric) for step, commit in sorted(commits.items())}
    known = {step: value for step, value in scores.items() if value is not None}
    if not known or metric is None:
        return None
    own = commits[max(known)].get("facts", {})
    alike = (step for step in known if same_images(commits[step].get("facts", {}), own, metric))
    return max(alike, key=lambda step: known[step])


def same_images(before: Mapping[str, Any], now: Mapping[str, Any], metric: str) -> bool:
    """Whether two checkpoints measured a metric on the same images; unknown ones count as same."""
    one, other = (
        facts.get("measured", {}) | {"data": facts.get("data")} for facts in (before, now)
    )
    # What is measured on features may be of any split, and its neighbors are training images.
    names = {metric.partition("/")[0]} & other.keys() or other.keys()
    return all(one.get(name, other[name]) == other[name] for name in names)


def score(metrics: Mapping[str, Any] | None, metric: str | None) -> tuple[float, float] | None:
    """The rank of a checkpoint, higher is better; None for a metric missing or not finite.

    Of a loss, such as `validation/loss`, and of other ERRORS, lower is better. Of equal accuracies,
    which few images make likely, the one with the lower loss on the same split ranks higher.
    """
    metrics = metrics or {}
    if metric is None or not _finite(metrics.get(metric)):
        return None
    value, (split, _, what) = metrics[metric], metric.rpartition("/")
    loss = metrics.get(f"{split}/loss" if split else "loss", math.inf)
    return -value if what in ERRORS else value, -loss if _finite(loss) else -math.inf


def readable(directory: epath.PathLike) -> dict[int, Commit]:
    """The commit records of a directory by step, leaving out damaged ones."""
    commits = {}
    for step in steps(directory):
        with contextlib.suppress(DamagedCheckpoint):
            commits[step] = read_commit(folder(directory, step))
    return commits


def public_record(commit: Commit) -> dict[str, Any]:
    """The public part of a commit record: the run's facts, `step` and `metrics`."""
    return {**commit["facts"], "step": commit["step"], "metrics": commit["metrics"]}


def find_step(directory: epath.PathLike, at: int | str | None = None) -> tuple[int, Commit]:
    """A checkpoint's step and record; its arrays are not read.

    The record says in `selection` why it is this one, in words such as `step 60, the best by ...`.

    Args:
      directory: the folder of checkpoints, or one of them.
      at: a step number, `best`, `newest`, or None: the best if the run chose one, else the newest.

    Raises CheckpointError.
    """
    path = epath.Path(directory)
    if at is None and is_committed(path):
        try:
            commit = read_commit(path)
        except DamagedCheckpoint as problem:
            raise CheckpointError(f"{path}: damaged: {problem}") from problem
        return commit["step"], {**public_record(commit), "selection": f"step {commit['step']:,}"}
    commits = readable(path)
    for step in steps(path):
        if step not in commits:
            log.warning("checkpoint %s has a damaged record; passed over", folder(path, step))
    if not commits:
        raise CheckpointError(f"{path}: no {'sound ' if steps(path) else ''}checkpoint here")
    newest = max(commits)
    metric = commits[newest].get("best")
    top = best(commits, metric)
    named = {None: newest if top is None else top, BEST: top, NEWEST: newest}
    word = at is None or isinstance(at, str)
    step = named[at] if word and at in named else int(str(at)) if str(at).isdecimal() else None
    if step is None or step not in commits:
        problem = f"no sound checkpoint of step {at}"
        if at == BEST and metric is None:
            problem = "no checkpoint is the best (checkpoint.best)"
        elif at == BEST:
            problem = f"no checkpoint has {metric}"
        listed = f"step{'s' * (len(commits) > 1)} {', '.join(map(str, sorted(commits)))}"
        raise CheckpointError(f"{path}: {problem}; choose {listed}")
    words = [f"step {step:,}"]
    if step == top:
        words.append(f"the best by {metric} ({commits[step]['metrics'][metric]:.4f})")
    if step == newest:
        words.append("the newest")
    newer = "" if step == newest else f"; the newest is step {newest:,}"
    return step, {**public_record(commits[step]), "selection": ", ".join(words) + newer}


def first_line(error: BaseException) -> str:
    """An error in one line: the system's message if there is one."""
    text = str(error) or type(error).__name__
    for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EIO):
        if os.strerror(code) in text:
            return os.strerror(code)
    line = text.splitlines()[0]
    return line if len(line) <= 200 else f"{line[:200]}..."


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and -math.inf < value < math.inf  # ints of any size


def size_and_crc(file: str | os.PathLike[str]) -> list[int]:
    """The size in bytes and the CRC-32 of a file."""
    size = crc = 0
    block = memoryview(bytearray(BLOCK))
    with open(file, "rb", buffering=0) as stream:  # noqa: PTH123
        while count := stream.readinto(block):
            size, crc = size + count, zlib.crc32(block[:count], crc)
    return [size, crc]


def _files(path: epath.Path) -> Iterator[epath.Path]:
    for child in path.iterdir():
        yield from _files(child) if child.is_dir() else (child,)


def _only_ours(path: epath.Path) -> bool:
    # Orbax writes to `state.orbax-checkpoint-tmp-...` before it renames.
    names = [child.name for child in path.iterdir()]
    return all(name == STATE or name.startswith((f"{STATE}.", f"{COMMIT}.")) for name in names)


def _sha256(body: object) -> str:
    # Of the values in a fixed form, not of the file's text: what is parsed can be verified.
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
