"""Batches are a pure function of (seed, step, row), whoever makes them; failures are one line."""

import dataclasses
import logging
import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import cv2
import numpy as np
import pytest

import toys
from commands import error_line
from vit_jax import config
from vit_jax.data import pipeline, sampling, transforms
from vit_jax.data.pipeline import Randomness, Views
from vit_jax.data.source import DataError, Record, Selection, Source
from vit_jax.data.sources import open_source

DATA = config.Data(
    source="synthetic",
    image_size=(6, 5),
    num_examples=20,
    train_crop="inception",
    rotation=10,
    threads=1,
)


def run(source=None, data=DATA, *, batch_size=8, rows=None, train=True, steps=(0, 5), seed=3):
    source = source or open_source(data, "train", train=train)
    views = transforms.train_transforms(data) if train else transforms.eval_transforms(data)
    with pipeline.batches(
        source, views, data, seed=seed, batch_size=batch_size, train=train,
        rows=range(batch_size) if rows is None else rows, start_step=steps[0], stop_step=steps[1],
    ) as batches:  # fmt: skip
        return list(batches)


def joined(batches: list[pipeline.Batch], name: str) -> np.ndarray:
    return np.concatenate([batch[name] for batch in batches])


def assert_same(some: list[pipeline.Batch], others: list[pipeline.Batch]) -> None:
    assert len(some) == len(others) > 0
    for one, other in zip(some, others, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            assert one[name].dtype == other[name].dtype
            np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def test_a_batch_has_these_arrays():
    batches = run(steps=(0, 3))
    assert len(batches) == 3
    for batch in batches:
        kinds = {name: (array.dtype.name, array.shape) for name, array in batch.items()}
        assert kinds == {
            "image": ("uint8", (8, 6, 5, 3)),
            "label": ("int32", (8,)),
            "mask": ("bool", (8,)),
            "index": ("int64", (8,)),
            "bad": ("int64", (8,)),
        }
        assert {type(array) for array in batch.values()} == {np.ndarray}
        assert batch["mask"].all()
        assert (batch["bad"] == -1).all()
        np.testing.assert_array_equal(batch["label"], batch["index"] % 10)


def test_hosts_share_the_global_batch():
    whole = run()
    parts = [run(rows=rows) for rows in ([0, 1, 2], [7, 3], [4, 5, 6])]
    order = [0, 1, 2, 7, 3, 4, 5, 6]
    for step, batch in enumerate(whole):
        for name in batch:
            together = np.concatenate([part[step][name] for part in parts])
            np.testing.assert_array_equal(together, batch[name][order])


def test_a_draw_by_class_depends_on_the_epoch_alone_and_gives_each_draw_views_of_its_own():
    data = dataclasses.replace(DATA, sampling="sqrt")
    kept = Selection(open_source(DATA, "train", train=True), [*range(0, 20, 10), *range(1, 9)])
    whole, once = run(kept, data, steps=(0, 10)), {"batch_size": 80, "steps": (0, 1)}
    index = joined(whole, "index").reshape(8, 10)
    draw = sampling.ByClass(3, np.array([0, 0, *range(1, 9)]), "sqrt")
    assert [[draw(epoch, place) for place in range(10)] for epoch in range(8)] == index.tolist()
    assert_same(run(kept, data, steps=(7, 10)), whole[7:])
    threaded = dataclasses.replace(data, threads=3)
    assert_same(run(kept, threaded, **once), run(kept, data, **once))
    images, epoch = joined(whole, "image"), index[0].tolist()
    twice = next(i for i in epoch if epoch.count(i) > 1)
    first, second = (place for place in range(10) if epoch[place] == twice)
    assert (images[first] != images[second]).any()
    measured = joined(run(kept, data, train=False, steps=(0, 2)), "index")
    assert sorted(measured[:10]) == [*range(10)]


def test_seed_and_epoch_change_order_and_views():
    def views(seed: int, epoch: int) -> dict[int, bytes]:
        (batch,) = run(seed=seed, batch_size=20, steps=(epoch, epoch + 1))
        return {i: image.tobytes() for i, image in zip(batch["index"], batch["image"], strict=True)}

    first = views(0, 0)
    assert views(0, 0) == first
    for seed, epoch in ((1, 0), (0, 1)):
        other = views(seed, epoch)
        assert list(other) == [sampling.shuffled(seed, epoch, place, 20) for place in range(20)]
        assert list(other) != list(first)
        assert sum(other[i] != first[i] for i in range(20)) >= 19


def test_randomness_is_one_philox_stream_per_example():
    seed = 2**32 - 1  # the largest
    randomness = Randomness(seed)
    for epoch, index in ((0, 0), (3, 17), (3, 18), (0, 0)):
        key = np.array([seed * 2**32 + epoch, index], np.uint64)
        fresh = np.random.Generator(np.random.Philox(key=key))
        moved = randomness.at(epoch, index)
        assert moved.integers(1000, dtype=np.uint32) == fresh.integers(1000, dtype=np.uint32)
        np.testing.assert_array_equal(moved.random(7), fresh.random(7))


def test_evaluation_goes_through_once_in_order_and_pads():
    batches = run(train=False, steps=(0, 3))
    np.testing.assert_array_equal(joined(batches, "index"), [*range(20), -1, -1, -1, -1])
    np.testing.assert_array_equal(joined(batches, "mask"), [True] * 20 + [False] * 4)
    np.testing.assert_array_equal(joined(batches, "label"), [i % 10 for i in range(20)] + [0] * 4)
    assert not batches[2]["image"][4:].any()
    source = open_source(DATA, "train", train=False)
    np.testing.assert_array_equal(joined(batches, "image")[13], source[13].image)
    (beyond,) = run(train=False, steps=(3, 4))
    assert not beyond["mask"].any()


@pytest.fixture
def photos(tmp_path):
    """12 pictures of 2 classes, their gray level the number; 4 and 5 are broken, 9 is missing."""
    for number in range(12):
        path = tmp_path / f"train/{'ab'[number // 6]}/{number:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture = np.full((40, 40, 3), number, np.uint8)
        path.write_bytes(cv2.imencode(".png", picture)[1].tobytes())
    (tmp_path / "train/a/04.png").write_bytes(b"")
    (tmp_path / "train/a/05.png").write_bytes(b"<html>")
    (tmp_path / "train/b/09.png").unlink()
    (tmp_path / "train/b/09.png").symlink_to(tmp_path / "gone")
    return config.Data(
        source="folder", root=str(tmp_path), image_size=(4, 4), train_crop="resize", threads=1
    )


def test_an_unreadable_image_is_an_error_with_its_name(photos):
    root = pathlib.Path(photos.root) / "train"
    reasons = (
        f"{root}/a/04.png: is empty",
        f"{root}/a/05.png: is not a JPEG, PNG, WebP, GIF, BMP or TIFF: it starts with b'<html>'",
        f"{root}/b/09.png: No such file or directory",
    )
    ending = "; mend or remove it, or allow for unreadable images with data.max_bad_examples"
    assert error_line(DataError, run, data=photos, steps=(0, 100)) in [
        reason + ending for reason in reasons
    ]


def test_unreadable_images_are_replaced_by_the_next_within_the_budget(photos, caplog):
    data = dataclasses.replace(photos, max_bad_examples=3)
    with caplog.at_level(logging.WARNING, "vit_jax"):
        batches = run(data=data, steps=(0, 6), batch_size=4)  # two epochs
    index, bad = joined(batches, "index"), joined(batches, "bad")
    drawn = np.where(bad >= 0, bad, index)
    np.testing.assert_array_equal(np.sort(drawn.reshape(2, 12)), np.tile(np.arange(12), (2, 1)))
    for was, given in ((4, 6), (5, 6), (9, 10)):
        assert index[bad == was].tolist() == [given, given]
    assert set(bad.tolist()) == {-1, 4, 5, 9}
    np.testing.assert_array_equal(joined(batches, "image")[:, 0, 0, 0], index)
    np.testing.assert_array_equal(joined(batches, "label"), index // 6)
    assert joined(batches, "mask").all()
    # Each once, however often it comes up.
    messages = sorted(record.getMessage() for record in caplog.records)
    files = [message.partition(": ")[0] for message in messages]
    assert [name[-8:] for name in files] == ["a/04.png", "a/05.png", "b/09.png"]
    assert "a/04.png: is empty (replaced; " in messages[0]
    assert sorted(message[-23:] for message in messages) == [
        f"replaced; {n} of at most 3)"[-23:] for n in (1, 2, 3)
    ]
    assert_same(run(data=data, steps=(3, 6), batch_size=4), batches[3:])


PICTURE = np.random.default_rng(0).integers(0, 256, (24, 20, 3), np.uint8)


def with_gap(index: int) -> Record:
    """The same picture again and again, but for number 4, which cannot be read."""
    if index == 4:
        raise OSError(5, "Input/output error")
    return Record(PICTURE, 0)


def test_a_replaced_image_is_augmented_as_the_one_drawn():
    """Or the two rows that show the replacement would be the same picture."""
    data = dataclasses.replace(DATA, max_bad_examples=1)
    (batch,) = run(toys.Made(20, with_gap), data, batch_size=20, steps=(0, 1))
    views = Views(transforms.train_transforms(data), data, seed=3)
    assert sorted(batch["index"].tolist()) == sorted([*range(4), 5, *range(5, 20)])
    drawn = np.where(batch["bad"] >= 0, batch["bad"], batch["index"])
    for row, index in enumerate(drawn.tolist()):
        expected = np.empty_like(batch["image"][row])
        views(PICTURE, 0, index, expected)
        np.testing.assert_array_equal(batch["image"][row], expected, err_msg=str(index))
    first, second = batch["image"][batch["index"] == 5]
    assert (first != second).any()


def test_evaluation_leaves_unreadable_images_out(photos):
    data = dataclasses.replace(photos, max_bad_examples=3)
    (batch,) = run(data=data, train=False, batch_size=12, steps=(0, 1))
    np.testing.assert_array_equal(batch["index"], [0, 1, 2, 3, -1, -1, 6, 7, 8, -1, 10, 11])
    np.testing.assert_array_equal(batch["mask"], batch["index"] >= 0)
    np.testing.assert_array_equal(np.flatnonzero(batch["bad"] >= 0), [4, 5, 9])


@pytest.mark.parametrize(("budget", "train"), [(1, True), (2, False)])
def test_one_unreadable_image_too_many_stops_the_run(photos, budget, train):
    data = dataclasses.replace(photos, max_bad_examples=budget)
    message = error_line(DataError, run, data=data, train=train, steps=(0, 100))
    assert message.startswith(f"more than data.max_bad_examples={budget} unreadable images: ")
    assert message.count(".png: ") == budget + 1
    assert "\n" not in message


def test_a_source_without_a_readable_image_is_an_error_not_a_search_without_end():
    def broken(index):
        raise OSError(5, "Input/output error")

    data = dataclasses.replace(DATA, max_bad_examples=1000)
    with pytest.raises(DataError, match="no example of the source can be read"):
        run(toys.Made(4, broken), data)


def endless(data: config.Data = DATA, source: Source | None = None, steps=(), *, batch_size=4):
    """An endless stream of batches."""
    return pipeline.batches(
        source or open_source(data, "train", train=True), steps, data, seed=0,
        batch_size=batch_size, rows=range(batch_size), train=True, stop_step=10**9,
    )  # fmt: skip


def test_a_mistake_in_the_program_stays_what_it_is():
    mistake = [lambda image, rng: 1 / 0]
    with pytest.raises(ZeroDivisionError), endless(steps=mistake) as batches:
        next(batches)


def loader_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("grain-")]


def wait_until(condition) -> bool:
    deadline = time.monotonic() + 10
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


@pytest.mark.slow
def test_threads_processes_and_buffers_change_nothing(photos):
    data = dataclasses.replace(
        photos, max_bad_examples=3, image_size=(64, 64), train_crop="inception", rotation=10
    )
    options = [{"threads": 4, "prefetch": 1}, {"threads": 3, "prefetch": 9}]
    options += [{"workers": workers, "threads": 2} for workers in (1, 2, 4)]
    expected = run(data=data, batch_size=100, rows=range(90), steps=(0, 6))
    assert set(joined(expected, "bad").tolist()) == {-1, 4, 5, 9}
    for changed in options:
        other = dataclasses.replace(data, **changed)
        assert_same(run(data=other, batch_size=100, rows=range(90), steps=(2, 6)), expected[2:])
    assert not multiprocessing.active_children()


def test_a_daemonic_process_loads_in_threads(photos, monkeypatch, caplog):
    """Celery's and dask's workers are daemonic: Python allows them no children."""
    data = dataclasses.replace(photos, max_bad_examples=3)
    expected = run(data=data, batch_size=10, steps=(0, 2))
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)
    assert_same(
        run(data=dataclasses.replace(data, workers=2), batch_size=10, steps=(0, 2)), expected
    )
    assert (
        "data.workers=2: a daemonic process may start no others; loading in threads" in caplog.text
    )


