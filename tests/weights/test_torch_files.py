"""Tensors in PyTorch's files: every form and layout, no code run, bounded work."""

import contextlib
import io
import itertools
import pathlib
import pickle
import re
import shutil
import time
import tracemalloc
import zipfile

import numpy as np
import pytest

import foreign
from commands import error_line
from vit_jax import weights
from vit_jax.utils import pickles
from vit_jax.weights import torch_files

FILES = pathlib.Path(__file__).parents[1] / "fixtures/weights/torch"  # by make.py there
REFUSED = (pickles.Refused, ValueError, zipfile.BadZipFile, EOFError)


def read_all(data):
    tensors, read = torch_files.open_tensors(io.BytesIO(data))
    return {name: read(name) for name in tensors}


@pytest.mark.parametrize("name", ["zip.pth", "older.pth"])
def test_every_layout_is_read_as_torch_reads_it(name):
    """Transposed, cut out, expanded, empty, of each type; an optimizer's state beside them."""
    found = read_all((FILES / name).read_bytes())
    with np.load(FILES / "expected.npz") as expected:
        assert set(found) == set(expected)
        for tensor, values in found.items():
            np.testing.assert_array_equal(values.astype(np.float64), expected[tensor])
            assert values.shape == expected[tensor].shape
    types = {name: found[f"views.{name}"].dtype.name for name in ("half", "bfloat16", "truth")}
    assert types == {"half": "float16", "bfloat16": "bfloat16", "truth": "bool"}


def test_the_model_of_a_training_run_is_found(tmp_path):
    """timm's `model_best.pth.tar`: its average, not its parameters; a folder's .bin is the same."""
    heads = {"model.heads": "3"}
    loaded = weights.load(FILES / "training.pth.tar", heads)
    assert "the model under state_dict_ema., not that under state_dict." in loaded.spec.assumed
    expected = weights.load(FILES.parent / "timm_vit_tiny.safetensors", heads)
    foreign.equal(loaded.params, expected.params)
    shutil.copy(FILES / "training.pth.tar", tmp_path / "pytorch_model.bin")
    foreign.equal(weights.load(tmp_path, heads).params, expected.params)


def test_a_whole_module_is_refused_by_its_class():
    with pytest.raises(pickles.Refused, match=r"the name torch.nn.modules.container.Sequential"):
        read_all((FILES / "module.pth").read_bytes())


# --- Files that want to run code ----------------------------------------------------------------


class Call:
    """Pickles as a call of a function."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


def as_archive(pickled, **members):
    """A zip archive as torch.save writes it, around any pickle."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("archive/data.pkl", pickled)
        for name, data in members.items():
            archive.writestr(f"archive/data/{name}", data)
    return stream.getvalue()


def as_sequence(pickled):
    heads = (torch_files.MAGIC, torch_files.VERSION, {"little_endian": True})
    return b"".join(pickle.dumps(head, 2) for head in heads) + pickled + pickle.dumps([], 2)


