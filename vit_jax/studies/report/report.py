"""Reports of run directories as HTML and Markdown, with what their models make of images."""

import contextlib
import logging
import pathlib
from collections.abc import Iterator, Sequence

from vit_jax import config
from vit_jax.pages import html
from vit_jax.pages.document import Confusion, Sample
from vit_jax.runtime import logs
from vit_jax.studies.report import assembly, run_data, run_section
from vit_jax.utils import storage

SHOWN, MISTAKES = 24, 12  # images in the report
SIDE = 160  # pixels of a picture in the report, at most


def write(
    directories: Sequence[pathlib.Path],
    output: pathlib.Path | None,
    *,
    images: int,
    seed: int = 0,
) -> tuple[pathlib.Path, pathlib.Path]:
    """Writes report.html and report.md; returns their paths.

    Args:
      directories: run and transfer directories.
      output: the HTML file, or a folder for both; None: the first of the directories.
      images: images of the evaluation split to show to each model, at most; 0 opens none, and
        needs no jax.
      seed: what these are drawn by.

    Raises ConfigError for directories that hold nothing, or an output that cannot be written.
    """
    items = [run_data.read(directory) for directory in directories]
    page = _path(directories[0] if output is None else output)
    predictions = {}
    if images:
        for index, item in enumerate(items):
            predictions[index] = _predictions(item, images, seed)
    words = page.with_suffix(".md")
    with storage.writing("--output", page):
        html.write(assembly.document(items, predictions), page, words)
    return page, words


def _path(output: pathlib.Path) -> pathlib.Path:
    return output if output.suffix in (".html", ".htm") else output / "report.html"


def _predictions(
    item: run_data.Run | run_data.Transfer, images: int, seed: int
) -> run_section.Predictions:
    """Returns what a run's model, or a transfer's first final one, says of images."""
    directory = item.directory
    if isinstance(item, run_data.Transfer):
        done = [cell for cell in item.cells("final") if cell.get("state") == "done"]
        if not done:
            return run_section.Predictions(problem="no final run is finished.")
        directory = directory / str(done[0]["directory"])
    if not (directory / "checkpoints").is_dir():
        return run_section.Predictions(problem="no checkpoint has been saved yet.")
    try:
        return predict_some(directory, images, seed)
    except config.UserError as error:
        return run_section.Predictions(problem=str(error))


def predict_some(directory: pathlib.Path, images: int, seed: int = 0) -> run_section.Predictions:
    """Returns what the checkpoint that stands for a run says of at most so many images.

    They are drawn from the evaluation split by seed. Raises UserError.
    """
    import cv2
    import numpy as np

    from vit_jax.data import decoding as pictures
    from vit_jax.data import sampling, sources, split_roles
    from vit_jax.data.source import label_names, label_text
    from vit_jax.inference import loading

    with _quietly():
        predictor = loading.load(directory)
    cfg, data = predictor.config, predictor.config.data
    head = predictor.classes if cfg.needs_labels else None
    source = sources.open_source(data, data.eval_split, labels=cfg.needs_labels, head=head)
    drawn = sampling.draw(len(source), images, seed)
    truths: dict[str, Sequence[str]] = {}  # of an image by its index

    def examples() -> Iterator[tuple[str, bytes | np.ndarray, str]]:
        for index in drawn:
            record, key = source[index], str(index)
            truths[key] = label_names(record.label, source.classes)
            yield key, record.image, label_text(record.label, source.classes)

    seen = [one for one in predictor.classify(examples(), 3) if one.truth is not None and one.top]

    def sample(one: loading.Prediction) -> Sample:
        image = pictures.load(
            source[int(one.image)].image,
            channels=data.channels,
            max_pixels=data.max_pixels,
            depth=data.depth,
        )
        image = pictures.for_display(image)
        shrink = SIDE / max(image.shape[:2])
        if shrink < 1:
            image = cv2.resize(image, None, fx=shrink, fy=shrink, interpolation=cv2.INTER_AREA)
        image = image.reshape(*image.shape[:2], -1)[:, :, ::-1]  # OpenCV writes BGR
        png = cv2.imencode(".png", image)[1].tobytes()
        name, truth = source.name(int(one.image)), one.truth or ""
        return Sample(name=name, png=png, truth=truth, top=one.top, right=right(one))

    def right(one: loading.Prediction) -> bool:
        return one.top[0][0] in truths[one.image]

    wrong = sorted((p for p in seen if not right(p)), key=lambda p: -p.top[0][1])
    pairs = ((p.truth or "", p.top[0][0]) for p in seen)
    single = not data.multilabel
    return run_section.Predictions(
        split=split_roles.evaluation(data).name,
        chosen=predictor.chosen,
        seen=len(seen),
        of=len(source),
        seed=seed,
        samples=[sample(p) for p in seen[:SHOWN]],
        mistakes=[sample(p) for p in wrong[:MISTAKES]],
        wrong=len(wrong),
        confusion=Confusion.of(predictor.classes, pairs) if single else None,
    )


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Holds back the notes of opening a checkpoint: a report is not the place for them."""
    level = logs.log.level
    logs.log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logs.log.setLevel(level)
