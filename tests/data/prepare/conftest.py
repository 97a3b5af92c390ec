"""The command, and a folder of pictures for it."""

import pytest

import commands
from official_fakes import jpeg, structured


@pytest.fixture
def prepare(capsys, tmp_path):
    """Runs the command; returns exit code, lines printed, lines of woe."""

    def run(*arguments, data_dir="data", workers=1):
        where = f"--data-dir={tmp_path / data_dir}"
        return commands.run(capsys, "prepare", *arguments, where, f"--workers={workers}")

    return run


@pytest.fixture
def photos(tmp_path):
    """Ten pictures of each of three classes, a text, and a file that only looks like a picture."""
    root = tmp_path / "photos"
    for number, name in enumerate(("bird", "cat", "dog")):
        (root / name).mkdir(parents=True)
        for index in range(10):
            (root / name / f"{index}.jpg").write_bytes(jpeg(structured(100 * number + index)))
    (root / "cat" / "broken.jpg").write_bytes(jpeg(structured(7))[:300])
    (root / "cat" / "read.me").write_text("no picture")
    return root
