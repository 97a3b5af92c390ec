"""Each transform against arrays worked out by hand or by a second implementation in float64."""

import colorsys
import dataclasses
import math
from unittest import mock

import numpy as np
import pytest
import scipy.ndimage
from PIL import Image, ImageFilter

from draws import Fixed
from vit_jax import config
from vit_jax.config import catalog
from vit_jax.data import randaugment
from vit_jax.data import transforms as tf
from vit_jax.data.source import DataError

RAMP = np.arange(4 * 6, dtype=np.uint8).reshape(4, 6, 1)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def photo(height: int, width: int, channels: int = 3) -> np.ndarray:
    return rng(1).integers(0, 256, (height, width, channels), np.uint8)


@pytest.mark.parametrize(
    ("shape", "expected"), [((20, 10), (16, 8)), ((3, 5), (8, 13)), ((1, 10**6), (8, 256))]
)
def test_resize_short_side(shape, expected):
    assert tf.ResizeShortSide(8)(photo(*shape), rng()).shape == (*expected, 3)


def test_antialiased_short_side_rounds_the_long_one_down():
    """As timm does: 93.9 pixels become 93."""
    for resampling, longer in (("bilinear", 94), ("antialiased_bicubic", 93)):
        resize = tf.ResizeShortSide(73, resampling)
        assert resize(photo(90, 70), rng()).shape == (longer, 73, 3)
        assert resize(photo(70, 90), rng()).shape == (73, longer, 3)


def test_resize_short_side_keeps_the_middle_of_a_strip():
    strip = np.arange(40, dtype=np.uint8).reshape(1, 40, 1)
    result = tf.ResizeShortSide(1)(strip, rng())
    np.testing.assert_array_equal(result[0, :, 0], np.arange(4, 36))


def test_keeping_the_ratio_within_a_box_or_over_it():
    """The sides of timm's ResizeKeepRatio; none vanishes, and strips to be covered are cut."""
    for inside, shape, expected in (
        (True, (30, 20), (8, 5)),
        (False, (30, 20), (12, 8)),
        (True, (1, 100), (1, 8)),
        (False, (1, 10**4), (8, 256)),
    ):
        resize = tf.ResizeKeepRatio(8, 8, inside=inside)
        assert resize(photo(*shape), rng()).shape == (*expected, 3)


@pytest.mark.parametrize(("rounding", "top", "left"), [("down", 2, 1), ("even", 1, 0)])
def test_the_larger_half_of_a_border(rounding, top, left):
    """Before the image as in transformers, or behind it as in torchvision."""
    found = tf.CentralCrop(7, 7, rounding, (99,))(RAMP, rng())
    expected = np.full((7, 7, 1), 99, np.uint8)
    expected[top : top + 4, left : left + 6] = RAMP
    np.testing.assert_array_equal(found, expected)


def test_central_crop():
    np.testing.assert_array_equal(
        tf.CentralCrop(2, 3)(RAMP, rng())[:, :, 0], [[7, 8, 9], [13, 14, 15]]
    )
    np.testing.assert_array_equal(tf.CentralCrop(4, 6)(RAMP, rng()), RAMP)


def test_random_crop_by_hand():
    crop = tf.RandomCrop(2, 3)
    np.testing.assert_array_equal(crop(RAMP, Fixed(2, 3))[:, :, 0], [[15, 16, 17], [21, 22, 23]])
    np.testing.assert_array_equal(crop(RAMP, Fixed(0, 1))[:, :, 0], [[1, 2, 3], [7, 8, 9]])


def test_random_crop_is_uniform_over_all_places():
    crop, source = tf.RandomCrop(2, 3), rng()
    corners = [int(crop(RAMP, source)[0, 0, 0]) for _ in range(6000)]
    places, counts = np.unique(corners, return_counts=True)
    assert places.tolist() == [0, 1, 2, 3, 6, 7, 8, 9, 12, 13, 14, 15]
    assert np.abs(counts - 500).max() < 5 * math.sqrt(500)


def test_inception_crop_by_hand():
    # Aspect 2, area 0.05 to 1 of 10 x 20: heights round(sqrt(5)) = 2 to round(sqrt(100)) = 10.
    crop = tf.InceptionCrop(3, 6, (0.05, 1.0), (1.0, 3.0))
    image = np.arange(200, dtype=np.uint8).reshape(10, 20, 1)

    def numbers(h: int, top: int, left: int) -> Fixed:
        """Draws the middle of the aspect ratios, a height of 2 to 10, and where that begins."""
        kept = max(h, 3)
        places = (top + 0.5) / (11 - kept), (left + 0.5) / (21 - 2 * kept)
        return Fixed(0.5, (h - 1.5) / 9, *places)

    assert crop.rectangle(10, 20, numbers(2, 0, 0)) == (0, 0, 3, 6)  # 2 x 4 < 10 pixels: + 1 row
    assert crop.rectangle(10, 20, numbers(3, 7, 14)) == (7, 14, 3, 6)
    assert crop.rectangle(10, 20, numbers(10, 0, 0)) == (0, 0, 10, 20)
    np.testing.assert_array_equal(crop(image, numbers(3, 2, 9)), image[2:5, 9:15])


