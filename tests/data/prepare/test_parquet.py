"""Parquet, Arrow and webdataset files: labels by name, splits by file, damage in one line."""

import contextlib
import itertools
import json
import pathlib
import struct

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet
import pytest

import official_fakes
from commands import printed
from vit_jax import config
from vit_jax.data.prepare import (
    archives,
    arrow,
    image_listing,
    parquet,
    parquet_headers,
    parquet_pages,
)
from vit_jax.data.source import DataError
from vit_jax.data.sources import open_source

JPEG, PNG = b"\xff\xd8 one", b"\x89PNG two"
IMAGE = pa.struct({"bytes": pa.binary(), "path": pa.string()})


def table(columns, features=None):
    """A table with what Hugging Face says of its columns."""
    found = pa.table(columns)
    if features is None:
        return found
    return found.replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": features}})}
    )


def hugging_face(labels=(1, 0, -1, None, 1)):
    images = [{"bytes": JPEG, "path": "x.jpg"}, {"bytes": PNG, "path": None}]
    images += [{"bytes": JPEG, "path": None}] * (len(labels) - 2)
    return table(
        {"image": pa.array(images, IMAGE), "id": list(range(len(labels))), "labels": [*labels]},
        {
            "image": {"_type": "Image"},
            "labels": {"_type": "ClassLabel", "names": ["a/b", "cat, house"]},
            "id": {"dtype": "int64", "_type": "Value"},
        },
    )


def contents(source, **options):
    """The bytes of all that is listed, by path."""
    listing, read = image_listing.scan([source], **options), archives.Reader()
    with contextlib.closing(read):
        return {(e := listing[index]).path: read(e) for index in range(len(listing))}


def refusal(path, **options):
    with pytest.raises(DataError) as caught:
        image_listing.scan([path], **options)
    assert str(caught.value).isprintable()
    return str(caught.value).removeprefix(f"{path}: ")


def written(tmp_path, found, name="train-00000-of-00001.parquet"):
    pyarrow.parquet.write_table(found, tmp_path / name)
    return tmp_path / name


