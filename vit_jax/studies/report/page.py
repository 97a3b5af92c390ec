"""A report on one run or transfer, or a comparison of several, as HTML and Markdown."""

import collections
import contextlib
import dataclasses
import logging
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType

from vit_jax import config
from vit_jax.pages import html
from vit_jax.pages.charts import Chart, Series
from vit_jax.pages.document import (
    Block,
    Charts,
    Confusion,
    Document,
    PageSection,
    Picture,
    Sample,
    Table,
)
from vit_jax.runtime import logs
from vit_jax.studies.report import formatting, run_data, run_section, transfer_section
from vit_jax.studies.report.run_data import StoredRun, StoredTransfer
from vit_jax.utils import storage
from vit_jax.utils.messages import rounded

SHOWN, MISTAKES = 24, 12  # images in the report
SIDE = 160  # pixels of a picture in the report, at most


def write_report(
    directories: Sequence[pathlib.Path], output: pathlib.Path | None, *, images: int, seed: int = 0
) -> tuple[pathlib.Path, pathlib.Path]:
    """Writes report.html and report.md; returns their paths.

    Args:
      directories: run and transfer directories.
      output: one of the two files, or a folder for both; None: the first of the directories.
      images: the most evaluation images to classify with each model; 0 loads no model and needs
        no jax.
      seed: seed that draws these images.

    Raises ConfigError for directories that hold nothing, or an output that cannot be written.
    """
    items = [run_data.read_directory(directory) for directory in directories]
    page = _path(directories[0] if output is None else output)
    predictions = {}
    if images:
        for index, item in enumerate(items):
            predictions[index] = _predictions(item, images, seed)
    words = page.with_suffix(".md")
    with storage.writing("--output", page):
        html.write_page(document(items, predictions, page.parent), page, words)
    return page, words


def _path(output: pathlib.Path) -> pathlib.Path:
    if output.suffix.lower() == ".md":
        return output.with_suffix(".html")
    return output if output.suffix.lower() in (".html", ".htm") else output / "report.html"


def document(
    items: Sequence[StoredRun | StoredTransfer],
    predictions: Mapping[int, run_section.Predictions],
    folder: pathlib.Path | None = None,
) -> Document:
    """The report.

    Predictions are by position in `items`, missing where no model was loaded. Pictures are linked
    from `folder`, where its files will be; None: the run directory.
    """

    def sections_of(index: int, level: int) -> Iterator[PageSection]:
        item = items[index]
        for one in _sections_module(item).sections(item, predictions.get(index), level=level):
            yield one if folder is None else _linked(one, item.directory, folder)

    if len(items) == 1:
        (item,) = items
        return Document(
            title=item.name,
            lead=_sections_module(item).lead(item),
            sections=list(sections_of(0, level=2)),
        )
    labels = _labels(items)
    sections = list(_comparison(items, labels))
    for index, label in enumerate(labels):
        sections.append(PageSection(title=label, blocks=[]))
        sections += sections_of(index, level=3)
    return Document(
        title=f"{len(items)} runs side by side", lead=", ".join(labels) + ".", sections=sections
    )


def _linked(section: PageSection, directory: pathlib.Path, folder: pathlib.Path) -> PageSection:
    """A section of a run whose pictures are named from `folder`, where the report is."""

    def linked(block: Block) -> Block:
        match block:
            case Charts(picture=str(file)):
                return dataclasses.replace(block, picture=place(file))
            case Picture(path=file):
                return dataclasses.replace(block, path=place(file))
        return block

    def place(file: str) -> str:
        # Relative, so that a page can be moved together with its runs.
        return os.path.relpath((directory / file).resolve(), folder.resolve())

    return dataclasses.replace(section, blocks=[linked(block) for block in section.blocks])


def _sections_module(item: StoredRun | StoredTransfer) -> ModuleType:
    """The module with `lead` and `sections` for a run or a transfer."""
    return run_section if isinstance(item, StoredRun) else transfer_section


