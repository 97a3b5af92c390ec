"""Small archives in the layout of the official ones, with pictures made up; one function for each.

Each writes its files below `root` and returns how many images of each split are in them.
"""

import dataclasses
import gzip
import io
import json
import pathlib
import pickle
import struct
import tarfile
import zipfile

import cv2
import google_crc32c
import numpy as np
import scipy.io
import tensorflow_datasets as tfds
from tensorflow_datasets.proto import tf_example_pb2

IMAGENET = pathlib.Path(str(tfds.core.tfds_path("datasets/imagenet2012")))
WORDNET = IMAGENET.joinpath("labels.txt").read_text().split()
VALIDATION = IMAGENET.joinpath("validation_labels.txt").read_text().split()


def resized(recipe, splits):
    """A recipe that expects other numbers of images than the official ones."""
    return dataclasses.replace(recipe, dataset=dataclasses.replace(recipe.dataset, images=splits))


def pixels(*seed, height=12, width=10):
    """Soft colors that differ with the seed: uint8 `H W 3`."""
    coarse = np.random.default_rng(seed).integers(0, 256, (3, 3, 3), np.uint8)
    return cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)


def picture(*seed, kind=".jpg", **size):
    """A picture as a file."""
    return cv2.imencode(kind, pixels(*seed, **size))[1].tobytes()


def structured(seed, height=40, width=48):
    """Soft colors that differ with the seed, a disc and a bar: uint8 `H W 3`."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (5, 6, 3), np.uint8)
    image = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    center = (int(rng.integers(width)), int(rng.integers(height)))
    cv2.circle(image, center, height // 5, rng.integers(0, 256, 3).tolist(), -1)
    top = int(rng.integers(height - 4))
    image[top : top + 4] = rng.integers(0, 256, 3)
    return image


def jpeg(image, quality=90):
    """The JPEG of RGB pixels."""
    bgr = np.ascontiguousarray(image[:, :, ::-1])
    return cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, quality])[1].tobytes()


def tar(files, mode="w", **options):
    """A tar, or with `w:gz` a compressed one, of files by name."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode, **options) as archive:
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


def tfrecord(records):
    """A TFRecord file, written out from its description: lengths and records with checksums."""

    def summed(data):
        crc = google_crc32c.value(data)
        mask = (((crc >> 15) | (crc << 17)) + 0xA282EAD8) % 2**32
        return data + struct.pack("<I", mask)

    return b"".join(summed(struct.pack("<Q", len(one))) + summed(one) for one in records)


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


def imagenet_files():
    """ImageNet's images by split, by the name of their files."""
    train = {
        f"{name}_{7 * index}.JPEG": picture(number, index)
        for number, name in enumerate(WORDNET[:4])
        for index in range(3)
    }
    names = [f"ILSVRC2012_val_{number:08d}.JPEG" for number in range(1, 7)]
    return train, {name: picture(9, index) for index, name in enumerate(names)}


def imagenet2012(root):
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
            "ILSVRC2012_devkit_t12.tar.gz": b"not looked into",
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


def classes(names, each=3, kind=".jpg", **size):
    """Pictures by `CLASS/NAME`."""
    return {
        f"{name}/{name}_{index}{kind}": picture(0, number, index, kind=kind, **size)
        for number, name in enumerate(names)
        for index in range(1, each + 1)
    }


def eurosat(root):
    """EuroSAT's zip."""
    files = classes(("AnnualCrop", "River", "SeaLake"), height=64, width=64)
    write(root, {"EuroSAT.zip": zipped({f"2750/{n}": data for n, data in files.items()})})
    return {"train": 9}


def resisc45(root):
    """RESISC45 as its .rar is unpacked."""
    files = classes(("airplane", "wetland"), height=256, width=256)
    write(root, {f"NWPU-RESISC45/{name}": data for name, data in files.items()})
    return {"train": 6}


def uc_merced(root):
    """UC Merced's zip of TIFFs."""
    files = classes(("agricultural", "tenniscourt"), kind=".tif")
    files = {f"UCMerced_LandUse/Images/{name}": data for name, data in files.items()}
    write(root, {"UCMerced_LandUse.zip": zipped(files)})
    return {"train": 6}


