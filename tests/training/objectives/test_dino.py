"""DINO: its parts against float64, twenty steps against the authors' code, collapse, mistakes."""

import copy
import dataclasses
import json
import math
import pathlib
import re
from types import MappingProxyType

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import runs
import vit_reference
from research import dino_reference as reference
from stepping import Stepper, configure
from vit_jax import config, models
from vit_jax.config import checks
from vit_jax.training import objectives
from vit_jax.training.build import build, create_model, describe_run
from vit_jax.training.durations import Durations
from vit_jax.training.objectives import dino
from vit_jax.utils import tree_utils

FIXTURES = pathlib.Path(runs.ROOT, "tests/fixtures")
TINY = {
    "name": "dino", "prototypes": 24, "head_hidden": 16, "head_bottleneck": 8, "local_views": 3,
    "local_size": 4,
}  # fmt: skip


def objective(sections=MappingProxyType({}), **options):
    """The objective of a tiny run, without a compiled step."""
    cfg = configure(objective=TINY | options, **sections)
    length = Durations(steps=10, warmup=0, cooldown=0, evaluate=None, save=None)
    return objectives.create_objective(objectives.Setup(cfg, create_model(cfg), length, 160))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_the_loss_is_the_mean_cross_entropy_over_pairs_of_different_views():
    rng = np.random.default_rng(0)
    targets, logits = softmax(rng.normal(size=(5, 2, 7))), rng.normal(size=(5, 4, 7)) * 3
    terms = [
        -(targets[:, i] * np.log(softmax(logits[:, v]))).sum(-1).mean()
        for i in range(2)
        for v in range(4)
        if i != v
    ]
    found = jax.jit(dino.cross_entropy)(jnp.float32(targets), jnp.float32(logits))
    assert len(terms) == 6
    np.testing.assert_allclose(found, np.mean(terms), rtol=2e-6)


def test_sinkhorn_knopp_is_that_of_its_authors_and_nothing_overflows():
    logits = np.random.default_rng(1).normal(size=(6, 5)) * 4
    q = np.exp(logits).T
    q /= q.sum()
    for _ in range(3):
        q /= q.sum(1, keepdims=True) * 5
        q /= q.sum(0, keepdims=True) * 6
    assign = jax.jit(dino.sinkhorn)
    np.testing.assert_allclose(assign(jnp.float32(logits)), (q * 6).T, rtol=2e-5)
    huge = assign(jnp.float32(logits + 1e4))
    np.testing.assert_allclose(huge.sum(1), 1, rtol=1e-5)


def test_koleo_is_minus_the_mean_log_distance_to_the_nearest_other():
    x = np.random.default_rng(2).normal(size=(6, 4))
    units = x / np.linalg.norm(x, axis=1, keepdims=True)
    apart = np.linalg.norm(units[:, None] - units[None] + 1e-8, axis=-1)
    np.fill_diagonal(apart, np.inf)
    expected = -np.log(apart.min(1) + 1e-8).mean()
    found = jax.jit(jax.value_and_grad(dino.koleo))
    np.testing.assert_allclose(found(jnp.float32(x))[0], expected, rtol=2e-6)
    assert np.isfinite(found(jnp.ones((6, 4)))[1]).all()  # of images that are equal


def test_the_head_is_an_mlp_with_cosines_to_its_prototypes():
    made = objective(norm_last_layer=False, head_layers=2)
    params = jax.tree.map(np.array, jax.jit(made.init)(jax.random.key(0)))
    assert {k: v.shape for k, v in tree_utils.flatten(params).items()} == {
        "dense_0/kernel": (16, 16), "dense_0/bias": (16,), "dense_1/kernel": (16, 8),
        "dense_1/bias": (8,), "prototypes/kernel": (8, 24), "prototypes/length": (24,),
    }  # fmt: skip
    assert 0.015 < params["dense_0"]["kernel"].std() < 0.025
    last = params["prototypes"]["kernel"]
    assert 0.9 * 8**-0.5 < abs(last).max() <= 8**-0.5
    params["prototypes"]["length"] = np.linspace(1, 2, 24, dtype=np.float32)
    params["dense_0"]["bias"] += 1
    x = np.random.default_rng(3).normal(size=(4, 16))
    hidden = x @ params["dense_0"]["kernel"].astype(np.float64) + 1
    hidden *= (1 + np.vectorize(math.erf)(hidden / 2**0.5)) / 2
    hidden = hidden @ params["dense_1"]["kernel"]
    hidden /= np.linalg.norm(hidden, axis=1, keepdims=True)
    expected = hidden @ (last / np.linalg.norm(last, axis=0)) * params["prototypes"]["length"]
    found = jax.jit(dino.head, static_argnums=2)(params, jnp.float32(x), made.model)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "bfloat16_matmul", "float32"])
