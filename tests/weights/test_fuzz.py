"""Damaged files by the thousand, each of which is refused in one way or read right.

Damage is drawn from a seed: bits flipped, bytes overwritten, files cut, blocks copied, inserted and
removed, anywhere or in the tables alone, and tables edited so that lengths and checksums are right.
"""

import contextlib
import dataclasses
import functools
import io
import json
import pathlib
import re
import resource
import shutil
import zipfile

import numpy as np
import pytest

import foreign
import hostile
from containers import FIXTURES, write
from vit_jax import config, models, weights
from vit_jax.utils import tree_utils
from vit_jax.weights import exporting, mapping, readers

MODEL = config.Model(
    patch_size=(4, 4), width=8, depth=1, mlp_dim=8, heads=2, num_classes=3, pooling="gap",
    patch_remainder="drop",
)  # fmt: skip
FACTS = mapping.ModelSpec(model=MODEL, data=config.Data(image_size=(8, 8)))


def edit(rng, text):
    """A table of ASCII with one to three characters replaced, removed or put in."""
    characters = list(text.decode("latin1"))
    for _ in range(rng.integers(1, 4)):
        at = int(rng.integers(len(characters)))
        new = str(rng.choice(list("0123456789-.eE,:;'\"()[]{}\\/ <>=|_aflrtuNTV\n\x00")))
        characters[at : at + int(rng.integers(0, 2))] = [new] * int(rng.integers(0, 2))
    return "".join(characters).encode("latin1")


def edited_npz(rng, content):
    """An archive with the name or the header of one array edited, its checksum right."""
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(stream, "w") as new:
        victim = int(rng.integers(len(old.namelist())))
        for number, name in enumerate(old.namelist()):
            member = old.read(name)
            if number == victim and rng.random() < 0.3:
                name = edit(rng, name.encode()).decode("latin1")
            elif number == victim:
                member = member[:10] + edit(rng, member[10:70]) + member[70:]
            new.writestr(name, member)
    return stream.getvalue()


def edited_safetensors(rng, content):
    """A file with its header edited, the length of the header right."""
    length = int.from_bytes(content[:8], "little")
    header = edit(rng, content[8 : 8 + length])
    return len(header).to_bytes(8, "little") + header + content[8 + length :]


def damaged(rng, content, tables, edited):
    """The content of a file with some damage; `tables` is where its tables are."""
    kind = int(rng.integers(15))
    if kind >= 12:
        return edited(rng, content)
    start, end = tables if kind % 2 else (0, len(content))
    edits = [(*rng.integers(0, 2**31, 3).tolist(), rng.bytes(4))]
    return content[:start] + hostile.damaged(content[start:end], edits) + content[end:]


@contextlib.contextmanager
def bounded(extra=128 * 2**20):
    """Lets the process have no more than so many bytes of memory more than it has."""
    size = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size + extra, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


@pytest.fixture
def params(monkeypatch):
    """Parameters of a tiny model; models that were made once are not made again."""
    monkeypatch.setattr(models, "create", functools.cache(models.create))
    return foreign.parameters(FACTS)


@pytest.fixture
def arrays(params):
    return foreign.exported(params, FACTS, "google")


def same(one, other):
    return all(np.array_equal(array, other[name]) for name, array in one.items())


def load(path):
    """The weights at a path, or None if they are refused, which takes one line."""
    try:
        return weights.load(path)
    except weights.WeightsError as error:
        told = str(error)
    assert len(told.splitlines()) == 1
    return None


def check(path, params, *, exact):
    """Whether a file is accepted; then it must be read right, or else look as it should."""
    loaded = load(path)
    if loaded is None:
        return False
    given, expected = tree_utils.flatten(loaded.params), tree_utils.flatten(params)
    assert {n: a.shape for n, a in given.items()} == {n: a.shape for n, a in expected.items()}
    assert loaded.spec.model == models.complete(MODEL)
    assert all(np.isfinite(array).all() for array in given.values())
    assert not exact or same(given, expected)
    return True


COUNTS = [pytest.param(200), pytest.param(10_000, marks=pytest.mark.long)]


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz(tmp_path, params, arrays, save, count):
    """Every array has a checksum: what is accepted is right to the last bit."""
    path = tmp_path / "a.npz"
    save(path, **arrays)
    content = path.read_bytes()
    assert check(path, params, exact=True)
    rng, accepted = np.random.default_rng(1), 0
    tables = content.index(b"PK\x01\x02"), len(content)
    with bounded(), hostile.nothing_runs():
        for _ in range(count):
            path.write_bytes(damaged(rng, content, tables, edited_npz))
            accepted += check(path, params, exact=True)
    # Dates, rights and comments matter to no one.
    assert 0.02 * count < accepted < 0.3 * count


@pytest.mark.parametrize("count", COUNTS)
def test_safetensors(tmp_path, params, arrays, count):
    """Numbers have no checksum; whatever is damaged in the header is noticed."""
    path = write(tmp_path / "a.safetensors", arrays)
    content = path.read_bytes()
    assert check(path, params, exact=True)
    rng, accepted = np.random.default_rng(2), 0
    end = 8 + int.from_bytes(content[:8], "little")
    with bounded(), hostile.nothing_runs():
        for _ in range(count):
            given = damaged(rng, content, (0, end), edited_safetensors)
            path.write_bytes(given)
            accepted += check(path, params, exact=given.endswith(content[end:]))
    assert 0.02 * count < accepted < 0.3 * count


