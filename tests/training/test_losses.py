import dataclasses
import types

import jax
import numpy as np
import pytest
from scipy import stats

import runs
from vit_jax import config
from vit_jax.data.source import DataError
from vit_jax.training import losses

LOGITS = np.random.default_rng(0).normal(size=(5, 7)).astype(np.float32) * 3
LABELS = np.array([0, 6, 3, 3, 1], np.int32)
MINE = types.SimpleNamespace(name="mine")  # the section of a plug-in's loss


def targets(smoothing):
    return np.eye(7)[LABELS] * (1 - smoothing) + smoothing / 7


def test_a_loss_of_ones_own_gets_targets(monkeypatch):
    def mine(logits, targets):
        return (logits * targets).sum(-1)

    monkeypatch.setattr(losses.components, "make", lambda *names: mine)
    found = losses.cross_entropy(LOGITS, LABELS, loss=MINE)
    np.testing.assert_allclose(found, LOGITS[np.arange(5), LABELS], rtol=1e-6)


@pytest.mark.parametrize(
    "returned", [np.zeros(5, np.int32), np.zeros((5, 7), np.float32), np.float32(1)]
)
def test_a_loss_that_is_none_of_each_example(returned, monkeypatch):
    monkeypatch.setattr(losses.components, "make", lambda *names: lambda *given: returned)
    with pytest.raises(config.ConfigError, match=r"must return the loss of each example, floats"):
        losses.cross_entropy(LOGITS, LABELS, loss=MINE)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_shares_of_classes_against_float64(kind, smoothing):
    loss = config.Loss(name=kind)
    labels = np.random.default_rng(1).dirichlet(np.full(7, 0.3), size=5).astype(np.float32)
    t = labels * (1 - smoothing) + smoothing / 7
    x = LOGITS.astype(np.float64)
    if kind == "softmax":
        expected = -(t * (x - np.log(np.exp(x).sum(-1, keepdims=True)))).sum(-1)
    else:
        p = 1 / (1 + np.exp(-x))
        expected = -(t * np.log(p) + (1 - t) * np.log(1 - p)).sum(-1)
    ours = losses.cross_entropy(LOGITS, labels, loss=loss, smoothing=smoothing)
    np.testing.assert_allclose(ours, expected, rtol=2e-6)
    certain = np.eye(7, dtype=np.float32)[LABELS]
    np.testing.assert_array_equal(
        losses.cross_entropy(LOGITS, certain, loss=loss, smoothing=smoothing),
        losses.cross_entropy(LOGITS, LABELS, loss=loss, smoothing=smoothing),
    )


def test_the_most_probable_class_is_that_of_the_largest_logit(monkeypatch):
    """Of logits from 17 on, all sigmoids are 1 in float32."""
    logits = jax.numpy.float32([[20, 30, 0, 25]])
    for name, second in (("sigmoid", 1.0), ("softmax", np.exp(-5))):
        best, classes = losses.most_probable(logits, config.Loss(name=name), 2)
        assert classes.tolist() == [[1, 3]]
        np.testing.assert_allclose(best, [[1, second]], rtol=1e-2)
    # A plug-in's probabilities may have another order.
    monkeypatch.setattr(losses, "own_probabilities", lambda loss: lambda logits: 1 / (1 + logits))
    assert losses.most_probable(logits, MINE, 2)[1].tolist() == [[2, 0]]


def test_rank_of_label():
    logits = np.array(
        [
            [3, 2, 1, 0],
            [0, 0, 0, 0],
            [0, 0, 0, 0],
            [1, 5, 5, 2],
            [np.nan, 1, 2, 3],
            [0, np.inf, 1, 2],
        ],
        np.float32,
    )
    labels = np.array([0, 0, 3, 2, 3, 1], np.int32)
    # Of equal logits the lower index wins, as in argmax. NaN is never right, not even in the top 5.
    expected = [0, 0, 3, 1, 2**31 - 1, 0]
    np.testing.assert_array_equal(jax.jit(losses.rank_of_label)(logits, labels), expected)
    clean = logits[[0, 1, 2, 3, 5]]
    np.testing.assert_array_equal(
        np.asarray(losses.rank_of_label(clean, labels[[0, 1, 2, 3, 5]])) == 0,
        clean.argmax(-1) == labels[[0, 1, 2, 3, 5]],
    )
    right = losses.best_is_right(logits, np.ones_like(logits), several=True)
    np.testing.assert_array_equal(right, ~np.isnan(logits).any(-1))