def test_a_killed_loader_process_is_an_error_not_a_hang():
    batches = endless(dataclasses.replace(DATA, workers=1))
    for _ in range(3):
        next(batches)
    (child,) = multiprocessing.active_children()
    for number in (signal.SIGINT, signal.SIGTERM):  # these are for the main process to handle
        os.kill(child.pid, number)
    for _ in range(30):
        next(batches)
    os.kill(child.pid, signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(pipeline.LoaderError) as caught:
        list(batches)
    assert time.monotonic() - began < 10
    assert str(caught.value) == (
        "data.workers=1: a loader process ended with exit code -9 (killed, perhaps for lack of "
        "memory); try again, with fewer data.workers or a smaller data.prefetch"
    )
    assert caught.value.exit_code == 70
    assert wait_until(lambda: not multiprocessing.active_children())


def test_closing_leaves_a_process_that_never_starts(monkeypatch):
    """As Python does not notice that one was killed before it has read what it is to do."""
    monkeypatch.setattr(pipeline, "PATIENCE", 0.1)
    batches, forever = endless(DATA), threading.Event()
    ends = batches._iterator.close
    monkeypatch.setattr(batches._iterator, "close", lambda: forever.wait(20))
    began = time.monotonic()
    try:
        batches.close()
        assert time.monotonic() - began < 10
    finally:
        forever.set()
        ends()


def test_closing_leaves_out_the_rest_of_what_is_being_read():
    read = []

    def slow(index):
        read.append(index)
        time.sleep(0.01)
        return Record(np.zeros((6, 5, 3), np.uint8), 0)

    batches = endless(dataclasses.replace(DATA, threads=2), toys.Made(10_000, slow), batch_size=400)
    assert wait_until(lambda: len(read) > 10)
    batches.close()
    assert wait_until(lambda: not loader_threads())
    assert len(read) < 200  # of two parts of 200


def test_no_part_is_made_beyond_the_last_step():
    view = pipeline.View("image", DATA)
    loader = pipeline.Loader(
        source=open_source(DATA, "train", train=True),
        chains=((view, {view: ()}),),
        data=dataclasses.replace(DATA, train_crop="none", rotation=0),
        seed=0,
        batch_size=8,
        rows=np.arange(8),
        train=True,
        stop_step=2,
    )
    for make in (loader, pipeline.Shared(loader)):
        assert [bool(make(step * loader.parts)) for step in range(5)] == [True, True, *3 * [False]]


SCRIPT = """
import multiprocessing, os, sys
from vit_jax import config
from vit_jax.data import pipeline, sources, transforms

def main(workers, then):
    data = config.Data(image_size=(64, 64), threads=2, workers=workers)
    source = sources.open_source(data, "train", train=True)
    options = dict(seed=0, batch_size=64, rows=range(64), train=True)
    for stop in (4, 10**9):
        batches = pipeline.batches(source, (transforms.Resize(64, 64),), data,
                                   stop_step=stop, **options)
        for count, batch in enumerate(batches):
            if count == 3:
                break
        if stop == 4:
            assert next(batches, None) is None
    print(*[child.pid for child in multiprocessing.active_children()], flush=True)
    if then == "kill":
        os.kill(os.getpid(), 9)

if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
"""


@pytest.mark.slow
@pytest.mark.parametrize(("then", "code"), [("end", 0), ("kill", -signal.SIGKILL)])
def test_loader_processes_do_not_outlive_a_script(tmp_path, then, code):
    """One that ends, without a word, while its second iterator is open, and a killed one."""
    (tmp_path / "script.py").write_text(SCRIPT)
    root = pathlib.Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, str(tmp_path / "script.py"), "1", then],
        env={**os.environ, "PYTHONPATH": str(root), "PYTHONWARNINGS": "always"},
        capture_output=True,
        text=True,
        timeout=300,  # against a hang; a busy machine is slow
    )
    assert done.returncode == code
    assert done.stderr == "" or then == "kill"
    assert wait_until(lambda: not pathlib.Path(f"/proc/{int(done.stdout)}").exists())


