"""Transforms of one image: frozen dataclasses, called with the image and an explicit generator.

Every transform takes and returns uint8 or uint16 `H W C` and draws from the generator what its
docstring says, in that order; so a view is a pure function of the image and the generator's state.
"""

import dataclasses
import math
from collections.abc import Callable

import cv2
import numpy as np
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from vit_jax import config
from vit_jax.config import components
from vit_jax.data import randaugment
from vit_jax.data.source import DataError

PILLOW = {
    "antialiased_bilinear": Image.Resampling.BILINEAR,
    "antialiased_bicubic": Image.Resampling.BICUBIC,
    "nearest": Image.Resampling.NEAREST,
    "box": Image.Resampling.BOX,
    "hamming": Image.Resampling.HAMMING,
    "lanczos": Image.Resampling.LANCZOS,
}

SIGMAS = (0.1, 2.0)  # deviations of Gaussian blurs, least and largest
# In torchvision's order, in which their factors are drawn.
ENHANCED = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)

Transform = Callable[[np.ndarray, np.random.Generator], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Resize:
    """Stretches to `height x width`: bilinear, half-pixel centers, no antialiasing.

    The same as `tf.image.resize(method="bilinear")`, except that weights are fixed-point and the
    result is rounded: less than 0.8 gray levels from the real-valued one. `area` is its other
    method, rounded down as big_vision does. The other `resampling`s are Pillow's, which antialiases
    (all but nearest): of 16 bits in float32, rounded once.
    """

    height: int
    width: int
    resampling: str = "bilinear"

    def __call__(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """The resized image."""
        return resize(image, self.height, self.width, self.resampling)


@dataclasses.dataclass(frozen=True)
class ResizeShortSide:
    """Resizes, as `Resize`, to a shorter side of `size`; the longer one is rounded.

    With Pillow's resampling it is rounded down, as in torchvision, timm and transformers.

    Of an image more than 32 times as long as wide only the middle is kept, 32 times as long:
    resized whole, a strip of 1 x 10^6 pixels would take gigabytes.
    """

    size: int
    resampling: str = "bilinear"

    LONGEST = 32

    def __call__(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """The resized image."""
        image = without_ends(image)
        height, width = image.shape[:2]
        rounded = math.floor if self.resampling in PILLOW else round
        rows, columns = (rounded(self.size * side / min(height, width)) for side in (height, width))
        return resize(image, rows, columns, self.resampling)


@dataclasses.dataclass(frozen=True)
class ResizeKeepRatio:
    """Resizes to the largest size `inside` a box, or else the smallest that covers it; as timm's.

    A side of less than half a pixel becomes one pixel. Strips are cut as in `ResizeShortSide`.
    """

    height: int
    width: int
    inside: bool
    resampling: str = "bilinear"

    def __call__(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """The resized image."""
        if not self.inside:
            image = without_ends(image)
        sides = image.shape[:2]
        ratios = sides[0] / self.height, sides[1] / self.width
        ratio = max(ratios) if self.inside else min(ratios)
        rows, columns = (max(1, round(side / ratio)) for side in sides)
        return resize(image, rows, columns, self.resampling)


@dataclasses.dataclass(frozen=True)
class CentralCrop:
    """Cuts out the middle `height x width`.

    Of an odd margin the half above or on the left is rounded `down`, or half to `even`. A smaller
    image gets a border of `fill`, pixel values for each channel; None: it must not be smaller. The
    larger half of an odd border lies above or on the left as in transformers, whose rounding is
    `down`, else below or on the right as in torchvision.
    """

    height: int
    width: int
    rounding: str = "down"
    fill: tuple[int, ...] | None = None

    def __call__(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """A view of the middle of the image, or a new one with a border."""
        missing = [max(0, self.height - image.shape[0]), max(0, self.width - image.shape[1])]
        if any(missing):
            assert self.fill is not None
            bordered = np.empty([n + m for n, m in zip(image.shape, (*missing, 0), strict=True)],
                                image.dtype)  # fmt: skip
            bordered[:] = self.fill
            top, left = (-(-m // 2) if self.rounding == "down" else m // 2 for m in missing)
            bordered[top : top + image.shape[0], left : left + image.shape[1]] = image
            image = bordered
        return _central(image, self.height, self.width, self.rounding)


@dataclasses.dataclass(frozen=True)
class RandomCrop:
    """Cuts out `height x width` at a uniform place; draws the top row, then the left column.

    The image must not be smaller than that: resize it before.
    """

    height: int
    width: int

    def __call__(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """A view of a part of the image."""
        top = rng.integers(image.shape[0] - self.height + 1)
        left = rng.integers(image.shape[1] - self.width + 1)
        return image[top : top + self.height, left : left + self.width]


@dataclasses.dataclass(frozen=True)
class InceptionCrop:
    """Cuts out a random rectangle and stretches it, as `Resize`, to `height x width`.

    The distribution is that of TensorFlow's `sample_distorted_bounding_box` without boxes. An
    attempt draws the aspect ratio (width / height) uniformly from `aspect`; then the height,
    uniformly from the whole numbers of pixels between those whose rectangles cover the least and
    the greatest share of the image in `area`, or still fit it (so the square root of the area is
    about uniform, not the area); then the top row and the left column, uniformly (TensorFlow leaves
    out the last). A rectangle that rounding puts outside `area` is made one row higher or lower; if
    that does not help, the attempt is repeated. After 100 attempts it is the whole image.
    """

    height: int
    width: int
    area: tuple[float, float] = (0.05, 1.0)
    aspect: tuple[float, float] = (0.75, 4 / 3)
    resampling: str = "bilinear"

    ATTEMPTS = 100  # TensorFlow's default of max_attempts

    def __call__(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """The stretched rectangle."""
        top, left, height, width = self.rectangle(image.shape[0], image.shape[1], rng)
        return self.stretch(image[top : top + height, left : left + width])

    def stretch(self, part: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Resizes the crop to the output size, into `out` if given."""
        return resize(part, self.height, self.width, self.resampling, out)

    def rectangle(
        self, height: int, width: int, rng: np.random.Generator
    ) -> tuple[int, int, int, int]:
        """The `(top, left, height, width)` drawn for an image of `height x width`."""
        least, greatest = (share * height * width for share in self.area)
        narrowest, widest = self.aspect
        for _ in range(self.ATTEMPTS):
            # Four numbers in one call: it is made between images, when caches are cold.
            shape, tall, down, right = rng.random(4).tolist()
            aspect = narrowest + (widest - narrowest) * shape
            # A rectangle of width W + 1/2 or less has a rounded width that fits.
            highest = min(round(math.sqrt(greatest / aspect)), height, int((width + 0.5) / aspect))
            lowest = min(round(math.sqrt(least / aspect)), highest)
            h = lowest + int(tall * (highest + 1 - lowest))
            if h * round(h * aspect) < least:
                h += 1
            elif h * round(h * aspect) > greatest:
                h -= 1
            w = round(h * aspect)
            # Rounding one side may leave the range of areas, or the image.
            if 0 < h <= height and 0 < w <= width and least <= h * w <= greatest:
                return int(down * (height - h + 1)), int(right * (width - w + 1)), h, w
        return 0, 0, height, width


@dataclasses.dataclass(frozen=True)
class FlipLeftRight:
    """Mirrors left and right with `probability`; draws one number."""

    probability: float = 0.5

    def __call__(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """The image or a mirrored view of it."""
        return image[:, ::-1] if rng.random() < self.probability else image


@dataclasses.dataclass(frozen=True)
class RandomAffine:
    """Turns, zooms and shifts about the image's center, bilinearly; what comes in is black (0).

    Draws four numbers, uniform in [-1, 1): times `rotation`, degrees counter-clockwise; times
    `scale`, the zoom minus 1; times `shift`, the move down in heights, and to the right in widths.
    """

    rotation: float
    scale: float
    shift: float

    def __call__(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """The warped image, of the same shape."""
        turn, zoom, down, right = (2 * rng.random(4) - 1).tolist()
        height, width, channels = image.shape
        angle, factor = math.radians(turn * self.rotation), 1 + zoom * self.scale
        cos, sin = math.cos(angle) / factor, math.sin(angle) / factor
        y, x = (height - 1) / 2, (width - 1) / 2
        to_y, to_x = y + down * self.shift * height, x + right * self.shift * width
        # Maps a pixel (column, row) of the result to its place in the image; rows point down.
        matrix = np.array(
            ((cos, -sin, x - cos * to_x + sin * to_y), (sin, cos, y - sin * to_x - cos * to_y))
        )
        # Of other numbers of channels OpenCV rounds places to 1/32 pixel.
        planes = [image] if channels in (1, 3, 4) else np.split(image, channels, axis=2)
        warped = [
            cv2.warpAffine(
                plane,
                matrix,
                (width, height),
                flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
                borderMode=cv2.BORDER_CONSTANT,
                borderValue=0,
            )
            for plane in planes
        ]
        whole = warped[0] if len(warped) == 1 else np.stack(warped, axis=2)
        return whole.reshape(height, width, channels)


@dataclasses.dataclass(frozen=True)
class RandomErasing:
    """Fills a random rectangle with noise, with `probability` (Zhong et al. 2020, algorithm 1).

    Draws one number for the decision; then, until the rectangle lies in the image, its fraction of
    the area, its aspect ratio, its top row and its left column, all uniform; then the pixels. After
    100 attempts the image stays unchanged.
    """

    probability: float
    area: tuple[float, float] = (0.02, 0.33)
    aspect: tuple[float, float] = (0.3, 3.3)

    ATTEMPTS = 100  # the paper's loop has no end; in strips, hardly any rectangle fits

    def __call__(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """The image, or a copy with a part erased."""
        if rng.random() >= self.probability:
            return image
        rows, columns, channels = image.shape
        (least, most), (flattest, tallest) = self.area, self.aspect
        for _ in range(self.ATTEMPTS):
            share, aspect, down, right = rng.random(4).tolist()
            size = (least + (most - least) * share) * rows * columns
            aspect = flattest + (tallest - flattest) * aspect
            height, width = round(math.sqrt(size * aspect)), round(math.sqrt(size / aspect))
            top, left = int(rows * down), int(columns * right)
            if top + height <= rows and left + width <= columns:
                # The image may be an array of the source itself.
                image = image.copy()
                most = np.iinfo(image.dtype).max
                shape = (height, width, channels)
                noise = rng.integers(0, most, shape, image.dtype, endpoint=True)
                image[top : top + height, left : left + width] = noise
                return image
        return image


@components.register("transform", "three_augment")
@dataclasses.dataclass(frozen=True)
class ThreeAugment:
    """3-Augment (Touvron et al. 2022, DeiT III): one of three simple changes, then color jitter.

    As in the authors' code: gray, solarized from 128 on, or a Gaussian blur of deviation 0.1 to 2,
    each with probability 1/3; then brightness, contrast and saturation in a random order, each by
    a factor of 0.7 to 1.3, as in torchvision.

    Draws which of the three, the deviation of the blur, the order of the jitter as a permutation,
    and its three factors.
    """

    jitter: float = 0.3

    def __call__(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """The changed image, of the same shape."""
        changed = _pillow(image)
        # Drawn whether it is used or not, so the jitter's numbers do not depend on the choice.
        which, sigma = rng.integers(3), rng.uniform(*SIGMAS)
        if which == 0:
            changed = ImageOps.grayscale(changed).convert(changed.mode)
        elif which == 1:
            changed = ImageOps.solarize(changed, 128)
        else:
            changed = changed.filter(ImageFilter.GaussianBlur(sigma))
        order = rng.permutation(len(ENHANCED))
        factors = rng.uniform(max(0.0, 1 - self.jitter), 1 + self.jitter, len(ENHANCED))
        for index in order.tolist():
            changed = ENHANCED[index](changed).enhance(float(factors[index]))
        return np.asarray(changed).reshape(image.shape)


@dataclasses.dataclass(frozen=True)
class Sometimes:
    """A change of color, applied with a probability; draws one number, then what the change needs.

    Images are gray or RGB of 8 bits.
    """

    probability: float = 1.0

    def __call__(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """The image, or a changed one of the same shape."""
        if rng.random() >= self.probability:
            return image
        return np.asarray(self._change(_pillow(image), rng)).reshape(image.shape)

    def _change(self, image: Image.Image, rng: np.random.Generator) -> Image.Image:
        raise NotImplementedError


@components.register("transform", "gray")
class Gray(Sometimes):
    """The same gray in all channels."""

    def _change(self, image: Image.Image, rng: np.random.Generator) -> Image.Image:
        return ImageOps.grayscale(image).convert(image.mode)


@components.register("transform", "blur")
class Blur(Sometimes):
    """A Gaussian blur of deviation 0.1 to 2, as in DINO's code; draws the deviation."""

    def _change(self, image: Image.Image, rng: np.random.Generator) -> Image.Image:
        return image.filter(ImageFilter.GaussianBlur(rng.uniform(*SIGMAS)))


@components.register("transform", "solarize")
class Solarize(Sometimes):
    """Inverts pixels from 128 on."""

    def _change(self, image: Image.Image, rng: np.random.Generator) -> Image.Image:
        return ImageOps.solarize(image, 128)


@components.register("transform", "color_jitter")
@dataclasses.dataclass(frozen=True)
class ColorJitter(Sometimes):
    """Brightness, contrast, saturation and hue in a random order, as torchvision's on Pillow.

    Draws the order as a permutation, then the three factors and the turn of the hue. Of a gray
    image, brightness and contrast alone change.
    """

    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.2
    hue: float = 0.1

    def _change(self, image: Image.Image, rng: np.random.Generator) -> Image.Image:
        order = rng.permutation(4)
        spans = np.array((self.brightness, self.contrast, self.saturation))
        factors = rng.uniform(np.maximum(0, 1 - spans), 1 + spans)
        turn = rng.uniform(-self.hue, self.hue)
        for index in order.tolist():
            if index < len(ENHANCED):
                image = ENHANCED[index](image).enhance(float(factors[index]))
            elif image.mode == "RGB":
                image = _turned(image, turn)
        return image


def _turned(image: Image.Image, turn: float) -> Image.Image:
    """An image of another hue: a share of the color circle further, in steps of 1/255."""
    hue, saturation, value = image.convert("HSV").split()
    # As torchvision casts it to uint8: truncated, and wrapped around.
    shifted = np.asarray(hue) + np.uint8(math.trunc(255 * turn) % 256)
    return Image.merge("HSV", (Image.fromarray(shifted), saturation, value)).convert("RGB")


@dataclasses.dataclass(frozen=True)
class PluggedIn:
    """A transform of a plug-in, which may return anything."""

    text: str
    transform: Transform

    def __call__(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """The transformed image; raises DataError unless it is like the one before."""
        with components.calling("data.transforms", self.text):
            result = self.transform(image, rng)
        shape, dtype = np.shape(result), getattr(result, "dtype", type(result).__name__)
        if (shape, dtype) != (image.shape, image.dtype):
            raise DataError(
                f"data.transforms={self.text}: returned {dtype} {shape}; must return {image.dtype} "
                f"{image.shape}"
            )
        return result


def train_transforms(data: config.Data) -> tuple[Transform, ...]:
    """The training view that the options of `data` describe; it ends at `image_size`."""
    height, width = data.image_size
    # The crop first: later transforms then work on few pixels.
    if data.train_crop == "resize":
        steps: list[Transform] = [Resize(height, width, data.resampling)]
    elif data.train_crop == "random":
        steps = [Resize(*data.before_crop, data.resampling), RandomCrop(height, width)]
    else:
        steps = [InceptionCrop(height, width, data.crop_area, data.crop_aspect, data.resampling)]
    if data.flip:
        steps.append(FlipLeftRight())
    if data.rotation or data.scale or data.shift:
        steps.append(RandomAffine(data.rotation, data.scale, data.shift))
    if data.randaugment is not None:
        steps.append(randaugment.RandAugment(*data.randaugment))
    if data.erase:
        # After RandAugment, as in timm, so that nothing moves or recolors the noise.
        steps.append(RandomErasing(data.erase))
    for one in data.transforms:
        steps.append(PluggedIn(one.name, components.make(one, "data.transforms")))
    return tuple(steps)


def eval_transforms(data: config.Data) -> tuple[Transform, ...]:
    """The evaluation view that the options of `data` describe; it draws nothing."""
    height, width = data.image_size
    resampling, box = eval_resampling(data), data.before_crop
    if data.eval_crop == "resize" or (data.eval_crop == "squash" and box == data.image_size):
        return (Resize(height, width, resampling),)
    if data.eval_crop == "squash":
        first: Transform = Resize(*box, resampling)
    elif data.eval_crop == "border":
        first = ResizeKeepRatio(*box, inside=True, resampling=resampling)
    elif data.crop_pct is not None and box[0] != box[1]:
        first = ResizeKeepRatio(*box, inside=False, resampling=resampling)
    else:
        first = ResizeShortSide(max(box), resampling)
    # timm fills the border with the mean, so that it is 0 once normalized.
    fill = data.mean if data.fill is None and data.eval_crop == "border" else data.fill
    if fill is not None:
        most = np.iinfo(data.pixel_type).max
        fill = tuple(round(most * value) for value in fill)
    return first, CentralCrop(height, width, data.crop_rounding, fill)


def eval_resampling(data: config.Data) -> str:
    """The resampling of evaluation views."""
    return data.eval_resampling or data.resampling


def resize(
    image: np.ndarray, height: int, width: int, resampling: str, out: np.ndarray | None = None
) -> np.ndarray:
    """An image stretched to a size, as `Resize`: in `out`, itself, or new."""
    if image.shape[:2] == (height, width):
        return image
    if resampling == "bilinear":
        # OpenCV writes into `out` where its shape and type fit.
        resized = cv2.resize(image, (width, height), dst=out, interpolation=cv2.INTER_LINEAR)
    elif resampling == "area":
        resized = _area(image, height, width)
    else:
        kind = PILLOW[resampling]
        if image.dtype == np.uint8 and image.shape[2] in (1, 3):
            resized = _antialiased(image, height, width, kind)
        else:  # Pillow has no such images, or takes the fourth channel for opacity
            whole = image if image.dtype == np.uint8 else image.astype(np.float32)
            each = [
                _antialiased(plane, height, width, kind)
                for plane in np.split(whole, image.shape[2], 2)
            ]
            resized = np.stack(each, axis=2)
            if image.dtype != np.uint8:
                most = np.iinfo(image.dtype).max
                resized = np.rint(resized).clip(0, most).astype(image.dtype)
    return resized.reshape(height, width, image.shape[2])  # OpenCV drops the axis of one channel


def _antialiased(image: np.ndarray, height: int, width: int, kind: Image.Resampling) -> np.ndarray:
    """An image of 1 or 3 channels, of the first without that axis, as Pillow resizes it."""
    # Within rows first, as every Pillow before 13, which may begin with columns: cubic results
    # would depend on its version.
    rows = _pillow(image).resize((width, image.shape[0]), kind)
    return np.asarray(rows.resize((width, height), kind))


def _pillow(image: np.ndarray) -> Image.Image:
    """An image of 1 or 3 channels for Pillow, which knows no axis of one channel."""
    return Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else np.ascontiguousarray(image))


def _area(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """TensorFlow's area average in its order of float32 operations, rounded down by a cast."""
    rows, row_weights, tall = _areas(image.shape[0], height)
    columns, column_weights, wide = _areas(image.shape[1], width)
    within = np.zeros((image.shape[0], width, image.shape[2]), np.float32)
    for column, weight in zip(columns, column_weights, strict=True):
        within += image[:, column] * weight[:, None]
    total = np.zeros((height, width, image.shape[2]), np.float32)
    for row, weight in zip(rows, row_weights, strict=True):
        total += within[row] * weight[:, None, None]
    return (total * (np.float32(1) / (tall * wide))).astype(image.dtype)


def _areas(old: int, new: int) -> tuple[np.ndarray, np.ndarray, np.float32]:
    """Pixels of an axis and their weights in each result, both (taps, new); and the scale."""
    scale = np.float32(old) / np.float32(new)
    borders = np.arange(new + 1, dtype=np.float32) * scale
    first, last = borders[:-1], borders[1:]
    start, end = np.floor(first).astype(int), np.ceil(last).astype(int)
    places = start + np.arange((end - start).max())[:, None]
    shares = np.minimum(places + 1, last) - np.maximum(places, first)
    within = (places < first) & (places + 1 > last)
    # A result within one pixel: TensorFlow weighs it by the scale, not by `last - first`, which
    # float32 rounds otherwise.
    weights = np.where(within, scale, np.maximum(shares, 0)).astype(np.float32)
    return places.clip(0, old - 1), weights, scale


def without_ends(image: np.ndarray) -> np.ndarray:
    """The middle of an image more than `ResizeShortSide.LONGEST` times as long as wide."""
    longest = ResizeShortSide.LONGEST * min(image.shape[:2])
    return _central(image, *(min(side, longest) for side in image.shape[:2]))


def _central(image: np.ndarray, height: int, width: int, rounding: str = "down") -> np.ndarray:
    margins = image.shape[0] - height, image.shape[1] - width
    top, left = (m // 2 if rounding == "down" else round(m / 2) for m in margins)
    return image[top : top + height, left : left + width]
