"""The catalog as tables: the configs, their compute and the published results."""

import dataclasses
import fnmatch
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from vit_jax import config, models
from vit_jax.config import catalog, components, table_names


@dataclasses.dataclass(frozen=True)
class ConfigEntry:
    """A catalog entry: its file, its config with the model sizes filled in, and its provenance."""

    name: str
    file: pathlib.Path
    cfg: config.Config
    about: catalog.About

    @property
    def model(self) -> str:
        """The variant, or the sizes of an unnamed model."""
        model = self.cfg.model
        if model.variant is not None:
            return model.variant
        if model.depth is None:
            units = "-".join(map(str, model.resnet_units or ()))
            return f"{model.architecture} {units} x {model.resnet_width or 1:g}"
        sizes = (model.depth, model.width, model.mlp_dim, (model.patch_size or "?")[0])
        return "{} x {}, MLP {}, /{}".format(*sizes)

    @property
    def dataset(self) -> str:
        """The common name of the dataset, else the name that its source uses."""
        data = self.cfg.data
        return self.about.dataset or data.name or data.source

    @property
    def steps(self) -> int | None:
        """The training steps; None if they depend on the user's data."""
        train = self.cfg.train
        if train.duration.unit == "epochs" and self.about.images is None:
            return None
        # Steps and examples do not depend on the number of images.
        return train.duration.steps(train.batch_size, self.about.images or 1)

    @property
    def epochs(self) -> float | None:
        """The training epochs; None if they depend on the user's data."""
        train = self.cfg.train
        if train.duration.unit == "epochs":
            return train.duration.amount
        if self.steps is None or self.about.images is None:
            return None
        return self.steps * train.batch_size / self.about.images

    @property
    def exaflops(self) -> float | None:
        """The compute of the run, in 1e18; None unless it is three forward passes per image."""
        cfg = self.cfg
        known = cfg.model.num_classes is not None or not cfg.needs_labels
        if self.steps is None or not known or cfg.dino is not None:  # views of several sizes
            return None
        # Smaller views, a teacher's pass, or frozen parameters.
        if cfg.data.phases or cfg.distillation or cfg.optimizer.only:
            return None
        masked = cfg.masked or cfg.mae
        forward = models.flops(cfg.model, cfg.data.image_size, cfg.data.channels, masked)
        if forward is None:
            return None
        return 3 * forward * self.steps * cfg.train.batch_size / 1e18


def entries(*, table: str | None = None, model: str | None = None) -> list[ConfigEntry]:
    """The catalog entries, in order.

    Args:
      table: restricts entries to this table or figure, such as `table3` or `figure8`; see
        `table_names.find_table`.
      model: restricts entries to variants that match this pattern, such as `ViT-L*`.

    Raises ConfigError if no entry matches.
    """
    everything = [_entry(name, file) for name, file in catalog.names().items()]
    selected = everything
    if table is not None:
        exhibit = table_names.find_table(table, "--table=")
        selected = [
            e for e in selected if exhibit in table_names.containing(e.about.tables, e.name)
        ]
    if model is not None:
        selected = [
            e
            for e in selected
            if fnmatch.fnmatchcase(e.model.lower(), model.replace("_", "/").lower())
        ]
        if not selected:
            listed = ", ".join(sorted({e.cfg.model.variant or "" for e in everything} - {""}))
            within = "" if table is None else f" in table {table}"
            raise config.ConfigError(
                f"--model={model}: no name{within} has such a model; known: {listed}"
            )
    return selected


def entry(name: str) -> ConfigEntry:
    """One catalog entry."""
    return _entry(name, catalog.names()[name])


def _entry(name: str, file: pathlib.Path) -> ConfigEntry:
    cfg = config.build(catalog.load_values(name))
    cfg = dataclasses.replace(cfg, model=models.complete(cfg.model))
    return ConfigEntry(name, file, cfg, catalog.about(name))


def to_dict(entry: ConfigEntry) -> dict[str, object]:
    """JSON-compatible values: the columns of the table and every option."""
    cfg, about = entry.cfg, entry.about
    return {
        "file": entry.file.name,
        "tables": list(about.tables),
        "row": about.row,
        "model": entry.model,
        "dataset": entry.dataset,
        "epochs": entry.epochs,
        "steps": entry.steps,
        "batch_size": cfg.train.batch_size,
        "lr": cfg.optimizer.lr,
        "decay": cfg.schedule.name,
        "weight_decay": cfg.optimizer.weight_decay,
        "dropout": cfg.model.dropout,
        "randaugment": cfg.data.randaugment,
        "mixup": cfg.train.mixup,
        "exaflops": entry.exaflops,
        "printed_exaflops": about.exaflops,
        "printed_core_days": about.core_days,
        "results": [result._asdict() for result in about.results],
        "config": config.to_dict(cfg),
    }


