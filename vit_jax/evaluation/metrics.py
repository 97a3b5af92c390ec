"""Metrics of a whole split, from precision to calibration, with bootstrap intervals.

Every function takes weights (R, N): how often each image counts, in R rows. A row of ones is the
split itself; the other rows are draws with replacement, which the intervals come from.
"""

import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

RESAMPLES, COVERED = 1000, 0.95  # of the bootstrap; the share of its values within an interval
ROWS = 100  # of weights at a time, to bound memory
BINS = 15  # of the calibration error (Guo et al. 2017, arXiv 1706.04599)
COLDEST, HOTTEST = 0.05, 20.0  # temperatures; a split without mistakes asks for 0, so for none

Array = np.ndarray
Arrays = dict[str, np.ndarray]


class Outputs(NamedTuple):
    """A head's outputs for a split, in the order of its images.

    Attributes:
      logits: (N, K) float32.
      labels: (N,) int32, or (N, K) float32, above 0 for each class of an image.
      index: (N,) positions in the split.
    """

    logits: Array
    labels: Array
    index: Array


def measure(
    outputs: Outputs,
    groups: Collection[str],
    *,
    seed: int = 0,
    temperature: float | None = None,
    fit: bool = False,
    ranks: Array | None = None,
    each: Mapping[str, Array] = MappingProxyType({}),
    chances: Callable[[Array], Array] | None = None,
    predict: Callable[..., Array] | None = None,
    own: Callable[[Array], Arrays] = lambda _: {},
) -> dict[str, float]:
    """The metrics of `config.METRICS` of these groups, by name; none of no images.

    Args:
      outputs: of a split.
      groups: `f1`, `auroc`, `calibration`, `ordinal`, and `intervals`: `f1/low`, `f1/high` of each.
      seed: draws the resamples.
      temperature: what logits are divided by for `ece_scaled`.
      fit: whether to fit the temperature on these images, in place of a given one.
      ranks: (K,) of the classes in their order, which `ordinal` needs.
      each: (N,) values of single images, by the names of their means.
      chances: scores (N, K) of logits, by which `auroc` ranks images; None: `scores`.
      predict: the classes of logits, as `predicted`, which is the default.
      own: further values (R,) by name, of weights.
    """
    logits, labels, _ = outputs
    predict = predict or predicted
    count = len(logits)
    if not count:
        return {}
    weights = _weights(count, seed, intervals="intervals" in groups)
    truth = labels > 0 if labels.ndim == 2 else labels
    found = own(weights)
    for name, values in each.items():
        finite = np.isfinite(values).all()
        # All or none: else a draw with such an image is infinite, and one without it, 0 x inf, NaN.
        found[name] = weights @ np.float64(values if finite else values * np.nan) / count
    if "f1" in groups:
        found |= f1(truth, predict(logits, several=truth.ndim == 2), logits.shape[1], weights)
    if "auroc" in groups:
        chances = chances or functools.partial(scores, several=truth.ndim == 2)
        found |= ranking(chances(logits), truth, weights)
    if "ordinal" in groups and ranks is not None:
        found |= ordinal(truth, predict(logits, several=False), ranks, weights)
    if "calibration" in groups:
        found["ece"] = calibration_error(logits, truth, weights)
        temperature = fit_temperature(logits, truth) if fit else temperature
        if temperature is not None:
            found["ece_scaled"] = calibration_error(logits / temperature, truth, weights)
    results = _with_intervals(found)
    if fit and "calibration" in groups and temperature is not None:
        # After the intervals: fitted once, to the split itself.
        results["temperature"] = temperature
    return results


def measure_numbers(
    truth: Array,
    predictions: Array,
    columns: Sequence[str],
    groups: Collection[str] = (),
    *,
    seed: int = 0,
) -> dict[str, float]:
    """`mae`, `rmse`, `r2` and `spearman`: means over columns, then those of each column.

    Truth and predictions are (N, K) float64 in their own units; of the groups, as in `measure`,
    only `intervals` matters.
    """
    if not len(truth):
        return {}
    weights = _weights(len(truth), seed, intervals="intervals" in groups)
    each = [errors(truth[:, k], predictions[:, k], weights) for k in range(len(columns))]
    found = {name: np.mean([one[name] for one in each], axis=0) for name in each[0]}
    if len(columns) > 1:
        for name, one in zip(columns, each, strict=True):
            found |= {f"{name}/{key}": values for key, values in one.items()}
    return _with_intervals(found)