def log_p():
    x = LOGITS.astype(np.float64)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_focal_against_float64(gamma):
    loss = config.Loss(name="focal", gamma=gamma)
    shares = np.random.default_rng(1).dirichlet(np.full(7, 0.3), size=5).astype(np.float32)
    each = -((1 - np.exp(log_p())) ** gamma) * log_p()
    for labels, weights in ((LABELS, targets(0)), (shares, shares)):
        found = losses.cross_entropy(LOGITS, labels, loss=loss)
        np.testing.assert_allclose(found, (weights * each).sum(-1), rtol=5e-6)
    sure = np.float32([[200, 0, 0]])
    slope = jax.grad(lambda x: losses.cross_entropy(x, np.array([0]), loss=loss)[0])(sure)
    assert np.isfinite(slope).all()


def test_logit_adjustment_against_float64():
    """It trains on logits with the log shares of classes added, and is softmax without them."""
    loss, shares = config.Loss(name="logit_adjusted", tau=0.7), np.log(np.arange(1, 8) / 28)
    x = LOGITS.astype(np.float64) + 0.7 * shares
    expected = -(x - np.log(np.exp(x).sum(-1, keepdims=True)))[np.arange(5), LABELS]
    found = losses.cross_entropy(LOGITS, LABELS, loss=loss, log_shares=shares)
    np.testing.assert_allclose(found, expected, rtol=2e-6)
    plain = losses.cross_entropy(LOGITS, LABELS, loss=loss)
    np.testing.assert_array_equal(plain, losses.cross_entropy(LOGITS, LABELS))
    np.testing.assert_array_equal(losses.probabilities(LOGITS, loss), jax.nn.softmax(LOGITS))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_emd_is_half_of_scipys_squared_energy_distance(smoothing):
    """Between the probabilities and the targets, as distributions over 0, 1, ..., in float64."""
    loss, order = config.Loss(name="emd"), np.arange(7)
    expected = [
        stats.energy_distance(order, order, np.exp(p), t) ** 2 / 2
        for p, t in zip(log_p(), targets(smoothing), strict=True)
    ]
    found = losses.cross_entropy(LOGITS, LABELS, loss=loss, smoothing=smoothing)
    np.testing.assert_allclose(found, expected, rtol=5e-6)
    np.testing.assert_array_equal(losses.probabilities(LOGITS, loss), jax.nn.softmax(LOGITS))
    sure = 50 * np.eye(7, dtype=np.float32)[[0, 2, 6]]  # mistakes by 1, 3 and 5 classes
    np.testing.assert_allclose(
        losses.cross_entropy(sure, np.array([1, 5, 1]), loss=loss), [1, 3, 5], rtol=1e-6
    )


COUNTS = losses.ClassCounts(("cat", "dog", "a:b", "none"), np.array([90, 9, 1, 0]))


