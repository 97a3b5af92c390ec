"""How turns are taken, compared, shown and kept; no time is asserted."""

import pytest

from vit_jax.benchmarks import turns

COMPARED = turns.Compared(
    what="save",
    unit="MB",
    amount=100.0,
    results=[
        turns.Turns(name="vit_jax", seconds=[1.0, 2.0, 4.0], cpu=[0.5, 0.5, 0.7]),
        turns.Turns(name="orbax", seconds=[2.0, 2.0, 6.0], cpu=[1.0, 2.0, 3.0]),
    ],
)


def test_programs_take_turns_in_alternating_order_between_what_is_not_timed():
    said = []
    found = turns.take(
        {name: lambda name=name: said.append(name) for name in "ab"},
        rounds=3,
        before=lambda name: said.append(f"({name}"),
        after=lambda name: said.append(f"{name})"),
    )
    assert "".join(said) == "(aaa)(bbb)(bbb)(aaa)(aaa)(bbb)"
    assert [one.name for one in found] == ["a", "b"]
    assert all(len(one.seconds) == len(one.cpu) == 3 for one in found)


def test_ratios_are_those_of_each_turn():
    assert turns.ratios(*COMPARED.results) == (1.5, 1.0, 2.0)
    with pytest.raises(ValueError, match="shorter"):
        turns.ratios(COMPARED.results[0], turns.Turns(name="b", seconds=[1.0], cpu=[1.0]))


def test_the_table_shows_rates_and_ratios():
    header, rows = turns.table([COMPARED])
    ours, theirs = (dict(zip(header, row, strict=True)) for row in rows)
    assert ours["per second"] == "50 MB"
    assert ours["CPU seconds"] == "0.500"
    assert ours["vit_jax's speed over it"] == "-"
    assert theirs["per second"] == "50 MB"
    assert theirs["vit_jax's speed over it"] == "1.50x (1.00 to 2.00)"


def test_a_record_has_every_turn_and_its_origin():
    line = turns.record([COMPARED], {"model": "ViT-S/16"}, "vit_jax bench checkpoint", ("optax",))
    assert line["command"] == "vit_jax bench checkpoint"
    assert line["work"] == {"model": "ViT-S/16"}
    assert line["device"] == "cpu"
    assert line["versions"].keys() == {"jax", "jaxlib", "optax", "vit_jax"}
    (one,) = line["compared"]
    assert (one["what"], one["unit"], one["amount"]) == ("save", "MB", 100.0)
    ours, theirs = one["results"]
    assert "ratio" not in ours
    assert theirs["seconds"] == [2.0, 2.0, 6.0]
    assert theirs["ratio"] == (1.5, 1.0, 2.0)