def test_the_head_multiplies_as_dense_layers_of_the_model_do(dtype):
    made = objective(head_layers=2)
    params, x = jax.jit(made.init)(jax.random.key(0)), jnp.ones((4, 16))
    model = models.create(made.model.config, image_size=(8, 8), dtype=dtype, headless=True)
    program = jax.make_jaxpr(lambda params, x: dino.head(params, x, model))(params, x)
    products = [
        equation
        for equation, _ in vit_reference.equations(program.jaxpr)
        if equation.primitive.name == "dot_general"
    ]
    assert len(products) == 3
    operands = {str(operand.aval.dtype) for one in products for operand in one.invars}
    assert operands == {dtype.removesuffix("_matmul")}
    assert program.out_avals[0].dtype == jnp.float32


def test_a_config_is_described_without_a_run():
    assert describe_run(configure(objective=TINY)) == objective().describe()


def test_small_views_are_three_sevenths_of_large_ones_in_whole_patches():
    for size, patch, expected in (
        ((224, 224), (16, 16), (96, 96)), ((224, 112), (14, 16), (98, 48)),
        ((8, 8), (8, 8), (8, 8)),
    ):  # fmt: skip
        assert config.Dino().small_size(config.Data(image_size=size), patch) == expected


def test_views_have_sizes_areas_and_augmentations_of_their_own():
    made = objective(local_size=None, solarize=(0.0, 0.2, 0.0))
    first, _, small = made.views
    assert (first.shape, small.shape) == ((8, 8, 1), (3, 4, 4, 1))
    assert (first.data.crop_area, small.data.crop_area) == ((0.4, 1.0), (0.05, 0.4))
    drawn = [{t.name: t.probability for t in v.data.transforms} for v in made.views]
    common = {"color_jitter": 0.8, "gray": 0.2}
    assert drawn == [
        common | {"blur": 1.0}, common | {"blur": 0.1, "solarize": 0.2}, common | {"blur": 0.5}
    ]  # fmt: skip
    assert dict(made.describe())["views"] == (
        "global_1: 1 of 8,8 pixels, global_2: 1 of 8,8 pixels, local: 3 of 4,4 pixels"
    )
    whole = made.model.flops
    forward = 2 * whole + 3 * made.forward_flops(small) / 3
    matrices = 16 * 16 + 16 * 16 + 16 * 8 + 8 * 24
    student = 3 * (forward + 2 * 5 * matrices)
    assert made.flops(3.0) == student + 2 * (whole + 2 * matrices)
    assert len(objective(local_views=0).views) == 2
    more = objective({"data": {"transforms": [{"name": "three_augment"}]}})
    assert [t.name for t in more.views[1].data.transforms][-2:] == ["solarize", "three_augment"]


class Sums:
    """A network whose features are the columns of an image, added up; it notes dropout's keys."""

    def __init__(self):
        self.keys = []

    def apply(self, params, pixels, *, key=None):
        self.keys.append(key)
        return None, {"pre_logits": params["scale"] * pixels.sum((1, 3))}


def test_the_student_sees_all_views_and_the_teacher_the_large_ones():
    made = objective(local_views=1, local_size=8)
    made.network = network = Sums()
    rng = np.random.default_rng(5)
    views = {name: rng.integers(0, 256, (3, 8, 8, 1), np.uint8) for name in (*dino.GLOBAL, "local")}
    kernel = rng.normal(size=(8, 24)).astype(np.float32)
    student, teacher = (
        {"scale": scale, "objective": {"prototypes": {"kernel": sign * kernel}}}
        for scale, sign in ((2.0, 1.0), (3.0, -1.0))
    )
    inputs = objectives.Inputs(jnp.int32(0), jax.random.key(1), average=teacher)

    @jax.jit
    def forward(batch):
        outputs = made.forward(student, batch, inputs)
        *keys, none = network.keys
        assert none is None  # the teacher drops nothing
        return outputs, jax.random.key_data(jnp.stack(keys))

    found, (large, small) = forward(views)
    assert (large != small).any()
    sums = np.stack([(view / 127.5 - 1).sum((1, 3)) for view in views.values()], axis=1)
    units = sums / np.linalg.norm(sums, axis=-1, keepdims=True)
    logits = units @ (kernel / np.linalg.norm(kernel, axis=0))
    expected = {
        "student": logits, "teacher": -logits[:, :2], "own": 2 * sums[:, :2],
        "features": 3 * sums[:, :2],
    }  # fmt: skip
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-5, err_msg=name)


