"""A refusal's remedy is accepted: whoever sets what is proposed is not refused again for it."""

import itertools
import re

import pytest

from vit_jax import config
from vit_jax.config import checks
from vit_jax.training import run_config

LIKE = {"model.variant": "ViT-B/16", "data.source": "synthetic"}
SEVERAL = {"data.multilabel": "true"}
MASKED = {"objective.name": "masked_patches"}
NUMBERS = {"data.targets": "a,b", "loss.name": "mse"}
DISTILLED = {"objective.name": "distillation", "objective.teacher": "x"}
# Each breaks a rule; neighbors are tried together too.
MISTAKES = [
    {"data.source": "digits", "data.channels": "5"},
    {"data.channels": "5", "data.randaugment": "2,10"},
    {"data.depth": "16", "data.randaugment": "2,10"},
    {"data.depth": "16"} | MASKED,
    {"data.crop_pct": "1.2", "data.train_crop": "random", "data.eval_crop": "central"},
    {"data.crop_pct": "1.2", "data.eval_crop": "central"},
    {"data.crop_pct": "0.9", "data.resize_to": "256", "data.eval_crop": "central"},
    {"data.resize_to": "100", "data.eval_crop": "central"},
    {"data.resize_to": "100", "data.train_crop": "random"},
    {"data.image_size": "225"},
    {"data.repeats": "3", "train.batch_size": "2048", "train.mixup": "0.8",
     "train.accumulation": "3"},
    {"train.batch_size": "2049", "train.mixup": "0.8"},
    {"train.batch_size": "2050", "train.accumulation": "4", "train.cutmix": "1"},
    {"train.batch_size": "96", "train.accumulation": "8"},
    {"train.batch_size": "7", "train.accumulation": "3", "train.microbatch": "1"},
    {"train.batch_size": "2050", "train.microbatch": "1", "train.mixup": "0.8"},
    {"train.batch_size": "100", "mesh.fsdp": "3", "evaluation.batch_size": "9"},
    {"mesh.fsdp": "16"},
    DISTILLED | {"objective.target": "logits"} | SEVERAL,
    DISTILLED | {"objective.target": "logits"} | NUMBERS,
    {"checkpoint.best": "map"},
    {"checkpoint.best": "top5"} | SEVERAL,
    {"data.classes": "a,b"} | SEVERAL,
    {"data.targets": "a,b"},
    {"data.targets": "a,b"} | SEVERAL,
    {"checkpoint.best": "mae"},
    {"checkpoint.best": "f1"} | NUMBERS,
    {"train.label_smoothing": "0.1", "train.class_weights": "balanced"} | NUMBERS,
    {"data.sampling": "sqrt", "evaluation.tasks": "pets", "data.classes": "a"} | NUMBERS,
    {"evaluation.metrics": "f1,intervals"} | NUMBERS,
    NUMBERS | MASKED,
    SEVERAL | MASKED,
    {"train.mixup": "0.2", "train.cutmix": "1", "train.label_smoothing": "0.1"} | MASKED,
    {"loss.name": "sigmoid", "data.aspect": "native", "checkpoint.best": "top1"} | MASKED,
    {"model.pooling": "map"} | MASKED,
    MASKED | {"objective.target": "color_4x4", "model.variant": "ViT-B/2", "data.image_size": "8"},
    {"model.heads": "5"},
    {"model.variant": "R50+ViT-B/16"} | MASKED,
    {"model.pooling": "distilled", "model.distillation": "false"},
    {"model.distillation": "true", "model.class_token": "false"},
    {"model.pooling": "map", "model.norm_place": "pooled"} | MASKED,
]  # fmt: skip


def refusal(options, devices):
    """What a run with these options on so many devices is refused with, or None."""
    try:
        cfg = run_config.config_from_values({}, options)
        checks.check_devices(checks.with_accumulation(cfg, devices), devices)
    except config.ConfigError as error:
        return str(error)
    return None


def proposals(message):
    """The options that a refusal proposes, each with its value."""
    key = re.match(r"[\w.]+", message)[0]
    remedy = re.split(r"[;:] (?=at |set |nearest|needs)", message)[-1].rstrip(".")
    named = re.findall(r"([a-z_]+\.\w+)=([^\s,]+)", remedy)
    rest = re.sub(r"(, )?(or )?(set )?[a-z_]+\.\w+=\S+", "", remedy)
    rest = re.sub(r"set (it|one of them) to ", "set ", rest)
    found = re.match(r"(?:nearest:|set|at least|at most) ([\w./+]+(?:,? or \w+|, \w+)*)", rest)
    words = re.split(r",? or |, ", found[1]) if found else []
    return [*named, *((key, word) for word in words)]


def follow(options, devices, steps=0):
    """Follows every remedy of a refusal to its end."""
    message = refusal(options, devices)
    if message is None:
        return
    assert steps < 12, message
    for key, value in proposals(message):
        assert options.get(key) != value, f"{message}: {options}"
        changed = options | {key: value}
        after = refusal(changed, devices)
        if after is not None:
            # Another mistake's turn.
            assert not after.startswith(f"{key}={value}:"), f"{message} -> {after}"
        follow(changed, devices, steps + 1)
        if steps:
            return  # alternatives are tried for the first refusal


@pytest.mark.parametrize("devices", [1, 8])
def test_what_a_refusal_proposes_is_accepted(devices):
    for first, second in zip(MISTAKES, [{}, *MISTAKES], strict=False):
        follow(LIKE | first, devices)
        follow(LIKE | second | first, devices)
    assert devices == 1 or all(refusal(LIKE | one, devices) for one in MISTAKES)


def test_what_is_proposed_for_a_batch_is_accepted():
    """2048 was answered by 2049, and 2049 by 2048."""
    rules = itertools.product(
        (7, 2048, 2049, 2052), (1, 3, 4), (0.0, 0.8), (1, 3), (1, 3, 8), (None, 1, 5)
    )
    for batch, accumulation, mixup, repeats, devices, microbatch in rules:
        train = {"batch_size": batch, "mixup": mixup, "accumulation": accumulation}
        train |= {"microbatch": microbatch}
        options = {f"train.{key}": str(value).lower() for key, value in train.items()}
        follow(LIKE | options | {"data.repeats": str(repeats)}, devices)