def about_dict(about: catalog.About) -> dict[str, Any]:
    """The provenance as JSON-compatible values."""
    return dataclasses.asdict(about) | {
        "results": [result._asdict() for result in about.results],
        "choices": [choice._asdict() for choice in about.choices],
    }


SHORT = {"ImageNet": "IN", "CIFAR-10": "C10", "CIFAR-100": "C100", "Average": "avg"}


class TitledTable(NamedTuple):
    """The entries of one config file as a table; `shared` holds the values common to all."""

    title: str
    shared: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]


def groups(entries: Sequence[ConfigEntry]) -> Iterator[TitledTable]:
    """Yields a table per config file; a constant column moves to `shared`.

    The model column is dropped if the names contain it.
    """
    for file in dict.fromkeys(entry.file for entry in entries):
        members = [entry for entry in entries if entry.file == file]
        cells = [_cells(entry) for entry in members]
        # Rows differ in their columns of results.
        header = list(dict.fromkeys(column for row in cells for column in row))
        if all(entry.model.replace("/", "_") in entry.name for entry in members):
            header.remove("model")
        shared = []
        for column in header[1:]:
            values = {row.get(column, "") for row in cells}
            # In a table of one row every column is constant, so only empty ones go.
            if len(values) == 1 and (len(cells) > 1 or values == {""}):
                header.remove(column)
                shared += [f"{column} {value}" for value in values if value]
        rows = [tuple(row.get(column, "") for column in header) for row in cells]
        title = f"{file.name}: {catalog.summary(file)}"
        yield TitledTable(title, ", ".join(shared), tuple(header), rows)


def options(cfg: config.Config, *, every: bool = False) -> list[tuple[str, str, str]]:
    """Key, value and meaning of the options that differ from the defaults, or of `every` one.

    With `every`, a star follows the keys that differ.
    """
    rows, changed = [], config.changed(cfg)
    for key, field, _ in config.fields(cfg):
        kind = field.metadata["kind"]
        choices = components.built_in(kind) if kind else field.metadata["choices"]
        meaning = field.metadata["doc"] + (f" [{' | '.join(map(str, choices))}]" if choices else "")
        if every or key in changed:
            star = " *" * (every and key in changed)
            rows.append((f"{key}{star}", config.show(config.get(cfg, key)), meaning))
    return rows


def notes(about: catalog.About) -> Iterator[str]:
    """Yields lines on a config's provenance, published results and limitations."""
    if about.origin:
        yield f"pre-training: {about.origin}"
    if about.tables:
        tables = (f"table {t}" if t[0].isdigit() else t for t in sorted(about.tables, key=_order))
        yield f"source: {about.row}; {', '.join(tables)}"
    if about.measure:
        yield f"measure: {about.measure}"
    if about.results:
        results = [f"{r.what} {r.value:g}{_spread(r)} [{r.table}]" for r in about.results]
        deviation = " (± is a standard deviation)" if any("±" in one for one in results) else ""
        yield f"printed: {', '.join(results)}{deviation}"
    yield from (f"note: {line}" for line in (about.warning, about.needs) if line)


def _cells(entry: ConfigEntry) -> dict[str, str]:
    cfg, about = entry.cfg, entry.about
    tables = (re.sub("^figure ", "fig", table) for table in sorted(about.tables, key=_order))
    return {
        "name": entry.name,
        "table": ",".join(tables),
        "model": entry.model,
        "data": entry.dataset,
        "pixels": "x".join(map(str, dict.fromkeys(cfg.data.image_size))),
        "epochs": _number(entry.epochs),
        "steps": "" if entry.steps is None else str(entry.steps),
        "batch": str(cfg.train.batch_size),
        "lr": f"{cfg.optimizer.lr:g}",
        "decay": cfg.schedule.name,
        "wd": f"{cfg.optimizer.weight_decay:g}",
        "dropout": f"{cfg.model.dropout:g}",
        "randaugment": config.show(cfg.data.randaugment) if cfg.data.randaugment else "",
        "mixup": f"{cfg.train.mixup:g}" if cfg.train.mixup else "",
        "exaFLOPs": _number(entry.exaflops),
        "paper": _number(about.exaflops),
        "core-days": _number(about.core_days),
    } | {
        SHORT.get(result.what, result.what): f"{result.value:g}{_spread(result)}"
        for result in about.results
    }


def _spread(result: catalog.Result) -> str:
    return "" if result.std is None else f"±{result.std:g}"


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _order(table: str) -> tuple[bool, str, int, str]:
    """Sorts 2, 10, D.2, figure 3, figure 10."""
    words, number = re.sub(r"\d+$", "", table), re.search(r"\d+$", table)
    return bool(words), words.lower(), int(number[0]) if number else 0, table
