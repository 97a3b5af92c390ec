"""Memory that reading takes: of what a file holds once, not twice; of what is refused, nothing."""

import json
import subprocess
import sys
import zipfile

import numpy as np
import pytest

from commands import error_line
from containers import FIXTURES, read, write
from vit_jax import weights
from vit_jax.weights import readers

TOKEN = FIXTURES / "vit_tiny_token.npz"
POSITIONS = "Transformer/posembed_input/pos_embedding"
MIB, SIDE = 2**20, 800
PEAK = """
import json, pathlib, sys
from vit_jax import weights

def high():
    # Of this program alone: what rusage says includes the process that started it.
    line = next(l for l in open("/proc/self/status") if l.startswith("VmHWM"))
    return int(line.split()[1]) / 1024

def load(path):
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # forgets the highest so far
    before = high()
    said = ""
    try:
        weights.load(path, {"model.heads": "3"} if path.suffix == ".safetensors" else {})
    except weights.WeightsError as error:
        said = str(error)
    return high() - before, said

small, *paths = map(pathlib.Path, sys.argv[1:])
load(small)  # what the first takes besides, it takes once
print(json.dumps({path.name: load(path) for path in paths}))
"""


def positioned(positions):
    """The arrays of a model of the right names that are almost all positions."""
    return read(TOKEN) | {POSITIONS: positions}


@pytest.fixture(scope="module")
def peaks(tmp_path_factory):
    """Returns, by name of file, the MiB that reading it takes at most and what is said of it."""
    folder, rng = tmp_path_factory.mktemp("memory"), np.random.default_rng(0)
    table = rng.random((1, 1 + SIDE**2, 24), np.float32)
    write(folder / "plain.npz", positioned(table))
    np.savez_compressed(folder / "packed.npz", **positioned(table[:, : 1 + (SIDE - 200) ** 2]))
    np.savez_compressed(
        folder / "bomb.npz", **positioned(np.zeros((1, 1 + 2000**2, 24), np.float32))
    )
    write(folder / "wrong.npz", positioned(table) | {"head/bias": np.zeros(3, np.float32)})
    source = readers.open_arrays(FIXTURES / "weights" / "timm_vit_tiny.safetensors")
    arrays = {name: source.read(name) for name in source.specs}
    arrays["head.weight"], arrays["head.bias"] = table[0], table[0, :, 0].copy()
    write(folder / "head.safetensors", arrays)
    paths = sorted(folder.iterdir())
    command = [sys.executable, "-c", PEAK, TOKEN, *paths]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return {path: json.loads(done.stdout)[path.name] for path in paths}


def reading(peaks, name):
    return next((path, *found) for path, found in peaks.items() if path.name == name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain.npz", "packed.npz", "head.safetensors"])
def test_a_file_takes_what_it_unpacks_to(peaks, name):
    """Once: no array is held a second time, not even where it is stored transposed."""
    path, most, said = reading(peaks, name)
    arrays = readers.open_arrays(path)
    whole = sum(spec.nbytes for spec in arrays.specs.values()) / MIB
    assert said == ""
    assert whole > 20
    assert 0.9 * whole < most < 1.15 * whole + 4


@pytest.mark.slow
def test_a_small_file_that_unpacks_to_much_is_refused_before_memory_is_taken(peaks):
    path, most, said = reading(peaks, "bomb.npz")
    size = path.stat().st_size
    assert size < MIB
    with zipfile.ZipFile(path) as file:
        whole = sum(member.file_size for member in file.infolist())
    assert most < 4
    assert said == (
        f"{path}: unpacks to {whole / MIB:.3g} MiB, {whole / size:.0f} times its size, "
        "unlike any weights; the limit is 64 MiB"
    )


@pytest.mark.slow
def test_where_an_array_is_wrong_the_others_are_not_kept(peaks):
    path, most, said = reading(peaks, "wrong.npz")
    assert said == f"{path}: head/bias is (3,), not (7,)"
    # One at a time is read to see if it is finite, and gone.
    assert most < 1.15 * 4 * 24 * (1 + SIDE**2) / MIB + 4


@pytest.mark.parametrize(
    ("size", "packed", "message"),
    [
        (64 * MIB, 1, None),
        (64 * MIB + 1, 2 * MIB, "unpacks to 64 MiB, 32 times its size, unlike any weights; "
         "the limit is 64 MiB"),
        (3200 * MIB, 100 * MIB, None),
        (3201 * MIB, 100 * MIB, "unpacks to 3.13 GiB, 32 times its size, unlike any weights; "
         "the limit is 3.12 GiB"),
    ],
)  # fmt: skip
def test_bounds_of_what_an_archive_unpacks_to(size, packed, message):
    if message is None:
        readers.check_ratio(size, packed)
        return
    assert error_line(weights.WeightsError, readers.check_ratio, size, packed) == message
