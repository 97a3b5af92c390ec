"""Lists of images in CSV files: what is read, and every mistake in one line."""

import pickle

import cv2
import numpy as np
import pytest

from commands import error_line
from vit_jax import config
from vit_jax.config import ConfigError
from vit_jax.data import folder_check, pipeline, sources, transforms
from vit_jax.data.source import UNKNOWN, DataError, label_text, read_targets

TRAIN = "image,labels\na.png,cat;dog\nsub/b.png,dog\nc.png,\nd.png, cat ; bird \n"
TEST = "image,labels\ne.png,bird\nf.png,\n"


def write(root, **files):
    """Writes CSV files by their names, and a gray image for each of their lines."""
    for name, text in files.items():
        (root / f"{name}.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    for number, name in enumerate(("a", "sub/b", "c", "d", "e", "f")):
        path = root / f"{name}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(cv2.imencode(".png", np.full((4, 4), 10 * number, np.uint8))[1])
    return root


def data(root, **options):
    return config.Data(
        **({"source": "csv", "root": str(root), "multilabel": True, "image_size": (4, 4),
            "channels": 1} | options)
    )  # fmt: skip


def opened(root, split="train", key="data.train_split", **options):
    return sources.open_source(data(root, **options), split, key=key)


def labels(source):
    return [source[index].label for index in range(len(source))]


def refusal(root, split="train", **options):
    text = error_line((DataError, ConfigError), opened, root, split, **options)
    assert "\n" not in text
    return text.replace(str(root), "ROOT")


def test_classes_of_each_image(tmp_path):
    write(tmp_path, train=TRAIN, test=TEST)
    train = opened(tmp_path)
    assert train.classes == ("bird", "cat", "dog")
    assert labels(train) == [(1, 2), (2,), (), (0, 1)]
    assert train.name(1) == f"{tmp_path}/sub/b.png"
    test = opened(tmp_path, "test")
    assert (test.classes, labels(test)) == (train.classes, [(0,), ()])
    assert cv2.imdecode(np.frombuffer(test[0].image, np.uint8), -1)[0, 0] == 40
    again = pickle.loads(pickle.dumps(train))
    assert (labels(again), again.fingerprint()) == (labels(train), train.fingerprint())


def test_a_column_for_each_class_is_the_same(tmp_path):
    lines = "file,dog,cat,bird\na.png,1,1,0\nsub/b.png,1,0,0\nc.png,0,0,0\nd.png,0,1, 1\n"
    write(tmp_path, train=b"\xef\xbb\xbf" + lines.encode(), test="file,bird,cat,dog\ne.png,1,0,0\n")
    train = opened(tmp_path)
    assert train.classes == ("dog", "cat", "bird")
    assert labels(train) == [(0, 1), (0,), (), (1, 2)]
    assert labels(opened(tmp_path, "test")) == [(2,)]  # whatever the order of its columns


def test_what_spreadsheets_and_web_pages_add_is_no_part_of_a_name(tmp_path):
    write(tmp_path, train="\n\ufeffimage,labels\na.png,\u200bcat\nsub/b.png, dog\u200b \n")
    assert opened(tmp_path).classes == ("cat", "dog")


def test_one_class_each(tmp_path):
    write(tmp_path, train='image,label\na.png,cat\n\n"sub/b.png","dog"\n')
    assert labels(opened(tmp_path, multilabel=False)) == [0, 1]
    write(tmp_path, train="image,label\na.png,cat\nsub/b.png,dog\nc.png,\n")
    assert "line 4: no class; remove the line; for" in refusal(tmp_path, multilabel=False)
    write(tmp_path, train=TRAIN)
    assert refusal(tmp_path, multilabel=False) == (
        "ROOT/train.csv, line 2: 2 classes; for images of any number set data.multilabel=true and "
        "loss.name=sigmoid"
    )


def test_slices_are_random_samples_that_divide_the_file(tmp_path):
    names = [f"{n}.png" for n in range(100)]
    write(tmp_path, train="image,labels\n" + "".join(f"{n},{int(n[0]) % 2}\n" for n in names))
    first, rest = (opened(tmp_path, f"train[{part}]") for part in (":30%", "30%:"))
    found = [[source.name(i).rpartition("/")[2] for i in range(len(source))]
             for source in (first, rest)]  # fmt: skip
    assert (len(first), len(rest)) == (30, 70)
    assert sorted(found[0] + found[1]) == sorted(names)
    assert found[0] == sorted(found[0], key=names.index) != names[:30]
    write(tmp_path, train="image,labels\n" + "".join(f"{n},{int(n[0]) % 2}\n" for n in names[::-1]))
    again = opened(tmp_path, "train[:30%]")
    assert {again.name(i).rpartition("/")[2] for i in range(30)} == set(found[0])


def test_a_path_is_one_image_however_it_is_spelled(tmp_path):
    def halves():
        parts = [opened(tmp_path, part) for part in ("train[:2]", "train[2:]")]
        return [(part.fingerprint(), *map(part.name, range(2))) for part in parts]

    write(tmp_path, train=TRAIN)
    found = halves()
    lines = TRAIN.replace("/", "//").replace("\n", "\n./").removesuffix("./")
    write(tmp_path, train=lines)
    assert halves() == found


def test_the_fingerprint_covers_paths_labels_and_sizes(tmp_path):
    write(tmp_path, train=TRAIN)
    before = opened(tmp_path).fingerprint()
    write(tmp_path, train=TRAIN.replace("c.png,\n", "c.png,dog\n"))
    changed = opened(tmp_path).fingerprint()
    write(tmp_path, train=TRAIN.replace("sub/b.png,dog\nc.png,", "sub/b.png,\nc.png,dog"))
    moved = opened(tmp_path).fingerprint()  # the same labels in a row, of other images
    write(tmp_path, train=TRAIN)
    assert opened(tmp_path).fingerprint() == before
    assert len({before, changed, moved}) == 3
    (tmp_path / "d.png").write_bytes(b"other")
    assert opened(tmp_path).fingerprint() != before
    (tmp_path / "d.png").unlink()
    with pytest.raises(DataError, match="d.png: No such file or directory$"):
        opened(tmp_path).fingerprint()


def test_lists_are_checked_before_a_run(tmp_path):
    write(tmp_path, train=TRAIN, test=TEST)
    splits = [opened(tmp_path), opened(tmp_path, "test"), None]
    assert folder_check.check_files(data(tmp_path), *splits) == (
        f"data.root={tmp_path}: train 4 images of 3 classes (1 to 2 each), test 2 images "
        "of 3 classes (0 to 1 each, none of cat and 1 other); all files are used"
    )
    (tmp_path / "f.png").unlink()
    with pytest.raises(DataError, match="of 2 images of test 1 cannot be used: .* does not exist"):
        folder_check.check_files(data(tmp_path), *splits)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "ROOT/train.csv: needs a header and at least 2 columns with commas between, "
         "image and classes"),
        ("image;class\na.png;x\n",
         "ROOT/train.csv: needs a header and at least 2 columns with commas between, "
         "image and classes; it has semicolons"),
        ('i,l\n"a.png","x\n;y"\nb.png\n',
         "ROOT/train.csv, line 4: 1 columns; the header has 2"),  # of the file, not of the table
        ("i,l\ndogs\\a.png,x\n", "ROOT/train.csv, line 2: dogs\\a.png: write / between folders"),
        ("image,l\n".encode("utf-16-le"),
         "ROOT/train.csv: is text of another encoding; save it as UTF-8"),
        ("a.PNG,x\nb.png,y\n",
         "ROOT/train.csv: begins with an image, not with a header: image,class"),
        ("sep=,\nimage,class\na.png,x\n", "ROOT/train.csv: begins with sep=; remove that line"),
        ("class,image\nx,a.png\n",
         "ROOT/train.csv, line 2: class a.png: the first column is the image"),
        ("image,labels\n", "ROOT/train.csv: lists no image"),
        ("i,l\na\0.png,x\n", "ROOT/train.csv, line 2: a\\x00.png: must be a path below data.root"),
        ("i,l\n/etc/x,x\n", "ROOT/train.csv, line 2: /etc/x: must be a path below data.root"),
        ("i,l\na/../../x,x\n", "ROOT/train.csv, line 2: a/../../x: must be a path below data.root"),
        ("i,l\na.png,x\nb.png,x\n./a.png,y\n",
         "ROOT/train.csv, line 4: a.png is listed in line 2 too; an image has one line, with "
         "several classes image,class;class"),
        ("i,l\na.png,x;x\n", "ROOT/train.csv, line 2: a class is named twice"),
        ("i,l\na.png,x\x1b[2J\n",
         "ROOT/train.csv, line 2: class 'x\\\\x1b[2J': is empty, or cannot be shown; rename it"),
        ("i,l\na.png,x\nb.png,\n",
         "data.root=ROOT: train.csv has 1 classes; at least 2 are needed"),
        ("i,x,y\na.png,1,2\n", "ROOT/train.csv, line 2: y is 2; with more than two columns each is "
         "a class, 0 or 1; keep image and class, or name columns of numbers in data.targets "
         "(doctor: --no-labels)"),
        ("i,x,\na.png,1,0\n", "ROOT/train.csv, line 2: 0: its column has no name"),
        ("i,,x\na.png,1,0\n",
         "ROOT/train.csv, line 1: class '': is empty, or cannot be shown; rename it"),
        ("i,x,x\na.png,1,0\n", "ROOT/train.csv: two columns have the same name"),
        ('i,l\n"a.png,x\n', "ROOT/train.csv, line 2: unexpected end of data"),
        (b"i,l\na.png,\xff\n", "ROOT/train.csv: byte 10 is not UTF-8"),
    ],
)  # fmt: skip
def test_a_malformed_list_is_one_line(tmp_path, text, line):
    write(tmp_path, train=text)
    assert refusal(tmp_path) == line


