"""Features of a folder or a dataset as a file: the input of the head, or every token."""

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.parquet
from jax.sharding import PartitionSpec as P

from vit_jax import config, models
from vit_jax.checkpoints import digests
from vit_jax.data import bucket, folder_check, folders, native_aspect, sources
from vit_jax.data.source import read_names
from vit_jax.evaluation import runner
from vit_jax.inference import loaded_model, loading
from vit_jax.runtime import device, distributed, logs
from vit_jax.training import normalization, sharding
from vit_jax.utils import messages, storage, tree_utils
from vit_jax.utils.digests import digest
from vit_jax.weights import exporting

AT_ONCE = 32  # images on a device
WINDOW = 64  # batches whose images are grouped by shape, so that few wait for others to be written
LOG_SECONDS = 10.0  # between lines about the progress

SUFFIXES = (".npz", ".parquet")

Arrays = dict[str, jax.Array]
Facts = Mapping[str, Any]
WriteRows = Callable[[np.ndarray, Sequence[str], np.ndarray], None]


def embed(
    reference: str | os.PathLike[str],
    output: str | os.PathLike[str],
    images: str | os.PathLike[str] | None = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    step: int | str | None = None,
    features: str = "pre_logits",
    batch_size: int | None = None,
) -> int:
    """Writes the features of a folder or a dataset to a file, and returns the number of images.

    For images in memory use `load(reference).embed(images)`.

    Args:
      reference: a checkpoint, as in `load`.
      output: the .npz or .parquet file to write, which must not exist.
      images: a folder of image files, on a disk or in a bucket; None: the evaluation split of the
        config.
      overrides: options, as in `load`.
      step: as in `load`.
      features: `pre_logits`, the head's input; or `tokens`.
      batch_size: images at a time, over all devices.

    Raises a UserError.

    Examples:
        >>> import numpy as np
        >>> import vit_jax
        >>> vit_jax.embed("runs/digits", "features.npz", overrides={"data.eval_split": "test[:5]"})
        5
        >>> np.load("features.npz")["features"].shape
        (5, 16)
    """
    # Mistakes that show before a checkpoint is opened.
    output = storage.given_path("--output", output, remote=False)
    if output.suffix.lower() not in SUFFIXES:
        raise config.ConfigError(f"--output={output}: must end in {' or '.join(SUFFIXES)}")
    storage.check_creatable(output)
    if batch_size is not None:
        config.check_count("--batch-size", batch_size)
    folder = None if images is None else bucket.given_path("images", images)
    if folder is None:
        loading.require_images(reference, overrides or {})
    elif not folder.is_dir():
        what = "not a folder" if folder.exists() else "no such folder"
        raise config.ConfigError(f"{bucket.shown(folder)}: {what}")
    else:
        loading.check_given(overrides)
    # Both act before the first call that asks jax for devices, which loading a checkpoint is.
    device.step_by_step()
    distributed.initialize()
    opened = loading.load(reference, overrides, step)
    return write_features(opened, output, folder, features=features, batch_size=batch_size)


