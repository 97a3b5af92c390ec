"""Published checkpoints: names, addresses, and the index of How to train your ViT."""

import dataclasses
import json
import math
import pathlib
import re

import pytest

from vit_jax import config, models
from vit_jax.utils import tree_utils
from vit_jax.weights import hub, zoo
from vit_jax.weights.readers import WeightsError

EVERY = zoo.entries()
ENTRIES = [entry for entry in EVERY if entry.urls]  # the others: test_bundled.py
ROWS = json.loads((pathlib.Path(__file__).parent.parent / "paper_tables.json").read_text())


def test_entries_are_whole():
    assert len(EVERY) == len({entry.name for entry in EVERY})
    # Two names for one file would be one too many.
    assert len(ENTRIES) == len({entry.urls for entry in ENTRIES})
    for entry in ENTRIES:
        assert re.fullmatch(r"[\w.+-]+(/[\w.+-]+)+", entry.name)
        assert entry.layout in ("google", "bit", "timm", "huggingface", "tips")
        assert entry.license or models.variants.parse(entry.model)
        assert re.fullmatch(r"ViT-\w+\+?/\d+", entry.model) or not entry.license
        for url in entry.urls:
            assert url == hub.parse_address(url)
            assert hub.cache_path(url)
        if entry.top1 is not None:
            assert 70 < entry.top1 < 90
            assert entry.reported_by


def test_addresses():
    def urls(name):
        return zoo.find(name).urls

    google = "https://storage.googleapis.com/vit_models"
    assert urls("imagenet21k/ViT-B_16") == (f"{google}/imagenet21k/ViT-B_16.npz",)
    assert urls("imagenet21k+imagenet2012/R50+ViT-B_16") == (
        f"{google}/imagenet21k%2Bimagenet2012/R50%2BViT-B_16.npz",
    )
    assert urls("bit/BiT-M-R152x4-ILSVRC2012") == (
        "https://storage.googleapis.com/bit_models/BiT-M-R152x4-ILSVRC2012.npz",
    )
    assert urls("google/vit-base-patch16-224") == tuple(
        f"https://huggingface.co/google/vit-base-patch16-224/resolve/main/{file}"
        for file in ("config.json", "preprocessor_config.json", "model.safetensors")
    )
    assert urls("timm/vit_base_patch16_224.augreg_in21k") == tuple(
        f"https://huggingface.co/timm/vit_base_patch16_224.augreg_in21k/resolve/main/{file}"
        for file in ("config.json", "model.safetensors")
    )


def test_backbones_say_license_and_access():
    backbones = {entry.name: entry for entry in ENTRIES if entry.license}
    kinds = ("deit_", "deit3_", ".mae", "dinov2.", "dinov3", "_clip_", "_siglip_")
    kinds += ("beit_", "beitv2_", "eva02_", "eva_giant_", "_rope_reg", "tips_oss_", "tips_v2_")
    assert all(any(kind in name for name in backbones) for kind in kinds)
    assert all(any(kind in name for kind in kinds) for name in backbones)
    gated = {name for name, entry in backbones.items() if entry.access == "gated"}
    assert gated == {name for name in backbones if name.startswith("facebook/dinov3")}
    assert backbones["timm/vit_base_patch16_224.mae"].license == "cc-by-nc-4.0"
    assert {e.license for name, e in backbones.items() if "/eva" in name} == {"mit"}
    assert {e.license for name, e in backbones.items() if "/beit" in name} == {"apache-2.0"}
    assert not [e.name for e in ENTRIES if e.access and not e.license]


# As vision_transformer's vit_jax.ipynb @c6de1e5 prints the bucket.
LISTING = {
    "imagenet21k/ViT-B_16": "393.69 MiB",
    "imagenet21k/ViT-B_32": "400.01 MiB",
    "imagenet21k/ViT-B_8": "393.72 MiB",
    "imagenet21k/ViT-L_16": "1.22 GiB",
    "imagenet21k/ViT-L_32": "1.23 GiB",
    "imagenet21k/ViT-H_14": "2.46 GiB",
    "imagenet21k/R50+ViT-B_16": "439.85 MiB",
    "imagenet21k/R50+ViT-L_32": "1.31 GiB",
    "imagenet21k/R26+ViT-B_32": "450.23 MiB",
    "imagenet21k+imagenet2012/R50+ViT-B_16": "377.57 MiB",
    "imagenet21k+imagenet2012/ViT-B_16-224": "330.29 MiB",
    "imagenet21k+imagenet2012/ViT-B_16": "331.4 MiB",
    "imagenet21k+imagenet2012/ViT-B_32": "336.89 MiB",
    "imagenet21k+imagenet2012/ViT-B_8": "334.78 MiB",
    "imagenet21k+imagenet2012/ViT-L_16-224": "1.13 GiB",
    "imagenet21k+imagenet2012/ViT-L_16": "1.14 GiB",
    "imagenet21k+imagenet2012/ViT-L_32": "1.14 GiB",
}