def errors(truth: Array, predictions: Array, weights: Array) -> dict[str, Array]:
    """Mean absolute and root mean square error, R2 and Spearman's correlation, (R,) each.

    NaN for a prediction that is NaN; R2 also where the truth is constant, Spearman's where either
    is. Truth and predictions are (N,) float64, weights (R, N).
    """
    total, error = weights.sum(axis=1), predictions - truth
    squared = weights @ np.square(error)
    center = (weights @ truth / total)[:, None]
    spread = (weights * np.square(truth - center)).sum(axis=1)
    # A sum of squares around a rounded mean is not exactly 0 where all are equal.
    highest = np.where(weights > 0, truth, -np.inf).max(axis=1)
    varies = highest > np.where(weights > 0, truth, np.inf).min(axis=1)
    ratio = np.divide(squared, spread, out=np.full(len(total), np.nan), where=varies)
    both = zip(_ranks(truth, weights), _ranks(predictions, weights), weights, strict=True)
    return {
        "mae": weights @ np.abs(error) / total,
        "rmse": np.sqrt(squared / total),
        "r2": 1 - ratio,
        "spearman": np.array([_correlation(*row) for row in both]),
    }


def _ranks(values: Array, weights: Array) -> Iterator[Array]:
    """Yields the average ranks (N,) of values (N,), each repeated as often as a row says."""
    order = np.argsort(values, kind="stable")
    ranked = values[order]
    group = np.cumsum(np.append(False, ranked[1:] != ranked[:-1]))
    for row in weights:
        # Equal values, and copies of one in a draw, share their mean rank, as in scipy's rankdata.
        count = np.bincount(group, row[order])
        ranks = np.full(len(values), np.nan)
        if not np.isnan(ranked[-1]):  # sorted last
            ranks[order] = (np.cumsum(count) - (count - 1) / 2)[group]
        yield ranks


def _correlation(one: Array, other: Array, weights: Array) -> float:
    """Pearson's correlation of values (N,) counted `weights` (N,) times; NaN for a constant."""
    one, other = (values - np.average(values, weights=weights) for values in (one, other))
    spread = (weights @ np.square(one)) * (weights @ np.square(other))
    return float(weights @ (one * other) / np.sqrt(spread)) if spread > 0 else float("nan")


def _weights(count: int, seed: int, *, intervals: bool) -> Array:
    """Ones, and with intervals how often each of `count` images is in each draw, (R, N)."""
    weights = np.ones((1, count))
    if not intervals:
        return weights
    # A draw is a row of counts, so that each metric is computed by products with all draws at once.
    drawn = np.random.default_rng(seed).integers(0, count, (RESAMPLES, count))
    resampled = np.stack([np.bincount(row, minlength=count) for row in drawn])
    return np.concatenate([weights, resampled])


def _with_intervals(found: Mapping[str, Array]) -> dict[str, float]:
    """The values of the split itself, and the intervals of the draws where there are some."""
    results: dict[str, float] = {}
    for name, values in found.items():
        results[name] = float(values[0])
        if len(values) > 1:
            outside = 50 * (1 - COVERED)
            # A resample may lack what a metric needs, such as a second class; it is then NaN.
            known = values[1:][~np.isnan(values[1:])]
            low, high = np.nan, np.nan
            if len(known):
                low, high = np.percentile(known, (outside, 100 - outside))
            results |= {f"{name}/low": float(low), f"{name}/high": float(high)}
    return results


def scores(logits: Array, *, several: bool) -> Array:
    """Scores (N, K) float64 that rank the images of a class: softmax; of `several`, the logits."""
    values = logits.astype(np.float64)
    if several:  # sigmoids would tie from a logit of 37 on, where they round to 1
        return values
    # exp overflows from 710 on; a softmax does not change with a constant.
    values -= values.max(axis=1, keepdims=True)
    powers = np.exp(values)
    return powers / powers.sum(axis=1, keepdims=True)


