"""Options that the user leaves open and the machine decides; no result depends on them."""

import os
import sys

import pytest

from vit_jax import config
from vit_jax.data import pipeline
from vit_jax.training import build
from vit_jax.utils import machine


@pytest.mark.parametrize(
    ("model", "platform", "expected"),
    [
        ({"depth": 12}, "tpu", 12),
        ({"depth": 12, "unroll": 3}, "tpu", 3),
        ({"depth": 12, "remat": "full"}, "cpu", 12),
        ({"resnet_units": (3, 4, 6, 3)}, "gpu", 1),
        ({"resnet_units": (3, 4, 6, 3)}, "cpu", 6),  # no loop over convolutions
        ({"depth": 2, "resnet_units": (3, 4, 9)}, "cpu", 9),
        ({"depth": 2, "resnet_units": (3, 4, 9)}, "tpu", 2),
    ],
)
def test_loops_are_unrolled_for_training(model, platform, expected):
    assert build.unroll(config.Model(**model), platform) == expected


@pytest.mark.parametrize(
    ("data", "cores", "expected"),
    [
        ({"source": "folder"}, 7, 0),
        ({"source": "folder"}, 8, 2),
        ({"source": "csv"}, 6, 0),
        ({"source": "tfds"}, 96, 16),
        ({"source": "digits"}, 96, 0),
        ({"source": "folder", "workers": 0}, 96, 0),
        ({"source": "digits", "workers": 3}, 2, 3),
    ],
)
def test_images_are_loaded_by_a_process_for_every_four_cores(data, cores, expected, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(cores))
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "bin/vit_jax", raising=False)
    assert pipeline.loader_processes(config.Data(**data)) == expected


@pytest.mark.parametrize(
    ("own", "limits", "cores", "memory"),
    [
        # `0::/` is what a container sees of its own.
        ("0::/\n", {"cpu.max": "250000 100000\n", "memory.max": "1048576\n"}, 3, 2**20),
        ("0::/\n", {"cpu.max": "max 100000\n", "memory.max": "max\n"}, 4, None),
        (
            "1:cpu:/x\n0::/job/step\n",  # the tightest limit counts
            {"job/cpu.max": "200000 100000", "job/step/cpu.max": "max 100000", "memory.max": "7"},
            2,
            7,
        ),
        ("0::/../other\n", {"cpu.max": "50000 100000"}, 1, None),
        ("1:cpu:/x\n", {"cpu.max": "50000 100000"}, 4, None),  # of version 1
        (None, {}, 4, None),
    ],
    ids=["container", "none", "nested", "outside", "version-1", "no-cgroups"],
)
def test_limits_of_a_container_count(own, limits, cores, memory, monkeypatch, tmp_path):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(4))
    monkeypatch.setattr(machine, "CGROUPS", tmp_path / "cgroups")
    monkeypatch.setattr(machine, "OWN", tmp_path / "own")
    for name, value in limits.items():
        (tmp_path / "cgroups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cgroups" / name).write_text(value)
    if own is not None:
        (tmp_path / "own").write_text(own)
    assert machine.cores() == cores
    assert machine.memory() == memory or (memory is None and machine.memory() > 2**28)


def test_a_cell_of_a_study_has_loader_processes_too(monkeypatch):
    main = sys.modules["__main__"]
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(96))
    monkeypatch.setattr(main, "__file__", "vit_jax/studies/worker.py", raising=False)
    monkeypatch.setattr(main, "__package__", "vit_jax.studies")  # as `python -m` sets it
    assert pipeline.loader_processes(config.Data(source="folder")) == 16


def test_a_script_of_ones_own_is_not_run_again_unasked(monkeypatch):
    """Processes import it, and it need not have a `__main__` guard."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(96))
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "/home/me/my_run.py", raising=False)
    assert pipeline.loader_processes(config.Data(source="folder")) == 0
    assert pipeline.loader_processes(config.Data(source="folder", workers=4)) == 4
