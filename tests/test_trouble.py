"""What goes wrong in a run: numbers that are not finite, bad files, damage, a full disk.

A run that fails twice from one checkpoint goes back to an older one.
"""

import json
import re
import subprocess

import cv2
import jax
import numpy as np
import pytest

import runs
from vit_jax import train_loop
from vit_jax.data import source
from vit_jax.runs import run_log
from vit_jax.runtime import goodput, logs, preemption

# What a resumed run says before it fails; nothing of orbax, absl or asyncio.
OUTPUT = (
    r"(\w[\w ]+ \.\.\.|\w+: [\d,]+ parameters, .*|resuming from step \d+|step compiled in .*"
    r"|step \d+/100  .*|the best checkpoint is chosen on the test split .*)$"
)

pytestmark = pytest.mark.usefixtures("one_device")


def weights_that_overflow(monkeypatch, at, mended=False):
    """Makes the head infinite just before step `at`, as a flipped bit in memory might."""
    original = train_loop.run_steps

    def patched(trainer, start, step, *arguments, **keywords):
        count = start.step

        def one(state, *inputs):
            nonlocal count
            count += 1
            head = state["params"]["head"]
            kernel, place = np.asarray(head["kernel"]), head["kernel"].sharding
            if count == at:
                head["kernel"] = jax.device_put(kernel * np.float32(np.inf), place)
            state, metrics = step(state, *inputs)
            if count == at and mended:
                state["params"]["head"]["kernel"] = jax.device_put(kernel, place)
            return state, metrics

        return original(trainer, start, one, *arguments, **keywords)

    monkeypatch.setattr(train_loop, "run_steps", patched)


@pytest.mark.slow
def test_not_finite_stops_with_exit_70_and_saves_nothing_bad(tmp_path, monkeypatch):
    workdir = tmp_path / "run"
    weights_that_overflow(monkeypatch, 13)
    with pytest.raises(run_log.Diverged) as caught:
        train_loop.train(runs.configure(), workdir)
    assert caught.value.exit_code == 70
    line = str(caught.value)
    assert line.startswith("step 13: loss nan")
    assert "examples [" in line
    assert "train.max_bad_steps=0" in line
    assert "\n" not in line
    saved = sorted(p.parent.name for p in workdir.glob("checkpoints/*/commit.json"))
    assert saved == ["00000005", "00000010"]
    assert max(runs.trace(workdir)) == 12
    # The same command goes on from the last good state.
    monkeypatch.undo()
    assert train_loop.train(runs.configure(), workdir).steps == runs.STEPS


@pytest.mark.slow
def test_a_bad_step_within_the_budget_is_skipped_and_counted(tmp_path, monkeypatch, caplog):
    train_loop.train(runs.configure(), tmp_path / "oracle")
    weights_that_overflow(monkeypatch, 13, mended=True)
    logs.log.propagate = True
    train_loop.train(runs.configure(train={"max_bad_steps": 1}), tmp_path / "run")
    assert any("step 13: loss nan" in m and "1 of 1 allowed" in m for m in caplog.messages)
    counts = runs.trace(tmp_path / "run", "train/bad_steps")
    assert (counts[12], counts[13], counts[runs.STEPS]) == (0, 1, 1)
    losses, expected = (runs.trace(tmp_path / name) for name in ("run", "oracle"))
    assert losses[13] is None
    assert {step for step in losses if step < 13 and losses[step] != expected[step]} == set()
    assert all(np.isfinite(losses[step]) for step in losses if step != 13)


def broken_folder(tmp_path, bad):
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for name in ("a", "b"):
            (tmp_path / "data" / split / name).mkdir(parents=True)
            for number in range(20):
                image = rng.integers(0, 256, (8, 8, 3), np.uint8)
                assert cv2.imwrite(str(tmp_path / "data" / split / name / f"{number}.png"), image)
    for number in range(bad):
        (tmp_path / "data" / "train" / "a" / f"{number}.png").write_bytes(
            b"\x89PNG\r\n\x1a\nbroken"
        )
    return str(tmp_path / "data")


def folder_config(root, allowed):
    data = {"source": "folder", "root": root, "channels": 3, "max_bad_examples": allowed}
    return runs.configure(data=data | {"train_split": "train", "eval_split": "test"})