def test_google_files_are_those_of_the_listing():
    ours = {e.name: e.mib for e in ENTRIES if e.collection.startswith("imagenet21k")}
    assert LISTING.keys() == ours.keys()
    for name, size in LISTING.items():
        number, unit = size.split()
        assert ours[name] == pytest.approx(float(number) * {"MiB": 1, "GiB": 1024}[unit], abs=0.5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ViT-B_16", "ViT-L_32", "ViT-H_14", "R50+ViT-L_32"])
def test_sizes_fit_the_models(name):
    # Of this file the pre_logits and all 21,843 classes are part; four bytes each.
    model = models.complete(config.Model(variant=zoo.variant(name), num_classes=21843))
    model = dataclasses.replace(model, representation_size=model.width)
    shapes = tree_utils.flatten(models.create(model, image_size=(224, 224)).shapes())
    count = sum(math.prod(leaf.shape) for leaf in shapes.values())
    entry = zoo.find(f"imagenet21k/{name}")
    assert entry.mib == pytest.approx(4 * count / 2**20, rel=0.005)


def test_recommended_files_are_those_of_the_readme():
    rows = [row for row in ROWS if row["table"] == "README AugReg recommended"]
    assert len(rows) == 9
    for row in rows:
        model = row["model"].replace("+", "+ViT-") if "+" in row["model"] else f"ViT-{row['model']}"
        name = f"augreg/{model.replace('/', '_')}"
        first, tuned = zoo.find(name), zoo.find(f"{name}-imagenet")
        assert first.urls == (hub.parse_address(row["pretrained_npz"]),)
        assert tuned.urls == (hub.parse_address(row["finetuned_npz"]),)
        assert (first.mib, first.model) == (row["size_mib"], model)
        assert (tuned.image_size, tuned.top1) == (row["resolution"], row["imagenet_top1"])


@pytest.mark.parametrize(
    ("name", "model", "data", "side"),
    [
        (
            "augreg/B_16-i21k-300ep-lr_0.001-aug_light0-wd_0.03-do_0.1-sd_0.1",
            "ViT-B/16",
            "21k",
            224,
        ),
        (
            "augreg/R_Ti_16-i1k-300ep-lr_0.001-aug_none-wd_0.1-do_0.0-sd_0.0"
            "--imagenet2012-steps_5k-lr_0.01-res_384.npz",
            "R+ViT-Ti/16",
            "ImageNet, ImageNet",
            384,
        ),
        (
            "augreg/R26_S_32-i21k_30-30ep-lr_0.001-aug_none-wd_0.1-do_0.0-sd_0.0"
            "--cifar100-steps_500-lr_0.003-res_224",
            "R26+ViT-S/32",
            "ImageNet-21k, cifar100",
            224,
        ),
    ],
)
def test_any_augreg_file_by_its_own_name(name, model, data, side):
    entry = zoo.find(name)
    file = name.removesuffix(".npz")
    assert entry.urls == (f"https://storage.googleapis.com/vit_models/{file}.npz",)
    assert (entry.model, entry.image_size) == (model, side)
    assert entry.data.endswith(data)
    assert entry.top1 is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("imagenet21k/ViT-B16", "did you mean imagenet21k/ViT-B_16?"),
        ("timm/vit_base_patch16_224.augreg", "did you mean timm/vit_base_patch16_224.augreg_in"),
        ("augreg/../secret", "no published checkpoint"),
        ("augreg/B_16-i21k-../../x", "no published checkpoint"),
        ("runs/mine", "`vit_jax list --weights` shows all"),
    ],
)
def test_unknown_names(name, text):
    with pytest.raises(WeightsError) as caught:
        zoo.find(name)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


def test_models_by_pattern():
    chosen = zoo.entries("ViT-H*")
    assert {entry.model for entry in chosen} == {"ViT-H/14", "ViT-H+/16"}
    whole = [entry for entry in chosen if entry.model == "ViT-H/14"]
    assert len([entry for entry in whole if not entry.license]) == 3
    assert zoo.entries("ViT-H_14") == whole
    assert zoo.entries("ViT-X*") == []


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("timm/vit_tiny_r_s16_p8_384.augreg_in21k_ft_in1k", "R+ViT-Ti/16"),
        ("timm/vit_large_r50_s32_224.augreg_in21k", "R50+ViT-L/32"),
        ("timm/vit_base_patch8_224.augreg_in21k", "ViT-B/8"),
        ("timm/resnetv2_152x4_bit.goog_in21k_ft_in1k", "R152x4"),
        ("google/vit-huge-patch14-224-in21k", "ViT-H/14"),
        ("bit/distill/R152x2_T_384", "R152x2"),
        ("imagenet21k+imagenet2012/ViT-L_16-224", "ViT-L/16"),
        ("gsam/ViT-S_32", "ViT-S/32"),
    ],
)
def test_models(name, model):
    assert zoo.find(name).model == model