def test_the_loss_is_of_centered_or_shared_answers_and_spreads_the_students_features():
    rng = np.random.default_rng(6)
    shapes = {"student": (5, 5, 24), "teacher": (5, 2, 24), "own": (5, 2, 16)}
    shapes["features"] = shapes["own"]
    outputs = {name: np.float32(rng.normal(size=shape)) for name, shape in shapes.items()}
    inputs = objectives.Inputs(np.int32(4), state={"center": np.float32(rng.normal(size=24))})
    options = {
        "teacher_temperature_start": 0.1, "teacher_temperature": 0.2, "student_temperature": 0.5,
        "teacher_temperature_warmup": "9 steps",
    }  # fmt: skip
    mean = objective(**options)
    shared = objective(**options, centering="sinkhorn", koleo=0.1)

    @jax.jit
    def both(outputs, inputs):
        warm = outputs["teacher"] / 0.15  # half of the ramp, as step 4 is of 0 to 8
        student = outputs["student"] / 0.5
        targets = jax.nn.softmax(warm - inputs.state["center"][None, None] / 0.15)
        even = dino.sinkhorn(warm.reshape(10, 24)).reshape(5, 2, 24)
        apart = sum(dino.koleo(outputs["own"][:, view]) for view in range(2))
        expected = dino.cross_entropy(targets, student)
        others = dino.cross_entropy(even, student) + 0.1 * apart
        return mean.loss(outputs, inputs), expected, shared.loss(outputs, inputs)[0], others

    (found, measures), expected, loss, others = both(outputs, inputs)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    np.testing.assert_allclose(loss, others, rtol=1e-5)
    center = np.mean(outputs["teacher"], (0, 1))
    np.testing.assert_allclose(measures["center"], center, rtol=1e-5, atol=1e-6)


def test_the_teacher_and_its_center_follow_slowly():
    made = objective(momentum=0.9, momentum_end=1.0, center_momentum=0.75)
    np.testing.assert_allclose([made.decay(jnp.int32(n)) for n in (0, 5)], [0.9, 0.95], rtol=1e-6)
    measures = {"collapsed": jnp.float32(2)}
    measures |= {"center": jnp.float32([4.0]), "patch_center": jnp.float32([0.0])}
    state = {"center": jnp.float32([8.0]), "patch_center": jnp.float32([2.0])}
    kept = {name: value.item() for name, value in made.update(state, {}, measures, 0, None).items()}
    assert kept == {"center": 7.0, "patch_center": 1.5, "collapsed": 2}
    for text, steps in (("3 steps", 3), ("1 epochs", 10)):  # of 160 images, 16 a step
        assert objective(freeze_last_layer=text).waits == {"objective/prototypes": steps}
    whole = [objective(**one).whole_batch for one in (
        {}, {"koleo": 0.1}, {"centering": "sinkhorn"},
    )]  # fmt: skip
    assert whole == [False, True, True]


def test_the_student_keeps_its_patches_as_similar_as_an_earlier_teacher():
    rng = np.random.default_rng(8)
    student, teacher = rng.normal(size=(2, 3, 2, 4, 8))
    expected = np.zeros(3)
    for image in range(3):
        for view in range(2):
            own, other = (
                net / np.linalg.norm(net, axis=-1, keepdims=True)
                for net in (student[image, view], teacher[image, view])
            )
            expected[image] += np.mean((own @ own.T - other @ other.T) ** 2) / 2
    found = dino.gram_distance(jnp.float32(student), jnp.float32(teacher))
    np.testing.assert_allclose(found, expected, rtol=2e-6)


