"""A component of a plug-in that is wrong is one line with the option that names it."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import plugins
import runs
import vit_jax
from commands import error_line
from vit_jax import cli, config, models
from vit_jax.config import components
from vit_jax.data import sources, transforms
from vit_jax.data.pipeline import View
from vit_jax.data.source import DataError, Record
from vit_jax.evaluation import evaluation
from vit_jax.runtime import logs
from vit_jax.training import build, losses, optimizers, schedules
from vit_jax.training.objectives import Objective, creation

pytestmark = pytest.mark.usefixtures("forgotten")


def broken(*given, **named):
    raise KeyError("x")


BROKEN = f"KeyError: 'x' ({__file__}:"


def registered(kind, returned, name="mine"):
    """Registers a factory that ignores its arguments."""
    vit_jax.register(kind, name)(lambda *given, **named: returned)
    return returned


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("model.architecture", "model"),
        ("data.source", "source"),
        ("data.transforms", "transform"),
        ("train.augmentations", "batch_augmentation"),
        ("loss.name", "loss"),
        ("optimizer.name", "optimizer"),
        ("schedule.name", "schedule"),
        ("evaluation.evaluators", "evaluator"),
        ("logging.loggers", "logger"),
    ],
)
def test_a_factory_that_fails_is_one_line(key, kind, tmp_path, capsys):
    @vit_jax.register(kind, "mine")
    def fails(*given, **named):
        raise KeyError("x")

    given = plugins.flags(plugins.SHORT | {key: "mine"})
    assert cli.main(["train", "digits", f"--workdir={tmp_path}", *given]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"vit_jax: {key}=mine: KeyError: 'x' ({__file__}:")


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
@pytest.mark.parametrize(
    ("returned", "line"),
    [
        (np.zeros((8, 8, 1)), "returned float64 (8, 8, 1); must return uint8 (8, 8, 1)"),
        (None, "returned NoneType (); must return uint8 (8, 8, 1)"),
    ],
)
def test_a_transform_returns_an_image_like_its_own(returned, line, tmp_path, capsys):
    registered("transform", lambda image, rng: returned)
    given = plugins.flags(plugins.SHORT | {"data.transforms": "mine"})
    assert cli.main(["train", "digits", f"--workdir={tmp_path}", *given]) == 2
    assert capsys.readouterr().err.endswith(f"vit_jax: data.transforms=mine: {line}\n")


@pytest.mark.parametrize(
    "augment",
    [
        lambda key, images, labels: (images[:, :4], labels),
        lambda key, images, labels: (images.astype(jnp.bfloat16), labels),
        lambda key, images, labels: (images, labels[:3]),
    ],
)
def test_an_augmentation_keeps_images_and_labels_in_form(augment):
    registered("batch_augmentation", augment)
    cfg = runs.configure(model={"num_classes": 10}, train={"augmentations": "mine", "ema": None})
    trainer = build.build(cfg, 200)
    with pytest.raises(config.ConfigError, match="train.augmentations=mine: returned images"):
        jax.eval_shape(trainer.step, trainer.state_shapes, trainer.batch_shapes)


def test_an_optimizer_and_an_evaluator_are_what_they_say():
    registered("optimizer", None)
    with pytest.raises(config.ConfigError, match="optimizer.name=mine: must return an optax.Grad"):
        optimizers.create_optimizer(config.Optimizer(name="mine"), clip_norm=None)
    registered("evaluator", 7)
    with pytest.raises(config.ConfigError, match="evaluation.evaluators=mine: must return a funct"):
        evaluation.open_evaluation(runs.configure(evaluation={"evaluators": "mine"}))


@pytest.mark.parametrize(
    ("state", "line"),
    [
        (
            {"sum": jnp.zeros(2, jnp.bfloat16)},
            "sum is float32 (2,) at first and bfloat16 (2,) after",
        ),
        ({}, "sum is float32 (2,) at first and missing after a step"),
    ],
)
def test_an_optimizer_keeps_the_form_of_its_state(state, line):
    update = optax.GradientTransformation(
        lambda params: {"sum": jnp.zeros(2)}, lambda updates, old, params=None: (updates, state)
    )
    registered("optimizer", update)
    cfg = runs.configure(model={"num_classes": 10}, optimizer={"name": "mine"})
    trainer = build.build(cfg, 200)
    with pytest.raises(config.ConfigError) as caught:
        jax.eval_shape(trainer.step, trainer.state_shapes, trainer.batch_shapes)
    assert f"optimizer.name=mine: its state 1/{line}" in str(caught.value)


class Source(list):
    classes = ("a", "b")


@pytest.mark.parametrize(
    ("examples", "line"),
    [
        ([], "has no examples"),
        ([Record(np.zeros((8, 8, 1)), 0)], r"its first image is float64 \(8, 8, 1\); must be an"),
        ([Record(np.zeros((8, 8, 1), np.uint8), 2)], "its first label is 2; must be .* below 2"),
    ],
)
def test_a_source_has_images_and_labels(examples, line):
    registered("source", Source(examples))
    with pytest.raises(DataError, match=f"data.source=mine: {line}"):
        sources.open_source(config.Data(source="mine"), "train")


def test_a_source_that_fails_is_one_line():
    class Fails(Source):
        def __getitem__(self, index):
            if index == 2:
                raise OSError(5, "unreadable")
            return broken() if index else super().__getitem__(0)

        def name(self, index):
            return broken() if index else "first"

        fingerprint = broken

    registered("source", Fails([Record(np.zeros((8, 8, 1), np.uint8), 1)] * 3))
    for labels in (True, False):
        Fails.classes = ("a", "b") if labels else ()
        opened = sources.open_source(config.Data(source="mine"), "train", labels=labels)
        assert opened[0].label == 1
        for method, given in (("__getitem__", [1]), ("name", [1]), ("fingerprint", [])):
            with pytest.raises(config.ConfigError) as caught:
                getattr(opened, method)(*given)
            assert str(caught.value).startswith(f"data.source=mine: {BROKEN}")
        with pytest.raises(OSError, match="unreadable"):  # data.max_bad_examples
            opened[2]
    registered("source", object(), "other")
    with pytest.raises(config.ConfigError, match="data.source=other: TypeError: object of type"):
        sources.open_source(config.Data(source="other"), "train")


def test_an_augmentation_and_a_transform_that_fail_are_one_line():
    registered("batch_augmentation", broken)
    cfg = runs.configure(model={"num_classes": 10}, train={"augmentations": "mine", "ema": None})
    trainer = build.build(cfg, 200)
    with pytest.raises(config.ConfigError) as caught:
        jax.eval_shape(trainer.step, trainer.state_shapes, trainer.batch_shapes)
    assert str(caught.value).startswith(f"train.augmentations=mine: {BROKEN}")
    with pytest.raises(config.ConfigError) as caught:
        transforms.PluggedIn("mine", broken)(np.zeros((8, 8, 1), np.uint8), None)
    assert str(caught.value).startswith(f"data.transforms=mine: {BROKEN}")


def test_a_model_returns_logits_for_its_classes(forgotten):
    with plugins.loaded() as project:
        network = lambda self, model, size, channels, dtype, masked, *, rngs: (  # noqa: E731
            project.model.Network(channels, 4, 7, dtype, rngs=rngs)
        )
        forgotten.setattr(project.model.ConvNet, "network", network)
        model = models.create(
            config.Model(architecture="convnet", num_classes=3), image_size=(8, 8), channels=1
        )
        images = jax.ShapeDtypeStruct((2, 8, 8, 1), jnp.float32)
        with pytest.raises(config.ConfigError, match=r"convnet: its logits are float32 \(2, 7\)"):
            jax.eval_shape(model.apply, model.shapes(), images)


@pytest.mark.parametrize(
    ("parent", "method", "function", "line"),
    [
        ("ConvNet", "complete", None, BROKEN),
        ("ConvNet", "flops", None, BROKEN),
        ("ConvNet", "network", None, BROKEN),
        ("ConvNet", "network", lambda *given, **named: None, "network must return an nnx.Module"),
        ("ConvNet", "initial", None, BROKEN),
        ("ConvNet", "initial", lambda self, model, params, key: [params],
         "initial must return the parameters it gets"),
        ("Network", "__call__", None, BROKEN),
        ("Network", "__call__", lambda self, images, **named: self.head(images[:, 0, 0]),
         "must return logits, and a dict of the rest"),
        ("Network", "__call__", lambda self, images, **named: (jnp.zeros((2, 3)), {}),
         "its pre_logits are NoneType (); must be float32 (2, D)"),
        ("Network", "__call__", lambda self, images, **named: (
            jnp.zeros((2, 3)), {"pre_logits": jnp.zeros((2, 3), jnp.bfloat16)}),
         "its pre_logits are bfloat16 (2, 3); must be float32 (2, D)"),
    ],
)  # fmt: skip
def test_a_model_that_fails_is_one_line(parent, method, function, line, forgotten):
    with plugins.loaded() as project:
        forgotten.setattr(getattr(project.model, parent), method, function or broken)
        options = {"architecture": "convnet", "num_classes": 3, "filters": 4}
        images = jax.ShapeDtypeStruct((2, 8, 8, 4), jnp.float32)

        def use():
            made = config.build({"model": options}).model
            model = models.create(made, image_size=(8, 8), channels=4)
            assert model.flops is None
            params = jax.eval_shape(model.init, jax.random.key(0))
            jax.eval_shape(model.apply, params, images)

        assert error_line(config.ConfigError, use).startswith(f"model.architecture=convnet: {line}")


@pytest.mark.parametrize(
    ("part", "line"),
    [
        (lambda rngs: nnx.Param(jnp.full(3, 5)), "its parameter part is int32; must be float32"),
        (lambda rngs: nnx.BatchNorm(3, rngs=rngs),
         "part/mean is nnx.BatchStat; its state must be nnx.Param"),
    ],
)  # fmt: skip
def test_the_state_of_a_network_is_float32_parameters(part, line, forgotten):
    with plugins.loaded() as project:

        def network(self, model, size, channels, dtype, masked, *, rngs):
            made = project.model.Network(channels, 4, 3, dtype, rngs=rngs)
            made.part = part(rngs)
            return made

        forgotten.setattr(project.model.ConvNet, "network", network)
        model = models.create(
            config.Model(architecture="convnet", num_classes=3), image_size=(8, 8), channels=1
        )
        assert error_line(config.ConfigError, model.shapes) == f"model.architecture=convnet: {line}"


def objective(**changes):
    parts = {"measures": ("m",), "views": (View("image", config.Data()),)} | changes
    made = object.__new__(type("Mine", (Objective,), parts))
    creation.guard(made, "mine")
    return made


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"views": property(broken)}, BROKEN),
        ({"views": View("image", config.Data())}, "views must be a tuple of data.pipeline.View"),
        ({"measures": "m"}, "measures='m' must be a tuple of names"),
        ({"shown": ("n",)}, "shown names n, which measures does not"),
    ],
)
def test_an_objective_names_its_views_and_measures(changes, line):
    with pytest.raises(config.ConfigError) as caught:
        objective(**changes)
    assert str(caught.value).startswith(f"objective.name=mine: {line}")


@pytest.mark.parametrize(
    ("method", "returned", "line"),
    [
        ("forward", broken, BROKEN),
        ("forward", lambda self, params, batch: 0, "TypeError: <lambda>() takes 3 positional"),
        ("loss", broken, BROKEN),
        ("loss", jnp.float32(1), "loss must return the loss and measures by name"),
        ("loss", (jnp.zeros(3), {}), "loss returned float32 (3,); must return a float ()"),
        ("loss", (jnp.int32(3), {}), "loss returned int32 (); must return a float ()"),
        ("summarize", {}, "measures names m, but the loss returns no such scalar"),
        ("summarize", {"m": jnp.ones(2)}, "measures names m, but the loss returns no such scalar"),
        ("init", {"a": jnp.zeros(2, jnp.int32)}, "init/a is int32; its parameters must be float32"),
        ("init", [jnp.zeros(2)], "init must return a dict of arrays, nested by name"),
        ("init", {"a": [jnp.zeros(2)]}, "init must return a dict of arrays, nested by name"),
        ("init", {"a/b": jnp.zeros(2)}, "init must return a dict of arrays, nested by name"),
        ("init_state", [jnp.zeros(2)], "init_state must return a dict"),
        ("warning", "bad", "warning must return None, or a text and whether it ends"),
    ],
)
def test_the_methods_of_an_objective_return_what_they_must(method, returned, line):
    function = returned if callable(returned) else lambda self, *given: returned
    given = {"forward": 3, "loss": 2, "summarize": 2}.get(method, 1)
    with pytest.raises(config.ConfigError) as caught:
        getattr(objective(**{method: function}), method)(*[{}] * given)
    assert str(caught.value).startswith(f"objective.name=mine: {line}")


def test_an_objective_that_is_right_stays():
    made = objective(loss=lambda self, outputs, inputs: (1.0, {"m": 2}))
    value, measures = made.loss({}, {})
    assert value.dtype == jnp.float32
    assert made.summarize(measures, {}) == {"m": 2}
    assert made.warning({}) is None
    assert objective(decay=0.5).decay == 0.5  # an argument may have the name of a method


class Probabilities:
    def __call__(self, logits, targets):
        return broken()

    def probabilities(self, logits):
        return logits.sum(axis=-1)


def test_a_loss_that_fails_is_one_line():
    registered("loss", Probabilities())
    loss = config.build({"loss": {"name": "mine"}}).loss
    with pytest.raises(config.ConfigError) as caught:
        losses.cross_entropy(jnp.zeros((2, 3)), jnp.zeros(2, jnp.int32), loss=loss)
    assert str(caught.value).startswith(f"loss.name=mine: {BROKEN}")
    with pytest.raises(config.ConfigError, match=r"returned \(2,\); must return the shape"):
        losses.probabilities(jnp.zeros((2, 3)), loss)


def test_a_schedule_that_fails_is_one_line():
    registered("schedule", lambda step: 1.0 if step else 0.0)
    schedule = config.build({"schedule": {"name": "mine"}}).schedule
    with pytest.raises(config.ConfigError, match="schedule.name=mine: TracerBoolConversionError"):
        schedules.create_schedule(schedule, lr=1.0, steps=3, warmup=0)


@pytest.mark.parametrize(
    ("update", "line"),
    [
        (broken, BROKEN),
        (lambda updates, state, params: updates, "update must return updates of"),
        (lambda updates, state, params: ({"a": jnp.zeros(())}, state), "update must return"),
    ],
)
def test_an_optimizer_updates_what_it_gets(update, line):
    registered("optimizer", optax.GradientTransformation(lambda params: (), update))
    made = optimizers._moments(config.build({"optimizer": {"name": "mine"}}).optimizer)
    with pytest.raises(config.ConfigError) as caught:
        made.update({"a": jnp.ones(3)}, (), {"a": jnp.ones(3)})
    assert str(caught.value).startswith(f"optimizer.name=mine: {line}")


@pytest.mark.parametrize(
    ("returned", "line"),
    [
        (broken, BROKEN),
        (1.0, "must return numbers by name, or None if stopped"),
        ({"a": np.zeros(3)}, "a is a ndarray; must be a number"),
        ({"a": "x"}, "a is a str; must be a number"),
    ],
)
def test_an_evaluator_returns_numbers(returned, line):
    function = returned if callable(returned) else lambda params, *, stop: returned
    with pytest.raises(config.ConfigError) as caught:
        evaluation._checked(function, "mine")({}, stop=bool)
    assert str(caught.value).startswith(f"evaluation.evaluators=mine: {line}")


def test_numbers_of_numpy_and_jax_are_numbers():
    found = {"a": jnp.float32(3), "b": np.int64(2), "count": 5}
    found = evaluation._checked(lambda params, *, stop: found, "mine")({}, stop=bool)
    assert found == {"a": 3.0, "b": 2.0, "count": 5}
    assert {type(value) for value in found.values()} == {float, int}


class Logger:
    write = close = broken


def test_a_logger_that_fails_is_one_line(tmp_path):
    registered("logger", Logger())
    loggers = config.build({"logging": {"loggers": "mine"}}).logging.loggers
    made = logs.Metrics(tmp_path, tensorboard=False, loggers=loggers)
    for function in (lambda: made.write(1, {"a": 1.0}), made.close):
        with pytest.raises(config.ConfigError) as caught:
            function()
        assert str(caught.value).startswith(f"logging.loggers=mine: {BROKEN}")
    registered("logger", None)
    with pytest.raises(config.ConfigError, match="mine: must have write"):
        logs.Metrics(tmp_path, tensorboard=False, loggers=loggers)


def test_the_line_of_a_plug_in_beside_the_package_is_named():
    file = f"{components.PACKAGE.rstrip('/')}_mine.py"
    with pytest.raises(config.ConfigError) as caught, components.calling("loss.name", "mine"):
        exec(compile("\nraise KeyError('x')", file, "exec"))
    assert str(caught.value) == f"loss.name=mine: KeyError: 'x' ({file}:2)"


def test_the_errors_of_a_full_disk_and_of_devices_stay():
    class JaxRuntimeError(RuntimeError):
        pass

    for error in (OSError(28, "full"), JaxRuntimeError("memory"), MemoryError()):
        with pytest.raises(type(error)), components.calling("loss.name", "mine"):
            raise error
