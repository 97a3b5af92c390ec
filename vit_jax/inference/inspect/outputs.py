"""`vit_jax inspect`: writes figures of a model and the numbers behind them to a folder."""

import csv
import dataclasses
import functools
import io
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from vit_jax import config
from vit_jax.config import checks
from vit_jax.inference import loaded_model, loading, prediction
from vit_jax.inference.inspect import figure_index as index
from vit_jax.inference.inspect import figures, inputs, measures, saliency
from vit_jax.inference.inspect.measures import CannotAnswer
from vit_jax.models import variants
from vit_jax.runtime import logs
from vit_jax.utils import storage

DPI = 150
DRAWN = 64  # images in figures at most; their numbers are of all
# Default number of images.
COUNTS = {"attention-distance": 128, "rollout": 32, "attention": 4, "reconstruct": 18,
          "features": 16, "matches": 2, "saliency": 4}  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """Figures and their numbers.

    Attributes:
      figures: figures with captions, by file name without suffix.
      arrays: the numbers behind them.
      table: the numbers as rows with a header, if there are few.
    """

    figures: Mapping[str, tuple[Figure, str]]
    arrays: Mapping[str, Any]
    table: Sequence[Sequence[object]] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Subject:
    """A model and its input images; expensive results are computed once, on demand."""

    opened: loaded_model.LoadedModel
    given: inputs.Pictures | None
    has_split: bool  # whether the config names images
    counts: Mapping[str, int]  # images for each kind of figure that needs some
    seed: int  # seed that draws images of the split
    label: str | int | None = None  # the class to explain; None: the top prediction
    steps: int = saliency.STEPS  # of integrated gradients

    @functools.cached_property
    def pictures(self) -> inputs.Pictures:
        """The images; raises CannotAnswer if there are none."""
        if self.given is not None:
            return self.given
        if self.has_split:
            count = max(self.counts.values())
            examples = prediction.read_examples(self.opened, count, self.seed)
            return inputs.preprocess(self.opened.config.data, examples)
        raise CannotAnswer("needs images: name files or folders")

    @functools.cached_property
    def attention(self) -> measures.AttentionStats:
        """Attention statistics of the images; raises CannotAnswer without attention."""
        measures.require_attention(self.opened)  # before images are read
        # Maps are kept for the figures of attention only: L x H of them for each image.
        maps = self.counts.get("attention", 0)
        return measures.attention_stats(self.opened, self.pictures, maps=maps)

    @property
    def reader(self) -> str:
        """The token that the output reads, in words."""
        model = self.opened.config.model
        if variants.reads_one_token(model):
            return "the class token" if variants.has_class_token(model) else "the first token"
        if variants.prefix_tokens(model):
            return "the mean of all patches"
        return "the mean of all tokens (there is no class token)"

    def under_patches(self, shown: inputs.Pictures) -> np.ndarray:
        """The photos to draw (B, H, W, C), without the pixels that fill no whole patch."""
        size = self.opened.config.data.image_size
        height, width = variants.covered(self.opened.config.model, size)
        factor = shown.photos.shape[1] // size[0]
        return shown.photos[:DRAWN, : factor * height, : factor * width]


