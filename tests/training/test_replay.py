"""Silent data corruption: flipped bits are found before anything is saved, and nothing else is."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bit_flips
import runs
from stepping import Stepper, batch_of, configure
from vit_jax import train_loop
from vit_jax.training import build, replay

ADAM = {
    "optimizer": {"name": "adam", "lr": 1e-3, "moment_dtype": "bfloat16"},
    "train": {"ema": 0.5},
}


def bits(result):
    """The bytes of every device's part of a step's result."""
    leaves = jax.tree.leaves(result)
    return [np.asarray(s.data).tobytes() for leaf in leaves for s in leaf.addressable_shards]


class Faulty:
    """A step that flips a bit of its parameters or images in chosen calls."""

    def __init__(self, trainer, rng, calls):
        self.trainer, self.rng, self.calls, self.count, self.results = trainer, rng, calls, 0, []

    def __call__(self, state, batch):
        self.count += 1
        if self.count in self.calls:
            devices = list(self.trainer.mesh.devices.flat)
            device, element, bit = devices[self.rng.integers(8)], *self.rng.integers(2**20, size=2)
            if self.rng.integers(2):
                batch = batch | {"image": bit_flips.flipped(batch["image"], device, element, bit)}
            else:
                leaves, structure = jax.tree.flatten(state["params"])
                index = self.rng.integers(len(leaves))
                leaves[index] = bit_flips.flipped(leaves[index], device, element, bit)
                state = state | {"params": jax.tree.unflatten(structure, leaves)}
        result = self.trainer.compiled(state, batch, None)
        self.results.append(bits(result))
        return result


@pytest.fixture(scope="module")
def trainer():
    return Stepper(configure(**ADAM))


def put(trainer, number=0):
    return trainer.put(batch_of(number))


@pytest.mark.slow
def test_a_sound_run_is_that_without_replay(trainer):
    lines = []
    checked = replay.Replay(trainer.compiled, trainer.mesh, every=2, first=0, say=lines.append)
    replayed, plain = (jax.tree.map(jnp.copy, trainer.state) for _ in range(2))
    for number in range(6):
        replayed, measured = checked(replayed, put(trainer, number), None)
        plain, metrics = trainer.compiled(plain, put(trainer, number), None)
        assert bits((replayed, measured)) == bits((plain, metrics))
    assert not lines


@pytest.mark.slow
def test_every_flip_that_changes_a_result_is_found(trainer):
    """In parameters and images, on any of eight devices; compared with all bits of both results."""
    rng, found = np.random.default_rng(0), {True: 0, False: 0}
    for _ in range(25):
        faulty = Faulty(trainer, rng, calls={1, 3})
        checked = replay.Replay(faulty, trainer.mesh, every=1, first=0, say=lambda _: None)
        try:
            checked(trainer.state, put(trainer))
            raised = False
        except replay.Corrupted:
            raised = True
        first, second, *_ = faulty.results
        assert (first != second) == (faulty.count == 4)  # found, and tried again
        if faulty.count == 4:
            third, fourth = faulty.results[2:]
            assert raised == (third != fourth)
        found[raised] += 1
    assert found[True] > 10


def test_a_fault_that_does_not_come_again_is_reported_and_the_run_goes_on(trainer):
    lines, rng = [], np.random.default_rng(1)
    faulty = Faulty(trainer, rng, calls={1})
    checked = replay.Replay(faulty, trainer.mesh, every=1, first=6, say=lines.append)
    state, metrics = checked(trainer.state, put(trainer))
    assert bits((state, metrics)) == faulty.results[-1] != faulty.results[0]
    (line,) = lines
    assert line.startswith("step 7: repetitions of ")
    assert line.endswith("; repeating the step")


def test_it_says_which_device_and_array(trainer):
    """One device whose part of an array differs after both repetitions alike."""
    device = trainer.mesh.devices.flat[5]

    def wrong(state, batch):
        state, metrics = trainer.compiled(state, batch, None)
        bias = bit_flips.flipped(state["params"]["head"]["bias"], device, 3, 7)
        head = state["params"]["head"] | {"bias": bias}
        return state | {"params": state["params"] | {"head": head}}, metrics

    lines = []
    # Whole on every device, as it has fewer elements than there are devices.
    checked = replay.Replay(wrong, trainer.mesh, every=1, first=0, say=lines.append)
    with pytest.raises(replay.Corrupted) as caught:
        checked(trainer.state, put(trainer))
    assert caught.value.exit_code == 71
    assert lines[0].startswith(f"step 1: copies of params/head/bias differ on {device} of ")
    assert "again when repeated: nothing of it is saved" in str(caught.value)


def test_a_repetition_that_differs_in_one_word_is_named():
    names, values = tuple("abcde"), np.zeros((2, 5, 2), np.uint32)
    copies = np.arange(2)[:, None].repeat(5, axis=1)  # each device has parts of its own
    first = replay.Digests(names, values, copies)
    for device, array, word in ((0, 4, 0), (1, 2, 1)):
        other = values.copy()
        other[device, array, word] = 1
        found = replay.differences(first, replay.Digests(names, other, copies))
        assert found == [replay.Difference(device, names[array], "repetitions")]


@pytest.mark.parametrize(("count", "more"), [(3, ""), (4, ", 1 more devices")])
def test_three_devices_are_named(count, more):
    places = np.array([types.SimpleNamespace(process_index=0)] * 4)
    mesh = types.SimpleNamespace(devices=places)
    checked = types.SimpleNamespace(_mesh=mesh, _hosts=["host"], _number=7)
    found = [replay.Difference(number, "state/a", "copies") for number in range(count)]
    text = replay.Replay._describe(checked, found)
    assert text.startswith("step 7: copies of a differ on ")
    assert text.endswith(f" of host{more}")
    assert text.count("of host") == 3


@pytest.mark.slow
def test_a_run_ends_with_its_own_code_and_saves_nothing_wrong(tmp_path, monkeypatch):
    real = build.Trainer.compile_program

    def compile_program(*args, **kwargs):
        compiled, count = real(*args, **kwargs), iter(range(10**6))

        def faulty(*inputs):
            state, metrics = compiled(*inputs)
            if next(count) >= 6:
                metrics = metrics | {"loss": metrics["loss"] + next(count)}
            return state, metrics

        return faulty

    cfg = runs.configure(
        train={"duration": "8 steps", "replay": 3}, checkpoint={"every": "2 steps"}
    )
    monkeypatch.setattr(build.Trainer, "compile_program", compile_program)
    with pytest.raises(replay.Corrupted, match=r"step 6: repetitions of metrics/loss differ on "):
        train_loop.train(cfg, tmp_path)
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["00000002", "00000004"]
    monkeypatch.undo()
    assert train_loop.train(cfg, tmp_path).steps == 8
