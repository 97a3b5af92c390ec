"""What an installation takes: the packages that `pip install vit_jax` brings, and their size."""

import importlib.metadata
import os
import re
import subprocess

import pytest
from packaging.requirements import Requirement

import runs

BAR = 1.2e9  # bytes, without the byte code that Python writes when modules are first imported


def brought(name):
    """The distributions that one needs, itself included, by name."""
    found, left = {}, [Requirement(name)]
    while left:
        wanted = left.pop()
        extras, key = wanted.extras or {""}, re.sub("[-_.]+", "-", wanted.name).lower()
        if key in found and extras == {""}:
            continue
        found[key] = one = importlib.metadata.distribution(wanted.name)
        for text in one.requires or ():
            need = Requirement(text)
            if need.marker is None or any(need.marker.evaluate({"extra": e}) for e in extras):
                left.append(need)
    return found


@pytest.fixture(scope="module")
def sizes():
    """Bytes by distribution, from the records that pip wrote; byte code has no size there."""
    found = brought("vit_jax")
    return {name: sum(file.size or 0 for file in one.files or ()) for name, one in found.items()}


def test_an_installation_stays_below_the_bar(sizes):
    assert 0.9e9 < sum(sizes.values()) < BAR  # a lower sum would have missed packages


PYTHON = """#!/bin/bash
case "$1 $2" in
  "-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  "-m pip") echo "$*" >"$(dirname "$0")/../pip" ;;
  *) echo 3.11 ;;
esac
"""


COPIED = (
    "pyproject.toml", "setup.py", "launch/setup.sh", "launch/requirements.lock",
    "vit_jax/data/jpeg/_jpeg.c",
)  # fmt: skip


@pytest.fixture
def set_up(tmp_path):
    """Sets up a checkout in `tmp_path`; returns what is said."""
    (tmp_path / "launch").mkdir()
    (tmp_path / "vit_jax" / "data" / "jpeg").mkdir(parents=True)
    for name in COPIED:
        (tmp_path / name).write_text((runs.ROOT / name).read_text())
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)

    def run(**variables):
        environment = os.environ | {"PYTHON": str(python), "LOWEST": "", "LOCKED": ""} | variables
        command = ["bash", "-euc", "source launch/setup.sh; set_up '[test]'"]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
        ).stdout

    return run


@pytest.mark.parametrize("kept", [True, False])
def test_launchers_leave_byte_code_to_the_first_import_that_keeps_it(set_up, tmp_path, kept):
    set_up(PYTHONDONTWRITEBYTECODE="" if kept else "1")
    asked = (tmp_path / ".venv" / "pip").read_text()
    assert ("--no-compile" in asked) == kept
    assert asked.endswith(f"-e {tmp_path}[test]\n")


def test_launchers_install_again_what_the_lock_names_anew(set_up, tmp_path):
    assert [set_up(LOCKED="1").split()[0] for _ in range(2)] == ["Installing", "Using"]
    (tmp_path / "launch/requirements.lock").write_text("jax==1\n")
    assert set_up(LOCKED="1").startswith("Installing")


def test_the_files_that_ci_names_are_there():
    named = re.findall(r"\btests/[\w/{},.]+", (runs.ROOT / ".ci/run").read_text(encoding="utf-8"))
    command = ["bash", "-c", f"printf '%s\\n' {' '.join(named)}"]  # braces name several
    paths = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert len(paths) > 20
    assert [path for path in paths if not (runs.ROOT / path).exists()] == []
