"""The rules of the house, read from the source: layers, docstrings, what importing costs."""

import ast
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "vit_jax"
FILES = sorted(p for p in PACKAGE.rglob("*.py") if "configs" not in p.parts)

# A module imports only from rooms to its left; rooms in one group do not know each other,
# modules of one room may.
LAYERS = [
    {
        "messages",
        "options",
        "config",
        "arguments",
        "checks",
        "trees",
        "logs",
        "catalog",
        "exhibits",
        "paper",
        "host",
        "locking",
        "peers",
        "places",
        "console",
        "backend",
        "progress",
    },
    {"models", "data"},
    {"checkpoints", "weights"},
    {"training"},
    {"evaluators"},
    {"reports"},
    {
        "opening",
        "convert",
        "embed",
        "export",
        "inspect",
        "run",
        "predict",
        "report",
        "bench",
        "listing",
        "smoke",
        "preflight",
        "prepare",
        "transfer",
    },
    {"reproduce"},
    {"commands"},
    {"verbs"},
    {"cli"},
]
# Files that stand on their own in a room of several: who among them may import whom.
INSIDE = {
    ("options", "messages"),
    ("logs", "messages"),
    ("arguments", "messages"),
    ("arguments", "places"),
    ("config", "options"),
    ("checks", "config"),
    ("bench", "preflight"),
    ("catalog", "config"),
    ("exhibits", "config"),
    ("host", "config"),
    ("locking", "config"),
    ("locking", "logs"),
    ("locking", "places"),
    ("peers", "config"),
    ("peers", "logs"),
    ("peers", "messages"),
    ("peers", "places"),
    ("places", "config"),
    ("logs", "places"),
    ("logs", "config"),
    ("progress", "logs"),
    ("convert", "opening"),
    ("embed", "opening"),
    ("export", "predict"),
    ("inspect", "opening"),
    ("inspect", "predict"),
    ("predict", "opening"),
    ("report", "predict"),
    ("run", "opening"),
    ("run", "smoke"),
    ("transfer", "opening"),
    ("transfer", "run"),
}
EVERYWHERE = {"__version__"}


def rank(room):
    return next(i for i, layer in enumerate(LAYERS) if room in layer)


def room_of(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_rooms(path):
    """Yields the rooms of vit_jax that a file imports, wherever in the file it does."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("vit_jax."):
                    yield alias.name.split(".")[1]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            if node.module == "vit_jax":
                yield from (a.name for a in node.names if a.name not in EVERYWHERE)
            elif node.module.startswith("vit_jax."):
                yield node.module.split(".")[1]
        elif isinstance(node, ast.ImportFrom) and node.level:
            pytest.fail(f"{path}: relative import")


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_only_to_the_left(path):
    room = room_of(path)
    if room in ("__init__", "__main__"):
        assert set(imported_rooms(path)) <= ({"cli"} if room == "__main__" else set())
        return
    for other in imported_rooms(path):
        allowed = other == room or rank(other) < rank(room) or (room, other) in INSIDE
        assert allowed, f"{path.name} ({room}) imports {other}"


def test_every_module_is_in_a_layer():
    rooms = {room_of(path) for path in FILES} - {"__init__", "__main__"}
    assert rooms == set().union(*LAYERS)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_public_things_have_docstrings(path):
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree), path
    kinds = (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)

    def public(body):
        for node in body:
            if isinstance(node, kinds) and not node.name.startswith("_"):
                yield node
                if isinstance(node, ast.ClassDef):
                    yield from public(node.body)

    missing = [node.name for node in public(tree.body) if not ast.get_docstring(node)]
    # Protocol members and dataclass hooks say what they do in the class docstring.
    assert not missing, f"{path}: {missing}"


def modules_after(statement):
    code = f"import sys; {statement}; print(' '.join(sys.modules))"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(run.stdout.split())


def test_importing_the_package_and_the_command_line_is_light():
    heavy = {
        "jax",
        "numpy",
        "flax",
        "optax",
        "orbax",
        "grain",
        "cv2",
        "matplotlib",
        "tensorflow_datasets",
    }
    assert not modules_after("import vit_jax") & heavy
    assert not modules_after("import vit_jax.cli") & heavy


def test_no_tensorflow_or_torch_at_run_time():
    loaded = modules_after(
        "import vit_jax.run, vit_jax.predict, vit_jax.benchmarks, vit_jax.reports.curves"
    )
    assert "jax" in loaded
    assert not loaded & {"tensorflow", "torch", "timm", "transformers", "tensorflow_datasets"}


def test_no_unsafe_loading():
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            name = node.func if isinstance(node, ast.Call) else None
            called = getattr(name, "attr", getattr(name, "id", ""))
            owner = getattr(getattr(name, "value", None), "id", "")
            assert called not in ("eval", "exec"), path
            assert (owner, called) not in {
                ("pickle", "load"),
                ("pickle", "loads"),
                ("yaml", "load"),
            }, path
            for keyword in getattr(node, "keywords", []):
                risky = keyword.arg in ("allow_pickle", "shell")
                assert not (risky and getattr(keyword.value, "value", False)), path


def test_ruff_is_clean():
    for command in (["check"], ["format", "--check"]):
        run = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "."], cwd=ROOT, capture_output=True, text=True
        )
        assert run.returncode == 0, run.stdout + run.stderr
