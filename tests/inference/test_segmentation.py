"""Linear segmentation: masks of three layouts, scores against numpy, a whole measurement."""

import json
import pathlib
import struct
import types
import zlib

import cv2
import numpy as np
import pytest
from PIL import Image

from vit_jax import cli
from vit_jax.config import ConfigError
from vit_jax.data import decoding
from vit_jax.inference import segmentation
from vit_jax.utils.errors import AssumptionWarning
from vit_jax.weights import WeightsError

GOOGLE = pathlib.Path(__file__).parents[1] / "fixtures" / "vit_tiny_token.npz"
COLORS = np.array([[200, 30, 30], [30, 200, 30], [30, 30, 200]], np.uint8)

pytestmark = pytest.mark.usefixtures("one_device")


def draw(folder, names, layout="plain", seed=0):
    """Writes images of colored blocks, and masks of their colors' numbers."""
    rng = np.random.default_rng(seed)
    for name in names:
        image, mask = {
            "plain": ("{0}/images/{1}.png", "{0}/masks/{1}.png"),
            "ade": ("images/{0}/{1}.png", "annotations/{0}/{1}.png"),
            "voc": ("JPEGImages/{1}.jpg", "SegmentationClass/{1}.png"),
        }[layout]
        split, number = name.split("/")
        classes = rng.integers(0, 3, (4, 4)).repeat(20, axis=0).repeat(24, axis=1).astype(np.uint8)
        pixels = COLORS[classes] + rng.integers(0, 20, (80, 96, 3), np.uint8)
        truth = classes + (layout == "ade")
        truth[:3] = 0 if layout == "ade" else segmentation.NO_CLASS
        for path, content in ((image, pixels), (mask, truth)):
            file = folder / path.format(split, number)
            file.parent.mkdir(parents=True, exist_ok=True)
            if content is truth and layout == "voc":
                indexed = Image.fromarray(content).convert("P")
                indexed.putpalette([5, 6, 7] * 256)  # colors that say nothing
                indexed.save(file)
            else:
                Image.fromarray(content).save(file)
        if layout == "voc":
            names_of = folder / "ImageSets" / "Segmentation" / f"{split}.txt"
            names_of.parent.mkdir(parents=True, exist_ok=True)
            with names_of.open("a") as file:
                file.write(f"{number}\n")


@pytest.mark.parametrize("layout", ["plain", "ade", "voc"])
def test_layouts(layout, tmp_path):
    draw(tmp_path, ["train/b", "train/a", "val/c"], layout)
    found = segmentation.find_images(tmp_path, "train")
    assert [one.image.stem for one in found] == (["b", "a"] if layout == "voc" else ["a", "b"])
    mask = segmentation.read_mask(found[0], max_pixels=10_000)
    assert mask.shape == (80, 96)
    assert (mask[:3] == segmentation.NO_CLASS).all()
    image = decoding.decode_image(found[0].image.read_bytes(), channels=3, max_pixels=10_000)
    lossless = layout != "voc"
    nearest = np.abs(image[:, :, None].astype(int) - COLORS - 10).sum(-1).argmin(-1)
    assert (nearest[3:] == mask[3:]).mean() > (0.999 if lossless else 0.9)
    assert set(np.unique(mask[3:])) <= {0, 1, 2}


def test_images_are_those_of_other_commands(tmp_path):
    folder = tmp_path / "val"
    for name in (
        "images/b.BMP",
        "images/x/a.tif",
        "images/._b.BMP",
        "masks/b.png",
        "masks/x/a.png",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"")
    with pytest.warns(AssumptionWarning, match="2 images; not used: 1 hidden"):
        found = segmentation.find_images(tmp_path, "val")
    assert [str(one.mask.relative_to(folder)) for one in found] == ["masks/b.png", "masks/x/a.png"]