def test_a_suffix_in_capitals(tmp_path):
    write(tmp_path, train=TRAIN)
    (tmp_path / "train.csv").rename(tmp_path / "train.CSV")
    assert len(opened(tmp_path)) == 4
    assert refusal(tmp_path, "dev").endswith(
        "CSV files there: train.CSV; set data.train_split=train"
    )
    write(tmp_path, train=TRAIN)
    assert refusal(tmp_path) == (
        "data.root=ROOT: train.CSV and train.csv are lists of one split; remove one"
    )


def test_a_class_in_another_unicode_form(tmp_path):
    write(tmp_path, train="image,class\na.png,caf\u00e9\nc.png,dog\n")
    write(tmp_path, test="image,class\ne.png,cafe\u0301\n")
    assert refusal(tmp_path, "test", multilabel=False) == (
        "ROOT/test.csv, line 2: class cafe\u0301 is not in the training split; cafe\u0301 is there "
        "in another Unicode form (NFC or NFD); write both in NFC"
    )
    write(tmp_path, test="image,class\ne.png,DOG\n")
    assert refusal(tmp_path, "test", multilabel=False).endswith(
        "class DOG is not in the training split; 'DOG' is 'dog' there; spell it alike"
    )


def test_images_in_two_lists_are_said(tmp_path):
    write(tmp_path, train=TRAIN, val="image,labels\n./a.png,cat\ne.png,bird\n", test=TEST)
    data_ = data(tmp_path, eval_split="val", test_split="test")
    parts = [opened(tmp_path, split) for split in ("train", "val", "test")]
    line = folder_check.check_files(data_, *parts)
    assert line is not None
    assert line.partition("; ")[2] == (
        "all files are used; of val 1 are in train too: a.png; of test 1 are in val too: e.png"
    )


