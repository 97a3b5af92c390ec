"""Mixup: the ratio, the pairs, and the same training however the batch is cut."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from stepping import BATCH, CLASSES, SIZE, Stepper, TwoLayers, batch_of, configure, losses_of
from vit_jax import config
from vit_jax.training import build, mixup, objectives


def stepper(devices=8, *, fsdp=1, loss="softmax", **train):
    """A stepper of `TwoLayers` whose devices have all parameters."""
    cfg = configure(
        train={"mixup": 0.8} | train, loss={"name": loss}, mesh={"fsdp": fsdp, "zero": False}
    )
    return Stepper(cfg, devices, model=TwoLayers(), schedule=lambda count: 0.5)


STEPS = 3000


@jax.jit
def shares(seed, p):
    return jax.vmap(lambda count: mixup.own_share(seed, count, p))(jnp.arange(STEPS))


@pytest.mark.parametrize("p", [0.2, 0.8, 5.0])
def test_share_is_the_larger_part_of_a_beta(p):
    drawn = np.asarray(shares(0, p))
    assert drawn.dtype == np.float32
    assert drawn.min() >= 0.5
    assert drawn.max() <= 1.0
    beta = scipy.stats.beta(p, p)
    # For x >= 1/2: P(max(l, 1 - l) <= x) = P(1 - x <= l <= x).
    fit = scipy.stats.kstest(drawn, lambda x: beta.cdf(x) - beta.cdf(1 - x))
    assert fit.pvalue > 1e-3
    # Steps are independent of each other.
    assert abs(np.corrcoef(drawn[1:], drawn[:-1])[0, 1]) < 4 / np.sqrt(STEPS)


def test_share_is_float32_whatever_the_default():
    with jax.enable_x64(True):
        assert mixup.own_share(0, np.int32(3), 0.2).dtype == np.float32


def test_blend_by_hand():
    x = jnp.arange(4.0)[:, None] * jnp.array([[10.0, 100.0]])
    expected = [[2.5, 25], [7.5, 75], [22.5, 225], [27.5, 275]]
    np.testing.assert_array_equal(mixup.blend(x, jnp.float32(0.75)), expected)
    np.testing.assert_array_equal(mixup.blend(x, jnp.float32(1.0)), x)


CUT = {"mixup": 0.0, "cutmix": 1.0, "accumulation": 2}


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        pytest.param("softmax", {}, id="softmax"),
        pytest.param("sigmoid", {}, id="sigmoid"),
        pytest.param("softmax", CUT, id="boxes", marks=pytest.mark.slow),
    ],
)
def test_loss_and_top1_against_float64(kind, options):
    made = stepper(1, loss=kind, label_smoothing=0.1, **options)
    drawn = set()
    for number in range(2):
        params = jax.device_get(made.state["params"])
        (metrics,) = made.run(1, lambda _, n=number: batch_of(n))
        batch = batch_of(number)
        mix = mixup.draw_mix(made.cfg.seed, jnp.asarray(number), made.cfg.train, (SIZE, SIZE))
        drawn.add(float(mix.labels))

        def mixed(x, share):
            return np.asarray(share, np.float64) * x + (1 - share) * x[np.arange(BATCH) ^ 1]

        images = mixed(batch["image"] / 127.5 - 1, np.asarray(mix.pixels)).reshape(BATCH, -1)
        one_hot = np.eye(CLASSES)[batch["label"]]
        targets = mixed(one_hot, np.asarray(mix.labels)) * 0.9 + 0.1 / CLASSES
        x = np.tanh(images @ params["body"]["kernel"].astype(np.float64))
        x = x @ params["head"]["kernel"].astype(np.float64)
        if kind == "softmax":
            each = -(targets * (x - np.log(np.exp(x).sum(-1, keepdims=True))))
        else:
            each = targets * np.log1p(np.exp(-x)) + (1 - targets) * np.log1p(np.exp(x))
        assert metrics["loss"] == pytest.approx(each.sum(-1).mean(), rel=1e-6)
        assert metrics["top1"] == np.mean(x.argmax(-1) == batch["label"])
    assert len(drawn - {0.5, 1.0}) == 2


@pytest.mark.parametrize(("options", "rows"), [({}, 1), ({"mixup": 0.2}, 2), ({"cutmix": 1.0}, 2)])
def test_pairs_stay_together_in_a_microbatch(options, rows):
    cfg = configure(train=options)
    setup = objectives.Setup(cfg, build.create_model(cfg), None, 160)
    assert objectives.create_objective(setup).rows_together == rows


@pytest.fixture(scope="module")
def whole():
    """Losses and parameters after six steps of the whole batch on one device."""
    made = stepper(1)
    return losses_of(made.run(6)), jax.device_get(made.state["params"])


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("devices", "fsdp", "accumulation", "pairs_stay"),
    [
        (8, 1, 1, True),
        (1, 1, 2, True),
        (2, 1, 4, True),
        (4, 1, 2, True),
        (4, 2, 1, True),
        (8, 1, 2, False),  # one row of a microbatch per device
    ],
)
def test_same_training_however_the_batch_is_cut(whole, devices, fsdp, accumulation, pairs_stay):
    made = stepper(devices, fsdp=fsdp, accumulation=accumulation)
    moves = made.collectives - {"all-reduce"}
    if fsdp == 1:
        assert bool(moves) != pairs_stay
    losses, params = whole
    assert len(set(losses.tolist())) == 6
    np.testing.assert_allclose(losses_of(made.run(6)), losses, rtol=1e-6)
    ours = jax.device_get(made.state["params"])
    chex.assert_trees_all_close(ours, params, rtol=1e-5, atol=1e-6)


def test_a_step_can_be_taken_again():
    made = stepper()
    made.run(2)
    before = jax.device_get(made.state)
    (first,) = made.run(1)
    after = jax.device_get(made.state)
    made.state = jax.device_put(
        before, jax.tree.map(lambda x: x.sharding, made.trainer.state_shapes)
    )
    (again,) = made.run(1)
    chex.assert_trees_all_equal(again, first)
    chex.assert_trees_all_equal(jax.device_get(made.state), after)


@functools.partial(jax.jit, static_argnums=(0, 1))
def boxes(mixed, cut):
    train = config.Train(mixup=mixed, cutmix=cut)
    return jax.vmap(lambda count: mixup.draw_mix(0, count, train, (16, 24)))(jnp.arange(STEPS))


def test_boxes_have_the_sides_of_a_beta_and_are_cut_off_at_the_border():
    labels, pixels = map(np.asarray, boxes(0.0, 1.0))
    assert pixels.shape == (STEPS, 16, 24, 1)
    np.testing.assert_allclose(labels, pixels.mean((1, 2, 3)), rtol=1e-6)
    heights, widths, whole = [], [], []
    for map_ in pixels[..., 0]:
        inside = map_ == 0
        rows, columns = np.flatnonzero(inside.any(1)), np.flatnonzero(inside.any(0))
        if not rows.size:
            continue
        box = inside[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        assert box.all()
        assert box.sum() == inside.sum()
        heights.append(len(rows))
        widths.append(len(columns))
        whole.append(rows[0] > 0 and rows[-1] < 15 and columns[0] > 0 and columns[-1] < 23)
    heights, widths, whole = map(np.array, (heights, widths, whole))
    assert not (heights[whole] % 2).any()  # as many pixels on both sides of the center
    assert not (widths[whole] % 2).any()
    assert whole.sum() > 400  # a sixth, less those that touch the border
    # Inside of the image both sides are the same share of it, in even pixels.
    assert np.all(np.abs(heights[whole] / 16 - widths[whole] / 24) < 2 / 16)
    # Their share is sqrt(1 - lambda), lambda uniform: half of a side is more than h with
    # probability 1 - (2 h / 16) ** 2, and cutting only shortens it.
    for half in (2, 4, 6):
        assert np.mean(heights >= 2 * half) * len(heights) / STEPS < 1 - (half / 8) ** 2 + 0.03
    assert np.mean(pixels[..., 0].all((1, 2))) < 0.1


@pytest.mark.slow
def test_with_both_every_step_tosses_a_coin():
    labels, pixels = map(np.asarray, boxes(0.4, 1.0))
    blended = np.ptp(pixels, (1, 2, 3)) == 0
    cut = np.isin(pixels, (0, 1)).all((1, 2, 3))
    assert np.all(blended | cut)
    assert 0.45 < np.mean(cut & ~blended | (labels == 1)) < 0.56
    share = np.asarray(shares(0, 0.4))
    np.testing.assert_array_equal(labels[~cut], share[~cut])
    np.testing.assert_array_equal(pixels[~cut, 3, 5, 0], share[~cut])
