"""The scaling table against a hand computation, and the recorded programs on four slices."""

import dataclasses
import json
import pathlib

import pytest

from preflight_reports import create_report
from vit_jax.preflight import batch, formatting

RECORDED = pathlib.Path(__file__).parents[2] / "docs" / "records" / "preflight-scaling.jsonl"


@pytest.fixture(scope="module")
def reports():
    found = batch.read_reports(RECORDED).values()
    return {(one.name.split("/")[1], one.topology): one for one in found}


def test_the_bound_by_hand(reports):
    one = reports["ViT-B_32-jft-7ep", "v3-512"]  # 256 chips
    found = formatting.bound(one, 0.4)
    sent = 2 * 20028004 + 211072512 + 228418560  # reduced, gathered, scattered
    assert found.links == pytest.approx(sent * 255 / 256 / 328e9)
    assert found.arithmetic == pytest.approx(one.model_flops / (0.4 * 61.5e12))
    after, _, together = found.efficiency
    assert after == pytest.approx(found.arithmetic / (found.arithmetic + found.links))
    assert together == 1.0  # the links are faster than the arithmetic


def test_what_the_schedule_hides_by_hand(reports):
    one = reports["ViT-B_32-jft-7ep", "v3-512"]
    asynchronous = [
        {"kind": "all-gather", "bytes": 10**8, "count": 1, "beside": 0.5},  # longer than the links
        {"kind": "all-reduce", "bytes": 10**8, "count": 2, "beside": 1e-3},  # shorter
    ]
    found = formatting.bound(dataclasses.replace(one, asynchronous=asynchronous), 0.4)
    assert found.hidden == pytest.approx(1e8 * 255 / 256 / 328e9 + 2 * 1e-3 * found.arithmetic)
    before, scheduled, _ = found.efficiency
    assert scheduled == pytest.approx(
        found.arithmetic / (found.arithmetic + found.links - found.hidden)
    )
    assert scheduled > before
    alone = formatting.bound(dataclasses.replace(one, asynchronous=[]), 0.4)
    assert alone.efficiency[1] == alone.efficiency[0]
    # Reports that were recorded without it have no such column.
    assert formatting.bound(dataclasses.replace(one, asynchronous=None), 0.4).efficiency[1] is None


def test_the_page_shows_them(reports):
    text = (RECORDED.parents[1] / "preflight.md").read_text()
    for (name, where), one in reports.items():
        found = formatting.bound(one, 0.4)
        before, scheduled, _ = found.efficiency
        label = name.split("-jft")[0].replace("_", "/")
        assert f"| {label} | {where} | " in text
        assert f" {one.sent / 1e9:.3f} | {found.links * 1e3:.2f} | " in text
        assert f"| {before:.1%} | {scheduled:.1%} |".replace("%", " %") in text


def test_the_table_has_a_row_for_each_report(reports):
    lines = formatting.scaling_table(reports.values(), 0.4)
    assert len(lines) == 2 + len(reports) == 2 + len(RECORDED.read_text().splitlines())
    assert {line.count("|") for line in lines} == {len(formatting.SCALING) + 1}
    assert json.loads(RECORDED.read_text().splitlines()[0])["report"]["name"] in lines[2]


def test_a_report_says_what_binds_and_what_does_not_fit():
    def said(**changes):
        return dict(formatting.lines(create_report(**changes)))

    assert said(bytes_accessed=1e9)["roofline"] == (
        "at least 150.0 ms, by compute (compute 150.0, memory 100.0, links 20.0 ms)"
    )
    assert said()["roofline"].startswith("at least 200.0 ms, by memory (")
    key = "memory per device"
    assert said()[key] == "fits: 1 GiB of 16 GiB"
    large = said(fits=False, peak=17 * 2**30)
    assert large[key] == "does not fit: 17 GiB, 1 GiB too much"
    none = said(fits=False, peak=None, exceeds="Ran out of memory")
    assert none[key] == "does not fit of 16 GiB: Ran out of memory"


def test_a_chip_of_unknown_links_has_a_row_of_the_same_columns():
    for links in (1e11, None):
        (row,) = formatting.scaling_rows([create_report(links=links)])
        assert len(row) == len(formatting.SCALING)
