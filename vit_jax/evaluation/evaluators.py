"""Evaluators: measures run over every example of a split, whatever batch size and devices.

`Means` sums values of images batch by batch and divides once; `Whole` gathers the logits of a
split, for measures that are no means of images.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax import config, models
from vit_jax.data.real_labels import NONE, Reassessed
from vit_jax.data.source import Source, read_targets
from vit_jax.evaluation import measures, metrics
from vit_jax.evaluation.metrics import Outputs
from vit_jax.evaluation.runner import Batch, Evaluator, Inputs, SplitRunner, needed
from vit_jax.models.variants import required
from vit_jax.training import losses, normalization
from vit_jax.training.objectives import mae as autoencoding
from vit_jax.training.objectives import masked_patches as objective

Arrays = dict[str, jax.Array]
# Values of images by name, of one shape (B, ...), and which images count, (B,) bool.
Values = tuple[Arrays, jax.Array]


class Setting(NamedTuple):
    """What programs are compiled for: the model, its preprocessing, and its loss."""

    model: models.Classifier
    data: config.Data
    loss: config.Loss

    def logits(self, params: models.Params, batch: Arrays) -> jax.Array:
        """The logits (B, K) of a batch."""
        return normalization.apply_to_pixels(self.model, self.data, params, batch)[0]


# From a setting, parameters and a batch: values by the prefix of their names.
Measure = Callable[[Setting, models.Params, Arrays], dict[str, Values]]


class Means:
    """The means of a measure over a split, each with the number of its values as `count`."""

    def __init__(
        self,
        measure: Measure,
        names: Mapping[str, Sequence[str]],
        model: models.Classifier,
        cfg: config.Config,
        split: SplitRunner,
        inputs: Callable[[Batch], Inputs] = needed,
    ) -> None:
        """Takes the names of the measure's values by their prefix, in the order of the results."""
        self._sums = functools.partial(_sums, measure, Setting(model, cfg.data, cfg.loss))
        self._names, self._split, self._inputs = names, split, inputs

    def __call__(
        self, params: models.Params, *, stop: Callable[[], bool]
    ) -> dict[str, float] | None:
        """Numbers by name; None if `stop()` turned true before the end."""
        function = functools.partial(self._sums, params)
        sums = self._split.outputs(function, stop=stop, inputs=self._inputs)
        if sums is None:
            return None
        # Of Python numbers: float64, and counts of any size.
        totals = jax.tree.map(
            lambda *parts: sum(part.item() for part in parts), *jax.device_get(sums)
        )
        results: dict[str, float] = {}
        for prefix, found in totals.items():
            count = found["count"]
            # Where no image counts, `count` stands alone: 0 / 0 is no mean.
            means = {name: found[name] / count for name in self._names[prefix] if count}
            named = {f"{prefix}/{name}".strip("/"): value for name, value in means.items()}
            results |= named | {f"{prefix}/count".strip("/"): count}
        return results


@functools.partial(jax.jit, static_argnums=(0, 1))  # compiled once for all splits
def _sums(
    measure: Measure, setting: Setting, params: models.Params, batch: Arrays
) -> dict[str, Arrays]:
    """Sums and counts of the unmasked values, by prefix and name."""
    found = {}
    for prefix, (values, counted) in measure(setting, params, batch).items():
        # One shape, as all values of a prefix share one count.
        (shape,) = {value.shape for value in values.values()}
        # From (B,) to (B, 1, ...): the values of patches, (B, M, T), count where their image does.
        counted = jnp.broadcast_to(counted.reshape(-1, *(1,) * (len(shape) - 1)), shape)
        sums = {
            # A select, not a product with the mask: NaN times 0 is NaN.
            name: jnp.sum(jnp.where(counted, value, jnp.zeros_like(value)))
            for name, value in values.items()
        }
        found[prefix] = sums | {"count": jnp.sum(counted)}
    return found


