"""TFRecord files read without TensorFlow, against one that TensorFlow 2.21 wrote."""

import io
import json
import pathlib
import struct

import numpy as np
import pytest
import tensorflow_datasets as tfds
from array_record.python import array_record_data_source
from etils import epath

import tfds_fakes
from official_fakes import tfrecord
from vit_jax.data.prepare import staging, tfrecords
from vit_jax.data.source import DataError

THREE = pathlib.Path(__file__).parents[2] / "fixtures/data/three.tfrecord"
RECORDS = [b"", b"123456789", bytes(range(256)) * 2]


def test_reads_what_tensorflow_wrote_and_names_damage_of_any_byte():
    data = THREE.read_bytes()
    assert [one for _, one in tfrecords.read_records(io.BytesIO(data), "file")] == RECORDS
    assert tfrecord(RECORDS) == data  # as these tests make others
    starts = np.cumsum([0] + [len(record) + 16 for record in RECORDS])
    cases = [
        (data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :], place, "damaged")
        for place in range(len(data))
    ]
    # Of whole records the number is compared with the metadata.
    cuts = (length for length in range(1, len(data)) if length not in starts)
    cases += [(data[:length], length, "") for length in cuts]
    for changed, place, said in cases:
        number = int(np.searchsorted(starts, place, "right")) - 1
        with pytest.raises(DataError, match=f"^file: record {number}: .*{said}; copy it again"):
            list(tfrecords.read_records(io.BytesIO(changed), "file"))


@pytest.mark.parametrize(
    ("length", "said"),
    [(2**30, "is cut off; copy it again"), (2**64 - 1, "has 18,446,744,073,709,551,615 bytes, m")],
)
def test_a_length_takes_no_memory_that_the_file_does_not_have(length, said):
    class Short(io.BytesIO):
        def read(self, size=-1):
            assert size <= 2**20
            return super().read(size)

    head = struct.pack("<Q", length)
    head += struct.pack("<I", tfrecords.masked(head))
    reading = tfrecords.read_records(Short(head + b"rest"), "file")
    with pytest.raises(DataError, match=f"^file: record 0: {said}"):
        list(reading)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """EuroSAT's features with two shards, as TFDS would have them in TFRecord files."""
    root = tmp_path_factory.mktemp("old")
    builder = tfds_fakes.prepare(root, "eurosat/rgb", {"train": 12})
    folder = pathlib.Path(builder.data_path)
    (shard,) = folder.glob("*array_record*")
    records = array_record_data_source.ArrayRecordDataSource(str(shard)).__getitems__(range(12))
    shard.unlink()
    for number, part in enumerate((records[:7], records[7:])):
        (folder / f"eurosat-train.tfrecord-0000{number}-of-00002").write_bytes(tfrecord(part))
    info = json.loads((folder / "dataset_info.json").read_text())
    info["fileFormat"] = "tfrecord"
    info["splits"][0]["shardLengths"] = ["7", "5"]
    (folder / "dataset_info.json").write_text(json.dumps(info))
    return folder, records


def copied(made, tmp_path):
    folder = tmp_path / "old" / "2.0.0"
    folder.mkdir(parents=True)
    for path in made[0].iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def test_converted_records_are_the_same_bytes(made, tmp_path):
    folder, records = made
    new = tfrecords.convert(epath.Path(folder), "eurosat/rgb", tmp_path)
    assert new == tmp_path / "eurosat/rgb/2.0.0"
    info = tfds.builder("eurosat/rgb", data_dir=str(tmp_path)).info
    assert info.file_format == tfds.core.FileFormat.ARRAY_RECORD
    assert info.splits["train"].shard_lengths == [7, 5]
    shards = sorted(new.glob("*array_record*"))
    assert [path.name for path in shards] == [
        f"eurosat-train.array_record-0000{number}-of-00002" for number in (0, 1)
    ]
    assert not list(new.glob("*tfrecord*"))
    there = [
        record
        for path in shards
        for record in array_record_data_source.ArrayRecordDataSource(str(path))
    ]
    assert there == records
    assert not list((tmp_path / "eurosat/rgb").glob(".*"))
    with pytest.raises(DataError, match="exists; choose another, or remove it"):
        tfrecords.convert(epath.Path(folder), "eurosat/rgb", tmp_path)


