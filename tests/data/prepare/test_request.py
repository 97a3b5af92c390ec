"""The arguments of `prepare`: sources on this machine and in buckets."""

import json
import pathlib

import pytest

from commands import printed
from memory_bucket import HELD, ROOT, content
from vit_jax import config
from vit_jax.data.prepare import command
from vit_jax.data.prepare.request import Request


@pytest.mark.slow
def test_a_dataset_is_packed_from_a_bucket_as_from_a_folder(memory, prepare, photos, tmp_path):
    assert prepare("new", f"--from={photos}", data_dir="folder")[0] == 0
    memory.store.store.clear()
    for path in photos.rglob("*"):
        if path.is_file():
            memory.put(path.relative_to(photos).as_posix(), path.read_bytes())
    code, lines, woe = prepare("new", f"--from={ROOT}", "--dry-run", data_dir="bucket")
    assert (code, memory.taken) == (0, [])
    assert lines[0].startswith(f"new: would copy {ROOT}: 32 objects, ")
    code, lines, woe = prepare("new", f"--from={ROOT}", data_dir="bucket")
    assert code == 0, woe
    folder, packed = (tmp_path / name / "new" / "1.0.0" for name in ("folder", "bucket"))
    assert content(packed) == content(folder)
    assert not list((tmp_path / "bucket" / ".buckets").iterdir())
    memory.taken = []
    code, lines, _ = prepare("new", f"--from={ROOT}", data_dir="bucket")
    assert (code, memory.taken) == (0, [])
    assert "is packed already" in lines[0]


def test_a_copy_is_removed_when_all_of_it_has_been_read(memory, tmp_path, monkeypatch):
    """ObjectNet's mapping is looked for after its images have been packed."""
    monkeypatch.setattr(command.pack, "prepare", lambda name, task, asked: map(str, asked.paths()))
    asked = Request(sources=(ROOT,), data_dir=str(tmp_path))
    _, line = command.prepare("objectnet", asked)
    assert line.startswith("objectnet: cannot be evaluated without its mapping")
    assert sorted(memory.taken) == sorted(HELD)
    assert not list((tmp_path / ".buckets").iterdir())


def test_a_dry_run_copies_no_labels(memory, prepare):
    lines = printed(prepare("imagenet-real", f"--from={ROOT}/a/0.jpg", "--dry-run"))
    assert lines[0].startswith(f"imagenet-real: would copy {ROOT}/a/0.jpg: 1 object, 0.0 kB, to ")
    assert memory.taken == []


def test_flags_of_buckets_are_for_buckets(memory, tmp_path):
    for given, said in (({"cache": "x"}, "--cache=x"), ({"cache_size": 5.0}, "--cache-size=5.0")):
        with pytest.raises(config.ConfigError, match=f"{said}: is for --from=s3://"):
            Request(sources=("photos",), **given)
    with pytest.raises(config.ConfigError, match="--from=http://a/b: cannot be opened"):
        Request(sources=("http://a/b",))
    with pytest.raises(config.ConfigError, match="--cache=s3://b: only a folder of this machine"):
        Request(sources=(ROOT,), cache="s3://b").paths()
    unknown = "~nobody-here/photos"
    assert Request(sources=(unknown,)).paths() == [pathlib.Path(unknown)]
    asked = Request(sources=(ROOT, str(tmp_path)), cache=str(tmp_path / "cache"))
    copied, local = asked.paths()
    assert content(copied) == HELD
    assert local == tmp_path
    assert json.loads((copied.parent / "objects.json").read_text()).keys() == HELD.keys()
