"""Distillation: divergences against numpy in float64; runs that learn from a teacher."""

import dataclasses
import shutil
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

import runs
from stepping import BATCH, Stepper
from vit_jax import config, models, preflight, train_loop
from vit_jax.inference import loading
from vit_jax.runtime import preemption
from vit_jax.training import build, mixup
from vit_jax.training.durations import Durations
from vit_jax.training.objectives import Setup, distillation
from vit_jax.training.teacher import Teacher


def network(width=16, *, classes=10, depth=1, **options):
    cfg = runs.configure(model={"width": width, "depth": depth, "num_classes": classes, **options})
    return build.create_model(cfg), cfg


def random_outputs(model, seed, batch=6):
    rng = np.random.default_rng(seed)
    width = model.config.width
    tokens = models.variants.prefix_tokens(model.config) + model.patches
    shapes = {"logits": (10,), "pre_logits": (width,), "tokens": (tokens, width)}
    return {name: jnp.float32(rng.normal(size=(batch, *own))) for name, own in shapes.items()}


def cosines(x):
    x = np.asarray(x, np.float64)
    x = x / np.linalg.norm(x, axis=-1, keepdims=True)
    return x @ np.swapaxes(x, -1, -2)


@pytest.mark.parametrize("target", ["logits", "features", "tokens"])
def test_divergences(target):
    student, cfg = network(16)
    other, _ = network(32)
    teacher = Teacher(other, cfg.data)
    student_out, teacher_out = random_outputs(student, 1), random_outputs(other, 2)
    options = {"teacher": "x", "target": target, "weight": 1.0, "temperature": 2.0}
    cfg = dataclasses.replace(cfg, objective=config.Distillation(**options))
    objective = distillation.Distillation(Setup(cfg, student, None, 1, teacher), **options)

    def distance(student_out, teacher_out):
        return float(objective.distance(objective.compare(student_out, teacher_out)))

    found = distance(student_out, teacher_out)
    if target == "logits":
        p, q = (np.asarray(one["logits"], np.float64) / 2 for one in (teacher_out, student_out))
        log_p, log_q = special.log_softmax(p, axis=1), special.log_softmax(q, axis=1)
        expected = 4 * (np.exp(log_p) * (log_p - log_q)).sum(axis=1).mean()
    elif target == "features":
        expected = np.square(
            cosines(student_out["pre_logits"]) - cosines(teacher_out["pre_logits"])
        ).mean()
    else:
        before = models.variants.prefix_tokens(student.config)
        a, b = (cosines(one["tokens"][:, before:]) for one in (student_out, teacher_out))
        expected = np.square(a - b).mean()
    assert expected > 1e-3
    assert found == pytest.approx(expected, rel=2e-5)
    same = dataclasses.replace(teacher, model=student)
    objective = distillation.Distillation(Setup(cfg, student, None, 1, same), **options)
    assert distance(student_out, student_out) < 1e-9


@pytest.mark.parametrize(("weight", "known"), [(1.0, False), (0.5, True)])
def test_a_head_that_no_loss_trains_has_no_top1(weight, known):
    student, cfg = network()
    options = {"teacher": "x", "target": "features", "weight": weight, "temperature": 2.0}
    cfg = dataclasses.replace(cfg, objective=config.Distillation(**options))
    objective = distillation.Distillation(Setup(cfg, student, None, 1), **options)
    outputs = {"loss": jnp.ones(6), "correct": jnp.ones(6)}
    outputs |= objective.compare(random_outputs(student, 1), random_outputs(student, 2))
    _, measures = objective.loss(outputs, None)
    assert ("top1" in measures, "top1" in objective.measures) == (known, known)