def test_rows_become_files_of_their_split_and_class(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    pyarrow.parquet.write_table(hugging_face(), data / "train-00000-of-00002.parquet")
    pyarrow.parquet.write_table(hugging_face((0, 1)), data / "validation-00000-of-00001.parquet")
    found = contents(data, copy=tmp_path / "copy")
    first = "train/{}/train-00000-of-00002-0000000{}.{}".format
    assert found == {
        first("cat, house", 0, "jpg"): JPEG,
        first("a_b", 1, "png"): PNG,
        first("cat, house", 4, "jpg"): JPEG,
        "validation/a_b/validation-00000-of-00001-00000000.jpg": JPEG,
        "validation/cat, house/validation-00000-of-00001-00000001.png": PNG,
    }
    assert (tmp_path / "copy").read_bytes() == JPEG + PNG + 2 * JPEG + PNG
    listing = image_listing.scan([data])  # a dry run
    assert len(listing) == 5
    assert (listing.ignored, listing.empty_rows) == ([], 2)  # without a label


def arrow_data(found, new=pa.ipc.new_stream, rows=2, **options):
    stream = pa.BufferOutputStream()
    with new(stream, found.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(found, max_chunksize=rows)
    return stream.getvalue().to_pybytes()


@pytest.mark.parametrize("new", [pa.ipc.new_stream, pa.ipc.new_file])
def test_rows_of_arrow_files_are_those_of_parquet_files_where_they_lie(tmp_path, new):
    folder, name = tmp_path / "saved/validation", "data-00000-of-00001"  # as datasets saves
    folder.mkdir(parents=True)
    found = hugging_face()
    packed = written(folder, found, f"{name}.parquet")
    expected = contents(tmp_path / "saved", copy=tmp_path / "copy")
    packed.unlink()
    (folder / f"{name}.arrow").write_bytes(arrow_data(found, new))
    (folder / "cache-1f.arrow").write_bytes(arrow_data(found))  # of a computation
    (folder / "state.json").write_text("{}")
    assert contents(tmp_path / "saved", copy=tmp_path / "nothing") == expected
    assert len(expected) == 3
    assert not (tmp_path / "nothing").stat().st_size
    listing = image_listing.scan([tmp_path / "saved"])
    assert listing.containers == (str(folder / f"{name}.arrow"),)
    assert (len(listing.ignored), listing.empty_rows) == (2, 2)  # other files; without a label


BYTES = [JPEG, None, b"", PNG, None, b"other", JPEG]
WIDE = pa.struct({"path": pa.string(), "bytes": pa.large_binary()})


@pytest.mark.parametrize(
    ("images", "labels"),
    [
        (pa.array(BYTES), pa.array(["a", "b", "a", None, "c", "b", " /"])),
        (pa.array(BYTES, pa.large_binary()), pa.array([*range(5), -1, None])),
        (pa.array([one if one is None else {"bytes": one} for one in BYTES], WIDE),
         pa.array(list("abacaba")).dictionary_encode()),
        (pa.array([{"path": "x"}, None] * 3 + [None], IMAGE), pa.array(range(7))),
        (pa.array([], IMAGE), pa.array([], pa.int64())),
        (pa.StructArray.from_arrays([pa.array([JPEG] * 3)], ["bytes"],
                                    mask=pa.array([False, True, False])), pa.array(range(3))),
    ],
    ids=["bytes", "large", "wide", "none", "empty", "masked"],
)  # fmt: skip
@pytest.mark.parametrize("rows", [1, 3])
def test_so_are_those_of_other_forms(tmp_path, monkeypatch, images, labels, rows):
    monkeypatch.setattr(parquet, "ROWS", 2)
    others = {"no": pa.array([[1.5]] * len(images)), "path": pa.array([1.5] * len(images))}
    found = pa.table({**others, "image": images, "label": labels})
    (tmp_path / "x.arrow").write_bytes(arrow_data(found, rows=rows))
    path = written(tmp_path, found, "x.parquet")
    listed = list(arrow.rows(tmp_path / "x.arrow", None))
    whole = (tmp_path / "x.arrow").read_bytes()
    found = [one and (one.path, whole[one.offset :][: one.size]) for one in listed]
    assert found == list(parquet.rows(path))
    assert {one.container for one in listed if one} <= {str(tmp_path / "x.arrow")}


@pytest.mark.parametrize("labels", [(), ("label",), ("fine", "coarse")])
def test_images_are_read_without_labels(tmp_path, labels):
    """Whatever columns of labels there are, also a row whose label says that it has none."""
    images = [data or None for data in BYTES]
    found = pa.table({"image": images, **{name: [-1, *range(6)] for name in labels}})
    (tmp_path / "test-x.arrow").write_bytes(arrow_data(found))
    path = written(tmp_path, found, "test-x.parquet")
    paths = [f"test/test-x-0000000{row}" for row in (0, 3, 5, 6)]
    expected = [JPEG, PNG, b"other", JPEG]
    rows = [row for row in parquet.rows(path, parquet.UNLABELED) if row]
    assert [data for _, data in rows] == expected
    assert [name.partition(".")[0] for name, _ in rows] == paths
    whole = (tmp_path / "test-x.arrow").read_bytes()
    listed = [row for row in arrow.rows(tmp_path / "test-x.arrow", parquet.UNLABELED) if row]
    assert [(row.path, whole[row.offset :][: row.size]) for row in listed] == rows
    listing = image_listing.scan_tables([path], "parquet", parquet.UNLABELED, "k")
    read = parquet_pages.Reader(parquet.UNLABELED)
    assert [listing.path(at) for at in range(len(listing))] == paths
    assert [read(listing[at]) for at in range(len(listing))] == expected
    assert listing.empty_rows == 3
    if not labels:
        text = "no column of labels; it has image; "
        assert refusal(path) == f"{text}--no-labels packs images without"
        with pytest.raises(DataError, match=f"{text}to train without labels, set objective.name="):
            image_listing.scan_tables([path], "parquet", None, "k")
        assert refusal(path, label="kind") == "no column kind of labels; it has image"


def test_a_column_of_labels_of_an_arrow_file_can_be_named(tmp_path):
    images, path = pa.array([{"bytes": JPEG}] * 2, IMAGE), tmp_path / "x.arrow"
    path.write_bytes(arrow_data(pa.table({"image": images, "fine": [1, 2], "coarse": [3, None]})))
    assert refusal(path).endswith("fine, coarse; name one: --label=COLUMN")
    with pytest.raises(DataError, match="name one: data.labels=COLUMN$"):
        image_listing.scan_tables([path], "arrow", None, "data.root")
    assert [*contents(path, label="coarse")] == ["3/x-00000000.jpg"]
    assert len(image_listing.scan_tables([path], "arrow", "coarse", "x")) == 1
    assert image_listing.scan_tables([path], "arrow", "fine", "x").path(1) == "2/x-00000001.jpg"


def test_what_is_no_arrow_file_of_images_is_one_line(tmp_path):
    path, found = tmp_path / "train.arrow", hugging_face()
    whole = arrow_data(found)
    ends = [struct.pack("<3i", 0, *two) for two in ((6, 12), (2**30, 12), (-6, 12), (6, 2**30))]
    assert whole.count(ends[0]) == 1
    wrong = [whole.replace(ends[0], one) for one in ends[1:]]
    for data in (b"", b"ARROW1", whole[:-300], whole[:50], bytes(99), b"\xff" * 99, *wrong):
        path.write_bytes(data)
        assert refusal(path).startswith("is damaged, or no Arrow file: ")
    kinds = pa.array(["a" * 99] * 5).dictionary_encode()
    packed = pa.table({"image": pa.nulls(5, IMAGE), "label": kinds})
    for one, new in itertools.product((found, packed), (pa.ipc.new_stream, pa.ipc.new_file)):
        path.write_bytes(arrow_data(one, new, compression="zstd"))
        assert refusal(path) == "is compressed; write it again without compression"
    plain, zipped = (
        list(pa.ipc.MessageReader.open_stream(arrow_data(packed, compression=codec)))
        for codec in (None, "zstd")
    )
    both = [plain[0], zipped[1], *plain[2:]]  # the dictionary alone is compressed
    path.write_bytes(b"".join(one.serialize().to_pybytes() for one in both))
    assert refusal(path) == "is compressed; write it again without compression"
    path.write_bytes(arrow_data(pa.table({"indices": [1, 2]})))  # of a shuffle
    assert refusal(path) == "no column of images; it has indices"


def test_what_is_damaged_or_too_large_is_named(tmp_path, monkeypatch):
    path = written(tmp_path, hugging_face())
    whole = path.read_bytes()
    for data in (b"", whole[:-9], whole[:100] + whole[-100:], b"PAR1" + bytes(99) + b"PAR1"):
        path.write_bytes(data)
        assert refusal(path).startswith("is damaged, or no Parquet file: ")
    path.write_bytes(whole)
    for largest, count in ((0, 64), (2**24, 64), (2**24 + 2**19, 62), (2**28 + 1, 3), (2**33, 1)):
        assert parquet.batch_rows(largest) == count
    monkeypatch.setattr(parquet_headers, "LARGEST", 20)
    assert refusal(path) == "row group 0 has more than 20 bytes"


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("dictionary", [True, False])
def test_sizes_are_those_of_the_pages_whatever_the_file_says(
    tmp_path, monkeypatch, version, dictionary
):
    """The end of the file counts the headers too, in which values may stand again."""
    path = tmp_path / "train.parquet"
    found = hugging_face(range(2))
    found = found.set_column(0, "image", pa.array([{"bytes": bytes(n)} for n in (3000, 40)], IMAGE))
    pyarrow.parquet.write_table(
        found, path, compression="zstd", use_dictionary=dictionary, data_page_version=version
    )
    sizes = []
    monkeypatch.setattr(parquet, "batch_rows", lambda size: sizes.append(size) or 1)
    assert sum(len(data) for _, data in parquet.rows(path)) == 3040
    facts = pyarrow.parquet.read_metadata(path)
    assert 3040 < sizes[0] < 3080 < facts.row_group(0).column(0).total_uncompressed_size
    table, columns = pyarrow.parquet.ParquetFile(path), ("image", "labels")
    with pa.memory_map(str(path)) as file:
        assert parquet_headers.largest_column(table, file, path, columns) == sizes[0]
        monkeypatch.setattr(parquet_headers, "FREE", 3000)
        monkeypatch.setattr(parquet_headers, "RATIO", 0.1)
        with pytest.raises(DataError, match="row group 0 has more than 3,000 bytes"):
            parquet_headers.largest_column(table, file, path, columns)
        monkeypatch.undo()
        groups = list(parquet_headers.row_groups(table, file))
        monkeypatch.setattr(parquet_headers, "row_groups", lambda *_: groups * 99)
        with pytest.raises(DataError, match="row group [1-9].? lies outside of the file"):
            parquet_headers.largest_column(table, file, path, columns)
        far = [one._replace(start=one.start + 10**6, end=one.end + 10**6) for one in groups[0]]
        monkeypatch.setattr(parquet_headers, "row_groups", lambda *_: [far])
        with pytest.raises(DataError, match="row group 0 lies outside of the file"):
            parquet_headers.largest_column(table, file, path, columns)


def test_a_file_that_unpacks_to_many_times_its_size_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_headers, "FREE", 2**20)
    images = pa.array([{"bytes": bytes(2**20), "path": None}], IMAGE)
    path = tmp_path / "train.parquet"
    pyarrow.parquet.write_table(pa.table({"image": images, "y": [0]}), path, compression="zstd")
    assert path.stat().st_size < 2**15
    assert refusal(path) == "row group 0 has more than 1,048,576 bytes"
    monkeypatch.setattr(parquet_headers, "RATIO", 2**10)
    assert [len(data) for _, data in parquet.rows(path)] == [2**20]
    images, form = pa.concat_arrays([images] * 3), {"data_page_size": 99, "write_batch_size": 1}
    many = pa.table({"image": images, "y": [0] * 3})
    pyarrow.parquet.write_table(many, path, use_dictionary=False, compression="zstd", **form)
    monkeypatch.setattr(parquet_headers, "RATIO", 32)
    for free in (2**20, 2**21):  # each page is small enough
        monkeypatch.setattr(parquet_headers, "FREE", free + 2**10)
        assert refusal(path) == f"row group 0 has more than {free + 2**10:,} bytes"


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        (b"", "is cut off"),
        (b"\x25\x02\x00", "does not say how large"),
        (b"\x25\x02\x15\x01\x00", "does not say how large"),
        (b"\x6c" * 20, "nested too deeply"),
        (b"\x15" + b"\xff" * 11, "more than 64 bits"),
        (b"\x1b\x00", "field of another kind, 11"),
        (b"\x6b\x00", "field of kind 11"),
        (b"\x19\x00", "field of another kind, 9"),
        (b"\x69\xf1" + b"\xff" * 9 + b"\x01", "is cut off"),
        (b"\x69" + b"\x19" * 20, "nested too deeply"),
        (b"\x68\xff\xff\xff\x7f\x00", "is cut off"),
    ],
)
def test_a_damaged_header_of_a_page_is_an_error(header, problem):
    with pytest.raises(ValueError, match=problem):
        parquet_headers.parse_page((header), 0)
    beside = b"\x28\x03abc" + b"\x17" + bytes(8)  # a text and a fraction, which are passed over
    whole = b"\x15\x00\x15\x08\x15\x06\x2c\x15\x02\x11" + beside + b"\x00\x00"
    page = parquet_headers.parse_page((whole + header), 100)
    assert page[:4] == (100, 100 + len(whole), 103 + len(whole), 4)
    assert page[4:] == (parquet_headers.DATA, {1: 1, 2: 1})


