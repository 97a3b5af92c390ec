"""Images in buckets of S3 and of Google Cloud Storage: s3fs and gcsfs against local servers."""

import cv2
import numpy as np
import pytest

import bucket as gcs
import s3
from vit_jax import cli
from vit_jax.data import bucket
from vit_jax.data.source import DataError
from vit_jax.utils import limits

SERVICES = {"s3": (s3, "s3fs"), "gs": (gcs, "gcsfs")}
MOST = limits.EXAMPLES


@pytest.fixture(scope="module", params=sorted(SERVICES))
def service(request):
    """A server with eight photos in two classes, and the address of their folder."""
    module, package = SERVICES[request.param]
    pytest.importorskip(package, reason=f"needs {package}")
    with module.serve() as server, pytest.MonkeyPatch.context() as patch:
        for key, value in server.environment.items():
            patch.setenv(key, value)
        rng = np.random.default_rng(0)
        for number in range(8):
            pixels = rng.integers(0, 255, (40, 40, 3), np.uint8)
            photo = cv2.imencode(".png", pixels)[1].tobytes()
            server.put(f"photos/{('cat', 'dog')[number % 2]}/{number} &.png", photo)
        yield server, f"{request.param}://{module.NAME}/photos"


def test_a_copy_holds_the_objects_and_follows_their_changes(service, tmp_path):
    server, address = service
    found = bucket.copy(address, tmp_path, MOST)

    def held():
        paths = {path.relative_to(found).as_posix(): path for path in found.rglob("*.png")}
        return {f"photos/{name}": path.read_bytes() for name, path in paths.items()}

    objects = {
        name: one if isinstance(one, bytes) else one[0] for name, one in server.objects.items()
    }
    assert held() == objects
    one = bucket.copy(f"{address}/cat/0 &.png", tmp_path, MOST)
    assert one.read_bytes() == objects["photos/cat/0 &.png"]
    server.put("photos/cat/0 &.png", objects["photos/dog/1 &.png"])
    bucket.copy(address, tmp_path, MOST)
    assert held()["photos/cat/0 &.png"] == objects["photos/dog/1 &.png"]
    server.put("photos/cat/0 &.png", objects["photos/cat/0 &.png"])


def test_what_is_not_there_is_one_line(service, tmp_path):
    _, address = service
    for missing in (f"{address}/none", address.replace("bucket", "another")):
        with pytest.raises(DataError, match=r"none|another") as raised:
            bucket.copy(missing, tmp_path, MOST)
        assert "\n" not in str(raised.value)
        assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_every_command_that_takes_images_takes_a_bucket(service, tmp_path, monkeypatch, capsys):
    _, address = service
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    photo, data = (
        f"{address}/cat/2 &.png",
        [f"--config.data.root={address}", "--config.data.holdout=0.5"],
    )
    for words, said in (
        (["doctor", address, "--fix-list=fix.csv"], "nothing was found\ndoctor.html"),
        (["predict", photo, "--csv"], f"{photo},1,"),
        (["embed", address, "--output=table.npz"], "table.npz: 8 images"),
        (["search", "--index=table.npz", f"--query={photo}", f"--images={address}",
          "--output=s.html"], "cat/2 &.png  1.0000"),
        (["search", f"--index={address}/cat", f"--query={photo}"], "2 &.png  1.0000"),
        (["inspect", "attention", photo, "--output=figures"], "figures/attention-1.png"),
        (["inspect", "view", address, "--count=2", "--output=view.html"], "view.html"),
        (["evaluate", "--config.data.source=folder", *data], "count"),
    ):  # fmt: skip
        try:
            code = cli.main([*words, "--checkpoint=cifar10/ViT-6_4"])
        except SystemExit as ended:
            code = ended.code
        printed = capsys.readouterr()
        assert code == 0, printed.err
        assert said in printed.out
    assert address in (tmp_path / "doctor.html").read_text()
    assert photo in (tmp_path / "s.html").read_text().replace("&amp;", "&")
