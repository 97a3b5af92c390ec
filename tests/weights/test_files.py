import gc
import io
import json
import os
import pathlib
import warnings
import zipfile

import flax.serialization
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors

from containers import FIXTURES, Payload, archive, header, npy, pickled, refusal, write
from vit_jax import weights
from vit_jax.weights import readers, writers

TOKEN = FIXTURES / "vit_tiny_token.npz"
ANY_ORDER = [
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.asfortranarray(np.arange(24, dtype=np.float16).reshape(2, 3, 4)),
    np.array(1.5),
    np.zeros((0, 3), np.float32),
    np.arange(3),
    np.array([True, False]),
    np.arange(4, dtype=np.uint8),
    np.arange(4, dtype=np.int32)[::2],
]


def opened(path):
    return refusal(path, readers.open_arrays)


def all_of(path):
    arrays = readers.open_arrays(path)
    return {name: arrays.read(name) for name in arrays.specs}


def assert_same(given, expected):
    assert given.keys() == expected.keys()
    for name, array in expected.items():
        assert given[name].dtype == array.dtype
        np.testing.assert_array_equal(given[name], array)


# what is sound


@pytest.mark.parametrize("name", ["a.NPZ", "a.SafeTensors", "a.Msgpack", "a.PTH", "a.Pth.Tar"])
def test_suffixes_in_capitals(tmp_path, name):
    fixtures = FIXTURES / "weights/torch"
    expected = {"a": np.ones((2, 3), np.float32)}
    if "pth" in name.lower():
        expected = all_of(fixtures / "zip.pth")
        (tmp_path / name).write_bytes((fixtures / "zip.pth").read_bytes())
    elif name == "a.Msgpack":
        (tmp_path / name).write_bytes(flax.serialization.msgpack_serialize(expected))
    else:
        writers.write_weights(tmp_path / name, expected, {})
    assert_same(all_of(tmp_path / name), expected)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_as_numpy_reads_it(tmp_path, save):
    expected = {f"a/{i}": array for i, array in enumerate(ANY_ORDER)}
    save(tmp_path / "a.npz", **expected)
    arrays = readers.open_arrays(tmp_path / "a.npz")
    assert_same({name: arrays.read(name) for name in arrays.specs}, expected)
    assert {n: (s.shape, s.dtype, s.nbytes) for n, s in arrays.specs.items()} == {
        name: (array.shape, array.dtype, array.nbytes) for name, array in expected.items()
    }


@pytest.mark.parametrize(
    "form",
    [
        *((1, 0), (2, 0), (3, 0)),  # numpy's versions, and headers that others write
        "{'descr':'<f4','fortran_order':False,'shape':(2,3)}",
        "{'descr': '=f4', 'fortran_order': False, 'shape': (2,  3,), }      \n",
    ],
)
def test_forms_of_npy(tmp_path, form):
    stream = io.BytesIO()
    if isinstance(form, tuple):
        np.lib.format.write_array(stream, ANY_ORDER[0], version=form)
    else:
        stream.write(b"\x93NUMPY\x01\x00" + len(form).to_bytes(2, "little") + form.encode())
        stream.write(ANY_ORDER[0].tobytes())
    path = archive(tmp_path / "a.npz", [("a.npy", stream.getvalue())])
    assert_same(all_of(path), {"a": ANY_ORDER[0]})


def test_safetensors_as_the_library_writes_it(tmp_path):
    expected = {f"a.{i}": np.ascontiguousarray(array) for i, array in enumerate(ANY_ORDER)}
    expected["a.half"] = np.arange(5).astype(jnp.bfloat16)
    expected["none"] = np.zeros((2, 0), np.float32)
    path = write(tmp_path / "a.safetensors", expected)
    assert_same(all_of(path), expected)
    safetensors.numpy.save_file(expected, path, metadata={"format": "np"})
    assert_same(all_of(path), expected)


@pytest.mark.parametrize("length", range(1, 9))
def test_numbers_of_safetensors_begin_at_a_multiple_of_their_size(tmp_path, length):
    path = tmp_path / "a.safetensors"
    writers.write_weights(path, {"n" * length: np.zeros(1, np.float32)}, {})
    assert int.from_bytes(path.read_bytes()[:8], "little") % 8 == 0


