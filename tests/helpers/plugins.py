"""The example project as a plug-in: its folder, its options, and a registry that forgets it."""

import contextlib
import pathlib
import sys

import pytest

from vit_jax.config import components

PROJECT = pathlib.Path(__file__).parents[2] / "docs" / "example_project"

MODULES = {path.stem for path in PROJECT.iterdir()}

# One of each kind, and their arguments.
NINE = {
    "model.architecture": "convnet",
    "data.source": "stripes",
    "data.transforms": "speckle",
    "train.augmentations": "jitter",
    "loss.name": "squared",
    "optimizer.name": "sign_momentum",
    "schedule.name": "triangle",
    "evaluation.evaluators": "worst_class",
    "logging.loggers": "csv",
}
NINE |= {
    "model.filters": "8",
    "data.count": "64",
    "data.transforms.speckle.share": "0.2",
    "train.augmentations.jitter.amount": "0.2",
    "optimizer.decay": "0.8",
    "schedule.peak": "0.3",
    "logging.loggers.csv.metric": "train/loss",
}
SHORT = {
    "model.num_classes": "none", "train.duration": "6 steps", "train.batch_size": "16",
    "schedule.warmup": "0", "checkpoint.every": "2 steps", "evaluation.every": "3 steps",
    "logging.every": "1", "logging.tensorboard": "false",
}  # fmt: skip


def flags(options):
    """Options as the command line takes them."""
    return [f"--config.{key}={value}" for key, value in options.items()]


@contextlib.contextmanager
def forgotten():
    """Makes a process that has imported no plug-in, and undoes what is imported inside."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(components, "_REGISTERED", built_in())
        patch.setattr(components, "_PLUGINS", [])
        for name in [n for n in sys.modules if n.partition(".")[0] in MODULES]:
            patch.delitem(sys.modules, name)
        before = set(sys.modules)
        try:
            yield patch
        finally:
            for name in set(sys.modules) - before:
                if name.partition(".")[0] in MODULES:
                    del sys.modules[name]


def built_in():
    """The registered components without those of plug-ins."""
    return {
        key: (component, module)
        for key, (component, module) in components._REGISTERED.items()
        if (component.__module__ or "").startswith("vit_jax.")
    }


@contextlib.contextmanager
def loaded():
    """Makes a process that has imported the example project, as `--plugins=my_project` does."""
    with forgotten() as patch:
        patch.syspath_prepend(str(PROJECT))
        components.load_plugins(["my_project"])
        yield sys.modules["my_project"]
