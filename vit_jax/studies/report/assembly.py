"""The report of one directory, or of several beside each other."""

from collections.abc import Iterator, Mapping, Sequence

from vit_jax import config
from vit_jax.pages.charts import Chart, Series
from vit_jax.pages.document import Charts, Document, Section, Table
from vit_jax.runtime import logs
from vit_jax.studies.report import formatting, run_section, transfer_section
from vit_jax.studies.report.run_data import Run, Transfer


def document(
    items: Sequence[Run | Transfer],
    predictions: Mapping[int, run_section.Predictions],
) -> Document:
    """Returns the report.

    Args:
      items: what was read; there is at least one.
      predictions: by position in `items`; none where no model was opened.
    """
    if len(items) == 1:
        (item,) = items
        return Document(
            title=item.name,
            lead=_lead(item),
            sections=list(_sections(item, predictions.get(0), level=2)),
        )
    labels = _labels(items)
    sections = list(_together(items, labels))
    for index, item in enumerate(items):
        sections.append(Section(title=labels[index], blocks=[]))
        sections += _sections(item, predictions.get(index), level=3)
    return Document(
        title=f"{len(items)} runs side by side",
        lead=", ".join(labels) + ".",
        sections=sections,
    )


def _lead(item: Run | Transfer) -> str:
    return run_section.lead(item) if isinstance(item, Run) else transfer_section.lead(item)


def _sections(
    item: Run | Transfer, predictions: run_section.Predictions | None, *, level: int
) -> Iterator[Section]:
    if isinstance(item, Run):
        return run_section.sections(item, predictions, level=level)
    return transfer_section.sections(item, predictions, level=level)


def _labels(items: Sequence[Run | Transfer]) -> list[str]:
    """Returns a name for each: that of its config, or where two share it, its directory."""
    names = [item.name for item in items]
    return [
        name if names.count(name) == 1 else str(item.directory)
        for name, item in zip(names, items, strict=True)
    ]


def _together(items: Sequence[Run | Transfer], labels: Sequence[str]) -> Iterator[Section]:
    rows = [_row(label, item) for label, item in zip(labels, items, strict=True)]
    header = ("run", "model", "parameters", "steps", "split", "top-1", "loss", "images/s", "time")
    several = any(isinstance(item, Transfer) for item in items)
    caption = f"Of transfers: {formatting.PLUS_MINUS}." if several else ""
    yield Section(title="Results", blocks=[Table(header=header, rows=rows, caption=caption)])
    runs = [(i, labels[i], item) for i, item in enumerate(items) if isinstance(item, Run)]
    if len(runs) > 1:
        yield Section(title="Curves", blocks=[Charts(charts=list(_charts(runs)))])
        rows = list(_differing([(label, run) for _, label, run in runs]))
        if rows:
            table = Table(header=("option", *(label for _, label, _ in runs)), rows=rows)
            yield Section(title="Where they differ", blocks=[table])


def _row(label: str, item: Run | Transfer) -> tuple[str, ...]:
    if isinstance(item, Transfer):
        ours = item.results.get(str(item.values.get("measure", "top1")))
        score = formatting.NOTHING
        if ours:
            score = formatting.mean_of(ours)
        final = item.cells("final")
        split = (final[0].get("split") or {}).get("name", "") if final else ""
        return label, "transfer", "", "", split, score, "", "", ""
    loss, speed = item.results.get("loss"), run_section.speed(item)
    return (
        label,
        "" if item.cfg is None else formatting.model(item.cfg),
        "" if item.parameters is None else f"{item.parameters:,}",
        f"{item.step:,}",
        item.reported.name if item.results else "",
        formatting.percent(item.results.get("top1")),
        formatting.NOTHING if loss is None else f"{loss:.4f}",
        formatting.NOTHING if speed is None else f"{speed:,.0f}",
        formatting.NOTHING if item.seconds is None else logs.duration(item.seconds),
    )


def _charts(runs: Sequence[tuple[int, str, Run]]) -> Iterator[Chart]:
    def series(key: str) -> list[Series]:
        return [Series(name=label, points=run.points(key), color=i) for i, label, run in runs]

    splits = {run.evaluated.name for _, _, run in runs}
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
    yield Chart(title=f"{split} accuracy", series=evaluated("top1"), percent=True)
    yield Chart(title=f"{split} loss", series=evaluated("loss"), log_y=True)
    yield Chart(title="Training loss", series=series("train/loss"), log_y=True)
    yield Chart(title="Learning rate", series=series("train/lr"), zero=True)
    yield Chart(title="Images per second", series=series("speed/images_per_second"), zero=True)


def _differing(runs: Sequence[tuple[str, Run]]) -> Iterator[tuple[str, ...]]:
    configs = [run.cfg for _, run in runs]
    for key, _, _ in config.fields():
        values = ["?" if cfg is None else config.show(config.get(cfg, key)) for cfg in configs]
        if len(set(values)) > 1 and key != "name":
            yield key, *values