def write_features(
    opened: loaded_model.LoadedModel,
    output: str | os.PathLike[str],
    images: str | os.PathLike[str] | None = None,
    *,
    features: str = "pre_logits",
    batch_size: int | None = None,
    key: str = "images",
) -> int:
    """Writes the features of every image in the order of the source; returns how many there are.

    Each row depends on its image only: batch size and devices change no more than rounding. At most
    two batches of features are in memory, WINDOW with views of several shapes. An unreadable image
    raises DataError with its name, or gives a row of NaN within `data.max_bad_examples`. With
    several processes, each computes its share, and the first one writes.
    """
    cfg = opened.config
    if images is not None and (cfg.data.targets or cfg.data.multilabel):
        # A folder knows no numbers, and one class of each image.
        data = dataclasses.replace(cfg.data, targets=(), multilabel=False)
        cfg = dataclasses.replace(cfg, data=data)
    source = _source(opened, images, key)
    model = opened.model
    shape = loaded_model.feature_shape(model, features)
    # Rounded up, so that every device has equally many rows.
    rows = -(-(batch_size or AT_ONCE * jax.device_count()) // jax.device_count())
    rows *= jax.device_count()
    plan = runner.plan_native(model, source, cfg.data, rows, WINDOW)
    mesh = sharding.create_mesh(cfg.mesh.fsdp)
    split = runner.create_runner(source, cfg, mesh, rows, plan=plan)
    function = functools.partial(_features, model, cfg.data, features, opened.params)
    facts = {"checkpoint": cfg.name, "step": opened.step, "features": features}
    facts |= {"classes": source.classes, "weights": digest_weights(opened)}
    facts |= {"views": digest_views(cfg.data), "model": digest_model(cfg.model)}
    facts |= {"multilabel": True} if cfg.data.multilabel else {}
    facts |= {"numbers": True} if cfg.data.targets else {}
    # The other processes of a run compute their share and write nothing.
    file: contextlib.AbstractContextManager[WriteRows] = contextlib.nullcontext(lambda *_: None)
    if jax.process_index() == 0:
        file = create_file(pathlib.Path(output), len(source), shape, facts)
    with device.memory_errors("lower --batch-size"), file as write_rows:
        pending = PendingRows(write_rows, source, plan)
        inputs = functools.partial(row_inputs, numbers=bool(cfg.data.targets))
        split.outputs(lambda batch: pending(function(batch)), stop=lambda: False, inputs=inputs)
        # No further batch pushes out the last one.
        pending.write()
    return len(source)


def digest_weights(opened: loaded_model.LoadedModel) -> str:
    """A digest of the parameters, kept with their features; all processes must call it."""
    leaves = {n: jnp.asarray(array) for n, array in tree_utils.flatten(opened.params).items()}
    found, _ = digests.Digests(leaves).read()
    return digest(json.dumps(found, sort_keys=True).encode())


def digest_views(data: config.Data) -> str:
    """A digest of how images are resized and cropped, kept with their features."""
    return digest(json.dumps(exporting.preprocessing(data), sort_keys=True).encode())


def digest_model(model: config.Model) -> str:
    """A digest of what is computed with the parameters, such as the form of GELU."""
    return digest(json.dumps(exporting.function(model), sort_keys=True).encode())


class PendingRows:
    """Writes each batch while the devices compute the next.

    Rows go out in the order of the source, those of images that cannot be read as NaN.
    """

    def __init__(
        self, write_rows: WriteRows, source: sources.Source, plan: native_aspect.BatchPlan | None
    ) -> None:
        self._write_rows, self._source = write_rows, source
        self._order = None if plan is None else iter(plan.rows)
        self._ahead: dict[int, tuple[np.ndarray, np.ndarray]] = {}  # of images after missing ones
        self._waiting: Arrays | None = None
        self._done, self._logged = 0, time.monotonic()

    def __call__(self, computed: Arrays) -> None:
        """Accepts the next batch and writes the previous one."""
        self.write()
        self._waiting = computed

    def write(self) -> None:
        """Writes the pending batch, if any."""
        if self._waiting is None:
            return
        # The same on all devices of all processes, so any one of them will do.
        batch = {key: np.asarray(x.addressable_data(0)) for key, x in self._waiting.items()}
        self._waiting = None
        loaded_model.check_finite(batch["values"][batch["mask"].astype(bool)])
        values = np.where(_wide(batch["mask"], batch["values"]), batch["values"], np.nan)
        if self._order is None:
            # The last batch is padded.
            size = min(len(values), len(self._source) - self._done)
            self._append(values[:size], batch["label"][:size])
        else:
            rows = zip(values, batch["label"], strict=True)
            # Rows of padding share the key -1, which nothing asks for.
            self._ahead |= dict(zip(next(self._order).tolist(), rows, strict=True))
            ready = []
            while self._done + len(ready) in self._ahead:
                ready.append(self._ahead.pop(self._done + len(ready)))
            if ready:
                self._append(*(np.stack(parts) for parts in zip(*ready, strict=True)))
        if time.monotonic() - self._logged > LOG_SECONDS:
            self._logged = time.monotonic()
            logs.log.info("%d of %d images", self._done, len(self._source))

    def _append(self, values: np.ndarray, labels: np.ndarray) -> None:
        names = [self._source.name(self._done + row) for row in range(len(values))]
        self._write_rows(values, [messages.printable(name) for name in names], labels)
        self._done += len(values)


def _source(
    opened: loaded_model.LoadedModel, images: str | os.PathLike[str] | None, key: str
) -> sources.Source:
    cfg, data = opened.config, opened.config.data
    if images is not None:
        # The names of columns of numbers are no classes.
        return folders.Loose(pathlib.Path(images), () if data.targets else opened.classes, key)
    source = sources.open_unmatched(cfg, data.eval_split, labels=cfg.needs_labels)
    if not source.classes:  # of folders, lists and TFDS, which need none here, but may have some
        try:
            labeled = sources.open_unmatched(cfg, data.eval_split)
        except config.UserError as error:
            logs.log.info("no labels are written: %s", error)
        else:
            cut = data.holdout or "[" in data.eval_split
            if len(labeled) < len(source):
                logs.log.warning(
                    "data.eval_split=%s: %d of %d images have a class, so no labels are written",
                    data.eval_split, len(labeled), len(source),
                )  # fmt: skip
            elif cut and read_names(labeled) != read_names(source):
                # A holdout has some of each class; tars and tables are cut by paths with classes.
                logs.log.warning(
                    "data.eval_split=%s: is other images where they have classes, so no labels are "
                    "written", data.eval_split,
                )  # fmt: skip
            else:
                source = labeled
    folder_check.warn_of_left_out(data, source)
    return source


def row_inputs(batch: runner.Batch, *, numbers: bool = False) -> runner.Inputs:
    """The inputs of a batch; an image that cannot be read has no known label."""
    missing = np.float32(np.nan) if numbers else np.int32(folders.UNKNOWN)
    mask, label = batch["mask"], batch["label"].astype(missing.dtype)
    label = np.where(_wide(mask, label), label, missing)
    return {**runner.needed(batch), "label": label}


def _wide(mask: np.ndarray, values: np.ndarray) -> np.ndarray:
    """A mask of rows, broadcastable to their values."""
    return mask.reshape(-1, *(1,) * (values.ndim - 1))


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _features(
    model: models.Classifier, data: config.Data, kind: str, params: models.Params, batch: Arrays
) -> Arrays:
    _, out = normalization.apply_to_pixels(model, data, params, batch)
    values = out[kind].astype(jnp.float32)
    found = {"values": values, "label": batch["label"], "mask": batch["mask"]}
    # Replicated: every process can read all rows.
    return jax.lax.with_sharding_constraint(found, P())


@contextlib.contextmanager
def create_file(
    path: pathlib.Path, count: int, shape: tuple[int, ...], facts: Facts
) -> Iterator[WriteRows]:
    """Creates a feature file, in the format of its suffix, that appears once it is complete.

    Yields a function that appends features (b, ...) float32, names and labels, (b,) or (b, K)
    int32. Raises ConfigError if the disk cannot be written. `count` images have features of a
    `shape`; `facts` say where they come from, and the `classes` that labels index.
    """

    def errors() -> contextlib.AbstractContextManager[None]:
        # Not around the block of the caller: an OSError of that is about something else.
        return storage.writing("--output", path)

    def write(features: np.ndarray, names: Sequence[str], labels: np.ndarray) -> None:
        with errors():
            rows.write(features, names, labels)

    with contextlib.ExitStack() as opened:
        with errors():
            part = opened.enter_context(storage.replacing(path))
            rows = (_Npz if path.suffix.lower() == ".npz" else _Parquet)(part, count, shape, facts)
        try:
            yield write
        except BaseException:
            # An archive that is left open complains when it is freed, after the message about the
            # cause.
            with contextlib.suppress(OSError):
                rows.close()
            raise
        with errors():
            rows.close()
            # Renames the draft, which can fail as a write can.
            opened.close()


class _Npz:
    """Arrays `features`, `names`, `labels`, and `classes` that labels index; for `numpy.load`.

    `weights` is the digest of the parameters, `model` that of what is computed with them, `views`
    that of the options images are resized by.

    With `data.multilabel`, labels are (N, K): 1 for each of an image's classes; with `data.targets`
    they are the numbers, float32.

    Feature rows are appended as they arrive, after a header with their number; names and labels,
    which are small, follow at the end.
    """

    def __init__(
        self, path: pathlib.Path, count: int, shape: tuple[int, ...], facts: Facts
    ) -> None:
        self._archive = zipfile.ZipFile(path, "x")  # stored, as numpy.savez does
        self._facts = facts
        self._names: list[str] = []
        self._labels: list[int | list[float]] = []
        # zipfile must know before the first byte whether a member may exceed 2 GiB.
        self._member = self._archive.open("features.npy", "w", force_zip64=True)
        header = {"descr": "<f4", "fortran_order": False, "shape": (count, *shape)}
        np.lib.format.write_array_header_1_0(self._member, header)

    def write(self, features: np.ndarray, names: Sequence[str], labels: np.ndarray) -> None:
        """Appends rows."""
        # A view of the memory: `tobytes` would copy it.
        self._member.write(np.ascontiguousarray(features, "<f4").data)
        self._names += names
        self._labels += labels.tolist()

    def close(self) -> None:
        """Writes the remaining arrays and the directory of the archive."""
        with self._archive:
            self._member.close()
            rest = {
                "names": np.array(self._names, np.str_),
                "labels": np.array(self._labels, "f4" if "numbers" in self._facts else "i4"),
                "classes": np.array(self._facts["classes"], np.str_),
                "weights": np.array(self._facts.get("weights", ""), np.str_),
                "views": np.array(self._facts.get("views", ""), np.str_),
                "model": np.array(self._facts.get("model", ""), np.str_),
            }
            for name, array in rest.items():
                with self._archive.open(f"{name}.npy", "w") as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)