def inspect(
    what: str,
    checkpoint: str,
    overrides: Mapping[str, str],
    *,
    step: int | str | None = None,
    images: Sequence[str | os.PathLike[str]] = (),
    count: int | None = None,
    seed: int = 0,
    output: pathlib.Path | None = None,
    formats: Sequence[str] = ("png",),
    label: str | int | None = None,
    steps: int = saliency.STEPS,
) -> Iterator[pathlib.Path]:
    """Yields the files of a kind of figure as they are written, or of `all` that can be drawn.

    Args:
      what: one of KINDS, or `all`, which logs the kinds it skips.
      checkpoint: a checkpoint, as in `loading.load`.
      overrides: options by dotted name.
      step: which checkpoint of a run, as in `loading.load`.
      images: files and folders, also in a bucket; empty: the evaluation split of a run.
      count: largest number of images; None: COUNTS.
      seed: seed that selects among more images.
      output: the folder; None: `inspect` in the run directory, or inspect/NAME here.
      formats: `png`, `svg`.
      label: name or index of the class whose `saliency` is drawn; None: the top prediction.
      steps: of integrated gradients, at least 1.

    Raises CannotAnswer if the model does not support the figure; UserError for other mistakes.
    """
    if output is not None and output.suffix.lower() in (".png", ".svg", ".html"):
        raise config.ConfigError(
            f"--output={output}: is a folder, for several files; leave {output.suffix} out"
        )
    if steps < 1:
        raise config.ConfigError(f"--steps={steps}: must be at least 1")
    folder = output or _folder(checkpoint)
    storage.check_folder(folder)
    asked = list(KINDS) if what == "all" else [what]
    counts = {kind: count or COUNTS[kind] for kind in asked if kind in COUNTS}
    if not counts and (images or count or seed):
        given = str(images[0]) if images else f"--count={count}" if count else f"--seed={seed}"
        raise config.ConfigError(f"{given}: `inspect {what}` shows no images; leave it out")
    if any(number > DRAWN for kind, number in counts.items() if kind != "attention-distance"):
        logs.log.info("figures show at most %d images; the numbers are of all", DRAWN)
    # Before the checkpoint, which takes longest to load: a wrong path shows at once.
    files = prediction.list_files(images, max(counts.values(), default=0), seed)
    if files:
        loading.check_given(overrides)
    opened = loading.load(checkpoint, overrides, step=step)
    checks.check_fixed(opened.config, "inspect")
    given = None
    if files and counts:  # fail before drawing anything
        given = inputs.preprocess(opened.config.data, prediction.read_files(files))
    subject = Subject(
        opened=opened,
        given=given,
        has_split=loading.has_images(checkpoint, overrides),
        counts=counts,
        seed=seed,
        label=label,
        steps=steps,
    )
    skipped = []
    for kind in asked:
        try:
            answer = KINDS[kind](subject)
        except (CannotAnswer, loaded_model.NotFinite) as error:
            if what != "all":
                raise CannotAnswer(f"inspect {kind}: {error}") from error
            logs.log.info("%s left out: %s", kind, error)
            skipped.append(kind)
            continue
        with storage.writing("--output", folder):
            yield from _write_figure(folder, kind, answer, formats, opened.step)
    if skipped == asked:
        raise CannotAnswer("inspect all: nothing of this model can be drawn")


def _filters(subject: Subject) -> Answer:
    kernel = measures.filter_kernel(subject.opened)
    if kernel.shape[2] not in (1, 3):
        raise CannotAnswer(f"filters of {kernel.shape[2]} channels have no colors to show")
    components, shares = measures.filter_components(kernel)
    height, width, channels, number = kernel.shape
    color = "RGB" if channels == 3 else "Gray"
    first = subject.opened.config.model.resnet_units is None
    layer = "embedding filters" if first else "filters of the first convolution"
    caption = (
        f"The first {len(components)} principal components of the {number} filters of "
        f"{height} x {width} pixels, each scaled to its largest number; gray is zero."
    )
    figure = figures.filters(components, shares, f"{color} {layer}")
    return Answer(
        figures={"filters": (figure, caption)},
        arrays={"components": components, "share_of_variance": shares},
    )


def _posemb(subject: Subject) -> Answer:
    tables = measures.position_tables(subject.opened)
    similarity = np.stack([measures.position_similarity(table) for table in tables])
    caption = (
        "Tile (r, c) shows how alike the position embedding of the patch in row r and column c is "
        "to those of the other patches; gray is the patch itself."
    )
    return Answer(
        figures={"posemb": (figures.posemb(similarity), caption)}, arrays={"similarity": similarity}
    )


def _attention_distance(subject: Subject) -> Answer:
    cfg, distances = subject.opened.config, subject.attention.distance
    mean = distances.mean(axis=0, dtype=np.float64)
    caption = (
        f"How many pixels away each head attends, on average over all patches of {len(distances)} "
        f"images of {cfg.data.image_size[0]} x {cfg.data.image_size[1]}; a dot is a head."
    )
    rows = [(la + 1, head + 1, f"{mean[la, head]:.4f}") for la, head in np.ndindex(mean.shape)]
    return Answer(
        figures={
            "attention-distance": (
                figures.attention_distance(mean, measures.uniform_distance(cfg), len(distances)),
                caption,
            )
        },
        arrays={
            "pixels": mean.astype(np.float32),
            "pixels_by_image": distances,
            "images": np.array(subject.pictures.names),
        },
        table=[("layer", "head", "pixels"), *rows],
    )