def test_a_rectangle_beyond_the_greatest_area_loses_a_row():
    # Aspect 1.75 and half of 10 x 20: heights up to round(7.6), but 8 x 14 are more than 100.
    crop = tf.InceptionCrop(3, 6, (0.05, 0.5), (1.5, 2.0))
    assert crop.rectangle(10, 20, Fixed(0.5, 0.99, 0, 0)) == (0, 0, 7, 12)


def test_inception_crop_takes_the_whole_image_if_nothing_fits():
    crop = tf.InceptionCrop(8, 8, (0.5, 1.0), (0.75, 4 / 3))
    assert crop.rectangle(10, 1000, rng()) == (0, 0, 10, 1000)
    assert crop.rectangle(1, 1, rng()) == (0, 0, 1, 1)


def test_flip():
    flip = tf.FlipLeftRight(0.25)
    np.testing.assert_array_equal(flip(RAMP, Fixed(0.24)), RAMP[:, ::-1])
    assert flip(RAMP, Fixed(0.25)) is RAMP
    source = rng()
    flipped = sum(int(flip(RAMP, source)[0, 0, 0]) == 5 for _ in range(4000))
    assert abs(flipped - 1000) < 5 * math.sqrt(750)


@pytest.mark.parametrize("channels", [1, 3])
def test_affine_is_the_inverse_map_in_float64(channels):
    image = scipy.ndimage.gaussian_filter(photo(40, 30, channels).astype(float), (3, 3, 0))
    image = (3 * (image - image.mean()) + 128).clip(0, 255).astype(np.uint8)
    # What is drawn of [0, 1) means -1 to 1: a turn, a zoom, and moves down and to the right.
    draws = np.array([0.1, -0.4, 0.2, 0.3]) / 2 + 0.5
    result = tf.RandomAffine(rotation=180, scale=0.5, shift=0.5)(image, Fixed(*draws))
    assert result.shape == image.shape
    angle, factor, move = math.radians(18), 0.8, (0.2 * 0.5 * 40, 0.3 * 0.5 * 30)
    # Back from (row, column) of the result: undo the move, the turn and the zoom.
    back = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
    back /= factor
    center = np.array([19.5, 14.5])
    offset = center - back @ (center + move)
    for channel in range(channels):
        exact = scipy.ndimage.affine_transform(
            image[:, :, channel].astype(float), back, offset, order=1, mode="grid-constant"
        )
        assert np.abs(result[:, :, channel] - exact).max() < 0.51


def views(**options):
    data = config.Data(**options)
    return tf.train_transforms(data), tf.eval_transforms(data)


def test_views_that_configs_describe():
    data, flip = config.Data(), tf.FlipLeftRight(0.5)
    inception = tf.InceptionCrop(224, 224, data.crop_area, data.crop_aspect)
    assert views(image_size=(224, 224)) == ((inception, flip), (tf.Resize(224, 224),))
    random = {"train_crop": "random", "eval_crop": "central", "flip": False}
    assert views(image_size=(224, 224), **random) == (
        (tf.Resize(256, 256), tf.RandomCrop(224, 224)),
        (tf.ResizeShortSide(256), tf.CentralCrop(224, 224)),
    )
    assert views(image_size=(384, 384), resize_to=448, **random) == (
        (tf.Resize(448, 448), tf.RandomCrop(384, 384)),
        (tf.ResizeShortSide(448), tf.CentralCrop(384, 384)),
    )
    small = {"image_size": (8, 8), "flip": False}
    assert views(**small, crop_area=(0.2, 0.9), crop_aspect=(0.5, 2.0))[0] == (
        tf.InceptionCrop(8, 8, (0.2, 0.9), (0.5, 2.0)),
    )
    small["train_crop"] = "resize"
    assert views(**small, shift=0.1)[0] == (tf.Resize(8, 8), tf.RandomAffine(0, 0, 0.1))
    assert views(**small | {"flip": True}, rotation=15, randaugment=(2, 15)) == (
        (tf.Resize(8, 8), flip, tf.RandomAffine(15, 0, 0), randaugment.RandAugment(2, 15)),
        (tf.Resize(8, 8),),
    )
    oblong = {"image_size": (21, 14), "eval_crop": "central"}
    assert views(**oblong)[1] == (tf.ResizeShortSide(24), tf.CentralCrop(21, 14))
    assert views(**oblong, resize_to=28)[1] == (tf.ResizeShortSide(28), tf.CentralCrop(21, 14))
    oblong |= {"eval_crop": "border", "resize_to": 28, "depth": 16, "fill": (0.1,)}
    assert views(**oblong)[1][1].fill == (6554,)
    for crop in ("inception", "random", "resize"):
        options = {"train_crop": crop, "eval_crop": "central", "resampling": "antialiased_bicubic"}
        for steps in views(image_size=(8, 8), **options):
            assert steps[0].resampling == "antialiased_bicubic"