def classification(
    model: models.Classifier,
    cfg: config.Config,
    split: SplitRunner,
    reassessed: Reassessed | None = None,
) -> Evaluator:
    """Exact `top1`, `top5`, `loss` and `count` of images with one label each.

    With the source of the split as `reassessed`, ReaL labels add `real/top1` and `real/count` from
    the same predictions.
    """

    def inputs(batch: Batch) -> Inputs:
        if reassessed is None:
            return needed(batch)
        label, right = reassessed.decode(batch["label"])
        return needed(batch) | {"label": label, "right": right}

    names = {"": ("top1", "top5", "loss"), "real": ("top1",)}
    return Means(_classification, names, model, cfg, split, inputs)


def _classification(setting: Setting, params: models.Params, batch: Arrays) -> dict[str, Values]:
    logits = setting.logits(params, batch)
    found = {"": (measures.classification(logits, batch["label"], setting.loss), batch["mask"])}
    if "right" in batch:
        scores = losses.ranked(logits, setting.loss)
        values, known = measures.several_right(scores, batch["right"])
        found["real"] = {"top1": values["top1"]}, batch["mask"] & known
    return found


def several_right(
    model: models.Classifier, cfg: config.Config, split: SplitRunner, right: np.ndarray
) -> Evaluator:
    """`top1`, `top5` and `count` where labels map to any number of right outputs (ObjectNet).

    `right` (labels, M) int32 has the outputs of each label, padded with NONE; labels without any
    do not count.
    """

    def inputs(batch: Batch) -> Inputs:
        found = np.where(batch["mask"][:, None], right[batch["label"]], NONE)
        # With all that a model may need: padded views come with their grids.
        return needed(batch) | {"right": found.astype(np.int32)}

    return Means(_several_right, {"": ("top1", "top5")}, model, cfg, split, inputs)


def _several_right(setting: Setting, params: models.Params, batch: Arrays) -> dict[str, Values]:
    scores = losses.ranked(setting.logits(params, batch), setting.loss)
    return {"": measures.several_right(scores, batch["right"])}


def masked_patches(model: models.Classifier, cfg: config.Config, split: SplitRunner) -> Evaluator:
    """`loss`, `error` and `count` of images; for colors also `accuracy` and its `count`.

    `masked_patches.measure` defines them. The corruption depends only on an image's index in its
    split, so the results depend neither on the batch size, nor on devices, nor on the run's seed.
    """
    names = {"": ("loss", "error"), "accuracy": ("",)}
    return Means(_masked_patches, names, model, cfg, split, _numbered)


def _numbered(batch: Batch) -> Inputs:
    """Images with their index in the split, which alone determines their masks."""
    found = {key: batch[key] for key in ("image", "mask")}
    # JAX has no int64 without its x64 mode.
    return found | {"index": batch["index"].astype(np.int32)}


def _masked_patches(setting: Setting, params: models.Params, batch: Arrays) -> dict[str, Values]:
    model, data, _ = setting
    images, mask = batch["image"], batch["mask"]
    keys = objective.keys_of_examples(batch["index"])
    corruption = objective.corrupt(keys, model.patches, required(model.masked))
    outputs = model.predict_masked(
        params, normalization.normalize_pixels(images, data), **corruption
    )
    patch, target = required(model.config.patch_size), required(model.masked).target
    values = objective.measure(outputs, images, corruption["masked"], patch, target, data)
    accuracy = {"": values.pop("accuracy")} if "accuracy" in values else None
    return {"": (values, mask)} | ({"accuracy": (accuracy, mask)} if accuracy else {})


def mae(model: models.Classifier, cfg: config.Config, split: SplitRunner) -> Evaluator:
    """`loss` and `count` of images, by masks that depend only on their index in the split."""
    measure = functools.partial(_mae, required(cfg.mae))
    return Means(measure, {"": ("loss",)}, model, cfg, split, _numbered)


