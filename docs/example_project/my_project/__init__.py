"""Components of a project: `--plugins=my_project` imports this package, which registers them."""

from my_project import (  # noqa: F401
    batch_augmentation,
    evaluator,
    logger,
    loss,
    model,
    objective,
    optimizer,
    schedule,
    source,
    transform,
)