def test_gram_anchoring_begins_late_with_the_teacher_of_then():
    made = objective(gram=2.0, gram_start="4 steps", gram_every="3 steps")
    body = {"cls": jnp.zeros(1)}
    state = dict(made.init_state(body | {"objective": {}}))
    assert state["gram"] == body
    assert {"gram", "collapsed"} <= {*made.measures}
    measures = {"collapsed": jnp.float32(0), "center": jnp.zeros(24)}
    anchors = []
    for step in range(11):
        average = {"cls": jnp.float32([step + 1]), "objective": {}}
        state = made.update(state, {}, measures, step, average)
        anchors.append(state["gram"]["cls"].item())
    assert anchors == [0, 0, 0, 4, 4, 4, 7, 7, 7, 10, 10]
    outputs = {name: jnp.ones((2, n, 24)) for name, n in (("student", 2), ("teacher", 2))}
    outputs |= {name: jnp.ones((2, 2, 16)) for name in ("own", "features")}
    without, found = (
        jax.jit(
            lambda gram: made.loss(outputs | {"gram": gram}, objectives.Inputs(1, state=state))
        )(jnp.float32(gram))
        for gram in ([0.0, 0.0], [0.25, 0.75])
    )
    np.testing.assert_allclose(found[0] - without[0], 2 * 0.5, rtol=1e-5)
    assert found[1]["gram"] == 0.5
    never = objective(gram=1.0, gram_every="0 steps")
    assert never.update(state, {}, measures, 6, {"cls": jnp.ones(1)})["gram"] == state["gram"]
    assert made.flops(3.0) - objective().flops(3.0) == 2 * made.forward_flops(made.views[0])
    with pytest.raises(config.ConfigError, match="objective.gram=1: needs patches, and model"):
        objective({"model": {"architecture": "axial_vit"}}, gram=1.0)


def test_the_earlier_teacher_is_computed_from_its_first_step_on():
    """With the step unknown to the compiler: its forward pass is skipped before, not hidden."""
    options = {"gram": 2.0, "gram_every": "0 steps"}
    late, always = objective(gram_start="4 steps", **options), objective(**options)
    params = create_model(configure(objective=TINY)).init(jax.random.key(0))
    params |= {"objective": late.init(jax.random.key(1))}
    other = jax.tree.map(lambda leaf: leaf + 0.1, params)
    rng = np.random.default_rng(7)
    batch = {name: rng.integers(0, 256, (2, 8, 8, 1), np.uint8) for name in dino.GLOBAL}
    state = {"gram": {k: v for k, v in other.items() if k != "objective"}}

    def distance(made):
        def compute(step):
            inputs = objectives.Inputs(step, state=state, average=params)
            return made.forward(params, batch, inputs)["gram"]

        return jax.jit(compute)

    lazily, usual = distance(late), distance(always)(jnp.int32(0))
    assert (usual > 0).all()
    np.testing.assert_array_equal(lazily(jnp.int32(3)), [0, 0])
    np.testing.assert_array_equal(lazily(jnp.int32(4)), usual)
    assert "stablehlo.case" in lazily.lower(jnp.int32(0)).as_text()


def test_its_head_may_train_alone_at_first():
    made = build(configure(objective=TINY, optimizer={"head_first": 3}), 160)
    heads = {name for name, spec in made.trainable.specs.items() if spec.head}
    assert heads == {name for name in made.trainable.specs if name.startswith("objective/")}
    assert "objective/prototypes/kernel" in heads


def measured(made, answers, features):
    """The summary of a batch of teacher's answers (N, K) and features (N, D)."""
    units = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    logs = np.log(np.maximum(answers, 1e-30))
    raw = {
        "targets": answers.mean(0), "mean": units.mean(0),
        "second_moment": units.T @ units / len(units),
        "teacher_entropy": -(answers * logs).sum(-1).mean(),
        "assigned": np.eye(answers.shape[1])[answers.argmax(1)].mean(0),
    }  # fmt: skip
    raw = {name: jnp.float32(value) for name, value in raw.items()}
    inputs = objectives.Inputs(jnp.int32(0), state={"collapsed": jnp.int32(6)})
    found = jax.jit(made.summarize)(raw, inputs)
    return {k: float(v) for k, v in found.items() if v.ndim == 0}


def test_measures_tell_images_that_differ_from_both_kinds_of_collapse():
    made = objective(collapse_steps=7, stop_on_collapse=True)
    rng = np.random.default_rng(4)
    spread, same = rng.normal(size=(32, 16)), np.ones((32, 16)) + 1e-4 * rng.normal(size=(32, 16))
    sharp = np.eye(24)[np.arange(32) % 24]
    fine = measured(made, sharp, spread)
    assert fine["prototypes"] == 24
    assert fine["information"] > 0.9
    assert 0.9 < fine["feature_std"] <= 1
    assert 8 < fine["rank"] < 16
    units = spread / np.linalg.norm(spread, axis=1, keepdims=True)
    variances = np.linalg.eigvalsh(np.cov(units.T, bias=True))
    np.testing.assert_allclose(fine["rank"], variances.sum() ** 2 / (variances**2).sum(), rtol=1e-4)
    assert made.warning(fine) is None
    for answers, features, words in (
        (np.full((32, 24), 1 / 24), spread, "flat answer .* lower objective.teacher_temperature"),
        (np.eye(24)[np.zeros(32, int)], spread, "few prototypes .*centering=sinkhorn"),
        (sharp, same, "same features .* a lower optimizer.lr"),
    ):
        bad = measured(made, answers, features)
        assert bad["collapsed"] == 7
        text, ends = made.warning(bad)
        assert ends
        assert re.search(f"collapse for 7 steps: .*{words}", text), text
    assert made.warning(bad | {"collapsed": 6.0}) is None
    assert not objective(collapse_steps=7).warning(bad)[1]


