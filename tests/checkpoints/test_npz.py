import dataclasses
import io
import pathlib
import re
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import config, models, trees
from vit_jax.checkpoints import npz

FIXTURES = pathlib.Path(__file__).parents[1] / "fixtures"
TOKEN = FIXTURES / "vit_tiny_token.npz"

TINY = config.Model(
    patch_size=(8, 8), width=24, depth=2, mlp_dim=48, heads=3, num_classes=7, representation_size=24
)


def read(path):
    with np.load(path) as file:
        return dict(file)


def write(path, arrays):
    np.savez(path, **arrays)
    return path


def linen(name):
    """Returns the name that Flax Linen's counters give a pre-Linen array."""
    name = name.replace("DotProductAttention_1/", "DotProductAttention_0/")
    return name.replace("LayerNorm_2/", "LayerNorm_1/").replace("MlpBlock_3/", "MlpBlock_0/")


def error(path, image_size=None):
    with pytest.raises(npz.CheckpointError) as raised:
        npz.load(path, image_size)
    text = str(raised.value)
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    return text.removeprefix(f"{path}: ")


@pytest.mark.parametrize(
    ("name", "given_size", "changes"),
    [
        ("vit_tiny_token", None, {}),
        ("vit_tiny_gap", None, {"representation_size": None, "pooling": "gap"}),
        (
            "vit_tiny_finetuned",
            None,
            {"patch_size": (16, 16), "width": 32, "depth": 3, "mlp_dim": 64, "heads": 4,
             "num_classes": 5, "representation_size": None},
        ),
        (
            "bv_vit_gap_sincos",
            (32, 32),
            {"representation_size": None, "pooling": "gap", "num_classes": 6,
             "position": "sincos_2d"},
        ),
    ],
)  # fmt: skip
def test_parity_with_the_reference(name, given_size, changes):
    params, model, image_size = npz.load(FIXTURES / f"{name}.npz", given_size)
    assert model == dataclasses.replace(TINY, **changes)
    expected = read(FIXTURES / f"{name}.io.npz")
    assert image_size == expected["images"].shape[1:3]
    classifier = models.create(model, image_size=image_size)
    with jax.default_matmul_precision("highest"):
        logits, out = jax.jit(classifier.apply)(params, expected["images"])
    np.testing.assert_allclose(logits, expected["logits"], rtol=0, atol=1e-6)
    if "pre_logits" in expected:
        np.testing.assert_allclose(out["pre_logits"], expected["pre_logits"], rtol=0, atol=1e-6)


def test_arrays_go_where_they_belong():
    params, model, _ = npz.load(TOKEN)
    arrays = read(TOKEN)
    block = "Transformer/encoderblock_1"
    for given, source in {
        "cls": "cls",
        "position/table": "Transformer/posembed_input/pos_embedding",
        "encoder/norm1/scale": f"{block}/LayerNorm_0/scale",
        "encoder/norm2/bias": f"{block}/LayerNorm_2/bias",
        "encoder/attention/value/kernel": f"{block}/MultiHeadDotProductAttention_1/value/kernel",
        "encoder/mlp/fc2/kernel": f"{block}/MlpBlock_3/Dense_1/kernel",
        "head/bias": "head/bias",
    }.items():
        leaf = trees.flatten(params)[given]
        leaf = leaf[1] if given.startswith("encoder/") else leaf
        np.testing.assert_array_equal(leaf, arrays[source], err_msg=given)
    assert model.depth == 2
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {np.dtype(np.float32)}


@pytest.mark.parametrize("prefix", ["", "opt/target/", "params/"])
@pytest.mark.parametrize("rename", [linen, str])
def test_newer_names_and_prefixes(tmp_path, rename, prefix):
    arrays = {prefix + rename(name): array for name, array in read(TOKEN).items()}
    given = npz.load(write(tmp_path / "new.npz", arrays))
    expected = npz.load(TOKEN)
    assert given[1:] == expected[1:]
    jax.tree.map(np.testing.assert_array_equal, given[0], expected[0])


