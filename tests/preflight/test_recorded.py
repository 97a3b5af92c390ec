"""The results in docs/preflight.md are those of the configs."""

import dataclasses
import json
import pathlib

import pytest

from vit_jax import config, preflight
from vit_jax.config import catalog
from vit_jax.preflight import batch, program

FILE = pathlib.Path(__file__).parents[2] / "docs" / "records" / "preflight-table3.jsonl"


def test_recorded_results_belong_to_the_configs_of_their_names():
    known = batch.read_reports(FILE)
    assert known
    for key, report in known.items():
        cfg = preflight.prepare_config(config.build(catalog.load_values(report.name)))
        assert key == json.dumps([program.same_program(cfg), report.topology, True, True])
        assert report.fits
        assert report.global_batch == 4096
        assert report.memory is None or report.peak <= report.memory


def test_a_price_is_of_chips_and_hours():
    one = next(
        report for report in batch.read_reports(FILE).values() if report.topology == "v3-128"
    )
    hours = one.steps * one.model_flops / (0.4 * 123e12 / 2) / 3600
    cost = 1.5 * 64 * hours  # two cores a chip
    assert preflight.as_dict(one, 0.4, 1.5)["whole_run"]["cost"] == pytest.approx(cost)
    line = dict(preflight.lines(one, 0.4, 1.5))["cost"]
    assert line == f"{cost:,.0f} at 1.5 per chip and hour"
    assert "cost" not in dict(preflight.lines(one, 0.4))
    (row,) = (text for text in preflight.markdown([one], 0.4, {}, 1.5) if one.name in text)
    assert f"; {cost:,.0f} |" in row


def test_the_page_shows_them():
    text = (FILE.parents[1] / "preflight.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| pretrain/")]
    assert len(rows) == 27
    assert all(cell.strip() for row in rows for cell in row.split("|")[1:8])  # the name, 6 slices
    for report in batch.read_reports(FILE).values():
        (row,) = (line for line in rows if line.startswith(f"| {report.name} |"))
        assert f"; {report.peak / 2**30:.1f}; " in row


def test_a_share_of_peak_is_that_of_public_runs_unless_one_is_given():
    one = next(iter(batch.read_reports(FILE).values()))
    shares = {384: 0.26, 500: 0.26, 768: 0.30, 1024: 0.41, 1280: 0.32, 1408: 0.32, None: 0.30}
    for width, share in shares.items():
        report = dataclasses.replace(one, width=width)
        assert report.expected_mfu[0] == share
        assert report.run(None) == report.run(share)
        assert preflight.as_dict(report)["mfu"] == share
    lines = dict(preflight.lines(dataclasses.replace(one, width=768)))
    assert lines["at 30% of peak"].endswith(" (public runs of ViT-B/16: 27 to 34 %)")
    assert "(" not in dict(preflight.lines(one, 0.4))["at 40% of peak"]


def test_an_input_that_would_bind_is_said():
    one = next(r for r in batch.read_reports(FILE).values() if r.topology == "v6e-16")
    # At 40 % of 918 TFLOP/s; a host has 180 vCPUs for four chips, 1,173 images/s for two.
    rate = 0.4 * 918e12 * one.global_batch / one.devices / one.model_flops
    cpus = 2 * rate / 1173
    assert dict(preflight.lines(one, 0.4))["input"] == (
        f"{rate:,.0f} images/s a chip, about {cpus:.1f} of its 45 vCPUs for JPEGs at 224 px"
    )
    tiny = dataclasses.replace(one, model_flops=one.model_flops * cpus / 45.1)
    assert dict(preflight.lines(tiny, 0.4))["input"].endswith(
        "; the input would bind: expect a longer run"
    )
    just = dataclasses.replace(one, model_flops=one.model_flops * cpus / 44.9)
    assert "bind" not in dict(preflight.lines(just, 0.4))["input"]
    assert "input" not in dict(preflight.lines(dataclasses.replace(one, topology="cpu"), 0.4))