def test_a_size_under_a_number_in_full_counts():
    """Numbers of fields are zigzag, and Arrow takes the last size: it must be the one checked."""
    header = b"\x15\x00\x15\x08\x15\x06" + b"\x05\x04\xa0\x9c\x01" + b"\x00"
    assert parquet_headers.parse_page(header, 0).size == 10_000


def test_rows_without_an_image_are_counted_as_none(tmp_path):
    images = pa.array([{"bytes": None, "path": "x.jpg"}, None, {"bytes": b"", "path": None}], IMAGE)
    path = written(tmp_path, table({"image": images, "y": [0, 1, 2]}))
    assert list(parquet.rows(path)) == [None] * 3


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (pa.array([3, 10]), ["3", "10"]),
        (pa.array(["cat", "dog"]).dictionary_encode(), ["cat", "dog"]),
        (pa.array(["cat", "dog"], pa.large_string()), ["cat", "dog"]),
    ],
)
@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_labels_of_files_that_nobody_described(tmp_path, labels, names, kind):
    columns = {"img": pa.array([JPEG, PNG], kind), "y": labels}
    path = written(tmp_path, table(columns), "mine.parquet")
    assert [name.split("/")[0] for name, _ in parquet.rows(path)] == names


def test_columns_are_named_where_several_could_be_meant(tmp_path):
    columns = {"img": pa.array([JPEG, PNG]), "fine": [0, 1], "coarse": [5, 5]}
    path = written(tmp_path, table(columns), "x.parquet")
    assert refusal(path) == "more than one column of labels: fine, coarse; name one: --label=COLUMN"
    assert sorted(contents(path, label="fine", copy=tmp_path / "c")) == [
        "0/x-00000000.jpg", "1/x-00000001.png",
    ]  # fmt: skip
    assert refusal(path, label="finer") == ("no column finer of labels; it has img, fine, coarse")
    both = written(tmp_path, table({**columns, "thumb": pa.array([JPEG, PNG])}), "y.parquet")
    assert refusal(both) == "more than one column of images: img, thumb"
    none = written(tmp_path, table({"text": ["a", "b"]}), "z.parquet")
    assert refusal(none) == "no column of images; it has text"
    floats = written(tmp_path, table({"img": pa.array([JPEG]), "y": [0.5]}), "f.parquet")
    assert refusal(floats, label="y") == "column y: must be whole numbers or texts, and is double"
    assert refusal(floats, label="img").startswith("column img: must be whole numbers or texts")
    texts = pa.array([{"bytes": "text"}], pa.struct({"bytes": pa.string()}))
    text = written(tmp_path, table({"img": texts, "y": [0]}), "t.parquet")
    assert refusal(text) == "no column of images; it has img, y"
    (tmp_path / "a").mkdir()
    with pytest.raises(DataError, match="^--label=fine: is for Parquet and Arrow files, and none"):
        image_listing.scan([tmp_path / "a"], label="fine")


