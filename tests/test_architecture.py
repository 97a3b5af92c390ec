"""Rules of the source that neither ruff nor the import linter can state."""

import ast
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "vit_jax"


def test_architectures_are_compared_only_in_models():
    """Elsewhere a family answers: a comparison with a name would leave plug-ins out."""

    def named(node):
        return (isinstance(node, ast.Attribute) and node.attr == "architecture") or any(
            isinstance(child, ast.Attribute) and child.attr == "architecture"
            for child in ast.iter_child_nodes(node)
        )

    offenders = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Compare)
        and {True, False} == set(map(named, (node.left, *node.comparators)))
    ]
    assert not offenders


def test_no_array_file_may_run_code():
    """ruff refuses pickle, eval and yaml.load; numpy's files hold pickles where this is set."""
    assert not [path for path in PACKAGE.rglob("*.py") if "allow_pickle=True" in path.read_text()]


def test_nothing_imports_a_test():
    """What tests share is a helper or a fixture; a test stays one file that can be read alone."""
    imports = re.compile(r"^\s*(?:from|import) +(?:[\w.]+\.)?test_\w+", re.MULTILINE)
    paths = [path for folder in ("tests", "research") for path in (ROOT / folder).rglob("*.py")]
    assert [path for path in paths if imports.search(path.read_text())] == []


HEAVY = {"jax", "numpy", "flax", "optax", "orbax", "grain", "cv2", "PIL", "matplotlib"}


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        ("vit_jax; vit_jax.register", HEAVY),
        ("vit_jax.cli; vit_jax.cli.main(['list'])", HEAVY),
        pytest.param(
            "vit_jax.train_loop, vit_jax.inference.prediction, vit_jax.pages.curves",
            {"tensorflow", "torch", "timm", "transformers", "tensorflow_datasets"},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_an_import_does_not_load(modules, absent):
    """Listing the catalog builds no optimizer of its configs."""
    code = f"import sys, {modules}; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert not absent & set(loaded)
