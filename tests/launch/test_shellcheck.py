"""Every script in launch/ is what shellcheck would have it be."""

import pathlib
import shutil
import subprocess
import sys

import pytest

import worlds

SHELLCHECK = shutil.which(
    "shellcheck", path=str(pathlib.Path(sys.executable).parent)
) or shutil.which("shellcheck")


@pytest.mark.skipif(SHELLCHECK is None, reason="shellcheck is not installed")
def test_scripts_are_clean():
    scripts = sorted((worlds.ROOT / "launch").glob("*.sh"))
    checked = subprocess.run(
        [SHELLCHECK, "-x", *scripts], capture_output=True, text=True, cwd=worlds.ROOT
    )
    assert checked.returncode == 0, checked.stdout