def test_preprocessing_says_the_side_that_timm_crops():
    of_timm = [e for e in ENTRIES if e.layout == "timm" and not e.license]
    sides = {e.preprocessing for e in of_timm if e.image_size == 224}
    assert sides == {"bicubic, center 0.9", "bilinear, center 0.875", "bicubic, center 0.875"}
    sides = {e.preprocessing for e in of_timm if e.image_size > 224}
    assert sides == {"bicubic, center 1", "bilinear, center 1"}


@pytest.fixture
def fetched(monkeypatch, tmp_path):
    calls = []

    def fetch(source, *, offline=False):
        calls.append((source, offline))
        return tmp_path / "fetched"

    monkeypatch.setattr(hub, "fetch", fetch)
    return calls


def test_resolve(fetched, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "imagenet21k").mkdir()
    assert zoo.resolve("imagenet21k") == pathlib.Path("imagenet21k")
    assert zoo.resolve(str(tmp_path)) == tmp_path
    assert not fetched
    assert zoo.resolve("imagenet21k/ViT-B_16") == tmp_path / "fetched"
    assert zoo.resolve("gs://vit_models/sam/ViT-B_16.npz", offline=True)
    assert fetched == [
        (zoo.find("imagenet21k/ViT-B_16"), False),
        ("gs://vit_models/sam/ViT-B_16.npz", True),
    ]
    with pytest.raises(WeightsError, match="and no published checkpoint"):
        zoo.resolve("runs/mine")


def test_resolve_the_page_of_a_model(fetched):
    zoo.resolve("https://huggingface.co/some-one/their.vit/")
    source, _ = fetched[0]
    folder = "https://huggingface.co/some-one/their.vit/resolve/main"
    processors = ("preprocessor_config.json", "processor_config.json")
    names = ("config.json", *processors, "model.safetensors")
    assert source.urls == tuple(f"{folder}/{name}" for name in names)
    assert source.optional == tuple(f"{folder}/{name}" for name in processors)


HEADER = (
    "name,ds,epochs,lr,aug,wd,do,sd,best_val,final_val,final_test,adapt_ds,adapt_lr,adapt_steps,"
    "adapt_resolution,adapt_final_val,adapt_final_test,params,infer_samples_per_sec,filename,"
    "adapt_filename"
)


def row(name, ds, val, file, adapted="", tuned="", side=""):
    """A line of the index, its numbers invented."""
    values = [name, ds, 300, 0.001, "none", 0.1, 0, 0, 0.9, val, 0.1, adapted, 0.01, 500, side]
    return ",".join(
        map(str, [*values, tuned, 0.1, 1, 1, file, f"{file}--{adapted}-{side}-{tuned}"])
    )


@pytest.fixture
def index(tmp_path):
    lines = [
        HEADER,
        row("B/16", "i21k", 0.40, "B_16-a", "imagenet2012", 0.89, 384),
        row("B/16", "i21k", 0.47, "B_16-b", "cifar100", 0.99, 224),
        row("B/16", "i21k", 0.47, "B_16-b", "imagenet2012", 0.81, 224),
        row("B/16", "i21k", 0.47, "B_16-b", "imagenet2012", 0.85, 384),
        row("B/16", "i1k", 0.76, "B_16-c", "imagenet2012", 0.79, 224),
        row("B/16", "i21k", "", "B_16-d", "imagenet2012", 0.99, 224),
        row("R50+L/32", "i21k", 0.48, "R50_L_32-e", "cifar10", 0.98, 224),
    ]
    path = tmp_path / "index.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_best_of_an_index(index):
    expected = zoo.Upstream(
        model="ViT-B/16",
        data="i21k",
        val=0.47,
        file="augreg/B_16-b",
        tuned_file="augreg/B_16-b--imagenet2012-384-0.85",
        tuned_val=0.85,
        resolution="384",
    )
    names = ("B/16", "B_16", "ViT-B/16", "ViT-B_16")
    assert set(map(zoo.variant, names)) == {"ViT-B/16"}
    best = zoo.best_of_augreg(index)
    assert best["ViT-B/16"] == expected
    assert zoo.best_of_augreg(index, "i1k")["ViT-B/16"].file == "augreg/B_16-c"
    hybrid = best["R50+ViT-L/32"]
    assert (hybrid.val, hybrid.tuned_file, hybrid.tuned_val) == (0.48, "", None)
    assert set(best) == {"ViT-B/16", "R50+ViT-L/32"}


def test_mistakes_in_an_index(index, tmp_path):
    with pytest.raises(WeightsError, match="cannot be read: No such file"):
        zoo.best_of_augreg(tmp_path / "none.csv")
    text = index.read_text()
    for bad, says in [
        (text.replace("final_val,final_test", "x,y", 1), "has no column final_val"),
        (text.replace("0.48", "much"), "line 8: could not convert"),
        (text + "B/16,i21k\n", "line 9: too few columns"),
        (text.replace("cifar100", "\xe9"), "line 1"),
    ]:
        index.write_text(bad, encoding="latin1")
        with pytest.raises(WeightsError) as caught:
            zoo.best_of_augreg(index)
        assert says in str(caught.value)
