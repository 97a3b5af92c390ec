"""The rows of section 4.6: what the paper says of them, and nothing that it does not."""

from vit_jax import config
from vit_jax.config import catalog
from vit_jax.pages import listing
from vit_jax.studies.reproduce import tables
from vit_jax.training import run_config

FILES = catalog.names()
ENTRIES = {name: listing.entry(name) for name in FILES if FILES[name].name == "masked.py"}
PRETRAINING = [name for name in ENTRIES if name.count("/") == 1 and "ViT-B_16" in name
               and not name.endswith("-to-imagenet")]  # fmt: skip

PRINTED = 79.9  # top-1 in % on ImageNet: section 4.6


def test_the_printed_number_is_that_of_a_million_steps_of_jft():
    printed = {name: entry.about.results for name, entry in ENTRIES.items() if entry.about.results}
    assert list(printed) == ["masked/ViT-B_16-jft-to-imagenet"]
    (result,) = printed["masked/ViT-B_16-jft-to-imagenet"]
    assert (result.what, result.value) == ("top-1", PRINTED)
    cells = {cell.runs[0].name: cell for cell in tables.table("masked").scores}
    assert cells["masked/ViT-B_16-jft-to-imagenet"].printed == PRINTED
    assert sum(cell.printed is not None for cell in cells.values()) == 1
    origins = {cell.runs[0].origin.name for cell in cells.values() if cell.runs[0].origin}
    assert origins == {*PRETRAINING, "masked/digits"}


def test_what_the_paper_says_of_every_pre_training():
    assert len(PRETRAINING) == 9
    for name in PRETRAINING:
        cfg = run_config.resolve(name, {})
        steps = 100_000 if "-100k" in name else 1_000_000
        assert str(cfg.train.duration) == f"{steps} steps"
        assert (cfg.optimizer.name, cfg.optimizer.lr) == ("adam", 2e-4)
        assert (cfg.schedule.name, str(cfg.schedule.warmup)) == ("cosine", "10000 steps")
        assert cfg.train.batch_size == 4096
        assert cfg.model.variant == "ViT-B/16"
        assert cfg.data.image_size == (224, 224)
        assert (cfg.data.train_crop, cfg.data.flip) == ("inception", True)
        assert cfg.objective.split == (0.8, 0.1, 0.1)
        rate = 0.15 if name.endswith("-rate15") else 0.5
        targets = [t for t in ("color_4x4", "pixels") if name.endswith(t)] or ["color"]
        assert (cfg.objective.rate, cfg.objective.target) == (rate, *targets)
        # Of Table 3's row, what is not stated here.
        data = name.split("-")[2]
        epochs = {"jft": 7, "i21k": 90, "imagenet": 300}[data]
        like = run_config.resolve(f"pretrain/ViT-B_16-{data}-{epochs}ep", {})
        assert cfg.data == like.data
        for key in ("optimizer.weight_decay", "model.dropout", "train.clip_norm"):
            assert config.get(cfg, key) == config.get(like, key)
    assert 13 < ENTRIES["masked/ViT-B_16-jft"].epochs < 14.5