def test_other_mistakes_are_one_line(tmp_path):
    write(tmp_path, train=TRAIN, test="image,labels\ne.png,brid\n")
    assert refusal(tmp_path, "test") == (
        "ROOT/test.csv, line 2: class brid is not in the training split; did you mean bird?"
    )
    write(tmp_path, test="image,cat,dog,fish\ne.png,1,0,0\n")
    assert refusal(tmp_path, "test") == (
        "ROOT/test.csv: its columns are not the classes of the training split: bird"
    )
    assert refusal(tmp_path, "dev") == (
        "data.train_split=dev: no dev.csv in data.root=ROOT; CSV files there: test.csv, train.csv; "
        "set data.train_split=train"
    )
    with pytest.raises(DataError, match="^data.root=.*/no: no such folder$"):
        opened(tmp_path / "no")
    with pytest.raises(ConfigError, match="model.num_classes=4: data.multilabel needs as many as"):
        sources.open_source(data(tmp_path), "train", num_classes=4, train=True)


@pytest.mark.parametrize(
    "text",
    [
        TRAIN.encode("utf-16"),
        TRAIN.replace(",", "\t").encode("utf-16"),  # Excel's "Unicode text"
        TRAIN.replace("\n", "\r\n").encode("utf-8-sig"),
        TRAIN.replace("\n", ",\n").replace("labels", " labels ").encode(),
        b"image,bird,cat,dog\na.png,False,True,True\nsub/b.png,0.0,0,1.0\nc.png,false,0,0\n"
        b"d.png,TRUE,1,0\n",
        b",image,labels\n0,a.png,cat;dog\n1,sub/b.png,dog\n2,c.png,\n3,d.png,cat;bird\n",
        b'image,labels\na.png, "cat;dog"\nsub/b.png, "dog"\nc.png,\nd.png, "cat;bird"\n',
    ],
)
def test_lists_as_other_programs_write_them(tmp_path, text):
    expected = labels(opened(write(tmp_path, train=TRAIN)))
    assert labels(opened(write(tmp_path, train=text))) == expected


