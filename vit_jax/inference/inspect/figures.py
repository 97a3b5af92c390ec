"""Draws arrays as matplotlib figures, for any number of heads and layers."""

from collections.abc import Mapping, Sequence

import cv2
import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vit_jax.data import decoding
from vit_jax.inference.inspect.saliency import Curve

MAP = "viridis"  # perceptually uniform: readable with color blindness and in grayscale
SIDE = 224  # pixels of an image in a figure, at least
TILE = 24  # pixels of a map in a figure, at least
FLAT = 1e-4  # rounding error of a constant mask
PAIRS = 4  # images side by side
LINES = 24  # matches between two images
ITSELF = "0.75"  # gray of the reference patch
MASKED = (86, 180, 233)  # Okabe and Ito's sky blue, distinct from gray patches
RECONSTRUCTED = 112  # pixels of a reconstructed image, at least
ROWS = 6  # of reconstructed images, at most


def filters(components: np.ndarray, shares: np.ndarray, layer: str) -> Figure:
    """Draws filters (n, h, w, C) as images, gray where a filter is zero, 7 in a row."""
    scale = np.abs(components).max(axis=(1, 2, 3), keepdims=True)
    colors = 0.5 + components / np.maximum(2 * scale, np.finfo(np.float32).tiny)
    columns = min(7, len(colors))
    rows = -(-len(colors) // columns)
    # White cells complete the last row.
    blank = np.ones((rows * columns - len(colors), *colors.shape[1:]), np.float32)
    grid = np.concatenate([colors, blank]).reshape(rows, columns, *colors.shape[1:])
    figure, axes = _single(0.75 * columns + 0.6, 0.75 * rows + 1.0)
    _bare(axes)
    framed = np.pad(_finer(grid), [(0, 0)] * 2 + [(1, 1)] * 2 + [(0, 0)])
    sheet = _sheet(framed, fill=1.0)
    # Gray filters have one channel; imshow would color that.
    axes.imshow(np.broadcast_to(sheet, (*sheet.shape[:2], 3)), interpolation="antialiased")
    axes.set_title(f"{layer}\n(first {len(colors)} principal components)")
    axes.set_xlabel(f"together {100 * shares.sum():.0f} % of the variance")
    return figure


def posemb(similarities: np.ndarray) -> Figure:
    """Draws tiles (T, rows, columns, rows, columns) of cosines; T > 1 is one sheet per layer.

    Colors span the cosines of different patches; a patch itself, always 1, is gray.
    """
    low, high = cosine_range(similarities)
    # A cosine of 1 is above `high`, and so takes the color of `over`.
    colors = colormaps[MAP].with_extremes(over=ITSELF)
    count, (rows, columns) = len(similarities), similarities.shape[1:3]
    across = min(4, count)
    down = -(-count // across)
    side, title = 5.2 if count == 1 else 3.2, "Position embedding similarity"
    figure = _figure(across * side + 1.2, down * side * rows / columns + 0.9)
    places = figure.subplots(down, across, squeeze=False)
    for axes in places.flat[count:]:
        axes.set_axis_off()
    for index in range(count):
        axes, tiles = places.flat[index], _finer(similarities[index])
        # imshow leaves NaN blank, which makes the gaps.
        axes.imshow(_sheet(tiles, fill=np.nan), cmap=colors, vmin=low, vmax=high)
        _number(axes, tiles)
        axes.set(xlabel="Input patch column", ylabel="Input patch row")
        axes.set_title(f"Layer {index + 1}" if count > 1 else title)
    label = "Cosine similarity (gray: the patch itself, 1)"
    # All layers share one scale, so one color bar will do.
    figure.colorbar(places.flat[0].images[0], ax=places, shrink=0.8, label=label)
    if count > 1:
        figure.suptitle(title)
    return figure


def cosine_range(similarities: np.ndarray) -> tuple[float, float]:
    """The least and the greatest cosine of different patches, apart even if all are equal.

    Similarities are tiles (T, rows, columns, rows, columns).
    """
    patches = similarities.shape[1] * similarities.shape[2]
    others = similarities.reshape(-1, patches, patches)[:, ~np.eye(patches, dtype=bool)]
    if not others.size:
        return -1.0, 1.0
    low, high = float(others.min()), float(others.max())
    return (low, high) if high - low > FLAT else (low - 0.1, high + 0.1)


def attention_distance(distances: np.ndarray, uniform: float, images: int) -> Figure:
    """Plots the mean attention distance of every head, (L, H) in pixels, by layer.

    `uniform` is the distance of uniform attention.
    """
    depth, heads = distances.shape
    figure, axes = _single(max(4.8, 0.24 * depth + 2.2), 4.0)
    layers = np.arange(1, depth + 1)
    axes.axhline(uniform, color="0.5", linestyle="--", linewidth=1, label="uniform attention")
    axes.plot(layers, distances.mean(axis=1), color="0.6", linewidth=1.2, label="mean of heads")
    # A color of its own for each head, with its number in the middle of the color bar's step.
    dots = axes.scatter(
        np.repeat(layers, heads),
        distances.ravel(),
        c=np.tile(np.arange(1, heads + 1), depth),
        cmap=colormaps[MAP].resampled(heads),
        vmin=0.5,
        vmax=heads + 0.5,
        s=26,
        zorder=3,
    )
    axes.set(xlabel="Network depth (layer)", ylabel="Mean attention distance (pixels)")
    axes.set(xlim=(0.5, depth + 0.5), ylim=(0, 1.06 * max(distances.max(), uniform)))
    axes.set_xticks(_few(depth))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    figure.colorbar(dots, ax=axes, label="Head", pad=0.02, ticks=_few(heads))
    axes.set_title(f"Mean attention distance, {images:,} {'image' if images == 1 else 'images'}")
    return figure


def rollout(views: np.ndarray, masks: np.ndarray) -> Figure:
    """Draws images (B, H, W, C) uint8, each next to a copy shaded by the output's attention.

    Masks (B, rows, columns) set the brightness of the copy (ViT, figures 6 and 14).
    """
    shaded = [shade(view, mask) for view, mask in zip(views, masks, strict=True)]
    return _pairs(views, shaded, "Attention", "Attention rollout")


def features(views: np.ndarray, colors: np.ndarray, shares: np.ndarray) -> Figure:
    """Draws images (B, H, W, C) uint8, each next to the colors of its patches.

    `colors` are (B, rows, columns, 3) from 0 to 1, `shares` the shares of the variance that red,
    green and blue stand for.
    """
    tinted = []
    for view, patches in zip(views, colors, strict=True):
        height, width = _large(view).shape[:2]
        pixels = np.rint(255 * patches).astype(np.uint8)
        tinted.append(cv2.resize(pixels, (width, height), interpolation=cv2.INTER_NEAREST))
    red, green, blue = (f"{100 * share:.0f}" for share in shares)
    title = f"Principal components of patch features ({red}, {green} and {blue} % of the variance)"
    return _pairs(views, tinted, "Features", title)


def matches(views: np.ndarray, grid: tuple[int, int], pairs: np.ndarray) -> Figure:
    """Draws two images (2, H, W, C) uint8 and lines between pairs (n, 4) of their patches.

    Pairs are a row and a column in each image; LINES of them are drawn.
    """
    left, right = (_large(view) for view in views)
    height, width = left.shape[:2]
    gap = _gap(height, width)
    figure, axes = _single(9.0, 9.0 * height / (2 * width + gap) + 0.6)
    _bare(axes)
    axes.imshow(_sheet(np.stack([left, right])[None], fill=255), interpolation="antialiased")
    patch = np.array([height / grid[0], width / grid[1]])
    shown = pairs[:LINES]
    for index, pair in enumerate(shown):
        (y0, x0), (y1, x1) = (pair[:2] + 0.5) * patch, (pair[2:] + 0.5) * patch
        color = colormaps["turbo"](index / max(len(shown) - 1, 1))
        axes.plot([x0, x1 + width + gap], [y0, y1], "o-", color=color, linewidth=1, markersize=4)
    # The lines have widened the limits of the image, where y points down.
    axes.set(xlim=(-0.5, 2 * width + gap - 0.5), ylim=(height - 0.5, -0.5))
    axes.set_title(f"{len(shown)} of {len(pairs)} mutual matches between patches")
    return figure


def segments(
    views: Sequence[np.ndarray],
    truths: Sequence[np.ndarray],
    predictions: Sequence[np.ndarray],
    no_class: int,
) -> Figure:
    """Draws images (H, W, C) uint8 under their true and their predicted classes, (h, w) each.

    Pixels of `no_class` have no color.
    """
    left, right = (
        [_tinted(view, mask, no_class) for view, mask in zip(views, classes, strict=True)]
        for classes in (truths, predictions)
    )
    return _pairs(left, right, "Predicted", "Linear segmentation", first="True")


def _tinted(view: np.ndarray, classes: np.ndarray, no_class: int) -> np.ndarray:
    image = _large(view)
    height, width = image.shape[:2]
    shape = width, height
    classes = cv2.resize(classes.astype(np.uint8), shape, interpolation=cv2.INTER_NEAREST)
    # tab20 has 20 colors; further classes repeat them.
    colors = 255 * colormaps["tab20"](classes % 20)[:, :, :3]
    mixed = np.rint(0.4 * image + 0.6 * colors).astype(np.uint8)
    return np.where((classes == no_class)[:, :, None], image, mixed)


def saliency(
    views: np.ndarray, titles: Sequence[str], maps: Sequence[Mapping[str, tuple[np.ndarray, str]]]
) -> Figure:
    """Draws images (B, H, W, C) uint8, each next to its maps, which color the cells.

    Each image has a title under it, and maps (rows, columns) by name with the text under each.
    """
    names = list(maps[0])
    height, width = views.shape[1:3]
    side = 1.7
    size = (1 + len(names)) * side, len(views) * (0.94 * side * height / width + 0.26) + 0.3
    figure = _figure(*size)
    places = figure.subplots(len(views), 1 + len(names), squeeze=False)
    for axes, name in zip(places[0], ["input", *names], strict=True):
        axes.set_title(name[0].upper() + name[1:], fontsize=9)
    for row, view, title, own in zip(places, views, titles, maps, strict=True):
        heated = [(_heat(view, mask), below) for mask, below in own.values()]
        for axes, (image, below) in zip(row, [(_large(view), title), *heated], strict=True):
            _bare(axes)
            axes.imshow(image, interpolation="antialiased")
            axes.set_xlabel(below, fontsize=7)
    return figure


def _heat(view: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """An image under the colors of a map (rows, columns), from dark at 0 and below to light."""
    image = _large(view)
    height, width = image.shape[:2]
    share = np.clip(mask / max(mask.max(), np.finfo(np.float32).tiny), 0.0, 1.0)
    share = cv2.resize(share, (width, height), interpolation=cv2.INTER_NEAREST)[:, :, None]
    colors = 255 * colormaps["inferno"](share[:, :, 0])[:, :, :3]
    return np.rint(image + (0.7 - 0.3 * share) * (colors - image)).astype(np.uint8)


def curves(drawn: Mapping[str, Curve]) -> Figure:
    """Plots deletion and insertion curves by name."""
    figure = _figure(8.0, 3.6)
    panels = figure.subplots(1, 2, sharey=True)
    for panel, (axes, title) in enumerate(zip(panels, ("Deletion", "Insertion"), strict=True)):
        # Labeled in the first panel only: one legend serves both.
        for name, one in drawn.items():
            y = (one.deletion, one.insertion)[panel]
            style = {"color": "0.5", "linestyle": "--"} if name == "random order" else {}
            axes.plot(one.shares, y, label=name if panel == 0 else None, **style)
        axes.set(xlabel="Share of the image", title=title, ylim=(0, 1.02))
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.3)
    panels[0].set_ylabel("Probability of the class")
    figure.legend(loc="outside lower center", ncols=len(drawn), frameon=False, fontsize=8)
    return figure


def _pairs(
    views: Sequence[np.ndarray] | np.ndarray,
    others: Sequence[np.ndarray],
    label: str,
    title: str,
    *,
    first: str = "Input",
) -> Figure:
    """Draws images next to other versions of them (H, W, 3), PAIRS in a row."""
    pairs = [np.stack([_large(view), other]) for view, other in zip(views, others, strict=True)]
    across = min(PAIRS, len(pairs))
    down = -(-len(pairs) // across)
    blank = np.full_like(pairs[0], 255)
    cells = np.stack(pairs + [blank] * (across * down - len(pairs)))
    height, width = cells.shape[2:4]
    side = 1.25
    figure = _figure(2 * across * side + 0.4, down * side * height / width + 1.0)
    places = figure.subplots(1, across, squeeze=False)
    for column, axes in enumerate(places.flat):
        sheet = _sheet(cells[column::across], fill=255)
        ticks = [width / 2, width * 1.5 + _gap(height, width)]
        _titled(axes, sheet, ticks, [first, label])
    figure.suptitle(title)
    return figure


def attention(view: np.ndarray, maps: np.ndarray) -> Figure:
    """Draws an image (H, W, C) uint8 and its attention maps (L, H, rows, columns)."""
    depth, heads, rows, columns = maps.shape
    most = np.maximum(maps.max(axis=(2, 3), keepdims=True), np.finfo(np.float32).tiny)
    tiles = _finer((maps / most).swapaxes(0, 1))
    cell = 0.5 if depth > 6 else 0.9
    figure = _figure(2.4 + depth * cell + 1.4, max(2.6, heads * cell * rows / columns + 0.9))
    left, right = figure.subplots(1, 2, width_ratios=[2.2, depth * cell + 1.0])
    _bare(left)
    left.imshow(_large(view), interpolation="antialiased")
    left.set_title("Input")
    drawn = right.imshow(_sheet(tiles, fill=np.nan), cmap=MAP, vmin=0, vmax=1)
    _number(right, tiles)
    right.set(xlabel="Layer", ylabel="Head")
    share = "Attention, relative\nto the maximum of each map"
    figure.colorbar(drawn, ax=right, pad=0.02, ticks=[0, 0.5, 1], label=share)
    return figure


def reconstruction(found: dict[str, np.ndarray]) -> Figure:
    """Draws what `measures.predict_masked` found: images original, corrupted and predicted."""
    triples = []
    for index, masked in enumerate(found["masked"]):
        original, corrupted, predicted = (
            found[name][index] for name in ("original", "corrupted", "predicted")
        )
        # The gray of masked pixels, half of white, must not set the scale of dark 16-bit images.
        known = np.where(masked[..., None], 0, corrupted)
        # As one image, as 16 bits are scaled by the largest value.
        whole = decoding.for_display(np.concatenate([original, known, predicted]))
        parts = [np.repeat(part, 3 // part.shape[2], axis=2) for part in np.split(whole, 3)]
        parts[1][masked] = MASKED
        triples.append(np.stack([_large(part, RECONSTRUCTED) for part in parts]))
    across = -(-len(triples) // ROWS)
    down = -(-len(triples) // across)
    height, width = triples[0].shape[1:3]
    gap = width // 16
    figure = _figure(across * 3.7 + 0.1, down * 1.2 * height / width + 0.4)
    figure.set_layout_engine("constrained", wspace=0.05)
    for column, axes in enumerate(figure.subplots(1, across, squeeze=False).flat):
        sheet = np.full((down * (height + gap) - gap, 3 * (width + gap) - gap, 3), 255, np.uint8)
        for row, triple in enumerate(triples[column * down : (column + 1) * down]):
            for place, image in enumerate(triple):
                top, left = row * (height + gap), place * (width + gap)
                sheet[top : top + height, left : left + width] = image
        ticks = [width / 2 + place * (width + gap) for place in range(3)]
        _titled(axes, sheet, ticks, ["Original", "Corrupted", "Predicted"])
    return figure


def shade(view: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Shades an image (H, W, C) uint8 where a mask (rows, columns) is low; (H, W, 3) uint8.

    Follows the paper's author (google-research/vision_transformer#27): the mask is resized with
    Lanczos, blurred by a Gaussian as wide as a patch, scaled to 0 to 1, and multiplied with the
    image. A constant mask does not change the image.
    """
    image = _large(view)
    height, width = image.shape[:2]
    light = cv2.resize(mask / mask.max(), (width, height), interpolation=cv2.INTER_LANCZOS4)
    light = cv2.GaussianBlur(
        light, (0, 0), sigmaX=width / mask.shape[1], sigmaY=height / mask.shape[0]
    )
    spread = float(np.ptp(light))
    if spread < FLAT:
        return image
    return np.rint(image * ((light - light.min()) / spread)[:, :, None]).astype(np.uint8)


def _large(view: np.ndarray, least: int = SIDE) -> np.ndarray:
    """An image as (H, W, 3), whole pixels repeated to `least` on its shorter side."""
    image = decoding.for_display(view)
    height, width, channels = image.shape
    factor = max(1, -(-least // min(height, width)))
    image = np.repeat(image, 3 // channels, axis=2)
    return image if factor == 1 else image.repeat(factor, axis=0).repeat(factor, axis=1)


def _sheet(tiles: np.ndarray, *, fill: float) -> np.ndarray:
    """Tiles (R, C, h, w, ...) side by side, with gaps of `fill` between them."""
    rows, columns, height, width = tiles.shape[:4]
    gap = _gap(height, width)
    margin = [(0, 0), (0, 0), (0, gap), (0, gap)] + [(0, 0)] * (tiles.ndim - 4)
    tiles = np.pad(tiles, margin, constant_values=fill).swapaxes(1, 2)
    height, width = height + gap, width + gap
    sheet = tiles.reshape(rows * height, columns * width, *tiles.shape[4:])
    # Without the gap behind the last row and column.
    return sheet[: sheet.shape[0] - gap, : sheet.shape[1] - gap]


def _finer(tiles: np.ndarray) -> np.ndarray:
    """Tiles (R, C, h, w, ...) of at least TILE pixels, so that gaps can be thin."""
    factor = -(-TILE // min(tiles.shape[2:4]))
    return tiles.repeat(factor, axis=2).repeat(factor, axis=3)


def _gap(height: int, width: int) -> int:
    return max(1, round(min(height, width) / 12))


def _number(axes: Axes, tiles: np.ndarray) -> None:
    """Numbers the rows and columns of a sheet from 1, as many as fit."""
    gap = _gap(*tiles.shape[2:4])
    sizes = zip((axes.yaxis, axes.xaxis), tiles.shape[:2], tiles.shape[2:4], strict=True)
    for axis, count, pixels in sizes:
        # imshow puts the center of the first pixel at 0.
        places = [(i - 1) * (pixels + gap) + (pixels - 1) / 2 for i in _few(count)]
        axis.set_ticks(places, [str(i) for i in _few(count)])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _few(count: int) -> range:
    """Numbers from 1 to `count`, at most 16 of them."""
    return range(1, count + 1, -(-count // 16))


def _titled(axes: Axes, sheet: np.ndarray, centers: Sequence[float], titles: Sequence[str]) -> None:
    """Draws a sheet of images with a title above each of its columns."""
    _bare(axes)
    axes.imshow(sheet, interpolation="antialiased")
    axes.set_xticks(centers, titles)
    axes.tick_params(length=0)
    axes.xaxis.tick_top()


def _bare(axes: Axes) -> None:
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def _single(width: float, height: float) -> tuple[Figure, Axes]:
    figure = _figure(width, height)
    return figure, figure.subplots()


def _figure(width: float, height: float) -> Figure:
    return Figure(figsize=(width, height), layout="constrained")