def dtd(root):
    """DTD: ten partitions, of which TFDS takes the first."""
    files = classes(("banded", "cobwebbed", "zigzagged"), each=4)
    names = list(files)
    lists = {"train1": names[::3], "val1": names[1::3], "test1": names[2::3], "train2": names}
    inside = {f"dtd/images/{name}": data for name, data in files.items()}
    inside |= {f"dtd/labels/{n}.txt": "\n".join(of).encode() for n, of in lists.items()}
    inside["dtd/imdb/imdb.mat"] = b"not read"
    write(root, {"dtd-r1.0.1.tar.gz": tar(inside, "w:gz")})
    return {"train": 4, "validation": 4, "test": 4}


def svhn_cropped(root):
    """SVHN: MATLAB arrays, in which a zero is a 10."""
    rng = np.random.default_rng(0)
    for split, number in (("train", 13), ("test", 6), ("extra", 2)):
        images = rng.integers(0, 256, (32, 32, 3, number), np.uint8)
        labels = (np.arange(number, dtype=np.uint8)[:, None] % 10) + 1
        write(root, {f"{split}_32x32.mat": mat(X=images, y=labels)})
    return {"train": 13, "test": 6}


def norb(array):
    """An array in SmallNORB's format."""
    magic = {"uint8": 0x1E3D4C55, "int32": 0x1E3D4C54}[array.dtype.name]
    shape = [*array.shape, 1, 1][: max(3, array.ndim)]
    return np.array([magic, array.ndim, *shape], "<i4").tobytes() + array.tobytes()


def smallnorb(root):
    """SmallNORB: arrays of image pairs, categories, and poses."""
    rng = np.random.default_rng(0)
    for name, number in (
        ("5x46789x9x18x6x2x96x96-training", 5),
        ("5x01235x9x18x6x2x96x96-testing", 4),
    ):
        info = rng.integers(0, (10, 9, 18, 6), (number, 4)).astype(np.int32) * (1, 1, 2, 1)
        arrays = {
            "dat": rng.integers(0, 256, (number, 2, 96, 96), np.uint8),
            "cat": rng.integers(0, 5, number).astype(np.int32),
            "info": info.astype(np.int32),
        }
        files = {f"smallnorb-{name}-{k}.mat.gz": compressed(norb(a)) for k, a in arrays.items()}
        write(root, files)
    return {"train": 5, "test": 4}


SPRITES = "dsprites_ndarray_co1sh3sc6or40x32y32_64x64"


def sprites():
    """The arrays of dSprites."""
    rng = np.random.default_rng(0)
    classes = rng.integers(0, (1, 3, 6, 40, 32, 32), (7, 6))
    return {
        "imgs": rng.integers(0, 2, (7, 64, 64)).astype(np.uint8),
        "latents_classes": classes,
        "latents_values": classes * 0.3,
    }


def hdf5(arrays, **options):
    """An HDF5 file; `a/b` is b of the group a."""
    import h5py

    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array, **options)
    return buffer.getvalue()


def dsprites(root):
    """dSprites as numpy has it, with facts that are pickled, and as an HDF5 file."""
    arrays, buffer = sprites(), io.BytesIO()
    np.savez_compressed(buffer, metadata=np.array({"title": "dSprites"}), **arrays)
    groups = {name.replace("latents_", "latents/"): array for name, array in arrays.items()}
    write(root, {f"{SPRITES}.npz": buffer.getvalue(), f"{SPRITES}.hdf5": hdf5(groups)})
    return {"train": 7}


def patch_camelyon(root):
    """PatchCamelyon's six HDF5 files, in parts, compressed as a whole."""
    rng = np.random.default_rng(0)
    for split, number in (("train", 6), ("valid", 3), ("test", 4)):
        pixels = rng.integers(0, 256, (number, 96, 96, 3), np.uint8)
        labels = rng.integers(0, 2, (number, 1, 1, 1), np.uint8)
        for kind, array in (("x", pixels), ("y", labels)):
            name = f"camelyonpatch_level_2_split_{split}_{kind}.h5.gz"
            chunks = (2, *array.shape[1:])
            data = hdf5({kind: array}, chunks=chunks, compression="gzip" if kind == "y" else None)
            write(root, {name: compressed(data)})
    return {"train": 6, "validation": 3, "test": 4}


