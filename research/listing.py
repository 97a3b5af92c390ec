"""Measures how long a million images take to list and check before a run.

python -m research.listing write million --data=TAR   crops of JPEG files; default: generated photos
python -m research.listing measure million            adds to docs/records/listing.jsonl

`write` makes distinct JPEG files of 96 x 96 pixels in a thousand class folders (4 GiB on ext4), CSV
lists of the same files, and tars and Parquet files of the same bytes. `measure` lists each by the
command that users run, in a process of its own, and prints its time and peak memory.
"""

import argparse
import io
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import cv2
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet

from vit_jax.benchmarks import sample_images
from vit_jax.data import decoding
from vit_jax.runtime import provenance
from vit_jax.utils import storage

ROOT = pathlib.Path(__file__).parents[1]
RECORD = ROOT / "docs/records/listing.jsonl"
SIDE = 96  # pixels
CLASSES, FILES = 1000, 20  # Parquet files
SPLITS = {"train": 0.95, "test": 0.05}
PACKED = (
    "vit_jax train image_folder --dry-run --config.data.cache=kept --config.data.source={} "
    "--config.data.root={}"
)
COMMANDS = {
    "folder": "vit_jax train image_folder --dry-run --config.data.root=images",
    "csv": "vit_jax train image_csv --dry-run --config.data.root=images",
    "parquet": "vit_jax prepare listed --dry-run --from=tables",
    "tar in place": PACKED.format("tar", "tars"),
    "parquet in place": PACKED.format("parquet", "tables"),
    "arrow in place": PACKED.format("arrow", "saved"),
}


def crops(data: pathlib.Path | None) -> list[bytes]:
    """JPEG files of SIDE x SIDE pixels, cut out of photos."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for path in sample_images.gather(data, pathlib.Path(folder)):
            photo = decoding.decode_image(decoding.read_file(path), channels=3, max_pixels=10**8)
            height, width = photo.shape[:2]
            for top in range(0, height - SIDE, SIDE):
                for left in range(0, width - SIDE, SIDE):
                    crop = photo[top : top + SIDE, left : left + SIDE, ::-1]
                    found.append(cv2.imencode(".jpg", crop)[1].tobytes())
    return found


def distinct(jpegs: list[bytes], number: int) -> bytes:
    """A JPEG with its number in a comment."""
    jpeg, comment = jpegs[number % len(jpegs)], b"%010d" % number
    return jpeg[:2] + b"\xff\xfe" + (len(comment) + 2).to_bytes(2, "big") + comment + jpeg[2:]


def paths(images: int) -> Iterator[tuple[int, str, str, str]]:
    """Yields number, split, class and path of each image."""
    for split, share in SPLITS.items():
        first = 0 if split == "train" else round(images * SPLITS["train"])
        for number in range(first, first + round(images * share)):
            name = f"class{number % CLASSES:04}"
            yield number, split, name, f"{split}/{name}/image{number:07}.jpg"


def write(root: pathlib.Path, jpegs: list[bytes], images: int) -> None:
    """Writes the images of a folder, its lists, and the tables."""
    for split in SPLITS:
        for number in range(CLASSES):
            (root / f"images/{split}/class{number:04}").mkdir(parents=True)
    for folder in ("tables", "saved", "tars"):
        (root / folder).mkdir()
    tars = {split: tarfile.open(root / f"tars/{split}.tar", "w") for split in SPLITS}  # noqa: SIM115
    rows = dict[str, list[tuple[bytes, str]]](train=[], test=[])
    tables = dict.fromkeys(SPLITS, 0)

    def flush(split: str) -> None:
        data, names = zip(*rows[split], strict=True)
        table = pa.table({"image": pa.array(data, pa.binary()), "label": pa.array(names)})
        path = root / f"tables/{split}-{tables[split]:05}.parquet"
        pyarrow.parquet.write_table(table, path, row_group_size=1000)
        path = root / f"saved/{path.stem}.arrow"
        with pa.OSFile(str(path), "wb") as out, pa.ipc.new_stream(out, table.schema) as writer:
            writer.write_table(table, max_chunksize=1000)
        tables[split] += 1
        rows[split] = []

    lists = {split: (root / f"images/{split}.csv").open("w") for split in SPLITS}
    for file in lists.values():
        file.write("image,class\n")
    for number, split, name, path in paths(images):
        data = distinct(jpegs, number)
        (root / "images" / path).write_bytes(data)
        lists[split].write(f"{path},{name}\n")
        member = tarfile.TarInfo(path.partition("/")[2])
        member.size = len(data)
        tars[split].addfile(member, io.BytesIO(data))
        rows[split].append((data, name))
        if len(rows[split]) == images // FILES:
            flush(split)
    for split, file in lists.items():
        file.close()
        tars[split].close()
        if rows[split]:
            flush(split)


def measure(command: str, root: pathlib.Path) -> dict[str, Any]:
    """Runs a command in a folder: its seconds, CPU seconds and peak bytes.

    Linux counts the memory of the process that starts it as a peak of its own: this one is small.
    """
    words = [sys.executable, "-m", *command.split()]
    began = time.perf_counter()
    with (root / "said").open("w+") as said:
        process = subprocess.Popen(words, cwd=root, stdout=said, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        text = said.read()
    if process.returncode:
        raise SystemExit(f"{command}: {text}")
    print(text)
    return {
        "command": command,
        "seconds": seconds,
        "cpu": usage.ru_utime + usage.ru_stime,
        "peak": usage.ru_maxrss * 1024,
    }


def main() -> int:
    """Writes images, or lists and records them."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("step", choices=("write", "measure"))
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--data", type=pathlib.Path, help="a folder or tar of JPEG files")
    parser.add_argument("--images", type=int, default=10**6)
    options = parser.parse_args()
    if options.step == "write":
        write(options.folder, crops(options.data), options.images)
        return 0
    for kind, command in COMMANDS.items():
        shutil.rmtree(options.folder / "kept", ignore_errors=True)
        line = {"kind": kind, "images": options.images, **measure(command, options.folder)}
        line["load"] = round(os.getloadavg()[0], 2)
        print(line)
        storage.append_line(RECORD, line | provenance.fields("cpu", {}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