def test_other_separators_are_named(tmp_path, caplog):
    write(tmp_path, train="image,labels\na.png,cat|dog\nd.png,dog\n")
    with pytest.raises(DataError, match=r"line 2: class cat\|dog: write ; between classes, not \|"):
        opened(tmp_path)
    write(tmp_path, train="image,labels\na.png,cat dog\nd.png,dog\n")
    opened(tmp_path)
    assert "no image has several classes, such as cat dog; `;` separates them" in caplog.text
    write(tmp_path, train="image,animal\na.png,0\nd.png,1\n")
    opened(tmp_path)
    assert "train.csv: 0 and 1 of column animal are taken for names of classes; " in caplog.text


def batch_of(source, options, size):
    chain = transforms.eval_transforms(options)
    given = {"seed": 0, "batch_size": size, "rows": range(size), "train": False, "stop_step": 1}
    with pipeline.batches(source, chain, options, **given) as batches:
        return next(batches)


def test_batches_have_a_one_for_each_class(tmp_path):
    batch = batch_of(opened(write(tmp_path, train=TRAIN)), data(tmp_path, workers=0), 6)
    expected = [[0, 1, 1], [0, 0, 1], [0, 0, 0], [1, 1, 0], [0, 0, 0], [0, 0, 0]]
    np.testing.assert_array_equal(batch["label"], np.float32(expected), strict=True)
    assert batch["mask"].tolist() == [True] * 4 + [False] * 2


def test_names_of_labels():
    classes = ("bird", "cat", "dog")
    assert [label_text(label, classes) for label in (1, (0, 2), (1,), ())] == [
        "cat", "bird; dog", "cat", "no class"
    ]  # fmt: skip


def test_synthetic_images_of_any_number_of_classes():
    options = config.Data(
        source="synthetic", multilabel=True, image_size=(8, 8), channels=1, num_examples=60
    )
    source = sources.open_source(options, "train", num_classes=5, train=True)
    found = labels(source)
    assert [len(label) for label in found[:6]] == [0, 1, 2, 0, 1, 2]
    assert {one for label in found for one in label} == set(range(5))
    assert len({label for label in found if len(label) == 2}) == 10
    plain = sources.open_source(
        config.Data(**(vars(options) | {"multilabel": False})), "train", num_classes=5, train=True
    )
    assert source.fingerprint() != plain.fingerprint()
    # Pictures of one class are those of its pattern, whichever way they are labeled.
    mean = {label: np.mean([source[i].image for i in range(60) if found[i] == label], 0)
            for label in set(found) if len(label) == 1}  # fmt: skip
    for (label,), picture in mean.items():
        same = np.mean([plain[i].image for i in range(label, 60, 5)], 0)
        assert np.abs(picture - same).mean() < 25


def test_without_labels_a_list_of_paths_is_enough(tmp_path):
    write(
        tmp_path, train="image\na.png\nsub/b.png\n", test="image,notes,more\nc.png,one of; them,7\n"
    )
    for split, expected in (("train", ["a.png", "sub/b.png"]), ("test", ["c.png"])):
        source = sources.open_source(data(tmp_path, multilabel=False), split, labels=False)
        assert [source.name(i) for i in range(len(source))] == [f"{tmp_path}/{n}" for n in expected]
        assert (source.classes, source[0].label) == ((), UNKNOWN)
    assert "needs a header and at least 2 columns" in refusal(tmp_path)