def blocks(drawn, grid, ratio, probability):
    """The mask that iBOT's loops draw, of the same numbers; and how many it wanted."""
    height, width = grid
    found = np.zeros(grid, bool)
    share = ratio[0] + drawn[0, 1] * (ratio[1] - ratio[0])
    high, turn = (share * height * width if drawn[0, 0] < probability else 0), 0
    while (count := found.sum()) < high:
        for _ in range(10):
            size, aspect, *place = drawn[1 + turn]
            turn += 1
            low = (min(grid) // 3) ** 2
            area = low + size * (high - count - low)
            aspect = np.exp(np.log(0.3) + aspect * (np.log(1 / 0.3) - np.log(0.3)))
            h, w = (round(float(np.sqrt(x))) for x in (area * aspect, area / aspect))
            if w < width and h < height:
                top = int(place[0] * (height - h + 1))
                left = int(place[1] * (width - w + 1))
                block = np.zeros(grid, bool)
                block[top : top + h, left : left + w] = True
                if 0 < (block & ~found).sum() <= high - count:
                    found |= block
                    break
        else:
            break
    return found, high


@pytest.mark.parametrize("grid", [(14, 14), (6, 9), (4, 4)])
def test_masks_are_the_blocks_that_the_authors_draw(grid):
    drawn = np.random.default_rng(8).random((60, dino.DRAWS + 1, 4))
    ratio, probability = (0.1, 0.5), 0.7
    draw = jax.jit(jax.vmap(lambda one: dino.mask(one, grid, ratio, probability)))
    found = np.asarray(draw(jnp.float32(drawn)))
    expected, wanted = zip(*(blocks(one, grid, ratio, probability) for one in drawn), strict=True)
    np.testing.assert_array_equal(found, expected)
    counts = found.sum((1, 2))
    assert (counts <= wanted).all()
    assert counts.max() > 0.4 * grid[0] * grid[1]
    assert 0.1 < (counts == 0).mean() < 0.5


def test_masks_are_functions_of_seed_step_image_and_view():
    made = objective({"data": {"image_size": 24}}, patch_loss=1.0, mask_probability=1.0)
    draw = jax.jit(lambda step: made.prepare({}, step)["masked"])
    found = np.asarray(draw(jnp.int32(3)))
    assert found.shape == (16, 2, 36)
    assert (found.sum(-1) >= 1).all()
    assert len({row.tobytes() for row in found.reshape(32, 36)}) > 24
    np.testing.assert_array_equal(draw(jnp.int32(3)), found)
    assert (draw(jnp.int32(4)) != found).any((1, 2)).mean() > 0.8
    made.cfg = dataclasses.replace(made.cfg, seed=1)
    assert (np.asarray(jax.jit(made.prepare)({}, jnp.int32(3))["masked"]) != found).any()
    assert objective().prepare({}, jnp.int32(3)) == {}


class Tokens:
    """A network whose tokens are the mean pixels of patches of 4 x 4, or what replaces them."""

    def apply(self, params, pixels, *, key=None):
        patches = pixels.reshape(-1, 2, 4, 2, 4, 1).mean((2, 4, 5)).reshape(-1, 4)
        return None, self.made(params, patches)

    def encode_masked(self, params, pixels, masked, token, *, key=None):
        patches = self.apply(params, pixels)[1]["tokens"][:, 1:, 0] / params["scale"]
        return self.made(params, jnp.where(masked, token[:, 0, :1], patches))

    def made(self, params, patches):
        tokens = params["scale"] * jnp.concatenate(
            [patches.mean(1, keepdims=True), patches], axis=1
        )
        tokens = tokens[..., None] * jnp.arange(1.0, 9.0)[None, None]
        return {"pre_logits": tokens[:, 0], "tokens": tokens}


@pytest.mark.parametrize("own_head", [False, True])
def test_masked_patches_learn_the_teachers_answers(own_head):
    made = objective(
        {"model": {"pooling": "token"}}, patch_loss=2.0, patch_head=own_head, local_views=0,
        head_layers=1, head_bottleneck=4, mask_ratio=(0.1, 0.8), student_temperature=0.5,
        teacher_temperature=0.2,
        teacher_temperature_start=0.2,
    )  # fmt: skip
    made.network = Tokens()
    rng = np.random.default_rng(7)
    large = {name: rng.integers(0, 256, (3, 8, 8, 1), np.uint8) for name in dino.GLOBAL}
    masked = rng.random((3, 2, 4)).argsort(-1) < np.array([[1, 3], [0, 2], [3, 1]])[..., None]

    def drawn():
        dense = {"kernel": rng.normal(size=(8, 4)), "bias": rng.normal(size=4)}
        return {"dense_0": dense, "prototypes": {"kernel": rng.normal(size=(4, 24))}}

    nets = []
    for scale in (1.5, 0.75):
        own = (
            drawn()
            | {"mask_token": np.full((1, 1, 8), 0.3)}
            | ({"patches": drawn()} if own_head else {})
        )
        nets.append(jax.tree.map(jnp.float32, {"scale": scale, "objective": own}))
    center = rng.normal(size=24)
    state = {"center": jnp.zeros(24), "patch_center": jnp.float32(center)}
    inputs = objectives.Inputs(jnp.int32(1), average=nets[1], state=state)

    shared = copy.copy(made)
    shared.options = dataclasses.replace(made.options, centering="sinkhorn")

    @jax.jit
    def both(batch):
        outputs = made.forward(nets[0], batch, inputs)
        even = shared.loss(outputs, inputs)[1]["patch_loss"]
        valid = outputs["patch_weight"].reshape(-1, 1) > 0
        flat = outputs["patch_teacher"].reshape(-1, 24) / 0.2
        return outputs, made.loss(outputs, inputs), even, dino.sinkhorn(flat, valid)

    outputs, (loss, measures), even, targets = both(large | {"masked": jnp.asarray(masked)})
    own = np.log(softmax(np.float64(outputs["patch_student"]) / 0.5))
    cross = -(np.reshape(targets, own.shape) * own).sum(-1)
    np.testing.assert_allclose(even, (cross * outputs["patch_weight"]).sum() / 6, rtol=2e-5)
    pixels = np.stack([large[name] for name in dino.GLOBAL], 1).astype(np.float64) / 127.5 - 1
    patches = pixels.reshape(3, 2, 2, 4, 2, 4).mean((3, 5)).reshape(3, 2, 4)

    def logits(net, values):
        own = net["objective"]["patches"] if own_head else net["objective"]
        x = values[..., None] * net["scale"].item() * np.arange(1.0, 9.0)
        x = x @ np.float64(own["dense_0"]["kernel"]) + np.float64(own["dense_0"]["bias"])
        kernel = np.float64(own["prototypes"]["kernel"])
        x /= np.linalg.norm(x, axis=-1, keepdims=True)
        return x @ (kernel / np.linalg.norm(kernel, axis=0))

    answers = logits(nets[1], patches)
    student = logits(nets[0], np.where(masked, 0.3, patches))
    targets = softmax((answers - center) / 0.2)
    cross = -(targets * np.log(softmax(student / 0.5))).sum(-1)
    views = (cross * masked).sum(-1) / np.maximum(masked.sum(-1), 1)
    np.testing.assert_allclose(measures["patch_loss"], views.mean(), rtol=2e-5)
    np.testing.assert_allclose(
        measures["patch_center"], answers.mean((0, 1, 2)), rtol=1e-4, atol=1e-5
    )
    made.options = made.options.__class__(**{**vars(made.options), "patch_loss": 0.0})
    alone = made.loss(outputs, inputs)[0]
    np.testing.assert_allclose(loss, alone + 2 * views.mean(), rtol=2e-5)
    # Four masked patches, where the product of 0.8 and 4 leaves room for three.
    over = both(large | {"masked": np.ones((3, 2, 4), bool)})[0]["patch_weight"]
    np.testing.assert_allclose(over.sum(-1), 1.0)


def test_sinkhorn_of_a_batch_without_a_masked_view_is_finite():
    """A small batch, or a low mask_probability, draws one now and then: its loss was NaN."""
    logits = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    found = dino.sinkhorn(jnp.asarray(logits), jnp.zeros((6, 1), bool))
    np.testing.assert_allclose(found, np.exp(logits) / np.exp(logits).sum(1)[:, None], rtol=1e-5)


def test_sinkhorn_shares_prototypes_among_the_views_that_count():
    logits = np.random.default_rng(9).normal(size=(6, 5)).astype(np.float32)
    counts = np.array([1, 0, 1, 1, 0, 1], bool)
    found = jax.jit(dino.sinkhorn)(logits, counts[:, None])
    alone = jax.jit(dino.sinkhorn)(logits[counts])
    np.testing.assert_allclose(found[counts], alone, rtol=1e-5)


def test_flops_of_patches_are_counted():
    plain, made = objective(), objective(patch_loss=1.0, patch_head=True)
    dense, last = 16 * 16 + 16 * 16 + 16 * 8, 8 * 24
    macs = 3 * 2 * (dense + last) + 4 * dense + 2 * last  # of 4 patches, 2 of them masked at most
    assert made.flops(3.0) - plain.flops(3.0) == 2 * 2 * macs
    assert made.waits.keys() == {"objective/prototypes", "objective/patches/prototypes"}


@pytest.mark.parametrize(
    ("sections", "options", "message"),
    [
        ({"model": {"pooling": "gap", "norm_place": "pooled"}}, {}, "model.norm_place=pooled "),
        ({}, {"mask_ratio": (0.1, 0.2)}, "objective.mask_ratio=0.1,0.2: masks none of the 4 "),
    ],
)
def test_patches_that_cannot_be_masked_are_refused(sections, options, message):
    with pytest.raises(config.ConfigError, match=message):
        objective(sections, patch_loss=1.0, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": TINY | {"mask_ratio": (0.5, 0.1)}}, "objective.mask_ratio=0.5,0.1: the fir"),
        ({"train": {"ema": 0.9}}, "train.ema=0.9: .* its teacher, by objective.momentum; set none"),
        ({"objective": TINY | {"blur": (1.0, 0.1)}}, "objective.blur=1,0.1: needs three prob"),
        (
            {"objective": TINY | {"global_area": (1.0, 0.4)}},
            "objective.global_area=1,0.4: the first",
        ),
        ({"objective": TINY | {"freeze_last_layer": "-1 epochs"}}, "must not be negative"),
        ({"optimizer": {"name": "lamb"}}, "optimizer.name=lamb: .*; set adam"),
        ({"data": {"train_crop": "resize"}}, "data.train_crop=resize: .*; set inception"),
        (
            {"data": {"channels": 2, "source": "synthetic"}},
            "objective.jitter=0.8: is for gray or RGB of 8 bits",
        ),
        ({"train": {"batch_size": 1}, "objective": TINY | {"koleo": 0.1}}, "objective.koleo=0.1: "),
    ],
)
def test_options_that_do_not_fit_are_refused(options, message):
    with pytest.raises(config.ConfigError, match=message):
        checks.check_options(configure(**({"objective": TINY} | options)))


