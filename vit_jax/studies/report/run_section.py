"""One run as sections of a report."""

import dataclasses
import statistics
from collections.abc import Iterator, Sequence

from vit_jax import config
from vit_jax.data import split_roles
from vit_jax.inference.inspect import figure_index
from vit_jax.pages import charts
from vit_jax.pages.document import (
    Block,
    Charts,
    Confusion,
    Gallery,
    Numbers,
    PageSection,
    Paragraph,
    Sample,
    Table,
)
from vit_jax.runtime import goodput, logs
from vit_jax.studies.report import formatting
from vit_jax.studies.report.run_data import StoredRun
from vit_jax.utils.messages import rounded


@dataclasses.dataclass(frozen=True, kw_only=True)
class Predictions:
    """Predictions on images drawn from the evaluation split.

    Attributes:
      split: the split, by the name of its metrics.
      selection: the checkpoint that made them, and why that one.
      seen: number of images classified, drawn from the split.
      total: number of images in the split.
      seed: seed that drew them.
      samples: the first of them.
      mistakes: the most confident mistakes.
      wrong: number of mistakes among the images seen.
      unlabeled: number of images seen that have no class, so that no prediction is a mistake.
      confusion: counts over the images seen; None for images of several classes.
      problem: why there are no predictions, in one line.
    """

    split: str = "test"
    selection: str = ""
    seen: int = 0
    total: int = 0
    seed: int = 0
    samples: Sequence[Sample] = ()
    mistakes: Sequence[Sample] = ()
    wrong: int = 0
    unlabeled: int = 0
    confusion: Confusion | None = None
    problem: str = ""


def lead(run: StoredRun) -> str:
    """The model, data and length of a run as a sentence."""
    if run.cfg is None:
        return "A run without a readable config."
    train, data = run.cfg.train, run.cfg.data
    size = f" with {run.parameters:,} parameters" if run.parameters else ""
    examples = run.record.get("examples")
    images = f"{examples:,} images of " if examples else ""
    source = data.name or (data.root if data.source in config.FILES else None) or data.source
    began = f", initialized from {run.cfg.init_from}" if run.cfg.init_from else ""
    model = formatting.model(run.cfg)
    if run.origin:
        return f"{model[0].upper()}{model[1:]}{size}: weights alone, written from {run.origin}."
    return (
        f"{model[0].upper()}{model[1:]}{size}, trained for {train.duration} in batches of "
        f"{train.batch_size:,} on {images}{source}{began}."
    )


def sections(
    run: StoredRun, predictions: Predictions | None, *, level: int = 2
) -> Iterator[PageSection]:
    """Sections on a run, in the order of a report."""
    numbers = list(_headline(run))
    blocks: list[Block] = [Numbers(items=numbers)] if numbers else []
    blocks += [Paragraph(text=line, note=True) for line in _state(run)]
    yield PageSection(title="", blocks=blocks, level=level)
    tables = [table for table in (_beside(run), _further(run)) if table is not None]
    if tables:
        yield PageSection(title="Measured", blocks=tables, level=level)
    picture = "curves.png" if (run.directory / "curves.png").exists() else None
    splits = [run.evaluated.name, *([run.tested.name] if run.tested else [])]
    curves = Charts(charts=charts.run_charts(run.points, splits), picture=picture)
    if not run.origin:
        yield PageSection(title="Curves", blocks=[curves], level=level)
    if predictions is not None:
        yield PageSection(title="Predictions", blocks=list(shown(predictions)), level=level)
    pictures, problems = figure_index.read_pictures(run.directory)
    if pictures or problems:
        notes = [Paragraph(text=f"{problem}.", note=True) for problem in problems]
        yield PageSection(title="Inside the model", blocks=[*pictures, *notes], level=level)
    yield PageSection(title="What was set", blocks=list(setup(run)), level=level)
    yield PageSection(title="Where it ran", blocks=[_machine(run)], level=level)


def setup(run: StoredRun) -> Iterator[Block]:
    """The options that differ from the schema's defaults."""
    if run.cfg is None:
        yield Paragraph(text="The config cannot be read.", note=True)
        return
    rows = formatting.differences(run.cfg)
    yield Paragraph(text=f"{run.name}: the options that differ from the defaults.", note=True)
    yield Table(header=("option", "value", "default", "meaning"), rows=rows)


def speed(run: StoredRun) -> float | None:
    """The median of the measured images per second."""
    # The median: a pause, or the first steps after a resume, would pull a mean down.
    values = [value for _, value in run.points("speed/images_per_second")]
    return statistics.median(values) if values else None


def shown(predictions: Predictions) -> Iterator[Block]:
    """Blocks of predictions, or the reason for their absence."""
    if predictions.problem:
        yield Paragraph(text=f"No predictions: {predictions.problem}", note=True)
        return
    every = "All" if predictions.seen == predictions.total else f"{predictions.seen:,} of"
    confusion, unlabeled = predictions.confusion, ""
    if predictions.unlabeled:
        unlabeled = f" {predictions.unlabeled:,} without a class were not counted."
    yield Paragraph(
        text=f"{every} {predictions.total:,} {predictions.split} images were shown to the "
        f"checkpoint of {predictions.selection}. {predictions.wrong:,} of them were misclassified."
        f"{unlabeled}"
    )
    caption = f"Drawn from the {predictions.split} images by seed {predictions.seed}"
    yield Gallery(samples=predictions.samples, caption=caption)
    if predictions.mistakes:
        yield Gallery(samples=predictions.mistakes, caption="Its most confident mistakes")
    if confusion is not None:
        yield Paragraph(text="Rows are true classes, columns what they were taken for.", note=True)
        yield confusion