class _Parquet:
    """Columns `name`, `label` (null where it is not known) and `features`, a list of fixed size.

    With `data.multilabel`, a label is a list of classes, with `data.targets` of numbers.

    The schema's metadata contains the key `vit_jax`: JSON with the checkpoint, the classes and the
    shape of one image's features, which is two-dimensional for tokens.
    """

    def __init__(
        self, path: pathlib.Path, count: int, shape: tuple[int, ...], facts: Facts
    ) -> None:
        self._size = int(np.prod(shape))
        self._numbers = "numbers" in facts
        self._label = pa.list_(pa.int32()) if facts.get("multilabel") else pa.int32()
        self._label = pa.list_(pa.float32()) if self._numbers else self._label
        self._schema = pa.schema(
            [
                ("name", pa.string()),
                ("label", self._label),
                ("features", pa.list_(pa.float32(), self._size)),
            ],
            metadata={"vit_jax": json.dumps({**facts, "shape": shape})},
        )
        # Features never repeat, so dictionary encoding only costs time and space.
        self._file = pyarrow.parquet.ParquetWriter(path, self._schema, use_dictionary=False)

    def write(self, features: np.ndarray, names: Sequence[str], labels: np.ndarray) -> None:
        """Appends rows as a group."""
        flat = pa.array(np.ascontiguousarray(features, np.float32).reshape(-1))
        columns = [
            pa.array(names, pa.string()),
            pa.array([_known(one, numbers=self._numbers) for one in labels], self._label),
            pa.FixedSizeListArray.from_arrays(flat, self._size),
        ]
        self._file.write_table(pa.table(columns, schema=self._schema))

    def close(self) -> None:
        """Writes the directory of the file."""
        self._file.close()


def _known(label: np.ndarray, *, numbers: bool) -> int | list[int] | list[float] | None:
    """The class of a label, the classes or `numbers` of a (K,) one, or None if it is not known."""
    if numbers:
        return None if np.isnan(label).any() else label.tolist()
    if (label < 0).any():
        return None
    return np.flatnonzero(label).tolist() if label.ndim else label.item()