def _rollout(subject: Subject) -> Answer:
    masks = subject.attention.rollout[: subject.counts["rollout"]]
    shown = subject.pictures.first(len(masks))
    caption = f"Images, and what {subject.reader} is made of, through all layers."
    return Answer(
        figures={
            "rollout": (figures.rollout(subject.under_patches(shown), masks[:DRAWN]), caption)
        },
        arrays={"rollout": masks, "images": np.array(shown.names)},
    )


def _attention(subject: Subject) -> Answer:
    maps = subject.attention.maps
    shown = subject.pictures.first(len(maps))
    drawn = {}
    views = subject.under_patches(shown)
    for number, (name, view) in enumerate(zip(shown.names[:DRAWN], views, strict=True), start=1):
        short = pathlib.PurePath(name).name
        caption = f"What {subject.reader} attends to in {short}, by layer and head."
        drawn[f"attention-{number}"] = (figures.attention(view, maps[number - 1]), caption)
    return Answer(figures=drawn, arrays={"attention": maps, "images": np.array(shown.names)})


def _features(subject: Subject) -> Answer:
    shown = subject.pictures.first(subject.counts["features"])
    features = measures.patch_features(subject.opened, shown.views)
    palette = measures.create_palette(features)
    caption = (
        "Images, and the first three principal components of the features of their patches as "
        "red, green and blue, the same in all images."
    )
    figure = figures.features(
        subject.under_patches(shown), palette.colors(features)[:DRAWN], palette.shares
    )
    return Answer(
        figures={"features": (figure, caption)},
        arrays={
            "components": palette.components(features).astype(np.float32),
            "share_of_variance": palette.shares,
            "images": np.array(shown.names),
        },
    )


def _matches(subject: Subject) -> Answer:
    shown = subject.pictures.first(2)
    if len(shown.views) < 2:
        raise CannotAnswer("needs two images: name both")
    first, second = measures.patch_features(subject.opened, shown.views)
    pairs, cosines = measures.mutual_matches(first, second)
    names = [pathlib.PurePath(name).name for name in shown.names]
    caption = f"Patches of {names[0]} and {names[1]} that are each other's most similar."
    cfg = subject.opened.config
    grid = variants.grid(cfg.model, cfg.data.image_size)
    figure = figures.matches(subject.under_patches(shown), grid, pairs)
    rows = [(*pair, f"{cosine:.4f}") for pair, cosine in zip(pairs.tolist(), cosines, strict=True)]
    return Answer(
        figures={"matches": (figure, caption)},
        arrays={"pairs": pairs, "cosine": cosines, "images": np.array(shown.names)},
        table=[("row", "column", "other row", "other column", "cosine"), *rows],
    )


def _reconstruct(subject: Subject) -> Answer:
    measures.require_masked(subject.opened)
    shown = subject.pictures.first(subject.counts["reconstruct"])
    found = measures.predict_masked(subject.opened, shown.views)
    caption = "Images, what the model was shown of them (blue: masked), and what it predicts there."
    if (mae := subject.opened.config.mae) and mae.norm_pix:
        caption += " Each patch predicted has the mean and the deviation of the true one."
    drawn = {name: values[:DRAWN] for name, values in found.items()}
    return Answer(
        figures={"reconstruct": (figures.reconstruction(drawn), caption)},
        arrays=found | {"images": np.array(shown.names)},
    )