def test_bfloat16_and_float16_are_widened(tmp_path):
    """numpy writes bfloat16 as two bytes of unknown meaning."""
    arrays = read(TOKEN)
    arrays["head/kernel"] = arrays["head/kernel"].astype(jnp.bfloat16)
    arrays["head/bias"] = arrays["head/bias"].astype(np.float16)
    path = write(tmp_path / "half.npz", arrays)
    assert read(path)["head/kernel"].dtype == "V2"
    params, _, _ = npz.load(path)
    for name in ("kernel", "bias"):
        assert params["head"][name].dtype == np.float32
        np.testing.assert_array_equal(
            params["head"][name], arrays[f"head/{name}"].astype(np.float32)
        )


def test_image_size_comes_from_the_file_or_the_caller(tmp_path):
    arrays = read(TOKEN)
    positions = arrays["Transformer/posembed_input/pos_embedding"]
    arrays["Transformer/posembed_input/pos_embedding"] = positions[:, :7]  # 2 x 3 and the class
    path = write(tmp_path / "wide.npz", arrays)
    assert error(path) == "holds positions of 6 patches, no square; give the image size"
    assert npz.load(path, (16, 24))[2] == (16, 24)
    assert error(path, (16, 16)) == (
        "Transformer/posembed_input/pos_embedding is (1, 7, 24), not (1, 5, 24)"
    )
    assert error(path, (16, 20)).startswith("data.image_size=16,20: width 20 is not a multiple of")
    assert error(FIXTURES / "bv_vit_gap_sincos.npz") == (
        "holds no position embeddings; give the image size"
    )


def with_(**changes):
    """Returns a change of some arrays, `__` for `/`; None removes one."""

    def change(arrays):
        for key, value in changes.items():
            name = key.replace("__", "/")
            arrays.pop(name) if value is None else arrays.update({name: value(arrays[name])})

    return change


BLOCK = "Transformer__encoderblock_1__"


def unknown(arrays):
    arrays["extra/kernel"] = np.zeros(3, np.float32)
    arrays["Transformer/encoderblock_1/LayerNorm_7/bias"] = np.zeros(3, np.float32)


def twice(arrays):
    name = "Transformer/encoderblock_0/LayerNorm_2/scale"
    arrays["Transformer/encoderblock_0/LayerNorm_1/scale"] = arrays[name]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (with_(cls=None), "holds positions of 17 patches, no square; give the image size"),
        (with_(head__bias=None), "head/bias is missing"),
        (
            with_(**{f"{BLOCK}LayerNorm_2__scale": None}),
            "encoder/norm2/scale is missing in layer 1",
        ),
        (with_(head__bias=lambda x: x[:5]), "head/bias is (5,), not (7,)"),
        (with_(head__bias=lambda x: x.astype(np.float64)), "head/bias is float64, not float32, "),
        (with_(head__bias=lambda x: x.astype("U7")), "head/bias is <U"),
        (with_(head__bias=lambda x: x * np.float32(np.nan)), "head/bias is not finite"),
        (with_(head__kernel=None), "holds no Vision Transformer: no head/kernel of 2 axes"),
        (with_(embedding__kernel=lambda x: x[:0]), "holds no Vision Transformer: no embedding/ker"),
        (with_(embedding__kernel=lambda x: x[:, :, :2]), "data.channels=2: must be 1 or 3"),
        (dict.clear, "holds no Vision Transformer: no embedding/kernel of 4 axes"),
        (
            unknown,
            "extra/kernel is not part of a Vision Transformer; "
            "Transformer/encoderblock_1/LayerNorm_7/bias is not part of a Vision Transformer",
        ),
        (
            twice,
            "Transformer/encoderblock_0/LayerNorm_1/scale and "
            "Transformer/encoderblock_0/LayerNorm_2/scale are the same array",
        ),
    ],
)
def test_wrong_arrays(tmp_path, change, message):
    arrays = read(TOKEN)
    change(arrays)
    assert error(write(tmp_path / "wrong.npz", arrays)).startswith(message)


def test_all_problems_are_told_at_once(tmp_path):
    arrays = read(TOKEN)
    arrays["step"] = np.zeros((), np.int64)
    arrays["head/bias"] = arrays["head/bias"][:5]
    del arrays["Transformer/encoder_norm/bias"]
    assert error(write(tmp_path / "wrong.npz", arrays)) == (
        "step is not part of a Vision Transformer; encoder_norm/bias is missing; "
        "head/bias is (5,), not (7,)"
    )


