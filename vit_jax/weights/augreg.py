"""The index of How to train your ViT: finds the best of its 759 pre-trained models.

The file is gs://vit_models/augreg/index.csv, with one line per fine-tuning run.
"""

import csv
import math
import pathlib
from collections.abc import Iterator
from typing import NamedTuple

from vit_jax.utils import storage
from vit_jax.weights import zoo
from vit_jax.weights.readers import WeightsError

# The columns used, of 21.
COLUMNS = ("name", "ds", "final_val", "filename")
COLUMNS += ("adapt_ds", "adapt_final_val", "adapt_filename", "adapt_resolution")


class Upstream(NamedTuple):
    """A pre-trained model of How to train your ViT, and its best fine-tuning on ImageNet."""

    model: str
    data: str
    val: float  # best upstream validation accuracy, at the end
    file: str  # a name for `zoo.find`
    tuned_file: str = ""
    tuned_val: float | None = None
    resolution: str = ""


def every(index: pathlib.Path, data: str = "i21k") -> dict[str, Upstream]:
    """Returns the model of every variant with the best upstream validation accuracy at its end.

    Args:
      index: a copy of augreg/index.csv, whose column `final_val` decides.
      data: what the models are pre-trained on, as the index says: i21k, i1k.

    Raises WeightsError.
    """
    found: dict[str, Upstream] = {}
    for one in _upstreams(index):
        if one.data == data and (one.model not in found or _merit(one) > _merit(found[one.model])):
            found[one.model] = one
    return found


def _merit(one: Upstream) -> tuple[float, float]:
    return one.val, -1.0 if one.tuned_val is None else one.tuned_val


def _upstreams(index: pathlib.Path) -> Iterator[Upstream]:
    """Yields every row: a pre-trained model and one of its fine-tuning runs."""
    line = 1
    try:
        with (
            storage.errors_as(WeightsError, f"{index}: cannot be read"),
            index.open(encoding="utf-8", newline="") as file,
        ):
            reader = csv.DictReader(file)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise WeightsError(f"{index}: has no column {missing[0]}")
            for row in reader:
                line = reader.line_num
                if None in row.values():
                    raise ValueError("too few columns")
                val, tuned = (float(row[f"{k}final_val"] or "nan") for k in ("", "adapt_"))
                imagenet = row["adapt_ds"] == "imagenet2012" and not math.isnan(tuned)
                if math.isnan(val):
                    continue
                yield Upstream(
                    model=zoo.variant(row["name"]),
                    data=row["ds"],
                    val=val,
                    file=f"augreg/{row['filename']}",
                    tuned_file=f"augreg/{row['adapt_filename']}" if imagenet else "",
                    tuned_val=tuned if imagenet else None,
                    resolution=row["adapt_resolution"] if imagenet else "",
                )
    except (ValueError, csv.Error) as error:
        raise WeightsError(f"{index}: line {line}: {error}") from error
