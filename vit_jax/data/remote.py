"""Paths such as gs://BUCKET/FOLDER: what may go wrong with them, in one line."""

import contextlib
from collections.abc import Iterator

from vit_jax.config import UserError
from vit_jax.data.examples import DataError


@contextlib.contextmanager
def one_line(what: str) -> Iterator[None]:
    """Turns what a file system that is not local raises into a DataError that begins with `what`.

    Without gs:// or the like in `what`, everything passes.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # gcsfs passes on what aiohttp and google-auth raise
        if "://" not in what:
            raise
        if isinstance(error, ImportError):
            raise DataError(f"{what}: needs gcsfs: pip install 'vit_jax[gcs]'") from None
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise DataError(
            f"{what}: cannot be read: {reason}; for a private bucket first: "
            "gcloud auth application-default login"
        ) from None