def test_a_gap_between_layers(tmp_path):
    arrays = {
        name.replace("encoderblock_1", "encoderblock_2"): array
        for name, array in read(TOKEN).items()
    }
    told = error(write(tmp_path / "gap.npz", arrays)).split("; ")
    assert len(told) == 16
    assert all(re.fullmatch("encoder/.* is missing in layer 1", line) for line in told)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no .npz file, or only a part of one; download it again"),
        (b"<!DOCTYPE html><title>404", "is no .npz file, or only a part of one; download it again"),
        (TOKEN.read_bytes()[:-100], "is no .npz file, or only a part of one; download it again"),
    ],
)
def test_files_of_another_kind(tmp_path, content, message):
    path = tmp_path / "file.npz"
    path.write_bytes(content)
    assert error(path) == message


def test_files_that_cannot_be_read(tmp_path):
    assert error(tmp_path / "none.npz") == "cannot be read: No such file or directory"
    assert error(tmp_path) == "cannot be read: Is a directory"


class Payload:
    ran = False

    def __reduce__(self):
        return (setattr, (Payload, "ran", True))


def member(header=None, body=b""):
    """Returns a .npy file of float32 zeros whose header says what it likes."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        stream, header or {"descr": "<f4", "fortran_order": False, "shape": (7,)}
    )
    return stream.getvalue() + body


def archive(path, members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members:
            file.writestr(name, content)
    return path


def test_pickles_are_not_loaded(tmp_path):
    array = np.array([Payload()], dtype=object)
    np.savez(tmp_path / "evil.npz", **{"head/bias": array})
    assert error(tmp_path / "evil.npz") == (
        "head/bias is damaged or no plain array; download it again"
    )
    assert not Payload.ran


@pytest.mark.parametrize(
    "content",
    [
        member(body=b"\0" * 27),
        member({"descr": "<f4", "fortran_order": False, "shape": (2**40,)}),
        member({"descr": "<f4", "fortran_order": False, "shape": (-1,)}),
        b"\x93NUMPY\x01\x00\x10\x00{'descr': 1 + ((",
        b"\x93NUM",
    ],
)
def test_lying_members(tmp_path, content):
    path = archive(tmp_path / "bad.npz", [("head/bias.npy", content)])
    told = error(path)
    assert told == "head/bias is damaged or no plain array; download it again"


def test_archives_that_mean_harm(tmp_path, monkeypatch):
    good = member(body=b"\0" * 28)
    assert zipfile.is_zipfile(archive(tmp_path / "one.npz", [("a.npy", good)]))
    with pytest.warns(UserWarning, match="Duplicate name"):
        archive(tmp_path / "two.npz", [("a.npy", good), ("a.npy", good)])
    odd = archive(tmp_path / "odd.npz", [("a\nb\x1b[31m.npy", good)])
    for path in (tmp_path / "two.npz", odd):
        assert error(path) == "holds damaged or doubled names; download it again"
    monkeypatch.setattr(npz, "MAX_BYTES", 2**20)
    bomb = archive(tmp_path / "bomb.npz", [("a.npy", b"\0" * 2**22)])
    assert bomb.stat().st_size < 2**13
    assert error(bomb).startswith("unpacks to ")


def test_damaged_files_are_refused_or_read_right(tmp_path):
    """Single bits flipped anywhere in the file: never a wrong value, never another exception."""
    good = TOKEN.read_bytes()
    expected = trees.flatten(npz.load(TOKEN)[0])
    rng = np.random.default_rng(0)
    path, refused = tmp_path / "flip.npz", 0
    for position in rng.integers(0, len(good) * 8, 60):
        content = bytearray(good)
        content[position // 8] ^= 1 << (position % 8)
        path.write_bytes(content)
        try:
            given = trees.flatten(npz.load(path)[0])
        except npz.CheckpointError:
            refused += 1
        else:
            assert all(np.array_equal(given[name], expected[name]) for name in expected)
    assert refused > 40
