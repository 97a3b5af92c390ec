"""Batches for a range of steps: a pure function of (seed, step, row), loaded ahead by Grain.

Row r of step s is position s x B + r in an endless sequence of epochs, and each epoch is a
permutation of the source keyed by (seed, epoch), or with `data.sampling` a draw by class. So each
epoch visits every example once over all hosts, a run can start at any step, and neither order nor
augmentation depends on hosts, processes, threads or buffers. With `data.repeats`, so many
consecutive positions are views of one image.

Grain iterates over parts of batches: one thread of one process makes a whole part, and Grain
returns the parts in order. Threads of this process write their parts into the batch; parts from
other processes are joined here. So the number of workers affects only the speed.
"""

import dataclasses
import itertools
import math
import multiprocessing
import pathlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import absl.flags
import cv2
import numpy as np
import numpy.typing as npt

from vit_jax import config
from vit_jax.data import decoding, jpeg, native_aspect, sampling
from vit_jax.data.prefetch import Batch
from vit_jax.data.source import DataError, Source, read_labels
from vit_jax.data.transforms import InceptionCrop, Transform, eval_resampling, train_transforms
from vit_jax.runtime import signals
from vit_jax.runtime.logs import log
from vit_jax.utils import machine

Notes = list[tuple[int, str]]  # unreadable examples, each with the reason

NONE = -1  # `index` of a padded row, `bad` of a readable row

# Smaller parts cost more to pass between threads than they save.
PART_ROWS, PART_PIXELS = 32, 2**18

# Arrays below this size travel between processes by pipe, larger ones in shared memory.
SHARED_BYTES = 2**14
# Signals for the main process alone, which may still need batches.
FOR_PARENT = signal.SIGINT, signal.SIGTERM, signal.SIGHUP

MOST_THREADS = 16  # in place of processes

PATIENCE = 10.0  # seconds before processes that do not end are killed


# Sources whose images take time to decode: the others have no use for processes.
DECODED = (*config.FILES, "tfds")


class LoaderError(DataError):
    """A loader process was killed or ran out of memory; a retry may succeed."""

    exit_code = 70


