"""Pre-training on parts of JFT-300M (Figure 4): figure4/MODEL-jft-9M, -30M, -90M and -303M."""

import ml_collections

from vit_jax.config import catalog, paper
from vit_jax.config.catalog import Choice

RUNS = {
    f"figure4/{model.replace('/', '_')}-jft-{label}": (model, images)
    for model in paper.FIGURE_4
    for label, images in paper.SUBSETS.items()
}
WHOLE = paper.SUBSETS["303M"]


def get_config(name: str) -> ml_collections.ConfigDict:
    """The config of the run `name`."""
    model, images = RUNS[name]
    changes = {
        "model.variant": model,
        "data.train_split": "train" if images == WHOLE else f"train[:{images}]",
        "train.duration": f"{7 * WHOLE} examples",
    }
    if model == "ViT-b/32":
        changes |= {"model.representation_size": 384}
    return catalog.derive(_base(name), changes)


def _base(name: str) -> str:
    model, _ = RUNS[name]
    return f"pretrain/{model.replace('/', '_').replace('-b', '-B')}-jft-7ep"


def about(name: str) -> catalog.About:
    """The provenance of the run `name`."""
    (model, images), base = RUNS[name], catalog.about(_base(name))
    return base.derive(
        tables=("figure 4",),
        row=f"{model}, {images / 1e6:.0f}M images of JFT-300M",
        dataset=f"JFT {images / 1e6:.0f}M",
        images=images,
        measure=paper.five_shot("figure4"),
        choices=(LENGTH, SUBSET, *([HALVED] if model == "ViT-b/32" else []), *base.choices),
    )


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
