"""Masked patch prediction (section 4.6, B.1.2): masked/ViT-B_16-DATA, and -to-imagenet after it.

    vit_jax train masked/digits --workdir=runs/masked/digits
    vit_jax transfer masked/digits-tenth --config.init_from=runs/masked/digits
    vit_jax transfer masked/digits-scratch
    vit_jax reproduce masked

Datasets: `jft`, `i21k`, `imagenet`, for a million steps or, `-100k`, a tenth of that. `-rate15`
corrupts less, `-color_4x4` and `-pixels` predict something else. `digits` trains on all digits
without a label; `digits-tenth` fine-tunes it on the labels of a tenth of them, and `digits-scratch`
does the same from random weights.
"""

from typing import Any

import ml_collections

from vit_jax.config import catalog, paper
from vit_jax.config.catalog import Choice

MODEL = "ViT-B_16"
BASES = {"jft": "7ep", "i21k": "90ep", "imagenet": "300ep"}  # the rows of Table 3 that they use
FINETUNING = f"finetune/{MODEL}-jft-imagenet"
SHORT = "-100k"
VARIANTS: dict[str, dict[str, Any]] = {
    "": {},
    "-rate15": {"objective.rate": paper.MASKED.ablated_rate},
    "-color_4x4": {"objective.target": "color_4x4"},
    "-pixels": {"objective.target": "pixels"},
}
PRETRAINING = {  # dataset, whether short, masked target
    f"masked/{MODEL}-{dataset}{SHORT * short}{variant}": (dataset, short, variant)
    for dataset in BASES
    for short in (False, True)
    for variant in VARIANTS
    if not variant or (dataset == "jft" and not short)
}
AFTER = "-to-imagenet"
DIGITS, TENTH, SCRATCH = "masked/digits", "masked/digits-tenth", "masked/digits-scratch"
RATES = (1e-3, 3e-3, 1e-2)
SEEDS = (0, 1)  # to try each with: 144 images are few
RUNS = (*PRETRAINING, *(name + AFTER for name in PRETRAINING), DIGITS, TENTH, SCRATCH)


def get_config(name: str) -> ml_collections.ConfigDict:
    """The config of the run `name`."""
    if name == DIGITS:
        return catalog.derive("digits-token", DIGITS_CHANGES)
    if name in (TENTH, SCRATCH):
        return catalog.derive("digits-token", TENTH_CHANGES)
    if name.endswith(AFTER):
        return catalog.derive(FINETUNING, {})
    dataset, short, variant = PRETRAINING[name]
    steps = paper.MASKED.short_steps if short else paper.MASKED.steps
    changes = {
        "model.representation_size": None,
        "model.num_classes": None,
        "model.head_bias": 0.0,
        "objective.name": "masked_patches",
        "objective.target": "color",
        "objective.rate": paper.MASKED.rate,
        "objective.split": paper.MASKED.split,
        "train.duration": f"{steps} steps",
        "loss.name": "softmax",
        "optimizer.lr": paper.MASKED.lr,
        "schedule.name": "cosine",
        "schedule.end": 0.0,
        "checkpoint.best": "loss",
    }
    return catalog.derive(_base(dataset), changes | VARIANTS[variant])


DIGITS_CHANGES = {
    "objective.name": "masked_patches",
    "objective.target": "color",
    "train.duration": "3000 steps",
    "train.label_smoothing": 0.0,
    "schedule.warmup": "150 steps",
    "checkpoint.every": "500 steps",
    "checkpoint.best": "loss",
    "evaluation.every": "500 steps",
}
TENTH_CHANGES = {
    "data.train_split": "train[:10%]",
    "train.duration": "300 steps",
    "schedule.warmup": "30 steps",
    "checkpoint.every": None,
    "evaluation.every": None,
}


def _base(dataset: str) -> str:
    return f"pretrain/{MODEL}-{dataset}-{BASES[dataset]}"


def about(name: str) -> catalog.About:
    """The provenance of the run `name` and the results of the paper."""
    if name == DIGITS:
        return catalog.About(row="ViT, all digits, no labels", dataset="digits", images=1437)
    if name in (TENTH, SCRATCH):
        return _about_tenth(name)
    if name.endswith(AFTER):
        return _about_finetuning(name.removesuffix(AFTER))
    dataset, short, variant = PRETRAINING[name]
    base = catalog.about(_base(dataset))
    what = _words(short, variant)
    return base.derive(
        tables=(paper.MASKED.place,),
        row=f"ViT-B/16, {base.dataset}, masked patches, {what}",
        core_days=None,
        choices=(base.choices[0], *CHOICES),
    )


def _words(short: bool, variant: str) -> str:
    steps = paper.MASKED.short_steps if short else paper.MASKED.steps
    return f"{steps:,} steps" + (f", {variant.removeprefix('-')}" if variant else "")


def _about_finetuning(origin: str) -> catalog.About:
    base = catalog.about(FINETUNING)
    dataset, short, variant = PRETRAINING[origin]
    printed = (dataset, short, variant) == ("jft", False, "")
    score = catalog.Result("top-1", paper.MASKED.imagenet, paper.MASKED.place)
    return base.derive(
        tables=(paper.MASKED.place,),
        row=f"ViT-B/16 from masked patches of {dataset}, {_words(short, variant)}, ImageNet",
        results=(score,) if printed else (),
        choices=(*base.choices, FINETUNED),
        origin=origin,
        warning=f"begins with random weights: those of {origin} were never published; set "
        "--config.init_from to a run of yours",
    )


def _about_tenth(name: str) -> catalog.About:
    begun = name == TENTH
    about = catalog.About(
        row=f"ViT, a tenth of the labels of digits, {'after masked patches' * begun}"
        f"{'random weights' * (not begun)}",
        dataset="digits",
        images=144,
        choices=(HELD_OUT,),
        transfer=catalog.TransferSettings(
            task="digits",
            rates=RATES,
            train="train[:10%]",
            held_out="train[80%:]",
            choose_seeds=SEEDS,
        ),
    )
    if not begun:
        return about
    return about.derive(
        origin=DIGITS,
        needs=f"init_from=none: run `vit_jax train {DIGITS}` first, then set "
        f"--config.init_from=runs/{DIGITS}; from random weights: {SCRATCH}",
        lifted_by=("init_from",),
    )


CHOICES = (
    Choice(
        "weight decay, dropout and clipping as Table 3 has them for classification",
        "not stated",
        "--config.optimizer.weight_decay=WD",
    ),
    Choice(
        "the other random patch is of the same image; numbers of patches are exact",
        "not stated; another image's would have to come from another device",
    ),
    Choice(
        "losses are means over patches, and over the 16 colors of color_4x4",
        "not stated; a factor is nothing to Adam",
    ),
    Choice(
        "a class token takes part, and is asked nothing",
        "not stated; mean pooling instead has none",
        "--config.model.pooling=gap",
    ),
    Choice(
        "optimizer.moment_dtype=bfloat16",
        "not stated; halves the first moment, as the authors' later code does",
        "--config.optimizer.moment_dtype=float32",
    ),
)
FINETUNED = Choice(
    "fine-tuned as in Table 4, at 384 pixels, by the class token",
    "not stated for this model",
    "--config.model.pooling=gap",
)
HELD_OUT = Choice(
    "the learning rate is chosen on the last fifth of the training images",
    "a tenth of the images is too few to choose on; both ways of beginning are chosen for so",
)
