"""The config of a run: a catalog name or file, and overrides. Needs no jax."""

import dataclasses
import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from vit_jax import config, models
from vit_jax.config import catalog, checks
from vit_jax.data import availability, bucket, folders, split_roles
from vit_jax.runtime import locking
from vit_jax.utils import messages, storage

# Of a tiny run: without accumulation, its two steps are one epoch.
STEPS = config.Duration(2, "steps")
BATCH, CLASSES, EXAMPLES = 16, 10, 32


def resolve(
    reference: str, overrides: Mapping[str, object], *, tiny: bool = False
) -> config.Config:
    """The complete config of a catalog name or file; with `tiny`, a copy for `--smoke`.

    Raises ConfigError; reads no data and compiles nothing.
    """
    config.check_overrides(overrides)
    values = named_values(reference, overrides)
    if ".py" in reference.lower():  # the catalog's own are checked by a test
        check_read(config.build(values), config.changed(config.build(values)))
    cfg = config_from_values(values, overrides, tiny=tiny)
    checks.check_decay(cfg)  # of new runs alone: earlier ones resume
    check_trains(cfg)
    return cfg


def from_config(given: config.Config, overrides: Mapping[str, object]) -> config.Config:
    """The complete config of one made in Python, with the checks of one by name.

    Raises ConfigError. `dataclasses.replace` makes a Config that no check has seen, whose sizes may
    be those of another variant, and whose options may be read by nothing.
    """
    cfg = config_from_values(config.to_dict(given), overrides)
    if cfg.name in catalog.names():
        base = config.build(catalog.load_values(cfg.name))
    else:
        base = config.Config(model=config.Model(variant=cfg.model.variant))
    base = dataclasses.replace(base, model=models.complete(base.model))
    own = {key for key, _, _ in config.fields(base)}
    changed = config.changed(cfg).items()
    keys = [k for k, value in changed if k not in own or value != config.get(base, k)]
    if cfg.init_from is None:
        check_read(cfg, keys)
    elif "model.variant" in keys:  # the weights may have set others, read or not
        models.check_variant(cfg.model, [key.removeprefix("model.") for key in keys])
    checks.check_decay(cfg)
    check_trains(cfg)
    return cfg


def named_values(reference: str, overrides: Mapping[str, object]) -> dict[str, Any]:
    """Nested options of a catalog name or file; raises ConfigError.

    Where `overrides` name other data, they lack the splits of their own.
    """
    values = catalog.load_values(reference)
    if names_other_data(values, overrides):
        # Its splits belong to other data, which may have had no validation split.
        splits = ("train_split", "eval_split", "test_split")
        own = values.get("data", {}).items()
        values = {**values, "data": {k: v for k, v in own if k not in splits}}
    return values


def names_other_data(values: Mapping[str, Any], overrides: Mapping[str, object]) -> bool:
    """Whether `overrides` name files in place of the data of a config's nested options."""
    own, source = values.get("data", {}), overrides.get("data.source")
    return source in config.FILES and isinstance(own, Mapping) and own.get("source") != source


def config_from_values(
    values: Mapping[str, object], overrides: Mapping[str, object], *, tiny: bool = False
) -> config.Config:
    """The complete config of nested options; raises ConfigError."""
    cfg = build(config.override(values, overrides))
    check_read(cfg, overrides)
    if tiny:
        small = shrink(cfg)
        # Overridden options keep their values, except arguments of a source that is replaced.
        gone = {key for key, _, _ in config.fields(cfg)} - {k for k, _, _ in config.fields(small)}
        gone = set() if "data.source" in overrides else gone
        kept = {key: value for key, value in overrides.items() if key not in gone}
        cfg = config.build(config.override(config.to_dict(small), kept))
    return complete(_located(cfg))


