"""When the files of a run in a bucket are brought there a last time."""

import pytest

from vit_jax.runtime import run_files
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
