"""Models of the size they are published in: what reading them costs."""

import dataclasses
import json
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest

import foreign
from containers import FIXTURES, write
from vit_jax import config, models
from vit_jax.utils import tree_utils
from vit_jax.weights import exporting, mapping

ROOT = pathlib.Path(__file__).parents[2]
CLASSES = 21_843
VITS = {
    "ViT-B/16": config.Model(variant="ViT-B/16", representation_size=768),
    "ViT-L/16": config.Model(variant="ViT-L/16", representation_size=1024),
    "ViT-H/14": config.Model(variant="ViT-H/14", representation_size=1280),
}
LARGE = ("ViT-L/16", "ViT-H/14", "R152x2")
HYBRID = config.Model(variant="R50+ViT-B/16", representation_size=768)
BIT = config.Model(variant="R152x2", resnet_version="v2", resnet_pool="zeros")
# Run by itself: a process does not tell how much memory it has had since some moment.
PROGRAM = """
import json, pathlib, re, sys, time
import numpy as np
from vit_jax.utils import tree_utils
from vit_jax import weights

def most():  # ru_maxrss begins with what the process had that started this one
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\\s*(\\d+) kB", status)[1]) * 1024

weights.load(pathlib.Path(sys.argv[1]))
before, start, busy = most(), time.perf_counter(), time.process_time()
loaded = weights.load(pathlib.Path(sys.argv[2]))
seconds, busy, memory = time.perf_counter() - start, time.process_time() - busy, most() - before
flat = tree_utils.flatten(loaded.params)
sums = {name: float(a.sum(dtype=np.float64)) for name, a in flat.items()}
print(json.dumps([memory, seconds, busy, sums]))
"""


def cases():
    """Every model in every layout that has a place for it."""
    torch = {"representation_size": None, "gelu": "erf"}
    found = []
    for name, model in VITS.items():
        bare = dataclasses.replace(model, **torch)
        found += [("google", name, model), ("timm", name, bare)]
        found += [("hf", name, dataclasses.replace(bare, norm_epsilon=1e-12))]
    bare = dataclasses.replace(HYBRID, **torch, resnet_epsilons="timm")
    found += [("google", "R50+ViT-B/16", HYBRID), ("timm", "R50+ViT-B/16", bare)]
    nothing = dataclasses.replace(BIT, resnet_pool="nothing")
    found += [("google", "R152x2", BIT), ("google", "R152x2 of big_vision", nothing)]
    found += [("timm", "R152x2", BIT), ("hf", "R152x2", BIT)]
    return [
        pytest.param(
            project,
            model,
            id=f"{project}-{name}",
            marks=pytest.mark.long if name in LARGE else pytest.mark.slow,
        )
        for project, name, model in found
    ]


def numbers(shapes):
    """An array of random numbers for every shape; they repeat after a while."""
    block = np.random.default_rng(0).standard_normal(2**20 + 2**10, np.float32)
    names = {name: i for i, name in enumerate(tree_utils.flatten(shapes))}
    return tree_utils.map_named(lambda n, leaf: np.resize(block[names[n] :], leaf.shape), shapes)


@pytest.mark.parametrize(("project", "model"), cases())
def test_cost(tmp_path, capsys, project, model):
    model = models.complete(dataclasses.replace(model, num_classes=CLASSES))
    facts = mapping.ModelSpec(model=model, data=config.Data(image_size=(224, 224)))
    shapes = mapping.create_classifier(facts).shapes()
    size = 4 * tree_utils.count(shapes)
    if shutil.disk_usage(tmp_path).free < 2 * size:
        pytest.skip(f"{tmp_path} has no room for {2 * size / 2**30:.0f} GiB")
    params = numbers(shapes)
    arrays = foreign.exported(params, facts, project)
    try:
        if project == "google":
            path = file = write(tmp_path / "model.npz", arrays)
        else:
            path, file = tmp_path, write(tmp_path / "model.safetensors", arrays)
            documents = exporting.find_family(facts, project).files(facts)
            for name, fields in documents.items():
                (tmp_path / name).write_text(json.dumps(fields))
        del arrays
        given = subprocess.run(
            [sys.executable, "-c", PROGRAM, FIXTURES / "vit_tiny_token.npz", path],
            cwd=ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
        length = file.stat().st_size
    finally:
        for path in tmp_path.iterdir():
            path.unlink()
    memory, seconds, busy, sums = json.loads(given.stdout)
    with capsys.disabled():
        print(
            f"\n{project} {model.variant}: file {length / 1e6:.0f} MB, memory "
            f"{memory / length:.2f} times that, {seconds:.2f} s, {busy:.2f} of them busy"
        )
    assert memory < 2.5 * length
    expected = {name: a.sum(dtype=np.float64) for name, a in tree_utils.flatten(params).items()}
    assert sums.keys() == expected.keys()
    for name, total in expected.items():
        np.testing.assert_allclose(sums[name], total, rtol=1e-9, err_msg=name)
