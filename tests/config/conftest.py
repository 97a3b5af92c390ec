"""Plug-ins that end with their test."""

import pytest

import plugins


@pytest.fixture
def forgotten():
    """Forgets what a test registers or imports; patches that end with it."""
    with plugins.forgotten() as patch:
        yield patch
