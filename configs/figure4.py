"""Pre-training on parts of JFT-300M (Figure 4): figure4/MODEL-jft-9M, -30M, -90M and -303M."""

import dataclasses

import ml_collections

from vit_jax.config import catalog, paper
from vit_jax.config.catalog import Choice
from vit_jax.data.tasks import TASKS

RUNS = {
    f"figure4/{model.replace('/', '_')}-jft-{label}": (model, images)
    for model in paper.FIGURE_4
    for label, images in paper.SUBSETS.items()
}
LENGTH = Choice(
    "as many images seen as in 7 epochs of all 303M, best checkpoint kept",
    "the same hyper-parameters for every part, and early stopping; the lengths are not stated",
    "--config.train.duration='7 epochs'",
)
SUBSET = Choice(
    "the first images of the training split",
    "the paper drew at random; TFDS shuffles when it prepares, so the first are random too",
    "--config.data.train_split='train[9000000:18000000]'",
)
HALVED = Choice(
    "ViT-b: 6 heads, the hyper-parameters of ViT-B/32",
    "only 'ViT-B with all hidden dimensions halved' is stated; heads stay 64 wide",
    "--config.model.heads=12",
)


def names() -> tuple[str, ...]:
    """Returns the names defined in this file."""
    return tuple(RUNS)


def _base(name: str) -> str:
    model, _ = RUNS[name]
    return f"pretrain/{model.replace('/', '_').replace('-b', '-B')}-jft-7ep"


def get_config(name: str) -> ml_collections.ConfigDict:
    """Returns the config of the run `name`."""
    model, images = RUNS[name]
    whole = TASKS["jft"].count("train")
    assert whole is not None
    options = catalog.load(_base(name))
    options["model"] |= {"variant": model}
    if model == "ViT-b/32":
        options["model"] |= {"representation_size": 384}
    options["data"] |= {"train_split": "train" if images == whole else f"train[:{images}]"}
    options["train"] |= {"duration": f"{7 * whole} examples"}
    return ml_collections.ConfigDict(options)


def about(name: str) -> catalog.About:
    """Returns where the run called `name` comes from."""
    (model, images), base = RUNS[name], catalog.about(_base(name))
    own = (LENGTH, SUBSET, *([HALVED] if model == "ViT-b/32" else []))
    return dataclasses.replace(
        base,
        tables=("figure 4",),
        row=f"{model}, {images / 1e6:.0f}M images of JFT-300M",
        dataset=f"JFT {images / 1e6:.0f}M",
        images=images,
        exaflops=None,
        results=(),
        measure=paper.five_shot("figure4"),
        choices=(*own, *base.choices),
    )