def test_weights_of_classes():
    found = COUNTS.weights(("balanced",))
    # As in scikit-learn: a class without an image weighs on no other.
    np.testing.assert_allclose(found, [*100 / (3 * np.array([90, 9, 1])), 0])
    assert (found * COUNTS.images).sum() == pytest.approx(100)
    effective = (1 - 0.9999 ** np.array([90, 9, 1])) / (1 - 0.9999)
    expected = 3 / effective / (1 / effective).sum()
    np.testing.assert_allclose(COUNTS.weights(("effective",)), [*expected, 0], rtol=1e-9)
    some = ("dog:2.5", "a:b:0")
    assert config.build({"train": {"class_weights": some}}).train.class_weights == some
    from_python = {"dog": 2.5, "a:b": 0}
    assert config.build({"train": {"class_weights": from_python}}).train.class_weights == some
    assert COUNTS.weights(some).tolist() == [1, 2.5, 0, 1]
    np.testing.assert_allclose(np.exp(COUNTS.log_shares), [0.9, 0.09, 0.01, 0.01])
    with pytest.raises(config.ConfigError, match="dogs:2: the data has no class dogs; did you .*g"):
        COUNTS.weights(("dogs:2",))
    with pytest.raises(config.ConfigError, match="cat:0,dog:0,a:b:0: leaves no class to learn"):
        COUNTS.weights(("cat:0", "dog:0", "a:b:0"))


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"train": {"class_weights": ("even",)}}, "class_weights=even: must be balanced, effect"),
        ({"train": {"class_weights": ("cat:-1",)}}, "class_weights=cat:-1: must be"),
        ({"train": {"class_weights": (":1",)}}, "class_weights=:1: must be"),
        ({"train": {"class_weights": {"cat": "two"}}}, "class_weights=cat:two: must be"),
        ({"train": {"class_weights": ("balanced", "cat:1")}}, "cannot combine balanced"),
        ({"train": {"class_weights": ("a:1", "b:2", "a:1")}}, "a:1,b:2,a:1: names a twice"),
        ({"data": {"sampling": "even"}}, "data.sampling=even: .*balanced"),
        ({"loss": {"name": "focal", "tau": 1.0}}, "loss.tau"),
        ({"loss": {"name": "focal", "gamma": -1.0}}, "loss.gamma=-1"),
        (
            {"data": {"sampling": "sqrt"}, "objective": {"name": "masked_patches"},
             "checkpoint": {"best": "loss"}},
            "data.sampling=sqrt: objective.name=masked_patches has no classes to sample by",
        ),
        (
            {"data": {"source": "synthetic", "multilabel": True, "sampling": "sqrt"},
             "loss": {"name": "sigmoid"}, "checkpoint": {"best": "auto"}},
            "data.sampling=sqrt: needs one class per image",
        ),
        (
            {"data": {"source": "synthetic", "multilabel": True}, "loss": {"name": "focal"},
             "checkpoint": {"best": "auto"}},
            "loss.name=focal: is for one class per image; set sigmoid",
        ),
        ({"loss": {"name": "emd"}}, "emd: needs the order of the classes, from lowest to highest"),
    ],
)  # fmt: skip
def test_mistakes(sections, message):
    with pytest.raises(config.ConfigError, match=message):
        runs.configure(**sections)


@pytest.mark.slow
def test_the_supervised_loss_is_weighted_and_adjusted():
    """By the class of an image, and of a blend in proportion; the counts come from the data."""
    from vit_jax.data.sources import open_source
    from vit_jax.training import build
    from vit_jax.training.objectives import Inputs

    shares = np.random.default_rng(0).dirichlet(np.full(10, 0.3), size=8).astype(np.float32)
    images = np.random.default_rng(1).integers(0, 255, (8, 8, 8, 1), np.uint8)
    found = {}
    for name, options in {
        "plain": {},
        "weighted": {"train": {"class_weights": ("balanced",)}},
        "adjusted": {"loss": {"name": "logit_adjusted"}},
    }.items():
        cfg = runs.configure(model={"num_classes": 10, "dropout": 0.0}, **options)
        source = open_source(cfg.data, cfg.data.train_split, train=True)
        counts = losses.count_classes(cfg, source)
        objective = build.build(cfg, 200, counts=counts).objective
        params = objective.model.init(jax.random.key(0))
        params["head"]["kernel"] = jax.random.normal(jax.random.key(1), (16, 10))
        each, out = jax.jit(objective.classify)(
            params, {"image": images, "label": shares}, Inputs(step=np.int32(0))
        )
        found[name] = np.asarray(each["loss"])
    assert counts.images.tolist() == np.bincount([source[i].label for i in range(200)]).tolist()
    # A head may have outputs without a class.
    wider = dataclasses.replace(cfg, model=dataclasses.replace(cfg.model, num_classes=12))
    assert losses.count_classes(wider, source).images.tolist() == [*counts.images, 0, 0]
    weights = 200 / (10 * counts.images)
    np.testing.assert_allclose(found["weighted"], found["plain"] * (shares @ weights), rtol=1e-5)
    logits = np.asarray(out["logits"], np.float64) + np.log(counts.images / 200)
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    np.testing.assert_allclose(found["adjusted"], -(shares * log_p).sum(-1), rtol=1e-4)


