"""Frozen features of whole splits, the input of the head (`pre_logits`), and their evaluators."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax import config, models
from vit_jax.evaluation.runner import Evaluator, SplitRunner
from vit_jax.runtime import logs
from vit_jax.training import normalization, sharding

PADDING = -1  # label of a padded row
# (train, test, pair, stop=): numbers by name, such as `knn.measure`; None if `stop()` turned true.
Measure = Callable[..., dict[str, float] | None]


class Pair(NamedTuple):
    """The two splits of a dataset, read in order and without augmentation."""

    name: str
    train: SplitRunner
    test: SplitRunner
    classes: int


class Features(NamedTuple):
    """Features of a split: N x D x 4 bytes, spread over the devices of all processes.

    Attributes:
      mesh: the devices.
      values: (B, D) float32 per batch, rows sharded over all devices.
      labels: (B,) int32 per batch, likewise; PADDING for padded rows.
      order: the example of each row of all batches, as in `SplitRunner`.
    """

    mesh: Mesh
    values: list[jax.Array]
    labels: list[jax.Array]
    order: np.ndarray | None = None

    def gathered(self) -> tuple[np.ndarray, np.ndarray]:
        """Features (N, D) float32 and labels (N,) of all examples, in order, in host memory."""
        # A compiled identity gathers the rows of all processes; numpy sees those of this one alone.
        whole = jax.jit(lambda x: x, out_shardings=NamedSharding(self.mesh, P()))
        values, labels = (
            np.concatenate([np.asarray(whole(part).addressable_data(0)) for part in parts])
            for parts in (self.values, self.labels)
        )
        examples = np.flatnonzero(labels != PADDING)
        if self.order is not None:
            examples = examples[np.argsort(self.order[examples])]
        return values[examples], labels[examples]

    def counts(self, classes: int) -> np.ndarray:
        """The number of images of each class, (K,) int64."""
        with jax.set_mesh(self.mesh):
            return np.asarray(_counts(classes, self.labels), np.int64)


class Extractor:
    """Extracts features of one model, of each split once for all evaluators that need it."""

    def __init__(
        self,
        model: models.Classifier,
        data: config.Data,
        shared: Mapping[SplitRunner, int] | None = None,
    ) -> None:
        """`shared`: the number of evaluators that read each split.

        Its features are kept from the first of these calls to the last; a split that is not in
        `shared` is read at every call.
        """
        self._pre_logits = functools.partial(_pre_logits, model, data)
        self._shared = shared or {}
        self._params: models.Params | None = None
        self._kept: dict[SplitRunner, tuple[Features, int]] = {}

    def __call__(
        self, params: models.Params, split: SplitRunner, *, stop: Callable[[], bool]
    ) -> Features | None:
        """The features of a split in its order; None if `stop()` turned true."""
        if params is not self._params:  # a stopped call leaves features of older parameters
            self._params, self._kept = params, {}
        features, calls = self._kept.pop(split, (None, 0))
        if features is None:
            outputs = split.outputs(functools.partial(self._pre_logits, params), stop=stop)
            if outputs is None:
                return None
            values, labels = zip(*outputs, strict=True)
            features = Features(split.mesh, list(values), list(labels), split.order)
        if calls + 1 < self._shared.get(split, 1):
            self._kept[split] = features, calls + 1
        # With no features kept there is nothing to compare: a reference would only hold memory.
        self._params = params if self._kept else None
        return features


def on_features(measure: Measure, extract: Extractor, pairs: Sequence[Pair]) -> Evaluator:
    """Evaluates a measure over pairs of splits: numbers such as `SET/5shot`."""

    def evaluate(params: models.Params, *, stop: Callable[[], bool]) -> dict[str, float] | None:
        results: dict[str, float] = {}
        for pair in pairs:
            train = extract(params, pair.train, stop=stop)
            test = train and extract(params, pair.test, stop=stop)
            found = train and test and measure(train, test, pair, stop=stop)
            if found is None:
                return None
            results |= {f"{pair.name}/{key}": value for key, value in found.items()}
        return results

    return evaluate


def count_training_images(kind: str, train: Features, test: Features, pair: Pair) -> int:
    """The number of training images; warns of classes that have test images alone."""
    own, other = train.counts(pair.classes), test.counts(pair.classes)
    if lost := int(other[own == 0].sum()):
        logs.log.warning(
            "evaluation.%s=%s: %d of %d test images are of classes without a training image (%d of "
            "%d), so top-1 counts them as wrong",
            kind, pair.name, lost, other.sum(), ((own == 0) & (other > 0)).sum(), pair.classes,
        )  # fmt: skip
    return int(own.sum())


@functools.partial(jax.jit, static_argnums=0)
def _counts(classes: int, labels: list[jax.Array]) -> jax.Array:
    # PADDING is -1, the last class, to which it adds nothing.
    total = sum(
        jnp.zeros(classes, jnp.int32).at[part].add((part != PADDING).astype(jnp.int32))
        for part in labels
    )
    # Replicated, so that every process can read it.
    return jax.lax.with_sharding_constraint(total, P())


@functools.partial(jax.jit, static_argnums=(0, 1))  # compiled once for all splits
def _pre_logits(
    model: models.Classifier, data: config.Data, params: models.Params, batch: dict[str, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    _, out = normalization.apply_to_pixels(model, data, params, batch)
    chex.assert_shape(out["pre_logits"], (batch["label"].shape[0], None))
    chex.assert_type(out["pre_logits"], jnp.float32)
    # Padding keeps its rows, so that every batch has one shape; the label marks it.
    found = out["pre_logits"], jnp.where(batch["mask"], batch["label"], PADDING)
    return jax.lax.with_sharding_constraint(found, sharding.BATCH)
