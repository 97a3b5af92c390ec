"""Fingerprints of the test images of tasks, to keep them out of training sets."""

import itertools
from collections.abc import Iterator, Sequence
from concurrent import futures

import numpy as np

from vit_jax import config
from vit_jax.data import availability, decoding, sources
from vit_jax.data.prepare import dedup
from vit_jax.data.source import DataError, Source
from vit_jax.data.tasks import Task
from vit_jax.runtime.progress import Bar

CHUNK = 64


def prints(tasks: Sequence[Task], data_dir: str | None, workers: int) -> dedup.Prints:
    """Returns the fingerprints of all readable test images of some tasks.

    Raises DataError for a task that is not prepared, or has no test images.
    """
    found: list[dedup.Print] = []
    names: list[str] = []
    for source in open_test_sets(tasks, data_dir):
        title = source.name(0).rpartition(" example")[0]
        with (
            Bar(f"reading {title}", len(source)) as progress,
            futures.ThreadPoolExecutor(workers) as pool,
        ):
            for start in range(0, len(source), CHUNK * workers):
                numbers = range(start, min(start + CHUNK * workers, len(source)))
                for number, one in zip(
                    numbers, pool.map(_take, itertools.repeat(source), numbers), strict=True
                ):
                    if one is not None:
                        found.append(one._replace(gray=one.gray.astype(np.float16)))
                        names.append(source.name(number))
                progress.update(numbers.stop)
    return dedup.Prints.of(found, names)


def open_test_sets(tasks: Sequence[Task], data_dir: str | None) -> Iterator[Source]:
    """Yields the test images of tasks; tasks that share a test split yield it once.

    Raises DataError for a task that is not prepared, or has no test images.
    """
    seen = set()
    for task in tasks:
        if not task.test:
            raise DataError(f"--dedup-against={task.name}: has no test images")
        key = task.dataset.tfds, task.test
        if key in seen:
            continue
        seen.add(key)
        if availability.find(task.dataset, data_dir) is None:
            raise DataError(
                f"--dedup-against={task.name}: is not prepared; first: "
                f"{availability.command(task.name, data_dir)}"
            )
        yield sources.open_task(task, task.test, str(availability.directory(data_dir)))


def _take(source: Source, number: int) -> dedup.Print | None:
    try:
        image = source[number].image
        pixels = decoding.load(image, channels=3, max_pixels=config.Data().max_pixels)
    except decoding.BadImage:
        return None
    return dedup.take(pixels)