def test_patches_have_the_class_of_most_pixels():
    rng = np.random.default_rng(0)
    mask = rng.choice([0, 1, 2, segmentation.NO_CLASS], (30, 50), p=[0.3, 0.2, 0.2, 0.3]).astype(
        np.uint8
    )
    mask[:10, :25] = segmentation.NO_CLASS
    found = segmentation.patch_classes(mask, (3, 2))
    for row in range(3):
        for column in range(2):
            part = mask[10 * row : 10 * row + 10, 25 * column : 25 * column + 25]
            counts = np.bincount(part.ravel(), minlength=256)
            enough = counts[:255].sum() * 2 >= part.size
            expected = counts[:255].argmax() if enough else segmentation.NO_CLASS
            assert found[row, column] == expected
    assert found[0, 0] == segmentation.NO_CLASS
    # Half of the pixels are enough, fewer are not; of equals the lower class counts.
    n = segmentation.NO_CLASS
    for pixels, expected in (([7, n], 7), ([7, n, n], n), ([9, 4], 4), ([4, 9], 4), ([n, n], n)):
        assert segmentation.patch_classes(np.array([pixels], np.uint8), (1, 1)) == expected
    # A patch without pixels, of an image smaller than the grid, has no class.
    assert segmentation.patch_classes(np.array([[3]], np.uint8), (1, 2)).tolist() == [[n, 3]]
    # Parts that do not divide: a pixel belongs to the patch that holds its center.
    assert segmentation.patch_classes(np.array([[1, 1, 2, 3, 3]], np.uint8), (1, 2)).tolist() == [
        [1, 3]
    ]


def test_scores_are_interpolated_and_compared():
    rng = np.random.default_rng(1)
    field = rng.normal(size=(2, 3, 5))
    predicted = segmentation.pixel_classes(field, (4, 9))
    y, x = (np.arange(4) + 0.5) / 2 - 0.5, (np.arange(9) + 0.5) / 3 - 0.5
    y, x = np.clip(y, 0, 1), np.clip(x, 0, 2)
    y0, x0 = np.minimum(y.astype(int), 0), np.minimum(x.astype(int), 1)
    wy, wx = (y - y0)[:, None, None], (x - x0)[None, :, None]
    top = field[y0][:, x0] * (1 - wx) + field[y0][:, x0 + 1] * wx
    low = field[y0 + 1][:, x0] * (1 - wx) + field[y0 + 1][:, x0 + 1] * wx
    np.testing.assert_array_equal(predicted, (top * (1 - wy) + low * wy).argmax(-1))

    truth = rng.choice([0, 1, 3, segmentation.NO_CLASS], (4, 9)).astype(np.uint8)
    pixels = segmentation.confusion(truth, predicted, 5)
    assert pixels.sum() == (truth != segmentation.NO_CLASS).sum()
    ious = segmentation.intersection_over_union(pixels)
    known = truth != segmentation.NO_CLASS
    for number in range(5):
        a, b = (truth == number) & known, (predicted == number) & known
        union = (a | b).sum()
        expected = (a & b).sum() / union if union else np.nan
        np.testing.assert_equal(ious[number], expected)


@pytest.mark.parametrize("classes", [1, 128, 129, 150])
def test_as_many_classes_as_a_mask_may_have_are_interpolated(classes):
    """OpenCV 5 resizes at most 128 channels; ADE20K has 150 classes."""
    scores = np.random.default_rng(2).normal(size=(2, 3, classes)).astype(np.float32)
    each = [cv2.resize(scores[:, :, k], (9, 4)) for k in range(classes)]
    predicted = segmentation.pixel_classes(scores, (4, 9))
    np.testing.assert_array_equal(predicted, np.stack(each, axis=-1).argmax(axis=2))


FEW_BITS = [(1, [0, 1]), (2, [0, 1, 2, 3]), (4, [0, 1, 14, 15]), (8, [0, 1, 254, 255])]


