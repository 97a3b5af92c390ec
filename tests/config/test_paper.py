"""Every generated config against the tables of the paper, value by value.

`paper_tables.json` was typed from the paper by other hands than `vit_jax/config/paper.py`; what
names are called is all this file takes from the catalog.
"""

import functools
import json
import pathlib
import re

import pytest

from vit_jax import config
from vit_jax.config import paper
from vit_jax.pages import listing

ROWS = json.loads((pathlib.Path(__file__).parents[1] / "paper_tables.json").read_text())
DATA = {"JFT-300M": "jft", "ImageNet-21k": "i21k", "ImageNet": "imagenet", "JFT": "jft"}
TARGETS = {
    "ImageNet": "imagenet", "ImageNet ReaL": "imagenet", "CIFAR-10": "cifar10",
    "CIFAR10": "cifar10", "CIFAR-100": "cifar100", "CIFAR100": "cifar100",
    "Oxford-IIIT Pets": "pets",
    "Oxford-IIIT-Pets": "pets", "Oxford Flowers-102": "flowers",
}  # fmt: skip


@functools.cache
def every():
    """The catalog's entries by name, read when a test asks for them: that takes seconds."""
    return {entry.name: entry for entry in listing.entries()}


def table(name):
    rows = [row for row in ROWS if row["table"] == name]
    assert rows
    return rows


def named(tables, group=""):
    """The names that say they belong to a table."""
    return {n for n, e in every().items() if tables in e.about.tables and n.startswith(group)}


def result(entry, what, table=None):
    (found,) = [r for r in entry.about.results if r.what == what and table in (None, r.table)]
    return found


def spelled(model):
    """A network of the paper as names spell it."""
    return model.replace("ResNet", "R").replace("R50x1+", "R50+").replace("/", "_")


def braces(models):
    """The networks of a row of Table 3: `ViT-B/16,32` are two, `ViT-*` is Table 5's."""
    if models.startswith("ViT-*"):
        return sorted({r["model"] for r in table("Table 5") if r["pretrain"] == "ImageNet"})
    first, *rest = models.split(",")
    return [first, *(re.sub(r"x?\d+$", other, first) for other in rest)]


def table_3():
    for row in table("Table 3"):
        for model in braces(row["models"]):
            for epochs in row["epochs"].split("/"):
                yield f"pretrain/{spelled(model)}-{DATA[row['dataset']]}-{epochs}ep", model, row


def test_table_3_is_all_there_and_nothing_else():
    assert named("3") == {name for name, _, _ in table_3()}


@pytest.mark.parametrize(
    ("name", "model", "row"), tuple(table_3()), ids=lambda v: v if "pretrain/" in v else ""
)
def test_table_3(name, model, row):
    entry = every()[name]
    cfg, about = entry.cfg, entry.about
    assert cfg.model.variant == model
    assert about.dataset == row["dataset"]
    assert str(cfg.train.duration) == f"{name.split('-')[-1].removesuffix('ep')} epochs"
    assert cfg.optimizer.lr == row["base_lr"]
    assert cfg.schedule.name == row["lr_decay"]
    assert cfg.optimizer.weight_decay == row["weight_decay"]
    assert cfg.model.dropout == row["dropout"]
    assert cfg.train.batch_size == row["batch"]
    assert str(cfg.schedule.warmup) == f"{row['warmup_steps']} steps"
    assert cfg.data.image_size == (row["resolution"], row["resolution"])
    assert cfg.train.clip_norm == row["grad_clip_norm"]
    # Section 4.1.
    assert (cfg.optimizer.name, cfg.optimizer.b1, cfg.optimizer.b2) == ("adam", 0.9, 0.999)
    classes = {"JFT-300M": 18291, "ImageNet-21k": 21843, "ImageNet": 1000}
    assert cfg.model.num_classes == classes[row["dataset"]]
    # Section 3.1: a hidden layer in the head of an encoder.
    assert cfg.model.representation_size == (cfg.model.width if "ViT" in model else None)


