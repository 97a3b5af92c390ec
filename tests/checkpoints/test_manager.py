"""Saving, restoring on any mesh, retention, and what is refused."""

import logging
import os
import pathlib
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath
from jax.sharding import SingleDeviceSharding

import states
from vit_jax.checkpoints import digests, manager, reader, record
from vit_jax.utils import tree_utils

FACTS = {"config": {"seed": 3, "rate": 1e-3, "sizes": [1, 2], "none": None}, "data": "abc"}


@pytest.fixture
def directory(tmp_path):
    """Where the managers of a test save."""
    return epath.Path(tmp_path / "run" / "checkpoints")


@pytest.fixture
def make(directory):
    """Makes managers of one directory, and closes them."""
    made = []

    def one(keep=2, best="top1"):
        made.append(manager.Manager(pathlib.Path(directory), keep=keep, best=best))
        return made[-1]

    yield one
    for each in made:
        each.close()


def put(saver, step, metrics=None):
    """Saves the state of a step and waits."""
    saver.save(step, states.state(step, states.mesh()), record=FACTS, metrics=metrics)
    saver.wait()


@pytest.mark.slow
def test_restores_bit_for_bit_on_other_meshes(make):
    saver = make()
    saver.save(7, states.state(7, states.mesh(4, 2)), record=FACTS, metrics={"top1": 0.5})
    saver.wait()
    for data, fsdp in ((1, 1), (2, 1), (2, 2), (1, 8)):
        target = states.target(states.mesh(data, fsdp))
        restored, found = saver.restore(target)
        assert states.equal(restored, 7)
        places = jax.tree.map(lambda got, want: got.sharding == want.sharding, restored, target)
        assert all(jax.tree.leaves(places))
        assert found == {**FACTS, "step": 7, "metrics": {"top1": 0.5}}


def test_nothing_committed_restores_nothing(make):
    assert make().restore(states.target(states.mesh())) is None
    assert make().steps() == []
    assert make().best_step() is None


@pytest.mark.slow
def test_the_state_may_be_donated_while_it_is_saved(make):
    """The step after a save overwrites the buffers; eight devices, then one."""
    saver = make(keep=9)
    advance = jax.jit(
        lambda s: jax.tree.map(lambda x: (x + x).astype(x.dtype), s), donate_argnums=0
    )
    for step, on in enumerate([states.mesh(2, 4), states.mesh()] * 2, 1):
        state = states.state(step, on, 512)
        saver.save(step, state, record={}, metrics=None)
        saved = jax.tree.leaves(state)
        for _ in range(3):
            state = advance(state)
        jax.block_until_ready(state)
        assert any(leaf.is_deleted() for leaf in saved)
    saver.wait()
    for step in saver.steps():
        restored, _ = saver.restore(states.target(states.mesh(), 512), step=step)
        assert states.equal(restored, step, 512)
    assert saver.steps() == [1, 2, 3, 4]


@pytest.mark.parametrize("last", [(digests.Digests, "read"), (record, "write_commit")])
def test_a_step_counts_only_after_its_commit(make, monkeypatch, last):
    """And training waits neither for the digests, which come after orbax's copies, nor for it."""
    saver = make()
    put(saver, 1)
    reached, gate, rest = threading.Event(), threading.Event(), getattr(*last)
    begun = []
    for where, name in ((saver._checkpointer, "save"), (digests.Digests, "__init__")):
        call = getattr(where, name)
        monkeypatch.setattr(
            where, name, lambda *a, call=call, **k: (begun.append(call.__name__), call(*a, **k))[1]
        )
    monkeypatch.setattr(*last, lambda *a: (reached.set(), gate.wait(30), rest(*a))[2])
    saver.save(2, states.state(2, states.mesh()), record={}, metrics=None)
    assert begun == ["save", "__init__"]
    assert reached.wait(30)  # orbax says it is done
    saver.poll()
    assert saver.steps() == [1]
    gate.set()
    saver.wait()
    assert saver.steps() == [1, 2]


