"""A bucket."""

import pytest

import memory_bucket


@pytest.fixture
def memory(monkeypatch):
    """`memory_bucket.ROOT`, which is in the memory of the test."""
    return memory_bucket.Memory(monkeypatch)
