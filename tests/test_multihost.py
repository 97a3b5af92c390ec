"""Real processes (jax.distributed, gloo) train as one, and a run goes on with others.

With other processes, devices and meshes it sees the same images and computes the same numbers.
"""

import json
import re
import signal
import sys
import time

import jax
import numpy as np
import pytest

import recording
import runs
import vit_jax
from vit_jax import config, train_loop
from vit_jax.config import checks
from vit_jax.inference import loading
from vit_jax.runs import directory
from vit_jax.training import run_config
from vit_jax.utils import tree_utils

# SGD: under Adam the key bias, whose true gradient is zero, amplifies rounding. Its rate is low:
# at 0.1 training amplifies the order of sums thirtyfold within 25 steps, at 0.01 not at all.
SGD = {"optimizer": {"name": "sgd", "lr": 0.01}, "mesh": {"fsdp_min_size": 1}}


def start_many(workdir, cfg, count, devices=1):
    command = runs.command(workdir, cfg=cfg)
    return [runs.start(command, env=variables) for variables in runs.environments(count, devices)]


def finish(processes, code=0):
    for process in processes:
        output, _ = process.communicate(timeout=240)
        assert process.returncode == code, output


def params_of(workdir):
    directory, step, record = loading.find_checkpoint(workdir, "newest")
    cfg = run_config.complete(config.build(record["config"]))
    return step, tree_utils.flatten(jax.device_get(loading.load_params(directory, step, cfg)))


def assert_close(workdir, oracle):
    """Asserts the losses, measures and parameters of another run, to a few roundings of float32.

    Measured over all cases: losses 2.1e-7 apart, parameters 8.9e-8.
    """
    found, expected = runs.trace(workdir), runs.trace(oracle)
    assert found.keys() == expected.keys()
    np.testing.assert_allclose(list(found.values()), list(expected.values()), rtol=5e-7)
    for key in ("test/top1", "test/count", "data/batch_crc"):
        assert runs.trace(workdir, key) == runs.trace(oracle, key)
    step, found = params_of(workdir)
    assert step == runs.STEPS
    for name, value in params_of(oracle)[1].items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, atol=2.4e-7, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "fsdp"), [(2, 1), (2, 2), pytest.param(4, 2, marks=pytest.mark.long)]
)
def test_processes_train_as_one(count, fsdp, tmp_path):
    cfg = runs.configure(**SGD | {"mesh": {"fsdp": fsdp, "fsdp_min_size": 1}})
    train_loop.train(cfg, tmp_path / "one")
    # Each loads its part of each batch: same images, same order, same numbers.
    finish(start_many(tmp_path / "many", cfg, count))
    assert_close(tmp_path / "many", tmp_path / "one")


@pytest.mark.slow
def test_a_signal_to_one_stops_both_at_one_step_and_one_process_resumes(tmp_path):
    workdir = tmp_path / "run"
    cfg = runs.configure(train={"duration": 300}, **SGD)
    processes = start_many(workdir, cfg, 2)
    metrics = workdir / "metrics.jsonl"
    while not (metrics.exists() and metrics.stat().st_size > 4000):
        assert all(p.poll() is None for p in processes), processes[0].communicate()
        time.sleep(0.05)
    processes[1].send_signal(signal.SIGTERM)
    finish(processes, code=75)
    saved = max(
        int(p.name) for p in (workdir / "checkpoints").glob("0*") if (p / "commit.json").exists()
    )
    assert saved == max(runs.trace(workdir))
    finish([runs.start(runs.command(workdir), env=runs.environment(2))])
    assert max(runs.trace(workdir)) == 300


