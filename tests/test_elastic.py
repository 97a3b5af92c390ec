"""A run goes on with other processes, devices and meshes: the same images, the same numbers."""

import numpy as np
import pytest

import recording
import runs
from test_multihost import SGD, assert_close, finish, params_of
from vit_jax import config, train_loop
from vit_jax.config import checks
from vit_jax.runs import directory

# Processes, devices of each, fsdp, microbatches, and the step at which a signal comes.
SLICES = [
    pytest.param([(1, 8, 2, 2, 9), (1, 4, 4, 4, 21), (1, 16, 1, 1, None)], id="devices"),
    pytest.param(
        [(2, 1, 1, 8, 2), (1, 1, 1, 16, 11), (4, 2, 4, 2, 21), (2, 4, 2, 2, None)], id="processes"
    ),
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


def test_a_mesh_that_does_not_fit_the_new_slice_is_one_line():
    cfg = runs.configure(mesh={"fsdp": 8})
    with pytest.raises(config.ConfigError, match="mesh.fsdp=8: does not divide the 4 devices; ne"):
        checks.check_devices(checks.with_accumulation(cfg, 4), 4)