def _labels(items: Sequence[StoredRun | StoredTransfer]) -> list[str]:
    """A unique label for each: its config's name, or its directory where two share a name."""
    names = [item.name for item in items]
    return [
        name if names.count(name) == 1 else str(item.directory)
        for name, item in zip(names, items, strict=True)
    ]


def _comparison(
    items: Sequence[StoredRun | StoredTransfer], labels: Sequence[str]
) -> Iterator[PageSection]:
    measured = {key for item in items if isinstance(item, StoredRun) for key in item.results}
    # Runs on numbers have no top-1; where both kinds are compared, that stays.
    measure = "mae" if "mae" in measured and "top1" not in measured else "top1"
    rows = [_row(label, item, measure) for label, item in zip(labels, items, strict=True)]
    header = ("run", "model", "parameters", "steps", "split", formatting.title(measure), "loss",
              "images/s", "time")  # fmt: skip
    several = any(isinstance(item, StoredTransfer) for item in items)
    caption = f"Of transfers: {formatting.PLUS_MINUS}." if several else ""
    yield PageSection(title="Results", blocks=[Table(header=header, rows=rows, caption=caption)])
    runs = [(i, labels[i], item) for i, item in enumerate(items) if isinstance(item, StoredRun)]
    if len(runs) > 1:
        yield PageSection(title="Curves", blocks=[Charts(charts=list(_charts(runs, measure)))])
        rows = list(_differing([(label, run) for _, label, run in runs]))
        if rows:
            table = Table(header=("option", *(label for _, label, _ in runs)), rows=rows)
            yield PageSection(title="Where they differ", blocks=[table])


def _row(label: str, item: StoredRun | StoredTransfer, measure: str) -> tuple[str, ...]:
    if isinstance(item, StoredTransfer):
        ours = item.results.get(item.measure)
        score = formatting.NOTHING
        if ours:
            score = formatting.mean_of(ours)
        final = item.cells("final")
        split = (final[0].get("split") or {}).get("name", "") if final else ""
        return label, "transfer", "", "", split, score, "", "", ""
    score, loss = item.results.get(measure), item.results.get("loss")
    speed = run_section.speed(item)
    return (
        label,
        "" if item.cfg is None else formatting.model(item.cfg),
        "" if item.parameters is None else f"{item.parameters:,}",
        "" if item.origin else f"{item.step:,}",
        item.reported.name if item.results else "",
        formatting.NOTHING if score is None else formatting.measured(measure, score),
        formatting.NOTHING if loss is None else f"{loss:.4f}",
        formatting.NOTHING if speed is None else rounded(speed),
        formatting.NOTHING if item.seconds is None else logs.duration(item.seconds),
    )


def _charts(runs: Sequence[tuple[int, str, StoredRun]], measure: str) -> Iterator[Chart]:
    def series(key: str) -> list[Series]:
        # A run has the color of its place among all items, in every chart.
        return [Series(name=label, points=run.points(key), color=i) for i, label, run in runs]

    splits = {run.evaluated.name for _, _, run in runs}
    # Splits of different names share a chart, but then each series says its own.
    same = len(splits) == 1

    def evaluated(key: str) -> list[Series]:
        return [
            Series(
                name=label if same else f"{label}, {run.evaluated.name}",
                points=run.points(f"{run.evaluated.name}/{key}"),
                color=i,
                marks=True,
            )
            for i, label, run in runs
        ]

    split = formatting.first_upper(next(iter(splits))) if same else "Evaluation"
    what, percent = ("accuracy", True) if measure == "top1" else ("mean absolute error", False)
    yield Chart(title=f"{split} {what}", series=evaluated(measure), percent=percent)
    yield Chart(title=f"{split} loss", series=evaluated("loss"), log_y=True)
    yield Chart(title="Training loss", series=series("train/loss"), log_y=True)
    yield Chart(title="Learning rate", series=series("train/lr"), zero=True)
    yield Chart(title="Images per second", series=series("speed/images_per_second"), zero=True)


