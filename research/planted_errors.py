"""Measures `vit_jax doctor` on errors planted in a folder of labeled images.

python -m research.planted_errors --data=DIR                    DIR has a folder of images per class
python -m research.planted_errors --data=DIR --cleanlab=PYTHON  also the label errors of cleanlab,
                                                                installed for that interpreter

Recall is the share of planted errors that are found, precision the share of findings that were
planted: a copy or a wrong label that the data had before counts against it. Copies are compared
with fastdup's definition of nearly identical images, a cosine of features above 0.98, label errors
with cleanlab's `find_label_issues` on the same probabilities. A line is added to
docs/records/planted_errors.jsonl.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import cv2
import jax
import numpy as np
from PIL import Image

from vit_jax.data import decoding, folders
from vit_jax.inference.doctor import CHECKPOINT, examination
from vit_jax.inference.doctor.run import doctor
from vit_jax.runtime import logs, provenance
from vit_jax.utils import storage

ROOT = pathlib.Path(__file__).parents[1]
RECORD = ROOT / "docs/records/planted_errors.jsonl"
SWAPPED = 0.05  # of the labels
IDENTICAL = 0.98  # fastdup's nearly identical images
CLEANLAB = """\
import json, sys, numpy as np
from cleanlab.filter import find_label_issues
data = np.load(sys.argv[1])
kinds = ("confident_learning", "prune_by_noise_rate")
print(json.dumps({k: find_label_issues(data["labels"], data["probabilities"], filter_by=k, n_jobs=1)
                  .nonzero()[0].tolist() for k in kinds}))
"""

Edit = Callable[[np.ndarray], np.ndarray]


def _crop(image: np.ndarray) -> np.ndarray:
    height, width = image.shape[:2]
    return image[: height - max(1, round(0.02 * height)), max(1, round(0.02 * width)) :]


def _resize(scale: float) -> Edit:
    return lambda image: cv2.resize(image, None, fx=scale, fy=scale, interpolation=cv2.INTER_CUBIC)


COPIES: dict[str, tuple[str, Edit]] = {
    "exact": (".png", lambda image: image),
    "re-encoded": (".jpg", lambda image: image),
    "resized": (".png", _resize(0.75)),
    "enlarged": (".png", _resize(1.5)),
    "cropped by 2 %": (".png", _crop),
    "brighter by 8 %": (".png", lambda image: cv2.convertScaleAbs(image, alpha=1.08)),
}


def plant(data: pathlib.Path, root: pathlib.Path, each: int, errors: int) -> dict[str, Any]:
    """Writes a folder of train/CLASS and test/CLASS with errors; returns what was planted, by kind.

    `data` has a folder of images for each class; a fifth of `each` are test images. There are so
    many `errors` of every kind of copy and of file.
    """
    random = np.random.default_rng(0)
    classes = sorted(path.name for path in data.iterdir() if path.is_dir())
    images: list[tuple[str, str, np.ndarray]] = []
    for name in classes:
        files = folders.image_files(data / name, str(data))
        for place, at in enumerate(random.permutation(len(files))[:each]):
            pixels = decoding.decode_image(
                decoding.read_file(data / name / files[at]), channels=3, max_pixels=10**8
            )
            images.append(("test" if place < each // 5 else "train", name, pixels))
    planted: dict[str, Any] = {kind: [] for kind in (*COPIES, "label", "tiny", "aspect", "broken")}
    planted |= {"mode": [], "odd": []}
    swapped = set(random.choice(len(images), round(SWAPPED * len(images)), replace=False).tolist())
    paths = []
    for number, (split, name, pixels) in enumerate(images):
        if number in swapped:
            name = classes[(classes.index(name) + random.integers(1, len(classes))) % len(classes)]
        paths.append(f"{split}/{name}/{number:05}.png")
        _write(root / paths[-1], pixels)
        if number in swapped:
            planted["label"].append(paths[-1])
    clean = [number for number in range(len(images)) if number not in swapped]
    drawn = iter(random.permutation(clean).tolist())
    for kind, (suffix, edit) in COPIES.items():
        for _ in range(errors):
            number = next(drawn)
            split, name, pixels = images[number]
            side = ("train", "test")[int(random.integers(2))]
            path = f"{side}/{name}/copy{number:05}{suffix}"
            copy = edit(pixels)
            _write(root / path, copy)
            if min(copy.shape[:2]) < examination.SHORT:
                planted["tiny"].append(path)
            planted[kind].append([paths[number], path])
    odd: dict[str, Callable[[pathlib.Path, np.ndarray], object]] = {
        "tiny.png": lambda path, image: _write(path, _resize(0.25)(image)),
        "aspect.png": lambda path, image: _write(path, np.tile(image, (1, 5, 1))),
        "gray.mode.jpg": lambda path, image: Image.fromarray(image).convert("L").save(path),
        "cmyk.mode.jpg": lambda path, image: Image.fromarray(image).convert("CMYK").save(path),
        "empty.broken.png": lambda path, image: path.write_bytes(b""),
        "text.broken.jpg": lambda path, image: path.write_bytes(b"no image"),
        "cut.broken.png": lambda path, image: path.write_bytes(
            cv2.imencode(".png", image)[1].tobytes()[:-40]
        ),
    }
    for name, make in odd.items():
        for _ in range(errors):
            number = next(drawn)
            split, class_, pixels = images[number]
            path = f"train/{class_}/{number:05}.{name}"
            make(root / path, pixels)
            planted[name.split(".")[-2]].append(path)
            planted["odd"].append(path)
    return planted


def _write(path: pathlib.Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), pixels[:, :, ::-1])


def compare(found: examination.Examination, planted: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields for each kind how many were planted, found, and found of the planted."""
    places = {path: at for at, path in enumerate(found.listing.paths)}
    group_of = {at: number for number, group in enumerate(found.groups) for at in group}
    odd = set(planted["odd"])  # copies too, but of other kinds
    pairs = {kind: [[places[path] for path in pair] for pair in planted[kind]] for kind in COPIES}
    features = found.images.features
    for kind, both in pairs.items():
        hits = sum(group_of.get(a, -1) == group_of.get(b, -2) for a, b in both)
        cosine = sum(float(features[a] @ features[b]) > IDENTICAL for a, b in both)
        yield {"kind": kind, "planted": len(both), "hits": hits, "cosine_hits": cosine}
    true = {frozenset(pair) for both in pairs.values() for pair in both}
    own = [[a, b] for group in found.groups for i, a in enumerate(group) for b in group[i + 1 :]
           if not odd & {found.listing.paths[a], found.listing.paths[b]}]  # fmt: skip
    regular = [at for at, path in enumerate(found.listing.paths) if path not in odd]
    above = np.argwhere(np.triu(features[regular] @ features[regular].T, 1) > IDENTICAL)
    alike = [[regular[a], regular[b]] for a, b in above.tolist()]
    yield {
        "kind": "all copies", "planted": len(true), "found": len(own),
        "hits": sum(frozenset(pair) in true for pair in own), "cosine_found": len(alike),
        "cosine_hits": sum(frozenset(pair) in true for pair in alike),
    }  # fmt: skip
    for kind in ("label", "tiny", "aspect", "mode", "broken"):
        named = {one.image for _, one in found.findings[kind]}
        hits = len(named & set(planted[kind]))
        yield {"kind": kind, "planted": len(planted[kind]), "found": len(named), "hits": hits}


