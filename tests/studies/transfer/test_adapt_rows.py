"""`adapt/MODEL-METHOD` on a folder of images, from the choice of a rate to the tested model."""

import json

import jax
import numpy as np
import pytest
from PIL import Image

import sweeps
from vit_jax import config, models, weights
from vit_jax.inference import loading
from vit_jax.studies import transfer

TINY = {
    "model.variant": "none", "model.patch_size": "4", "model.width": "16", "model.depth": "2",
    "model.mlp_dim": "32", "model.heads": "2", "model.unroll": "2", "data.image_size": "8",
    "data.workers": "0", "train.batch_size": "8", "train.duration": "20 steps",
    "schedule.warmup": "2 steps", "checkpoint.every": "none", "logging.tensorboard": "false",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two colors of images to train on and to test with."""
    root, rng = tmp_path_factory.mktemp("flowers"), np.random.default_rng(0)
    for split, count in (("train", 40), ("test", 20)):
        for channel, name in ((0, "poppy"), (2, "gentian")):
            place = root / split / name
            place.mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(0, 120, (10, 12, 3), np.uint8)
                pixels[..., channel] += 100
                Image.fromarray(pixels).save(place / f"{number}.png")
    return root


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A Google file with random weights of a tiny model."""
    model = config.build(config.override({}, {k: v for k, v in TINY.items() if "model." in k}))
    facts = weights.ModelSpec(
        model=models.complete(config.with_classes(model, 4).model),
        data=config.Data(image_size=(8, 8)),
    )
    network = models.create(facts.model, image_size=(8, 8))
    path = tmp_path_factory.mktemp("base") / "base.npz"
    weights.save(jax.device_get(network.init(jax.random.key(1))), facts, "google", path)
    return path


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
@pytest.mark.parametrize("method", ["lora", "probe"])
def test_a_folder_of_images_from_the_choice_to_the_test(method, folder, base, tmp_path):
    options = TINY | {"init_from": str(base), "data.root": str(folder)}
    plan = transfer.create_plan(f"adapt/ViT-S_16-{method}", options, rates=(0.05, 1e38), seeds=(0,))
    found = transfer.perform(plan, tmp_path, run=sweeps.here)
    states = {cell["lr"]: cell["state"] for cell in found["cells"] if cell["stage"] == "choose"}
    assert states == {0.05: "done", 1e38: "failed"}
    assert found["selected"] == {"setup": "vit", "lr": 0.05}
    (final,) = [cell for cell in found["cells"] if cell["stage"] == "final"]
    assert final["results"]["top1"] > 0.8
    assert json.loads((tmp_path / "transfer.json").read_text()) == found
    model = loading.load(tmp_path / "final" / "seed0")
    assert model.classes == ("gentian", "poppy")
    assert model.config.lora.rank == (8 if method == "lora" else None)
