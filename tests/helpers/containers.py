"""Files of arrays to test with: read, written, and written wrong."""

import contextlib
import io
import pathlib
import zipfile

import numpy as np
import pytest
from safetensors import numpy as safetensors

from vit_jax import weights

FIXTURES = pathlib.Path(__file__).parents[1] / "fixtures"


def read(path):
    """The arrays of a .npz file."""
    with np.load(path) as file:
        return dict(file)


def write(path, arrays):
    """Writes a .npz or .safetensors file, and returns its path."""
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    else:
        safetensors.save_file(arrays, path)
    return path


def npy(descr="'<f4'", shape="(7,)", body=b"\0" * 28, order="False"):
    """A .npy file of float32 zeros whose header says what it likes."""
    header = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + body


def archive(path, members, compression=zipfile.ZIP_DEFLATED):
    """Writes a zip archive of names and contents, and returns its path."""
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, content in members:
            with contextlib.suppress(
                UserWarning
            ):  # a name that comes twice is written all the same
                file.writestr(name, content)
    return path


def header(path, text, body=b""):
    """Writes a .safetensors file with any header, and returns its path."""
    content = text if isinstance(text, bytes) else text.encode()
    path.write_bytes(len(content).to_bytes(8, "little") + content + body)
    return path


def refusal(path, open_=weights.load, **kwargs):
    """The message that refuses a file, without its path."""
    with pytest.raises(weights.WeightsError) as raised:
        open_(path, **kwargs)
    text = raised.value.args[0]  # all of it: people see the ends of a long one
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    text = text.removeprefix(f"{path}: ")
    assert str(path) not in text, "the path is told twice"
    return text


class Payload:
    """An object whose pickle, when it is loaded, leaves a mark."""

    ran = False

    def __reduce__(self):
        return (setattr, (Payload, "ran", True))


def pickled():
    """A .npy file of one Payload."""
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.array([Payload()], dtype=object), allow_pickle=True)
    return stream.getvalue()
