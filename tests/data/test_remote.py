"""What may go wrong with gs:// is one line; anything else passes."""

import pytest

from vit_jax import config
from vit_jax.data.source import DataError
from vit_jax.data.sources import open_source
from vit_jax.utils import storage

REMOTE = "data.root=gs://bucket"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ImportError("Please install gcsfs"), "needs gcsfs: pip install 'vit_jax[gcs]'"),
        (OSError("Forbidden:\nno access"), "cannot be read: Forbidden: no access; for a private"),
        (ValueError(), "cannot be read: ValueError; for a private bucket first: gcloud auth"),
    ],
)
def test_errors_of_a_remote_path_are_one_line(error, reason):
    with (
        pytest.raises(DataError) as caught,
        storage.readable_errors(REMOTE, DataError),
    ):
        raise error
    assert str(caught.value).startswith(f"data.root=gs://bucket: {reason}")
    with (
        pytest.raises(type(error)) as passed,
        storage.readable_errors("/local", DataError),
    ):
        raise error
    assert passed.value is error
    with (
        pytest.raises(config.ConfigError),
        storage.readable_errors(REMOTE, DataError),
    ):
        raise config.ConfigError("is one line already")


def test_a_data_dir_that_cannot_be_read_names_the_option(monkeypatch):
    from vit_jax.data import tfds_source

    def fail(data):
        raise ImportError("Please install gcsfs to access Google Storage")

    monkeypatch.setattr(tfds_source, "_builder", fail)
    data = config.Data(source="tfds", name="cifar10", root="gs://bucket/data")
    with pytest.raises(DataError) as caught:
        open_source(data, "train", train=True)
    assert (
        str(caught.value) == "data.root=gs://bucket/data: needs gcsfs: pip install 'vit_jax[gcs]'"
    )
