"""Few-shot linear evaluation in closed form: least squares on frozen features.

ViT, section 4.1: regularized least squares from the features of some training images to targets
{-1, 1}^K. The paper gives neither the regularizer nor the seeds; as in big_vision's fewshot_lsr.py
the features are standardized by those images, a constant 100 is their bias (which is regularized
too), l2 is 2^10, and accuracy is the mean over 3 draws.

The squares are solved in this process in float64: at l2 = 2^-10 the matrix has a condition number
beyond float32's digits. Several l2 share the matrix of products of the features, and each is then
solved by itself: one eigendecomposition for all of them takes longer, even for five. No N x K array
exists where it would be larger than the features: the product of features and targets is one of
sums over each class, and test images are scored a batch at a time. On the host that takes
N x D x 4 bytes for the features and about 3 (D + K) x D x 8 for the solution, on the devices
D x K x 4 for each and B x K x 4 for all: 0.3, 0.7, 0.1 and 0.4 GB at N = 65,000, D = 1,280,
K = 21,843 and B = 4,096.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax import config
from vit_jax.evaluation import runner
from vit_jax.evaluation.features import PADDING, Features, Pair
from vit_jax.runtime import logs
from vit_jax.training import losses

BIAS = 100.0  # so large that its weight is hardly regularized
CHUNK = 4096  # examples converted to float64 at a time


class Linear(NamedTuple):
    """A linear classifier of features: argmax of ((x - mean) / scale) @ weights + bias.

    `mean` and `scale` are (D,), `weights` (D, K), `bias` (K,).
    """

    mean: np.ndarray
    scale: np.ndarray
    weights: np.ndarray
    bias: np.ndarray


def measure(
    train: Features,
    test: Features,
    pair: Pair,
    *,
    options: config.Evaluation,
    stop: Callable[[], bool],
) -> dict[str, float] | None:
    """Accuracies as `5shot`, or with several l2 as `5shot/l2=1024`: means over draws."""
    x, y = train.gathered()
    least, strengths = int(np.bincount(y, minlength=pair.classes).min()), options.fewshot_l2
    names = [f"/l2={l2:g}" for l2 in strengths] if len(strengths) > 1 else [""]
    results: dict[str, float] = {}
    for shots in options.shots:
        if least < shots:
            logs.log.warning(
                "evaluation.shots=%d: %s has a class with %d training images; all are used",
                shots,
                pair.name,
                least,
            )
        each = np.zeros((options.fewshot_seeds, len(strengths)))
        for seed, row in enumerate(each):
            drawn = choose_examples(y, shots, seed)
            for column, linear in enumerate(solutions(x[drawn], y[drawn], pair.classes, strengths)):
                if stop():
                    return None
                row[column] = accuracy(linear, test)
        results |= {
            f"{shots}shot{name}": value
            for name, value in zip(names, each.mean(axis=0).tolist(), strict=True)
        }
    return results


def choose_examples(labels: np.ndarray, shots: int, seed: int) -> np.ndarray:
    """The positions of `shots` examples per class, or of all if a class has fewer.

    They come first in a permutation by `seed`, so that larger draws contain smaller ones.
    """
    return np.flatnonzero(places_in_class(labels, seed) < shots)


def places_in_class(labels: np.ndarray, seed: int) -> np.ndarray:
    """The place of each example within its class, in a permutation by `seed`, (N,) int64."""
    order = np.random.default_rng(seed).permutation(len(labels))
    # Stable: within each class, the order of the permutation stays.
    order = order[np.argsort(labels[order], kind="stable")]
    _, first, counts = np.unique(labels[order], return_index=True, return_counts=True)
    places = np.empty(len(labels), np.int64)
    places[order] = np.arange(len(labels)) - np.repeat(first, counts)
    return places


def solutions(
    x: np.ndarray, y: np.ndarray, classes: int, strengths: Sequence[float]
) -> Iterator[Linear]:
    """Yields the solution for features (N, D) and labels (N,) for each l2 in `strengths`.

    It is W = (X'X + l2 I)^-1 X'Y; with fewer examples than columns of X, in the dual form,
    X'(XX' + l2 I)^-1 Y.
    """
    mean, scale = moments(x)

    def inputs(rows: slice) -> np.ndarray:
        part = (x[rows] - mean) / scale
        return np.concatenate([part, np.full((len(part), 1), BIAS)], axis=1)

    # One more for the constant, whose weight is the bias.
    columns = x.shape[1] + 1
    # The matrix to solve is N x N here, D x D otherwise: the smaller one.
    if len(x) < columns:
        found = _dual(inputs(slice(None)), y, classes, strengths)
    else:
        parts = ((inputs(rows), y[rows]) for rows in _chunks(len(x)))
        found = _solved(*_products(parts, columns, classes), strengths)
    # The last row of a solution (D + 1, K) belongs to the column of constants.
    for solution in found:
        yield Linear(mean, scale, solution[:-1], BIAS * solution[-1])


def _products(
    parts: Iterable[tuple[np.ndarray, np.ndarray]], columns: int, classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """X'X and X'Y of some rows of X, and their labels, at a time."""
    square, sums = np.zeros((columns, columns)), np.zeros((classes, columns))
    for part, labels in parts:
        square += part.T @ part
        sums += _class_sums(part, labels, classes)
    return square, _times_targets(sums)


def _dual(
    matrix: np.ndarray, y: np.ndarray, classes: int, strengths: Sequence[float]
) -> Iterator[np.ndarray]:
    """X'(XX' + l2 I)^-1 Y, solved for the narrower of X and Y."""
    square = matrix @ matrix.T
    if classes < matrix.shape[1]:
        targets = np.where(y[:, None] == np.arange(classes), 1.0, -1.0)
        for solved in _solved(square, targets, strengths):
            yield matrix.T @ solved
    else:
        # The inverse is symmetric: X'(XX' + l2 I)^-1 Y = ((XX' + l2 I)^-1 X)'Y, sums over classes.
        for solved in _solved(square, matrix, strengths):
            yield _times_targets(_class_sums(solved, y, classes))


def _solved(
    square: np.ndarray, right: np.ndarray, strengths: Sequence[float]
) -> Iterator[np.ndarray]:
    """Yields (square + l2 I)^-1 right for each l2; overwrites `square`."""
    # Each l2 is added to the saved diagonal: adding and subtracting them in turn would round.
    diagonal = square.diagonal().copy()
    for l2 in strengths:
        np.fill_diagonal(square, diagonal + l2)
        yield np.linalg.solve(square, right)


def moments(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation + 1e-5 of features (N, D), (D,) float64 each, for standardization."""
    mean = x.mean(axis=0, dtype=np.float64)
    # Around the mean, in a second pass: a mean of squares minus a squared mean cancels digits.
    squares = np.zeros_like(mean)
    for rows in _chunks(len(x)):
        squares += ((x[rows] - mean) ** 2).sum(axis=0)
    # 1e-5, as in big_vision, keeps a feature that never changes from dividing by 0.
    return mean, np.sqrt(squares / len(x)) + 1e-5


