"""Adapter folders are read as they were written, or not at all."""

import json
import types

import numpy as np
import pytest

from vit_jax.weights import adapter_file
from vit_jax.weights.arrays import WeightsError

ARRAYS = {
    "lora/a": np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4),
    "head/bias": np.arange(3, dtype=np.float32),
}
SHAPES = {name: types.SimpleNamespace(shape=array.shape) for name, array in ARRAYS.items()}
FIELDS = {"config": {"lora": {"alpha": 16.0}}, "classes": ["cat", "\u00e9mu"], "base": "0f"}


@pytest.fixture
def folder(tmp_path):
    adapter_file.write_adapter(tmp_path / "adapter", ARRAYS, FIELDS)
    return tmp_path / "adapter"


def read(folder):
    return adapter_file.read_arrays(folder, SHAPES, adapter_file.read_fields(folder))


def test_a_folder_reads_back(folder):
    for name, array in read(folder).items():
        np.testing.assert_array_equal(array, ARRAYS[name])


def test_the_order_of_its_facts_is_no_part_of_a_folder(folder):
    file = folder / adapter_file.FACTS
    fields = json.loads(file.read_text())
    file.write_text(json.dumps(dict(reversed(fields.items()))))
    assert read(folder).keys() == ARRAYS.keys()


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ('"alpha": 16.0', '"alpha": 32.0', "was changed; write the adapter again"),
        ('"cat"', '"cap"', "was changed"),
        ('"base": "0f"', '"base": "0e"', "was changed"),
        ('"sha256": "', '"sha256": "0', "was changed"),
        ('"sha256"', '"sha257"', "has an unknown field sha257"),
        ('"base"', '"baze"', "has no base"),
        ('"base": "0f"', '"base": 3', "has no base"),
    ],
)
def test_an_edited_folder_is_refused(folder, before, after, reason):
    file = folder / adapter_file.FACTS
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))
    with pytest.raises(WeightsError, match=reason):
        read(folder)


def test_a_folder_of_an_older_version_loads_and_is_said_to_be_unverified(folder, caplog):
    file = folder / adapter_file.FACTS
    fields = json.loads(file.read_text())
    del fields["sha256"]
    file.write_text(json.dumps(fields))
    assert set(read(folder)) == set(ARRAYS)
    assert "has no digest (an older version wrote it); values are not verified" in caplog.text


def test_arrays_that_are_not_those_of_the_model_are_named(tmp_path):
    more = {**ARRAYS, "lora/b": np.ones(2, np.float32)}
    adapter_file.write_adapter(tmp_path / "more", more, FIELDS)
    with pytest.raises(WeightsError, match=r"lora/b is \(2,\), not part of it"):
        read(tmp_path / "more")
    adapter_file.write_adapter(tmp_path / "less", {"head/bias": ARRAYS["head/bias"]}, FIELDS)
    with pytest.raises(WeightsError, match=r"lora/a is missing, not \(2, 4\)"):
        read(tmp_path / "less")
    one = {**ARRAYS, "head/bias": np.array([0, np.nan, 2], np.float32)}
    adapter_file.write_adapter(tmp_path / "nan", one, FIELDS)
    with pytest.raises(WeightsError, match="head/bias is not finite"):
        read(tmp_path / "nan")


def test_a_digest_is_of_names_shapes_and_values_in_any_order():
    a, b = ARRAYS["lora/a"], ARRAYS["head/bias"]
    sound = adapter_file.digest_params({"a": a, "b": b})
    assert adapter_file.digest_params({"b": b, "a": a}) == sound
    others = ({"a": a, "c": b}, {"a": a.reshape(4, 2), "b": b}, {"a": a, "b": b + 1}, {"a": a})
    for other in others:
        assert adapter_file.digest_params(other) != sound
