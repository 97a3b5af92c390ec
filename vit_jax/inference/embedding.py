"""Features of a folder or a data set as a file: the input of the head, or every token."""

import functools
import os
import pathlib
import time
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from vit_jax import config, models
from vit_jax.data import folders, native_aspect, sources
from vit_jax.evaluation import runner
from vit_jax.inference import feature_files, loading
from vit_jax.runtime import device, distributed, logs
from vit_jax.training import normalization, sharding
from vit_jax.utils import messages, storage

AT_ONCE = 32  # images on a device
WINDOW = 64  # batches whose images are grouped by shape, so that few wait for others to be written
LOG_SECONDS = 10.0

Arrays = dict[str, jax.Array]


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
    """Writes the features of a folder or a data set to a file; returns the number of images.

    For images in memory use `load(reference).embed(images)`.

    Args:
      reference: a checkpoint, as in `load`.
      output: the .npz or .parquet file to write, which must not exist.
      images: a folder of image files; None: the evaluation split of the config.
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
    device.keep_freed_memory()
    # What can be known to be wrong before a checkpoint is opened.
    output = storage.given_path("--output", output, remote=False)
    feature_files.check_output(output)
    folder = None if images is None else storage.given_path("--images", images, remote=False)
    if folder is None:
        loading.require_images(reference, overrides or {})
    elif not folder.is_dir():
        what = "not a folder" if folder.exists() else "no such folder"
        raise config.ConfigError(f"--images={folder}: {what}")
    opened = loading.load(reference, overrides, step)
    return write(opened, output, folder, features=features, batch_size=batch_size)


def write(
    opened: loading.LoadedModel,
    output: str | os.PathLike[str],
    images: str | os.PathLike[str] | None = None,
    *,
    features: str = "pre_logits",
    batch_size: int | None = None,
) -> int:
    """Writes the features of every image in the order of the source; returns how many there are.

    Each row depends on its image only: batch size and devices change no more than rounding. At most
    two batches of features are in memory, WINDOW with `data.aspect=native`. An unreadable image
    raises DataError with its name, or gives a row of NaN within `data.max_bad_examples`. With
    several processes, each computes its share, and the first one writes.
    """
    cfg = opened.config
    distributed.initialize(None, wait=cfg.watchdog.join, heartbeat=cfg.watchdog.heartbeat)
    source = _source(opened, images)
    model = opened.model
    shape = loading.feature_shape(model, features)
    rows = -(-(batch_size or AT_ONCE * jax.device_count()) // jax.device_count())
    rows *= jax.device_count()
    plan = runner.plan_native(model, source, cfg.data, rows, WINDOW)
    mesh = sharding.create_mesh(cfg.mesh.fsdp)
    split = runner.create_runner(source, cfg, mesh, rows, plan=plan)
    function = functools.partial(_features, model, cfg.data, features, opened.params)
    facts = {"checkpoint": cfg.name, "step": opened.step, "features": features}
    facts |= {"classes": source.classes}
    facts |= {"multilabel": True} if cfg.data.multilabel else {}
    writes = jax.process_index() == 0
    with (
        device.memory_errors(),
        feature_files.Writer(
            pathlib.Path(output), len(source), shape, facts, active=writes
        ) as writer,
    ):
        pour = _Pour(writer, source, plan)
        split.outputs(lambda batch: pour(function(batch)), stop=lambda: False, inputs=_inputs)
        pour.finish()
    return len(source)


class _Pour:
    """Writes batches with a delay of one, so that the devices always have work."""

    def __init__(
        self, writer: feature_files.Writer, source: sources.Source, plan: native_aspect.Plan | None
    ) -> None:
        self._writer, self._source = writer, source
        self._order = None if plan is None else iter(plan.rows)
        self._ahead: dict[int, tuple[np.ndarray, np.ndarray]] = {}  # of images after missing ones
        self._waiting: Arrays | None = None
        self._done, self._logged = 0, time.monotonic()

    def __call__(self, computed: Arrays) -> None:
        """Accepts the next batch and writes the previous one."""
        self.finish()
        self._waiting = computed

    def finish(self) -> None:
        """Writes the pending batch, if any."""
        if self._waiting is None:
            return
        # The same on all devices of all processes, so any one of them will do.
        batch = {key: np.asarray(x.addressable_data(0)) for key, x in self._waiting.items()}
        self._waiting = None
        values = np.where(_wide(batch["mask"], batch["values"]), batch["values"], np.nan)
        if self._order is None:
            size = min(len(values), len(self._source) - self._done)
            self._write(values[:size], batch["label"][:size])
        else:
            rows = zip(values, batch["label"], strict=True)
            self._ahead |= dict(zip(next(self._order).tolist(), rows, strict=True))
            self._ahead.pop(native_aspect.PADDING, None)
            ready = []
            while self._done + len(ready) in self._ahead:
                ready.append(self._ahead.pop(self._done + len(ready)))
            if ready:
                self._write(*(np.stack(parts) for parts in zip(*ready, strict=True)))
        if time.monotonic() - self._logged > LOG_SECONDS:
            self._logged = time.monotonic()
            logs.log.info("%d of %d images", self._done, len(self._source))

    def _write(self, values: np.ndarray, labels: np.ndarray) -> None:
        """Writes the features and labels of the next images."""
        names = [self._source.name(self._done + row) for row in range(len(values))]
        self._writer.write(values, [messages.printable(name) for name in names], labels)
        self._done += len(values)


def _source(opened: loading.LoadedModel, images: str | os.PathLike[str] | None) -> sources.Source:
    data = opened.config.data
    if images is not None:
        return folders.Loose(pathlib.Path(images), opened.classes, "--images")
    needed = opened.config.needs_labels
    return sources.open_source(data, data.eval_split, labels=needed, train=False)


def _inputs(batch: runner.Batch) -> runner.Inputs:
    mask, label = batch["mask"], batch["label"].astype(np.int32)
    label = np.where(_wide(mask, label), label, np.int32(folders.UNKNOWN))
    return {"image": batch["image"], "mask": mask, "label": label}


def _wide(mask: np.ndarray, values: np.ndarray) -> np.ndarray:
    """A mask of rows, broadcastable to their values."""
    return mask.reshape(-1, *(1,) * (values.ndim - 1))


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _features(
    model: models.Classifier, data: config.Data, kind: str, params: models.Params, batch: Arrays
) -> Arrays:
    _, out = model.apply(params, normalization.normalize_pixels(batch["image"], data))
    values = out[kind].astype(jnp.float32)
    found = {"values": values, "label": batch["label"], "mask": batch["mask"]}
    return jax.lax.with_sharding_constraint(found, P())
