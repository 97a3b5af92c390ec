"""Imports weights of other projects, recognized by their contents."""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

from vit_jax import config, models
from vit_jax.weights import finetune_init, mapping, open_clip, prefixes, readers
from vit_jax.weights.readers import Arrays, WeightsError

BESIDE = ("config.json", "preprocessor_config.json", "processor_config.json", open_clip.CONFIG)
WHOLE = ("model.safetensors", "pytorch_model.safetensors", "open_clip_model.safetensors")
INDEX = "model.safetensors.index.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Weights:
    """A model from any project with its parameters (NumPy float32)."""

    kind: str  # the layout it came in
    params: models.Params
    facts: mapping.Facts
    report: mapping.Report
    assumed: tuple[str, ...] = ()  # a line for each reason


def load(
    path: pathlib.Path,
    overrides: Mapping[str, str] | None = None,
    *,
    wanted: config.Config | None = None,
) -> Weights:
    """Returns the weights in a file or folder, their model inferred.

    Args:
      path: a .npz or .safetensors file, or a folder with one and its config.json.
      overrides: options by dotted name, which replace inferred ones; positions are resized to
        another `data.image_size`.
      wanted: the config that will use the weights. It provides what the file leaves open: the
        number of heads, and the image size if it has equally many patches.

    Raises WeightsError, in one line with every problem.
    """
    overrides = overrides or {}
    try:
        found, own = _recognize(path, overrides, wanted)
        sizeless = {key: text for key, text in overrides.items() if key != "data.image_size"}
        facts = _override(own, sizeless)
        arrays, layout = found.arrays, found.layout
        params, report = mapping.read(
            arrays, layout.rules(arrays.specs, facts), layout.dropped, facts
        )
        dropped = dict(sorted({**report.dropped, **found.beside}.items()))
        report = dataclasses.replace(report, dropped=dropped, prefix=found.prefix)
        final = _override(own, overrides)
        if final.data.image_size != facts.data.image_size:
            params, change = finetune_init.resized(facts, params, final.data.image_size)
            report = dataclasses.replace(report, resized=change.resized)
    except config.UserError as error:
        raise _at(path, error) from error
    return Weights(
        kind=layout.name,
        params=params,
        facts=final,
        report=report,
        assumed=assumptions(own, overrides, wanted=wanted),
    )


def look(path: pathlib.Path, wanted: config.Config | None = None) -> mapping.Facts:
    """Returns the model in a file or folder, its arrays not read; raises WeightsError.

    Args:
      path: as in `load`.
      wanted: as in `load`.
    """
    try:
        return _recognize(path, {}, wanted)[1]
    except config.UserError as error:
        raise _at(path, error) from error


def assumptions(
    own: mapping.Facts,
    overrides: Mapping[str, str] | None = None,
    *,
    wanted: config.Config | None = None,
) -> tuple[str, ...]:
    """What a source leaves open and `load` assumes, one line per reason; arguments as in `load`."""
    settled = _settled(own, overrides or {}, wanted)
    reasons: dict[str, list[str]] = {}
    for key, why in own.assumed.items():
        if key not in settled:
            value = f"={config.show(config.get(own, key))}" if _is_option(key) else ""
            reasons.setdefault(why, []).append(f"{key}{value}")
    return tuple(f"assumed {', '.join(set_)}: {why}" for why, set_ in reasons.items())


def _is_option(key: str) -> bool:
    return key.startswith(("model.", "data."))


