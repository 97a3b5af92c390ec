"""A model from outside the package: what needs only its network works, the rest is one line."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import runs
from commands import error_line
from vit_jax import cli, config, models, preflight, train_loop
from vit_jax.config import components
from vit_jax.inference import export, loaded_model
from vit_jax.inference.inspect import inputs, measures, saliency, view
from vit_jax.training import build


class ProbeNetwork(nnx.Module):
    """The mean of the image, one hidden layer, and a linear head."""

    def __init__(self, features, hidden, classes, *, rngs):
        self.hidden = nnx.Linear(features, hidden, rngs=rngs)
        self.head = nnx.Linear(hidden, classes, rngs=rngs)

    def __call__(self, images, *, key=None, capture=False):
        x = jax.nn.relu(self.hidden(images.reshape(images.shape[0], -1).astype(jnp.float32)))
        return self.head(x), {"pre_logits": x}


@components.register("model", "probe_of_tests")
class Probe(models.Architecture):
    def __init__(self, hidden: int = 8):
        self.hidden = hidden

    def network(self, model, image_size, channels, dtype, masked, *, rngs):
        features = image_size[0] * image_size[1] * channels
        return ProbeNetwork(features, self.hidden, model.num_classes, rngs=rngs)


@components.register("model", "counted_of_tests")
class Counted(Probe):
    def flops(self, model, image_size, channels, masked):
        return 2 * self.hidden * (image_size[0] * image_size[1] * channels + model.num_classes)


def configure(architecture="probe_of_tests", duration="3 steps", **arguments):
    arguments = arguments or {"hidden": 6} if "probe" in architecture else arguments
    return runs.configure(
        model={"architecture": architecture, "dropout": 0.0, "num_classes": 10} | arguments,
        train={"duration": duration, "ema": None},
        schedule={"warmup": 0},
    )


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plugin") / "run"
    assert train_loop.train(configure(), folder).steps == 3
    return folder


def test_a_compute_type_of_layers_that_a_model_lacks_is_refused():
    for model in (configure().model, config.Model(architecture="resnet", variant="R50x1")):
        model = dataclasses.replace(model, num_classes=10)
        made = models.create(model, image_size=(32, 32), dtype="bfloat16_matmul")
        with pytest.raises(config.ConfigError) as raised:
            made.shapes()
        assert str(raised.value) == (
            f"model.dtype=bfloat16_matmul: model.architecture={model.architecture} has no dense "
            "layers that multiply so; set float32 or bfloat16"
        )


def test_arguments_reach_the_model():
    model = models.create(configure().model, image_size=(8, 8), channels=1)
    assert model.shapes()["hidden"]["kernel"].shape == (64, 6)


@pytest.mark.slow
def test_uncounted_flops_are_left_out(workdir, tmp_path, caplog):
    uncounted = models.create(configure().model, image_size=(8, 8), channels=1)
    assert uncounted.flops is None
    assert not any("mfu" in line for line in (workdir / "metrics.jsonl").read_text().splitlines())
    counted = models.create(configure("counted_of_tests").model, image_size=(8, 8), channels=1)
    assert counted.flops == 2 * 8 * (64 + 10)
    with caplog.at_level("INFO"):
        train_loop.train(configure(), tmp_path / "run")
    lines = [r.getMessage() for r in caplog.records if "FLOPs" in r.getMessage()]
    assert lines == ["model.architecture=probe_of_tests: counts no FLOPs; no MFU"]


@pytest.mark.slow
@pytest.mark.parametrize("figure", ["filters", "rollout"])
def test_figures_it_does_not_have_are_one_line(figure, workdir, capsys, tmp_path):
    arguments = [f"--checkpoint={workdir}", f"--output={tmp_path / 'out'}"]
    assert cli.main(["inspect", figure, *arguments]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert "model.architecture=probe_of_tests declares no" in said
    assert not (tmp_path / "out").exists()


class MappedNetwork(nnx.Module):
    """Tokens of a convolution, even attention between them, and a linear head."""

    def __init__(self, channels, classes, *, rngs):
        self.patches = nnx.Conv(channels, 8, (2, 2), strides=2, rngs=rngs)
        self.head = nnx.Linear(8, classes, rngs=rngs)

    def __call__(self, images, *, key=None, capture=False):
        tokens = jax.nn.gelu(self.patches(images)).reshape(images.shape[0], -1, 8)
        out = {"pre_logits": tokens.mean(axis=1), "tokens": tokens}
        if capture:
            out["attention"] = jnp.full((2, images.shape[0], 2, 16, 16), 1 / 16)
        return self.head(out["pre_logits"]), out

    def position_tables(self):
        return jnp.eye(16)[None]


@components.register("model", "mapped_of_tests")
class Mapped(models.Architecture):
    def grid(self, model, image_size):
        return image_size[0] // 2, image_size[1] // 2

    def lacks(self, model, figure):
        return None

    def filters(self, model):
        return "patches", "kernel"

    def last_map(self, model):
        return ("patches",)

    def network(self, model, image_size, channels, dtype, masked, *, rngs):
        return MappedNetwork(channels, model.num_classes, rngs=rngs)


@pytest.fixture
def mapped():
    """A model with every figure, whose network is no ViT; shapes are cached by its config."""
    classes = tuple("0123456789")
    cfg = configure("mapped_of_tests", pooling="gap", depth=2, heads=2, width=8)
    params = build.create_model(cfg).init(jax.random.key(0))
    return loaded_model.LoadedModel(config=cfg, params=params, classes=classes, kind="run")


VIEWS = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 1), np.uint8)


def explain(opened):
    return saliency.explain(opened, VIEWS[0], steps=2)


def stats(opened):
    pictures = inputs.Pictures(names=["a", "b"], views=VIEWS, photos=VIEWS)
    return measures.attention_stats(opened, pictures, maps=1)


def test_a_network_of_ones_own_has_the_figures_that_it_declares(mapped):
    assert measures.filter_kernel(mapped).shape == (2, 2, 1, 8)
    assert measures.position_tables(mapped).shape == (1, 4, 4, 16)
    assert measures.patch_features(mapped, VIEWS).shape == (2, 4, 4, 8)
    assert stats(mapped).rollout.shape == (2, 4, 4)
    # Only in a ViT is it known where attention can be multiplied.
    assert set(explain(mapped).maps) == {"Grad-CAM", "integrated gradients", "rollout"}
    fields, _ = view.Viewer(mapped).examine(("a", VIEWS[0], None))
    assert "maps" not in fields


def features(opened):
    return measures.patch_features(opened, VIEWS)


def without(self, images, *, key=None, capture=False):
    x = jnp.mean(self.patches(images), axis=(1, 2))
    return self.head(x), {"pre_logits": x}


@pytest.mark.parametrize(
    ("parent", "method", "function", "measure", "line"),
    [
        (Mapped, "filters", lambda *_: ("patches", "x"), measures.filter_kernel,
         "its filters are patches/x; must be the path of an array"),
        (Mapped, "filters", lambda *_: ("head", "kernel"), measures.filter_kernel,
         "its filters are head/kernel; must be the path of an array"),
        (Mapped, "last_map", lambda *_: ("x",), explain, "its last_map is x; must be the path"),
        (Mapped, "last_map", lambda *_: (), explain, "its last_map is ; must be the path"),
        (Mapped, "last_map", lambda *_: ("head",), explain,
         "its last_map, head, is (1, 10); must be (B, h, w, F)"),
        (MappedNetwork, "position_tables", lambda self: {}["x"], measures.position_tables,
         "KeyError: 'x' ("),
        (MappedNetwork, "position_tables", lambda self: jnp.zeros((1, 5, 4)),
         measures.position_tables, "its position_tables must be (any, 16, any); found (1, 5, 4)"),
        (MappedNetwork, "__call__", without, features,
         "its tokens must be (1, 16, any); found none"),
        (MappedNetwork, "__call__", without, stats,
         "its attention must be (2, 1, 2, 16, 16); found none"),
        (MappedNetwork, "__call__", without, view.Viewer,
         "its attention must be (2, 1, 2, 16, 16); found none"),
    ],
)  # fmt: skip
def test_a_figure_that_fails_is_one_line(
    parent, method, function, measure, line, mapped, monkeypatch
):
    jax.clear_caches()  # of programs that were traced with the methods as they are
    monkeypatch.setattr(parent, method, function)
    said = error_line(config.ConfigError, lambda: measure(mapped))
    assert said.startswith(f"model.architecture=mapped_of_tests: {line}")


def test_export_writes_it(workdir, tmp_path):
    path = tmp_path / "probe.stablehlo"
    arguments = ["--platforms=cpu", "--to=stablehlo", f"--output={path}"]
    assert cli.main(["export", f"--checkpoint={workdir}", *arguments]) == 0
    from jax import export as jax_export

    program = jax_export.deserialize(bytearray(path.read_bytes()))
    given = program.call(np.zeros((2, 8, 8, 1), np.uint8))
    assert given["logits"].shape == (2, 10)


def test_an_export_rounds_only_what_the_network_reads_rounded():
    """Whatever its parameters are called."""
    for model, stored in ((configure().model, "float32"), (config.Model(), "bfloat16")):
        assert export._type("encoder/mlp/fc1/kernel", "bfloat16", model) == stored


def test_preflight_measures_it():
    report = preflight.measure(
        preflight.prepare_config(configure()), preflight.open_slice("cpu"), examples=200
    )
    assert report.model_flops is None
    assert report.run(0.5) is None
    lines = dict(preflight.lines(report, 0.5))
    assert lines["FLOPs per step and device"].endswith("not counted of the model")
