"""Any weights of another project, recognised by what is in them."""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

from vit_jax import config, models
from vit_jax.weights import adapt, bit, files, google, huggingface, layout, timm
from vit_jax.weights.files import Arrays, WeightsError

LAYOUTS = (google.LAYOUT, bit.LAYOUT, timm.LAYOUT, huggingface.LAYOUT)
# What training programs put in front of the names of parameters.
PREFIXES = ("opt/target/", "params/", "model.", "module.")
BESIDE = ("config.json", "preprocessor_config.json")
WHOLE = ("model.safetensors", "pytorch_model.safetensors")
INDEX = "model.safetensors.index.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Weights:
    """A model with its parameters (numpy float32), whoever made it."""

    kind: str  # the layout it came in
    params: models.Params
    facts: layout.Facts
    report: layout.Report


def load(path: pathlib.Path, overrides: Mapping[str, str] | None = None) -> Weights:
    """Returns the weights in a file or folder, their model inferred.

    Args:
      path: a .npz or .safetensors file, or a folder with one and its config.json.
      overrides: knobs by dotted name, which replace what was inferred; positions are resized to
        another `data.image_size`.

    Raises WeightsError, in one line with every problem.
    """
    overrides = overrides or {}
    try:
        arrays, chosen, own = _recognise(path, overrides)
        sizeless = {key: text for key, text in overrides.items() if key != "data.image_size"}
        facts = _override(own, sizeless)
        params, report = layout.read(
            arrays, chosen.rules(arrays.specs, facts), chosen.dropped, facts
        )
        wanted = _override(own, overrides)
        if wanted.data.image_size != facts.data.image_size:
            params = adapt.resized(facts, params, wanted.data.image_size)
    except config.UserError as error:
        raise _at(path, error) from error
    return Weights(kind=chosen.name, params=params, facts=wanted, report=report)


def look(path: pathlib.Path) -> layout.Facts:
    """Returns the model in a file or folder, its arrays not read; raises WeightsError."""
    try:
        return _recognise(path, {})[2]
    except config.UserError as error:
        raise _at(path, error) from error


def _recognise(
    path: pathlib.Path, overrides: Mapping[str, str]
) -> tuple[Arrays, layout.Layout, layout.Facts]:
    """Returns the arrays, their layout, and the model at the image size it was stored for."""
    arrays, beside = _open(path)
    chosen = next((one for one in LAYOUTS if one.recognises(arrays)), None)
    if chosen is None:
        names = ", ".join(sorted(arrays.specs)[:3]) or "no arrays at all"
        raise WeightsError(
            f"is none of the known kinds of model ({', '.join(o.name for o in LAYOUTS)}); "
            f"it holds {names}, ..."
        )
    try:
        return arrays, chosen, chosen.facts(arrays, layout.Hints(files=beside))
    except WeightsError:
        if "data.image_size" not in overrides:
            raise
        # Only the caller knows the size where positions are of no square, or there are none.
        size = _override(layout.Facts(model=config.Model(), data=config.Data()), overrides)
        hints = layout.Hints(files=beside, image_size=size.data.image_size)
        return arrays, chosen, chosen.facts(arrays, hints)


def _at(path: pathlib.Path, error: config.UserError) -> WeightsError:
    text = str(error)
    return WeightsError(text if text.startswith(str(path)) else f"{path}: {text}")


def _open(path: pathlib.Path) -> tuple[Arrays, dict[str, dict[str, Any]]]:
    """Returns the arrays of a file or folder, prefixes removed, and the JSON files beside them."""
    if path.is_dir():
        folder = path
        file = next((folder / n for n in (*WHOLE, INDEX) if (folder / n).is_file()), None)
        if file is None:
            pickled = [p.name for p in sorted(folder.iterdir()) if p.suffix in files.PICKLES]
            if pickled:
                files.open_arrays(folder / pickled[0])  # which says why not
            raise WeightsError(
                f"{path}: is no checkpoint: neither a run directory (no checkpoints/ in it) nor a "
                f"folder of weights (no {WHOLE[0]} or {INDEX})"
            )
        arrays = files.open_shards(file) if file.name == INDEX else files.open_arrays(file)
    else:
        folder, arrays = path.parent, files.open_arrays(path)
    beside = {}
    if path.suffix != ".npz":  # those are whole by themselves
        beside = {n: files.read_json(folder / n) for n in BESIDE if (folder / n).is_file()}
    return _without_prefix(path, arrays), beside


def _without_prefix(path: pathlib.Path, arrays: Arrays) -> Arrays:
    """Returns the arrays under the names they have without what a training program added."""
    names = arrays.specs
    prefix = next((p for p in PREFIXES if any(name.startswith(p) for name in names)), "")
    long: dict[str, str] = {}
    for name in names:
        short = name.removeprefix(prefix)
        if short in long:
            raise WeightsError(f"{path}: {long[short]} and {name} are the same array")
        long[short] = name
    return Arrays({name: names[long[name]] for name in long}, lambda name: arrays.read(long[name]))


def _override(facts: layout.Facts, overrides: Mapping[str, str]) -> layout.Facts:
    """Returns the facts with the knobs that the user sets."""
    if not overrides:
        return facts
    values = config.to_dict(config.Config(model=facts.model, data=facts.data))
    if "data.image_size" in overrides and facts.data.resize_to is not None:
        # A crop of the same share of the image, unless the user says otherwise.
        sides = config.build(config.override(values, overrides)).data.image_size
        values["data"]["resize_to"] = round(
            facts.data.resize_to * max(sides) / max(facts.data.image_size)
        )
    cfg = config.build(config.override(values, overrides))
    return dataclasses.replace(facts, model=models.complete(cfg.model), data=cfg.data)