def test_records_may_be_pixels_of_any_size():
    def make(index):
        shape = [(9, 7), (3, 4, 3), (5, 5, 1), (6, 5, 3)][index]
        return Record(np.full(shape, 10 * index, np.uint8), index % 2)

    (batch,) = run(toys.Made(4, make), train=False, batch_size=4, steps=(0, 1))
    np.testing.assert_array_equal(batch["image"].max((1, 2, 3)), [0, 10, 20, 30])
    np.testing.assert_array_equal(batch["image"].min((1, 2, 3)), [0, 10, 20, 30])


def test_repeats_are_views_of_the_same_images_in_a_batch():
    data = dataclasses.replace(DATA, repeats=2)
    plain = run()
    batches = run(data=data, steps=(0, 10))
    order = joined(plain, "index")
    for number, batch in enumerate(batches):
        np.testing.assert_array_equal(batch["index"][:4], batch["index"][4:])
        np.testing.assert_array_equal(batch["label"][:4], batch["label"][4:])
        assert not any(np.array_equal(batch["image"][i], batch["image"][i + 4]) for i in range(4))
        np.testing.assert_array_equal(batch["index"][:4], order[4 * number : 4 * number + 4])
    counts = np.bincount(joined(batches[:5], "index"), minlength=20)
    assert set(counts) == {2}  # 20 images, each in two views
    every = joined(batches, "image")
    assert len({image.tobytes() for image in every}) == 80
    assert_same(run(data=data, steps=(3, 10)), batches[3:])
    measured = run(data=data, train=False, steps=(0, 2))
    assert_same(measured, run(train=False, steps=(0, 2)))


def test_the_views_of_an_image_are_as_far_apart_as_a_batch_allows():
    """Mixup blends neighbors. The batch of samples 4 to 9 begins with the second view of one."""
    order = pipeline.repeated_order(4, 6, 3)
    assert order.tolist() == [2, 5, 0, 3, 1, 4]  # the first views, the second, the third
    assert pipeline.repeated_order(4, 6, 1).tolist() == list(range(6))
