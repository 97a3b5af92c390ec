"""`vit_jax selftest` passes sound devices, and names one that computes something else."""

import itertools
import sys
import types

import jax
import pytest

import bit_flips
import runs
from vit_jax import cli
from vit_jax.training import replay, selftest


@pytest.fixture
def tiny(monkeypatch):
    """A model that compiles in a second."""
    model = {"patch_size": 16, "width": 16, "depth": 1, "mlp_dim": 16, "heads": 2}
    cfg = runs.configure(
        model=model | {"num_classes": 1000, "dtype": "float32"},
        data={"source": "synthetic", "image_size": 32, "channels": 3},
        train={"batch_size": 2, "duration": "100 epochs"},
    )
    monkeypatch.setattr(selftest, "create_config", lambda variant, batch: cfg)


@pytest.mark.slow
def test_sound_devices_agree(tiny, capsys):
    assert cli.main(["selftest", "--model=ViT-Ti/16", "--batch=2"]) == 0
    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith("ViT-Ti/16, 4 steps of 2 images in each round; devices: 8; hosts: ")
    assert last.startswith("2 rounds in ")
    assert last.endswith(" s: no difference")


@pytest.mark.slow
def test_it_goes_on_until_the_time_is_up(tiny, monkeypatch):
    """With a clock that goes one second further whenever it is read."""
    seconds = itertools.count()
    monkeypatch.setattr(selftest, "time", types.SimpleNamespace(monotonic=lambda: next(seconds)))
    outcome = selftest.run("ViT-Ti/16", hours=3.5 / 3600, say=lambda _: None)
    assert (outcome.rounds, outcome.seconds) == (5, 5)  # 2 at least, and 3 until 3.5 s are over


@pytest.mark.slow
@pytest.mark.parametrize("first_wrong_round", [1, 3])
def test_a_device_that_computes_something_else_is_named(first_wrong_round, tiny, monkeypatch):
    """As one whose images have another bit would: in all rounds, or from one on."""
    prepare, device = selftest.prepare, jax.devices()[5]

    class Lowered:
        def __init__(self, program):
            self._program, self._rounds = program.compile(), 0

        def compile(self):
            return self

        def __call__(self, live, images):
            self._rounds += 1
            if self._rounds >= first_wrong_round:
                images = images | {"image": bit_flips.flipped(images["image"], device, 100, 6)}
            return self._program(live, images)

    def faulty(cfg, mesh):
        program, *inputs = prepare(cfg, mesh)
        return Lowered(program), *inputs

    monkeypatch.setattr(selftest, "prepare", faulty)
    with pytest.raises(replay.Corrupted) as caught:
        selftest.run("ViT-Ti/16", hours=1, say=lambda _: None)
    message = str(caught.value)
    assert message.startswith(f"round {first_wrong_round}: {device} ({device.device_kind}) of ")
    assert "leave this machine out" in message


def test_mistakes_are_one_line(capsys):
    for arguments, said in (
        (["--model=ViT-Tx"], "ViT-Tx: not a name like"),
        (["--hours=-1"], "--hours: -1: must be a number above 0"),
        (["--config.seed=3"], "selftest takes no config options"),
    ):
        try:
            code = cli.main(["selftest", *arguments])
        except SystemExit as end:
            code = end.code
        (line,) = capsys.readouterr().err.splitlines()
        assert (code, said in line) == (2, True)


@pytest.mark.slow
def test_two_processes_examine_all_their_devices():
    command = [sys.executable, "-m", "vit_jax", "selftest", "--model=ViT-Ti/32", "--batch=1"]
    each = [runs.start(command, env=variables) for variables in runs.environments(2, 2)]
    outputs = [process.communicate(timeout=300)[0] for process in each]
    assert [process.returncode for process in each] == [0, 0], outputs
    assert "devices: 4; hosts: " in outputs[0]
    assert "no difference" in outputs[0]
    assert "no difference" not in outputs[1]
