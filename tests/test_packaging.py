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


@pytest.mark.parametrize("kept", [True, False])
def test_launchers_leave_byte_code_to_the_first_import_that_keeps_it(tmp_path, kept):
    (tmp_path / "launch").mkdir()
    (tmp_path / "vit_jax" / "data" / "jpeg").mkdir(parents=True)
    for name in ("pyproject.toml", "setup.py", "launch/setup.sh", "vit_jax/data/jpeg/_jpeg.c"):
        (tmp_path / name).write_text((runs.ROOT / name).read_text())
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    environment = os.environ | {"PYTHON": str(python), "LOWEST": ""}
    environment |= {"PYTHONDONTWRITEBYTECODE": "" if kept else "1"}
    command = ["bash", "-euc", "source launch/setup.sh; set_up '[test]'"]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
    asked = (tmp_path / ".venv" / "pip").read_text()
    assert ("--no-compile" in asked) == kept
    assert asked.endswith(f"-e {tmp_path}[test]\n")


def test_the_files_that_ci_names_are_there():
    named = re.findall(r"\btests/[\w/{},.]+", (runs.ROOT / ".ci/run").read_text(encoding="utf-8"))
    command = ["bash", "-c", f"printf '%s\\n' {' '.join(named)}"]  # braces name several
    paths = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert len(paths) > 20
    assert [path for path in paths if not (runs.ROOT / path).exists()] == []
