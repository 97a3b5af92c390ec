"""Formats numbers and configs for reports."""

import math
from collections.abc import Mapping
from typing import Any

from vit_jax import config
from vit_jax.config import catalog, components
from vit_jax.models import variants
from vit_jax.utils import intervals

INTERVAL = "95 % interval"  # column heading for the ± of measured numbers
PLUS_MINUS = "± is half the 95 % confidence interval of the mean over n seeds (Student's t)"
NOTHING = "\u2013"  # shown where there is no number
# Results by their name in the paper, and their name in an evaluation.
MEASURES = {
    "top-1": "top1",
    "top-1, 3 runs": "top1",
    "ReaL": "real/top1",
    "ReaL, 3 runs": "real/top1",
    "5-shot ImageNet": "fewshot/imagenet/5shot",
}
# Parts of the names of results that are not fractions, such as that of `loss/low`.
COUNTED = ("loss", "error", "count", "mce", "step")
NUMBERS = (*COUNTED, *config.NUMBERS, "kappa", "temperature", "log10_l2")


def percent(value: float | None) -> str:
    """A fraction as `80.56 %`."""
    return NOTHING if value is None else f"{100 * value:.2f} %"


def spread(mean: float, half: float | None) -> str:
    """Percent points as `80.56`, or `80.56 ± 0.12`.

    The ± is half a confidence interval for measured numbers and a standard deviation for the
    paper's; the caption of the table says which.
    """
    return f"{mean:.2f}" if half is None else f"{mean:.2f} ± {half:.2f}"


def half_interval(result: Mapping[str, Any]) -> float | None:
    """Half the 95 % interval of a result's mean, from the `values` that transfer.json has.

    None where there are fewer than two, or none were kept.
    """
    return intervals.half_width(result.get("values", ()))


def mean_of(result: Mapping[str, Any]) -> str:
    """The mean of a fraction as `80.56 ± 0.12 %, n = 3`, of a single run as `80.56 %`."""
    half = half_interval(result)
    if half is None:
        return percent(result["mean"])
    return f"{spread(100 * result['mean'], 100 * half)} %, n = {len(result['values'])}"


def measured(key: str, value: float) -> str:
    """The value of a result such as `real/top1` or `loss`."""
    last = key.rpartition("/")[2]
    if is_fraction(key, value):
        return percent(value)
    return f"{value:,.0f}" if last in ("count", "step") else f"{value:.4f}"


def is_fraction(key: str, value: float) -> bool:
    """Whether a result, or an end of its interval, is a share of 1, by its name.

    A value beyond 1 is none: a plug-in's, in its own units.
    """
    return not set(key.split("/")) & set(NUMBERS) and not abs(value) > 1


def title(key: str) -> str:
    """A result's name in prose: `real/top1` becomes `real top-1`."""
    return key.replace("top1", "top-1").replace("top5", "top-5").replace("/", " ")


def first_upper(text: str) -> str:
    """Capitalizes the first letter alone: `testA` becomes `TestA`."""
    return text[:1].upper() + text[1:]


def model(cfg: config.Config) -> str:
    """The network's name, or its sizes."""
    one = cfg.model
    name = one.architecture or "vit"
    if name not in components.built_in("model"):
        return f"a {one.architecture}"
    if one.variant is not None:
        sizes = ((key, getattr(one, key), size) for key, size in _implied(cfg).items())
        other = [f"{key}={config.show(set_)}" for key, set_, size in sizes if set_ != size]
        return one.variant + (f" with {', '.join(other)}" if other else "")
    if one.patch_size is None:
        return f"a {(one.architecture or 'network').replace('_', ' ')}"
    patch = " \u00d7 ".join(map(str, one.patch_size))
    layers = f"{one.depth} layers" if one.depth != 1 else "1 layer"
    return f"a Vision Transformer of {layers}, width {one.width}, patches of {patch}"


def differences(cfg: config.Config) -> list[tuple[str, str, str, str]]:
    """(option, value, default, meaning) of options that differ from the schema's defaults.

    Sizes implied by the variant are left out.
    """
    implied = {f"model.{key}": size for key, size in _implied(cfg).items()}
    rows = []
    for key, field, _ in config.fields(cfg):
        value, usual = config.get(cfg, key), field.default
        if key != "name" and value not in (usual, implied.get(key, usual)):
            rows.append((key, config.show(value), config.show(usual), field.metadata["doc"]))
    return rows


def _implied(cfg: config.Config) -> dict[str, Any]:
    """The options of the model that its variant sets; none without a variant that is known."""
    try:
        return variants.parse_variant(cfg.model.variant) if cfg.model.variant else {}
    except config.ConfigError:
        return {}


def printed(name: str, data: Mapping[str, Any]) -> list[tuple[catalog.Result, str]]:
    """The paper's results for a config, each with the name of the same result here.

    None for a run on other `data` (options, nested by name) than those of the config.
    """
    if name not in catalog.names() or data.get("source") in (*config.FILES, "synthetic"):
        return []
    about, own = catalog.about(name), catalog.load_values(name).get("data", {})
    names = {str(one.get("name") or "").partition(":")[0] for one in (own, data)} - {""}
    # Of a row without public data, those of the user stand for the paper's.
    if len(names) > 1 and not about.needs:
        return []
    return [(one, MEASURES[one.what]) for one in about.results if one.what in MEASURES]


def place(table: str) -> str:
    """The place in the paper: `2` becomes `Table 2`, `section 4.6` stays."""
    return f"Table {table}" if table[0].isdigit() else table


def in_percent(value: float) -> float:
    """A printed score in %: Table 8 prints shares."""
    return 100 * value if value <= 1 else value


def machine(record: Mapping[str, Any]) -> str:
    """Devices and host of a run or transfer: `8 x TPU v3, host`; unknown parts are left out."""
    device = record.get("device")
    device = f"{devices(record)} \u00d7 {device}" if device else ""
    return ", ".join(str(part) for part in (device, record.get("host")) if part)


def devices(record: Mapping[str, Any]) -> int:
    """The number of devices, from a transfer's record or from the mesh in a run's."""
    # The axes of the mesh are over all devices.
    return record.get("devices") or math.prod(record.get("mesh", {}).values())


def machine_rows(record: Mapping[str, Any], date: str) -> list[tuple[str, str]]:
    """Rows of a table about where and when something ran."""
    versions = (record.get("versions") or {}).items()
    listed = ", ".join(f"{name} {version}" for name, version in versions)
    return [("device", machine(record)), ("versions", listed), ("date", date)]
