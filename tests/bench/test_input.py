"""What `bench input` measures and how it says it; the measuring itself is not timed here."""

import tarfile

import cv2
import numpy as np
import pytest

from vit_jax import cli, config
from vit_jax.benchmarks import host_cores, input, sample_images, worker


def test_pictures_are_the_same_every_time_and_as_large_as_imagenets(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    some, others = (sample_images.make(tmp_path / name, 3) for name in "ab")
    assert [file.read_bytes() for file in some] == [file.read_bytes() for file in others]
    assert cv2.imread(str(some[0])).shape == (375, 500, 3)
    assert 90_000 < np.median([file.stat().st_size for file in some]) < 130_000


def test_files_come_from_a_folder_or_a_tar(tmp_path):
    top = tmp_path / "top"
    (top / "class").mkdir(parents=True)
    (file,) = sample_images.make(top / "class", 1)
    assert sample_images.gather(top, tmp_path / "none") == [file]
    with tarfile.open(tmp_path / "all.tar", "w") as archive:
        archive.add(top, "top")
    (unpacked,) = sample_images.gather(tmp_path / "all.tar", tmp_path / "out")
    assert unpacked.read_bytes() == file.read_bytes()
    with pytest.raises(config.ConfigError, match="no folder and no tar"):
        sample_images.gather(file, tmp_path / "out2")


def test_a_worker_loads_what_it_is_asked_for(tmp_path):
    files = sample_images.make(tmp_path, 2)
    source = worker.Files([str(file) for file in files])
    answer = worker.load(source, config.Data(train_crop="inception", threads=1), count=1)
    assert answer["images"] == 256
    assert answer["seconds"] > 0
    assert answer["cpu"] > 0


def test_ratios_are_to_the_peer_on_as_many_cores():
    results = [
        input.Result(1, input.OURS, [1 / 900, 1 / 1000, 1 / 800], [0.001], 300.4),
        input.Result(1, input.WHOLE, [1 / 600] * 3, [0.0016], 200.0),
        input.Result(1, input.PEER, [1 / 450, 1 / 600, 1 / 400], [0.002], 500.0),
    ]
    header, rows = input.table(results)
    assert header[4] == header[6] == "vs tf.data"
    assert rows[0] == (
        "1", "vit_jax", "900", "900", "2.00x (1.67 to 2.00)", "1.00", "2.00x", "300"
    )  # fmt: skip
    assert rows[2][4] == "1.00x"
    header, rows = input.table(results[:2])
    assert header[4] == "vs whole images"
    assert rows[0][4] == "1.50x (1.33 to 1.67)"


def test_what_a_slice_eats():
    lines = dict(host_cores.needs("ViT-B/32", "v3:2x2", per_core=1000.0))
    # 4 chips of 123 TFLOP/s; a forward pass is 4.41 G multiply-accumulates.
    rate = 4 * 123e12 / (3 * 2 * 4.41e9)
    assert abs(float(lines["at the roofline"].split()[0].replace(",", "")) / rate - 1) < 0.01
    assert lines["at 40% of it"].endswith("cores")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["attention", "--rounds=3"],
            "--rounds=3: is a flag of bench input, bench infer, bench train, bench checkpoint, "
            "bench evaluate, bench dispatch only",
        ),
        (["input", "--feed=ViT-B/32"], "--topology=SLICE go together"),
        (["input", "--feed=ViT-Q/32", "--topology=v3:2x2"], "ViT-Q/32"),
        (["input", "--feed=ViT-B/32", "--topology=v9:2x2"], "--topology=v9:2x2"),
        (["input", "--data=/gone"], "--data=/gone: no such folder or tar"),
        (["input", "--peer-python=/no/python"], "--peer-python=/no/python: does not run"),
        (["input", "--randaugment=2"], "data.randaugment=2: needs two numbers"),
        (["input", "--randaugment=2,31"], "magnitude 31 is more than 30"),
        (["input", "--peer-path=/gone"], "--peer-path=/gone: is for --randaugment"),
        (["input", "--peer-path=/gone", "--randaugment=2,10"], "/gone: no checkout of big_vision"),
    ],
)
def test_mistakes_are_one_line(arguments, message, capsys):
    assert cli.main(["bench", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
