"""A tiny copy of any run: everything that makes it what it is, nothing that makes it slow."""

import dataclasses

from vit_jax import config, models
from vit_jax.models import variants
from vit_jax.models.variants import required

STEPS = config.Duration(2, "steps")
BATCH, CLASSES, EXAMPLES = 16, 10, 32
DEPTH, WIDTH, MLP, HEADS = 2, 32, 64, 2
UNITS = (2, 1)  # a stage that loops over its units, a stage that changes size


def shrink(cfg: config.Config) -> config.Config:
    """Returns two steps of `cfg` on random pixels with a small network of the same parts.

    Kept: architecture, position, pooling, head and loss, dropout, stochastic depth, views and
    augmentation, update rule, learning rate, the shape of the schedule, clipping, averaging, types,
    mesh; not the weights it begins with. Raises ConfigError for a model that cannot be completed.
    """
    model = _model(models.complete(cfg.model))
    data = dataclasses.replace(
        cfg.data,
        source="synthetic",
        name=None,
        root=None,
        labels=None,
        examples=None,
        classes=None,
        train_split="train",
        eval_split="test" if cfg.data.test_split is None else "validation",
        test_split=cfg.data.test_split and "test",
        holdout=0.0,
        image_size=_image_size(model),
        resize_to=None,
        num_examples=EXAMPLES,
        workers=0,
    )
    accumulation = cfg.train.accumulation
    train = dataclasses.replace(cfg.train, batch_size=BATCH * accumulation, duration=STEPS)
    warmup = config.Duration(1 if cfg.schedule.warmup.amount else 0, "steps")
    return dataclasses.replace(
        cfg,
        init_from=None,
        model=model,
        data=data,
        train=train,
        schedule=dataclasses.replace(cfg.schedule, warmup=warmup),
        checkpoint=dataclasses.replace(cfg.checkpoint, every=STEPS, minutes=None),
        evaluation=dataclasses.replace(cfg.evaluation, every=STEPS, batch_size=None, tasks=()),
        logging=dataclasses.replace(cfg.logging, every=1),
    )


def _model(model: config.Model) -> config.Model:
    """Returns the complete `model` with every size cut down."""
    units = model.resnet_units
    small = dataclasses.replace(
        model,
        variant=None,
        num_classes=CLASSES,
        representation_size=None if model.representation_size is None else WIDTH,
        resnet_units=None if units is None else UNITS[: len(units)],
        # Half of 64 channels: one for each group of GroupNorm.
        resnet_width=None if units is None else 0.5,
        unroll=min(model.unroll, DEPTH),
    )
    if model.architecture in ("resnet", "axial_resnet"):
        return small
    height, width = required(model.patch_size)
    most = 4 if units is None else 2
    return dataclasses.replace(
        small,
        patch_size=(min(height, most), min(width, most)),
        width=WIDTH,
        depth=DEPTH,
        mlp_dim=MLP,
        heads=HEADS,
    )


def _image_size(model: config.Model) -> tuple[int, int]:
    """Returns the pixels of two by two tokens, or of a last map of two by two positions."""
    height, width = model.patch_size or (1, 1)
    factor = variants.reduction(model)
    return 2 * factor * height, 2 * factor * width