def _saliency(subject: Subject) -> Answer:
    opened = subject.opened
    saliency.require(opened)
    label = None if subject.label is None else saliency.find_class(opened.classes, subject.label)
    shown = subject.pictures.first(subject.counts["saliency"])
    explained = [
        saliency.explain(opened, view, label, steps=subject.steps, seed=subject.seed + number)
        for number, view in enumerate(shown.views)
    ]
    classes = [opened.names[one.label] for one in explained]
    each = list(zip(shown.names, classes, explained, strict=True))
    for name, kind, one in each:
        why = "its top prediction" if label is None else f"--class={subject.label}"
        logs.log.info("%s: %s (%.3f), %s", name, kind, one.probability, why)
    # In the limit of many steps the gradients add up to the rise; the gap says whether these do.
    worst = max(explained, key=lambda one: abs(one.gap))
    logs.log.info(
        "integrated gradients: %d steps add up to %.4g of a rise of the logit by %.4g",
        *(subject.steps, worst.rise + worst.gap, worst.rise),
    )
    drawn = explained[0].curves
    logs.log.info("%-22s %8s  %9s", "area under the curve", "deletion", "insertion")
    for name in drawn:
        mean = np.mean([one.curves[name].areas for one in explained], axis=0)
        logs.log.info("%-22s %8.3f  %9.3f", name, *mean)
    grid = figures.saliency(
        subject.under_patches(shown),
        [f"{kind[:24]} {one.probability:.2f}" for _, kind, one in each[:DRAWN]],
        [
            {name: (one.maps[name], _areas(one, name)) for name in one.maps}
            for one in explained[:DRAWN]
        ],
    )
    curves = {name: saliency.mean_curve([one.curves[name] for one in explained]) for name in drawn}
    maps = {
        name.replace(" ", "_"): np.stack([one.maps[name] for one in explained])
        for name in explained[0].maps
    }
    return Answer(
        figures={
            "saliency": (
                grid,
                "Where the model looked for the class named under each image. Under each map, the "
                "areas of its deletion curve (less is better) and insertion curve (more is "
                "better).",
            ),
            "saliency-curves": (
                figures.curves(curves),
                "Probability of the class while the cells of an image, the most salient first, "
                f"leave it or come into a blurred one. Mean of images: {len(explained)}.",
            ),
        },
        arrays=maps
        | {
            "integrated_gradients_of_pixels": np.stack([one.pixels for one in explained]),
            "classes": np.array(classes),
            "images": np.array(shown.names),
        },
        table=[
            ("image", "class", "probability", "map", "deletion", "insertion"),
            *(
                (image, kind, f"{one.probability:.6f}", name, *map("{:.6f}".format, curve.areas))
                for image, kind, one in each
                for name, curve in one.curves.items()
            ),
        ],
    )


def _areas(explained: saliency.Explanation, name: str) -> str:
    if explained.maps[name].max() <= 0:
        return "nothing supports it"
    deletion, insertion = explained.curves[name].areas
    return f"deletion {deletion:.2f}, insertion {insertion:.2f}"


KINDS: Mapping[str, Callable[[Subject], Answer]] = {
    "filters": _filters,
    "posemb": _posemb,
    "attention-distance": _attention_distance,
    "rollout": _rollout,
    "attention": _attention,
    "features": _features,
    "matches": _matches,
    "reconstruct": _reconstruct,
    "saliency": _saliency,
}


def _folder(checkpoint: str) -> pathlib.Path:
    """The output folder: in the run directory of a checkpoint, else in the current one."""
    if not loading.is_run(checkpoint):
        return pathlib.Path("inspect", pathlib.PurePath(checkpoint).stem)
    directory, _, _ = loading.find_checkpoint(checkpoint)
    return (directory.parent if directory.name == "checkpoints" else directory) / index.FOLDER


def _write_figure(
    folder: pathlib.Path, kind: str, answer: Answer, formats: Sequence[str], step: int | None
) -> Iterator[pathlib.Path]:
    folder.mkdir(parents=True, exist_ok=True)
    listed = []
    for stem, (figure, caption) in answer.figures.items():
        for form in formats:
            path = folder / f"{stem}.{form}"
            storage.write_atomically(path, encode_figure(figure, form))
            yield path
            if form == "png":
                listed.append(index.Figure(what=kind, file=path.name, caption=caption, step=step))
    if listed:
        # After the pictures, so that the index names none that is missing.
        index.add_figures(folder, listed)
    numbers = io.BytesIO()
    np.savez_compressed(numbers, **answer.arrays)
    storage.write_atomically(folder / f"{kind}.npz", numbers.getvalue())
    yield folder / f"{kind}.npz"
    if answer.table:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(answer.table)
        storage.write_atomically(folder / f"{kind}.csv", text.getvalue())
        yield folder / f"{kind}.csv"


def encode_figure(figure: Figure, form: str) -> bytes:
    """A figure as a PNG or SVG file; deterministic."""
    file = io.BytesIO()
    # Otherwise matplotlib writes the date into an SVG, its version into a PNG, and random ids.
    dateless = {"Date": None} if form == "svg" else {"Software": None}
    with matplotlib.rc_context({"svg.hashsalt": "vit_jax"}):
        figure.savefig(file, format=form, dpi=DPI, bbox_inches="tight", metadata=dateless)
    return file.getvalue()