def build(given: Mapping[str, Any]) -> config.Config:
    """The config of nested options, which need not be complete; raises ConfigError."""
    cfg, own = config.build(given), given.get("data", {})
    if cfg.data.source not in config.FILES or "eval_split" in own:
        return cfg
    # A folder with its own validation split is meant to choose the checkpoint by it.
    test = cfg.data.test_split if "test_split" in own else split_roles.AUTO
    data = dataclasses.replace(cfg.data, eval_split=split_roles.AUTO, test_split=test)
    return dataclasses.replace(cfg, data=data)


def check_read(cfg: config.Config, keys: Iterable[str]) -> None:
    """Raises ConfigError for the first of the options `keys` that nothing reads."""
    keys, cfg = list(keys), dataclasses.replace(cfg, model=models.complete(cfg.model))
    checks.check_read(cfg, keys)
    sizes = [key.removeprefix("model.") for key in keys if key.startswith("model.")]
    models.check_read(cfg.model, sizes)
    if "variant" in sizes:
        models.check_variant(cfg.model, sizes)


def check_config(cfg: config.Config) -> None:
    """Raises ConfigError for options that do not fit each other or the complete model."""
    models.check_model(cfg.model, cfg.data.image_size)
    models.check_masked(cfg.model, cfg.objective)
    checks.check_options(cfg)
    for phase in cfg.data.phases:
        if phase.image_size is not None:
            key = f"data.phases.{phase.name}.image_size={config.show(phase.image_size)}"
            _check_size(cfg.model, phase.image_size, key)
    if cfg.dino is not None and cfg.dino.local_views:
        size = cfg.dino.small_size(cfg.data, cfg.model.patch_size or (1, 1))
        _check_size(cfg.model, size, f"objective.local_size={config.show(cfg.dino.local_size)}")


def _check_size(model: config.Model, size: tuple[int, int], key: str) -> None:
    try:
        models.check_model(model, size)
    except config.ConfigError as error:
        raise config.ConfigError(f"{key}: {str(error).partition(': ')[2]}") from None


def check_trains(cfg: config.Config) -> None:
    """Raises ConfigError for a complete config that can be evaluated but not trained."""
    checks.check_numbers(cfg)
    checks.check_sequences(cfg)
    if cfg.data.aspect == "native":
        models.check_sequences(cfg.model)


def _located(cfg: config.Config) -> config.Config:
    """The config with absolute paths, so that a run can be used from other directories."""

    def absolute(option: str) -> str:
        path = config.get(cfg, option)
        copied = option == "data.root" and isinstance(cfg.data, config.Files)
        if storage.is_remote(path) or (copied and bucket.is_bucket(path)):
            return path
        return os.path.abspath(storage.given_path(option, path))  # noqa: PTH100 (no links)

    def weights(reference: str | None) -> str | None:
        # An existing path takes precedence over a published name, as in `weights.resolve`.
        path = None if reference is None or "://" in reference else storage.as_path(reference)
        return os.path.abspath(path) if path and path.exists() else reference  # noqa: PTH100

    # Not every source has each.
    paths = [
        p for p in ("root", "cache", "exclude", "examples") if getattr(cfg.data, p) is not None
    ]
    data = dataclasses.replace(cfg.data, **{name: absolute(f"data.{name}") for name in paths})
    cfg = dataclasses.replace(cfg, data=data, init_from=weights(cfg.init_from))
    if (distillation := cfg.distillation) is not None:
        objective = dataclasses.replace(distillation, teacher=weights(distillation.teacher))
        cfg = dataclasses.replace(cfg, objective=objective)
    return cfg


def complete(cfg: config.Config) -> config.Config:
    """Fills in the sizes of the model variant and the names of the splits.

    Splits of a folder of images are named after its subfolders. Raises ConfigError.
    """
    cfg = dataclasses.replace(cfg, model=models.complete(cfg.model))
    check_config(cfg)
    measured = split_roles.measures_split(cfg)
    data = split_roles.resolved(cfg.data, labels=cfg.needs_labels, measured=measured)
    return dataclasses.replace(cfg, data=folders.splits_there(data))