def clevr(root):
    """CLEVR: images, and tables of scenes; the test split has no scenes."""
    rng = np.random.default_rng(0)
    files = {}
    for split, number in (("train", 5), ("val", 3), ("test", 2)):
        scenes, questions = [], []
        for index in range(number):
            name = f"CLEVR_{split}_{index:06d}.png"
            files[f"images/{split}/{name}"] = picture(number, index, kind=".png")
            objects = [
                {
                    "color": "cyan",
                    "material": "metal",
                    "shape": "cube",
                    "size": ("small", "large")[index % 2],
                    "rotation": float(rng.uniform(0, 360)),
                    "pixel_coords": [float(one) for one in rng.integers(0, 480, 3)],
                    "3d_coords": [float(one) for one in rng.uniform(-3, 3, 3)],
                }
                for _ in range(3 + index)
            ]
            scenes.append({"image_filename": name, "objects": objects, "split": split})
            questions.append({"image_filename": name, "question": "How many?", "answer": "3"})
        files[f"questions/CLEVR_{split}_questions.json"] = json.dumps({"questions": questions})
        if split != "test":
            files[f"scenes/CLEVR_{split}_scenes.json"] = json.dumps({"info": {}, "scenes": scenes})
    write(root, {"CLEVR_v1.0.zip": zipped({f"CLEVR_v1.0/{n}": data for n, data in files.items()})})
    return {"train": 5, "validation": 3}


def kitti(root):
    """KITTI: images, labels and the devkit that says of which video an image is."""
    rng = np.random.default_rng(0)
    images, labels = {}, {}
    for index in range(24):
        images[f"training/image_2/{index:06d}.png"] = picture(index, kind=".png")
        rows = [["DontCare", -1, -1, -10, *[1.0] * 4, *[-1] * 3, *[-1000] * 3, -10]]
        for kind in ("Car", "Pedestrian")[: 1 + index % 2]:
            box = [1.5, 2.25, 3 + index / 4, 9.75]
            numbers = rng.uniform(0, 9, 7).round(2)
            rows.append([kind, 0.25, index % 4, numbers[0], *box, *numbers[1:], -1.5])
        text = "".join(" ".join(map(str, row)) + "\n" for row in rows)
        labels[f"training/label_2/{index:06d}.txt"] = text
    images["testing/image_2/000000.png"] = picture(99, kind=".png")
    videos = [f"2011_09_26_drive_{number:04d}_sync" for number in range(8)]
    lines = [f"2011_09_26 {videos[line % 8]} {line:010d}\n" for line in range(30)]
    order = ",".join(str(line + 1) for line in rng.permutation(30)[:24])
    devkit = {"mapping/train_rand.txt": order, "mapping/train_mapping.txt": "".join(lines)}
    write(
        root,
        {
            "data_object_image_2.zip": zipped(images),
            "data_object_label_2.zip": zipped(labels),
            "devkit_object.zip": zipped(devkit),
        },
    )
    return None


def sun397(root):
    """SUN397: images of the lists that TFDS has, one larger than what it keeps, one a PNG."""
    folder = pathlib.Path(str(tfds.core.tfds_path("image_classification")))
    files, splits = {}, {"train": ("tr", 6), "validation": ("va", 3), "test": ("te", 4)}
    for number, (short, count) in enumerate(splits.values()):
        names = (folder / f"sun397_tfds_{short}.txt").read_text().split("\n")[:count]
        for index, name in enumerate(names):
            size = {"height": 400, "width": 500} if index == 1 else {}
            kind = ".png" if index == 2 else ".jpg"
            files[f"SUN397{name}"] = picture(number, index, kind=kind, **size)
    files["SUN397/a/abbey/sun_none_of_the_lists.jpg"] = picture(7)
    write(root, {"SUN397.tar.gz": tar(files, "w:gz"), "Partitions.zip": zipped({"a.txt": "a"})})
    return {split: count for split, (_, count) in splits.items()}


def eye(*seed):
    """A disc of colors on black."""
    image = pixels(*seed, height=90, width=120)
    mask = cv2.circle(np.zeros((90, 120), np.uint8), (60, 45), 40, 1, -1)
    return cv2.imencode(".jpeg", image * mask[:, :, None])[1].tobytes()


