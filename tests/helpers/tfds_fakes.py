"""Small datasets in the real TFDS format: records of the real builders' features, made up.

`prepare` lets TFDS write them, as array_record; `lengthen` repeats the records of a split until it
has as many as splits such as `train[45000:45200]` need.
"""

import io
import json
import pathlib

import cv2
import numpy as np
import tensorflow_datasets as tfds
from array_record.python import array_record_data_source, array_record_module

import official_fakes
from vit_jax.data import objectnet
from vit_jax.data.tasks import TASKS

SIDE = 8
# Records of every split that VTAB's real expressions need; as TFDS names the datasets.
VTAB_SIZES = {
    "caltech101": {"train": 2_954, "test": 40},
    "cifar100": {"train": 45_200, "test": 40},
    "dtd": {"train": 800, "validation": 200, "test": 40},
    "oxford_flowers102": {"train": 800, "validation": 200, "test": 40},
    "oxford_iiit_pet": {"train": 3_144, "test": 40},
    "sun397/tfds": {"train": 800, "validation": 200, "test": 40},
    "svhn_cropped": {"train": 66_131, "test": 40},
    "patch_camelyon": {"train": 800, "validation": 200, "test": 40},
    "eurosat/rgb": {"train": 21_640},
    "resisc45": {"train": 25_240},
    "diabetic_retinopathy_detection/btgraham-300": {"train": 800, "validation": 200, "test": 40},
    "clevr": {"train": 63_200, "validation": 40},
    "dmlab": {"train": 800, "validation": 200, "test": 40},
    "dsprites": {"train": 663_592},
    "kitti": {"train": 800, "validation": 200, "test": 40},
    "smallnorb": {"train": 800, "test": 400},
}
DISTINCT = 200  # records that are made; the others repeat them


def as_tfrecords(builder):
    """Turns a prepared dataset into a copy in TFRecord files; returns its folder."""
    folder = pathlib.Path(builder.data_path)
    for shard in folder.glob("*array_record*"):
        records = list(array_record_data_source.ArrayRecordDataSource(str(shard)))
        data = official_fakes.tfrecord(records)
        shard.with_name(shard.name.replace("array_record", "tfrecord")).write_bytes(data)
        shard.unlink()
    info = folder / "dataset_info.json"
    info.write_text(info.read_text().replace('"array_record"', '"tfrecord"'))
    return folder


def prepare(root, name, splits, change=None, distinct=False):
    """Prepares `name`, `name/config` or `name:version` below root with so many records a split.

    `change(record, split, index)` may put other values into a record before TFDS encodes it. The
    first DISTINCT records are then repeated, unless all are to be `distinct`.
    """
    tfds.disable_progress_bar()
    builder = tfds.builder(name, data_dir=str(root), file_format="array_record")
    most = max(splits.values()) if distinct else DISTINCT
    made = {split: min(number, most) for split, number in splits.items()}

    def records(split, number):
        for index in range(number):
            record = example(builder, split, index)
            if change is not None:
                change(record, split, index)
            yield index, record

    def generators(dl_manager):
        return {split: records(split, number) for split, number in made.items()}

    builder._split_generators = generators
    builder.download_and_prepare(
        # Where datasets are downloaded by hand TFDS asks for the folder, which nothing reads.
        download_config=tfds.download.DownloadConfig(manual_dir=str(root))
    )
    for split, number in splits.items():
        if number > made[split]:
            lengthen(builder.data_path, split, number)
    return builder


def prepare_vtab(root, name):
    """Prepares the dataset of one of VTAB's tasks, as long as its splits need."""
    dataset = TASKS[name].dataset
    prepare(root, dataset.tfds, VTAB_SIZES[dataset.tfds])


def lengthen(folder, split, number):
    """Repeats the records of a split, in its one shard, until it has so many."""
    (shard,) = folder.glob(f"*-{split}.array_record-*")
    source = array_record_data_source.ArrayRecordDataSource(str(shard))
    records = source.__getitems__(range(len(source)))
    longer = shard.with_name("longer")
    writer = array_record_module.ArrayRecordWriter(str(longer), "group_size:1")
    for index in range(number):
        writer.write(records[index % len(records)])
    writer.close()
    longer.replace(shard)
    file = folder / "dataset_info.json"
    info = json.loads(file.read_text())
    (facts,) = (each for each in info["splits"] if each["name"] == split)
    facts["shardLengths"] = [str(number)]
    facts["numBytes"] = str(sum(len(records[i % len(records)]) for i in range(number)))
    file.write_text(json.dumps(info))


def example(builder, split, index):
    """A record that the builder's features take; equal for equal (dataset, split, index)."""
    seed = [*map(ord, f"{builder.name} {split}"), index]
    rng = np.random.default_rng(seed)
    levels = 2 if builder.name == "dsprites" else 256
    features = builder.info.features
    return {name: value(feature, index, rng, levels) for name, feature in features.items()}


def value(feature, index, rng, levels):
    """A value for one feature; the objects of a scene are between 3 and 10."""
    if isinstance(feature, tfds.features.Image):
        pixels = rng.integers(0, levels, (SIDE, SIDE, feature.shape[-1]), np.uint8)
        return io.BytesIO(cv2.imencode(".png", pixels)[1].tobytes())
    if isinstance(feature, tfds.features.ClassLabel):
        return index % feature.num_classes
    if isinstance(feature, tfds.features.Sequence):
        inner = feature.feature
        return [
            {name: value(f, index + each, rng, levels) for name, f in inner.items()}
            if hasattr(inner, "items")
            else value(inner, index + each, rng, levels)
            for each in range(3 + index % 8)
        ]
    if isinstance(feature, tfds.features.BBoxFeature):
        return tfds.features.BBox(ymin=0.0, xmin=0.0, ymax=1.0, xmax=1.0)
    if isinstance(feature, tfds.features.Text):
        return f"text {index}"
    # Numbers: coordinates and distances, of which some are in every interval of the rules.
    return rng.uniform(0.5, 30.0, feature.shape).astype(feature.np_dtype)


def write_mappings(folder, first=0, **changed):
    """Writes ObjectNet's mapping for three classes and a head of four; returns the folder.

    Its lines are numbered from `first`; `changed` has other texts for files by name.
    """
    lines = ["digital clock", "spatula", "tench, Tinca tinca", "analog clock"]
    texts = (
        '{"alarm_clock": "Alarm clock", "air_freshener": "Air freshener", "spatula": "Spatula"}',
        '{"Alarm clock": "analog clock; digital clock", "Spatula": "spatula"}',
        "\n".join(lines) + "\n",
        # Class 0 of a head is on the third line: not in the order of WordNet ids.
        json.dumps({str(at): line + first for at, line in enumerate((2, 0, 3, 1))}),
    )
    folder.mkdir(exist_ok=True)
    for name, text in zip(objectnet.FILES, texts, strict=True):
        (folder / name).write_text(changed.get(name.partition(".")[0], text))
    return folder