def _settled(
    own: mapping.Facts, overrides: Mapping[str, str], wanted: config.Config | None
) -> set[str]:
    """Returns the options that need no assumptions, or none that matter."""
    others = set(overrides)
    if "train.loss" in overrides or (wanted is not None and wanted.init_head != "keep"):
        others |= {key for key, why in own.assumed.items() if why == mapping.ONE_OUTPUT}
        others.add(mapping.SOFTMAX)
    if wanted is not None or "data.image_size" in overrides:
        others.add(mapping.OWN_SIZE)
    if overrides.get("model.activation", "gelu") != "gelu":
        others.add("model.gelu")
    if wanted is not None:  # which has its own where it differs, and of some options always
        keep = wanted.init_head == "keep"
        known = finetune_init.numerics(own, keep_head=keep, channels=wanted.data.channels)
        taken = {*known, "model.heads", "model.position"}
        options = set(filter(_is_option, own.assumed))
        others |= options - taken
        others |= {key for key in options if config.get(wanted, key) != config.get(own, key)}
    # If an image size could determine the grid of positions, it already has.
    return others - {"data.image_size"}


def _recognize(
    path: pathlib.Path, overrides: Mapping[str, str], wanted: config.Config | None
) -> tuple[prefixes.Found, mapping.Facts]:
    """Returns the arrays with their layout, and the model at its stored image size."""
    arrays, beside = _open(path)
    found = prefixes.find(arrays)
    size, heads = (wanted.data.image_size, wanted.model.heads) if wanted else (None, None)
    given = config.build(config.override({}, overrides))
    if "data.image_size" in overrides:
        size = given.data.image_size
    if "model.heads" in overrides:
        heads = given.model.heads
    hints = mapping.Hints(files=beside, image_size=size, heads=heads)
    own = mapping.with_head(found.layout.facts(found.arrays, hints), arrays.metadata)
    return found, dataclasses.replace(own, assumed={**own.assumed, **found.assumed})


def _at(path: pathlib.Path, error: config.UserError) -> WeightsError:
    text = str(error)
    return WeightsError(text if text.startswith(str(path)) else f"{path}: {text}")


def _open(path: pathlib.Path) -> tuple[Arrays, dict[str, dict[str, Any]]]:
    """Returns the arrays of a file or folder, and the JSON files next to them."""
    if path.is_dir():
        folder = path
        file = next((folder / n for n in (*WHOLE, INDEX) if (folder / n).is_file()), None)
        if file is None:
            unread = [p.name for p in sorted(folder.iterdir()) if p.suffix in readers.UNREAD]
            if unread:
                readers.open_arrays(folder / unread[0])  # which says why not
            raise WeightsError(
                f"{path}: not a checkpoint: neither a run directory (no checkpoints/ inside) nor a "
                f"folder of weights (no {WHOLE[0]} or {INDEX})"
            )
        arrays = readers.open_shards(file) if file.name == INDEX else readers.open_arrays(file)
    else:
        folder, arrays = path.parent, readers.open_arrays(path)
    beside = {}
    if path.suffix != ".npz":  # these need no other file
        beside = {n: readers.read_json(folder / n) for n in BESIDE if (folder / n).is_file()}
    return arrays, beside


def _override(facts: mapping.Facts, overrides: Mapping[str, str]) -> mapping.Facts:
    """Returns the facts with the options that the user sets."""
    if not overrides:
        return facts
    values = config.to_dict(config.Config(model=facts.model, data=facts.data))
    if "model.pooling" in overrides:  # an existing class token stays, whatever the pooling
        token, pooling = models.has_class_token(facts.model), overrides["model.pooling"]
        own = models.default_class_token(pooling)
        values["model"]["class_token"] = None if token == own else token
    for one, other in (("resize_to", "crop_pct"), ("crop_pct", "resize_to")):
        if f"data.{one}" in overrides and f"data.{other}" not in overrides:
            values["data"][other] = None  # they say the same
    if "data.image_size" in overrides and facts.data.resize_to is not None:
        # A crop of the same share of the image, unless the user says otherwise.
        sides = config.build(config.override(values, overrides)).data.image_size
        values["data"]["resize_to"] = round(
            facts.data.resize_to * max(sides) / max(facts.data.image_size)
        )
    cfg = config.build(config.override(values, overrides))
    return dataclasses.replace(facts, model=models.complete(cfg.model), data=cfg.data)