@pytest.mark.parametrize(("bits", "classes"), FEW_BITS)
def test_gray_levels_of_few_bits_are_the_numbers_of_classes(bits, classes, tmp_path):
    """Pillow stretches those of 2 and 4 bits to 255."""
    packed = "".join(format(one, f"0{bits}b") for one in classes)
    size = -(-len(packed) // 8)
    row = b"\0" + int(packed.ljust(8 * size, "0"), 2).to_bytes(size)

    def chunk(kind, content):
        checksum = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + checksum

    header = struct.pack(">IIBBBBB", len(classes), 1, bits, 0, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(row)), (b"IEND", b"")]
    file = tmp_path / "mask.png"
    file.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts))
    mask = segmentation.read_mask(segmentation.LabeledImage(file, file, 0), max_pixels=100)
    assert mask.tolist() == [classes]


def test_a_whole_measurement(tmp_path, capsys):
    draw(tmp_path, [f"train/{n}" for n in range(6)] + [f"val/{n}" for n in range(9, 12)])
    command = ["segment", f"--checkpoint={GOOGLE}", f"--data={tmp_path}"]
    assert cli.main([*command, f"--output={tmp_path / 'out'}"]) == 0
    said = capsys.readouterr().out
    found = json.loads((tmp_path / "out" / "segmentation.json").read_text())
    assert f"mean IoU        {found['miou']:.4f}" in said
    assert found["miou"] == pytest.approx(np.mean(found["iou"]))
    assert found["miou"] > 0.6  # random weights; the colors are far apart
    assert len(found["iou"]) == 3
    assert sum(found["pixels"]) == 3 * 77 * 96
    assert found["train_images"] == 6
    assert cv2.imread(str(tmp_path / "out" / "segmentation.png")).std() > 10
    again = [*command, f"--output={tmp_path / 'again'}"]
    assert cli.main(again) == 0
    assert json.loads((tmp_path / "again" / "segmentation.json").read_text()) == found


def test_images_that_are_learned_from_and_measured_are_said(tmp_path):
    """As of Pascal VOC's `trainval` and `val`."""
    draw(tmp_path, ["trainval/a", "trainval/b", "val/b", "val/c"], "voc")
    line = "--test=val: 1 of its 2 images are learned from, as images of --train=trainval"
    with pytest.warns(AssumptionWarning, match=line), pytest.raises(WeightsError):
        segmentation.measure("no/weights", tmp_path, {}, splits=("trainval", "val"))


def test_a_class_that_only_test_images_have_counts():
    truth = np.array([[5, 0], [segmentation.NO_CLASS, 1]], np.uint8)
    pixels = segmentation.confusion(truth, np.array([[0, 0], [1, 1]]), 3)
    assert pixels.shape == (6, 6)
    assert (pixels[5, 0], pixels[0, 0], pixels[1, 1], pixels.sum()) == (1, 1, 1, 3)


def test_a_mask_of_a_turned_image_is_refused(tmp_path, capsys):
    """An image turned by EXIF, and its mask as the pixels are stored."""
    draw(tmp_path, ["train/a", "val/b"])
    exif = Image.Exif()
    exif[0x0112] = 6
    for file in tmp_path.rglob("images/*.png"):
        Image.open(file).save(file, exif=exif)
    assert cli.main(["segment", f"--checkpoint={GOOGLE}", f"--data={tmp_path}"]) == 2
    assert "masks/a.png: is 96 x 80, and its image 80 x 96" in capsys.readouterr().err
    for file in tmp_path.rglob("masks/*.png"):
        Image.open(file).transpose(Image.Transpose.ROTATE_270).save(file)
    assert cli.main(["segment", f"--checkpoint={GOOGLE}", f"--data={tmp_path}"]) == 0
    errors = capsys.readouterr().err
    assert errors.count("a.png: is turned as its EXIF says; its mask, without EXIF, is taken") == 1


def test_a_mask_is_turned_as_its_own_exif_says(tmp_path):
    draw(tmp_path, ["val/a"])
    (one,) = segmentation.find_images(tmp_path, "val")
    shown = segmentation.read_mask(one, max_pixels=10_000)
    exif = Image.Exif()
    exif[0x0112] = 3
    Image.open(one.mask).transpose(Image.Transpose.ROTATE_180).save(one.mask, exif=exif)
    np.testing.assert_array_equal(segmentation.read_mask(one, max_pixels=10_000), shown)


