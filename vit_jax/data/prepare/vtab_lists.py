"""Lists the 1,000 images of a VTAB-1k task by hash, next to its data set."""

from vit_jax import config
from vit_jax.data import availability, example_lists, sources
from vit_jax.data.decoding import BadImage
from vit_jax.data.source import DataError
from vit_jax.data.tasks import Task


def check(task: Task, data_dir: str | None) -> str:
    """Writes the list of a task's images, or checks an existing list; returns a line for the user.

    Raises DataError if an image of the list is missing, or cannot be read.
    """
    root = availability.directory(data_dir)
    path = example_lists.path(root, task.name)
    if path.exists():
        data = config.Data(
            source="tfds",
            name=task.dataset.name,
            root=str(root),
            labels=task.labels,
            examples=str(path),
        )
        sources.open_source(data, task.whole, train=True)
        return f"{task.name}: the images of {path} are all there"
    source = sources.open_task(task, task.whole, str(root))
    try:
        sha256 = example_lists.write(
            source,
            path,
            task=task.name,
            dataset=source.dataset,
            version=source.version,
            split=task.whole,
        )
    except BadImage as error:
        raise DataError(f"{task.name}: {task.whole}: an image {error}") from None
    return f"{task.name}: its {len(source):,} images are listed in {path}, SHA-256 {sha256[:16]}"