@pytest.mark.parametrize("row", table("Table 6"), ids=lambda r: f"{r['model']}-{r['epochs']}")
def test_table_6(row):
    entry = every()[f"pretrain/{spelled(row['model'])}-jft-{row['epochs']}ep"]
    assert "6" in entry.about.tables
    for what, key in {
        "ImageNet": "imagenet", "ReaL": "imagenet_real", "CIFAR-10": "cifar10",
        "CIFAR-100": "cifar100", "Pets": "pets", "Flowers": "flowers",
    }.items():  # fmt: skip
        assert result(entry, what) == (what, row[key], "6", None)
    assert entry.about.exaflops == row["exaflops"]
    # Printed as whole numbers, the least of which is 50; one of them the paper contradicts itself.
    assert entry.exaflops == pytest.approx(row["exaflops"], rel=0.032)


def test_compute_is_that_of_runs_of_three_whole_passes():
    """Counted for others, it would be what no run of them takes."""
    assert every()["cifar10/ViT-6_4"].exaflops == pytest.approx(8.29e-4, rel=1e-3)
    for name in ("cifar10/ViT-6_4-3h", "cifar10/ViT-3_4-distilled",
                 "mae/ViT-B_16-800ep-linear"):  # fmt: skip
        assert every()[name].exaflops is None


@pytest.mark.parametrize(
    "row", table("Table 7"), ids=lambda r: f"{r['model']}-{r['pretrain_optimizer']}-{r['dataset']}"
)
def test_table_7(row):
    sgd = row["pretrain_optimizer"] == "SGD"
    entry = every()[f"pretrain/{spelled(row['model'])}-jft-7ep{'-sgd' * sgd}"]
    assert "7" in entry.about.tables
    title = {"CIFAR10": "CIFAR-10", "CIFAR100": "CIFAR-100", "Oxford-IIIT Pets": "Pets",
             "Oxford Flowers-102": "Flowers"}.get(row["dataset"], row["dataset"])  # fmt: skip
    assert result(entry, title).value == row["top1"]
    optimizer = entry.cfg.optimizer
    assert optimizer.name == row["pretrain_optimizer"].lower()
    if sgd:  # Big Transfer, section 3.3, at batch 4096
        assert (optimizer.lr, optimizer.momentum, optimizer.weight_decay) == (0.48, 0.9, 1e-4)
        assert str(entry.cfg.schedule.warmup) == "5000 steps"
        assert entry.cfg.schedule.name == "step"


def table_5():
    for row in table("Table 5"):
        name = f"{spelled(row['model'])}-{DATA[row['pretrain']]}-{TARGETS[row['dataset']]}"
        yield f"finetune/{name}", row


@pytest.mark.parametrize(
    ("name", "row"), tuple(table_5()), ids=lambda v: v if isinstance(v, str) else ""
)
def test_table_5(name, row):
    entry = every()[name]
    what = "ReaL" if row["dataset"] == "ImageNet ReaL" else "top-1"
    assert result(entry, what, "5").value == row["top1"]
    assert entry.cfg.train.ema is None
    assert row["polyak"] is False
    # Patches of 14 do not fill 384 pixels; 27 of them fill 378.
    side = 378 if row["model"] == "ViT-H/14" else row["resolution"]
    assert entry.cfg.data.image_size == (side, side)
    # Where its pre-training is: the same numbers, or Table 6's where the two differ.
    origin = entry.about.origin
    published = f"imagenet21k/{spelled(row['model'])}" if "-i21k-" in entry.name else None
    assert entry.cfg.init_from == published
    assert bool(entry.about.warning) == (published is None)
    title = {"ImageNet ReaL": "ReaL", "Oxford-IIIT-Pets": "Pets", "Oxford Flowers-102": "Flowers"}
    upstream = result(every()[origin], title.get(row["dataset"], row["dataset"]))
    if origin == "pretrain/ViT-H_14-jft-14ep":
        assert upstream.table == "6"
    else:
        assert upstream.value == row["top1"]
    assert "5" in every()[origin].about.tables