def test_a_label_outside_of_the_named_classes_is_an_error(tmp_path):
    for label in (2, -2):
        path = written(tmp_path, hugging_face((0, label)))
        assert refusal(path) == f"labels {label}: the file names 2 classes"


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a/b", "a_b"], "labels: 'a/b' and 'a_b' would be one class, a_b; rename one of them"),
        (["cat", "cat "], "labels: 'cat' and 'cat ' would be one class, cat; rename one of them"),
        (["/", "cat"], "labels has a class without a name, '/'; name it"),
    ],
)
def test_classes_of_one_folder_or_none_are_refused(tmp_path, names, message):
    known = {"labels": {"_type": "ClassLabel", "names": names}}
    columns = {"image": pa.array([{"bytes": JPEG, "path": None}] * 2, IMAGE), "labels": [0, 1]}
    assert refusal(written(tmp_path, table(columns, known))) == message


def test_the_image_that_a_description_names_is_read(tmp_path):
    columns = {"mask": pa.array([PNG]), "img": pa.array([JPEG]), "y": [0]}
    features = {"img": {"_type": "Image"}, "y": {"_type": "Image"}}  # a column of numbers is none
    path = written(tmp_path, table(columns, features))
    assert [data for _, data in parquet.rows(path)] == [JPEG]