def diabetic_retinopathy_detection(root):
    """Eyes in three folders; the labels of the test images say which are public."""
    files, rows = {}, {"train": ["image,level"], "test": ["image,level,Usage"]}
    for split, number in (("train", 3), ("test", 5)):
        for index in range(number):
            name = f"{10 + index}_{('left', 'right')[index % 2]}"
            files[f"{split}/{name}.jpeg"] = eye(number, index)
            usage = "" if split == "train" else f",{('Public', 'Private')[index % 2]}"
            rows[split].append(f"{name},{index}{usage}")
    files["sample/10_left.jpeg"] = eye(1)
    files["trainLabels.csv"] = "\n".join(rows["train"])
    files["retinopathy_solution.csv"] = "\n".join(rows["test"])
    write(root, files)
    return {"train": 3, "validation": 3, "test": 2}


def dmlab_examples():
    """DMLab's examples by split."""
    return {
        split: [
            {
                "image": picture(number, index, height=360, width=480),
                "filename": f"{split}-{index}.jpg".encode(),
                "label": index % 6,
            }
            for index in range(number)
        ]
        for split, number in (("train", 5), ("validation", 3), ("test", 4))
    }


def dmlab(root):
    """DMLab: TFRecord files, several for a split."""
    files = {}
    for split, examples in dmlab_examples().items():
        for shard in range(2):
            records = []
            for one in examples[shard::2]:
                example = tf_example_pb2.Example()
                feature = example.features.feature
                feature["image"].bytes_list.value.append(one["image"])
                feature["filename"].bytes_list.value.append(one["filename"])
                feature["label"].int64_list.value.append(one["label"])
                records.append(example.SerializeToString())
            files[f"dmlab-{split}.tfrecord-{shard:05d}-of-00002"] = tfrecord(records)
    write(root, {"dmlab.tar.gz": tar(files, "w:gz")})
    return {split: len(examples) for split, examples in dmlab_examples().items()}


def imagenet_v2(root):
    """ImageNet-V2: folders of numbered classes."""
    files = {
        f"imagenetv2-matched-frequency-format-val/{number}/{index}ab.jpeg": picture(number, index)
        for number in (0, 7, 999)
        for index in range(2)
    }
    write(root, {"imagenetv2-matched-frequency.tar.gz": tar(files, "w:gz")})
    return {"test": 6}


def imagenet_a(root):
    """ImageNet-A: folders of WordNet ids, and a text."""
    files = {f"imagenet-a/{name}/0.{n}_x.jpg": picture(n) for n, name in enumerate(WORDNET[:4])}
    files["imagenet-a/README.txt"] = b"text"
    write(root, {"imagenet-a.tar": tar(files)})
    return {"test": 4}


def imagenet_r(root):
    """ImageNet-R: the same names in several folders."""
    files = {f"imagenet-r/{name}/art_{k}.jpg": picture(k) for name in WORDNET[:2] for k in (0, 1)}
    files["imagenet-r/README.txt"] = b"text"
    write(root, {"imagenet-r.tar": tar(files)})
    return {"test": 4}


def imagenet_sketch(root):
    """ImageNet-Sketch's zip."""
    files = {f"sketch/{n}/sketch_{k}.JPEG": picture(k) for n in WORDNET[:2] for k in range(3)}
    write(root, {"ImageNet-Sketch.zip": zipped(files)})
    return {"test": 6}


def cars196(root):
    """Cars: two lists with boxes and classes, one of them in the devkit."""
    kind = [(name, "O") for name in ("bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2", "class", "fname")]
    lists = {}
    for split, number in (("train", 5), ("test", 3)):
        table = np.zeros((1, number), kind)
        files = {}
        for index in range(number):
            name = f"{index + 1:05d}.jpg"
            box = np.array([1, 2, 7 + index % 3, 11], np.uint8)
            table[0, index] = (*box, np.uint8(196 - index), name)
            files[f"cars_{split}/{name}"] = picture(number, index)
        write(root, {f"cars_{split}.tgz": tar(files, "w:gz")})
        lists[split] = mat(annotations=table)
    devkit = {"devkit/cars_train_annos.mat": lists["train"], "devkit/README.txt": b"text"}
    write(root, {"car_devkit.tgz": tar(devkit, "w:gz")})
    write(root, {"cars_test_annos_withlabels.mat": lists["test"]})
    return {"train": 5, "test": 3}