def _headline(run: StoredRun) -> Iterator[tuple[str, str, str]]:
    results, split = run.results, run.reported
    count = results.get("count")
    if "top1" in results:
        remark = f"of {count:,.0f} {split.name} images" if count is not None else ""
        if remark and run.cfg is not None and run.cfg.data.multilabel:
            remark += ", without those of no class"
        yield formatting.percent(results["top1"]), "Top-1 accuracy", remark
    if "top5" in results:
        yield formatting.percent(results["top5"]), "Top-5 accuracy", ""
    if "loss" in results:
        yield f"{results['loss']:.4f}", f"{formatting.first_upper(split.name)} loss", ""
    if run.origin:
        return
    steps = "" if run.steps is None else f"of {run.steps:,}"
    yield f"{run.step:,}", "Steps", steps if run.step != run.steps else "finished"
    rate = speed(run)
    if rate is not None:
        yield rounded(rate), "Images per second", "median"
    if run.seconds is not None:
        yield logs.duration(run.seconds), "Training time", "evaluation not counted"


def _state(run: StoredRun) -> Iterator[str]:
    if run.origin:
        yield "The directory of the run has its curves and results."
    elif not run.results:
        finished = run.step == run.steps
        yield "Nothing was evaluated." if finished else "Nothing has been evaluated yet."
    elif run.results_at != run.step:
        yield f"The last evaluation was at step {run.results_at:,}."
    for change in run.record.get("changes", ()):
        yield f"Resumed with a change (--accept) at {change}."
    if run.undefined:
        yield f"Not a number, so not shown: {', '.join(run.undefined)}."
    if run.cfg is not None and run.stopped_early:
        allowed = run.cfg.checkpoint.patience
        yield f"Stopped early: no better {run.metric} (checkpoint.patience={allowed})."
    yield from _measured_on(run)
    yield from (f"{problem}." for problem in run.problems)


def _measured_on(run: StoredRun) -> Iterator[str]:
    """Which split was measured, and whether it also chose the checkpoint."""
    cfg, measured, test = run.cfg, run.evaluated, run.tested
    if cfg is None or not run.results:
        return
    metric = run.metric
    if metric and test is None and metric.removeprefix(f"{measured.name}/") in run.results:
        yield f"These numbers are of step {run.reported_at:,}, the best by {metric}."
    # The name of a slice, such as `validation` for `train[90%:]`, does not say which it is.
    if measured.name != measured.split:
        yield f"Metrics called {measured.name} are of the split {measured.split}."
    # A run that was interrupted may have measured a step twice.
    times = len({line["step"] for line in run.lines if f"{measured.name}/count" in line})
    if test is not None:
        at = round(run.results.get("step", run.step))
        how = f"the best checkpoint by {metric}" if metric else "the last state"
        yield f"The test split {test.shown} was measured once, at step {at:,}, {how}."
    elif measured.role == split_roles.TEST and times > 1 and metric:
        yield f"The best checkpoint was chosen on the test split {measured.shown}, by {metric}."
    elif measured.role == split_roles.TEST and times > 1:
        yield (
            f"The test split {measured.shown} was measured {times} times while training; no "
            "checkpoint was chosen on it."
        )
    elif measured.role == split_roles.TRAIN:
        yield f"The split {measured.shown} has images that were trained on."


def _beside(run: StoredRun) -> Table | None:
    rows = []
    data = {} if run.cfg is None else vars(run.cfg.data)
    for result, measure in formatting.printed(run.name, data):
        if measure in run.results:
            ours, paper = 100 * run.results[measure], formatting.in_percent(result.value)
            rows.append(
                (result.what, formatting.spread(paper, result.std), f"{ours:.2f}",
                 f"{ours - paper:+.2f}", formatting.place(result.table))
            )  # fmt: skip
    header = ("in %", "paper", "here", "difference", "printed in")
    printed = any("±" in row[1] for row in rows)
    caption = "The paper's ± is a standard deviation over its runs." if printed else ""
    return Table(header=header, rows=rows, caption=caption) if rows else None


def _further(run: StoredRun) -> Table | None:
    known = ("top1", "top5", "loss", "count", "step")
    rows = [
        (formatting.title(key), formatting.measured(key, value))
        for key, value in run.results.items()
        if key not in known
    ]
    return Table(header=("measure", "value"), rows=rows) if rows else None


def _machine(run: StoredRun) -> Table:
    record = run.record
    waits = [value for _, value in run.points("data/wait_share")]
    mfu = run.points("speed/mfu")
    spent = goodput.read_sessions(run.directory / goodput.FILE)
    rows = [
        *formatting.machine_rows(record, run.date),
        ("waiting for data", f"{statistics.mean(waits):.1%} of the time" if waits else ""),
        ("time", goodput.describe_sessions(goodput.summarize(spent)) if spent else ""),
        ("share of peak FLOP/s", f"{mfu[-1][1]:.1%}" if mfu else ""),
        ("directory", str(run.directory)),
    ]  # fmt: skip
    return Table(header=("", ""), rows=[row for row in rows if row[1]])