def shrink(cfg: config.Config) -> config.Config:
    """Two steps of `cfg` on random pixels with a small network of the same parts.

    Kept: architecture, position, pooling, head and loss, dropout, stochastic depth, views and
    augmentation, update rule, learning rate, the shape of the schedule, clipping, averaging, types,
    mesh; not the weights it begins with, nor a teacher. Raises ConfigError for a model that cannot
    be completed.
    """
    model = models.complete(cfg.model)
    outputs = len(cfg.data.targets) or CLASSES
    model = dataclasses.replace(model, variant=None, num_classes=outputs)
    model, image_size = models.find_architecture(model).shrink(model, cfg.data.image_size)
    # Of the two steps the first is in the phase and the second after it, so both programs run.
    data = cfg.data.synthetic(
        examples=None,
        classes=None,
        train_split="train",
        eval_split="test" if cfg.data.test_split is None else "validation",
        test_split=cfg.data.test_split and "test",
        image_size=image_size,
        # As many as the run has, each with a program of its own; the tiny image has 4 patches.
        lengths=tuple(4 * number for number in range(1, 1 + len(cfg.data.lengths))),
        phases=tuple(
            dataclasses.replace(
                phase,
                until=config.Duration(1, "steps"),
                image_size=phase.image_size and (image_size[0] // 2, image_size[1] // 2),
            )
            for phase in cfg.data.phases[:1]
        ),
        resize_to=None,
        crop_pct=None,
        num_examples=EXAMPLES,
        workers=0,
    )
    accumulation = cfg.train.accumulation
    # Accumulation is kept, so this is BATCH images a microbatch.
    train = dataclasses.replace(cfg.train, batch_size=BATCH * accumulation, duration=STEPS)
    lengths = {
        name: config.Duration(1 if getattr(cfg.schedule, name).amount else 0, "steps")
        for name in ("warmup", "cooldown")
        if name in vars(cfg.schedule)
    }
    return dataclasses.replace(
        cfg,
        init_from=None,
        objective=_shrunk(cfg.objective),
        model=model,
        data=data,
        train=train,
        schedule=dataclasses.replace(cfg.schedule, **lengths),
        checkpoint=dataclasses.replace(cfg.checkpoint, every=STEPS, minutes=None),
        evaluation=dataclasses.replace(cfg.evaluation, every=STEPS, batch_size=None, tasks=()),
        logging=dataclasses.replace(cfg.logging, every=1),
    )


def _shrunk(objective: config.Objective) -> config.Objective:
    if isinstance(objective, config.Distillation):
        return config.Objective()
    if isinstance(objective, config.Mae):
        small = {"decoder_width": 32, "decoder_depth": 1, "decoder_heads": 2}
        return dataclasses.replace(objective, **small)
    if isinstance(objective, config.Dino):
        return dataclasses.replace(
            objective,
            prototypes=2 * CLASSES,
            head_hidden=CLASSES,
            head_bottleneck=CLASSES,
            local_views=min(objective.local_views, 2),
            local_size=None,
        )
    return objective


def start(
    reference: str,
    overrides: Mapping[str, object],
    workdir: pathlib.Path | None,
    *,
    tiny: bool = False,
) -> tuple[config.Config, pathlib.Path]:
    """The config and the run directory of a training run that is about to start.

    Without `workdir`, the directory is runs/NAME; with `tiny` it is runs/smoke/NAME, and an earlier
    run there is removed. Raises ConfigError if the config cannot be trained, or its data are
    missing.
    """
    cfg, about = resolve(reference, overrides, tiny=tiny), catalog.about(reference)
    if tiny:
        if workdir is None:
            workdir = pathlib.Path("runs", "smoke", cfg.name)
            locking.clear(workdir)
        return cfg, workdir
    if about.needs and not any(key in overrides for key in about.lifted_by):
        raise config.ConfigError(about.needs)
    if about.warning and "init_from" not in overrides:
        messages.print_error(f"{cfg.name} {about.warning}")
    if cfg.data.source == "tfds" and cfg.data.name:
        availability.check_prepared(cfg.data.name, cfg.data.root)
    return cfg, workdir or pathlib.Path("runs", cfg.name)