def test_a_stopped_conversion_continues(made, tmp_path):
    folder = copied(made, tmp_path)
    second = folder / "eurosat-train.tfrecord-00001-of-00002"
    good = second.read_bytes()
    second.write_bytes(good[:-9])
    with pytest.raises(DataError, match="00001-of-00002: record 4: .*; copy it again"):
        tfrecords.convert(epath.Path(folder), "eurosat/rgb", tmp_path)
    part = tmp_path / "eurosat/rgb/.2.0.0.part"
    (first,) = (part / "whole").iterdir()
    before = first.stat().st_mtime_ns
    second.write_bytes(good)
    (other := tmp_path / "other").mkdir()
    for path in folder.iterdir():
        (other / path.name).write_bytes(path.read_bytes() + b" " * (path.suffix == ".json"))
    with pytest.raises(DataError, match="was started with other images or settings; repeat those"):
        tfrecords.convert(epath.Path(other), "eurosat/rgb", tmp_path)
    new = tfrecords.convert(epath.Path(folder), "eurosat/rgb", tmp_path)
    assert (new / first.name).stat().st_mtime_ns == before


def test_only_one_command_converts_a_copy(made, tmp_path):
    part = staging.hidden(tmp_path / "eurosat/rgb/2.0.0")
    with staging.alone(part), pytest.raises(DataError, match="another command is packing this"):
        tfrecords.convert(epath.Path(made[0]), "eurosat/rgb", tmp_path)


def test_counts_and_names_must_be_those_of_the_metadata(made, tmp_path):
    folder = copied(made, tmp_path)
    second = folder / "eurosat-train.tfrecord-00001-of-00002"
    second.write_bytes(tfrecord(made[1][7:11]))
    with pytest.raises(DataError, match=r"has 4 records, but dataset_info\.json lists 5"):
        tfrecords.convert(epath.Path(folder), "eurosat/rgb", tmp_path)
    with pytest.raises(DataError, match="is a copy of eurosat/rgb, not of cifar10"):
        tfrecords.convert(epath.Path(folder), "cifar10:3.*.*", tmp_path)
    second.unlink()
    with pytest.raises(DataError, match="00001-of-00002: No such file"):
        tfrecords.convert(epath.Path(folder), "eurosat/rgb", tmp_path)
    (folder / "dataset_info.json").write_text("{")
    with pytest.raises(DataError, match="its metadata cannot be read") as caught:
        tfrecords.convert(epath.Path(folder), "eurosat/rgb", tmp_path)
    assert "\n" not in str(caught.value)


def test_a_finished_set_has_no_files_of_killed_processes(tmp_path):
    part, folder = tmp_path / ".1.0.0.part", tmp_path / "1.0.0"
    part.mkdir()
    kept = ["a.array_record", ".hidden", "a.1234"]
    for name in [*kept, ".a.array_record.1234", ".facts.json.99"]:
        (part / name).touch()
    staging.publish(part, folder)
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == sorted(kept)


def test_of_several_versions_of_a_copy_the_newest_is_found(tmp_path):
    for version in ("1.9.0", "1.10.0", "1.10.0.part", "2.0.0"):
        (tmp_path / "mine" / version).mkdir(parents=True)
    for version in ("1.9.0", "1.10.0", "1.10.0.part"):
        (tmp_path / "mine" / version / "dataset_info.json").touch()
    for folder in (tmp_path, tmp_path / "mine"):
        found = tfrecords.find_copy(epath.Path(folder), "mine:1.*.*")
        assert found == epath.Path(tmp_path / "mine/1.10.0")