@pytest.mark.parametrize(
    "said",
    [
        *("{", "null", '{"info": {}}', '{"info": {"features": [1]}}'),
        *('{"info": {"features": {"y": "names"}}}', "[" * 10**5),
        *(f'{{"info": {{"features": {{"y": {{"names": {names}}}}}}}}}' for names in ("[5]", '"a"')),
    ],
)
def test_a_description_of_another_form_says_nothing(tmp_path, said):
    plain = table({"img": pa.array([JPEG]), "y": [0]})
    path = written(tmp_path, plain.replace_schema_metadata({"huggingface": said}), "x.parquet")
    assert [name for name, _ in parquet.rows(path)] == ["0/x-00000000.jpg"]


def test_a_class_has_a_name_that_a_folder_can_have(tmp_path):
    images = pa.array([{"bytes": JPEG, "path": None}] * 2, IMAGE)
    longest = "é" * 127
    path = written(tmp_path, table({"image": images, "label": [longest, longest]}))
    assert len(image_listing.scan([path])) == 2
    path = written(tmp_path, table({"image": images, "label": [longest, f"{longest}é"]}))
    assert refusal(path) == "label has a name of 256 bytes; at most 255 are allowed"


def test_names_of_classes_are_those_of_folders():
    names = {" cat ": "cat", "/cat/": "cat", "a/b": "a_b", " ": None, "/": None, "": None}
    assert {name: parquet.folder_name(name) for name in names} == names


