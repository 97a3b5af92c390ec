"""Maps for a class: the published formulas in float64, with gradients by finite differences."""

import dataclasses
import itertools
import pathlib
import types

import cv2
import numpy as np
import pytest
from scipy import special

import vit_reference
from vit_jax import config
from vit_jax.inference import loaded_model, loading
from vit_jax.inference.inspect import outputs, saliency
from vit_jax.inference.inspect.measures import CannotAnswer
from vit_jax.training import build, run_config

pytestmark = pytest.mark.usefixtures("one_device")

FIXTURES = pathlib.Path(__file__).parents[2] / "fixtures"
H = 1e-5  # of a central difference: its error is of order H^2
LABEL = 1
MAP = {"pooling": "map", "pooling_prefix": True, "pooling_heads": 4, "pooling_mlp_dim": 6}


def create(image_size=(8, 12), loss="softmax", **options):
    """A tiny model with random parameters as if from a checkpoint."""
    tiny = {"patch_size": (4, 4), "width": 8, "depth": 2, "mlp_dim": 8, "heads": 2}
    if "resnet_units" in options:  # which is the network alone
        tiny = {"architecture": "resnet", "resnet_width": 0.5}
    values = {
        "model": {"num_classes": 3, **tiny, **options},
        "data": {"image_size": image_size},
        "loss": {"name": loss},
    }
    cfg = run_config.complete(config.build(values))
    params = vit_reference.random_parameters(build.create_model(cfg).shapes())
    return loaded_model.LoadedModel(config=cfg, params=params, classes=("a", "b", "c"), kind="run")


@pytest.fixture(scope="module")
def view():
    return np.random.default_rng(0).integers(0, 256, (8, 12, 3), np.uint8)


class Reference:
    """A model in float64 whose attention has factors, and whose last layer's input has a term."""

    def __init__(self, opened, view, monkeypatch):
        self.model, self.params = opened.config.model, opened.params
        self.image = view[None] / 127.5 - 1
        self.gates, self.term, self.seen = {}, None, []
        self.plain = vit_reference.attend
        monkeypatch.setattr(vit_reference, "attend", self.attend)

    def attend(self, p, x, to, *others):
        number = next(self.calls)
        if number == self.model.depth - 1:
            x = to = x if self.term is None else x + self.term
            self.last = x

        def gated(weights):
            self.seen.append(weights)
            return weights * self.gates.get(number, 1.0)

        return self.plain(p, x, to, *others, gated=gated)

    def logits(self, images):
        self.calls, self.seen = itertools.count(), []
        logits, *_ = vit_reference.forward(self.model, self.params, images, layer=self.layer)
        return logits[:, LABEL]

    def layer(self, *given):
        x, _ = vit_reference.layer(*given)
        return x, np.zeros(0)  # weights of several shapes do not stack

    def slopes(self, set_, shape):
        """The gradient of the logit with respect to an array that `set_` sets, by image."""
        steps = H * np.eye(int(np.prod(shape))).reshape(-1, *shape)
        set_(np.concatenate([steps, -steps]))
        up, down = np.split(self.logits(np.repeat(self.image, 2 * len(steps), axis=0)), 2)
        return ((up - down) / (2 * H)).reshape(shape)

    def gated(self):
        """Attention times gradient, of each attention in turn."""
        self.logits(self.image)
        found = []
        for number, weights in enumerate(list(self.seen)):

            def gate(steps, number=number):
                self.gates = {number: 1 + steps}

            found.append(self.slopes(gate, weights.shape[1:]))
        self.gates = {}
        return found

    def last_map(self):
        """The tokens that the last layer attends to, and their gradient, (N, D)."""
        self.logits(self.image)
        tokens = self.last[0]

        def shift(steps):
            self.term = steps

        gradients = self.slopes(shift, tokens.shape)
        self.term = None
        return tokens, gradients