@pytest.mark.parametrize("row", table("Table 4"), ids=lambda r: r["dataset"])
def test_table_4(row):
    if row["dataset"].startswith("VTAB"):
        names = named("4", "vtab/")
        assert len(names) == 3 * 19
    else:
        names = {n for n in every() if re.search(rf"^finetune/.*-{TARGETS[row['dataset']]}$", n)}
        assert len(names) == 14 + 13  # Table 5, and what Table 6 has besides
    for name in names:
        cfg, about = every()[name].cfg, every()[name].about
        assert "4" in about.tables
        assert str(cfg.train.duration) == f"{row['steps']} steps"
        assert cfg.optimizer.lr in row["base_lr"]
        assert about.transfer.rates == tuple(row["base_lr"])
        if len(row["base_lr"]) > 1:
            assert ", ".join(f"{lr:g}" for lr in row["base_lr"]) in about.choices[0].why
        assert cfg.train.batch_size == row["batch"]
        assert cfg.schedule.name == row["lr_decay"]
        assert cfg.optimizer.weight_decay == row["weight_decay"]
        assert cfg.train.clip_norm == row["grad_clip_norm"]
        assert (cfg.optimizer.name, cfg.optimizer.momentum) == ("sgd", 0.9)
        assert row["optimizer"] == "SGD momentum 0.9"
        assert cfg.data.image_size[0] == (378 if "H_14" in name else row["resolution"])
        assert (cfg.loss.name, cfg.model.representation_size) == ("softmax", None)
        assert str(cfg.schedule.warmup) in ("500 steps", "100 steps")


HELD_OUT = {"imagenet": 99, "cifar10": 98, "cifar100": 98, "pets": 90, "flowers": 90}  # B.1.1


def test_rates_are_chosen_on_a_part_of_the_training_images():
    for name, entry in every().items():
        protocol, data = entry.about.transfer, entry.cfg.data
        fine_tuning = name.startswith(("finetune/", "vtab/", "adapt/")) or "-digits" in name
        fine_tuning |= name.endswith(("-to-imagenet", "/digits-tenth", "/digits-scratch"))
        fine_tuning |= name.startswith("bit/") and not name.endswith("ep")
        assert (protocol is not None) == fine_tuning
        if name.startswith("vtab/"):
            assert data.train_split == f"{protocol.train}+{protocol.held_out}"
            assert protocol.task == f"vtab/{name.split('-', 3)[3]}"
        if name.startswith("finetune/"):
            percent = HELD_OUT[protocol.task]
            assert protocol.train == f"train[:{percent}%]"
            assert protocol.held_out == f"train[{percent}%:]"
            assert data.train_split == "train"
            assert data.eval_split == ("validation" if protocol.task == "imagenet" else "test")


def test_resnets_try_the_setup_of_big_transfer():
    """BiT, section 3.3: 500, 10,000 or 20,000 steps; mixup 0.1 but for the small sets."""
    lengths = {"imagenet": (20_000, 0.1), "cifar10": (10_000, 0.1), "cifar100": (10_000, 0.1),
               "pets": (500, 0.0), "flowers": (500, 0.0)}  # fmt: skip
    tried = set()
    for name, entry in every().items():
        if not name.startswith("finetune/"):
            continue
        setups = entry.about.transfer.setups
        resnet = entry.cfg.model.architecture == "resnet"
        assert set(setups) == ({"bit"} if resnet else set())
        if not resnet:
            continue
        tried.add(entry.model)
        steps, mixup = lengths[entry.about.transfer.task]
        assert setups["bit"] == {
            "optimizer.lr": 0.003, "train.duration": f"{steps} steps", "train.mixup": mixup,
            "train.clip_norm": None, "schedule.name": "step", "schedule.drops": (0.3, 0.6, 0.9),
        }  # fmt: skip
        assert (entry.cfg.optimizer.name, entry.cfg.optimizer.momentum) == ("sgd", 0.9)
        assert entry.cfg.train.batch_size == 512
    assert tried == {"R50x1", "R50x2", "R101x1", "R152x1", "R152x2", "R200x3"}