def test_the_best_loss_is_the_lowest_and_finite(make):
    saver = make(keep=1, best="loss")
    for step, loss in ((1, 3.0), (2, 1.0), (3, float("nan")), (4, 2.0), (5, float("-inf"))):
        assert saver.is_best({"loss": loss}) == (step in (1, 2))
        put(saver, step, {"loss": loss})
    assert saver.steps() == [2, 5]
    assert saver.best_step() == 2
    put(saver, 6, {"loss": 2.0, "count": 9})
    kept = [
        repr(value) for value in saver.restore(states.target(states.mesh()))[1]["metrics"].values()
    ]
    assert kept == ["2.0", "9"]  # as results say it that come from no checkpoint
    assert not saver.is_best(None)
    before = {"measured": {"val": "a"}}
    assert saver.compares(before, before)
    assert not saver.is_best({"loss": 9.0})
    assert not saver.compares(before, {"measured": {"val": "b"}})
    assert saver.is_best({"loss": 9.0})
    assert not saver.is_best({"top1": 1.0})
    again = make(keep=1, best="loss")
    assert not again.is_best({"loss": 1.0})
    assert again.is_best({"loss": 0.5})


def test_saving_a_step_again(make, directory, caplog):
    saver = make(keep=3)
    put(saver, 1)
    put(saver, 2)
    folder = record.folder(directory, 2)
    stamp = (folder / "state" / "_METADATA").stat().mtime
    put(saver, 2, {"top1": 0.5})  # the same state: only the record is new
    assert (folder / "state" / "_METADATA").stat().mtime == stamp
    put(saver, 2, {"loss": 1.0})
    put(saver, 2)
    assert record.read_commit(folder)["metrics"] == {"top1": 0.5, "loss": 1.0}
    # A loss of the images before an accepted change would stand beside the new accuracy.
    facts = FACTS | {"changes": ["step 2: data.root"]}
    saver.save(2, states.state(2, states.mesh()), record=facts, metrics={"top1": 0.4})
    saver.wait()
    assert record.read_commit(folder)["metrics"] == {"top1": 0.4}
    # Rolled back, another trajectory: the old one is there until the new one is committed.
    saver.save(2, states.state(99, states.mesh()), record={}, metrics=None)
    saver.wait()
    assert saver.steps() == [1, 2]
    assert states.equal(saver.restore(states.target(states.mesh()))[0], 99)
    assert sorted(p.name for p in directory.iterdir()) == ["00000001", "00000002"]
    # An unfinished folder of the step gives way too.
    (record.folder(directory, 3) / "state.orbax-checkpoint-tmp").mkdir(parents=True)
    put(saver, 3)
    assert saver.steps() == [1, 2, 3]
    assert caplog.records == []


def test_steps_that_a_run_does_again_are_neither_its_newest_nor_its_best(make):
    put(make(), 2, {"top1": 0.5})
    put(make(), 8, {"top1": 0.9})
    saver = make(keep=1)
    assert not saver.is_best({"top1": 0.9})
    assert saver.restore(states.target(states.mesh()), avoid=[8])[1]["step"] == 2
    assert saver.is_best({"top1": 0.9})
    put(saver, 5)
    assert saver.steps() == [2, 5]  # the next process goes on from 5


def test_a_superseded_step_comes_back_if_its_successor_never_finished(make, directory):
    saver = make()
    put(saver, 1)
    folder = record.folder(directory, 1)
    folder.rename(folder.with_name("00000001.old"))
    (folder / "state").mkdir(parents=True)
    again = make()
    assert again.steps() == [1]
    assert states.equal(again.restore(states.target(states.mesh()))[0], 1)


def test_start_removes_unfinished_saves_and_nothing_else(make, directory, caplog):
    saver = make()
    put(saver, 1)
    root = pathlib.Path(directory)
    for name in (
        "00000002/state.orbax-checkpoint-tmp/d",
        "00000003/state",
        "00000004",
        "123456789",
    ):
        (root / name).mkdir(parents=True)
    (root / "00000003/commit.json.part").write_text("{")
    kept = ["00000005/notes", "0000006", "00000007.bak", "other", "00000008x"]
    for name in kept:
        (root / name).mkdir(parents=True)
    (root / "file").write_text("mine")
    (root / ".probe-0").write_text("")  # of a start that was killed
    caplog.clear()
    with caplog.at_level(logging.WARNING, "vit_jax"):
        make()
    left = sorted(p.name for p in root.iterdir())
    assert left == sorted(["00000001", "file", *(name.split("/")[0] for name in kept)])
    removed = ["00000002", "00000003", "00000004", "123456789"]
    assert caplog.messages == [
        f"checkpoint {root / name} was never finished; removed" for name in removed
    ]


