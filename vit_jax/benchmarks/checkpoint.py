"""Saving and restoring a training state: this package, plain orbax, and safetensors, in turns.

Every save ends with the bytes on the disk, by fsync, and every restore begins without them in the
page cache. What they guarantee differs:

- vit_jax: the checkpoint exists once its record was written, which holds a checksum of every file
  and a digest of every array; restoring verifies both.
- orbax: its folder gets its name once everything is written, then all of it is flushed here, as
  orbax leaves files in the page cache; restoring verifies nothing.
- safetensors: one file, flushed here; a crash leaves half a file, and restoring verifies nothing.
"""

import contextlib
import functools
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from vit_jax import config, models
from vit_jax.benchmarks import turns
from vit_jax.checkpoints.manager import Manager
from vit_jax.training.build import build
from vit_jax.utils import storage, tree_utils

SIZE = (224, 224)
CLASSES = 1000
ROUNDS = 5

State = dict[str, Any]


class Ours:
    """The checkpoints of a run."""

    def __init__(self, folder: pathlib.Path, target: State) -> None:
        self._folder, self._target = folder / "vit_jax", target
        self._manager = Manager(self._folder, keep=1, best=None)
        self.end, self.close = self._manager.wait, self._manager.close

    def begin(self, number: int, live: State) -> None:
        """Starts a save; `end` waits for its record."""
        self._manager.save(number, live, record={}, metrics=None)

    def restore(self, number: int) -> State:
        """Restores and verifies."""
        found = self._manager.restore(self._target, step=number)
        assert found is not None
        return found[0]

    def path(self, number: int) -> pathlib.Path:
        """The folder of a step."""
        return self._folder / f"{number:08d}"


class Orbax:
    """orbax's StandardCheckpointer with its defaults, and a flush of its files."""

    def __init__(self, folder: pathlib.Path, target: State) -> None:
        self._folder, self._target = folder, target
        self._checkpointer = ocp.StandardCheckpointer()
        self._last = folder
        self.close = self._checkpointer.close

    def begin(self, number: int, live: State) -> None:
        """Starts a save."""
        self._last = self.path(number)
        self._checkpointer.save(self._last, live)

    def end(self) -> None:
        """Waits for it, and flushes its files."""
        self._checkpointer.wait_until_finished()
        # Folders too: the fsync of a file does not flush its name.
        for path in (*_files(self._last), self._last, self._folder):
            storage.sync(path)

    def restore(self, number: int) -> State:
        """Restores to the same devices."""
        return self._checkpointer.restore(self.path(number), self._target)

    def path(self, number: int) -> pathlib.Path:
        """A folder."""
        return self._folder / f"orbax-{number}"


class Safetensors:
    """One file of all arrays, by the names that we give them."""

    def __init__(self, folder: pathlib.Path, target: State) -> None:
        self._folder, self._target = folder, target

    def begin(self, number: int, live: State) -> None:
        """Saves all of it."""
        from safetensors import numpy as safetensors

        arrays = {name: np.asarray(leaf) for name, leaf in tree_utils.flatten(live).items()}
        safetensors.save_file(arrays, self.path(number))
        storage.sync(self.path(number))
        storage.sync(self._folder)

    def end(self) -> None:
        """Has nothing left to do."""

    close = end

    def restore(self, number: int) -> State:
        """Restores to the same devices."""
        from safetensors import numpy as safetensors

        arrays = safetensors.load_file(self.path(number))
        return tree_utils.map_named(
            lambda name, leaf: jax.device_put(arrays[name], leaf.sharding), self._target
        )

    def path(self, number: int) -> pathlib.Path:
        """A file."""
        return self._folder / f"{number}.safetensors"


KINDS = {turns.OURS: Ours, "orbax": Orbax, "safetensors": Safetensors}


