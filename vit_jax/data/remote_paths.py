"""Paths of data such as gs://BUCKET/FOLDER: what may go wrong with them, in one line."""

import contextlib

from vit_jax import storage
from vit_jax.data.source import DataError


def one_line(what: str) -> contextlib.AbstractContextManager[None]:
    """Turns what a file system that is not local raises into a DataError that begins with `what`.

    Without gs:// or the like in `what`, everything passes.
    """
    return storage.readable_errors(what, DataError)