@pytest.mark.parametrize(
    ("target", "steps", "mixup", "resized", "cropped"),
    [
        # BiT-HyperRule: under 20,000 images, under 500,000, more; under 96 x 96 pixels or not.
        ("imagenet", 20_000, 0.1, 512, 480), ("cifar10", 10_000, 0.1, 160, 128),
        ("pets", 500, 0.0, 512, 480), ("vtab-svhn", 500, 0.0, 160, 128),
        ("vtab-camelyon", 500, 0.0, 512, 480),
    ],
)  # fmt: skip
def test_big_transfer_is_fine_tuned_by_its_own_rule(target, steps, mixup, resized, cropped):
    entry = every()[f"bit/R152x4-jft-{target}"]
    cfg = entry.cfg
    assert (str(cfg.train.duration), cfg.train.mixup) == (f"{steps} steps", mixup)
    assert (cfg.train.batch_size, cfg.train.clip_norm, cfg.train.ema) == (512, None, None)
    assert (cfg.data.resize_to, cfg.data.image_size) == (resized, (cropped, cropped))
    assert (cfg.data.train_crop, cfg.data.eval_crop) == ("random", "resize")
    optimizer = cfg.optimizer
    assert (optimizer.name, optimizer.lr, optimizer.momentum) == ("sgd", 0.003, 0.9)
    assert optimizer.weight_decay == 0
    assert (cfg.schedule.name, cfg.schedule.drops) == ("step", (0.3, 0.6, 0.9))
    assert (cfg.model.resnet_version, cfg.model.head_bias, cfg.loss.name) == ("v2", 0, "softmax")
    # One rate: nothing is chosen.
    assert (entry.about.transfer.rates, entry.about.transfer.setups) == ((0.003,), {})


def test_images_of_table_2_are_larger_and_their_weights_averaged():
    for name in named("2", "finetune/"):
        cfg, large = every()[name].cfg, re.search(r"-(51[28])$", name)
        assert cfg.train.ema == (0.9999 if large else None)
        assert not large or cfg.data.image_size == (int(large[1]),) * 2


def test_weights_of_big_transfer_were_never_published():
    origin = "bit/R152x4-jft-40ep"
    assert named("2", "bit/") == {name for name in every() if name.startswith("bit/")}
    for name in named("2", "bit/") - {origin}:
        assert every()[name].about.origin == origin
        assert "never published" in every()[name].about.warning
    assert not [n for n, e in every().items() if "noisy" in (n + e.about.row).lower()]


def test_big_transfer_divides_datasets_at_20_and_500_thousand_images():
    sizes = (19_999, 20_000, 499_999, 500_000)
    assert [paper.big_transfer(n).steps for n in sizes] == [500, 10_000, 10_000, 20_000]


def test_big_transfer_neither_mirrors_nor_crops_where_labels_would_change():
    """BiT, appendix F."""
    for name in named("2", "bit/R152x4-jft-vtab-"):
        data, task = every()[name].cfg.data, name.removeprefix("bit/R152x4-jft-vtab-")
        uncropped = ("clevr-count", "clevr-distance", "dmlab", "kitti-distance",
                     "dsprites-location")  # fmt: skip
        unmirrored = ("dsprites-orientation", "smallnorb-azimuth", "dsprites-location")
        assert data.train_crop == ("resize" if task in uncropped else "random")
        assert data.flip == (task not in unmirrored)


@pytest.mark.parametrize("task", table("VTAB-1k task"), ids=lambda r: r["task"])
def test_vtab(task):
    entries = [e for n, e in every().items() if n.startswith("vtab/") and e.dataset == task["task"]]
    assert len(entries) == 3
    versions = {"kitti:3.1.0": "kitti:3.*.*", "oxford_iiit_pet:3.*.*": "oxford_iiit_pet:4.*.*"}
    for entry in entries:
        data = entry.cfg.data
        assert data.name == versions.get(task["tfds"], task["tfds"])
        assert entry.cfg.model.num_classes == task["classes"]
        assert data.eval_split == task["test_split"]
        if task["task"] in (
            "DTD", "Flowers102", "Camelyon", "Retinopathy", "DMLab", "KITTI-Dist", "Sun397",
        ):  # fmt: skip
            validation = "validation[:200]"
        elif task["task"].startswith("sNORB"):
            validation = "test[:200]"
        else:
            validation = f"train[{task['train']}:{task['train'] + 200}]"
        assert data.train_split == f"train[:800]+{validation}"
        assert (data.labels is None) == (task["label_rule"] == "label")
        assert not entry.about.needs
        # Big Transfer, appendix F.
        assert data.flip == (task["task"] not in ("dSpr-Ori", "sNORB-Azim", "dSpr-Loc"))
        uncropped = ("Clevr-Count", "Clevr-Dist", "DMLab", "KITTI-Dist", "dSpr-Loc")
        assert data.train_crop == ("resize" if task["task"] in uncropped else "random")