def test_a_rectangle_by_hand():
    image = np.full((20, 40, 3), 200, np.uint8)
    # Half of 2 to 33 % of 800 pixels is 140; height / width 1.8: 15.87 and 8.82 pixels.
    erase = tf.RandomErasing(0.5)
    result = erase(image, Fixed(0.49, 0.5, 0.5, 0.9, 0.1, 0.5, 0.5, 0.2, 0.75))
    expected = image.copy()
    expected[4:20, 30:39] = 7  # of the first attempt row 18 was too low
    np.testing.assert_array_equal(result, expected)
    assert (image == 200).all()
    assert erase(image, Fixed(0.5)) is image


def test_noise_has_every_value():
    image = np.zeros((128, 128, 1), np.uint8)
    result = tf.RandomErasing(1.0, area=(0.25, 0.25))(image, np.random.default_rng(0))
    assert len(np.unique(result)) == 256


def test_an_image_where_nothing_fits_stays():
    image = np.zeros((1, 1000, 3), np.uint8)
    assert tf.RandomErasing(1.0)(image, np.random.default_rng(0)) is image


def test_a_view_erases_last_and_only_if_asked():
    data = config.Data(image_size=(8, 8), train_crop="resize", randaugment=(2, 15), erase=0.25)
    assert tf.train_transforms(data)[-1] == tf.RandomErasing(0.25)
    assert tf.RandomErasing not in map(type, tf.train_transforms(config.Data()))
    assert tf.RandomErasing not in map(type, tf.eval_transforms(data))


SEEDS = range(300)


def changed(image, seed, jitter):
    return tf.ThreeAugment(jitter)(image, np.random.default_rng(seed))


@pytest.mark.parametrize("channels", [1, 3])
def test_one_of_three_changes(channels):
    image = np.random.default_rng(0).integers(0, 256, (12, 9, channels), np.uint8)
    solarized = np.where(image < 128, image, 255 - image)
    weights = np.array([19595, 38470, 7471])  # of ITU-R 601, in 1 / 65536
    gray = image if channels == 1 else (image @ weights + 2**15 >> 16)[..., None]
    gray = np.broadcast_to(gray, image.shape)
    found = {"gray": 0, "solarized": 0, "blurred": 0}
    for seed in SEEDS:
        result = changed(image, seed, 0.0)
        assert (result.shape, result.dtype) == (image.shape, np.uint8)
        if np.array_equal(result, solarized):
            found["solarized"] += 1
        elif np.array_equal(result, gray):  # of one channel, also a blur of next to nothing
            found["gray"] += 1
        else:
            found["blurred"] += 1
            assert result.std() <= image.std()
            assert abs(result.mean() - image.mean()) < 3
    assert 70 < found["solarized"] < 130
    if channels == 3:
        assert 70 < found["gray"] < 130


def test_the_blur_has_the_deviation_that_is_drawn():
    """Between 0.1 and 2, as in the authors' code; against Pillow's at that deviation."""
    image = np.random.default_rng(0).integers(0, 256, (24, 24, 3), np.uint8)
    drawn = []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        if rng.integers(3) < 2:
            continue
        drawn.append(rng.uniform(0.1, 2.0))
        blurred = Image.fromarray(image).filter(ImageFilter.GaussianBlur(drawn[-1]))
        np.testing.assert_array_equal(changed(image, seed, 0.0), np.asarray(blurred))
    assert min(drawn) < 0.6
    assert max(drawn) > 1.5


def test_jitter_multiplies_what_it_is_called():
    image = np.full((4, 4, 3), 60, np.uint8)
    with mock.patch.object(tf, "ENHANCED", tf.ENHANCED[:1]):
        means = np.array([changed(image, seed, 0.3).mean() for seed in SEEDS])
    assert 0.69 * 60 - 1 < means.min() < 0.75 * 60
    assert 1.25 * 60 < means.max() < 1.31 * 60 + 1
    np.testing.assert_array_equal(changed(image, 5, 0.3), changed(image, 5, 0.3))