def together(*words):
    """What each of two processes prints of a command."""
    command = [sys.executable, "-m", "vit_jax", *map(str, words)]
    both = [runs.start(command, env=variables) for variables in runs.environments(2, 2)]
    said = [process.communicate(timeout=240)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    return said


@pytest.mark.slow
def test_processes_evaluate_and_embed_as_one(tmp_path):
    """They join before a checkpoint asks for devices; the first one speaks for both."""
    train_loop.train(runs.configure(train={"duration": 5}), tmp_path / "run")
    first, second = together("evaluate", f"--checkpoint={tmp_path / 'run'}", "--json")
    assert '{"step"' not in second
    found = json.loads(re.search('{"step".*}', first)[0])
    expected = vit_jax.evaluate(tmp_path / "run")
    assert found.pop("test/split") == expected.pop("test/split")
    assert found == pytest.approx(expected, rel=5e-7)
    one, two = tmp_path / "one.npz", tmp_path / "two.npz"
    first, second = together("embed", f"--checkpoint={tmp_path / 'run'}", f"--output={two}")
    count = vit_jax.embed(tmp_path / "run", one)
    assert f"{two}: {count} images" in first
    assert f"{two}:" not in second
    with np.load(one) as alone, np.load(two) as both:
        np.testing.assert_allclose(both["features"], alone["features"], rtol=1e-5, atol=1e-6)
        assert both["names"].tolist() == alone["names"].tolist()


@pytest.mark.slow
def test_evaluations_of_split_parameters_end(tmp_path):
    """Gathered by many small programs, they left two processes waiting for each other."""
    cfg = runs.configure(
        **SGD,
        lora={"rank": 2},
        evaluation={"every": 5},
        train={"batch_size": 16, "duration": "60 steps", "accumulation": 2},
    )
    finish(start_many(tmp_path / "run", cfg, 2, devices=2))
    assert list(runs.trace(tmp_path / "run", "test/top1")) == list(range(5, 61, 5))


@pytest.mark.slow
def test_replayed_steps_of_two_processes_agree(tmp_path):
    cfg = runs.configure(train={"replay": 2, "duration": 12}, **SGD)
    finish(start_many(tmp_path / "replayed", cfg, 2))
    finish(start_many(tmp_path / "once", runs.configure(train={"duration": 12}, **SGD), 2))
    runs.assert_equal_runs(tmp_path / "replayed", tmp_path / "once")


# Processes, devices of each, fsdp, microbatches, and the step at which a signal comes.
SLICES = [
    pytest.param([(1, 8, 2, 2, 9), (1, 4, 4, 4, 21), (1, 16, 1, 1, None)], id="devices"),
    pytest.param([(2, 1, 1, 8, 2), (4, 2, 4, 2, 11), (1, 1, 1, 16, None)], id="processes"),
    pytest.param(
        [(4, 1, 1, 4, 11), (2, 4, 2, 2, 21), (1, 2, 1, 8, None)], id="fewer", marks=pytest.mark.long
    ),
    pytest.param(
        [(2, 1, 1, 8, 11), (1, 1, 1, 16, 21), (4, 2, 4, 2, None)], id="more", marks=pytest.mark.long
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("slices", SLICES)
def test_a_run_goes_on_elsewhere(slices, tmp_path):
    cfg = runs.configure(**SGD, train={"microbatch": 2}, model={"dropout": 0.0})
    train_loop.train(cfg, tmp_path / "oracle")
    workdir = tmp_path / "run"
    command, ids = runs.command(workdir, cfg=cfg), {}
    for part, (count, devices, fsdp, accumulation, stop) in enumerate(slices):
        recorded = tmp_path / str(part)
        arguments = [*command[3:], f"--config.mesh.fsdp={fsdp}"]
        finish(
            [
                runs.start([*recording.command(recorded, number, stop), *arguments], env=variables)
                for number, variables in enumerate(runs.environments(count, devices))
            ],
            code=75 if stop else 0,
        )
        params_of(workdir)  # whatever has saved it, one process restores it
        stored = directory.reconcile(workdir, None, {})
        assert stored.train.accumulation == accumulation
        for number in range(count):
            for step, rows in recording.read(recorded, number).items():
                ids.setdefault(step, []).extend(rows)
                assert len(rows) == cfg.train.batch_size // count
    assert {step: len(rows) for step, rows in ids.items()} == dict.fromkeys(
        range(1, runs.STEPS + 1), cfg.train.batch_size
    )
    # The processes of all slices together have read every image of each epoch once.
    order = [np.array(ids[step]) for step in sorted(ids)]
    whole = len(np.concatenate(order)) // 200
    epochs = np.concatenate(order)[: 200 * whole]
    assert np.bincount(epochs).tolist() == [whole] * 200
    assert_close(workdir, tmp_path / "oracle")


@pytest.mark.parametrize(
    ("devices", "microbatch", "expected"),
    [(8, None, 1), (8, 4, 1), (8, 2, 2), (4, 2, 4), (1, 2, 16), (1, 3, 16), (16, 64, 1), (5, 2, 1)],
)
def test_accumulation_follows_the_devices(devices, microbatch, expected):
    cfg = runs.configure(train={"microbatch": microbatch})
    assert checks.with_accumulation(cfg, devices).train.accumulation == expected
    if microbatch is None:
        assert checks.with_accumulation(cfg, devices) is cfg