def check_maps(opened, view, monkeypatch):
    """Compares the maps of a model with the published formulas."""
    model, reference = opened.config.model, Reference(opened, view, monkeypatch)
    found = saliency.class_maps(opened, view, [LABEL])[0]
    last, gradients = reference.last_map()
    prefix = len(last) - 6
    cam = last[prefix:] @ gradients[prefix:].mean(axis=0)
    atol = 1e-5 * np.abs(cam).max()
    assert np.count_nonzero(cam > 0) < 6
    given = found["Grad-CAM"].ravel()
    np.testing.assert_allclose(given, np.maximum(cam, 0), rtol=1e-4, atol=atol)

    gated, own = reference.gated(), np.eye(len(last))
    relevance = own
    for layer in gated[: model.depth]:
        relevance = relevance + np.maximum(layer, 0).mean(axis=0) @ relevance
    if model.pooling in ("token", "first", "token_gap", "distilled"):
        row = (relevance - own)[0]
    elif model.pooling != "map":
        row = (relevance - own)[prefix:].mean(axis=0)
    else:  # a probe, another sequence than the tokens
        rest = relevance - own
        mixed = rest / rest.sum(axis=1, keepdims=True) + own
        row = (np.maximum(gated[-1], 0).mean(axis=0) @ mixed[-gated[-1].shape[-1] :])[0]
    row = row[prefix:]
    assert np.ptp(row) > 0.2 * row.max()
    ours = found["gradient rollout"].ravel()
    np.testing.assert_allclose(ours, row, rtol=1e-4, atol=1e-5 * row.max())


def test_a_curve_deletes_and_inserts_the_most_salient_cells_first(monkeypatch):
    """From none to all of 2 x 3 cells of 4 x 4 pixels, one at a time."""
    seen = []

    def logits(opened, images):
        seen.append(images)
        return np.zeros((len(images), 3), np.float32)

    monkeypatch.setattr(saliency, "_scaled_logits", logits)
    pixels, blurred = np.full((8, 12, 3), 1, np.float32), np.full((8, 12, 3), 0, np.float32)
    saliency._curve(create(), pixels, blurred, LABEL, np.arange(6.0).reshape(2, 3))
    deleted, inserted = np.split(seen[0], 2)
    shares = np.linspace(0, 1, 7)
    np.testing.assert_allclose(1 - deleted.mean(axis=(1, 2, 3)), shares, atol=1e-6)
    np.testing.assert_allclose(inserted.mean(axis=(1, 2, 3)), shares, atol=1e-6)
    assert deleted[1, 4:, 8:].max() == 0  # the last cell is the most salient one
    assert inserted[1, 4:, 8:].min() == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"pooling": "gap", "attention": "xla", "remat": "full", "unroll": 2},
        {"pooling": "map"},
        MAP | {"class_token": True, "patch_norm": True, "norm": "rms"},
        MAP | {"registers": 2, "rotary": 10.0, "rotary_learned": True, "mlp": "swiglu"},
        {"pooling": "first", "rotary": 100.0, "rotary_span": "max", "position": "none"},
        {"registers": 2, "relative_bias": "shared", "qk_norm": True, "norm_place": "none"},
        {"distillation": True, "pooling": "distilled", "layer_scale": 0.5, "stem_norm": True},
        {"pooling": "token_gap", "relative_bias": "layers", "sub_norm": ("attention", "mlp")},
    ],
    ids=str,
)
def test_maps_are_those_of_the_published_formulas(options, view, monkeypatch):
    check_maps(create(**options), view, monkeypatch)