@pytest.mark.parametrize("row", table("README AugReg recommended"), ids=lambda r: r["model"])
def test_augreg(row):
    """The released file names say how they were trained."""
    file = re.search(
        r"(?P<model>[^/]+)-i21k-(?P<epochs>\d+)ep-lr_(?P<lr>[\d.]+)-aug_(?P<aug>\w+)"
        r"-wd_(?P<wd>[\d.]+)-do_(?P<do>[\d.]+)-sd_(?P<sd>[\d.]+)\.npz",
        row["pretrained_npz"],
    )
    hybrid = re.fullmatch(r"(R\d*)_(\w+)_(\d+)", file["model"])
    model = f"{hybrid[1]}+ViT-{hybrid[2]}_{hybrid[3]}" if hybrid else f"ViT-{file['model']}"
    entry = every()[f"augreg/{model}-i21k"]
    cfg = entry.cfg
    assert str(cfg.train.duration) == f"{file['epochs']} epochs"
    assert cfg.optimizer.lr == float(file["lr"])
    assert cfg.optimizer.weight_decay == float(file["wd"])
    assert cfg.model.dropout == float(file["do"])
    assert cfg.model.stochastic_depth == float(file["sd"])
    levels = {"none": (0.0, None), "light1": (0.0, (2, 0)), "medium1": (0.2, (2, 15)),
              "strong1": (0.5, (2, 20))}  # fmt: skip
    assert (cfg.train.mixup, cfg.data.randaugment) == levels[file["aug"]]
    assert result(entry, "ImageNet 384").value == row["imagenet_top1"]
    assert f"augreg/{model}-imagenet" in every()


@pytest.mark.parametrize(
    ("name", "images", "data", "splits", "steps"),
    [
        # 7 x 303 million / 4096 images is 517,822.3 steps; the last step counts whole.
        ("pretrain/ViT-B_16-jft-7ep", 303_000_000, "jft_300m", "train validation", 517_823),
        ("pretrain/ViT-L_16-jft-14ep", 303_000_000, "jft_300m", "train validation", 1_035_645),
        ("pretrain/ViT-B_16-i21k-90ep", 14_197_122 - 51_200, "imagenet21k",
         "full[51200:] full[25600:51200]", 310_824),
        ("pretrain/ViT-B_16-imagenet-300ep", round(0.99 * 1_281_167), "imagenet2012",
         "train[:99%] validation", 92_898),
        ("finetune/ViT-B_16-jft-imagenet", 1_281_167, "imagenet2012", "train validation", 20_000),
        ("finetune/ViT-B_16-jft-cifar10", 50_000, "cifar10", "train test", 10_000),
        ("finetune/ViT-B_16-jft-cifar100", 50_000, "cifar100", "train test", 10_000),
        ("finetune/ViT-B_16-jft-pets", 3_680, "oxford_iiit_pet", "train test", 500),
        ("finetune/ViT-B_16-jft-flowers", 1_020, "oxford_flowers102", "train test", 500),
        ("figure4/ViT-B_32-jft-9M", 9_000_000, "jft_300m", "train[:9000000] validation", 517_823),
    ],
)  # fmt: skip
def test_data_sets(name, images, data, splits, steps):
    entry = every()[name]
    assert entry.about.images == images
    assert entry.steps == steps
    assert entry.cfg.data.name == data
    assert f"{entry.cfg.data.train_split} {entry.cfg.data.eval_split}" == splits
    classes = {"cifar10": 10, "cifar100": 100, "oxford_iiit_pet": 37, "oxford_flowers102": 102}
    if data in classes:
        assert entry.cfg.model.num_classes == classes[data]