def test_restores_parts_without_the_optimizer(make, directory):
    saver = make()
    state = states.state(3, states.mesh(2, 4))
    saver.save(3, state, record=FACTS, metrics=None)
    saver.wait()
    whole = states.target(states.mesh(1, 2))
    for name in ("params", "ema"):
        part = reader.restore_subtree(directory, 3, {name: whole[name]})
        wanted = tree_utils.flatten({name: jax.tree.map(np.asarray, state[name])})
        found = tree_utils.flatten(part)
        assert list(found) == list(wanted)
        assert all(np.asarray(found[k]).tobytes() == wanted[k].tobytes() for k in wanted)
    loose = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), whole["params"])
    part = reader.restore_subtree(str(directory), 3, {"params": loose})
    assert part["params"]["head"]["kernel"].sharding == SingleDeviceSharding(jax.devices()[0])


@pytest.mark.parametrize("subtree", [False, True])
def test_a_target_that_does_not_fit_is_no_damage(make, directory, subtree):
    saver = make()
    put(saver, 5)
    folder = record.folder(directory, 5)

    def attempt(change):
        target = tree_utils.flatten(states.target(states.mesh()))
        target = tree_utils.nest({k: v for k, v in target.items() if k.startswith("params")})
        whole = states.target(states.mesh())
        whole["params"] = target["params"]
        change(whole["params"])
        part = {"params": whole["params"]}
        with pytest.raises(manager.CheckpointError) as caught:
            reader.restore_subtree(directory, 5, part) if subtree else saver.restore(whole)
        assert type(caught.value) is manager.CheckpointError
        assert saver.steps() == [5]
        return str(caught.value).removeprefix(f"{folder}: ")

    def shape(params):
        params["head"]["kernel"] = jax.ShapeDtypeStruct((24, 9), jnp.float32)

    def dtype(params):
        params["head"]["kernel"] = jax.ShapeDtypeStruct((24, 8), jnp.bfloat16)

    fit = "does not fit this config"
    assert (
        attempt(shape)
        == f"{fit}: params/head/kernel is float32[24, 8] there and float32[24, 9] here"
    )
    assert (
        attempt(dtype)
        == f"{fit}: params/head/kernel is float32[24, 8] there and bfloat16[24, 8] here"
    )
    added = jax.ShapeDtypeStruct((1,), jnp.float32)
    assert (
        attempt(lambda p: p.update(a=added, b=added)) == f"{fit}: it has no params/a (and 1 more)"
    )
    if not subtree:
        assert attempt(lambda p: p.pop("encoder")) == (
            f"{fit}, which has no params/encoder/bias (and 1 more)"
        )


def test_without_a_metric_no_checkpoint_is_the_best(make, directory):
    saver = make(keep=1, best=None)
    for step, score in ((1, 0.9), (2, 0.1)):
        assert not saver.is_best({"test/top1": score})
        put(saver, step, {"test/top1": score})
    assert (saver.steps(), saver.best_step()) == ([2], None)
    with pytest.raises(manager.CheckpointError, match=r"no checkpoint is the best \(checkpoint"):
        record.find_step(directory, "best")
    assert record.find_step(directory)[1]["selection"] == "step 2, the newest"


def test_ties_go_to_the_lower_loss(make, directory):
    """Of few images many checkpoints get equally many right; the first may be at chance."""
    saver = make(keep=1, best="val/top1")
    losses = {10: 1.386, 20: 0.9, 30: 0.4, 40: 0.6, 50: 0.4, 60: float("nan")}
    for step, loss in losses.items():
        metrics = {"val/top1": 0.5, "val/loss": loss, "other/loss": -1.0}
        assert saver.is_best(metrics) == (step in (10, 20, 30))
        put(saver, step, metrics)
    assert saver.best_step() == record.find_step(directory)[0] == 30
    assert not make(keep=1, best="val/top1").is_best({"val/top1": 0.5, "val/loss": 0.4})


