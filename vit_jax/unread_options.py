"""Options that the chosen components do not read: setting one is an error that names it.

Two tables say what reads an option; a model's family says what its networks leave out. A model or
source of a plug-in gets its whole section, so it may read every option of that.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from vit_jax import config, models
from vit_jax.config import components

# By the option that chooses a component: options of its section that each built-in one reads. The
# options that no component is listed with are read whatever is chosen.
READS = {
    "optimizer.name": {
        "adam": ("b1", "b2", "eps", "moment_dtype"),
        "sgd": ("momentum", "moment_dtype"),
    },
    "schedule.decay": {
        "cosine": ("end",),
        "linear": ("end",),
        "constant": ("cooldown",),
        "rsqrt": ("timescale", "cooldown"),
        "step": ("drops",),
    },
    "data.source": {
        "folder": ("root", "holdout"),
        "csv": ("root", "multilabel"),
        "tfds": ("root", "name"),
        "synthetic": ("num_examples", "multilabel"),
    },
}
# Options that are read only where one of others has a value that asks for them.
WHERE: dict[tuple[str, ...], dict[str, Callable[[Any], bool]]] = {
    ("data.crop_area", "data.crop_aspect"): {"data.train_crop": lambda crop: crop == "inception"},
    ("data.eval_crop",): {"data.aspect": lambda aspect: aspect == "fixed"},
    ("data.resize_to", "data.crop_pct"): {
        "data.train_crop": lambda crop: crop == "random",
        "data.eval_crop": lambda crop: crop != "resize",
    },
    ("data.crop_rounding", "data.fill"): {"data.eval_crop": lambda crop: crop != "resize"},
    ("evaluation.shots", "evaluation.fewshot_l2", "evaluation.fewshot_seeds"): {
        "evaluation.fewshot": lambda sets: sets != ()
    },
    ("evaluation.neighbors",): {"evaluation.knn": lambda sets: sets != ()},
    ("init_head",): {"init_from": lambda weights: weights is not None},
    ("distill.target", "distill.weight"): {"distill.teacher": lambda teacher: teacher is not None},
    ("distill.temperature",): {"distill.target": lambda target: target == "logits"},
    ("lora.alpha", "lora.where"): {"lora.rank": lambda rank: rank is not None},
    ("masked.rate", "masked.split"): {"masked.target": lambda target: target is not None},
    ("model.class_position",): {"model.position": lambda kind: kind.startswith("learned")},
    ("model.position_resize",): {
        "model.position": lambda kind: kind.startswith("learned"),
        "model.relative_bias": lambda kind: kind != "none",
    },
    ("model.activation",): {
        "model.mlp": lambda kind: kind == "plain",
        "model.pooling": lambda kind: kind == "map",
    },
    ("model.rotary_span", "model.rotary_grid"): {"model.rotary": lambda base: base is not None},
    ("model.gelu",): {"model.activation": lambda activation: activation == "gelu"},
    ("model.representation_activation",): {
        "model.representation_size": lambda size: size is not None
    },
    ("model.resnet_width", "model.resnet_version", "model.resnet_epsilons"): {
        "model.resnet_units": lambda units: units is not None
    },
    ("model.resnet_pool",): {"model.resnet_version": lambda version: version == "v2"},
}


def check_file(values: Mapping[str, Any]) -> None:
    """Raises ConfigError for an option that a config file sets and its own components ignore.

    Args:
      values: nested options of the file; those equal to the default pass.
    """
    cfg, default = config.build(values), config.Config()
    check(cfg, [k for k, _, _ in config.fields() if config.get(cfg, k) != config.get(default, k)])


def check(cfg: config.Config, keys: Iterable[str]) -> None:
    """Raises ConfigError for the first of the options `keys` that the components of `cfg` ignore.

    One that is set to nothing (none, 0, 0 steps, an empty list) asks for nothing, so it passes.
    """
    cfg = dataclasses.replace(cfg, model=models.complete(cfg.model))
    for key in keys:
        value = config.get(cfg, key)
        amount = getattr(value, "amount", value)  # a duration's
        nothing = value is not False and amount in (None, 0, ())
        if not nothing and (why := problem(cfg, key)):
            raise config.ConfigError(f"{key}={config.show(value)}: {why}")


def problem(cfg: config.Config, key: str) -> str:
    """Returns why an option is not read with a config that is complete, or nothing."""
    section, _, name = key.rpartition(".")
    architecture = cfg.model.architecture or "vit"
    if section == "model" and name in models.family(cfg.model).unread:
        return f"model.architecture={architecture} does not read it"
    if section == "model" and not components.is_built_in("model", architecture):
        return ""
    for chooser, readers in READS.items():
        if chooser.startswith(f"{section}.") and name in {n for r in readers.values() for n in r}:
            return _unread_by(chooser, config.get(cfg, chooser), name)
    for options, conditions in WHERE.items():
        if key in options and not any(on(config.get(cfg, by)) for by, on in conditions.items()):
            chosen = [f"{by}={config.show(config.get(cfg, by))}" for by in conditions]
            return f"{' and '.join(chosen)} do{'' if chosen[1:] else 'es'} not read it"
    return ""


def _unread_by(chooser: str, chosen: str, name: str) -> str:
    """Returns why a component does not read an option of its section, or nothing."""
    readers = READS[chooser]
    if name in readers.get(chosen, ()):
        return ""
    if chooser == "data.source" and not components.is_built_in("source", chosen):
        return ""
    if chosen in readers:
        hint = f"it reads {', '.join(readers[chosen])}"
    elif chooser == "optimizer.name":
        hint = "it takes arguments in parentheses, NAME(argument=value)"
    else:
        hint = f"only {', '.join(one for one, names in readers.items() if name in names)} does"
    return f"{chooser}={chosen} does not read it; {hint}"
