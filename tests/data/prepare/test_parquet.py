"""Parquet and webdataset files: labels by name, splits by file, damage in one line."""

import contextlib
import io
import json
import tarfile

import pyarrow as pa
import pyarrow.parquet
import pytest

from vit_jax import config
from vit_jax.data.prepare import archives, image_listing, parquet
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
    assert len(listing.ignored) == 2  # without a label


def test_arrow_files_are_refused_with_the_remedy(tmp_path):
    (tmp_path / "train.arrow").write_bytes(b"ARROW1")
    assert "to_parquet" in refusal(tmp_path / "train.arrow")


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (pa.array([3, 10]), ["3", "10"]),
        (pa.array(["cat", "dog"]), ["cat", "dog"]),
        (pa.array(["cat", "dog"]).dictionary_encode(), ["cat", "dog"]),
    ],
)
def test_labels_of_files_that_nobody_described(tmp_path, labels, names):
    path = written(tmp_path, table({"img": pa.array([JPEG, PNG]), "y": labels}), "mine.parquet")
    assert [row.path.split("/")[0] for row in parquet.rows(path)] == names


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
    (tmp_path / "a").mkdir()
    with pytest.raises(DataError, match="^--label=fine: is for Parquet files, and none"):
        image_listing.scan([tmp_path / "a"], label="fine")


def test_a_label_outside_of_the_named_classes_is_an_error(tmp_path):
    path = written(tmp_path, hugging_face((0, 2)))
    assert refusal(path) == "labels 2: the file names 2 classes"


def sample_tar(path, members):
    with tarfile.open(path, "w") as file:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))


def test_a_webdataset_has_the_classes_of_its_labels(tmp_path):
    sample_tar(
        tmp_path / "train-000.tar",
        {
            "0001.jpg": JPEG, "0001.cls": b"7\n",
            "0002.json": b'{"label": "a cat"}', "0002.png": PNG,
            "0003.jpg": JPEG, "0003.json": b'{"caption": "no label"}',
            "cat/0004.jpg": JPEG, "cat/0004.json": b'{"label": "of a folder"}',
        },
    )  # fmt: skip
    for source in (tmp_path / "train-000.tar", tmp_path):
        found = {path.removeprefix("train-000/") for path in contents(source)}
        assert found == {
            "train/7/train-000-0001.jpg", "train/a cat/train-000-0002.png", "0003.jpg",
            "cat/0004.jpg",
        }  # fmt: skip


def test_a_packed_table_is_trained_on_by_its_names(tmp_path, prepare, picture, encode):
    images = [encode(picture(seed)) for seed in range(12)]
    columns = {
        "image": pa.array([{"bytes": data, "path": None} for data in images], IMAGE),
        "label": [index % 2 for index in range(12)],
    }
    features = {
        "image": {"_type": "Image"},
        "label": {"_type": "ClassLabel", "names": ["wolf", "ape"]},
    }
    folder = tmp_path / "hub"
    folder.mkdir()
    (folder / "README.md").write_text("a card")
    written(folder, table(columns, features))
    code, lines, woe = prepare("beans_of_mine", f"--from={folder}", "--holdout=0.2")
    assert (code, woe) == (0, [])
    assert "beans_of_mine: train: 8 images of 2 classes" in lines
    data = config.Data(source="tfds", name="beans_of_mine", root=str(tmp_path / "data"))
    train, held = (open_source(data, split, train=True) for split in ("train", "validation"))
    assert train.classes == ("ape", "wolf")
    records = [source[index] for source in (train, held) for index in range(len(source))]
    expected = {data: ("wolf", "ape")[index % 2] for index, data in enumerate(images)}
    assert {one.image: train.classes[one.label] for one in records} == expected
    assert [path.name for path in (tmp_path / "data/beans_of_mine").iterdir()] == ["1.0.0"]