def malicious(mark):
    """Pickles that would leave a mark if something in them ran, by what they try."""
    import os
    import subprocess

    run = f"touch {mark}"
    yield "system", pickle.dumps(Call(os.system, run), 2)
    yield "eval, protocol 0", pickle.dumps(Call(eval, f"open({str(mark)!r}, 'w')"), 0)
    yield "exec, protocol 4", pickle.dumps({"model": Call(exec, f"open({str(mark)!r}, 'w')")}, 4)
    yield "process, protocol 5", pickle.dumps([Call(subprocess.Popen, ["touch", str(mark)])], 5)
    yield "attribute", b"cbuiltins\ngetattr\n(cos\nsystem\nX\x01\x00\x00\x00atR."
    yield "instance", b"(S'" + run.encode() + b"'\nios\nsystem\n."
    yield "object", b"(cos\nsystem\nS'" + run.encode() + b"'\no."
    yield "names on the stack", b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x01x\x85R."
    yield "extension registry", b"\x80\x02\x82\x01)R."
    yield "keyword arguments", b"\x80\x04\x8c\x02os\x8c\x06system\x93)}\x92."
    yield "a state for a name", b"\x80\x02cargparse\nNamespace\n}b."
    yield "torch.load inside", b"\x80\x02ctorch.storage\n_load_from_bytes\nC\x01x\x85R."
    yield "an allowed name as a module", b"\x80\x02ccollections\nOrderedDict.fromkeys\n)R."
    yield "a dotted name", b"\x80\x04\x8c\x05torch\x8c\x0b_utils.eval\x93)R."
    yield "a call of no name", b"\x80\x02K\x01)R."
    yield (
        "a call of a storage",
        (
            b"\x80\x02(X\x07\x00\x00\x00storagectorch\nFloatStorage\n"
            b"X\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x01tQ)R."
        ),
    )
    yield "text as an id", b"\x80\x02Pstorage\n."
    yield "a chain of calls", pickle.dumps(Call(getattr, Call(__import__, "os"), "system"), 2)
    yield "an object rebuilt", b"\x80\x02ccopyreg\n_reconstructor\n(cos\nsystem\nNNtR."
    yield "a call put off", b"\x80\x02cfunctools\npartial\ncos\nsystem\n\x85R."
    yield "torch.load by its own name", b"\x80\x02ctorch.serialization\nload\nU\x01x\x85R."
    yield "numpy.load", b"\x80\x02cnumpy\nload\nU\x01x\x85R."
    yield "a class as state", b"\x80\x02ccollections\nOrderedDict\n)R}U\x01ccos\nsystem\nsb."
    yield "the next buffer", b"\x80\x05\x97."


NAMED = {  # what the line says has been found
    "system": r"\w+.system", "eval, protocol 0": "__builtin__.eval",
    "exec, protocol 4": "builtins.exec",
    "process, protocol 5": "subprocess.Popen", "attribute": "builtins.getattr",
    "instance": "operation INST", "object": "os.system", "names on the stack": "os.system",
    "extension registry": "operation EXT1", "keyword arguments": "os.system",
    "torch.load inside": "torch.storage._load_from_bytes", "text as an id": "operation PERSID",
    "an allowed name as a module": "collections.OrderedDict.fromkeys",
    "a dotted name": "torch._utils.eval", "the next buffer": "operation NEXT_BUFFER",
    "a chain of calls": "__builtin__.getattr", "an object rebuilt": "copyreg._reconstructor",
    "a call put off": "functools.partial", "numpy.load": "numpy.load",
    "torch.load by its own name": "torch.serialization.load", "a class as state": "os.system",
}  # fmt: skip


def test_code_is_refused_in_one_line_that_names_it_and_none_runs(tmp_path):
    path, mark = tmp_path / "model.pth", tmp_path / "ran"
    found = dict(malicious(mark))
    assert found.keys() >= NAMED.keys()
    for what, form in itertools.product(found, (as_archive, as_sequence)):
        path.write_bytes(form(found[what]))
        said = error_line(weights.WeightsError, weights.load, path)
        wanted = rf"has the (name )?{NAMED[what]}" if what in NAMED else "has a "
        assert re.search(wanted, said), (what, said)
        assert not mark.exists()


# --- Files that say something wrong of their values ---------------------------------------------


FLOATS = torch_files.Storage("0", np.dtype("<f4"), 10)