def predicted(logits: Array, *, several: bool) -> Array:
    """The best class (N,), -1 for an output with a NaN; of `several`, those above one half."""
    if several:
        # A sigmoid is above one half where its logit is above 0.
        return logits > 0
    return np.where(np.isnan(logits).any(axis=1), -1, np.argmax(logits, axis=1))


class Counts(NamedTuple):
    """Image counts of each class, (R, K) each: true positives, predictions, and labels."""

    right: Array
    predicted: Array
    support: Array

    @property
    def precision(self) -> Array:
        """True positives as a share of the predictions; 0 without any."""
        return _share(self.right, self.predicted)

    @property
    def recall(self) -> Array:
        """True positives as a share of the class's images; 0 without any."""
        return _share(self.right, self.support)

    @property
    def f1(self) -> Array:
        """The harmonic mean of precision and recall; 0 without either."""
        return _share(2 * self.right, self.predicted + self.support)


def count(truth: Array, predictions: Array, classes: int, weights: Array) -> Counts:
    """Counts of classes given as numbers (N,), or as (N, K) bool."""
    several = truth.ndim == 2
    # -1 marks a wrong prediction, which `total` leaves out.
    right = truth & predictions if several else np.where(truth == predictions, truth, -1)

    def total(marked: Array) -> Array:
        if several:
            return weights @ marked.astype(np.float64)
        some = marked >= 0
        return np.stack([np.bincount(marked[some], row[some], classes) for row in weights])

    return Counts(total(right), total(predictions), total(truth))


def f1(truth: Array, predictions: Array, classes: int, weights: Array) -> dict[str, Array]:
    """Macro and weighted means of precision, recall and F1; of one class each, balanced accuracy.

    A macro mean is over the classes that occur or are predicted, as scikit-learn's; of images with
    several classes, over all.
    """
    counts = count(truth, predictions, classes, weights)
    some = counts.predicted + counts.support > 0 if truth.ndim == 1 else counts.support >= 0
    found: dict[str, Array] = {}
    for suffix, share in (("", some), ("_weighted", counts.support)):
        for name in ("precision", "recall", "f1"):
            found[name + suffix] = _mean(getattr(counts, name), share)
    if truth.ndim == 1:
        found["balanced_accuracy"] = _mean(counts.recall, counts.support > 0)
    return found


def ranking(values: Array, truth: Array, weights: Array) -> dict[str, Array]:
    """Macro and weighted means of `auroc`, of a class against the others, and `average_precision`.

    A class without an image, or for `auroc` one that every image has, is left out; NaN for a class
    with a score that is NaN.
    """
    positive = [truth[:, k] if truth.ndim == 2 else truth == k for k in range(values.shape[1])]
    pairs = zip(values.T, positive, strict=True)
    areas = np.stack([curve_areas(*pair, weights) for pair in pairs], axis=-1)  # (2, R, K)
    support = np.stack([weights @ one for one in positive], axis=-1)
    # By the images, not by the areas: those of a class with a NaN among its scores are NaN too.
    known = np.stack([(support > 0) & (support < weights.sum(axis=1)[:, None]), support > 0])
    # A NaN times a share of 0 would still be NaN.
    areas[~known] = 0
    found: dict[str, Array] = {}
    for suffix, share in (("", known), ("_weighted", known * support)):
        auroc, precision = _mean(areas, share)
        found |= {f"auroc{suffix}": auroc, f"average_precision{suffix}": precision}
    return found


def ordinal(truth: Array, predictions: Array, ranks: Array, weights: Array) -> dict[str, Array]:
    """Mean absolute error in ranks, and Cohen's kappa with quadratic weights, (R,) each.

    NaN for an output with a NaN; kappa also where truth and predictions are all of one class. Truth
    and predictions are classes (N,), -1 for a NaN; `ranks` (K,) those of the classes; weights (R,
    N).
    """
    true, total = ranks[truth].astype(np.float64), weights.sum(axis=1)
    best = np.where(predictions < 0, np.nan, ranks[predictions])
    # What independent ratings with these frequencies would differ by.
    chance = weights @ (true**2 + best**2) - 2 * (weights @ true) * (weights @ best) / total
    ratio = np.full(len(total), np.nan)
    np.divide(weights @ (true - best) ** 2, chance, out=ratio, where=chance > 0)
    return {"mae": weights @ np.abs(true - best) / total, "kappa": 1 - ratio}


