"""Arrays in Flax's MessagePack files: as Flax wrote them, and damaged."""

import io

import flax.serialization
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import numpy as safetensors

import foreign
from vit_jax import weights
from vit_jax.weights import flax_files

TREE = {
    "params": {
        "encoder": {"kernel": np.arange(6.0).reshape(2, 3), "scale": np.ones(3, jnp.bfloat16)},
        "empty": np.zeros((0, 3), np.float32),
        "scalar": np.float32(2.5),
        "half": np.arange(4, dtype=np.float16),
    },
    "counts": [np.arange(3), 7],
    "step": 2**40, "name": "a run", "nothing": None, "done": True, "lowest": -(2**33),
    "complex": 1 + 2j, "rate": 0.5,
}  # fmt: skip


def read_all(data):
    file = io.BytesIO(data)
    return {name: array.read(file) for name, array in flax_files.open_arrays(file).items()}


@pytest.mark.parametrize("chunk", [2**30, 16])
def test_every_type_is_read_as_flax_wrote_it(chunk, monkeypatch):
    """Larger arrays are written in chunks."""
    monkeypatch.setattr(flax.serialization, "MAX_CHUNK_SIZE", chunk)
    found = read_all(flax.serialization.msgpack_serialize(TREE))
    params, inner = TREE["params"], TREE["params"]["encoder"]
    expected = {f"params/encoder/{name}": values for name, values in inner.items()}
    expected |= {f"params/{name}": params[name] for name in ("empty", "scalar", "half")}
    assert set(found) == {*expected, "counts/0"}
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)
        assert found[name].dtype == values.dtype
        assert found[name].shape == values.shape


def test_what_no_file_of_flax_holds_is_refused(monkeypatch):
    sound = flax.serialization.msgpack_serialize({"a": np.ones(2)})
    monkeypatch.setattr(flax.serialization, "MAX_CHUNK_SIZE", 16)
    chunks = flax.serialization.msgpack_serialize({"a": np.arange(4.0)})
    assert read_all(chunks)["a"].tolist() == [0, 1, 2, 3]
    for data, error, message in (
        (sound[:-1], EOFError, "too early"),
        (sound + b"\0", ValueError, "behind the last array"),
        (sound.replace(b"float64", b"object0"), weights.WeightsError, "the type 'object0'"),
        (sound.replace(b"\x91\x02", b"\x91\x03"), ValueError, "another size"),
        (sound.replace(b"\x91\x02", b"\x91\xff"), ValueError, "a shape that is not a count"),
        (chunks.replace(b"\x81\xa10\4", b"\x81\xa10\5"), ValueError, "do not make the array"),
        (chunks.replace(b"\x81\xa10\4", b"\x81\xa11\4"), ValueError, "parts out of order"),
        (b"\x82\xa1a\1\xa1a\2", ValueError, "'a' occurs twice"),
        ((b"\x81\xd9\xff" + b"a" * 255) * 4 + b"\1", ValueError, "a name of many long keys"),
        (b"\x81\xa1a" * 100 + b"\1", weights.WeightsError, "more than 32 deep"),
        (b"\x91" * 100 + b"\1", weights.WeightsError, "more than 32 deep"),
        (b"\xdd\xff\xff\xff\xff" + b"\1" * 300_000, weights.WeightsError, "more than 200,000"),
        (b"\xc1", ValueError, "0xc1"),
    ):
        with pytest.raises(error, match=message):
            read_all(data)


def test_hugging_faces_flax_classes_have_other_names_and_axes(tmp_path):
    """(in, out) and (H, W, in, out) instead of PyTorch's (out, in) and (out, in, H, W)."""
    source = weights.load(foreign.FOLDER / "hf_vit_tiny")
    weights.save(source.params, source.spec, "flax", tmp_path / "flax")
    data = (tmp_path / "flax/flax_model.msgpack").read_bytes()
    tree = flax.serialization.msgpack_restore(data)
    block = tree["vit"]["encoder"]["layer"]["0"]
    stored = safetensors.load_file(foreign.FOLDER / "hf_vit_tiny/model.safetensors")
    layer = "vit.encoder.layer.0"
    for found, name, axes in (
        (tree["classifier"]["kernel"], "classifier.weight", (1, 0)),
        (block["intermediate"]["dense"]["kernel"], f"{layer}.intermediate.dense.weight", (1, 0)),
        (block["layernorm_before"]["scale"], f"{layer}.layernorm_before.weight", (0,)),
        (tree["vit"]["embeddings"]["patch_embeddings"]["projection"]["kernel"],
         "vit.embeddings.patch_embeddings.projection.weight", (2, 3, 1, 0)),
        (tree["vit"]["embeddings"]["cls_token"], "vit.embeddings.cls_token", (0, 1, 2)),
    ):  # fmt: skip
        np.testing.assert_array_equal(found, stored[name].transpose(axes), strict=True)
    assert len(jax.tree.leaves(tree)) == len(stored)
    loaded = weights.load(tmp_path / "flax")
    assert loaded.kind == "hf"
    assert (loaded.spec.model, loaded.spec.loss) == (source.spec.model, source.spec.loss)
    foreign.equal(loaded.params, source.params)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hf_beit", "hf_clip", "hf_dinov2", "hf_dinov2_giant"])
def test_flax_folders_come_back_bit_for_bit(tmp_path, name):
    described = foreign.record(f"backbones/{name}")
    (tmp_path / "in").mkdir()
    source = weights.load(foreign.write(tmp_path / "in", described))
    weights.save(source.params, source.spec, "flax", tmp_path / "out")
    foreign.equal(weights.load(tmp_path / "out").params, source.params)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hf_deit", "transformers' DeiTForImageClassification there is no Flax class"),
        ("hf_clip_projection", "transformers' CLIPVisionModelWithProjection there is no Flax"),
    ],
)
def test_classes_that_transformers_has_in_pytorch_alone_are_refused(tmp_path, name, message):
    described = foreign.record(f"backbones/{name}")
    source = weights.load(foreign.write(tmp_path, described))
    with pytest.raises(weights.WeightsError, match=message):
        weights.save(source.params, source.spec, "flax", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_flax_folders_have_a_name_without_a_suffix_and_half_the_size(tmp_path):
    source = weights.load(foreign.FOLDER / "hf_vit_tiny")
    with pytest.raises(weights.WeightsError, match="flax writes a folder; leave out .msgpack"):
        weights.save(source.params, source.spec, "flax", tmp_path / "x.msgpack")
    weights.save(source.params, source.spec, "flax", tmp_path / "half", dtype="bfloat16")
    expected = jax.tree.map(lambda a: a.astype(jnp.bfloat16).astype(np.float32), source.params)
    foreign.equal(weights.load(tmp_path / "half").params, expected)


def test_a_checkpoint_of_vision_transformer_is_what_its_npz_is(tmp_path):
    source = foreign.FOLDER.parent / "vit_tiny_token.npz"
    with np.load(source) as arrays:
        tree = {tuple(name.split("/")): values for name, values in arrays.items()}
    state = {"params": flax.traverse_util.unflatten_dict(tree), "opt_state": {}, "step": 7}
    path = tmp_path / "checkpoint_7"
    path.write_bytes(flax.serialization.msgpack_serialize(state))
    foreign.equal(weights.load(path).params, weights.load(source).params)
