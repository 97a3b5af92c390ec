"""The page of records shows what its lines say."""

import json
import pathlib
import statistics

import pytest

RECORDS = pathlib.Path(__file__).parents[2] / "docs" / "records"
PAGE = (RECORDS / "README.md").read_text()


def lines(name):
    found = [json.loads(line) for line in (RECORDS / name).read_text().splitlines()]
    assert found
    for line in found:
        assert line["command"].startswith(f"vit_jax bench {name.removesuffix('.jsonl')}")
        assert line["commit"]
        assert not line["commit"].endswith("+"), "made by code that is not committed"
        assert line["date"]
        assert line["versions"]["vit_jax"]
    return found


def row(what, ours, other, load):
    """Returns a row of the page: a ratio of each turn, and that of all turns' CPU seconds."""
    assert len(ours["seconds"]) == len(other["seconds"]) >= 5
    pairs = [b / a for a, b in zip(ours["seconds"], other["seconds"], strict=True)]
    ratio = (statistics.median(pairs), min(pairs), max(pairs))
    assert other["ratio"] == pytest.approx(ratio)
    cpu = statistics.median(other["cpu"]) / statistics.median(ours["cpu"])
    return "| {} | {} | {:.2f}x ({:.2f} to {:.2f}) | {:.2f}x | {:.0f} |".format(
        what, other["name"], *ratio, cpu, load
    )


@pytest.mark.parametrize("name", ["checkpoint.jsonl", "evaluate.jsonl", "dispatch.jsonl"])
def test_every_comparison_is_on_the_page(name):
    assert f"`{name}`" in PAGE
    for line in lines(name):
        for compared in line["compared"]:
            ours, *others = compared["results"]
            assert ours["name"] == "vit_jax"
            for other in others:
                assert row(compared["what"], ours, other, line["load"]) in PAGE


def test_every_pipeline_is_on_the_page():
    assert "`input.jsonl`" in PAGE
    for line in lines("input.jsonl"):
        augment = line["work"]["randaugment"]
        work = f"RandAugment {augment}" if augment else "no augmentation"
        for ours in (one for one in line["results"] if one["name"] == "vit_jax"):
            (other,) = (
                one
                for one in line["results"]
                if one["name"] == "tf.data" and one["cores"] == ours["cores"]
            )
            pairs = [b / a for a, b in zip(ours["seconds"], other["seconds"], strict=True)]
            assert ours["ratio"] == pytest.approx(
                (statistics.median(pairs), min(pairs), max(pairs))
            )
            cpu = statistics.median(other["cpu"]) / statistics.median(ours["cpu"])
            shown = "| {}, {} | {:.0f} | {:.2f}x ({:.2f} to {:.2f}) | {:.2f}x | {:.0f} |".format(
                work,
                f"{ours['cores']} core{'s' * (ours['cores'] > 1)}",
                1 / statistics.median(ours["seconds"]),
                *ours["ratio"],
                cpu,
                line["load"],
            )
            assert shown in PAGE