def test_excluded_images_are_in_no_part(tmp_path):
    root = write(tmp_path, train=TRAIN, fix="image,why\nc.png,copy\n./a.png,broken\n")
    given = {"exclude": str(root / "fix.csv")}
    source = opened(root, **given)
    assert [source.name(at) for at in range(2)] == [f"{root}/sub/b.png", f"{root}/d.png"]
    assert labels(source) == [(2,), (0, 1)]
    assert source.fingerprint() != opened(root).fingerprint()
    parts = [opened(root, part, **given) for part in ("train[:50%]", "train[50%:]")]
    assert sum(map(len, parts)) == 2
    (root / "val.csv").write_text("image,class\na.png,cat\nc.png,dog\n")
    (root / "fix.csv").write_text("image,split\na.png,train\nc.png, train;val\nb.png,\n")
    assert [len(opened(root, split, **given)) for split in ("train", "validation")] == [2, 1]
    (root / "fix.csv").write_text("image,split\na.png,trian\n")
    line = "fix.csv: split trian: no such list in data.root=.*; did you mean train?"
    with pytest.raises(DataError, match=line):
        opened(root, **given)


AGES = "image,name,age,weight\na.png,x,31.5,-2e1\nsub/b.png,y,0,70\nc.png,,+8.,.5\n"


def numbered(root, text=AGES, targets=("weight", "age")):
    return opened(write(root, train=text), multilabel=False, targets=targets)


def test_columns_of_numbers_are_labels(tmp_path):
    source = numbered(tmp_path)
    assert source.classes == ("weight", "age")
    assert labels(source) == [(-20.0, 31.5), (70.0, 0.0), (0.5, 8.0)]
    assert read_targets(source).dtype == np.float64
    np.testing.assert_array_equal(read_targets(source), labels(source))
    assert label_text(source[0].label, source.classes) == "-20; 31.5"
    assert label_text((1700000001.0, 0.1), source.classes) == "1700000001; 0.1"
    before, given = source.fingerprint(), data(tmp_path, multilabel=False, targets=source.classes)
    headed = sources.open_source(given, "train", head=source.classes)  # whose outputs they are
    assert headed.fingerprint() == before
    other = AGES.replace("31.5", "31.6")
    assert numbered(tmp_path, other).fingerprint() != before
    assert numbered(tmp_path, targets=("age", "weight")).fingerprint() != before
    assert numbered(tmp_path, AGES.replace(",y,", ",z,")).fingerprint() == before  # not read


def test_a_batch_has_the_numbers(tmp_path):
    given = data(tmp_path, multilabel=False, targets=("weight", "age"))
    batch = batch_of(numbered(tmp_path), given, 4)
    assert batch["label"].dtype == np.float32
    np.testing.assert_array_equal(batch["label"], [(-20, 31.5), (70, 0), (0.5, 8), (0, 0)])


def test_images_of_numbers_are_counted_without_classes(tmp_path):
    given = data(tmp_path, multilabel=False, targets=("weight", "age"))
    line = folder_check.check_files(given, numbered(tmp_path), None, None)
    assert line.startswith(f"data.root={tmp_path}: train 3 images; ")


@pytest.mark.parametrize(
    ("cell", "why"),
    [
        ("", "age is empty; fill it in, or remove the line"),
        *(
            (text, f"age is {text}; must be a number such as 3.5, below 1e+30")
            for text in ("nan", "-Infinity", "old", "1_000", "1e30")
        ),
        ('"3,5"', "age is 3,5; must be a number such as 3.5, below 1e+30"),
        ("\u0663", "age is \u0663; must be a number such as 3.5, below 1e+30"),
    ],
)
def test_what_is_no_number(tmp_path, cell, why):
    write(tmp_path, train=f"image,age\na.png,1\nc.png,{cell}\n")
    found = refusal(tmp_path, multilabel=False, targets=("age",))
    assert found == f"ROOT/train.csv, line 3: {why}"


def test_columns_that_are_not_there(tmp_path):
    options = {"multilabel": False, "targets": ("age",)}
    for text, line in (
        ("image,agee\na.png,1\n", ": has no column age; did you mean agee?"),
        ("age,size\na.png,1\n", ": has no column age; known: size"),
        ("image,age\na.png,1\na.png,2\n",
         ", line 3: a.png is listed in line 2 too; an image has one line"),
        ("image\na.png\n", ": needs a header and at least 2 columns with commas between, image and "
                           "numbers"),
    ):  # fmt: skip
        write(tmp_path, train=text)
        assert refusal(tmp_path, **options) == f"ROOT/train.csv{line}"