@pytest.mark.slow
def test_integrated_gradients_are_the_mean_slope_on_the_way_from_black(view, monkeypatch):
    opened, steps = create(), 3
    reference = Reference(opened, view, monkeypatch)
    found = saliency.explain(opened, view, LABEL, steps=steps)
    image, black, size = reference.image, np.full_like(reference.image, -1.0), view.size
    moves = H * np.eye(size).reshape(size, *view.shape)
    total = np.zeros(size)
    for share in (1 / 6, 3 / 6, 5 / 6):
        at = black + share * (image - black)
        total += (reference.logits(at + moves) - reference.logits(at - moves)) / (2 * H)
    each = ((image - black).ravel() * total / steps).reshape(view.shape).sum(axis=-1)
    np.testing.assert_allclose(found.pixels, each, rtol=1e-3, atol=1e-5 * np.abs(each).max())
    cells = each.reshape(2, 4, 3, 4).sum(axis=(1, 3))
    np.testing.assert_allclose(found.maps["integrated gradients"], cells, rtol=1e-3, atol=1e-5)
    rise = (reference.logits(image) - reference.logits(black))[0]
    assert found.rise == pytest.approx(rise, rel=1e-5)
    assert found.gap == pytest.approx(each.sum() - rise, rel=1e-3)
    assert abs(found.gap) < 0.05 * abs(rise)
    check_curves(reference, found, view)

    best = saliency.explain(opened, view, steps=steps)  # of its top prediction
    (first,) = opened.predict(view)[0].top[:1]
    assert opened.classes[best.label] == first[0]
    assert best.probability == pytest.approx(first[1], abs=1e-5)


def check_curves(reference, found, view):
    """Deletion and insertion once more, cell by cell."""

    def probabilities(images):
        logits, *_ = vit_reference.forward(
            reference.model, reference.params, images, layer=reference.layer
        )
        return special.softmax(logits, axis=1)[:, LABEL]

    blurred = cv2.GaussianBlur(view, (3, 3), 5 / 224 * 8) / 127.5 - 1
    for name, salient in found.maps.items():
        order = sorted(range(6), key=lambda cell: -salient.ravel()[cell])  # stable
        gone, there = [], []
        for count in range(7):
            mask = np.zeros((2, 3), bool)
            mask.ravel()[order[:count]] = True
            mask = mask.repeat(4, axis=0).repeat(4, axis=1)[..., None]
            gone.append(np.where(mask, 0, reference.image[0]))
            there.append(np.where(mask, reference.image[0], blurred))
        reference.calls = itertools.count(100)
        deletion, inserted = probabilities(np.stack(gone)), probabilities(np.stack(there))
        curve = found.curves[name]
        np.testing.assert_allclose(curve.shares, np.arange(7) / 6)
        np.testing.assert_allclose(curve.deletion, deletion, atol=2e-5)
        np.testing.assert_allclose(curve.insertion, inserted, atol=2e-5)
        steps = [(a + b) / 2 / 6 for a, b in itertools.pairwise(deletion)]
        assert curve.areas[0] == pytest.approx(sum(steps), abs=2e-5)
    assert found.probability == pytest.approx(deletion[0], abs=2e-5)
    assert found.curves["random order"].deletion[-1] == pytest.approx(deletion[-1], abs=2e-5)


def test_a_class_goes_by_name_then_by_index():
    classes = ("tench, Tinca tinca", "crane", "5", "Crane", "bat, club", "bat, animal")
    known = {"Tench": 0, "tinca tinca": 0, "Crane": 3, "5": 2, "4": 4, 5: 5, 0: 0}
    for name, index in known.items():
        assert saliency.find_class(classes, name) == index
    for name, words in (
        ("CRANE", "is the name of outputs 1, 3; name one"),
        ("bat", "is the name of outputs 4, 5; name one"),
        ("6", "no such class, of 0 to 5"),
        ("-1", "no such class"),
        ("9" * 5000, "no such class"),
        ("\u0661", "no such class"),
        ("crana", "did you mean crane?"),
        ("", "no such class"),
        (6, "no such class, of 0 to 5"),
        (-1, "no such class"),
        (True, "--class=True: must be the name or the index of a class"),
        (0.5, "--class=0.5: must be the name or the index of a class"),
    ):
        with pytest.raises(config.ConfigError, match=words):
            saliency.find_class(classes, name)


