"""The commands and Python blocks of every page run, in order, with small data and short runs."""

import contextlib
import io
import pathlib
import re
import shlex
import shutil
import tarfile
import zlib

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet
import pytest

import documents
import plugins
import runs
from vit_jax import cli

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_device")]
KNOWN = ("cat", "dog")
WEIGHTS = runs.ROOT / "tests" / "fixtures" / "vit_tiny_finetuned.npz"
PUBLISHED = re.compile(
    r"(augreg|timm|google|imagenet21k\+imagenet2012)/[\w.+-]+|ANY(\.npz|/model\.safetensors)?"
)
OF_PETS = re.compile(r"(?<!output=)pets-timm")  # a head of as many classes as the photos have
SHORT = {
    "train.duration": "2 steps",
    "train.batch_size": "8",
    "schedule.warmup": "0",
    "checkpoint.every": "2 steps",
    "evaluation.every": "none",
    "logging.tensorboard": "false",
}
RESUMED = {"train.duration": "4 steps", "schedule.cooldown": "2 steps"}
FOLDER = {"data.image_size": "32", "data.workers": "0"}
SMALL = {"model.variant": "none", "model.patch_size": "8", "model.width": "16", "model.depth": "1"}
SMALL |= {"model.mlp_dim": "32", "model.heads": "2"}
# The sizes of WEIGHTS, which stand in for published ones.
IMPORTED = {"model.patch_size": "16", "model.width": "32", "model.depth": "3"}
IMPORTED |= {"model.mlp_dim": "64", "model.heads": "4"}
# What a run directory holds that a page uses before it is trained there; others: of image_folder.
KINDS = {"token": "digits-token", "masked": "masked/digits", "digits": "digits", "wide": "digits"}


def picture(path, rng):
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), rng.integers(0, 256, (24, 32, 3), np.uint8))


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A folder with the images and weights that the pages speak of."""
    folder, rng = tmp_path_factory.mktemp("world"), np.random.default_rng(0)
    for number in range(8):
        for kind in KNOWN:
            for split in ("train", "val", "test"):
                picture(folder / "photos" / split / kind / f"{number}.jpg", rng)
            picture(folder / "unsplit" / kind / f"{number}.jpg", rng)
        picture(folder / "unlabeled" / str(2025 + number % 2) / f"{number}.jpg", rng)
        picture(folder / "holiday" / f"{number}.jpg", rng)
    for split in ("train", "val", "test"):
        lines = [f"{split}/{kind}/{number}.jpg,{kind}" for number in range(8) for kind in KNOWN]
        (folder / "photos" / f"{split}.csv").write_text("\n".join(["image,class", *lines]) + "\n")
        shutil.copytree(folder / "photos" / split, folder / "measured" / split)
        rows = [f"{split}/{kind}/{n}.jpg,{20 + n},{n}" for n in range(8) for kind in KNOWN]
        (folder / "measured" / f"{split}.csv").write_text(
            "\n".join(["image,age,weight", *rows]) + "\n"
        )
    for name in ("SHARDS", "FOLDER", "SAVED"):
        (folder / name).mkdir()
    for split in ("train", "test"):
        with tarfile.open(folder / "SHARDS" / f"{split}.tar", "w") as tar:
            tar.add(folder / "photos" / split, ".")
        images = [path.read_bytes() for path in (folder / "photos" / split).glob("*/*.jpg")]
        rows = pa.table({"image": images, "label": [number % 2 for number in range(len(images))]})
        pyarrow.parquet.write_table(rows, folder / "FOLDER" / f"{split}-00000-of-00001.parquet")
        saved = folder / "SAVED" / split / "data-00000-of-00001.arrow"
        saved.parent.mkdir()
        with pa.OSFile(str(saved), "wb") as file, pa.ipc.new_stream(file, rows.schema) as writer:
            writer.write_table(rows)
    for name in ("cat.jpg", "docs/pictures/cat.jpg", "a.png", "b.png"):
        picture(folder / name, rng)
    shutil.copy(WEIGHTS, folder / "weights.npz")
    arrays = dict(np.load(WEIGHTS))
    for name in ("head/kernel", "head/bias"):
        arrays[name] = arrays[name][..., : len(KNOWN)]
    np.savez(folder / "pets.npz", **arrays)
    return folder


def shortened(words):
    """A command with options that make its run small."""
    verb, *rest = words
    files = [word for word in rest if word.startswith("--config=")]
    named = [word for word in rest if not word.startswith("--")] + files
    if verb == "train" and not named and any("train.duration" in word for word in rest):
        return [*words, *plugins.flags(RESUMED)]
    if verb not in ("train", "transfer") or not named or {"--smoke", "--dry-run"} & set(rest):
        return words
    options = dict(SHORT)
    if named[0].startswith(("image_", "mae/folder", "dino/folder")):
        begun = next((word for word in rest if "init_from=" in word), "")
        bundled = "cifar10/ViT-6_4" in begun
        sizes = {} if bundled else SMALL | (IMPORTED if begun.endswith(".npz") else {})
        options |= FOLDER | sizes
    options |= dict.fromkeys(re.findall(r"data\.phases\.\w+\.until", " ".join(rest)), "1 steps")
    more = ["--seeds=0"] if verb == "transfer" else []
    if len(rest) > 1 and not any(word.startswith("--workdir") for word in rest):
        more.append(f"--workdir=runs/other-{zlib.crc32(shlex.join(rest).encode())}")  # alternatives
    return [*words, *plugins.flags(options), *more]


def adapted(command):
    """The words of a command with this world's names for what its reader has, and its output."""
    text = re.sub(r"--(config\.data\.root|index)=(DIR|LABELED)\b", r"--\1=photos", command)
    text = text.replace("doctor DIR", "doctor photos").replace("poor,fair,good", "dog,cat")
    text = text.replace("runs/a --last=3", "runs/a runs/b")  # short runs keep one checkpoint
    if "holdout=0." in text and "root=photos" in text:
        text = text.replace("root=photos", "root=unsplit")
    if "data.targets=" in text:
        text = text.replace("root=photos", "root=measured")
    text = OF_PETS.sub("pets.npz", PUBLISHED.sub("weights.npz", text))
    if text.startswith("vit_jax evaluate"):  # whose head must know the photos' classes
        text = text.replace("weights.npz", "pets.npz")
    masked = "reconstruct" in text
    text = re.sub(r"\bRUN\b", "runs/masked" if masked else "runs/mine", text)
    words, output = documents.without_redirection(text)
    return words[1:], output