def test_splits_are_words_of_names_of_files_or_else_of_their_folders():
    names = {
        "train-00000-of-00002.parquet": "train", "my_test_set.parquet": "test",
        "x.validation.parquet": "validation", "test/data.parquet": "test",
        "test/train-1.parquet": "train", "test/deep/0.parquet": None, "trains.parquet": None,
    }  # fmt: skip
    assert {name: parquet.split_name(pathlib.Path(name)) for name in names} == names


def test_a_webdataset_has_the_classes_of_its_labels(tmp_path):
    (tmp_path / "train-000.tar").write_bytes(official_fakes.tar(
        {
            "0001.jpg": JPEG, "0001.cls": b"7\n",
            "0002.json": b'{"label": "a cat"}', "0002.png": PNG,
            "0003.jpg": JPEG, "0003.json": b'{"caption": "no label"}',
            "cat/0004.jpg": JPEG, "cat/0004.json": b'{"label": "of a folder"}',
        },
    ))  # fmt: skip
    for source in (tmp_path / "train-000.tar", tmp_path):
        found = {path.removeprefix("train-000/") for path in contents(source)}
        assert found == {
            "train/7/train-000-0001.jpg", "train/a cat/train-000-0002.png",
            "train/train-000-0003.jpg",  # in no class, and in none called by the tar
            "cat/0004.jpg",
        }  # fmt: skip
    (tmp_path / "more.tar").write_bytes(official_fakes.tar({"0.jpg": JPEG}))
    message = r"images of .*more\.tar have no labels beside them .*, as those of .*train-000\.tar"
    with pytest.raises(DataError, match=message):
        contents(tmp_path)


