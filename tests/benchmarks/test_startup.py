"""What `bench startup` starts, and that each command is measured beside its peer."""

import pytest

from vit_jax.benchmarks import startup, turns


@pytest.mark.slow
def test_commands_are_measured_beside_their_peers(monkeypatch):
    """Two of the seven, with the imports of a Python that has no timm as its script."""
    commands = startup.commands
    monkeypatch.setattr(startup, "TIMM_LIST", "print('a list')")
    monkeypatch.setattr(startup.train, "Peer", lambda **_: None)

    def two(folder, peer):
        found = commands(folder, peer)
        assert len(found) == 7
        assert all(next(iter(programs)) == turns.OURS for programs in found.values())
        assert all(len(programs) > 1 for programs in found.values())
        return {work: found[work] for work in ("evaluate digits", "list")}

    monkeypatch.setattr(startup, "commands", two)
    said = []
    evaluate, listed = startup.measure("python3", rounds=1, say=said.append)
    assert said == ["evaluate digits", "list"]
    assert [one.name for one in evaluate.results] == [turns.OURS, "import jax, flax"]
    assert [one.name for one in listed.results] == [turns.OURS, "timm", "python (bare)"]
    for one in (*evaluate.results, *listed.results):
        assert len(one.seconds) == 1
        assert 5e6 < one.facts["peak"] < 5e9
    ours, floor = evaluate.results
    assert ours.cpu[0] > floor.cpu[0]
    assert ours.facts["peak"] > floor.facts["peak"] > listed.results[-1].facts["peak"]


@pytest.mark.slow
def test_weights_are_read_by_our_reader_as_the_model(tmp_path):
    from vit_jax.inference import loading

    path = tmp_path / "weights.safetensors"
    startup.write_weights(path)
    opened = loading.load(path)
    assert opened.config.model.width == 384
    assert opened.config.data.image_size == startup.SIZE
