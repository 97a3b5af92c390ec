"""A tiny copy of any run: everything that makes it what it is, nothing that makes it slow."""

import dataclasses

from vit_jax import config, models

STEPS = config.Duration(2, "steps")
BATCH, CLASSES, EXAMPLES = 16, 10, 32


def shrink(cfg: config.Config) -> config.Config:
    """Returns two steps of `cfg` on random pixels with a small network of the same parts.

    Kept: architecture, position, pooling, head and loss, dropout, stochastic depth, views and
    augmentation, update rule, learning rate, the shape of the schedule, clipping, averaging, types,
    mesh; not the weights it begins with, nor a teacher. Raises ConfigError for a model that cannot
    be completed.
    """
    model = models.complete(cfg.model)
    model = dataclasses.replace(model, variant=None, num_classes=CLASSES)
    model, image_size = models.family(model).shrink(model, cfg.data.image_size)
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
        image_size=image_size,
        resize_to=None,
        crop_pct=None,
        num_examples=EXAMPLES,
        workers=0,
    )
    accumulation = cfg.train.accumulation
    train = dataclasses.replace(cfg.train, batch_size=BATCH * accumulation, duration=STEPS)
    warmup, cooldown = (
        config.Duration(1 if duration.amount else 0, "steps")
        for duration in (cfg.schedule.warmup, cfg.schedule.cooldown)
    )
    return dataclasses.replace(
        cfg,
        init_from=None,
        distill=config.Distill(),
        model=model,
        data=data,
        train=train,
        schedule=dataclasses.replace(cfg.schedule, warmup=warmup, cooldown=cooldown),
        checkpoint=dataclasses.replace(cfg.checkpoint, every=STEPS, minutes=None),
        evaluation=dataclasses.replace(cfg.evaluation, every=STEPS, batch_size=None, tasks=()),
        logging=dataclasses.replace(cfg.logging, every=1),
    )
