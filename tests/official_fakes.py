"""Small archives in the layout of the official ones, with pictures made up; one function for each.

Each writes its files below `root` and returns how many images of each split are in them.
"""

import gzip
import io
import pathlib
import pickle
import tarfile
import zipfile

import cv2
import numpy as np
import scipy.io
import tensorflow_datasets as tfds

IMAGENET = pathlib.Path(str(tfds.core.tfds_path("datasets/imagenet2012")))
WORDNET = IMAGENET.joinpath("labels.txt").read_text().split()
VALIDATION = IMAGENET.joinpath("validation_labels.txt").read_text().split()


def pixels(*seed, height=12, width=10):
    """Soft colours that differ with the seed: uint8 `H W 3`."""
    coarse = np.random.default_rng(seed).integers(0, 256, (3, 3, 3), np.uint8)
    return cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)


def picture(*seed, kind=".jpg", **size):
    """A picture as a file."""
    return cv2.imencode(kind, pixels(*seed, **size))[1].tobytes()


def tar(files, mode="w"):
    """A tar, or with `w:gz` a compressed one, of files by name."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def zipped(files):
    """A zip of files by name."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def write(root, files):
    """Writes files by their paths below `root`."""
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data if isinstance(data, bytes) else data.encode())


def mat(**arrays):
    """A .mat file of MATLAB 5."""
    buffer = io.BytesIO()
    scipy.io.savemat(buffer, arrays, do_compression=True)
    return buffer.getvalue()


def imagenet_files(classes=4, each=3, validation=6):
    """ImageNet's images by split, by the name of their files."""
    train = {
        f"{name}_{7 * index}.JPEG": picture(number, index)
        for number, name in enumerate(WORDNET[:classes])
        for index in range(each)
    }
    names = [f"ILSVRC2012_val_{number:08d}.JPEG" for number in range(1, validation + 1)]
    return train, {name: picture(9, index) for index, name in enumerate(names)}


def devkit(validation=VALIDATION):
    """The two files of the devkit that say what validation images are; its ids are not in order."""
    synsets = WORDNET[::-1] + ["n00001740"]  # one that is above others, with an id of 1,001
    kind = [("ILSVRC2012_ID", "O"), ("WNID", "O"), ("words", "O"), ("num_children", "O")]
    table = np.zeros((len(synsets), 1), kind)
    for index, name in enumerate(synsets):
        table[index, 0] = (index + 1, name, f"words of {name}", float(index == 1000))
    ids = {name: index + 1 for index, name in enumerate(synsets)}
    truth = "".join(f"{ids[name]}\n" for name in validation)
    return {
        "ILSVRC2012_devkit_t12/data/meta.mat": mat(synsets=table),
        "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt": truth.encode(),
    }


def imagenet(root):
    """The tars of ILSVRC2012: training images are in a tar for each class."""
    train, validation = imagenet_files()
    classes = {}
    for name, data in train.items():
        classes.setdefault(name[:9], {})[name] = data
    tars = {f"{name}.tar": tar(files) for name, files in classes.items()}
    write(
        root,
        {
            "ILSVRC2012_img_train.tar": tar(tars),
            "ILSVRC2012_img_val.tar": tar(validation),
            "ILSVRC2012_devkit_t12.tar.gz": tar(devkit(), "w:gz"),
            "ILSVRC2012_img_test_v10102019.tar": b"not looked into",
        },
    )
    return {"train": len(train), "validation": len(validation)}


def cifar_records(number, batches, labels):
    """The records of CIFAR's files: labels, then red, green and blue values."""
    rng = np.random.default_rng(number)
    found = {}
    for name, count in batches.items():
        columns = [rng.integers(0, most, (count, 1), np.uint8) for most in labels]
        found[name] = np.hstack([*columns, rng.integers(0, 256, (count, 3072), np.uint8)])
    return found


CIFAR10 = {**{f"data_batch_{number}": 4 for number in range(1, 6)}, "test_batch": 5}
CIFAR100 = {"train": 7, "test": 3}
COARSE, FINE = ([f"{kind}_{k}" for k in range(n)] for kind, n in (("coarse", 20), ("fine", 100)))
ANIMALS = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def cifar10(root):
    """CIFAR-10's binary archive."""
    records = cifar_records(10, CIFAR10, [10])
    files = {f"{name}.bin": rows.tobytes() for name, rows in records.items()}
    files |= {"batches.meta.txt": ("\n".join(ANIMALS) + "\n\n").encode(), "readme.html": b"<a>"}
    inside = {f"cifar-10-batches-bin/{name}": data for name, data in files.items()}
    write(root, {"cifar-10-binary.tar.gz": tar(inside, "w:gz")})
    return {"train": 20, "test": 5}