def _differing(runs: Sequence[tuple[str, StoredRun]]) -> Iterator[tuple[str, ...]]:
    configs = [run.cfg for _, run in runs]
    # In the order of the schema, with the arguments of every run's components.
    keys = dict.fromkeys(key for cfg in configs if cfg for key, _, _ in config.fields(cfg))
    for key in keys:
        values = ["?" if cfg is None else config.show(config.get(cfg, key)) for cfg in configs]
        # The columns are called by their names already.
        if len(set(values)) > 1 and key != "name":
            yield key, *values


def _predictions(
    item: StoredRun | StoredTransfer, images: int, seed: int
) -> run_section.Predictions:
    directory = item.directory
    if isinstance(item, StoredTransfer):
        done = [cell for cell in item.cells("final") if cell.get("state") == "done"]
        if not done:
            return run_section.Predictions(problem="no final run is finished.")
        # Any final run will do, as they differ by their seeds alone.
        directory = directory / str(done[0]["directory"])
    if not (directory / "checkpoints").is_dir():
        return run_section.Predictions(problem="no checkpoint has been saved yet.")
    # Here, as a report without predictions needs no jax.
    from vit_jax.inference import loading

    try:
        loading.require_images(directory, {})
        return predict_some(directory, images, seed)
    except config.UserError as error:
        return run_section.Predictions(problem=str(error))


def predict_some(directory: pathlib.Path, images: int, seed: int = 0) -> run_section.Predictions:
    """Classifies images, drawn from the evaluation split by seed, with a run's reported checkpoint.

    Raises UserError.
    """
    import numpy as np

    from vit_jax.data import decoding as pictures
    from vit_jax.data import sampling, sources, split_roles
    from vit_jax.data.source import label_names, label_text
    from vit_jax.inference import loaded_model, loading

    with _quietly():
        predictor = loading.load(directory)
    cfg, data = predictor.config, predictor.config.data
    if data.targets:
        raise config.ConfigError(
            "it predicts numbers, whose errors are above; `vit_jax predict --examples=20` and "
            "`vit_jax evaluate --output=FOLDER` list those of images."
        )
    head = predictor.classes if cfg.needs_labels else None
    source = sources.open_source(data, data.eval_split, labels=cfg.needs_labels, head=head)
    names = predictor.names if cfg.needs_labels else source.classes
    drawn = sampling.draw_indices(len(source), images, seed)
    truths: dict[str, Sequence[str]] = {}  # of an image by its index

    def examples() -> Iterator[tuple[str, bytes | np.ndarray, str]]:
        for index in drawn:
            record, key = source[index], str(index)
            truths[key] = label_names(record.label, names)
            yield key, record.image, label_text(record.label, names)

    found = list(predictor.classify(examples(), 3))
    # An image that cannot be read has no prediction.
    seen = [one for one in found if one.truth is not None and one.top]
    if not seen and (errors := [one.error for one in found if one.error]):
        raise config.ConfigError(errors[0])

    def sample(one: loaded_model.Prediction) -> Sample:
        # Read again: few images are shown, and all of those classified would take memory.
        png = pictures.thumbnail(source[int(one.image)].image, SIDE, data)
        name, truth = source.name(int(one.image)), one.truth or ""
        return Sample(name=name, png=png, truth=truth, top=one.top, right=right(one))

    def right(one: loaded_model.Prediction) -> bool:
        return one.top[0][0] in truths[one.image]

    labeled = [p for p in seen if truths[p.image]]  # as top-1 counts images of several classes
    wrong = sorted((p for p in labeled if not right(p)), key=lambda p: -p.top[0][1])
    counts = collections.Counter((p.truth or "", p.top[0][0]) for p in seen)
    single = not data.multilabel
    return run_section.Predictions(
        split=split_roles.evaluation(data).name,
        selection=predictor.selection,
        seen=len(seen),
        total=len(source),
        seed=seed,
        samples=[sample(p) for p in seen[:SHOWN]],
        mistakes=[sample(p) for p in wrong[:MISTAKES]],
        wrong=len(wrong),
        unlabeled=len(seen) - len(labeled),
        confusion=Confusion(classes=names, counts=counts) if single else None,
    )


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Silences the log while a checkpoint is opened."""
    level = logs.log.level
    logs.log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logs.log.setLevel(level)