def random_state(name: str) -> tuple[State, State]:
    """A model's training state with Adam on the first device, and its shapes.

    All numbers are random: zeros, as Adam's moments begin, would compress to nothing. Raises
    ConfigError for an unknown model.
    """
    model = models.complete(config.Model(variant=name, num_classes=CLASSES))
    models.check_model(model, SIZE)
    cfg = config.Config(model=model, data=config.Data(source="synthetic", image_size=SIZE))
    # ImageNet's; the number does not change the state.
    target = build(cfg, examples=1_281_167, devices=jax.devices()[:1]).state_shapes
    drawn = np.random.default_rng(0)

    def fill(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        values = drawn.standard_normal(leaf.shape, np.float32)
        return jax.device_put(values.astype(leaf.dtype), leaf.sharding)

    return jax.block_until_ready(jax.tree.map(fill, target)), target


@contextlib.contextmanager
def programs(target: State, where: pathlib.Path | None) -> Iterator[dict[str, Any]]:
    """Opens all programs in a temporary folder below `where`."""
    with (
        tempfile.TemporaryDirectory(dir=where, prefix="vit_jax_bench_") as folder,
        contextlib.ExitStack() as opened,
    ):
        yield {
            name: opened.enter_context(contextlib.closing(kind(pathlib.Path(folder), target)))
            for name, kind in KINDS.items()
        }


def measure(
    names: Sequence[str], where: pathlib.Path | None, *, rounds: int, say: Callable[[str], None]
) -> Iterator[list[turns.Compared]]:
    """Yields the time to save and restore the state of every model; raises ConfigError."""
    if where is not None and not where.is_dir():
        raise config.ConfigError(f"--workdir={where}: no such folder")
    try:
        import safetensors.numpy  # noqa: F401
    except ImportError:
        raise config.ConfigError(
            "bench checkpoint: needs safetensors: pip install safetensors"
        ) from None
    for name in names:
        say(name)
        yield compare(name, *random_state(name), rounds=rounds, where=where)


def compare(
    model: str, live: State, target: State, *, rounds: int, where: pathlib.Path | None = None
) -> list[turns.Compared]:
    """Times saving and restoring, and how long a save keeps training waiting."""
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(live)) / 1e6
    with programs(target, where) as found:
        numbers = dict.fromkeys(found, 0)

        def prepare(name: str) -> None:
            # Each save has its own step; the one before goes first, so the disk holds one of them.
            remove(found[name].path(numbers[name]))
            numbers[name] += 1

        def begin(name: str) -> None:
            found[name].begin(numbers[name], live)

        def save(name: str) -> None:
            begin(name)
            found[name].end()

        def restore(name: str) -> None:
            jax.block_until_ready(found[name].restore(numbers[name]))

        def take(
            action: Callable[[str], None], **untimed: Callable[[str], object]
        ) -> list[turns.Turns]:
            each = {name: functools.partial(action, name) for name in found}
            return turns.take(each, rounds=rounds, **untimed)

        for name in found:  # threads and compiled programs
            prepare(name)
            save(name)
            restore(name)
        works = {
            "save": take(save, before=prepare),
            "begin to save": take(begin, before=prepare, after=lambda name: found[name].end()),
            "restore": take(restore, before=lambda name: forget(found[name].path(numbers[name]))),
        }
    return [
        turns.Compared(work=f"{what}, {model}", unit="MB", amount=size, results=results)
        for what, results in works.items()
    ]


def forget(path: pathlib.Path) -> None:
    """Drops the files of a path from the page cache; they stay on the disk."""
    for file in _files(path):
        # DONTNEED drops clean pages alone; every save before has ended with an fsync.
        with file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def remove(path: pathlib.Path) -> None:
    """Removes a file or folder, if it exists."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def file_system(where: pathlib.Path | None) -> str:
    """The kind of file system of a folder, such as ext4."""
    folder = pathlib.Path(where or tempfile.gettempdir()).resolve()
    lines = [line.split() for line in pathlib.Path("/proc/mounts").read_text().splitlines()]
    mounted = {mount: kind for _, mount, kind, *_ in lines}  # the last one hides those before
    return next(mounted[str(up)] for up in (folder, *folder.parents) if str(up) in mounted)


def title(where: pathlib.Path | None) -> list[str]:
    """Lines about the measurement and its machine."""
    return [
        "a training state with Adam, random numbers: from the device to the disk, flushed, and "
        "back, not from the page cache; begin to save: until training may go on",
        "vit_jax verifies what it reads, by checksums and digests that it has saved; the others "
        "do not",
        f"{turns.machine()}; file system {file_system(where)}",
    ]


def _files(path: pathlib.Path) -> list[pathlib.Path]:
    return [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