def test_figures_and_appendices():
    figure_4 = {(every()[n].model, every()[n].cfg.data.train_split) for n in named("figure 4")}
    splits = ("train[:9000000]", "train[:30000000]", "train[:90000000]", "train")
    models = ("ViT-L/16", "ViT-L/32", "ViT-B/32", "ViT-b/32", "R50x1", "R152x2")
    assert figure_4 == {(model, split) for model in models for split in splits}
    figure_10 = {
        (e.epochs, e.cfg.optimizer.lr, e.cfg.optimizer.weight_decay, e.model)
        for e in (every()[n] for n in named("figure 10"))
    }
    model = "ViT-L/16"
    assert figure_10 == {(7, 2e-4, 0.01, model), (7, 4e-4, 0.1, model), (14, 4e-4, 0.1, model)}
    pooling = {(every()[n].cfg.model.pooling, every()[n].cfg.optimizer.lr) for n in named("D.3")}
    assert pooling == {("token", 8e-4), ("gap", 8e-4), ("gap", 3e-4)}
    axial = {every()[n].model for n in named("D.6")}
    assert axial == {"AxialViT-B/16", "AxialViT-B/32", "AxialResNet50"}
    beside = {every()[n].model for n in named("figure 13")} - axial
    assert beside == {"ViT-B/16", "ViT-B/32", "R50x1"}
    base = every()["scaling/base"].cfg.model
    assert (base.depth, base.width, base.mlp_dim, base.patch_size) == (8, 1024, 2048, (32, 32))
    for name in named("D.2"):
        shape = every()[name].cfg.model
        changed = [
            key for key in ("depth", "width", "mlp_dim", "patch_size")
            if getattr(shape, key) != getattr(base, key)
        ]  # fmt: skip
        assert len(changed) == (0 if name == "scaling/base" else 4 if "all" in name else 1)
    assert every()["scaling/depth-64"].cfg.model.depth == 64


@pytest.mark.slow
@pytest.mark.parametrize("exhibit", ["figure9", "table8"])
def test_rows_that_are_compared_by_few_shot_say_so(exhibit):
    """A run by itself measures its own split: `show` has the flags that make it measure the row."""
    entries = listing.entries(table=exhibit)
    assert entries
    for entry in entries:
        (line,) = [line for line in listing.notes(entry.about) if line.startswith("measure: ")]
        assert line == (
            f"measure: 5-shot linear accuracy on ImageNet, by `vit_jax reproduce {exhibit}` or "
            "--config.evaluation.fewshot=imagenet --config.evaluation.shots=5"
        )