def test_an_image_without_a_class_counts_in_no_top1():
    """As in evaluation: a head without preference is right on one of two images."""
    from vit_jax.training import build
    from vit_jax.training.objectives import Inputs

    data = {"source": "synthetic", "multilabel": True}
    cfg = runs.configure(data=data, loss={"name": "sigmoid"}, model={"num_classes": 3})
    objective = build.build(cfg, 200).objective
    labels = np.array([[1, 0, 0], [0, 0, 0], [0, 1, 1]], np.float32)
    batch = {"image": np.zeros((3, 8, 8, 1), np.uint8), "label": labels}
    inputs = Inputs(step=np.int32(0))
    outputs = objective.forward(objective.model.init(jax.random.key(0)), batch, inputs)
    measures = objective.summarize(objective.loss(outputs, inputs)[1], inputs)
    assert {name: float(value) for name, value in measures.items()} == {"top1": 0.5}


NUMBERS = np.random.default_rng(2).normal(40, 9, (5, 2)).astype(np.float32)
OUTPUTS = np.random.default_rng(3).normal(size=(5, 2)).astype(np.float32) * 2
SCALE = {"mean": (38.0, 41.5), "std": (9.5, 3.0)}


@pytest.mark.parametrize("name", ["mse", "l1", "huber"])
def test_losses_of_numbers_against_float64(name):
    loss = config.Loss(name=name, **SCALE)
    error = OUTPUTS.astype(np.float64) - (NUMBERS.astype(np.float64) - [38, 41.5]) / [9.5, 3]
    expected = {
        "mse": error**2,
        "l1": abs(error),
        "huber": np.where(abs(error) < 1, error**2 / 2, abs(error) - 0.5),
    }[name].mean(axis=1)
    np.testing.assert_allclose(losses.regression(OUTPUTS, NUMBERS, loss), expected, rtol=2e-6)
    if name == "huber":
        wide = dataclasses.replace(loss, delta=100.0)
        halved = (error**2 / 2).mean(axis=1)
        np.testing.assert_allclose(losses.regression(OUTPUTS, NUMBERS, wide), halved, rtol=2e-6)


def test_outputs_in_the_units_of_the_data():
    loss = config.Loss(name="l1", **SCALE)
    found = losses.scaled(OUTPUTS.astype(np.float64), loss)
    np.testing.assert_allclose(
        found, OUTPUTS.astype(np.float64) * [9.5, 3] + [38, 41.5], rtol=1e-15
    )
    assert losses.scaled(OUTPUTS, loss).dtype == np.float32
    np.testing.assert_array_equal(losses.scaled(OUTPUTS, config.Loss(name="mse")), OUTPUTS)


class Ages:
    """A source that knows its numbers and has no images."""

    classes = ("age", "size")

    def __init__(self, *columns):
        self.targets = np.stack(columns, axis=-1)

    def __len__(self):
        return len(self.targets)


def test_the_scale_is_that_of_the_training_images():
    source = Ages(np.array([1.0, 2.0, 6.0]), np.array([0.0, -1e20, 1e20]))
    cfg = losses.with_scale(config.Config(loss=config.Loss(name="mse")), source)
    assert (cfg.loss.mean, cfg.loss.std) == (
        tuple(source.targets.mean(axis=0)), tuple(source.targets.std(axis=0))
    )  # fmt: skip
    own = config.Config(loss=config.Loss(name="mse", mean=(0.0, 0.0)))
    found = losses.with_scale(own, source).loss
    assert (found.mean, found.std) == ((0.0, 0.0), cfg.loss.std)
    assert losses.with_scale(config.Config(), source) == config.Config()
    assert config.with_scale(config.Config(), (1.0,), (2.0,)) == config.Config()


@pytest.mark.parametrize(
    ("column", "why"),
    [
        ([0.1, 0.1, 0.1], "is 0.1 in each of the 3 training images, so there is nothing to learn"),
        ([1e9, 1e9 + 1, 1e9 + 2], "spreads by 0.816 around 1e+09, which float32 cannot tell apart"),
    ],
)
def test_columns_that_cannot_be_learned(column, why):
    source = Ages(np.arange(3.0), np.array(column))
    with pytest.raises(DataError) as raised:
        losses.with_scale(config.Config(loss=config.Loss(name="mse")), source)
    assert str(raised.value).startswith(f"data.targets=size: {why}; ")