@pytest.mark.parametrize("target", ["logits", "features", "tokens"])
def test_both_losses_are_weighed(target):
    student, cfg = network()
    options = {"teacher": "x", "target": target, "weight": 0.25, "temperature": 2.0}
    cfg = dataclasses.replace(cfg, objective=config.Distillation(**options))
    length = Durations.from_config(cfg, 160)
    objective = distillation.Distillation(Setup(cfg, student, length, 160), **options)
    assert objective.whole_batch == (target == "features")
    ours, theirs = random_outputs(student, 1), random_outputs(student, 2)
    each = {"loss": jnp.arange(6.0), "correct": jnp.array([1.0, 1, 0, 0, 0, 0])}
    if target != "tokens":
        outputs = each | objective.compare(ours, theirs)
        apart = float(objective.distance(outputs))
        loss, measures = objective.loss(outputs, None)
        assert loss == pytest.approx(0.75 * 2.5 + 0.25 * apart, rel=1e-6)
        assert measures == {"top1": pytest.approx(1 / 3), "distillation": apart}
    assert objective.flops(3.0) == 3 * student.flops
    objective.teacher = Teacher(student, cfg.data)
    assert objective.flops(3.0) == 4 * student.flops


class Seen:
    """A network that returns the pixels it is given."""

    image_size = (4, 6)

    def apply(self, params, pixels):
        return params, {"pixels": pixels}


def test_a_teacher_sees_the_students_blend_at_its_own_size_and_scale():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (4, 8, 6, 1), np.uint8)
    data = dataclasses.replace(runs.configure().data, mean=(0.4,), std=(0.2,))
    mix = mixup.Mix(jnp.float32(0.75), jnp.float32(0.75))
    found = Teacher(Seen(), data).apply(jnp.float32(3), jnp.asarray(images), mix, config.Mesh())
    pixels = (images / 255 - 0.4) / 0.2
    pixels = 0.75 * pixels + 0.25 * pixels[[1, 0, 3, 2]]
    expected = jax.image.resize(jnp.float32(pixels), (4, 4, 6, 1), "bilinear")
    np.testing.assert_allclose(found["pixels"], expected, rtol=1e-5, atol=1e-5)
    assert found["logits"] == 3


def distilled(devices=1, **distill):
    """A stepper whose teacher has another width, size and normalization."""
    options = {"name": "distillation", "teacher": "x", "temperature": 2.0, "weight": 0.7} | distill
    more = options.pop("train", {})
    values = {"duration": "3 steps", "ema": None, "clip_norm": None, "batch_size": BATCH}
    cfg = runs.configure(
        model={"dropout": 0.0, "num_classes": 10, "depth": 1},
        train=values | more,
        schedule={"name": "constant", "warmup": 0},
        objective=options,
    )
    data = dataclasses.replace(cfg.data, image_size=(16, 16), mean=(0.4,), std=(0.2,))
    wide = runs.configure(
        model={"width": 32, "dropout": 0.0, "num_classes": 10, "depth": 1}, data={"image_size": 16}
    )
    teacher = Teacher(build.create_model(wide), data)
    params = teacher.model.init(jax.random.key(5))
    kernel = jax.random.normal(jax.random.key(6), params["head"]["kernel"].shape)
    params["head"]["kernel"] = kernel
    return Stepper(cfg, devices, teacher, params), teacher, params


@pytest.mark.slow
@pytest.mark.parametrize(
    ("devices", "distill"),
    [
        (8, {}),
        (1, {"train": {"accumulation": 2}}),
        (8, {"target": "tokens", "train": {"mixup": 0.4, "cutmix": 1.0}}),
        (8, {"target": "features"}),
        (1, {"target": "features", "train": {"accumulation": 4}}),
    ],
)
def test_devices_and_microbatches_change_nothing(devices, distill):
    plain = {**distill, "train": {**distill.get("train", {}), "accumulation": 1}}
    expected, found = distilled(**plain)[0].run(3), distilled(devices, **distill)[0].run(3)
    for one, other in zip(expected, found, strict=True):
        assert one["distillation"] == pytest.approx(other["distillation"], rel=2e-5)
        assert one["loss"] == pytest.approx(other["loss"], rel=2e-5)
    assert found[0]["loss"] != found[-1]["loss"]