def test_relevance_is_multiplied_through_the_layers():
    rng = np.random.default_rng(0)
    gated = rng.normal(size=(3, 2, 4, 5, 5))
    first, second, third = np.maximum(gated, 0).mean(axis=2)
    own = np.eye(5)
    expected = (own + third) @ (own + second) @ (own + first) - own
    np.testing.assert_allclose(saliency.gradient_rollout(gated), expected, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet", "hybrid_tiny.npz", "axial", "sigmoid"])
def test_models_of_every_kind_have_the_maps_that_they_can(name):
    if name.endswith("npz"):
        opened = loading.load(str(FIXTURES / name))
    elif name == "resnet":
        opened = create((16, 24), resnet_units=(1,))
    elif name == "sigmoid":
        opened = create(loss="sigmoid", registers=2, pooling="gap")
    else:
        opened = create(architecture="axial_vit", pooling="gap")
    size = opened.config.data.image_size
    view = np.random.default_rng(1).integers(0, 256, (*size, 3), np.uint8)
    # Kinks of ReLU: the sum of a hybrid comes near its rise slowly.
    found = saliency.explain(opened, view, steps=512 if name == "hybrid_tiny.npz" else 32)
    attends = name in ("hybrid_tiny.npz", "sigmoid")
    rolled = {"gradient rollout", "rollout"} if attends else set()
    assert set(found.maps) == {"Grad-CAM", "integrated gradients"} | rolled
    assert abs(found.gap) < 0.05 * abs(found.rise)
    for curve in found.curves.values():
        assert curve.deletion[0] == pytest.approx(found.probability, abs=1e-5)
        assert curve.insertion[-1] == pytest.approx(found.probability, abs=1e-5)
    if name == "sigmoid":
        logits, _ = opened.apply(opened.params, opened.preprocess(view))
        expected = special.expit(np.asarray(logits)[0, found.label])
        assert found.probability == pytest.approx(expected, abs=1e-5)


@pytest.mark.slow
def test_grad_cam_of_a_resnet_weighs_its_last_map_by_the_head():
    """The gradient of a mean of the map is that of the head over the number of positions."""
    opened = create((16, 24), resnet_units=(1,))
    view = np.random.default_rng(1).integers(0, 256, (16, 24, 3), np.uint8)
    _, out = opened.apply(opened.params, opened.preprocess(view))
    features = np.asarray(out["features"][0], np.float64)
    kernel = np.asarray(opened.params["head"]["kernel"], np.float64)[:, LABEL]
    expected = np.maximum(features @ kernel / np.prod(features.shape[:2]), 0)
    found = saliency.class_maps(opened, view, [LABEL])[0]["Grad-CAM"]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6 * expected.max())


def test_an_integral_has_at_least_one_step():
    with pytest.raises(config.ConfigError, match="--steps=0: must be at least 1"):
        next(outputs.inspect("saliency", "x", {}, steps=0))


def test_a_model_without_a_head_says_so():
    opened = dataclasses.replace(create(), fresh={"head/kernel": "none"})
    with pytest.raises(CannotAnswer, match="holds no head, so it knows no classes"):
        outputs._saliency(types.SimpleNamespace(opened=opened, label=None))
    numbers = dataclasses.replace(
        create(), config=dataclasses.replace(create().config, loss=config.Regression(name="l1"))
    )
    with pytest.raises(CannotAnswer, match="predicts numbers, and has no classes"):
        saliency.require(numbers)


def test_grad_cam_and_relevance_of_nothing_are_nothing():
    assert not saliency.grad_cam(np.ones((1, 4, 2)), -np.ones((1, 4, 2))).any()
    relevance = saliency.gradient_rollout(-np.ones((2, 1, 1, 3, 3)))
    assert not relevance.any()
    alone = saliency.pooled_relevance(relevance, np.ones((1, 2, 1, 2)), 1)
    assert alone.tolist() == [[0, 1, 1]]  # what the probe attends to itself