def ask_cleanlab(found: examination.Examination, planted: list[str], python: str) -> dict[str, Any]:
    """The label errors of cleanlab on the same probabilities, beside ours and the planted."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "probabilities.npz"
        labels = np.unique(found.listing.label[found.judged], return_inverse=True)[1]
        np.savez(path, labels=labels, probabilities=found.probabilities)
        done = subprocess.run(
            [python, "-c", CLEANLAB, str(path)], capture_output=True, text=True, check=True
        )
    paths = [found.listing.paths[at] for at in found.judged]
    ours = {one.image for _, one in found.findings["label"]}
    answer: dict[str, Any] = {"judged": len(paths), "ours": len(ours)}
    for kind, numbers in json.loads(done.stdout.splitlines()[-1]).items():
        suspects = {paths[at] for at in numbers}
        answer[kind] = {
            "found": len(suspects),
            "hits": len(suspects & set(planted)),
            "shared": len(suspects & ours),
        }
    return answer


def main() -> int:
    """Plants, examines, prints and records."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--data", type=pathlib.Path, required=True, help="a folder per class")
    parser.add_argument("--each", type=int, default=100, help="images of a class")
    parser.add_argument("--errors", type=int, default=20, help="of a kind of copy or file")
    parser.add_argument("--checkpoint", default=CHECKPOINT)
    parser.add_argument("--cleanlab", help="a Python interpreter that has it")
    parser.add_argument("--page", help="HTML page to write")
    options = parser.parse_args()
    logs.setup()
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder) / "planted"
        planted = plant(options.data, root, options.each, options.errors)
        found = doctor(root, options.checkpoint, output=options.page)
    line: dict[str, Any] = {
        "data": options.data.name, "each": options.each, "errors": options.errors,
        "checkpoint": options.checkpoint, "images": len(found.listing.paths),
        "probe_accuracy": found.accuracy, "outliers": len(found.findings["outlier"]),
        "rows": list(compare(found, planted)),
    }  # fmt: skip
    for row in line["rows"]:
        print(row)
    if options.cleanlab:
        line["cleanlab"] = ask_cleanlab(found, planted["label"], options.cleanlab)
        print(line["cleanlab"])
    storage.append_line(RECORD, line | provenance.fields("cpu", {"jax": jax.__version__}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
