"""One pass over a split: applies a function to every batch on the devices."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh

from vit_jax import config, models
from vit_jax.data import native_aspect, pipeline, prefetch, transforms
from vit_jax.data.source import Source
from vit_jax.models import variants
from vit_jax.training import sharding

Batch = Mapping[str, np.ndarray]
Inputs = dict[str, np.ndarray]
T = TypeVar("T")


class Evaluator(Protocol):
    """Measures parameters; returns None when `stop()` turned true before it was done."""

    def __call__(
        self, params: models.Params, *, stop: Callable[[], bool]
    ) -> dict[str, float] | None:
        """Numbers by name, over a whole split."""
        ...


def needed(batch: Batch) -> Inputs:
    """The parts of a batch that go to the devices: `image`, `grids` if any, `label` and `mask`."""
    return {key: batch[key] for key in ("image", "grids", "label", "mask") if key in batch}


def wait_for_last(outputs: Sequence[object]) -> None:
    """Waits for all but the newest of a pass's outputs, so that the device always has the next.

    A process of several CPU devices that queues some thirty programs with collectives waits for
    another process forever.
    """
    jax.block_until_ready(outputs[-2:-1])


class SplitRunner:
    """A split in global batches of `rows`, read from its start by every call of `outputs`.

    Rows beyond the end of the split, and unreadable images, are padding: their `mask` is False.
    """

    def __init__(
        self,
        mesh: Mesh,
        rows: int,
        batches: Callable[[], prefetch.BatchIterator],
        order: np.ndarray | None = None,
    ) -> None:
        """Takes `batches`, which starts loading the split from its beginning.

        `order` has the example of every row of all batches, -1 for padding; None: as they come.
        """
        self.mesh, self._rows, self._batches = mesh, rows, batches
        self.order = order
        self._local = sharding.host_rows(mesh, rows)

    def outputs(
        self,
        function: Callable[[dict[str, jax.Array]], T],
        *,
        stop: Callable[[], bool],
        inputs: Callable[[Batch], Inputs] = needed,
    ) -> list[T] | None:
        """The outputs of `function` for each batch, in order; None if `stop()` turned true.

        `inputs` selects the arrays of a batch; their rows are sharded over all devices.
        """
        found: list[T] = []
        batches = self._batches()
        try:
            with jax.set_mesh(self.mesh):
                for batch in batches:
                    placed = sharding.put_batch(inputs(batch), self.mesh, self._rows, self._local)
                    # Dispatched, not computed: the next batch is loaded meanwhile.
                    found.append(function(placed))
                    wait_for_last(found)
                    if stop():
                        return None
        except prefetch.StoppedError:
            # `stop` turned true while a batch was loading, perhaps from a disk that hangs.
            return None
        finally:
            # After an error, too: loader processes would stay.
            batches.close()
        return found


def create_runner(
    source: Source,
    cfg: config.Config,
    mesh: Mesh,
    rows: int,
    *,
    plan: native_aspect.BatchPlan | None = None,
    stop: Callable[[], bool] | None = None,
) -> SplitRunner:
    """The runner of a source as evaluation sees it, in global batches of `rows`.

    Args:
      source: the images.
      cfg: how they are read and seen.
      mesh: the devices.
      rows: of a batch; of fewer images, one batch has as many as there are.
      plan: which images are in each batch, where views have several shapes; it has `rows` too.
      stop: loads ahead in a thread that ends when this turns true; None: loads when asked.
    """
    rows = _rows(source, rows, mesh.size) if plan is None else plan.rows.shape[1]
    chain, patch = transforms.eval_transforms(cfg.data), None
    if cfg.data.padded:
        patch = variants.required(cfg.model.patch_size)
        chain = (native_aspect.FitPatches.for_evaluation(cfg.data, patch),)

    def batches() -> prefetch.BatchIterator:
        loaded = pipeline.batches(
            source,
            chain,
            cfg.data,
            seed=cfg.seed,
            batch_size=rows,
            rows=sharding.host_rows(mesh, rows),
            train=False,
            # Rounded up: the last batch is padded, so that every image counts once.
            stop_step=-(-len(source) // rows) if plan is None else plan.steps,
            plan=plan,
            patch=patch,
        )
        return loaded if stop is None else prefetch.Prefetcher(loaded, stop)

    return SplitRunner(mesh, rows, batches, plan and plan.rows.reshape(-1))


def native_shapes(model: models.Classifier) -> tuple[native_aspect.Shape, ...]:
    """Heights and widths of unpadded views at their own aspect ratio."""
    rows, columns = models.grid(model.config, model.image_size)
    height, width = variants.covered(model.config, model.image_size)
    return native_aspect.shapes((rows, columns), (height // rows, width // columns))


def plan_native(
    model: models.Classifier,
    source: Source,
    data: config.Data,
    rows: int,
    window: int | None = None,
) -> native_aspect.BatchPlan | None:
    """The batches of a pass over a source whose views have several shapes, else None."""
    if data.aspect != "native" or data.padded:
        return None
    rows = _rows(source, rows, jax.device_count())
    return native_aspect.plan(source, data, native_shapes(model), rows, window)


def _rows(source: Source, rows: int, devices: int) -> int:
    """Rows of a batch: a validation split of 20 images would cost as much as 512 otherwise."""
    return min(rows, -(-len(source) // devices) * devices)