def loader_processes(data: config.Data) -> int:
    """`data.workers`, or a process for every four of at least eight cores of this machine.

    A script of the user's own gets none unasked: each process would run it once more, up to its
    `__main__` guard, which it need not have.
    """
    if data.workers is not None:
        return data.workers
    main = sys.modules["__main__"]
    script = getattr(main, "__file__", None)
    # `python -m` sets the package: the processes that train the cells of a study are ours, too.
    own = (main.__package__ or "").partition(".")[0] == __name__.partition(".")[0]
    if not own and script is not None and pathlib.Path(script).stem not in ("vit_jax", "__main__"):
        return 0
    cores = machine.cores()
    return min(cores // 4, 16) if cores >= 8 and data.source in DECODED else 0


@dataclasses.dataclass(frozen=True)
class View:
    """A group of random views of each image, an entry of the batch."""

    name: str  # of the entry
    data: config.Data  # size, crop and augmentation
    number: int = 1  # of views; the entry is (B, H, W, C) for one, else (B, number, H, W, C)
    # Height and width of the patches of one view, in a padded sequence (B, P, h, w, C) whose
    # grids are the entry `grids`, (B, 2) int32; None: whole images.
    patch: tuple[int, int] | None = None
    # First parts of the run, each the step at which it ends and its options in place of
    # `data`.
    phases: tuple[tuple[int, config.Data], ...] = ()

    @property
    def lengths(self) -> tuple[int, ...]:
        """Lengths P of padded sequences, one of which each step draws; () for whole images."""
        if self.patch is None:
            return ()
        (height, width), (h, w) = self.data.image_size, self.patch
        return self.data.lengths or ((height // h) * (width // w),)

    def at(self, seed: int, step: int) -> "View":
        """The view of one step, a function of (seed, step): one of `variants`."""
        if self.patch is not None:
            return self._of_length(sampling.step_choice(seed, step, self.lengths))
        for end, data in self.phases:
            if step < end:
                return dataclasses.replace(self, data=data, phases=())
        return dataclasses.replace(self, phases=()) if self.phases else self

    def variants(self, steps: int) -> list[tuple["View", float]]:
        """Every view that steps of a run have, and in which share of them; largest first."""
        if self.patch is not None:
            share = 1 / len(self.lengths)
            found = [(self._of_length(length), share) for length in self.lengths]
        else:
            ends = [0, *(min(end, steps) for end, _ in self.phases), steps]
            options = [*(data for _, data in self.phases), self.data]
            found = [
                (dataclasses.replace(self, data=data, phases=()), (end - begin) / steps)
                for data, (begin, end) in zip(options, itertools.pairwise(ends), strict=True)
            ]
        return sorted(found, key=lambda one: -math.prod(one[0].shape))

    def _of_length(self, length: int) -> "View":
        return dataclasses.replace(self, data=dataclasses.replace(self.data, lengths=(length,)))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the views of one image; of sequences, of the longest."""
        if self.patch is not None:
            return max(self.lengths), *self.patch, self.data.channels
        shape = (*self.data.image_size, self.data.channels)
        return shape if self.number == 1 else (self.number, *shape)

    @property
    def transforms(self) -> tuple[Transform, ...]:
        """The training view; of sequences, the longest."""
        steps = train_transforms(self.data)
        if self.patch is None:
            return steps
        fit = native_aspect.FitPatches.from_data(self.data, self.patch, max(self.lengths))
        return fit, *steps[1:]


def batches(
    source: Source,
    transforms: Sequence[Transform],
    data: config.Data,
    *,
    seed: int,
    batch_size: int,
    rows: npt.ArrayLike,
    train: bool,
    start_step: int = 0,
    stop_step: int,
    plan: native_aspect.BatchPlan | None = None,
    patch: tuple[int, int] | None = None,
    views: Sequence[View] = (),
) -> "Batches":
    """An iterator over the batches of steps `start_step` to `stop_step` - 1.

    `batch_size` is the global B; `rows` are those rows of it that this host loads. Loading begins
    at once; `close()`, or the end of a `with`, stops it early. A batch is a dict of numpy arrays:

    - `image` uint8 `len(rows) H W C`, or uint16 for a `data.depth` of 16;
    - `label` int32 `len(rows)`, or float32 `len(rows) K`: with `data.multilabel` of 0 and 1, with
      `data.targets` the numbers;
    - `grids` int32 `len(rows) 2`, where views are sequences of patches;
    - `index` int64, the position in `source`; `mask` bool;
    - `bad` int64: the unreadable example that belongs in this row, else -1.

    Training (`train`) shuffles and never ends. Evaluation goes through the source once, in order;
    rows beyond its end are padding: black, label 0, mask False, index -1. With a `plan` it goes
    through the images in that order, their views in its shapes; with a `patch` (height, width), the
    views are sequences padded to the longest of `data.lengths`. `views` replace `image` and
    `transforms` by the training views they describe, each from a random stream of its own.

    An unreadable image raises DataError with its name and the reason, unless
    `data.max_bad_examples` allows that many different ones per iterator: then each is logged as a
    warning, training uses the next readable example of the source, and evaluation masks the row.

    With `data.workers` > 0, Python starts processes that import the main module again: a script
    must guard its own start with `if __name__ == "__main__":`. A daemonic process may have no
    children: there threads load.
    """
    data = dataclasses.replace(data, workers=loader_processes(data))
    if data.workers and multiprocessing.current_process().daemon:
        log.warning(
            "data.workers=%d: a daemonic process may start no others; loading in threads",
            data.workers,
        )
        # As many as the processes would have had, within reason.
        threads = min(data.threads * data.workers, MOST_THREADS)
        data = dataclasses.replace(data, workers=0, threads=threads)
    chains = tuple(
        (view, {one: one.transforms for one, _ in view.variants(stop_step)}) for view in views
    )
    longest = dataclasses.replace(data, lengths=(max(data.lengths),)) if patch else data
    given = View("image", longest, patch=patch)
    loader = Loader(
        source=source,
        chains=chains or ((given, {given: tuple(transforms)}),),
        data=data,
        seed=seed,
        batch_size=batch_size,
        rows=np.asarray(rows, np.int64),
        train=train,
        stop_step=stop_step,
        plan=plan,
        by_class=(
            sampling.ByClass(seed, read_labels(source), data.sampling)
            if train and data.sampling != "uniform"
            else None
        ),
    )
    return Batches(loader, start_step)


class Randomness:
    """Random numbers for preprocessing: a Philox stream for each (seed, epoch, index).

    One generator moves between streams, which is ten times faster than creating new ones.
    """

    def __init__(self, seed: int) -> None:
        self._bits = np.random.Philox(key=0)
        self._start: Any = self._bits.state
        self._seed = seed
        self._generator = np.random.Generator(self._bits)

    def at(self, epoch: int, index: int) -> np.random.Generator:
        """The generator at the start of the stream (seed x 2^32 + epoch, index)."""
        # Written into the saved state: its counter and buffer are those of a stream's start.
        key = self._start["state"]["key"]
        key[0], key[1] = self._seed << 32 | epoch, index
        self._bits.state = self._start
        return self._generator


class Views:
    """Preprocesses images one after another; not thread-safe, because it reuses memory."""

    def __init__(self, transforms: Sequence[Transform], data: config.Data, seed: int) -> None:
        self._transforms, self._data = tuple(transforms), data
        first = self._transforms[0] if self._transforms else None
        # Only a crop that comes first says which part of the image is needed.
        crops = (InceptionCrop, native_aspect.FitPatches)
        partial = data.partial_decoding and isinstance(first, crops)
        self._crop = first if partial else None
        self._randomness = Randomness(seed)
        self._scratch = np.empty(0, np.uint8)
        # For a crop that other transforms follow; made once, not for each image.
        self._small = np.empty((*data.image_size, data.channels), data.pixel_type)

    def __call__(
        self, image: bytes | np.ndarray, epoch: int, index: int, row: np.ndarray
    ) -> tuple[int, int] | None:
        """Writes an image, preprocessed with the stream (epoch, index), into `row` `H W C`.

        Into a `row` of patches `P h w C` it writes these, and returns their grid. Raises
        `decoding.BadImage` before anything is written.
        """
        data, steps = self._data, self._transforms
        rng = self._randomness.at(epoch, index)
        part = self._rectangle(image, rng)
        if part is not None:
            assert self._crop is not None
            steps = steps[1:]
            # Straight into the batch unless another transform follows.
            pixels = self._crop.stretch(part, self._small if steps else row)
        else:
            # The stream from its start: `_rectangle` may have drawn a crop it could not decode.
            rng = self._randomness.at(epoch, index)
            pixels = decoding.load_view(image, data)
        for step in steps:
            pixels = step(pixels, rng)
        if row.ndim == 4:
            return native_aspect.write_patches(pixels, row)
        if pixels.strides[1] < 0:  # mirrored; much faster than NumPy
            cv2.flip(pixels[:, ::-1], 1, dst=row)
        elif not np.may_share_memory(pixels, row):  # else it was made there
            row[:] = pixels
        return None

    def _rectangle(self, image: bytes | np.ndarray, rng: np.random.Generator) -> np.ndarray | None:
        """The Inception crop of an image, decoding nothing else."""
        if self._crop is None or not isinstance(image, bytes):
            return None
        size = jpeg.size(image)
        # Also what is too large is left to `decoding`, which refuses it in words.
        if size is None or size[0] * size[1] > self._data.max_pixels:
            return None
        rectangle = self._crop.rectangle(*size, rng)
        needed = jpeg.buffer_size(rectangle)
        if self._scratch.size < needed:
            self._scratch = np.empty(needed, np.uint8)
        part = jpeg.decode(image, rectangle, self._scratch)
        if part is None:
            return None
        return decoding.with_channels(part, self._data.channels, self._data.depth)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loader:
    """Makes any part of any batch; it is pickled to the loader processes.

    `chains` are views, each with the transforms of its variants.
    """

    source: Source
    chains: tuple[tuple[View, Mapping[View, tuple[Transform, ...]]], ...]
    data: config.Data
    seed: int
    batch_size: int
    rows: np.ndarray
    train: bool
    stop_step: int
    plan: native_aspect.BatchPlan | None = None
    by_class: sampling.ByClass | None = None

    @property
    def parts(self) -> int:
        """Number of parts per batch: one per thread, unless they would be too small."""
        height, width = self.data.image_size
        least = max(PART_ROWS, PART_PIXELS // (height * width))
        return max(
            1, min(self.data.threads * max(1, self.data.workers or 0), len(self.rows) // least)
        )

    def bounds(self, part: int) -> tuple[int, int]:
        """The rows of a batch that a part covers."""
        count = len(self.rows)
        return count * part // self.parts, count * (part + 1) // self.parts

    def empty(self, count: int, step: int) -> Batch:
        """Arrays for `count` rows of a step, all of them padding."""
        data = self.data
        labels = np.zeros(count, np.int32)
        if data.multilabel or data.targets:
            labels = np.zeros((count, len(self.source.classes)), np.float32)
        shapes = {view.name: view.at(self.seed, step).shape for view, _ in self.chains}
        if self.plan is not None:
            shapes = dict.fromkeys(shapes, (*self.plan.shapes[step], data.channels))
        images = {n: np.zeros((count, *shape), data.pixel_type) for n, shape in shapes.items()}
        if any(view.patch for view, _ in self.chains):
            # Not zeros: the model divides by the grid of every row, padding included.
            images["grids"] = np.ones((count, 2), np.int32)
        return images | {
            "label": labels,
            "mask": np.zeros(count, bool),
            "index": np.full(count, NONE, np.int64),
            "bad": np.full(count, NONE, np.int64),
        }

    def __call__(self, number: int) -> dict[str, Any]:
        """Part `number` of the sequence of parts of batches, empty after the last step.

        The key `batch` has the arrays; the others are those of `fill`.
        """
        step, part = divmod(number, self.parts)
        if step >= self.stop_step:
            return {}
        low, high = self.bounds(part)
        batch = self.empty(high - low, step)
        return {"batch": batch} | self.fill(batch, step, part)

    def fill(
        self, batch: Batch, step: int, part: int, closed: threading.Event | None = None
    ) -> dict[str, Any]:
        """Writes a part of a step into the rows of `batch`, which are padding before.

        Stops early once `closed` is set. In the result, `notes` lists (index, reason) of unreadable
        examples, and `error` is the message of an error: exceptions passed between processes
        would keep memory alive.
        """
        low, high = self.bounds(part)
        chains = [(one := view.at(self.seed, step), made[one]) for view, made in self.chains]
        if self.plan is not None:
            resampling = eval_resampling(self.data)
            fit = (native_aspect.Fit(*self.plan.shapes[step], resampling),)
            chains = [(view, fit) for view, _ in chains]
        # Of this part alone: `Views` reuse memory, so threads cannot share them.
        views = [(view.name, view.number, Views(one, view.data, self.seed)) for view, one in chains]
        notes: Notes = []
        repeats = self.data.repeats if self.train else 1
        order = repeated_order(step * self.batch_size, self.batch_size, repeats)
        try:
            for slot, row in enumerate(self.rows[low:high].tolist()):
                if closed is not None and closed.is_set():
                    break
                position, view = divmod(step * self.batch_size + int(order[row]), repeats)
                if self.plan is not None:
                    position = int(self.plan.rows[step, row])
                self._fill(batch, slot, position, view, views, notes)
        except (DataError, config.ConfigError) as error:  # of the data, of a plug-in
            return {"error": str(error)}
        return {"notes": notes}

    def _fill(
        self,
        batch: Batch,
        slot: int,
        position: int,
        view: int,
        views: Sequence[tuple[str, int, Views]],
        notes: Notes,
    ) -> None:
        """Writes views of the example at a position of the sequence of epochs into a row."""
        total = len(self.source)
        if not self.train and not 0 <= position < total:
            return
        epoch, offset = divmod(position, total)
        drawn = index = own = offset
        if self.by_class is not None:
            drawn = index = self.by_class(epoch, offset)  # and views of its own at each draw
        elif self.train:
            drawn = index = own = sampling.shuffled(self.seed, epoch, offset, total)
        for _ in range(min(total, self.data.max_bad_examples + 1)):
            try:
                image, label = self.source[index]
                # Each view has a stream: of one alone, the number is that of its repetition.
                stream = (epoch * self.data.repeats + view) * sum(n for _, n, _ in views)
                for name, number, make in views:
                    # `own`: whatever replaces a damaged image is augmented by that one's number.
                    for row in batch[name][slot] if number > 1 else batch[name][slot][None]:
                        if grid := make(image, stream, own, row):
                            batch["grids"][slot] = grid
                        stream += 1
                break
            except (decoding.BadImage, OSError) as error:
                reason = getattr(error, "strerror", None) or error
                notes.append((index, f"{self.source.name(index)}: {reason}"))
                batch["bad"][slot] = drawn
                if not self.train:
                    return
                index = (index + 1) % total
        else:
            if total <= self.data.max_bad_examples:
                raise DataError(f"{notes[-1][1]}; no example of the source can be read")
            return  # the notes are more than the budget: `Batches` raises
        if isinstance(label, tuple) and not self.data.targets:
            # An empty tuple would become float64, which is no index.
            batch["label"][slot, np.asarray(label, np.intp)] = 1
        else:
            batch["label"][slot] = label
        batch["mask"][slot] = True
        batch["index"][slot] = index


def repeated_order(first: int, count: int, repeats: int) -> np.ndarray:
    """The order of the samples of a batch (count,): one view of each image, then the next, ...

    Samples follow each other as in timm's RepeatAugSampler, `repeats` of an image at a time, from
    number `first` on; a batch may begin and end within an image. Mixup needs neighbors that differ.
    """
    return np.argsort((first + np.arange(count)) % repeats, kind="stable")


class Shared:
    """Makes parts in the rows of batches that the threads of a process share."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._batches: dict[int, Batch] = {}
        self._lock = threading.Lock()
        self.closed = threading.Event()  # Grain's threads end only after their current part

    def __call__(self, number: int) -> dict[str, Any]:
        """Makes part `number` and returns the result of `Loader.fill`."""
        step, part = divmod(number, self._loader.parts)
        if step >= self._loader.stop_step:
            return {}
        with self._lock:
            if step not in self._batches:
                self._batches[step] = self._loader.empty(len(self._loader.rows), step)
            batch = self._batches[step]
        low, high = self._loader.bounds(part)
        rows = {name: array[low:high] for name, array in batch.items()}
        return self._loader.fill(rows, step, part, self.closed)

    def take(self, step: int) -> Batch:
        """Removes and returns the complete batch of a step."""
        with self._lock:
            return self._batches.pop(step)


class Batches(Iterator[Batch]):
    """The iterator that `batches` returns."""

    def __init__(self, loader: Loader, start_step: int) -> None:
        self._loader, self._step = loader, start_step
        self._bad: dict[int, str] = {}
        self._shared = None if loader.data.workers else Shared(loader)
        self._iterator = _parts(loader, self._shared or loader, start_step)

    def __next__(self) -> Batch:
        if self._step >= self._loader.stop_step:
            self.close()
            raise StopIteration
        try:
            parts = [next(self._iterator) for _ in range(self._loader.parts)]
            for part in parts:
                self._check(part)
        except BaseException as error:
            self.close()
            # Of a process that was killed, Grain raises a plain RuntimeError.
            if "terminated unexpectedly" in str(error):
                raise LoaderError(_death_of_loader(self._loader.data.workers or 0, error)) from None
            raise
        self._step += 1
        if self._shared:
            return self._shared.take(self._step - 1)
        # Always a copy: arrays of loader processes live in shared memory that is freed with them.
        return {
            name: np.concatenate([np.asarray(part["batch"][name]) for part in parts])
            for name in parts[0]["batch"]
        }

    def _check(self, part: dict[str, Any]) -> None:
        """Raises DataError for a part that could not be made, or too many bad examples."""
        if "error" in part:
            raise DataError(part["error"])
        budget = self._loader.data.max_bad_examples
        for index, reason in part["notes"]:
            # Each epoch meets the same unreadable images again.
            if index in self._bad:
                continue
            self._bad[index] = reason
            if budget == 0:
                raise DataError(
                    f"{reason}; mend or remove it, or allow for unreadable images with "
                    f"data.max_bad_examples"
                )
            if len(self._bad) > budget:
                raise DataError(
                    f"more than data.max_bad_examples={budget} unreadable images: "
                    f"{'; '.join(self._bad.values())}"
                )
            action = "replaced" if self._loader.train else "left out"
            log.warning("%s (%s; %d of at most %d)", reason, action, len(self._bad), budget)

    def close(self) -> None:
        """Stops loading and ends its threads and processes."""
        if self._shared:
            self._shared.closed.set()
        # Grain waits for the current parts, which takes forever if a disk hangs, and for processes
        # that start, which takes forever if one was killed. Abandoning them means the run ends.
        closing = threading.Thread(target=self._iterator.close, name="closing", daemon=True)
        closing.start()
        if self._step == self._loader.stop_step:  # there is nothing left to read
            closing.join()
        closing.join(PATIENCE)
        if closing.is_alive():
            _kill_loaders()
            closing.join(PATIENCE)

    def __enter__(self) -> "Batches":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _parts(loader: Loader, make: Callable[[int], dict[str, Any]], start_step: int) -> Any:
    """A Grain iterator over parts, as `make` gives them, with loading begun.

    It has more parts than needed (the surplus is empty): a Grain iterator over processes that is
    exhausted leaves its last arrays in shared memory until garbage collection.
    """
    import grain.experimental  # what only classifies image files need not wait for it

    data, ahead = loader.data, loader.data.prefetch * loader.parts
    first, surplus = start_step * loader.parts, 2**31
    dataset = grain.MapDataset.range(first, loader.stop_step * loader.parts + surplus).map(make)
    if not data.workers:
        options = grain.ReadOptions(min(data.threads, ahead), ahead)
        iterator = iter(dataset.to_iter_dataset(options))
        iterator.start_prefetch()
        return iterator
    if not absl.flags.FLAGS.is_parsed():  # Grain reads its own flags to pass them on
        absl.flags.FLAGS.mark_as_parsed()
    # Grain buffers parts three times: at the threads, before and behind the pipe.
    each = math.ceil(ahead / data.workers / 2)
    options = grain.experimental.DatasetOptions(min_shm_size=SHARED_BYTES)
    parts = dataset.to_iter_dataset(grain.ReadOptions(data.threads, data.threads))
    parts = grain.experimental.WithOptionsIterDataset(parts, options)
    processes = grain.MultiprocessingOptions(data.workers, each)
    with signals.kept_from_children(*FOR_PARENT):
        iterator = iter(parts.mp_prefetch(processes, worker_init_fn=_begin_process))
        iterator.get_state()  # creates the process iterators, so that `close` can reach them
        iterator.start_prefetch()
    return iterator


def _begin_process(index: int, count: int) -> None:
    signals.follow_parent(*FOR_PARENT)


def _kill_loaders() -> None:
    """Kills all loaders, because abandoning one means that the run ends."""
    for process in multiprocessing.active_children():
        if process.name.startswith("grain-"):
            process.kill()


def _death_of_loader(workers: int, error: BaseException) -> str:
    """Explains why a loader process ended, from Grain's error."""
    code = str(error).partition("exit code ")[2].partition(".")[0]
    causes = {"-9": "killed, perhaps for lack of memory", "-7": "no room in /dev/shm"}
    cause = causes.get(code, 'a script must start under if __name__ == "__main__"')
    return (
        f"data.workers={workers}: a loader process ended with exit code {code} ({cause}); try "
        f"again, with fewer data.workers or a smaller data.prefetch"
    )
