"""TFDS's own builders run on archives, without TensorFlow: what ours are compared with.

Builders take no more of TensorFlow than its functions for files, and to encode and decode pictures;
those are stood in for here. Everything else, above all splits, labels, keys and the order of the
records, is TFDS's code.
"""

import contextlib
import fnmatch
import gzip
import io
import os
import pathlib
import shutil
import sys
import tarfile
import types
import zipfile

import cv2
import numpy as np
import tensorflow_datasets as tfds
from tensorflow_datasets.core.features import image_feature


def build(monkeypatch, name, archives, root, examples=None):
    """Prepares a dataset below `root` of the archives in a folder; returns its builder.

    Where the builder needs more of TensorFlow, `examples` has keys and examples by split.
    """
    builder = tfds.builder(name, data_dir=str(root / "tfds"), file_format="array_record")
    monkeypatch.setattr(sys.modules[type(builder).__module__], "tf", tensorflow(), raising=False)
    for module in list(sys.modules.values()):
        if "imagenet_common" in getattr(module, "__name__", ""):
            monkeypatch.setattr(module, "tf", tensorflow())
    monkeypatch.setattr(image_feature._ImageEncoder, "_encode_image", lambda self, it: png(it))
    manager = Manager(archives, root / "extracted")
    generators = builder._split_generators
    builder._split_generators = lambda _: (
        {split: iter(some) for split, some in examples.items()} if examples else generators(manager)
    )
    monkeypatch.setattr(tfds.core.utils, "nogpu_session", contextlib.nullcontext)
    tfds.disable_progress_bar()
    builder.download_and_prepare(
        download_config=tfds.download.DownloadConfig(manual_dir=str(archives))
    )
    return builder


class Manager:
    """Gives a builder the files of a folder in place of those that it would download."""

    def __init__(self, archives, extracted):
        self.manual_dir = str(archives)
        self._archives, self._extracted = pathlib.Path(archives), extracted

    def download(self, urls):
        """The files that are here of those URLs."""
        if isinstance(urls, dict):
            return {key: self.download(url) for key, url in urls.items()}
        url = getattr(urls, "url", urls)
        name = url.partition("?")[0].rpartition("/")[2]
        name = {"uc": "ImageNet-Sketch.zip"}.get(name, name)
        found = tfds.core.Path(self._archives / name)
        resource = tfds.download.Resource
        return resource(path=found, url=url) if isinstance(urls, resource) else found

    def extract(self, path):
        """A folder with what an archive holds, or a file that was compressed."""
        if isinstance(path, dict):
            return {key: self.extract(one) for key, one in path.items()}
        if isinstance(path, tfds.download.Resource):  # one that is not to be extracted
            return path.path
        target = self._extracted / path.name
        if path.suffix in (".mat", ".csv"):
            return path
        if not target.exists():
            if path.suffix == ".gz" and not path.name.endswith(".tar.gz"):
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(gzip.decompress(path.read_bytes()))
            elif path.suffix == ".zip":
                shutil.unpack_archive(path, target, "zip")
            else:
                with tarfile.open(path) as archive:
                    archive.extractall(target, filter="data")
        return tfds.core.Path(target)

    def download_and_extract(self, urls):
        """Both."""
        return self.extract(self.download(urls))

    def iter_archive(self, path):
        """Yields the files of a tar or a zip."""
        path = getattr(path, "path", path)  # of a tfds.download.Resource
        if str(path).endswith(".zip"):
            with zipfile.ZipFile(path) as archive:
                for name in archive.namelist():
                    yield name, io.BytesIO(archive.read(name))
            return
        with tarfile.open(path) as archive:
            for member in archive:
                yield member.name, io.BytesIO(archive.extractfile(member).read())


def png(pixels):
    """Pixels as a PNG."""
    pixels = cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR) if pixels.shape[-1] == 3 else pixels
    return cv2.imencode(".png", pixels)[1].tobytes()


class File(io.BytesIO):
    """A file that can be read also once it is closed, like TensorFlow's."""

    def close(self): ...


class Pixels:
    """Pixels as TensorFlow decodes them."""

    def __init__(self, array):
        self.array = array

    def numpy(self):
        """The array."""
        return self.array


def tensorflow():
    """What builders take of TensorFlow."""

    def glob(pattern):
        parts = pathlib.Path(pattern).parts
        found = [pathlib.Path(parts[0])]
        for part in parts[1:]:
            if any(sign in part for sign in "*?["):
                found = [p for f in found for p in f.iterdir() if fnmatch.fnmatch(p.name, part)]
            else:
                found = [f / part for f in found]
        return [str(f) for f in sorted(found)]

    def decode(data):
        image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)
        return Pixels(image)

    def encode(image):
        bgr = cv2.cvtColor(image.array, cv2.COLOR_RGB2BGR)
        return Pixels(cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, 95])[1].tobytes())

    gfile = types.SimpleNamespace(
        GFile=lambda path, mode="r": (
            File(pathlib.Path(path).read_bytes())
            if "b" in mode
            else io.StringIO(pathlib.Path(path).read_text())
        ),
        exists=lambda path: os.path.exists(path),  # noqa: PTH110
        listdir=lambda path: sorted(os.listdir(path)),  # noqa: PTH208
        isdir=lambda path: os.path.isdir(path),  # noqa: PTH112
        walk=lambda path: ((a, sorted(b), sorted(c)) for a, b, c in os.walk(path)),
        glob=glob,
    )
    return types.SimpleNamespace(
        io=types.SimpleNamespace(gfile=gfile, encode_jpeg=encode),
        image=types.SimpleNamespace(decode_image=decode),
        shape=lambda image: image.array.shape,
        Graph=lambda: types.SimpleNamespace(as_default=contextlib.nullcontext),
    )