@pytest.mark.parametrize(
    ("beside", "label"),
    [
        ({"cls": b" 7\n"}, "7"), ({"CLS": b"7"}, "7"), ({"txt": b"9", "cls": b"7"}, "7"),
        ({"cls": b"\xff"}, "\ufffd"), ({"cls": b"a/b"}, "a_b"), ({"cls": b"a\0b"}, None),
        ({"cls": b" "}, None), ({"cls": b"7" * (image_listing.LABEL + 1)}, None),
        ({"txt": b"7"}, None), ({"json": b'{"cls": 3}'}, "3"),
        ({"json": b'{"cls": 3, "label": "a"}'}, "a"), ({"json": b'{"label": [1]}'}, None),
        ({"json": b"[1]"}, None), ({"json": b"{"}, None), ({"json": b"[" * 60_000}, None),
        ({"json": b'{"label": null}', "cls": b"7"}, "7"), ({"cls": b"-1"}, ""),
        ({"json": b'{"label": -1}'}, ""),
    ],
)  # fmt: skip
def test_labels_beside_an_image_of_a_webdataset(tmp_path, beside, label):
    files = {f"00.1.{suffix}": data for suffix, data in beside.items()}
    whole = official_fakes.tar({"00.left.JPG": JPEG, **files, "01.jpg": JPEG})
    (tmp_path / "x.tar").write_bytes(whole)
    found = [f"{label}/x-00.left.JPG".lstrip("/"), "x-01.jpg"]
    if label is None:  # the tar has none
        found = ["00.left.JPG", "01.jpg"]
    assert sorted(contents(tmp_path / "x.tar")) == sorted(found)


def test_tables_of_one_name_are_refused(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        written(tmp_path / folder, hugging_face(), "data.parquet")
    one, other = (tmp_path / folder / "data.parquet" for folder in ("a", "b"))
    assert refusal(tmp_path) == (
        f"--from: {one} and {other} have the same name, and so have their images; rename one"
    )
    (tmp_path / "b").rename(tmp_path / "test")  # another split, whose images have other names
    assert len(image_listing.scan([tmp_path])) == 6


def test_examples_of_many_files(tmp_path, monkeypatch):
    """Of the files of one example a few are looked at, but all images listed."""
    monkeypatch.setattr(image_listing, "MEMBERS", 2)
    files = {"0.a.jpg": JPEG, "0.cls": b"7", "0.b.jpg": JPEG, "0.txt": b"t"}
    (tmp_path / "x.tar").write_bytes(official_fakes.tar(files))
    listing = image_listing.scan([tmp_path / "x.tar"])
    assert [listing.path(place) for place in range(len(listing))] == ["7/x-0.a.jpg", "7/x-0.b.jpg"]
    assert listing.ignored == ["0.cls", "0.txt"]


def test_a_packed_table_is_trained_on_by_its_names(tmp_path, prepare):
    images = [official_fakes.jpeg(official_fakes.structured(seed)) for seed in range(12)]
    columns = {
        "image": pa.array([{"bytes": data, "path": None} for data in images], IMAGE),
        "label": [index % 2 for index in range(12)],
    }
    names = {"_type": "ClassLabel", "names": ["wolf", "ape"]}
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub/README.md").write_text("a card")
    written(tmp_path / "hub", table(columns, {"image": {"_type": "Image"}, "label": names}))
    lines = printed(prepare("beans_of_mine", f"--from={tmp_path}/hub", "--holdout=0"))
    assert "beans_of_mine: train: 12 images of 2 classes" in lines
    data = config.Data(source="tfds", name="beans_of_mine", root=str(tmp_path / "data"))
    train = open_source(data, "train", train=True)
    assert train.classes == ("ape", "wolf")
    expected = {data: ("wolf", "ape")[index % 2] for index, data in enumerate(images)}
    records = [train[index] for index in range(len(train))]
    assert {one.image: train.classes[one.label] for one in records} == expected
    assert [path.name for path in (tmp_path / "data/beans_of_mine").iterdir()] == ["1.0.0"]