def times_open(path):
    """How often the process holds a file open."""
    links = pathlib.Path("/proc/self/fd").iterdir()
    return sum(os.path.realpath(link) == os.path.realpath(path) for link in links)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["npz", "safetensors"])
def test_a_file_is_closed_when_its_arrays_are_gone(tmp_path, kind):
    path = write(tmp_path / f"a.{kind}", {"a": np.zeros(3)})
    arrays = readers.open_arrays(path)
    read_one = arrays.read
    del arrays
    np.testing.assert_array_equal(read_one("a"), np.zeros(3))
    assert times_open(path) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del read_one
        gc.collect()
    assert times_open(path) == 0


def test_shards(tmp_path):
    expected = {"a": np.arange(3.0), "b": np.arange(4.0)}
    for name in expected:
        write(tmp_path / f"model-{name}.safetensors", {name: expected[name]})
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {n: f"model-{n}.safetensors" for n in expected}}))
    arrays = readers.open_shards(index)
    assert_same({name: arrays.read(name) for name in arrays.specs}, expected)
    os.truncate(tmp_path / "model-b.safetensors", 90)
    with pytest.raises(weights.WeightsError, match=r"^model-b.safetensors: b is damaged; download"):
        arrays.read("b")


# what is not


@pytest.mark.parametrize("kind", ["npz", "safetensors"])
@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"<!DOCTYPE html><title>404", TOKEN.read_bytes()[:-100]),
        *(length.to_bytes(8, "little") + b"{}" for length in (2**42, 2**63, 2**64 - 1)),
    ],
)
def test_files_of_another_kind(tmp_path, content, kind):
    path = tmp_path / f"file.{kind}"
    path.write_bytes(content)
    assert opened(path) == f"is not a complete .{kind} file; download it again"


@pytest.mark.parametrize("kind", ["npz", "safetensors", "pth", "msgpack"])
def test_what_git_leaves_of_a_large_file_is_named(tmp_path, kind):
    path = tmp_path / f"file.{kind}"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n")
    assert opened(path) == "is a pointer of Git LFS, not the file; run: git lfs pull"


@pytest.mark.parametrize("kind", ["npz", "safetensors"])
def test_files_that_cannot_be_read(tmp_path, kind, monkeypatch):
    path = tmp_path / f"none.{kind}"
    assert opened(path) == "no such file"
    path.mkdir()
    assert opened(path) == "no such file"
    good = write(tmp_path / f"good.{kind}", {"a": np.zeros(3)})

    def broken(file, *args):
        raise OSError(5, "Input/output error")

    arrays = readers.open_arrays(good)
    monkeypatch.setattr(readers.File, "readinto", broken)
    monkeypatch.setattr(readers.File, "read", broken)
    if kind == "safetensors":  # zipfile calls it the end of the file
        assert opened(good) == "cannot be read: Input/output error"
    with pytest.raises(weights.WeightsError, match="^cannot be read: Input/output error$"):
        arrays.read("a")


@pytest.mark.parametrize("suffix", readers.UNREAD)
def test_formats_that_are_not_read_are_refused_with_the_reason(tmp_path, suffix):
    for ending in (suffix, suffix.upper()):
        path = tmp_path / f"model{ending}"
        path.write_bytes(b"")
        line = f"a {suffix} file {readers.UNREAD[suffix]}; convert it to .safetensors"
        assert opened(path).startswith(line)
    assert opened(tmp_path / "model.onnx") == (
        "unsupported file type; supported: .npz, .safetensors, .pth, .pt, .bin, .ckpt, .msgpack"
    )


def test_pickles_in_archives_are_not_loaded(tmp_path):
    path = archive(tmp_path / "evil.npz", [("head/bias.npy", pickled())])
    with np.load(path, allow_pickle=True) as file:  # which shows that the pickle would work
        file["head/bias"]
    assert Payload.ran
    Payload.ran = False
    for load in (readers.open_arrays, weights.load):
        assert refusal(path, load) == "head/bias is damaged or not a plain array; download it again"
    assert not Payload.ran


