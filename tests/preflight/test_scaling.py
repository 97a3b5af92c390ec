"""The scaling table against a hand computation, and the recorded programs on four slices."""

import dataclasses
import json
import pathlib

import pytest

from vit_jax.preflight import batch, scaling

RECORDED = pathlib.Path(__file__).parents[2] / "docs" / "records" / "preflight-scaling.jsonl"


@pytest.fixture(scope="module")
def reports():
    found = batch.read(RECORDED).values()
    return {(one.name.split("/")[1], one.topology): one for one in found}


def test_the_bound_by_hand(reports):
    one = reports["ViT-B_32-jft-7ep", "v3-128"]  # 64 chips
    found = scaling.bound(one, 0.4)
    sent = 2 * 96196708 + 183863808 + 172425216 + 43008  # reduced, gathered, scattered, moved
    assert found.links == pytest.approx(sent * 63 / 64 / 328e9)
    assert found.arithmetic == pytest.approx(one.model_flops / (0.4 * 61.5e12))
    after, _, together = found.efficiency
    assert after == pytest.approx(found.arithmetic / (found.arithmetic + found.links))
    assert together == 1.0  # the links are faster than the arithmetic


def test_what_the_schedule_hides_by_hand(reports):
    one = reports["ViT-B_32-jft-7ep", "v3-128"]
    asynchronous = [
        {"kind": "all-gather", "bytes": 10**8, "count": 1, "beside": 0.5},  # longer than the links
        {"kind": "all-reduce", "bytes": 10**8, "count": 2, "beside": 1e-3},  # shorter
    ]
    found = scaling.bound(dataclasses.replace(one, asynchronous=asynchronous), 0.4)
    assert found.hidden == pytest.approx(1e8 * 63 / 64 / 328e9 + 2 * 1e-3 * found.arithmetic)
    before, scheduled, _ = found.efficiency
    assert scheduled == pytest.approx(
        found.arithmetic / (found.arithmetic + found.links - found.hidden)
    )
    assert scheduled > before
    alone = scaling.bound(dataclasses.replace(one, asynchronous=[]), 0.4)
    assert alone.efficiency[1] == alone.efficiency[0]
    # Reports that were recorded without it have no such column.
    assert scaling.bound(dataclasses.replace(one, asynchronous=None), 0.4).efficiency[1] is None


def test_what_is_sent_does_not_grow_with_the_slice(reports):
    """The gradients and weights of a step are as many bytes on 32 cores as on 2,048."""
    for name in ("ViT-B_32-jft-7ep", "ViT-B_16-jft-7ep"):
        sizes = {one.sent for key, one in reports.items() if key[0] == name}
        assert max(sizes) <= 1.15 * min(sizes)  # the larger a ring, the fewer arrays divide by it
        shares = [scaling.bound(reports[name, where], 0.4).efficiency[0]
                  for where in ("v3-32", "v3-128", "v3-512", "v3-2048")]  # fmt: skip
        assert shares == sorted(shares, reverse=True)


def test_the_table_has_a_row_for_each_report(reports):
    lines = scaling.markdown(reports.values(), 0.4)
    assert len(lines) == 2 + len(reports) == 2 + len(RECORDED.read_text().splitlines())
    assert {line.count("|") for line in lines} == {len(scaling.HEADER) + 1}
    assert json.loads(RECORDED.read_text().splitlines()[0])["report"]["name"] in lines[2]