def cifar100(root):
    """CIFAR-100's binary archive."""
    records = cifar_records(100, CIFAR100, [20, 100])
    files = {f"{name}.bin": rows.tobytes() for name, rows in records.items()}
    files |= {"coarse_label_names.txt": "\n".join(COARSE).encode()}
    files |= {"fine_label_names.txt": "\n".join(FINE).encode()}
    inside = {f"cifar-100-binary/{name}": data for name, data in files.items()}
    write(root, {"cifar-100-binary.tar.gz": tar(inside, "w:gz")})
    return {"train": 7, "test": 3}


def cifar_python(number):
    """The files of a Python archive, as Python 3 pickles them for Python 2."""
    batches, most = (CIFAR10, [10]) if number == 10 else (CIFAR100, [20, 100])
    keys = ["labels"] if number == 10 else ["coarse_labels", "fine_labels"]
    files = {}
    for name, rows in cifar_records(number, batches, most).items():
        lists = {key: rows[:, at].tolist() for at, key in enumerate(keys)}
        names = [f"{name}_s_{index}.png" for index in range(len(rows))]
        data = np.ascontiguousarray(rows[:, len(keys) :])
        files[name] = {"batch_label": name, "filenames": names, "data": data, **lists}
    if number == 10:
        files["batches.meta"] = {"num_vis": 3072, "label_names": ANIMALS}
    else:
        files["meta"] = {"coarse_label_names": COARSE, "fine_label_names": FINE}
    folder = "cifar-10-batches-py" if number == 10 else "cifar-100-python"
    return {f"{folder}/{name}": pickle.dumps(value, 2) for name, value in files.items()}


PETS = ("Abyssinian", "american_bulldog", "yorkshire_terrier")


def oxford_iiit_pet(root):
    """Pets: images, and annotations with lists, trimaps and, for training images, boxes."""
    files, lists, notes = {}, {"trainval.txt": "", "test.txt": ""}, {}
    labels = {"Abyssinian": 1, "american_bulldog": 2, "yorkshire_terrier": 37}
    for number, name in enumerate(PETS):
        for index in range(1, 7):
            image = f"{name}_{index}"
            # One of those that TFDS encodes again: a PNG by another name.
            kind = ".png" if image == "Abyssinian_5" else ".jpg"
            files[f"images/{image}.jpg"] = picture(number, index, kind=kind)
            split = "test.txt" if index % 3 == 0 else "trainval.txt"
            lists[split] += f"{image} {labels[name]} {1 if number == 0 else 2} {number + 1}\n"
            trimap = np.full((12, 10), 1 + index % 3, np.uint8)
            notes[f"trimaps/{image}.png"] = cv2.imencode(".png", trimap)[1].tobytes()
            notes[f"trimaps/._{image}.png"] = b"of another system"
            if split == "trainval.txt":
                box = f"<xmin>{index}</xmin><ymin>2</ymin><xmax>{index + 2}</xmax><ymax>9</ymax>"
                size = "<size><width>10</width><height>12</height><depth>3</depth></size>"
                notes[f"xmls/{image}.xml"] = (
                    f"<annotation>{size}<object><name>cat</name><bndbox>{box}</bndbox></object>"
                    "</annotation>"
                ).encode()
    files["images/Abyssinian_101.mat"] = b"no picture"
    lists["list.txt"] = "#Image CLASS-ID SPECIES BREED ID\n" + "".join(lists.values())
    notes |= {name: text.encode() for name, text in lists.items()}
    notes = {f"annotations/{name}": data for name, data in notes.items()}
    write(root, {"images.tar.gz": tar(files, "w:gz"), "annotations.tar.gz": tar(notes)})
    return {"train": 12, "test": 6}


def oxford_flowers102(root):
    """Flowers: the authors' test split is the larger one."""
    rng = np.random.default_rng(0)
    order = rng.permutation(np.arange(1, 21)).astype(np.uint16)
    splits = {"trnid": order[None, :4], "valid": order[None, 4:8], "tstid": order[None, 8:]}
    labels = rng.integers(1, 103, (1, 20)).astype(np.uint8)
    files = {f"jpg/image_{number:05d}.jpg": picture(number) for number in range(1, 21)}
    write(
        root,
        {
            "102flowers.tgz": tar(files, "w:gz"),
            "imagelabels.mat": mat(labels=labels),
            "setid.mat": mat(**splits),
        },
    )
    return {"train": 4, "validation": 4, "test": 12}


def caltech101(root):
    """Caltech-101: a compressed tar in a zip, with a class of clutter and one by two names."""
    files = {}
    for number, name in enumerate(("BACKGROUND_Google", "Faces_easy", "yin_yang")):
        for index in range(1, 34 + number):
            files[f"101_ObjectCategories/{name}/image_{index:04d}.jpg"] = picture(number, index)
    inside = {"caltech-101/101_ObjectCategories.tar.gz": tar(files, "w:gz")}
    inside["caltech-101/Annotations.tar"] = b"not looked into"
    inside["caltech-101/show_annotation.m"] = b"%"
    write(root, {"caltech-101.zip": zipped(inside)})
    return {"train": 90, "test": 12}


def compressed(data):
    """Bytes as gzip has them."""
    return gzip.compress(data, mtime=0)
