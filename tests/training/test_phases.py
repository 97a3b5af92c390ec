"""First parts of a run with training views of their own: `data.phases`."""

import dataclasses

import jax
import numpy as np
import pytest

import runs
from stepping import BATCH, configure
from vit_jax import cli, config
from vit_jax.data import pipeline, sources
from vit_jax.training import build, run_config

SMALL = {"until": "3 steps", "image_size": 4, "crop_area": (0.5, 1.0), "randaugment": (1, 5)}
PLAIN = {"until": "5 steps", "image_size": (4, 8)}
PHASES = {"small": SMALL, "flat": PLAIN}
BY_NAME = dict(sorted(PHASES.items()))  # as in a ConfigDict


def built(**data):
    cfg = run_config.complete(configure(data={"channels": 3, "train_crop": "inception"} | data))
    return build.build(cfg, 1000, devices=jax.devices()[:1])


def taken(data, views, start=0, stop=8):
    """Batches of digits from a step on."""
    source = sources.open_source(data, "train[:40]")
    with pipeline.batches(source, (), data, views=views, seed=3, batch_size=6, rows=range(6),
                          train=True, start_step=start, stop_step=stop) as made:  # fmt: skip
        return list(made)


@pytest.mark.parametrize("given", [PHASES, BY_NAME], ids=["by_end", "by_name"])
def test_each_phase_has_the_batches_of_a_run_of_its_own_options(given):
    trainer = built(phases=given)
    data, views = trainer.cfg.data, trainer.objective.views
    whole = taken(data, views)
    plain = dataclasses.replace(data, phases=())
    first = dataclasses.replace(plain, image_size=(4, 4), crop_area=(0.5, 1.0), randaugment=(1, 5))
    second = dataclasses.replace(plain, image_size=(4, 8))
    for steps, own in ((range(3), first), (range(3, 5), second), (range(5, 8), plain)):
        alone = taken(own, (pipeline.View("image", own),))
        for step in steps:
            for name, array in alone[step].items():
                np.testing.assert_array_equal(array, whole[step][name])
    for step, batch in enumerate(taken(data, views, start=4), 4):
        np.testing.assert_array_equal(batch["image"], whole[step]["image"])


def test_randaugment_of_a_phase_can_be_off():
    data = config.Data(randaugment=(2, 10))
    assert data.in_phase(config.Phase(name="a", randaugment=())).randaugment is None
    assert data.in_phase(config.Phase(name="a", image_size=(8, 8))).randaugment == (2, 10)


def test_costs_are_the_mean_over_the_run():
    """Of ten steps, three are of one patch, two of two, and five of four; one program for each."""
    trainer = built(phases=BY_NAME)
    costs = {size: built(image_size=size).flops_per_image for size in ((4, 4), (4, 8), (8, 8))}
    expected = 0.3 * costs[4, 4] + 0.2 * costs[4, 8] + 0.5 * costs[8, 8]
    np.testing.assert_allclose(trainer.flops_per_image, expected, rtol=1e-12)
    small, flat, last = costs.values()
    assert [trainer.flops_at(step) for step in (1, 3, 4, 5, 6, 10)] == [
        small, small, flat, flat, last, last
    ]  # fmt: skip
    left = [(1, (2 * small + 2 * flat + 5 * last) / small), (4, (flat + 5 * last) / flat), (9, 1)]
    for step, equal in left:
        np.testing.assert_allclose(trainer.steps_left(step), equal, rtol=1e-12)
    assert [built().steps_left(step) for step in (1, 10)] == [9, 0]
    shapes = [views[0].shape for views, _ in trainer.objective.variants]
    assert shapes == [(8, 8, 3), (4, 8, 3), (4, 4, 3)]
    assert trainer.batch_shapes["image"].shape == (BATCH, 8, 8, 3)
    row = (
        "small until=3 steps image_size=4,4 crop_area=0.5,1 randaugment=1,5, "
        "flat until=5 steps image_size=4,8, then image_size=8,8"
    )
    assert ("views", row) in build.describe_run(trainer.cfg)


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
def test_a_run_stopped_in_every_phase_goes_on_bit_for_bit(tmp_path, monkeypatch):
    """With learned positions, resampled for each size, CutMix and mixup, and an average."""
    phases = {
        "a": {"until": "4 steps", "image_size": 4}, "b": {"until": "8 steps", "image_size": (4, 8)},
    }  # fmt: skip
    cfg = runs.configure(
        model={"position": "learned_2d"},
        data={"phases": phases, "image_size": 8},
        train={"duration": "12 steps", "mixup": 0.2, "cutmix": 1.0, "ema": 0.9},
        evaluation={"every": 12},
    )
    assert len(runs.trace(runs.assert_resumes(monkeypatch, cfg, tmp_path, 3, 4, 6, 9))) == 12


SMALLER = "--config.data.phases.a.image_size=4"
UNTIL = "--config.data.phases.a.until=20 steps"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([SMALLER], "data.phases.a.until=0 steps: must be more than 0"),
        ([UNTIL], "data.phases.a: its views are those of the rest"),
        ([UNTIL, "--config.data.phases.a.image_size=5"],
         "data.phases.a.image_size=5,5: height 5 is not a multiple of model.patch_size 2"),
        pytest.param(
            [UNTIL, SMALLER, "--config.train.duration=20", "--config.schedule.warmup=0"],
            "data.phases.a.until=20 steps: 20 steps, but the run has 20; at most 19 steps; set "
            "data.phases.a.until='19 steps' or less, or raise train.duration",
            id="as long as the run"),
        ([UNTIL, SMALLER, "--config.data.phases.b.until=20", "--config.data.phases.b.image_size=2"],
         "data.phases.b.until=20 steps: 20 steps, where data.phases.a ends"),
        ([UNTIL, "--config.data.phases.a.crop_area=0.5,1"],
         "data.phases.a.crop_area=0.5,1: is not read with data.train_crop=resize"),
        ([UNTIL, "--config.data.train_crop=inception", "--config.data.phases.a.crop_area=1,0.5"],
         "data.phases.a.crop_area=1,0.5: the first must not exceed the second"),
        ([UNTIL, "--config.data.phases.a.randaugment=2"],
         "data.phases.a.randaugment=2: needs two numbers"),
        ([UNTIL, SMALLER, "--config.data.train_crop=random", "--config.data.resize_to=9"],
         "data.resize_to=9: is one size before the crop, and data.phases.a has another"),
        ([UNTIL, SMALLER, "--config.objective.name=mae"], "objective.name=mae: has no data.phases"),
        ([UNTIL, SMALLER, "--config.data.aspect=native"], "data.aspect=native: has no data.phases"),
        ([UNTIL, SMALLER, "--config.model.position=relative"],
         "model.architecture=vit: encoder/attention/offsets/table is of one image size"),
    ],
    ids=lambda value: None if isinstance(value, str) else value[-1].removeprefix("--config."),
)  # fmt: skip
def test_mistakes_are_one_line(flags, said, capsys):
    assert cli.main(["train", "digits", "--dry-run", *flags]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"vit_jax: {said}")
    assert error.count("\n") == 1