def _mae(
    options: config.Mae, setting: Setting, params: models.Params, batch: Arrays
) -> dict[str, Values]:
    model, data, _ = setting
    pixels = normalization.normalize_pixels(batch["image"], data)
    rank = autoencoding.ranks(objective.keys_of_examples(batch["index"]), model.patches)
    guess = autoencoding.reconstruct(model, options, params, pixels, rank)
    found = autoencoding.losses(model, options, guess, pixels, rank)
    return {"": ({"loss": found}, batch["mask"])}


class Whole:
    """A measure of all logits of a split at once: 4 bytes for each image and class."""

    def __init__(
        self,
        measure: Callable[[Outputs], dict[str, float]],
        model: models.Classifier,
        cfg: config.Config,
        split: SplitRunner,
    ) -> None:
        """Takes a function of the outputs for every example."""
        setting = Setting(model, cfg.data, cfg.loss)
        self._logits = functools.partial(_gathered, setting, split.mesh)
        self._split, self._measure = split, measure

    def __call__(
        self, params: models.Params, *, stop: Callable[[], bool]
    ) -> dict[str, float] | None:
        """Numbers by name; None if `stop()` turned true before the end."""
        function = functools.partial(self._logits, params)
        outputs = self._split.outputs(function, stop=stop, inputs=_with_index)
        if outputs is None:
            return None
        # Every device holds all of it (see `_gathered`), so one of this process's is enough.
        batches = [[np.asarray(x.addressable_data(0)) for x in output] for output in outputs]
        *found, mask = (np.concatenate(part) for part in zip(*batches, strict=True))
        logits, labels, index = (part[mask] for part in found)
        order = np.argsort(index)  # with data.aspect=native, batches are in another
        return self._measure(Outputs(logits[order], labels[order], index[order]))


def _with_index(batch: Batch) -> Inputs:
    return needed(batch) | {"index": batch["index"].astype(np.int32)}


@functools.partial(jax.jit, static_argnums=(0, 1))
def _gathered(
    setting: Setting, mesh: Mesh, params: models.Params, batch: Arrays
) -> tuple[jax.Array, ...]:
    """Logits, labels, index and mask of a batch, whole on every device."""
    found = setting.logits(params, batch), *(batch[k] for k in ("label", "index", "mask"))
    return jax.lax.with_sharding_constraint(found, NamedSharding(mesh, P()))


def class_subset(model: models.Classifier, cfg: config.Config, split: SplitRunner) -> Evaluator:
    """`top1`, `top5` and `count` among the classes that the split has."""

    def measure(found: Outputs) -> dict[str, float]:
        scores = np.asarray(losses.ranked(jnp.asarray(found.logits), cfg.loss))
        return measures.class_subset(scores, found.labels)

    return Whole(measure, model, cfg, split)


def label_sets(
    model: models.Classifier,
    cfg: config.Config,
    split: SplitRunner,
    annotated: Sequence[int] | None = None,
    *,
    keep: Callable[[Outputs], None] = lambda _: None,
) -> Evaluator:
    """`map`, `top1`, `loss`, `count` and `evaluation.metrics` of images with several classes.

    `annotated` are the outputs whose classes the images are labeled with; None: all. The others are
    left out, as it is unknown which images show their classes. `keep` gets the outputs.
    """
    chances = functools.partial(measures.scores, loss=cfg.loss)
    predict = functools.partial(measures.predicted, loss=cfg.loss)

    def measure(found: Outputs) -> dict[str, float]:
        keep(found)
        if annotated is not None:
            logits, labels = found.logits[:, annotated], found.labels[:, annotated]
            found = Outputs(logits, labels, found.index)
        each = losses.cross_entropy(*map(jnp.asarray, found[:2]), loss=cfg.loss)
        scores = np.asarray(losses.ranked(jnp.asarray(found.logits), cfg.loss))
        return metrics.measure(
            found,
            cfg.evaluation.metrics,
            seed=cfg.seed,
            each={"loss": np.asarray(each)},
            chances=chances,
            predict=predict,
            own=functools.partial(measures.label_sets, scores, found.labels),
        ) | {"count": len(found.logits)}

    return Whole(measure, model, cfg, split)


