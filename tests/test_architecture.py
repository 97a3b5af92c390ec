"""The rules of the house, read from the source: layers, docstrings, what importing costs."""

import ast
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "vit_jax"
FILES = sorted(p for p in PACKAGE.rglob("*.py") if "configs" not in p.parts)

# A module imports only from layers above its own; packages of one layer do not import each other,
# modules of one package may.
LAYERS = (
    {"utils"},
    {"config"},
    {"models", "runtime"},
    {"checkpoints", "listing", "pages", "weights"},
    {"data"},
    {"training"},
    {"preflight"},
    {"evaluation"},
    {"inference"},
    {"runs"},
    {"train_loop"},
    {"benchmarks", "studies"},
    {"api"},
    {"__init__"},
    {"cli"},
    {"__main__"},
)
LAYER = {name: number for number, names in enumerate(LAYERS) for name in names}


def package_of(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path):
    """Yields the modules and packages of vit_jax that a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level:
            names = ["vit_jax.relative import"]
        elif isinstance(node, ast.ImportFrom) and node.module == "vit_jax":
            names = [f"vit_jax.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            continue
        yield from (name.split(".")[1] for name in names if name.startswith("vit_jax."))


def test_every_package_is_in_one_layer():
    packages = {package_of(path) for path in FILES}
    assert packages == set(LAYER)
    assert len(LAYER) == sum(map(len, LAYERS))


def test_the_documentation_shows_these_layers():
    text = (ROOT / "docs" / "design.md").read_text().replace("      < ", "    ")
    shown = [set(line.strip().split(", ")) for line in text.split("\n") if line[:4] == "    "]
    assert shown == [names for names in LAYERS if names != {"__main__"}]


def test_imports_only_from_layers_above():
    offenders = [
        f"{path.relative_to(PACKAGE)} imports {other}"
        for path in FILES
        for other in imported(path)
        if other not in ("__version__", package_of(path))
        and not LAYER.get(other, len(LAYERS)) < LAYER.get(package_of(path), 0)
    ]
    assert not offenders


def test_architectures_are_compared_only_in_models():
    """Elsewhere a family answers: a comparison with a name would leave plug-ins out."""

    def named(node):
        return (isinstance(node, ast.Attribute) and node.attr == "architecture") or any(
            isinstance(child, ast.Attribute) and child.attr == "architecture"
            for child in ast.iter_child_nodes(node)
        )

    offenders = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Compare) and any(map(named, (node.left, *node.comparators)))
    ]
    assert not offenders


def test_public_things_have_docstrings():
    kinds = (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)

    def public(body):
        for node in body:
            if isinstance(node, kinds) and not node.name.startswith("_"):
                yield node
                if isinstance(node, ast.ClassDef):
                    yield from public(node.body)

    offenders = []
    for path in FILES:
        tree = ast.parse(path.read_text())
        if not ast.get_docstring(tree):
            offenders.append(str(path))
        offenders += [f"{path}: {n.name}" for n in public(tree.body) if not ast.get_docstring(n)]
    assert not offenders


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
        "import vit_jax.train_loop, vit_jax.inference.prediction, vit_jax.benchmarks, "
        "vit_jax.pages.curves"
    )
    assert "jax" in loaded
    assert not loaded & {"tensorflow", "torch", "timm", "transformers", "tensorflow_datasets"}


def test_no_unsafe_loading():
    unsafe = {("pickle", "load"), ("pickle", "loads"), ("yaml", "load")}
    offenders = []
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            name = node.func if isinstance(node, ast.Call) else None
            called = getattr(name, "attr", getattr(name, "id", ""))
            owner = getattr(getattr(name, "value", None), "id", "")
            risky = [
                keyword
                for keyword in getattr(node, "keywords", [])
                if keyword.arg in ("allow_pickle", "shell") and getattr(keyword.value, "value", 0)
            ]
            if called in ("eval", "exec") or (owner, called) in unsafe or risky:
                offenders.append(f"{path.relative_to(PACKAGE)}:{node.lineno}")
    assert not offenders


def test_ruff_is_clean():
    for command in (["check"], ["format", "--check"]):
        run = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "."], cwd=ROOT, capture_output=True, text=True
        )
        assert run.returncode == 0, run.stdout + run.stderr