@pytest.mark.parametrize("count", COUNTS)
def test_index(tmp_path, params, arrays, count):
    """The file that says which shard holds which array."""
    names = sorted(arrays)
    places = {name: f"{'ab'[i % 2]}.safetensors" for i, name in enumerate(names)}
    for shard in "ab":
        held = {n: arrays[n] for n in names if places[n] == f"{shard}.safetensors"}
        write(tmp_path / f"{shard}.safetensors", held)
    path = tmp_path / "model.safetensors.index.json"
    content = json.dumps({"metadata": {"total_size": 9}, "weight_map": places}).encode()
    path.write_bytes(content)
    assert check(tmp_path, params, exact=True)
    rng, accepted = np.random.default_rng(3), 0
    with bounded(), hostile.nothing_runs():
        for _ in range(count):
            path.write_bytes(damaged(rng, content, (0, len(content)), edit))
            accepted += check(tmp_path, params, exact=True)
    assert 0.005 * count < accepted < 0.3 * count


HEADS = dataclasses.replace(MODEL, pooling="token", gelu="erf")


def sizes(params):
    return {name: array.size for name, array in tree_utils.flatten(params).items()}


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("project", ["timm", "hf"])
def test_documents(tmp_path, params, project, count):
    """What stands in config.json is believed where it fits the arrays, and nothing else is."""
    names = ("tench", "goldfish", "great white shark")
    epsilon = 1e-6 if project == "timm" else 1e-12
    resize = "antialiased_bicubic" if project == "timm" else "bicubic"
    known = dataclasses.replace(HEADS, norm_epsilon=epsilon, position_resize=resize)
    model = models.complete(known)
    facts = dataclasses.replace(FACTS, model=model, classes=names)
    rng, expected = np.random.default_rng(4), foreign.parameters(facts)
    arrays = foreign.exported(expected, facts, project)
    write(tmp_path / "model.safetensors", arrays)
    documents = exporting.find_family(facts, project).files(facts)
    contents = {name: json.dumps(fields).encode() for name, fields in documents.items()}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    loaded = weights.load(tmp_path)
    assert loaded.spec.model == facts.model
    assert loaded.spec.classes == names
    assert same(tree_utils.flatten(loaded.params), tree_utils.flatten(expected))
    accepted = 0
    with bounded(), hostile.nothing_runs():
        for _ in range(count):
            name = str(rng.choice(sorted(contents)))
            content = contents[name]
            (tmp_path / name).write_bytes(damaged(rng, content, (0, len(content)), edit))
            given = load(tmp_path)
            if given is not None:
                accepted += 1
                assert sizes(given.params) == sizes(expected)
            (tmp_path / name).write_bytes(content)
    assert 0.02 * count < accepted < 0.6 * count


SIDES = [0, 1, 2, 3, 5, 7, 8, 16, 24, 31, 32, 33, 64, 100]


def misshapen(rng, shapes):
    """Shapes by name of which up to three are changed, gone, or under another number."""
    found = dict(shapes)
    for name in rng.choice(sorted(found), rng.integers(1, 4), replace=False).tolist():
        shape, kind = list(found.pop(name)), int(rng.integers(6))
        if kind < 2:
            shape[rng.integers(len(shape))] = int(rng.choice(SIDES))
        elif kind == 2:
            shape = shape[1:] if rng.random() < 0.5 else [1, *shape]
        elif kind == 3:
            shape[:2] = [0, 2**20]  # no numbers at all, but what a shape
        elif kind == 4:
            number = str(rng.choice([0, 1, 2, 5, 9, 99, 1000]))
            name = re.sub(r"\d+", number, name, count=1)
        if kind < 5:
            found[name] = tuple(shape)
    return found


@pytest.mark.parametrize("count", [pytest.param(15), pytest.param(1000, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "name", ["vit_tiny_token", "bv_vit_map", "hybrid_tiny", "timm_vit_tiny", "hf_vit_tiny"]
)
def test_shapes(tmp_path, monkeypatch, name, count):
    """Sound files of models that cannot be: every one is told of, none brings the program down."""
    monkeypatch.setattr(models, "create", functools.cache(models.create))
    source = {
        "timm_vit_tiny": FIXTURES / "weights" / "timm_vit_tiny.safetensors",
        "hf_vit_tiny": FIXTURES / "weights" / "hf_vit_tiny",
    }.get(name, FIXTURES / f"{name}.npz")
    path = file = tmp_path / source.name
    if source.is_dir():
        shutil.copytree(source, path)
        file = path / "model.safetensors"
    else:
        shutil.copy(source, path)
    shapes = {key: spec.shape for key, spec in readers.open_arrays(file).specs.items()}
    rng, accepted = np.random.default_rng(5), 0
    with bounded(512 * 2**20):
        for _ in range(count):
            given = misshapen(rng, shapes)
            write(file, {key: np.zeros(shape, np.float32) for key, shape in given.items()})
            loaded = load(path)
            if loaded is not None:
                mapping.create_classifier(loaded.spec).bind(loaded.params)
                accepted += 1
    assert accepted < 0.2 * count
