"""A bucket in the memory of a test, through fsspec."""

import fsspec

from vit_jax.data import bucket

MOST = 10**6
HELD = {"a/0.jpg": b"zero", "a/1.jpg": b"one", "b/c/2.jpg": b"two and more" * 1000, "list.txt": b""}
ROOT = "memory://photos"


class Memory:
    """The bucket of a test: what it holds, and what was downloaded from it."""

    def __init__(self, monkeypatch):
        self.system = fsspec.filesystem("memory", skip_instance_cache=True)
        self.store = type(self.system)
        monkeypatch.setattr(self.store, "store", {})
        monkeypatch.setattr(self.store, "pseudo_dirs", [""])
        self.taken, self.whole = [], self.store.get_file
        monkeypatch.setattr(self.store, "get_file", self.get_file)
        self.before = lambda name, local: None
        monkeypatch.setattr(bucket, "SCHEMES", {"memory": ("none", "none"), "s3": ("s3fs", "s3")})
        for name, content in HELD.items():
            self.put(name, content)

    def put(self, name, content):
        """Adds or replaces an object."""
        self.system.pipe_file(f"/photos/{name}", content)

    def get_file(self, name, local, **options):
        """Downloads an object, unless `before` has."""
        self.taken.append(name.removeprefix("/photos/"))
        if not self.before(name, local):
            self.whole(self.system, name, local, **options)


def content(folder):
    """The bytes of all files below a folder by path."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
