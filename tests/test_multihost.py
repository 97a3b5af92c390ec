"""Two real processes (jax.distributed, gloo) train as one."""

import signal
import socket
import time

import jax
import numpy as np
import pytest

import runs
from vit_jax import config, opening, run, trees

# SGD: under Adam the key bias, whose true gradient is zero, amplifies rounding.
SGD = {"optimizer": {"name": "sgd", "lr": 0.1}, "mesh": {"fsdp_min_size": 1}}


def start_two(workdir, cfg, devices=1):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    return [
        runs.start(
            runs.command(workdir, cfg=cfg),
            env=runs.environment(
                devices,
                JAX_COORDINATOR_ADDRESS=address,
                JAX_NUM_PROCESSES="2",
                JAX_PROCESS_ID=str(number),
            ),
        )
        for number in range(2)
    ]


def finish(processes, code=0):
    for process in processes:
        output, _ = process.communicate(timeout=240)
        assert process.returncode == code, output


def params_of(workdir):
    directory, step, record = opening.find(workdir)
    cfg = opening.complete(config.build(record["config"]))
    return step, trees.flatten(jax.device_get(opening.load_params(directory, step, cfg)))


@pytest.mark.parametrize("fsdp", [1, 2])
def test_two_processes_as_one(fsdp, tmp_path):
    cfg = runs.configure(**SGD | {"mesh": {"fsdp": fsdp, "fsdp_min_size": 1}})
    run.train(cfg, tmp_path / "one")
    finish(start_two(tmp_path / "two", cfg))
    # Process 0 loads the first half of each batch: same images, same order, same numbers.
    one, two = (runs.trace(tmp_path / name) for name in ("one", "two"))
    assert one.keys() == two.keys()
    np.testing.assert_allclose(list(two.values()), list(one.values()), rtol=2e-6)
    for key in ("test/top1", "test/count"):
        assert runs.trace(tmp_path / "two", key) == runs.trace(tmp_path / "one", key)
    step, ours = params_of(tmp_path / "two")
    assert step == runs.STEPS
    for name, value in params_of(tmp_path / "one")[1].items():
        np.testing.assert_allclose(ours[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


def test_a_signal_to_one_stops_both_at_one_step_and_one_process_resumes(tmp_path):
    workdir = tmp_path / "run"
    cfg = runs.configure(train={"duration": 300}, **SGD)
    processes = start_two(workdir, cfg)
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