def provide(text):
    """Trains what a command or block refers to, and the page has not trained."""
    for name in re.findall(
        r"(?:--checkpoint=|teacher=|report .*|load\(\"|evaluate\(\")(runs/[\w-]+)", text
    ):
        make(name)
    if text.startswith(("vit_jax report", "vit_jax average")):
        for name in re.findall(r"(?<!=)\bruns/[\w-]+", text):
            make(name)
    resumed = re.match(r"vit_jax train --workdir=(runs/[\w-]+)", text)
    if resumed:
        make(resumed[1])


def make(name):

    if (pathlib.Path(name) / "checkpoints").exists():
        return
    kind = next((config for part, config in KINDS.items() if part in name), "image_folder")
    words = ["train", kind, f"--workdir={name}"]
    words += ["--config.data.root=photos"] if kind == "image_folder" else []
    assert cli.main(shortened(words)) == 0


@pytest.mark.parametrize("page", documents.PAGES, ids=lambda page: page.stem)
def test_a_page_runs(page, world, tmp_path, monkeypatch):
    place = tmp_path / "here"
    shutil.copytree(world, place)
    monkeypatch.chdir(place)
    monkeypatch.setenv("VIT_JAX_OFFLINE", "1")
    names = {"images": np.zeros((2, 32, 32, 3), np.uint8)}
    with plugins.loaded():
        for block in documents.blocks(page, "sh", "python"):
            if block.language == "sh":
                for command in documents.commands(block):
                    run(command)
            else:
                execute(block, names)


def run(command):
    if documents.reason(command) or not command.startswith("vit_jax "):
        return
    words, output = adapted(command)
    provide(shlex.join(["vit_jax", *words]))
    words, printed = shortened(words), io.StringIO()
    try:
        with contextlib.redirect_stdout(printed) if output else contextlib.nullcontext():
            code = cli.main(words)
    except SystemExit as stopped:
        code = stopped.code
    assert code == 0, shlex.join(words)
    if output:
        pathlib.Path(output).write_text(printed.getvalue())


def execute(block, names):
    if any(re.search(rf"(import|from) {name}\b", block.text) for name in documents.NOT_IMPORTED):
        return
    if "vit_jax.train(" not in block.text:
        provide(block.text)
    exec(compile(block.text, f"{block.page}:{block.line}", "exec"), names)