NO_ARRAY = "is damaged or not a plain array; download it again"
OTHER_SIZE = "does not have the size in its header; download it again"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        *(
            (content, NO_ARRAY)
            for content in (
                b"\x93NUM",
                b"\x93NUMPY\x01\x00\x10\x00{'descr': 1 + ((",
                b"\x93NUMPY\x04\x00" + npy()[8:],
                npy(descr="__import__('os').abort()"),
                npy(descr="[('a', '<f4'), ('b', '<f4')]"),
                npy(descr="'|O8'"),
                npy(descr="'<f3'"),
                npy(descr="(" * 200 + ")" * 200),
                npy(descr="-" * 900 + "1"),
                npy(shape="(-1,)"),
                npy(shape="(7.0,)"),
                npy(shape="(7 1)"),
                npy(shape="(True,)"),
                npy(shape="(7,)}, {'more': 7"),
                npy(order="1"),
                npy(order="False, 'more': 1"),
            )
        ),
        (npy(shape="(" + "1," * 9 + ")"), "has 9 axes; the limit is 8"),
        (npy(descr="'<f4" + " " * 1000 + "'"), "has a header of 1058 bytes; the limit is 1000"),
        (npy(shape="(7,)" + " " * 1000), "has a header of 1058 bytes; the limit is 1000"),
        *(
            (content, OTHER_SIZE)
            for content in (
                npy(body=b"\0" * 27),
                npy(body=b"\0" * 29),
                npy(shape=f"({2**40},)"),
                npy(shape=f"({10**200}, {10**200})"),
                npy(descr="'<f8'"),
            )
        ),
    ],
)
def test_members_that_are_no_arrays(tmp_path, content, message):
    path = archive(tmp_path / "bad.npz", [("head/bias.npy", content)])
    assert opened(path) == f"head/bias {message}"


def patched(path, signature, offset, value):
    """Overwrites bytes of the last record of a kind, counted from its beginning."""
    content = bytearray(path.read_bytes())
    start = content.rfind(signature) + offset
    content[start : start + len(value)] = value
    path.write_bytes(content)
    return path


CENTRAL, END = b"PK\x01\x02", b"PK\x05\x06"


def test_a_member_that_unpacks_to_more_or_less_than_declared(tmp_path):
    body = npy(shape="(5000,)", body=b"\0" * 20000)
    path = archive(tmp_path / "bomb.npz", [("a.npy", body + b"\0" * 2**20)])
    size = len(body).to_bytes(4, "little")
    arrays = readers.open_arrays(patched(path, CENTRAL, 24, size))
    with pytest.raises(weights.WeightsError, match="^a is damaged; download it again$"):
        arrays.read("a")
    path = archive(tmp_path / "short.npz", [("a.npy", body[:-9000])])
    arrays = readers.open_arrays(patched(path, CENTRAL, 24, size))
    with pytest.raises(weights.WeightsError, match="^a is damaged; download it again$"):
        arrays.read("a")


def test_bombs(tmp_path, monkeypatch):
    path = archive(tmp_path / "bomb.npz", [("a.npy", b"\0" * 2**22)])
    declared = patched(path, CENTRAL, 24, (2**32 - 2).to_bytes(4, "little"))
    times = (2**32 - 2) / path.stat().st_size
    assert opened(declared) == (
        f"unpacks to 4 GiB, {times:.0f} times its size, unlike any weights; the limit is 64 MiB"
    )
    monkeypatch.setattr(readers, "MAX_BYTES", 2**30)
    assert opened(declared) == "unpacks to 4 GiB; the limit is 1 GiB"
    path = write(tmp_path / "a.safetensors", {"a": np.zeros(100)})
    monkeypatch.setattr(readers, "MAX_BYTES", 100)
    assert opened(path) == "unpacks to 872 B; the limit is 100 B"