def test_find(make, directory, tmp_path):
    saver = make(keep=3)
    where = directory
    with pytest.raises(manager.CheckpointError, match="no checkpoint here"):
        record.find_step(where)
    with pytest.raises(manager.CheckpointError, match="no checkpoint here"):
        record.find_step(tmp_path / "nowhere")
    put(saver, 1)
    with pytest.raises(manager.CheckpointError, match="no checkpoint has top1; choose step 1"):
        record.find_step(where, "best")
    put(saver, 2, {"top1": 0.9})
    put(saver, 3, {"top1": 0.1})
    best = "step 2, the best by top1 (0.9000); the newest is step 3"
    assert record.find_step(where) == record.find_step(where, "best")
    assert record.find_step(where, "best")[1]["selection"] == best
    assert record.find_step(where, "newest")[1]["selection"] == "step 3, the newest"
    oldest = {**FACTS, "step": 1, "metrics": {}, "selection": "step 1; the newest is step 3"}
    assert record.find_step(where, 1) == (1, oldest)
    assert record.find_step(where / "00000002")[0] == 2
    assert record.find_step(where, 2)[1]["metrics"] == {"top1": 0.9}
    for at in (4, "worst"):
        with pytest.raises(manager.CheckpointError, match=f"step {at}; choose steps 1, 2, 3"):
            record.find_step(where, at)


@pytest.mark.parametrize("what", ["commit.json", "."])
@pytest.mark.parametrize("target", ["commit.json", "nowhere"])
def test_a_link_in_place_of_a_record_is_damage(make, what, target, tmp_path, caplog):
    directory = tmp_path / "run" / "checkpoints"
    for step in (1, 2):
        folder = directory / f"{step:08d}"
        folder.mkdir(parents=True)
        record.write_commit(
            folder, {"step": step, "facts": FACTS, "metrics": {}, "best": None, "leaves": {}}
        )
    newest = directory / "00000002"
    if what == ".":  # the folder itself
        newest.rename(directory / "elsewhere")
        newest.symlink_to("00000002" if target == "commit.json" else target)
    else:
        (newest / what).unlink()
        (newest / what).symlink_to(target)
    assert record.find_step(directory)[0] == 1
    assert f"checkpoint {newest} has a damaged record; passed over" in caplog.text
    with pytest.raises(manager.CheckpointError, match="damaged: commit.json"):
        record.find_step(newest)
    record.prepare_directory(directory)  # removes unfinished saves
    assert os.path.lexists(newest)
    caplog.clear()
    with pytest.raises(manager.CheckpointError, match="does not fit this config"):
        make().restore(states.target(states.mesh()))  # that of step 1, which holds no arrays
    assert f"checkpoint {newest} is damaged (commit.json" in caplog.text
    assert not os.path.lexists(newest)


def test_restores_the_step_asked_for(make):
    saver = make(keep=3)
    for step in (1, 2, 3):
        put(saver, step)
    restored, found = saver.restore(states.target(states.mesh()), step=2)
    assert states.equal(restored, 2)
    assert found["step"] == 2
    with pytest.raises(manager.CheckpointError, match=r"00000009: .*missing; .*\[1, 2, 3\]"):
        saver.restore(states.target(states.mesh()), step=9)
    part = {"params": states.target(states.mesh())["params"]}
    with pytest.raises(manager.CheckpointError, match="does not fit this config, which has no"):
        saver.restore(part, step=2)


@pytest.mark.parametrize(
    "name", ["params/head/kernel", "opt/1/0/mu/encoder/bias", "ema/encoder/bias"]
)
def test_refuses_a_state_that_is_not_finite(make, directory, name):
    saver = make()
    put(saver, 1)
    leaves = tree_utils.flatten(states.state(2, states.mesh()))
    leaves[name] = leaves[name].at[(0,) * leaves[name].ndim].set(jnp.nan)
    bad = jax.tree.unflatten(jax.tree.structure(states.shapes()), leaves.values())
    saver.save(2, bad, record={}, metrics=None)
    with pytest.raises(manager.SaveFailed) as caught:
        saver.wait()
    assert str(caught.value) == (
        f"step 2 was not saved in {directory}: {name} is not finite; newest checkpoint: step 1"
    )
    assert caught.value.exit_code == 70
    assert saver.steps() == [1]
    with pytest.raises(manager.SaveFailed, match="is not finite"):  # in place of a sound one
        saver.save(1, bad, record={}, metrics=None)
    assert states.equal(saver.restore(states.target(states.mesh()))[0], 1)
    put(saver, 2)
    assert saver.steps() == [1, 2]


def test_a_record_json_cannot_hold_is_refused_at_once(make):
    saver = make()
    for facts in ({"x": object()}, {"x": float("nan")}):
        with pytest.raises((TypeError, ValueError), match="JSON"):
            saver.save(1, states.state(1, states.mesh()), record=facts, metrics=None)
    assert saver.steps() == []
