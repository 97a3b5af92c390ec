"""Position embeddings (Table 8): posemb/KIND-PLACE, the eight printed cells and two fixed kinds.

Each is the ViT-B/16 of Table 3 with one change; `1d-stem` is that run itself.
"""

import ml_collections

from vit_jax.config import catalog, paper
from vit_jax.config.catalog import Choice

BASE = "pretrain/ViT-B_16-jft-7ep"
RUNS = {
    "posemb/none": ("none", "stem"),
    "posemb/1d-stem": ("learned_1d", "stem"),
    "posemb/1d-layers": ("learned_1d", "layers"),
    "posemb/1d-shared": ("learned_1d", "shared"),
    "posemb/2d-stem": ("learned_2d", "stem"),
    "posemb/2d-layers": ("learned_2d", "layers"),
    "posemb/2d-shared": ("learned_2d", "shared"),
    "posemb/relative": ("relative", "stem"),
    "posemb/sincos-1d": ("sincos_1d", "stem"),
    "posemb/sincos-2d": ("sincos_2d", "stem"),
}


def get_config(name: str) -> ml_collections.ConfigDict:
    """The config of the run `name`."""
    position, place = RUNS[name]
    return catalog.derive(BASE, {"model.position": position, "model.position_place": place})


def about(name: str) -> catalog.About:
    """The provenance of the run `name` and the result of the paper."""
    position, place = RUNS[name]
    base, score = catalog.about(BASE), paper.TABLE_8.get((position, place))
    return base.derive(
        tables=("8",) if score else (),
        row=f"ViT-B/16, position {position}, {place}",
        results=(catalog.Result("5-shot ImageNet", score, "8"),) if score else (),
        measure=paper.five_shot("table8") if score else "",
        choices=(LENGTH, *BY_POSITION.get(position, ()), *base.choices),
    )


LENGTH = Choice(
    "JFT-300M, 7 epochs",
    "Table 8 states neither data nor length; Table 3's only run of ViT-B/16 on JFT-300M",
    "--config.data.name=NAME --config.train.duration='90 epochs'",
)
BY_POSITION = {
    "learned_2d": [
        Choice(
            "the class token has an embedding of its own, full width",
            "not stated; D.4 speaks of rows and columns of patches only",
        )
    ],
    "relative": [
        Choice(
            "one key per offset in the sequence, class token included, shared by all heads",
            "D.4 calls it 1-dimensional and does not mention heads or the class token",
        )
    ],
    "sincos_1d": [
        Choice("fixed sines along the sequence", "beyond the paper: Vaswani et al. 2017")
    ],
    "sincos_2d": [Choice("fixed sines by row and column", "beyond the paper: as in MoCo v3")],
}