# Of the authors' modules: what of ours a parameter is, and how.
def ours(name, value):
    """Our arrays by name for a parameter of the authors' modules; a layer of a stack."""
    part, _, rest = name.partition(".")
    if part == "head":
        words = rest.split(".")
        if words[0] == "mlp":
            leaf = f"objective/dense_{int(words[1]) // 2}"
            return {f"{leaf}/kernel": value.T} if words[2] == "weight" else {f"{leaf}/bias": value}
        key = "kernel" if rest.endswith("_v") else "length"
        return {f"objective/prototypes/{key}": value.T if key == "kernel" else value[:, 0]}
    heads, depth = reference.HEADS, reference.WIDTH // reference.HEADS
    words = rest.split(".")
    kernel = "kernel" if words[-1] == "weight" else "bias"
    if rest == "cls_token":
        return {"cls": value}
    if rest == "masked_embed":
        return {"objective/mask_token": value[None]}
    if rest == "pos_embed":
        return {"position/table": value}
    if words[0] == "patch_embed":
        leaf = value.transpose(2, 3, 1, 0) if kernel == "kernel" else value
        return {f"embedding/{kernel}": leaf}
    if words[0] == "norm":
        return {f"encoder_norm/{'scale' if kernel == 'kernel' else 'bias'}": value}
    where = ".".join(words[2:-1])
    if where.startswith("norm"):
        return {f"encoder/{where}/{'scale' if kernel == 'kernel' else 'bias'}": value}
    if where.startswith("mlp"):
        leaf = value.T if kernel == "kernel" else value
        return {f"encoder/{where.replace('.', '/')}/{kernel}": leaf}
    if where == "attn.proj":
        leaf = value.T.reshape(heads, depth, -1) if kernel == "kernel" else value
        return {f"encoder/attention/out/{kernel}": leaf}
    found = {}
    for which, each in zip(("query", "key", "value"), np.split(value, 3), strict=True):
        leaf = (
            each.T.reshape(-1, heads, depth) if kernel == "kernel" else each.reshape(heads, depth)
        )
        found[f"encoder/attention/{which}/{kernel}"] = leaf
    return found