# Options that other papers, their READMEs or their code state of a config, and what they print.
BASELINE = {
    "train.batch_size": 1024, "train.mixup": 0.2, "train.clip_norm": 1.0, "model.pooling": "gap",
    "model.position": "sincos_2d", "data.randaugment": (2, 10), "optimizer.lr": 1e-3,
    "optimizer.weight_decay": 0.1,  # printed as 1e-4 where it is not multiplied by the rate
}  # fmt: skip
DEIT = {  # table 9, and its README
    "train.batch_size": 1024, "train.duration": "300 epochs", "optimizer.name": "adam",
    "optimizer.lr": 0.0005 * 1024 / 512, "optimizer.weight_decay": 0.05,
    "schedule.warmup": "5 epochs", "train.mixup": 0.8, "train.cutmix": 1.0,
    "train.label_smoothing": 0.1, "data.erase": 0.25, "data.repeats": 3,
    "model.stochastic_depth": 0.1, "data.crop_pct": 0.875, "model.gelu": "erf",
    "train.clip_norm": None,
}  # fmt: skip
DEIT3 = {  # tables 1 and 3, and its README; deit3-jax's files have the same
    "optimizer.name": "lamb", "train.batch_size": 2048, "train.mixup": 0.8, "train.cutmix": 1.0,
    "train.label_smoothing": 0.0, "data.erase": 0.0, "data.repeats": 3, "data.randaugment": None,
    "data.transforms": "three_augment", "model.layer_scale": 1e-4, "model.class_position": False,
    # A sum over 1,000 classes where they take the mean.
    "loss.name": "sigmoid", "train.clip_norm": 1000.0, "optimizer.eps": 1e-5,
}  # fmt: skip
TO_224 = {
    "data.image_size": 224, "optimizer.lr": 1e-5, "optimizer.weight_decay": 0.1,
    "train.batch_size": 512, "train.duration": "20 epochs",
}  # fmt: skip
RECIPES = {
    "bit/R152x4-jft-40ep": ({  # BiT, section 3.3; the rate is 0.03 x batch / 256
        "model.resnet_units": (3, 8, 36, 3), "model.resnet_width": 4, "model.resnet_version": "v2",
        "model.num_classes": 18_291, "optimizer.name": "sgd", "optimizer.lr": 0.48,
        "optimizer.momentum": 0.9, "optimizer.weight_decay": 1e-4, "train.duration": "40 epochs",
        "train.batch_size": 4096, "schedule.name": "step", "schedule.warmup": "5000 steps",
        "schedule.drops": (10 / 40, 23 / 40, 30 / 40, 37 / 40), "data.image_size": 224,
    }, []),
    **{
        f"baseline/ViT-S_16-imagenet-{epochs}ep": (
            BASELINE | {"train.duration": f"{epochs} epochs"}, []
        )
        for epochs in (90, 150, 300)
    },
    **{
        f"deit/ViT-{size}_16-imagenet-300ep": (DEIT, [top1])
        for size, top1 in (("Ti", 72.2), ("S", 79.8), ("B", 81.8))
    },
    **{
        f"deit3/{name}": (DEIT3 | {
            "train.duration": f"{name[-5:-2]} epochs", "data.image_size": size, "optimizer.lr": lr,
            "optimizer.weight_decay": decay, "model.stochastic_depth": depth,
        }, [] if size < 224 else [top1])
        for name, size, lr, decay, depth, top1 in (
            ("ViT-S_16-imagenet-400ep", 224, 4e-3, 0.02, 0.0, 80.4),
            ("ViT-S_16-imagenet-800ep", 224, 4e-3, 0.05, 0.05, 81.4),
            ("ViT-B_16-imagenet-400ep", 192, 3e-3, 0.02, 0.1, None),
            ("ViT-B_16-imagenet-800ep", 192, 3e-3, 0.05, 0.2, None),
            ("ViT-L_16-imagenet-400ep", 192, 3e-3, 0.02, 0.4, None),
            ("ViT-H_14-imagenet-400ep", 154, 3e-3, 0.02, 0.5, None),
        )
    },
    **{
        f"deit3/{name}-to-224": (TO_224, [top1])
        for name, top1 in (
            ("ViT-B_16-imagenet-400ep", 83.5), ("ViT-B_16-imagenet-800ep", 83.8),
            ("ViT-L_16-imagenet-400ep", 84.5), ("ViT-H_14-imagenet-400ep", 85.1),
        )
    },
    **{  # big_vision's vit_i1k.py
        f"augreg/ViT-{model}-imagenet": ({
            "train.mixup": mixup, "data.randaugment": randaugment, "optimizer.lr": 1e-3,
            "optimizer.weight_decay": 0.1, "train.clip_norm": 1, "train.batch_size": 4096,
            "train.duration": "300 epochs",
        }, [])
        for model, mixup, randaugment in (
            ("Ti_16", 0.0, (2, 0)), ("S_32", 0.2, (2, 10)), ("S_16", 0.5, (2, 15)),
            ("B_32", 0.5, (2, 15)), ("B_16", 0.5, (2, 15)), ("L_16", 0.5, (2, 15)),
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_of_other_papers_change_nothing_of_their_configs(name):
    options, printed = RECIPES[name]
    cfg, about = every()[name].cfg, every()[name].about
    assert config.build(config.override(config.to_dict(cfg), options)) == cfg
    assert [one.value for one in about.results if str(one.table).startswith("DeiT")] == printed
    if name.endswith("-to-224"):
        assert about.origin == name.removesuffix("-to-224")


def test_the_same_run_under_two_names_is_the_same_run():
    def fingerprint(name):
        return config.fingerprint(every()[name].cfg)

    base = fingerprint("pretrain/ViT-B_16-jft-7ep")
    assert fingerprint("posemb/1d-stem") == base
    assert fingerprint("pooling/token-8e-4") == base
    assert fingerprint("axial/ViT-B_16") == base
    assert fingerprint("axial/ViT-B_32") == fingerprint("pretrain/ViT-B_32-jft-7ep")
    assert fingerprint("axial/R50x1") == fingerprint("pretrain/R50x1-jft-7ep")
    assert fingerprint("posemb/2d-stem") != base
