"""What a record says of the machine it was made on."""

import pathlib
import platform

import pytest

from vit_jax.runtime import provenance

LINUX = "processor\t: 0\nmodel name\t: A CPU: 2 GHz \nflags\t: a\nprocessor\t: 1\nmodel name\t: B\n"


@pytest.mark.parametrize(
    ("told", "fast"),
    [
        ("flags\t: fpu avx512f avx512_bf16 sse\nflags\t: fpu\n", True),
        ("flags\t: fpu amx_bf16\n", True),
        ("Features\t: fp asimd bf16\n", True),
        ("flags\t: fpu avx512_bf16x\n", False),
        ("processor\t: 0\n", False),
    ],
)
def test_a_processor_that_multiplies_bfloat16_says_so(told, fast, monkeypatch):
    monkeypatch.setattr(pathlib.Path, "read_text", lambda path: told)
    assert provenance.multiplies_bfloat16() == fast


@pytest.mark.parametrize(
    ("told", "known", "name"),
    [
        (LINUX, "x86_64", "A CPU: 2 GHz"),
        ("processor\t: 0\n", "Cortex", "Cortex"),
        ("processor\t: 0\n", "", "aarch64"),
        (None, "", "aarch64"),  # no Linux
    ],
)
def test_a_processor_has_the_name_that_the_system_tells(told, known, name, monkeypatch):
    def read(path):
        if told is None:
            raise FileNotFoundError(path)
        return told

    monkeypatch.setattr(pathlib.Path, "read_text", read)
    monkeypatch.setattr(platform, "processor", lambda: known)
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert provenance.processor() == name