@pytest.fixture(scope="module")
def teacher_run(tmp_path_factory):
    """The directory of a run to learn from."""
    folder = tmp_path_factory.mktemp("teacher")
    cfg = runs.configure(train={"duration": "6 steps"}, checkpoint={"every": 3})
    train_loop.train(cfg, folder)
    return folder


@pytest.mark.slow
def test_a_run_learns_and_resumes_bit_for_bit(teacher_run, tmp_path, monkeypatch):
    teacher = tmp_path / "teacher"
    shutil.copytree(teacher_run, teacher)

    cfg = runs.configure(
        model={"width": 8, "mlp_dim": 16, "depth": 1},
        train={"duration": "8 steps"},
        objective={"name": "distillation", "teacher": str(teacher), "temperature": 2.0},
    )
    whole = runs.assert_resumes(monkeypatch, cfg, tmp_path, 5)
    apart = runs.trace(whole, "train/distillation")
    assert len(apart) == 8
    assert apart == runs.trace(whole)  # all of the loss is the teacher's
    with runs.stopping_at(monkeypatch, 5), pytest.raises(preemption.Preempted):
        train_loop.train(cfg, tmp_path / "other")
    shutil.rmtree(max((teacher / "checkpoints").glob("0*")))  # the one before teaches now
    with pytest.raises(
        config.ConfigError, match=r"objective\.teacher: its parameters are not those"
    ):
        train_loop.train(cfg, tmp_path / "other")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"model": {"num_classes": 7}}, "has 10 classes, the student 7"),
        ({"data": {"channels": 3}}, "sees images of 1 channels; set data.channels=1"),
    ],
)
def test_a_teacher_that_cannot_teach(options, reason, teacher_run):
    cfg = runs.configure(objective={"name": "distillation", "teacher": str(teacher_run)}, **options)
    cfg = config.with_classes(cfg, cfg.model.num_classes or 10)
    opened = loading.load(teacher_run)
    teacher = Teacher(opened.model, opened.config.data)
    with pytest.raises(config.ConfigError, match=reason):
        distillation.check_teacher(cfg, build.create_model(cfg), teacher)


@pytest.mark.parametrize(
    ("names", "who"),
    [(("ViT-Ti/16", "R50x1"), "the teacher"), (("R50x1", "ViT-Ti/16"), "the student")],
)
def test_tokens_are_learned_from_tokens(names, who):
    data, objective = config.Data(), {"name": "distillation", "target": "tokens"}
    cfg = config.build({"objective": objective | {"teacher": "large"}})
    student, teacher = (
        types.SimpleNamespace(config=models.complete(config.Model(variant=name))) for name in names
    )
    message = f"^objective.target=tokens: {who}: a ResNet has no tokens; set features or logits"
    with pytest.raises(config.ConfigError, match=message):
        distillation.check_teacher(cfg, student, Teacher(teacher, data))


def test_distillation_needs_a_teacher():
    with pytest.raises(config.ConfigError, match=r"objective\.teacher=none: distillation needs a"):
        runs.configure(objective={"name": "distillation"})


@pytest.mark.slow
def test_preflight_counts_the_teacher(teacher_run):
    cfg = runs.configure(
        model={"num_classes": 10, "depth": 1},
        objective={"name": "distillation", "teacher": str(teacher_run)},
        train={"duration": "4 steps"},
    )
    cfg, where = preflight.prepare_config(cfg), preflight.open_slice("cpu")
    facts = loading.describe_checkpoint(str(teacher_run))
    teacher = config.Config(model=facts.model, data=facts.data)
    found = preflight.measure(cfg, where, 200, teacher)
    alone = dataclasses.replace(cfg, objective=config.Objective())
    plain = preflight.measure(alone, where, 200)
    model = build.create_model(dataclasses.replace(teacher, name="teacher"))
    assert found.model_flops == pytest.approx(plain.model_flops + model.flops * 32 / 8)
    assert found.params > plain.params
    assert found.peak > plain.peak