@pytest.mark.slow
def test_bad_images_stop_the_run_by_name_or_are_replaced(tmp_path, caplog):
    root = broken_folder(tmp_path, 2)
    with pytest.raises(source.DataError) as caught:
        train_loop.train(folder_config(root, 0), tmp_path / "strict")
    assert "data/train/a/" in str(caught.value)
    assert "max_bad_examples" in str(caught.value)
    with pytest.raises(source.DataError, match="data/train/a/"):
        train_loop.train(folder_config(root, 1), tmp_path / "one")
    logs.log.propagate = True
    train_loop.train(folder_config(root, 2), tmp_path / "two")
    named = {m.partition(":")[0] for m in caplog.messages if "data/train/a/" in m}
    assert len(named) == 2
    # Replacements are part of the recipe: a second run sees the same images.
    train_loop.train(folder_config(root, 2), tmp_path / "again")
    runs.assert_equal_runs(tmp_path / "two", tmp_path / "again")


@pytest.mark.slow
def test_damaged_newest_checkpoint_falls_back_and_ends_the_same(tmp_path, monkeypatch, caplog):
    train_loop.train(runs.configure(), tmp_path / "oracle")
    workdir = tmp_path / "run"
    with runs.stopping_at(monkeypatch, 14), pytest.raises(preemption.Preempted):
        train_loop.train(runs.configure(), workdir)
    newest = workdir / "checkpoints" / "00000014"
    largest = max((p for p in newest.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)
    logs.log.propagate = True
    train_loop.train(runs.configure(), workdir)
    assert any("00000014 is damaged" in message for message in caplog.messages)
    assert any("restored the checkpoint of step 10" in message for message in caplog.messages)
    assert (workdir / "checkpoints" / "00000014.bad").is_dir()
    runs.assert_equal_runs(workdir, tmp_path / "oracle")


@pytest.mark.slow
def test_full_disk_is_reported_at_that_step_and_loses_nothing(tmp_path):
    """No file may grow beyond a size: saves after the limit fail, the one before it stays."""
    cfg = runs.configure(train={"duration": 100})
    workdir = tmp_path / "full"
    first = runs.start(runs.command(workdir, cfg=cfg), env=runs.environment())
    while not (workdir / "checkpoints" / "00000005" / "commit.json").exists():
        assert first.poll() is None, first.communicate()
    first.kill()
    first.communicate()
    before = runs.digests(workdir)
    step = max(int(p.parent.name) for p in workdir.glob("checkpoints/*/commit.json"))

    # bash counts KiB; what exceeds them is an error, as Python ignores the signal.
    kib = (workdir / "metrics.jsonl").stat().st_size // 1024 + 20
    limited = ["bash", "-c", f'ulimit -f {kib}; exec "$@"', "bash", *runs.command(workdir)]
    result = subprocess.run(limited, env=runs.environment(), capture_output=True, text=True)
    assert result.returncode == 70, result.stderr
    *before_, last = result.stderr.splitlines()
    assert not [line for line in before_ if not re.match(OUTPUT, line)]
    assert "was not saved" in last
    assert "File too large" in last
    assert f"newest checkpoint: step {step}" in last
    assert runs.digests(workdir) == before
    result = subprocess.run(
        runs.command(workdir), env=runs.environment(), capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr


def fail(workdir):
    with pytest.raises(run_log.Diverged):
        train_loop.train(runs.configure(), workdir)
    kept = json.loads((workdir / goodput.FILE).read_text())
    return kept[-1]["first_step"], kept[-1].get("failed")


@pytest.mark.slow
def test_the_checkpoint_before_is_taken_after_two_failures(tmp_path, monkeypatch):
    workdir = tmp_path / "run"
    weights_that_overflow(monkeypatch, 13)
    found = [fail(workdir) for _ in range(6)]
    # Steps 5 and 10 are saved. Of 0 there is no checkpoint; after both, the newest again.
    assert found == [(0, True), (10, True), (10, True), (5, True), (5, True), (10, True)]
    monkeypatch.undo()
    oracle = tmp_path / "oracle"
    assert train_loop.train(runs.configure(), workdir).steps == runs.STEPS
    train_loop.train(runs.configure(), oracle)
    assert runs.digests(workdir) == runs.digests(oracle)


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ([], set()),
        ([(5, True)], set()),
        ([(5, True), (5, True)], {5}),
        ([(5, True), (10, True), (5, True)], {5}),
        ([(5, True), (5, True), (10, True), (10, True)], {5, 10}),
        ([(5, True), (5, True), (10, False)], set()),  # it got on, or was only told to stop
        ([(10, False), (5, True), (5, True)], {5}),
    ],
)
def test_suspects(ends, expected):
    kept = [{"first_step": step} | ({"failed": True} if bad else {}) for step, bad in ends]
    assert goodput.suspects(kept, "own") == expected
