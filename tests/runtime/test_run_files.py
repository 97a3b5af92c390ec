"""When the files of a run in a bucket are brought there a last time."""

import json

import pytest

import runs
from vit_jax import config
from vit_jax.runtime import logs, run_files
from vit_jax.utils.errors import LeaseLost


class Files(run_files.RunFiles):
    def __init__(self, folder):
        self.folder, self.done = folder, []
        self._goodput = None
        self._metrics = self._mirror = self

    def close(self):
        self.done.append("closed")

    def bring(self, *, now):
        self.done.append(f"brought now={now}")


@pytest.mark.parametrize("error", [None, ValueError, LeaseLost])
def test_a_process_that_lost_the_run_brings_nothing(error, tmp_path):
    files = Files(tmp_path)
    files.__exit__(error, error and error("why"), None)
    assert files.done == ["closed", *(["brought now=True"] if error is not LeaseLost else [])]


def test_processes_but_the_first_have_no_files():
    files = Files(None)
    files.__exit__(None, None, None)
    assert files.done == []


def test_the_config_of_a_run_is_kept_and_loggers_may_read_it(tmp_path, monkeypatch):
    cfg, seen = runs.configure(seed=7), []

    class Logger(logs.Metrics):
        def __init__(self, folder, **options):
            super().__init__(folder, **options)
            seen.append(json.loads((folder / "config.json").read_text()))

    monkeypatch.setattr(logs, "Metrics", Logger)
    with runs.session(tmp_path).open_files(cfg) as files:
        assert not (tmp_path / "config.json").exists()  # a resume may still be refused
        files.open(cfg)
    assert [config.build(stored) for stored in seen] == [cfg]


@pytest.mark.parametrize("alone", [True, False])
def test_a_failure_is_of_the_state_where_it_says_so_or_there_are_no_peers(alone, monkeypatch):
    monkeypatch.setattr(run_files.jax, "process_count", lambda: 1 if alone else 2)
    mine = type("Mine", (config.UserError,), {"from_state": True})
    assert run_files._from_state(mine("loss is not finite"))
    assert not run_files._from_state(config.UserError("the disk is full"))
    assert run_files._from_state(ValueError("XLA")) == alone
