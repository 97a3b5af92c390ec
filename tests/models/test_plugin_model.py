"""A model from outside the package: what needs only its network works, the rest is one line."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import runs
from vit_jax import cli, config, models, preflight, train_loop
from vit_jax.config import components


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


def test_all_figures_leave_out_each(workdir, caplog, tmp_path):
    with caplog.at_level("INFO"):
        cli.main(["inspect", "all", f"--checkpoint={workdir}", f"--output={tmp_path}"])
    assert not list(tmp_path.iterdir())


def test_export_writes_it(workdir, tmp_path):
    path = tmp_path / "probe.stablehlo"
    arguments = ["--platforms=cpu", "--to=stablehlo", f"--output={path}"]
    assert cli.main(["export", f"--checkpoint={workdir}", *arguments]) == 0
    from jax import export

    program = export.deserialize(bytearray(path.read_bytes()))
    given = program.call(np.zeros((2, 8, 8, 1), np.uint8))
    assert given["logits"].shape == (2, 10)


def test_preflight_measures_it():
    report = preflight.measure(
        preflight.prepare_config(configure()), preflight.open_slice("cpu"), examples=200
    )
    assert report.model_flops is None
    assert report.run(0.5) is None
    lines = dict(preflight.lines(report, 0.5))
    assert lines["FLOPs per step and device"].endswith("not counted of the model")


def test_masked_prediction_is_refused():
    with pytest.raises(config.ConfigError, match="has no patches to mask"):
        runs.configure(
            model={"architecture": "probe_of_tests", "dropout": 0.0},
            objective={"name": "masked_patches", "target": "color"},
            checkpoint={"best": "auto"},
        )
