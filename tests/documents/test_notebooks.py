"""Every notebook is stored without outputs, and runs from the first cell to the last."""

import json
import os
import sys

import pytest

import documents
import runs

NOTEBOOKS = sorted((documents.DOCS / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_outputs_and_installs_first(path):
    book = json.loads(path.read_text())
    code = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert "%pip install" in "".join(code[0]["source"])
    assert f"]({path.name})" in (path.parent / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the packages that execute it
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path, monkeypatch):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    pytest.importorskip("pandas")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", runs.PATHS)
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    # What its shell lines call.
    script = tmp_path / "vit_jax"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m vit_jax "$@"\n')
    script.chmod(0o755)
    book = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(book, timeout=600, resources=resources).execute()
    printed = [output.get("text", "") for cell in book.cells for output in cell.get("outputs", ())]
    assert not [text for text in printed if "vit_jax: " in text]  # an error of a shell line
