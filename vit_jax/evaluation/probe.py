"""Linear probe: a softmax head on frozen features, trained on a whole training split.

The paper gives no recipe; this one is ours. Features are standardized by the training images. The
mean cross-entropy plus l2 / 2 times the squared weights, not the biases, is minimized by L-BFGS on
all images at once; for each l2 of STRENGTHS in turn, from the solution of the one before, on four
fifths of the images of every class. The l2 that is best on the other fifth is that of the final
head, trained on all of them and measured on test images once. Of a class with two to four images,
one is held out. Only the choice of the fifth is random, by a fixed seed.

Features are sharded over the devices, N x D x 4 bytes; scores exist for BLOCK images at a time.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax.evaluation import features, fewshot
from vit_jax.evaluation.features import PADDING, Features, Pair
from vit_jax.evaluation.fewshot import Linear
from vit_jax.runtime import logs
from vit_jax.training import sharding

STRENGTHS = (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
STEPS, TOLERANCE = 100, 1e-5  # L-BFGS steps for one l2, at most; the gradient norm to stop at
BLOCK = 1024  # images at a time: scores of all would take N x K x 4 bytes
PARTS = 5  # one of which is held out

Head = dict[str, jax.Array]  # `weights` (D, K) and `bias` (K,), float32


def measure(
    train: Features, test: Features, pair: Pair, *, stop: Callable[[], bool]
) -> dict[str, float] | None:
    """`top1` and the selected `log10_l2`; None if `stop()` turned true."""
    features.count_training_images("probe", train, test, pair)
    found = learn(*train.gathered(), pair.classes, train.mesh, stop=stop)
    if found is None:
        return None
    linear, l2 = found
    return {"top1": fewshot.accuracy(linear, test), "log10_l2": math.log10(l2)}


def learn(
    x: np.ndarray, y: np.ndarray, classes: int, mesh: Mesh, *, stop: Callable[[], bool]
) -> tuple[Linear, float] | None:
    """The head for features (N, D) and labels (N,), and its l2; None if `stop()` turned true."""
    mean, scale = fewshot.moments(x)
    values = _blocks(((x - mean) / scale).astype(np.float32), mesh, fill=0)
    held_out, strengths = held_out_images(y), STRENGTHS
    judged = held_out
    if not held_out.any():
        # A single l2 needs no choice. Judged by all images, as the accuracy of none is 0 / 0.
        judged, strengths = ~held_out, STRENGTHS[:1]
        logs.log.warning(
            "probe: no class has two training images, so none is held out; l2=%g", strengths[0]
        )
    fitted, held, whole = (
        _blocks(labels.astype(np.int32), mesh, fill=PADDING)
        for labels in (np.where(held_out, PADDING, y), np.where(judged, y, PADDING), y)
    )
    head = _zeros(x.shape[1], classes, mesh)
    tried: list[tuple[float, float, Head]] = []
    with jax.set_mesh(mesh):
        for l2 in strengths:
            head = minimize(head, values, fitted, l2)
            tried.append((fewshot.accuracy(_linear(head), Features(mesh, values, held)), l2, head))
            if stop():
                return None
        _, l2, head = max(tried, key=lambda one: one[0])  # the first, so the largest, of equals
        head = minimize(head, values, whole, l2)
    return _linear(head)._replace(mean=mean, scale=scale), l2


def cross_validate(
    x: np.ndarray, y: np.ndarray, classes: int, mesh: Mesh, *, say: Callable[[int], None]
) -> np.ndarray:
    """Out-of-fold probabilities (N, K) of features (N, D).

    Five heads are trained, each on four fifths of every class, with the l2 that is best for the
    first one. Every class has at least PARTS images. `say` is called with the number of heads that
    are done.
    """
    import scipy.special  # half a second that no other command need wait for

    mean, scale = fewshot.moments(x)
    standard = ((x - mean) / scale).astype(np.float32)
    values, part_of = _blocks(standard, mesh, fill=0), fifths(y)
    none = _zeros(x.shape[1], classes, mesh)
    found = np.zeros((len(x), classes), np.float32)
    with jax.set_mesh(mesh):

        def labels(kept: np.ndarray) -> list[jax.Array]:
            return _blocks(np.where(kept, y, PADDING).astype(np.int32), mesh, fill=PADDING)

        def fit(part: int, l2: float, head: Head) -> Head:
            return minimize(head, values, labels(part_of != part), l2)

        held = Features(mesh, values, labels(part_of == 0))
        tried, head = [], none
        for strength in STRENGTHS:
            head = fit(0, strength, head)
            tried.append((fewshot.accuracy(_linear(head), held), strength))
        _, l2 = max(tried, key=lambda one: one[0])
        for part in range(PARTS):
            # From zero: the head of the search has seen the images that the other parts hold out.
            linear = _linear(fit(part, l2, none))
            rows = part_of == part
            found[rows] = scipy.special.softmax(
                standard[rows] @ linear.weights + linear.bias, axis=1
            )
            say(part + 1)
    return found


def held_out_images(labels: np.ndarray) -> np.ndarray:
    """Whether each image is in the last fold of its class, (N,) bool; none of a single image is."""
    _, classes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    folds = np.minimum(counts, PARTS)[classes]
    return (fifths(labels) == folds - 1) & (folds > 1)


def fifths(labels: np.ndarray) -> np.ndarray:
    """The fold of each image, 0 to 4, stratified by class."""
    return fewshot.places_in_class(labels, seed=0) % PARTS


def _zeros(width: int, classes: int, mesh: Mesh) -> Head:
    """The head to begin with, on all devices."""
    head = {
        "weights": jnp.zeros((width, classes), jnp.float32),
        "bias": jnp.zeros(classes, jnp.float32),
    }
    return jax.device_put(head, NamedSharding(mesh, P()))


def _blocks(array: np.ndarray, mesh: Mesh, fill: int) -> list[jax.Array]:
    """An array in row blocks sharded over all devices, with the last one padded."""
    # Every device has the same number of rows of a block.
    rows = -(-BLOCK // mesh.size) * mesh.size
    array = np.pad(
        array, ((0, -len(array) % rows), *((0, 0),) * (array.ndim - 1)), constant_values=fill
    )
    local = sharding.host_rows(mesh, rows)
    parts = (array[start : start + rows][local] for start in range(0, len(array), rows))
    return [sharding.put_batch({"": part}, mesh, rows, local)[""] for part in parts]


def _linear(head: Head) -> Linear:
    weights, bias = (np.asarray(head[key].addressable_data(0)) for key in ("weights", "bias"))
    width = len(weights)
    # The features are standardized already.
    return Linear(np.zeros(width), np.ones(width), weights, bias)


@jax.jit
def minimize(
    head: Head, values: list[jax.Array], labels: list[jax.Array], l2: jax.typing.ArrayLike
) -> Head:
    """Runs L-BFGS from `head` and returns the result.

    Features are blocks (B, D) float32, labels blocks (B,) int32, PADDING where a row does not
    count.
    """
    x, y = jnp.stack(values), jnp.stack(labels)
    count = jnp.sum(y != PADDING).astype(jnp.float32)

    def objective(head: Head) -> jax.Array:
        def add(total: jax.Array, block: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
            # By default, TPUs multiply float32 matrices in bfloat16.
            scores = jnp.dot(block[0], head["weights"], precision=jax.lax.Precision.HIGHEST)
            each = optax.softmax_cross_entropy_with_integer_labels(
                scores + head["bias"][None], jnp.maximum(block[1], 0)
            )
            return total + jnp.sum(jnp.where(block[1] != PADDING, each, 0.0)), None

        # Recompute scores for the gradient, so that only one block's scores exist at a time.
        total, _ = jax.lax.scan(jax.checkpoint(add), jnp.zeros((), jnp.float32), (x, y))
        return total / count + l2 / 2 * jnp.sum(jnp.square(head["weights"]))

    solver = optax.lbfgs()
    # The line search has evaluated the point that it ends at; this takes both from there.
    value_and_grad = optax.value_and_grad_from_state(objective)

    def going(carry: tuple[Head, optax.OptState]) -> jax.Array:
        step, norm = (optax.tree.get(carry[1], name) for name in ("count", "grad"))
        # Before the first step the state holds a gradient of zeros.
        return (step == 0) | ((step < STEPS) & (optax.tree.norm(norm) > TOLERANCE))

    def move(carry: tuple[Head, optax.OptState]) -> tuple[Head, optax.OptState]:
        head, state = carry
        value, grad = value_and_grad(head, state=state)
        updates, state = solver.update(
            grad, state, head, value=value, grad=grad, value_fn=objective
        )
        return jax.tree.map(jnp.add, head, updates), state

    head, _ = jax.lax.while_loop(going, move, (head, solver.init(head)))
    return jax.lax.with_sharding_constraint(head, P())
