import json
import math
import pathlib

import numpy as np
import pytest

import plugins
import vit_jax
from vit_jax import config
from vit_jax.training import schedules

# big_vision's schedule at steps 0, 25, ..., 1000 of 1000: base 1e-3, warm-up 100.
REFERENCE = json.loads((pathlib.Path(__file__).parent / "schedules.json").read_text())


@pytest.mark.parametrize(("decay", "end"), [("linear", 1e-5), ("cosine", 0.0)])
def test_matches_reference(decay, end):
    schedule = schedules.create_schedule(
        config.Schedule(name=decay, end=end), lr=1e-3, steps=1000, warmup=100
    )
    ours = [float(schedule(step)) for step in range(0, 1001, 25)]
    np.testing.assert_allclose(ours, REFERENCE[f"big_vision_{decay}"], rtol=3e-6, atol=1e-10)


def test_rsqrt_and_constant_by_hand():
    rsqrt = schedules.create_schedule(
        config.Schedule(name="rsqrt", timescale=50.0), lr=0.1, steps=1000, warmup=10
    )
    for step in (10, 60, 110, 999):
        assert float(rsqrt(step)) == pytest.approx(0.1 / math.sqrt(1 + (step - 10) / 50), rel=1e-6)
    assert float(rsqrt(5)) == pytest.approx(0.05, rel=1e-6)
    constant = schedules.create_schedule(
        config.Schedule(name="constant"), lr=0.1, steps=10, warmup=0
    )
    assert [float(constant(step)) for step in (0, 5, 10)] == pytest.approx([0.1] * 3)


def test_cooldown_falls_to_zero_and_leaves_the_steps_before_as_they_are():
    cooled = schedules.create_schedule(
        config.Schedule(name="constant"), lr=0.1, steps=100, warmup=10, cooldown=20
    )
    ours = [float(cooled(step)) for step in (0, 5, 10, 79, 80, 85, 90, 99, 100)]
    expected = [0, 0.05, 0.1, 0.1, 0.1, 0.075, 0.05, 0.005, 0.0]
    np.testing.assert_allclose(ours, expected, rtol=1e-6)
    decay = config.Schedule(name="rsqrt", timescale=50.0)
    rsqrt = schedules.create_schedule(decay, lr=0.1, steps=100, warmup=10, cooldown=20)
    for step, left in ((79, 1.0), (95, 0.25)):
        expected = left * 0.1 / math.sqrt(1 + (step - 10) / 50)
        assert float(rsqrt(step)) == pytest.approx(expected, rel=1e-6)


def test_no_warmup_starts_at_the_peak_and_ends_at_the_end():
    cosine = schedules.create_schedule(
        config.Schedule(name="cosine", end=1e-4), lr=1e-3, steps=100, warmup=0
    )
    assert float(cosine(0)) == pytest.approx(1e-3, rel=1e-6)
    assert float(cosine(100)) == pytest.approx(1e-4, rel=1e-6)


def test_step_divides_by_ten_at_shares_of_the_whole_run():
    schedule = schedules.create_schedule(
        config.Schedule(name="step", drops=(0.3, 0.6, 0.9)), lr=0.48, steps=1000, warmup=100
    )
    ours = [float(schedule(step)) for step in (0, 50, 100, 299, 300, 599, 600, 899, 900, 999)]
    expected = [0, 0.24, 0.48, 0.48, 0.048, 0.048, 0.0048, 0.0048, 0.00048, 0.00048]
    np.testing.assert_allclose(ours, expected, rtol=1e-6)
    never = schedules.create_schedule(
        config.Schedule(name="step", drops=()), lr=0.48, steps=9, warmup=0
    )
    assert float(never(8)) == pytest.approx(0.48)


def test_a_registered_schedule_is_told_the_run():
    with plugins.forgotten():

        @vit_jax.register("schedule", "told")
        def told(*, lr, steps, warmup):
            return lambda step: lr * (1 + step) / (steps + warmup)

        schedule = schedules.create_schedule(
            config.Schedule(name="told"), lr=0.5, steps=90, warmup=10
        )
    assert [float(schedule(step)) for step in (0, 99)] == pytest.approx([0.005, 0.5])


@pytest.mark.parametrize(
    "made", [np.float32(0.1), lambda step: [step], lambda step: step.reshape(1)]
)
def test_a_registered_schedule_returns_a_rate(made):
    with plugins.forgotten():
        vit_jax.register("schedule", "wrong")(lambda *, lr, steps, warmup: made)
        message = "schedule.name=wrong: must return a function of the step"
        with pytest.raises(config.ConfigError, match=message):
            schedules.create_schedule(config.Schedule(name="wrong"), lr=0.5, steps=90, warmup=10)