def numbers(
    model: models.Classifier,
    cfg: config.Config,
    split: SplitRunner,
    source: Source,
    *,
    keep: Callable[[Outputs], None] = lambda _: None,
) -> Evaluator:
    """`mae`, `rmse`, `r2`, `spearman`, `loss` and `count` of images with `data.targets`.

    `source` has the images of `split`, and knows their numbers in float64. `keep` gets the outputs.
    """
    loss, truth = cfg.loss, read_targets(source)
    assert isinstance(loss, config.Regression)

    def measure(found: Outputs) -> dict[str, float]:
        keep(found)
        if not len(found.logits):
            return {"count": 0}
        # The loss as in training, from float32; the errors in float64, from the numbers of the
        # file.
        each = losses.regression(jnp.asarray(found.logits), jnp.asarray(found.labels), loss)
        predictions = losses.scaled(found.logits.astype(np.float64), loss)
        further = metrics.measure_numbers(
            truth[found.index], predictions, source.classes, cfg.evaluation.metrics, seed=cfg.seed
        )
        # In float64: a sum in float32 loses digits with the number of images.
        mean = float(np.mean(np.asarray(each), dtype=np.float64))
        return further | {"loss": mean, "count": len(found.logits)}

    return Whole(measure, model, cfg, split)


def whole_classification(
    model: models.Classifier,
    cfg: config.Config,
    split: SplitRunner,
    *,
    temperature: float | None = None,
    fit: bool = False,
    ranks: np.ndarray | None = None,
    keep: Callable[[Outputs], None] = lambda _: None,
) -> Evaluator:
    """`classification` with the metrics of `evaluation.metrics`.

    Logits are divided by `temperature`, or by one to `fit`. `ranks` (K,) orders the outputs, for
    metrics of ordered classes. `keep` gets the outputs.

    Raises ConfigError for calibration of a loss whose probabilities are no softmax.
    """
    asked = cfg.evaluation.metrics
    if "calibration" in asked and losses.own_probabilities(cfg.loss) is not None:
        raise config.ConfigError(
            f"evaluation.metrics={config.show(asked)}: calibration needs a softmax, and "
            f"loss.name={cfg.loss.name} has probabilities of its own; leave it out"
        )

    def measure(found: Outputs) -> dict[str, float]:
        keep(found)
        results: dict[str, float] = {"count": len(found.logits)}
        if not len(found.logits):
            return results
        logits, labels = jnp.asarray(found.logits), jnp.asarray(found.labels)
        each = jax.device_get(measures.classification(logits, labels, cfg.loss))
        means = {name: float(np.mean(values, dtype=np.float64)) for name, values in each.items()}
        further = metrics.measure(
            found,
            cfg.evaluation.metrics,
            seed=cfg.seed,
            temperature=temperature,
            fit=fit,
            ranks=ranks,
            each=each,
            chances=functools.partial(measures.scores, loss=cfg.loss),
            predict=functools.partial(measures.predicted, loss=cfg.loss),
        )
        # `means` win: those in `further` are NaN where a single image has an infinite loss.
        return further | means | results

    return Whole(measure, model, cfg, split)


def corruptions(evaluators: Mapping[str, Evaluator]) -> Evaluator:
    """ImageNet-C: the results of each set as `fog_3/top1`, and `mce` if all 75 sets are there."""

    def evaluate(params: models.Params, *, stop: Callable[[], bool]) -> dict[str, float] | None:
        results: dict[str, float] = {}
        for name, evaluator in evaluators.items():
            found = evaluator(params, stop=stop)
            if found is None:
                return None
            results |= {f"{name}/{key}": value for key, value in found.items()}
        mce = measures.mean_corruption_error({name: results[f"{name}/top1"] for name in evaluators})
        return results if mce is None else results | {"mce": mce}

    return evaluate