def converted(values):
    """Our parameters, flat, of those of the authors' modules by name."""
    found, layers = {}, {}
    for name, value in values.items():
        for own, leaf in ours(name, value).items():
            if own.startswith("encoder/"):
                layers.setdefault(own, []).append(leaf)
            else:
                found[own] = leaf
    stacked = {name: np.stack(each) for name, each in layers.items()}
    return {name: np.float32(leaf) for name, leaf in (found | stacked).items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("which", "case"), [*(("dino", c) for c in reference.CASES), ("ibot", *reference.IBOT_CASES)]
)
def test_twenty_steps_are_those_of_the_authors_code(which, case, monkeypatch):
    kept = reference.CASES.get(case, True)
    low, high = reference.TEMPERATURES
    hidden = jnp.asarray([reference.masks(step) for step in range(reference.STEPS)])
    if which == "ibot":
        drawn = lambda self, batch, step: batch | {"masked": hidden[step]}  # noqa: E731
        monkeypatch.setattr(dino.Dino, "prepare", drawn)
    made = Stepper(
        config.build({
            "model": {
                "patch_size": reference.PATCH, "width": reference.WIDTH, "depth": reference.DEPTH,
                "mlp_dim": 4 * reference.WIDTH, "heads": reference.HEADS, "gelu": "erf",
                "norm_epsilon": 1e-6, "position_resize": "bicubic_offset",
            },
            "data": {"image_size": reference.SIZE, "channels": 3},
            "train": {
                "batch_size": reference.BATCH, "duration": reference.STEPS,
                "clip_norm": reference.CLIP, "clip_by": "parameter",
            },
            "objective": TINY | {
                "prototypes": reference.PROTOTYPES, "head_hidden": reference.HIDDEN,
                "head_bottleneck": reference.BOTTLENECK, "norm_last_layer": kept,
                "local_views": reference.SMALL_VIEWS, "local_size": reference.SMALL,
                "freeze_last_layer": f"{reference.FROZEN} steps",
                "momentum": reference.MOMENTUM, "teacher_temperature_start": low,
                "teacher_temperature": high,
                "teacher_temperature_warmup": f"{reference.WARMUP} steps",
                "patch_loss": float(which == "ibot"),
            },
            "optimizer": {
                "lr": reference.LR, "weight_decay": reference.DECAY,
                "weight_decay_end": reference.DECAY_END,
                "groups": {"cls": {"decay": 1.0}, "position/table": {"decay": 1.0}} | (
                    {} if kept else {"objective/prototypes/length": {"decay": 1.0}}
                ) | ({"objective/mask_token": {"decay": 1.0}} if which == "ibot" else {}),
            },
            "schedule": {"name": "cosine", "end": reference.LR_END},
        }),
        1,
    )  # fmt: skip
    expected = json.loads((FIXTURES / f"{which}.json").read_text())[case]
    shapes = {name: tuple(shape) for name, shape in expected["shapes"].items()}
    values = converted({name: reference.weight(name, shape) for name, shape in shapes.items()})
    if kept:
        del values["objective/prototypes/length"]
    place = lambda name, leaf: jax.device_put(values[name], leaf.sharding)  # noqa: E731
    made.state = made.state | {
        part: tree_utils.map_named(place, made.state[part]) for part in ("params", "ema")
    }
    views = lambda step: reference.crops(step) | {"label": np.zeros(reference.BATCH, np.int32)}  # noqa: E731
    losses = [one["loss"] for one in made.run(reference.STEPS, views)]
    np.testing.assert_allclose(losses, expected["losses"], rtol=1e-5)
    for name, center in made.state["objective"].items():
        if name.endswith("center"):
            np.testing.assert_allclose(center, expected[name], rtol=1e-4, atol=1e-5, err_msg=name)
    teacher = tree_utils.flatten(jax.device_get(made.state["ema"]))
    sums = {name: float(np.abs(leaf).sum()) for name, leaf in teacher.items()}
    wanted: dict[str, float] = {}
    for name, shape in shapes.items():
        if (mean := expected["teacher"].get(name)) is None:
            continue  # the student's alone
        for own in ours(name, np.zeros(shape)):
            if "attention/" not in own or "out/" in own:
                wanted[own] = wanted.get(own, 0) + mean * np.prod(shape)
    for name, value in wanted.items():
        if name in sums:
            np.testing.assert_allclose(sums[name], value, rtol=1e-4, err_msg=name)