def curve_areas(values: Array, positive: Array, weights: Array) -> tuple[Array, Array]:
    """Areas under the ROC curve and under the steps of precision over recall, (R,) each.

    Equal scores have one threshold. NaN where a class lacks images, or a score is NaN. Scores are
    (N,), `positive` (N,) bool, weights (R, N).
    """
    if np.isnan(values).any():
        return np.full(len(weights), np.nan), np.full(len(weights), np.nan)
    order = np.argsort(-values, kind="stable")
    ranked, hits = values[order], positive[order]
    # A threshold is the last of the images with one score; sums are read off there alone.
    last = np.append(np.flatnonzero(ranked[1:] != ranked[:-1]), len(ranked) - 1)
    found: list[Array] = []
    for first in range(0, len(weights), ROWS):
        rows = weights[first : first + ROWS, order]
        total = np.cumsum(rows, axis=1)[:, last]
        right = np.cumsum(rows * hits, axis=1)[:, last]
        wrong = total - right
        gained = np.diff(right, prepend=0)
        # Trapezoids: a tie of an image of the class and another counts half.
        area = np.sum(np.diff(wrong, prepend=0) * (right - gained / 2), axis=1)
        # Not interpolated, as scikit-learn's average_precision_score.
        steps = np.sum(_share(right, total) * gained, axis=1)
        pairs = right[:, -1] * wrong[:, -1]
        with np.errstate(invalid="ignore"):
            found.append(np.stack([area / pairs, steps / right[:, -1]]))
    auroc, precision = np.concatenate(found, axis=1)
    return auroc, precision


def calibration_error(logits: Array, truth: Array, weights: Array) -> Array:
    """Expected calibration error of the top probability, (R,); NaN propagates."""
    probabilities = scores(logits, several=False)
    confidence = probabilities.max(axis=1)
    if np.isnan(confidence).any():
        return np.full(len(weights), np.nan)
    gap = (np.argmax(logits, axis=1) == truth) - confidence
    # Bins are open below, ((m - 1) / M, m / M], as in the paper.
    bins = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
    # The sum of the gaps in a bin is its size times (accuracy - mean confidence).
    gaps = np.where(bins[:, None] == np.arange(BINS), gap[:, None], 0)
    return np.abs(weights @ gaps).sum(axis=1) / weights.sum(axis=1)


def fit_temperature(logits: Array, truth: Array) -> float | None:
    """The temperature that minimizes the cross-entropy of softmax(logits / temperature), or None.

    The derivative by the inverse is monotonic, so its zero is unique. There is none within the
    bounds if all predictions are right, where the loss falls towards 0, or nearly all are wrong.
    """
    values = logits.astype(np.float64)
    if not np.isfinite(values).all():
        return None
    own = values[np.arange(len(values)), truth].mean()

    def slope(inverse_log: float) -> float:
        expected = scores(values * np.exp(inverse_log), several=False) * values
        return expected.sum(axis=1).mean() - own

    from scipy import optimize  # slow to import

    # In logarithms of 1 / T, where `xtol` bounds the relative error of T.
    low, high = -np.log(HOTTEST), -np.log(COLDEST)
    # The bracket of a root needs opposite signs at its ends.
    if slope(low) >= 0 or slope(high) <= 0:
        return None
    found = optimize.root_scalar(slope, bracket=(low, high), xtol=1e-12)
    return float(np.exp(-found.root))


def confusion(truth: Array, predictions: Array, classes: int) -> Array:
    """Images of each class (rows) taken for each class (columns), (K, K) int64."""
    some = predictions >= 0
    # A pair of classes as one number, so that a single count does all.
    pairs = truth[some] * classes + predictions[some]
    return np.bincount(pairs, minlength=classes**2).reshape(classes, classes)


def _share(part: Array, whole: Array) -> Array:
    return np.divide(part, whole, out=np.zeros(np.shape(whole)), where=whole > 0)


def _mean(values: Array, share: Array) -> Array:
    """The mean over the last axis, weighted by `share`; NaN where that is 0."""
    total = share.sum(axis=-1)
    with np.errstate(invalid="ignore"):
        # Shares are counts: a total above 0 is at least 1, so that `maximum` replaces only zeros.
        return np.where(total > 0, (values * share).sum(axis=-1) / np.maximum(total, 1), np.nan)