@pytest.mark.parametrize("way", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_ways_to_compress_whose_memory_has_no_bound(tmp_path, way):
    path = archive(tmp_path / "odd.npz", [("a.npy", npy())], way)
    assert opened(path) == "a uses a compression method that numpy does not support"


ODD = ["a\nb\x1b[31m", "../a", "a/../../b", "/etc/a", "", "a" * 301, "a{layer}", "ä"]


@pytest.mark.parametrize("name", ODD)
def test_odd_names(tmp_path, name):
    told = f"has the invalid array name {name[:80]!r}; download it again"
    entry = {name: {"dtype": "F32", "shape": [7], "data_offsets": [0, 28]}}
    assert opened(header(tmp_path / "a.safetensors", json.dumps(entry), bytes(28))) == told
    path = archive(tmp_path / "a.npz", [(f"{name}.npy", npy())])
    if name:  # .npy by itself is an odd name already
        told = f"has the invalid array name {(name + '.npy')[:80]!r}; download it again"
        assert opened(path) == told


def test_doubled_names(tmp_path):
    with pytest.warns(UserWarning, match="Duplicate name"):
        path = archive(tmp_path / "two.npz", [("a.npy", npy()), ("a.npy", npy())])
    assert opened(path) == "contains a.npy twice; download it again"
    entry = '"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}'
    path = header(tmp_path / "two.safetensors", f"{{{entry}, {entry}}}", bytes(4))
    assert opened(path) == "contains 'a' twice; download it again"
    twice = entry.replace('"shape"', '"dtype": "F64", "shape"')
    path = header(tmp_path / "two.safetensors", f"{{{twice}}}", bytes(4))
    assert opened(path) == "contains 'dtype' twice; download it again"


def test_too_many_arrays(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "MAX_ARRAYS", 1)
    for kind in ("npz", "safetensors"):
        path = write(tmp_path / f"a.{kind}", {"a": np.zeros(1), "b": np.zeros(1)})
        assert opened(path) == "contains 2 arrays; the limit is 1"


def test_members_that_are_not_even_meant_as_arrays(tmp_path):
    """Folders, links and programs in an archive: nothing is ever unpacked to disk."""
    link = zipfile.ZipInfo("a/link")
    link.external_attr = 0o120777 << 16
    for member, content in (("a/", b""), (link, b"/etc/passwd"), ("run.py", b"1/0")):
        path = archive(tmp_path / "a.npz", [(member, content)])
        name = getattr(member, "filename", member)
        assert opened(path) == f"contains {name}, which is not an array"
    assert [p.name for p in tmp_path.iterdir()] == ["a.npz"]


def entry(dtype="F32", shape=(7,), offsets=(0, 28)):
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{",
        '{"a": 1}',
        "[" * 100_000,
        '{"a": ' * 2000,
        b'{"\xff": {}}',
        json.dumps({"a": {"dtype": "F32", "shape": [7]}}),
        json.dumps({"a": entry(shape="7")}),
        json.dumps({"a": entry(shape=[7.0])}),
        json.dumps({"a": entry(shape=[True, 7])}),
        json.dumps({"a": entry(shape=[-7], offsets=[28, 0])}),
        json.dumps({"a": entry(shape=[2**40], offsets=[0, 2**42])}),
        json.dumps({"a": entry(shape=[2**62, 2**62], offsets=[0, 28])}),
        json.dumps({"a": entry(offsets=[0.0, 28.0])}),
        json.dumps({"a": entry(offsets=[0, 28, 56])}),
        json.dumps({"a": entry(offsets=[4, 32])}),
        json.dumps({"a": entry(offsets=[0, 24])}),
        json.dumps({"a": entry(shape=[6], offsets=[0, 24])}),
        json.dumps({"a": entry(shape=[6], offsets=[4, 28])}),
        json.dumps({"a": entry(), "b": entry()}),
        json.dumps({"a": entry(shape=[8], offsets=[0, 32])}),
        '{"a": {"dtype": "F32", "shape": [%s], "data_offsets": [0, 28]}}' % ("9" * 5000),
    ],
)
def test_headers_that_describe_no_such_file(tmp_path, text):
    path = header(tmp_path / "a.safetensors", text, bytes(28))
    assert opened(path) == "is not a complete .safetensors file; download it again"
    with pytest.raises(safetensors.SafetensorError):
        safetensors.numpy.load(path.read_bytes())


