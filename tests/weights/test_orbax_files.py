"""Orbax checkpoints of other programs: every layout of a folder, damaged ones, and their models."""

import json
import shutil

import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import pytest

import foreign
from commands import error_line
from vit_jax import weights
from vit_jax.weights import orbax_files, readers

TREE = {
    "params": {"head": {"kernel": np.arange(6, dtype=np.float32).reshape(2, 3)}},
    "half": np.ones(3, ml_dtypes.bfloat16),
    "counts": [np.arange(3), np.arange(2)],
    "step": np.int32(7),
}
LAYOUTS = {
    "one store": {},
    "a folder for each array": {"use_ocdbt": False},
    "Zarr 3": {"use_zarr3": True},
}


def save(folder, tree, **options):
    ocp.Checkpointer(ocp.PyTreeCheckpointHandler(**options)).save(folder, tree)
    return folder


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_read_as_it_was_saved(tmp_path, layout):
    folder = save(tmp_path / "a", TREE, **LAYOUTS[layout])
    arrays = readers.open_orbax(folder)
    expected = {"params/head/kernel": TREE["params"]["head"]["kernel"], "half": TREE["half"],
                "counts/0": TREE["counts"][0], "counts/1": TREE["counts"][1],
                "step": TREE["step"]}  # fmt: skip
    assert set(arrays.specs) == set(expected)
    for name, values in expected.items():
        np.testing.assert_array_equal(arrays.read(name), values, strict=True)
        assert arrays.specs[name].shape == values.shape


def test_items_of_a_checkpoint_are_parts_of_names(tmp_path):
    save(tmp_path / "state", {"a": np.ones(2)})
    save(tmp_path / "other", {"head": {"value": np.ones(3)}})  # as NNX wraps arrays
    assert set(readers.open_orbax(tmp_path).specs) == {"state/a", "other/head"}


def vit():
    """The arrays of one of Google's ViTs."""
    with np.load(foreign.FOLDER.parent / "vit_tiny_token.npz") as arrays:
        return dict(arrays)


@pytest.mark.slow
def test_folders_of_big_vision_have_slashes_as_tildes(tmp_path):
    flat = {f"params~{name.replace('/', '~')}": values for name, values in vit().items()}
    loaded = weights.load(save(tmp_path / "checkpoint.bv-000100", flat, use_ocdbt=False))
    expected = weights.load(foreign.FOLDER.parent / "vit_tiny_token.npz")
    foreign.equal(loaded.params, expected.params)


def refusal(folder):
    def read():
        arrays = readers.open_orbax(folder)
        return {name: arrays.read(name) for name in arrays.specs}

    return error_line(weights.WeightsError, read)


def edit(folder, **fields):
    described = json.loads((folder / ".zarray").read_text())
    (folder / ".zarray").write_text(json.dumps({**described, **fields}))


def test_what_is_damaged_or_no_weights_is_one_line(tmp_path):
    sound = save(tmp_path / "sound", {"a": np.ones((4, 4), np.float32)}, use_ocdbt=False)

    def broken(name):
        return shutil.copytree(sound, tmp_path / name)

    edit(broken("large") / "a", shape=[2**20, 2**12], chunks=[1, 1])
    assert "unpacks to 16 GiB" in refusal(tmp_path / "large")
    edit(broken("chunk") / "a", chunks=[2**20, 2**12])
    assert "unpacks to 16 GiB" in refusal(tmp_path / "chunk")
    edit(broken("type") / "a", dtype="|O")
    assert "is not a complete Orbax checkpoint" in refusal(tmp_path / "type")
    (broken("cut") / "a" / "0.0").write_bytes(b"x")
    assert "a is damaged" in refusal(tmp_path / "cut")
    (broken("twice") / "b.value").mkdir()
    for name in ("b.value", "b"):
        shutil.copytree(sound / "a", tmp_path / "twice" / name, dirs_exist_ok=True)
    assert "is not a complete Orbax checkpoint" in refusal(tmp_path / "twice")
    (broken("manifest") / orbax_files.STORE).write_bytes(b"\0" * 64)
    assert "is not a complete Orbax checkpoint" in refusal(tmp_path / "manifest")
    shutil.copytree(sound / "a", broken("name") / "a b")
    assert "invalid array name 'a b'" in refusal(tmp_path / "name")