def state(stored=10, view=None):
    """A pickle of a state dict with one vector, all of a storage or a view of it."""
    offset, count = view or (0, stored)
    cut = b"(X\1\0\0\0vK%cK%ct" % (offset, count) if view else b""
    storage = b"(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\x000X\3\0\0\0cpuK%c%stQ"
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n(%sK\0K%c\x85K\1\x85\x89NtR"
    return b"\x80\2}X\1\0\0\0a" + tensor % (storage % (stored, cut), count) + b"s."


VALUES = np.arange(10, dtype="<f4").tobytes()


def sequence(view):
    """The older form of a file: of a view only this says where it begins."""
    return as_sequence(state(view=view))[: -len(pickle.dumps([], 2))] + (
        pickle.dumps(["0"], 2) + (10).to_bytes(8, "little") + VALUES
    )


def test_a_view_of_the_older_form_begins_within_its_storage():
    for offset, count in ((0, 10), (3, 4), (9, 1)):
        found = read_all(sequence((offset, count)))["a"]
        assert found.tolist() == list(range(offset, offset + count))
    with pytest.raises(ValueError, match="the values of a are not there"):
        read_all(sequence((3, 8)))
    for more in (sequence((3, 4)) + b"x", sequence((3, 4))[:-1]):
        with pytest.raises(ValueError, match="other bytes behind the last storage"):
            read_all(more)


def test_a_tensor_lies_within_its_storage():
    for offset, shape, strides in ((0, (10,), (1,)), (0, (3, 2), (4, 1)), (9, (5,), (0,))):
        torch_files.rebuilt_tensor(FLOATS, offset, shape, strides)
    for offset, shape, strides in (
        (1, (10,), (1,)), (1, (3, 2), (4, 1)), (10, (), ()), (-1, (1,), (1,)),
        (5, (2,), (-1,)), (0, (True,), (1,)), (0, (2,), ()), (0, (0,) * 33, (1,) * 33),
        ("0", (1,), (1,)),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="^a tensor "):
            torch_files.rebuilt_tensor(FLOATS, offset, shape, strides)
    part = torch_files.Tensor(torch_files.Storage("0", FLOATS.dtype, 6, 2), 1, (2, 2), (1, 2))
    found = part.read(io.BytesIO(b"head" + VALUES), 4)
    assert found.tolist() == [[3, 5], [4, 6]]


def test_names_are_paths_that_differ_in_dictionaries_not_too_deep(monkeypatch):
    one = torch_files.rebuilt_tensor(FLOATS, 0, (2,), (1,))
    assert torch_files.named_tensors({"a": {"b": one}, "c": one, "n": 3}).keys() == {"a.b", "c"}
    with pytest.raises(ValueError, match="'a.b' occurs twice"):
        torch_files.named_tensors({"a": {"b": one}, "a.b": one})
    nested = one
    for _ in range(torch_files.MAX_DEPTH):
        nested = {"x": nested}
    assert len(torch_files.named_tensors(nested)) == 1
    with pytest.raises(pickles.Refused, match="nested more than 16 deep"):
        torch_files.named_tensors({"x": nested})
    assert len(torch_files.named_tensors({"x" * 500: {"y" * 499: one}})) == 1
    with pytest.raises(ValueError, match="a name of many long keys"):
        torch_files.named_tensors({"x" * 500: {"y" * 500: one}})
    monkeypatch.setattr(torch_files, "MAX_ENTRIES", 2)
    assert len(torch_files.named_tensors({"a": one, "b": one})) == 2
    with pytest.raises(pickles.Refused, match="more than 2 entries"):
        torch_files.named_tensors({"a": one, "b": {"c": one}})


def archived(**changes):
    """A zip archive with one vector, and other or further members (names by their last part)."""
    members = {"data.pkl": state(), "data/0": VALUES, "byteorder": b"little"} | changes
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, data in members.items():
            archive.writestr(f"archive/{name}", data)
    return stream.getvalue()


def test_an_archive_has_the_values_it_names_whole_and_once():
    assert read_all(archived())["a"].tolist() == list(range(10))
    for wrong, says in (
        ({"byteorder": b"big"}, "values in big-endian order"),
        ({"constants.pkl": b""}, "a TorchScript program"),
        ({"data/0": VALUES[:-1]}, "the values of a are not there"),
        ({"data/0": VALUES + b"x"}, "the values of a are not there"),
    ):
        with pytest.raises((ValueError, pickles.Refused), match=says):
            read_all(archived(**wrong))
    damaged = archived().replace(VALUES, VALUES[:-1] + b"\xff")
    with pytest.raises(zipfile.BadZipFile, match="Bad CRC-32"):
        read_all(damaged)
    for again in ("archive/data/0", "archive/notes"):
        stream = io.BytesIO(archived())
        with zipfile.ZipFile(stream, "a") as archive:
            deflated = again == "archive/notes"
            kind = zipfile.ZIP_DEFLATED if deflated else zipfile.ZIP_STORED
            expected = (
                contextlib.nullcontext()
                if deflated
                else pytest.warns(UserWarning, match="Duplicate name")
            )
            with expected:
                archive.writestr(again, VALUES, kind)
        with pytest.raises(ValueError, match="a compressed member|a name occurs twice"):
            read_all(stream.getvalue())


def test_a_pickle_is_bounded_in_both_forms(monkeypatch):
    for data, least in ((archived(), len(state())), (sequence((3, 4)), 150)):
        monkeypatch.setattr(torch_files, "MAX_PICKLE", 400)
        assert len(read_all(data)) == 1
        monkeypatch.setattr(torch_files, "MAX_PICKLE", least - 1)
        with pytest.raises(pickles.Refused, match="^a pickle of more than"):
            read_all(data)


@pytest.mark.parametrize("items", [[["a", 1], ("b", 2)], {"a": 1, "b": 2}, []])
def test_a_mapping_is_made_of_what_it_is_called_with_and_copies_nothing_twice(items):
    """A million calls may name one list; its entries are taken by the first of them."""
    call = torch_files.GLOBALS["collections OrderedDict"]
    expected = list(dict(items).items())
    assert list(call(items).items()) == expected
    assert call(items) == (items if isinstance(items, dict) else {})
    for wrong in ([["a", 1, 2]], [["a"]]):
        with pytest.raises(ValueError, match="values to unpack"):
            call(wrong)


def test_a_storage_has_five_parts_or_six():
    kind = pickles.Global("torch FloatStorage")
    for count in (3, 4, 7, 10**6):
        with pytest.raises(ValueError, match="an id of a storage with other parts"):
            torch_files._storage(("storage", kind, "0", "cpu", *(4,) * (count - 4))[:count])


# --- Files that want all memory or time ---------------------------------------------------------


def hostile():
    """Pickles of a few bytes that stand for much, by what they try."""
    nested = b"}" + b"q\x00"
    for level in range(1, 60):  # each dictionary holds the one before twice
        nested += b"}(X\x01\x00\x00\x00ah%cX\x01\x00\x00\x00bh%cuq%c" % (
            level - 1,
            level - 1,
            level,
        )
    yield "dictionaries that double", b"\x80\x02" + nested + b"."
    yield "a dictionary in itself", b"\x80\x02}q\x00X\x01\x00\x00\x00ah\x00s."
    pairs = b"\x80\x02)q\x00" + b"".join(b"h%ch%c\x86q%c" % (n - 1, n - 1, n) for n in range(1, 60))
    yield "keys that hash for ever", pairs + b"q\x63}h\x63K\x01s."
    yield "many operations", b"\x80\x02" + b"}0" * (4 * 2**20) + b"."
    yield "a long number", b"\x80\x02I" + b"9" * 10**6 + b"\n."
    yield "a text longer than the file", b"\x80\x02X\xff\xff\xff\x7fa."


def test_small_files_that_stand_for_much_take_little():
    for name, pickled in hostile():
        for data in (as_archive(pickled), as_sequence(pickled)):
            tracemalloc.start()
            start = time.process_time()
            with contextlib.suppress(*REFUSED):
                assert read_all(data) == {}, name
            assert time.process_time() - start < 20, name
            assert tracemalloc.get_traced_memory()[1] < 256 * 2**20, name
            tracemalloc.stop()