def test_a_list_of_names_that_is_none(tmp_path):
    names = tmp_path / "ImageSets" / "Segmentation" / "val.txt"
    names.parent.mkdir(parents=True)
    (tmp_path / "JPEGImages").mkdir()
    for data, line in (
        (b"\xff\xfe", "is not a list of names"),
        (b"a" * 1000, "File name too long"),
    ):
        names.write_bytes(data)
        with pytest.raises(ConfigError, match=line):
            segmentation.find_images(tmp_path, "val")


def test_mistakes_are_one_line(tmp_path, capsys):
    draw(tmp_path / "plain", ["train/a", "val/b"])
    draw(tmp_path / "voc", ["train/a"], "voc")
    (tmp_path / "empty").mkdir()

    def said(*arguments, checkpoint=GOOGLE):
        assert cli.main(["segment", f"--checkpoint={checkpoint}", *arguments]) == 2
        return capsys.readouterr().err.splitlines()[-1]

    native = said(f"--data={tmp_path / 'plain'}", "--config.data.aspect=native")
    assert "data.aspect=native: is for evaluate, embed and predict" in native
    cropped = said(f"--data={tmp_path / 'plain'}", "--config.data.eval_crop=central")
    assert "data.eval_crop=central: segment resizes whole images; leave it out" in cropped
    assert "no such folder" in said(f"--data={tmp_path / 'none'}")
    assert "images: no such folder" in said(f"--data={tmp_path / 'empty'}")
    assert "has no split val; there are train" in said(f"--data={tmp_path / 'voc'}")
    resnet = GOOGLE.with_name("bit_tiny_legacy.npz")
    assert "a ResNet has no tokens" in said(f"--data={tmp_path / 'plain'}", checkpoint=resnet)
    mask = tmp_path / "plain" / "train" / "masks" / "a.png"
    mask.write_bytes(mask.read_bytes()[:60])
    assert "a.png: is not a readable PNG" in said(f"--data={tmp_path / 'plain'}")
    Image.new("L", (96, 80)).save(mask, "JPEG")  # whose numbers are no longer those that were drawn
    assert "a.png: is not a readable PNG" in said(f"--data={tmp_path / 'plain'}")
    Image.new("RGB", (96, 80)).save(mask)
    assert "a.png: is a PNG of mode RGB; a mask has" in said(f"--data={tmp_path / 'plain'}")
    Image.new("L", (96, 80), segmentation.NO_CLASS).save(mask)
    assert "no patch of train has a class" in said(f"--data={tmp_path / 'plain'}")
    with pytest.raises(ConfigError, match="more than data.max_pixels=50"):
        segmentation.read_mask(
            segmentation.find_images(tmp_path / "plain", "train")[0], max_pixels=50
        )
    mask.unlink()
    assert "train/masks/a.png is missing" in said(f"--data={tmp_path / 'plain'}")


def test_the_first_test_images_are_drawn_and_all_are_measured(monkeypatch):
    count = segmentation.SHOWN + 2
    truth, right = np.zeros((2, 2), np.int64), np.array([[0, 0], [0, 1]])
    each = [(f"view {number}", truth, np.zeros((1, 3))) for number in range(count)]
    monkeypatch.setattr(segmentation, "_examples", lambda *_: iter(each))
    monkeypatch.setattr(segmentation, "pixel_classes", lambda scores, shape: right)
    monkeypatch.setattr(segmentation.figures, "segments", lambda views, *_: views)
    linear = types.SimpleNamespace(mean=0, scale=1, weights=np.zeros((3, 2)), bias=np.zeros(2))
    opened = types.SimpleNamespace(step=7)
    found = segmentation._measured(opened, each, (linear, 0.1), 2, 5, 9)
    assert found.figure == tuple(f"view {number}" for number in range(segmentation.SHOWN))
    assert found.pixels.tolist() == [[3 * count, count], [0, 0]]
    assert (found.step, found.train, found.test, found.patches) == (7, 5, count, 9)