def test_a_header_as_long_as_allowed(tmp_path):
    text = json.dumps({"a": entry()}).ljust(2**23)
    path = header(tmp_path / "a.safetensors", text, bytes(28))
    assert list(readers.open_arrays(path).specs) == ["a"]


def test_types_that_nothing_uses(tmp_path):
    path = header(tmp_path / "a.safetensors", json.dumps({"a": entry("F8_E4M3")}), bytes(28))
    assert opened(path) == "a has the unsupported type 'F8_E4M3'"


def test_axes_beyond_reason(tmp_path):
    entries = {"a": entry(shape=[1] * 8 + [7])}
    path = header(tmp_path / "a.safetensors", json.dumps(entries), bytes(28))
    assert opened(path) == "is not a complete .safetensors file; download it again"
    path = header(path, json.dumps({"a": entry(shape=[1] * 7 + [7])}), bytes(28))
    assert all_of(path)["a"].shape == (1, 1, 1, 1, 1, 1, 1, 7)


# indices and other JSON


@pytest.mark.parametrize(
    ("places", "message"),
    [
        *((places, "has no valid weight_map") for places in (None, [1], {"a": 1})),
        *(
            ({"a": name}, f"'{name}' is not a file next to it")
            for name in ("../b.safetensors", "/b.safetensors", "b.exe")
        ),
        ({"a\n": "b.safetensors"}, "b.safetensors does not contain 'a\\n'"),
        ({str(i): "b" for i in range(20_001)}, "lists 20001 arrays; the limit is 20000"),
    ],
)
def test_wrong_indices(tmp_path, places, message):
    write(tmp_path / "b.safetensors", {"b": np.zeros(1)})
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({} if places is None else {"weight_map": places}))
    assert refusal(index, readers.open_shards) == message


def test_an_index_of_shards_that_are_missing_or_too_large(tmp_path, monkeypatch):
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"b": "b.safetensors", "c": "c.safetensors"}}))
    write(tmp_path / "b.safetensors", {"b": np.zeros(100)})
    with pytest.raises(weights.WeightsError, match=r"^.*/c.safetensors: no such file$"):
        readers.open_shards(index)
    write(tmp_path / "c.safetensors", {"c": np.zeros(100)})
    monkeypatch.setattr(readers, "MAX_BYTES", 1500)
    assert refusal(index, readers.open_shards) == ("unpacks to 1.56 KiB; the limit is 1.46 KiB")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        *(
            (content, "is not valid JSON; download it again")
            for content in (b"", b"{'a': 1}", b"\xff", b'{"a": %s}' % (b"9" * 5000))
        ),
        (b"[" * 100_000, "objects within objects, more than 200 deep"),
        (b"[1]", "must be a JSON object"),
        (b" " * (2**23 + 1), "contains a table larger than 8 MiB"),
    ],
)
def test_wrong_json(tmp_path, content, message):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    assert refusal(path, readers.read_json) == message
    assert refusal(tmp_path / "none.json", readers.read_json) == (
        "cannot be read: No such file or directory"
    )


def test_a_changed_value_of_our_files_is_noticed(tmp_path):
    arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.float32(1).reshape(())}
    path = tmp_path / "w.safetensors"
    writers.write_weights(path, arrays | {"c": np.zeros((0, 3), np.float32)}, {})
    whole = path.read_bytes()
    opened = readers.open_arrays(path)
    assert all(np.array_equal(opened.read(name), array) for name, array in arrays.items())
    for place, name in ((len(whole) - 28, "a"), (len(whole) - 1, "b")):
        changed = bytearray(whole)
        changed[place] ^= 1  # a value that is as finite as before
        path.write_bytes(changed)
        with pytest.raises(weights.WeightsError, match=f"{name} is damaged; download it again"):
            readers.open_arrays(path).read(name)
    # A digest that is missing is damage of the header, not a reason to trust the values.
    path.write_bytes(whole.replace(b'\\"a\\"', b'\\"z\\"'))
    with pytest.raises(weights.WeightsError, match="is not a complete"):
        readers.open_arrays(path)