def accuracy(linear: Linear, test: Features) -> float:
    """The fraction of examples whose largest score belongs to their class."""
    place = NamedSharding(test.mesh, P())
    # In float32: TPUs have no float64, and scores need fewer digits than solving.
    replicated = [jax.device_put(part.astype(np.float32), place) for part in linear]
    with jax.set_mesh(test.mesh):
        sums: list[jax.Array] = []
        for values, labels in zip(test.values, test.labels, strict=True):
            sums.append(count_hits(*replicated, values, labels))
            runner.wait_for_last(sums)
    hits, count = np.array(jax.device_get(sums), np.int64).sum(axis=0)
    return float(hits / count)


@jax.jit
def count_hits(
    mean: jax.Array,
    scale: jax.Array,
    weights: jax.Array,
    bias: jax.Array,
    values: jax.Array,
    labels: jax.Array,
) -> jax.Array:
    """The correct predictions and the examples in a batch: (2,) int32.

    Features (B, D) are float32, labels (B,) int32; the others are those of a `Linear`, in float32.
    """
    chex.assert_shape(values, (labels.shape[0], weights.shape[0]))
    chex.assert_shape([mean, scale], (weights.shape[0],))
    chex.assert_type([values, labels], [jnp.float32, jnp.int32])
    inputs = (values - mean[None]) / scale[None]
    # By default TPUs multiply in bfloat16, and nearly equal scores would change places.
    scores = jnp.dot(inputs, weights, precision=jax.lax.Precision.HIGHEST) + bias[None]
    example = labels != PADDING
    # PADDING, -1, would be the last class: its rank is computed for class 0 and then left out.
    right = example & (losses.rank_of_label(scores, jnp.maximum(labels, 0)) == 0)
    sums = jnp.stack([jnp.sum(right), jnp.sum(example)])
    return jax.lax.with_sharding_constraint(sums, P())


def _chunks(length: int) -> Iterator[slice]:
    for start in range(0, length, CHUNK):
        yield slice(start, start + CHUNK)


def _class_sums(rows: np.ndarray, labels: np.ndarray, classes: int) -> np.ndarray:
    """The sum of the rows of every class, (K, columns)."""
    # Sorted by class, so that one call of reduceat sums them all.
    order = np.argsort(labels, kind="stable")
    present, first = np.unique(labels[order], return_index=True)
    sums = np.zeros((classes, rows.shape[1]))
    sums[present] = np.add.reduceat(rows[order], first)
    return sums


def _times_targets(sums: np.ndarray) -> np.ndarray:
    """X'Y (columns, K), Y being 1 for an example's class and -1 elsewhere."""
    # Y = 2 Z - 1 for Z of zeros and ones, and `sums` is Z'X.
    return (2 * sums - sums.sum(axis=0)).T
