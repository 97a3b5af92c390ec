"""Two thousand damaged images through the whole pipeline: each is named, nothing else happens."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import hostile

COUNT = 2000


def make(number: int, rng: np.random.Generator, sound: list[bytes]) -> bytes:
    """One kind of trouble after another, under any suffix."""
    plain = sound[number // 12 % len(sound)]
    bombs = [*hostile.BOMBS.values()]
    match number % 12:
        case 1 | 10:
            return plain[: rng.integers(len(plain))]
        case 2 | 3 | 4 | 7:
            edits = rng.integers(2**31, size=(rng.integers(1, 9), 3)).tolist()
            return hostile.damaged(plain, [(*edit, rng.bytes(8)) for edit in edits])
        case 5:
            return b"<!DOCTYPE html><html><body>404 Not Found</body></html>" * (number % 5)
        case 11 if number // 12 % 20 == 0:
            return bombs[number // 240 % len(bombs)]
        case 11:
            return rng.bytes(rng.integers(2, 5000))
        case _:
            return plain


SCRIPT = """
import json, logging, resource, sys
from vit_jax import config
from vit_jax.data import decoding, pipeline, sources, transforms

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

def run(budget, train, **more):
    data = config.Data(source="folder", root=sys.argv[1], image_size=(64, 64), threads=2,
                       max_bad_examples=budget, **more)
    source = sources.open_source(data, "train", train=train)
    steps = transforms.train_transforms(data) if train else transforms.eval_transforms(data)
    with pipeline.batches(source, steps, data, seed=0, batch_size=100, rows=range(100),
                          train=train, stop_step=len(source) // 100) as batches:
        return [(int(b["mask"].sum()), (b["bad"] >= 0).sum().item()) for b in batches]

def main():
    messages = []
    class Keep(logging.Handler):
        def emit(self, record):
            messages.append(record.getMessage())
    logging.getLogger("vit_jax").addHandler(Keep())
    data = config.Data(source="folder", root=sys.argv[1])
    source = sources.open_source(data, "train", train=True)
    bad = []
    for index in range(0, 100):  # what decoding needs at most is not the pipeline's
        try:
            decoding.decode_image(source[index].image, channels=3, max_pixels=data.max_pixels)
        except decoding.BadImage:
            pass
    before = peak()
    named = {}
    for train in (True, False):
        messages.clear()
        counts = run(2000, train)
        named[str(train)] = sorted(m.partition(": ")[0] for m in messages)
        assert all(m.isprintable() for m in messages), messages
        assert sum(c[0] for c in counts) == (2000 if train else 2000 - len(messages)), counts
    after = peak()
    for index in range(2000):
        try:
            decoding.load_image(source[index].image, channels=3, max_pixels=data.max_pixels)
        except decoding.BadImage:
            bad.append(source.name(index))
    errors = []
    for budget, train in ((len(bad) - 1, True), (len(bad) - 1, False), (0, True)):
        try:
            run(budget, train)
        except pipeline.DataError as error:
            errors.append(str(error))
    assert len(run(len(bad), True)) == 20
    print(json.dumps({"named": named, "bad": sorted(bad), "errors": errors,
                      "peak": after - before}))

if __name__ == "__main__":
    main()
"""


@pytest.mark.slow
def test_two_thousand_damaged_images(tmp_path):
    rng, (sound, _) = np.random.default_rng(0), hostile.images()
    for name in "ab":
        (tmp_path / "train" / name).mkdir(parents=True)
    suffixes = (".jpg", ".png", ".webp", ".jpeg", ".jpg")
    for number in range(COUNT):
        suffix = suffixes[number // 12 % 5]
        path = tmp_path / "train" / "ab"[number % 2] / f"{number:04}{suffix}"
        path.write_bytes(make(number, rng, sound))
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Traceback" not in done.stderr
    seen = json.loads(done.stdout)
    assert seen["named"] == {"True": seen["bad"], "False": seen["bad"]}
    assert 700 < len(seen["bad"]) < 1300
    assert seen["peak"] < 512  # MiB
    *over, first = seen["errors"]
    assert len(over) == 2
    for error in over:
        budget = len(seen["bad"]) - 1
        assert error.startswith(f"more than data.max_bad_examples={budget} unreadable images: ")
        assert "\n" not in error
    assert first.endswith("allow for unreadable images with data.max_bad_examples")
