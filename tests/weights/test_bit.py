import re

import jax
import numpy as np
import pytest

from containers import FIXTURES, read, refusal, write
from foreign import equal, exported
from vit_jax import models, weights

LEGACY = FIXTURES / "bit_tiny_legacy.npz"
NOTHING = {"model.resnet_pool": "nothing"}
UNITS = (1, 2, 1, 1)


def written(loaded):
    return exported(loaded.params, loaded.spec, "google")


def paper_name(name):
    """The name that big_vision's bit_paper gives an array of big_transfer."""
    name = name.removeprefix("resnet/").replace("/gamma", "/scale").replace("/beta", "/bias")
    name = name.replace("root_block/standardized_conv2d", "root_block/conv_root")
    name = name.replace("a/proj/standardized_conv2d", "conv_proj").replace("head/conv2d", "head")
    name = re.sub(r"^group_norm", "norm-pre-head", name)
    for number, letter in enumerate("abc", start=1):
        name = name.replace(f"/{letter}/standardized_conv2d", f"/conv{number}")
        name = name.replace(f"/{letter}/group_norm", f"/gn{number}")
    return name


def paper(arrays):
    """The arrays of a big_transfer file as big_vision's bit_paper stores them."""
    found = {}
    for name, array in arrays.items():
        array = array[0, 0] if name == "resnet/head/conv2d/kernel" else array
        array = array.reshape(1, 1, 1, -1) if "group_norm" in name else array
        found[paper_name(name)] = array
    return found


def numbered(arrays):
    """The arrays as TensorFlow may name them, the first convolution without a number."""
    convolutions = sorted(name for name in arrays if "standardized_conv2d/" in name)
    convolutions.remove("resnet/root_block/standardized_conv2d/kernel")
    numbers = {name: i + 1 for i, name in enumerate(convolutions)}
    return {
        name.replace("conv2d/", f"conv2d_{numbers[name]}/") if name in numbers else name: array
        for name, array in arrays.items()
    }


def logits(loaded, images):
    classifier = models.create(loaded.spec.model, image_size=images.shape[1:3])
    with jax.default_matmul_precision("highest"):
        return jax.jit(classifier.apply)(loaded.params, images)[0]


@pytest.mark.slow
def test_parity_and_round_trips(tmp_path):
    expected = read(FIXTURES / "bit_tiny.io.npz")
    assert expected["images"].shape == (2, 64, 64, 3)
    # The fixture was run by big_vision's bit_paper, whose pooling is padded with nothing.
    loaded = weights.load(LEGACY, NOTHING)
    assert loaded.kind == "google"
    assert loaded.spec.model.resnet_units == UNITS
    assert loaded.spec.model.resnet_width == 0.5
    assert loaded.spec.data.image_size == (224, 224)
    assert set(loaded.spec.assumed) == {
        *("data.image_size", "data.mean", "data.std", "data.resampling", "data.eval_crop"),
        "model.resnet_epsilons",
    }
    assert loaded.report.lines() == ["used: 54 arrays"]
    np.testing.assert_allclose(
        logits(loaded, expected["images"]), expected["logits"], rtol=0, atol=1e-5
    )
    source = read(LEGACY)
    # A model is written as who computes the same would store it.
    legacy = weights.load(LEGACY)
    assert legacy.spec.model.resnet_pool == "zeros"
    equal(written(legacy), source)
    equal(written(loaded), paper(source))
    again = weights.load(write(tmp_path / "again.npz", written(loaded)))
    assert again.spec == loaded.spec
    equal(again.params, loaded.params)


def test_names_of_bit_paper(tmp_path):
    arrays = paper(read(LEGACY))
    assert arrays["norm-pre-head/scale"].shape == (1, 1, 1, 1024)
    path = write(tmp_path / "paper.npz", {f"params/{name}": a for name, a in arrays.items()})
    loaded = weights.load(path)
    assert loaded.spec.model.resnet_pool == "nothing"
    assert loaded.spec.model.resnet_version == "v2"
    equal(loaded.params, weights.load(LEGACY).params)
    equal(written(loaded), arrays)


def test_convolutions_that_tensorflow_numbered(tmp_path):
    arrays = numbered(read(LEGACY))
    assert "resnet/block2/unit01/a/proj/standardized_conv2d_5/kernel" in arrays
    root = "resnet/root_block/standardized_conv2d"
    for number in ("", "_52"):
        renamed = {name.replace(f"{root}/", f"{root}{number}/"): a for name, a in arrays.items()}
        loaded = weights.load(write(tmp_path / "numbered.npz", renamed))
        equal(loaded.params, weights.load(LEGACY).params)
    one = "resnet/block2/unit02/c/standardized_conv2d"
    given = next(name for name in arrays if name.startswith(one))
    arrays[f"{one}_77/kernel"] = arrays[given]
    assert refusal(write(tmp_path / "twice.npz", arrays)) == (
        f"{one}_77/kernel is not part of the model"
    )
    del arrays[f"{one}_77/kernel"], arrays[given]
    assert refusal(write(tmp_path / "none.npz", arrays)) == f"{one}/kernel is missing"


@pytest.mark.parametrize("spread", [False, True])
def test_names_of_bit(tmp_path, spread):
    """Post-activation: a norm after each convolution, of the projection too, none at the end."""
    rng = np.random.default_rng(0)
    arrays = {}
    for name, array in paper(read(LEGACY)).items():
        name = name.replace("root_block/", "")
        name = re.sub(r"unit0(\d)", r"unit\1", name)
        if "gn" not in name and "norm-pre-head" not in name:
            arrays[name] = array
    for name in [n for n in arrays if "conv" in n]:
        norm = re.sub(r"conv(\d|_root|_proj)/kernel", r"gn\1", name)
        shape = (1, 1, 1, arrays[name].shape[-1]) if spread else arrays[name].shape[-1:]
        for part in ("scale", "bias"):
            arrays[f"{norm}/{part}"] = rng.random(shape, np.float32)
    loaded = weights.load(write(tmp_path / "post.npz", arrays))
    assert loaded.spec.model.resnet_version == "v1"
    assert loaded.spec.model.resnet_units == UNITS
    unit = loaded.params["resnet"]["stage2"]["rest"]
    np.testing.assert_array_equal(unit["conv2"]["kernel"][0], arrays["block2/unit2/conv2/kernel"])
    np.testing.assert_array_equal(unit["gn3"]["scale"][0], arrays["block2/unit2/gn3/scale"].ravel())
    back = written(loaded)
    assert set(back) == set(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(back[name].ravel(), array.ravel(), err_msg=name)