def test_each_part_of_the_jitter_has_a_factor_of_its_own():
    found = []

    class Recorded:
        def __init__(self, image):
            self.image = image

        def enhance(self, factor):
            found.append(factor)
            return self.image

    with mock.patch.object(tf, "ENHANCED", (Recorded,) * 3):
        changed(photo(4, 4), 0, 0.3)
    assert len(set(found)) == 3
    assert all(0.7 < factor < 1.3 for factor in found)


def test_a_transform_of_a_plugin_keeps_shape_and_type():
    for change in (lambda image: image[1:], lambda image: image.astype(np.float32)):
        made = tf.PluggedIn("mine", lambda image, rng, change=change: change(image))
        with pytest.raises(DataError, match=r"^data\.transforms=mine: returned .* must return"):
            made(RAMP, rng())


def test_three_augment_is_an_option():
    built = config.build({"data": {"transforms": [{"name": "three_augment", "jitter": 0.1}]}})
    data = dataclasses.replace(config.Data(image_size=(6, 5)), transforms=built.data.transforms)
    last = tf.train_transforms(data)[-1]
    image = np.random.default_rng(1).integers(0, 256, (6, 5, 3), np.uint8)
    ours = last(image, np.random.default_rng(4))
    np.testing.assert_array_equal(ours, changed(image, 4, 0.1))


FOLDERS = ["image_folder", "image_folder-naflex", "image_csv", "tfds"]
SHADES = (40, 200)  # of stripes one pixel wide; their mean is 120


def data_of(name, **changes):
    cfg = config.build(catalog.load_values(name))
    return config.build({"data": config.to_dict(cfg)["data"] | changes}).data


def stripes(height, width):
    image = np.full((height, width, 3), SHADES[0], np.uint8)
    image[:, 1::2] = SHADES[1]
    return image


def seen(steps, image):
    random = np.random.default_rng(0)
    for step in steps:
        image = step(image, random)
    return image


@pytest.mark.parametrize("name", FOLDERS)
def test_fine_stripes_become_their_mean(name):
    data = data_of(name, flip=False, crop_area=(0.9, 1.0))
    height, width = data.image_size
    photo = stripes(7 * height, 7 * width)
    for steps in (tf.eval_transforms(data), tf.train_transforms(data)):
        view = seen(steps, photo).astype(int)
        assert view.shape == (height, width, 3)
        inside = view[:, 2:-2]  # the borders see fewer stripes
        assert np.abs(inside - 120).max() <= 8
    plain = data_of(name, resampling="bilinear")
    assert seen(tf.eval_transforms(plain), photo).astype(int).std() > 40  # aliased


@pytest.mark.parametrize("channels", [1, 3])
def test_changes_of_color_happen_as_often_as_they_are_asked_for(channels):
    image = np.random.default_rng(0).integers(0, 256, (12, 9, channels), np.uint8)
    solarized = np.where(image < 128, image, 255 - image)
    for made in (tf.Solarize(0.3), tf.Gray(0.3), tf.Blur(0.3), tf.ColorJitter(0.3)):
        results = [made(image, np.random.default_rng(seed)) for seed in SEEDS]
        assert {(one.shape, one.dtype) for one in results} == {(image.shape, image.dtype)}
        changed = [one for one in results if not np.array_equal(one, image)]
        if channels == 3 or not isinstance(made, tf.Gray):
            assert 0.2 < len(changed) / len(SEEDS) < 0.4
        if isinstance(made, tf.Solarize):
            np.testing.assert_array_equal(changed[0], solarized)
        if isinstance(made, tf.Gray) and channels == 3:
            assert (changed[0] == changed[0][..., :1]).all()


def test_color_jitter_turns_the_hue():
    image = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
    made = tf.ColorJitter(1.0, brightness=0, contrast=0, saturation=0, hue=0.5)
    for seed in range(4):
        rng = np.random.default_rng(seed)
        rng.random(), rng.permutation(4), rng.uniform(np.ones(3), np.ones(3))
        turn = rng.uniform(-0.5, 0.5)
        found = made(image, np.random.default_rng(seed)).astype(int)
        for pixel, other in zip(image.reshape(-1, 3) / 255, found.reshape(-1, 3), strict=True):
            hue, saturation, value = colorsys.rgb_to_hsv(*pixel)
            expected = colorsys.hsv_to_rgb((hue + turn) % 1, saturation, value)
            # Pillow holds hue and saturation in 8 bits; the turn is rounded to as many.
            np.testing.assert_allclose(other / 255, expected, atol=0.08)
