"""One-line errors for data paths such as gs://BUCKET/FOLDER."""

import contextlib

from vit_jax import storage
from vit_jax.data.source import DataError


def one_line(what: str) -> contextlib.AbstractContextManager[None]:
    """Turns errors of a remote file system into a DataError that starts with `what`.

    Leaves errors unchanged unless `what` contains gs:// or another scheme.
    """
    return storage.readable_errors(what, DataError)
