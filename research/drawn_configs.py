"""Configs of small runs, drawn at random: images, objectives, augmentations, devices."""

import os

import cv2
import numpy as np

import runs

WORK = runs.ROOT / "build/campaign"  # images, teachers and compiled programs, kept
STEPS = 100  # of a run, with a save every 5
WATCHDOG = {"heartbeat": 20, "join": 120}
UNLABELED = {  # objectives that learn without labels, and what is compared for the best checkpoint
    "MAE": ({"name": "mae", "decoder_width": 8, "decoder_depth": 1, "decoder_heads": 2}, "loss"),
    "DINO": ({"name": "dino", "prototypes": 24, "head_hidden": 16, "head_bottleneck": 8}, "knn"),
}


def draw(rng, processes, teacher):
    """A config's options, the devices of each process, and what was drawn, in words.

    `teacher` returns a run to learn from, of JPEGs or digits.
    """
    words, chance = [], lambda share: rng.random() < share

    def maybe(share, word, options):
        if not chance(share):
            return {}
        words.append(word)
        return options

    photos = chance(0.6)
    words.append("JPEGs" if photos else "digits")
    data = runs.TINY["data"]
    if photos:
        data = {
            "source": "folder", "root": str(images()), "image_size": 16, "channels": 3,
            "train_split": "train", "eval_split": "test", "crop_area": (0.3, 1.0), "threads": 2,
        }  # fmt: skip
        data |= maybe(0.4, "RandAugment", {"randaugment": (2, 9)})
        data |= maybe(0.3, "erasing", {"erase": 0.5})
        data |= maybe(0.15, "loader process", {"workers": 1})
    objective = rng.choice(("labels", "labels", "masked", "teacher", "LoRA", *UNLABELED))
    words.append(objective)
    train = {"batch_size": 16, "duration": f"{STEPS} steps", "ema": None}
    sections = {"checkpoint": {"best": "top1"}, "evaluation": {"every": 25}}
    if objective == "masked":
        sections |= {
            "objective": {
                "name": "masked_patches",
                "target": rng.choice(("color", "color_4x4", "pixels")),
            },
            "checkpoint": {"best": "loss"},
        }
    elif objective == "teacher":
        sections["objective"] = {
            "name": "distillation", "teacher": str(teacher(photos)), "weight": 0.5,
            "target": rng.choice(("logits", "features", "tokens")),
        }  # fmt: skip
    elif objective == "LoRA":
        sections["lora"] = {"rank": 2}
    elif objective in UNLABELED:
        own, best = UNLABELED[objective]
        sections |= {"objective": own, "checkpoint": {"best": best}}
        sections["evaluation"] = sections["evaluation"] | {"knn": "self"}
    if objective == "DINO":
        data = data | {"train_crop": "inception", "rotation": 0.0}
        sections["objective"] = own | {
            "local_views": 2,
            "centering": rng.choice(("mean", "sinkhorn")),
            **maybe(0.5, "KoLeo", {"koleo": 0.1}),
            **maybe(0.5, "masked views", {"patch_loss": 1.0}),
        }
    elif objective not in ("masked", "MAE"):
        train |= maybe(0.3, "mixup", {"mixup": 0.5})
        train |= maybe(0.2, "CutMix", {"cutmix": 1.0})
    if objective != "DINO":  # which keeps an average by its own momentum
        train |= maybe(0.5, "average", {"ema": 0.9})
    train |= maybe(0.4, "accumulation", {"accumulation": 2})
    train |= maybe(0.15, "replay", {"replay": 7})
    sections["optimizer"] = maybe(0.5, "bfloat16 moments", {"moment_dtype": "bfloat16"})
    devices = rng.choice((1, 2, 4) if processes == 1 else (1, 2))
    words.append(f"{processes * devices} devices")
    sections["mesh"] = {"zero": False, "fsdp_min_size": 16}
    if processes * devices > 1:
        sections["mesh"] |= maybe(0.6, "ZeRO", {"zero": True})
        sections["mesh"] |= maybe(0.2, "fsdp", {"fsdp": 2})
    sections |= {"data": data, "train": train, "watchdog": WATCHDOG, "seed": rng.randrange(1000)}
    model = {"dropout": rng.choice((0.0, 0.1))}
    return sections | {"model": model}, devices, ", ".join(words)


def configure(sections):
    """The config of drawn options, those of runs.TINY where they do not say."""
    if sections["data"]["source"] != "digits":
        with_digits = runs.TINY["data"].keys() - sections["data"].keys()
        default = {"flip": True, "rotation": 0.0, "train_crop": "inception"}
        sections = sections | {
            "data": {name: default[name] for name in with_digits} | sections["data"]
        }
    return runs.configure(**sections)


def images():
    """A folder of small JPEGs, smooth and random, in four classes."""
    folder = WORK / "images"
    if not folder.exists():
        rng, part = np.random.default_rng(0), WORK / f"images{os.getpid()}"
        for split, count in (("train", 20), ("test", 6)):
            for label in range(4):
                place = part / split / f"class{label}"
                place.mkdir(parents=True)
                for number in range(count):
                    coarse = rng.integers(0, 256, (3 + label, 4, 3), np.uint8)
                    size = tuple(int(side) for side in rng.integers(20, 40, 2))
                    smooth = cv2.resize(coarse, size, interpolation=cv2.INTER_CUBIC)
                    assert cv2.imwrite(str(place / f"{number}.jpg"), smooth)
        part.rename(folder)
    return folder
