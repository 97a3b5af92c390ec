"""Published checkpoints: names, addresses, the index of How to train your ViT, and their list."""

import json
import pathlib
import re

import pytest

import commands
from vit_jax import cli, models
from vit_jax.weights import hub, zoo
from vit_jax.weights.arrays import WeightsError

EVERY = zoo.entries()
ENTRIES = [entry for entry in EVERY if entry.urls]  # the others: test_bundled.py
GOOGLE = "https://storage.googleapis.com"
ROWS = json.loads((pathlib.Path(__file__).parent.parent / "paper_tables.json").read_text())


def test_entries_are_whole():
    assert len(EVERY) == len({entry.name for entry in EVERY})
    # Two names for one file would be one too many.
    assert len(ENTRIES) == len({entry.urls for entry in ENTRIES})
    for entry in ENTRIES:
        assert re.fullmatch(r"[\w.+-]+(/[\w.+-]+)+", entry.name)
        assert entry.layout in ("google", "bit", "timm", "huggingface", "tips")
        assert entry.license or models.variants.parse_variant(entry.model)
        assert re.fullmatch(r"ViT-\w+\+?/\d+", entry.model) or not entry.license
        for url in entry.urls:
            assert url == hub.parse_address(url)
            assert hub.cache_path(url)
        assert entry.license or not entry.access
        assert (entry.access == "gated") == entry.name.startswith("facebook/dinov3")
        if entry.top1 is not None:
            assert 70 < entry.top1 < 90
            assert entry.reported_by


def test_addresses():
    hub_of = "https://huggingface.co/google/vit-base-patch16-224/resolve/main"
    files = ("config.json", "preprocessor_config.json", "model.safetensors")
    for name, urls in (
        ("google/vit-base-patch16-224", tuple(f"{hub_of}/{file}" for file in files)),
        (
            "imagenet21k+imagenet2012/R50+ViT-B_16",
            (f"{GOOGLE}/vit_models/imagenet21k%2Bimagenet2012/R50%2BViT-B_16.npz",),
        ),
        ("bit/BiT-M-R152x4-ILSVRC2012", (f"{GOOGLE}/bit_models/BiT-M-R152x4-ILSVRC2012.npz",)),
    ):
        assert zoo.find_published(name).urls == urls


def test_recommended_files_are_those_of_the_readme():
    rows = [row for row in ROWS if row["table"] == "README AugReg recommended"]
    assert len(rows) == 9
    for row in rows:
        model = row["model"].replace("+", "+ViT-") if "+" in row["model"] else f"ViT-{row['model']}"
        name = f"augreg/{model.replace('/', '_')}"
        first, tuned = zoo.find_published(name), zoo.find_published(f"{name}-imagenet")
        assert first.urls == (hub.parse_address(row["pretrained_npz"]),)
        assert tuned.urls == (hub.parse_address(row["finetuned_npz"]),)
        assert (first.mib, first.model) == (row["size_mib"], model)
        assert (tuned.image_size, tuned.top1) == (row["resolution"], row["imagenet_top1"])


@pytest.mark.parametrize(
    ("name", "model", "data", "side"),
    [
        ("augreg/B_16-i21k-300ep-lr_0.001-aug_light0-wd_0.03-do_0.1-sd_0.1",
         "ViT-B/16", "21k", 224),
        ("augreg/R_Ti_16-i1k-300ep-lr_0.001-aug_none-wd_0.1-do_0.0-sd_0.0"
         "--imagenet2012-steps_5k-lr_0.01-res_384.npz",
         "R+ViT-Ti/16", "ImageNet, ImageNet", 384),
        ("augreg/R26_S_32-i21k_30-30ep-lr_0.001-aug_none-wd_0.1-do_0.0-sd_0.0"
         "--cifar100-steps_500-lr_0.003-res_224",
         "R26+ViT-S/32", "ImageNet-21k, cifar100", 224),
    ],
)  # fmt: skip
def test_any_augreg_file_by_its_own_name(name, model, data, side):
    entry = zoo.find_published(name)
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
    line = commands.error_line(WeightsError, zoo.find_published, name)
    assert text in line
    assert len(line) < 200


@pytest.fixture
def fetched(monkeypatch, tmp_path):
    calls = []

    def fetch(source):
        calls.append(source)
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
    assert zoo.resolve("gs://vit_models/sam/ViT-B_16.npz")
    assert fetched == [
        zoo.find_published("imagenet21k/ViT-B_16"),
        "gs://vit_models/sam/ViT-B_16.npz",
    ]
    with pytest.raises(WeightsError, match="and no published checkpoint"):
        zoo.resolve("runs/mine")
    with pytest.raises(WeightsError, match="and no published checkpoint"):
        zoo.resolve("~nobody-of-this-name/x.npz")


def test_resolve_the_page_of_a_model(fetched):
    zoo.resolve("https://huggingface.co/some-one/their.vit/")
    (source,) = fetched
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
        row("B/16", "i21k", "", "B_16-d", "imagenet2012", 0.99, 224),  # without an accuracy
        row("B/16", "i21k", 0.40, "B_16-a", "imagenet2012", 0.89, 384),
        row("B/16", "i21k", 0.47, "B_16-b", "cifar100", 0.99, 224),
        row("B/16", "i21k", 0.47, "B_16-b", "imagenet2012", 0.81, 224),
        row("B/16", "i21k", 0.47, "B_16-b", "imagenet2012", 0.85, 384),
        row("B/16", "i1k", 0.76, "B_16-c", "imagenet2012", 0.79, 224),
        row("R50+L/32", "i21k", 0.48, "R50_L_32-e", "cifar10", 0.98, 224),
    ]
    path = tmp_path / "index.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


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
        assert says in commands.error_line(WeightsError, zoo.best_of_augreg, index)


# `vit_jax list --weights`


def test_names_by_collection(capsys):
    assert cli.main(["list", "--weights"]) == 0
    lines = capsys.readouterr().out.splitlines()
    words = {line.split()[0] for line in lines if line}
    assert {entry.name for entry in zoo.entries()} <= words
    collections = [line.partition(":")[0] for line in lines if ": in the layout of " in line]
    assert collections == list(dict.fromkeys(entry.collection for entry in zoo.entries()))
    row = next(line for line in lines if line.startswith("augreg/ViT-B_16 "))
    assert row.split()[1:6] == ["ViT-B/16", "224", "391", "85.49", "vision_transformer"]


def test_models_by_pattern(capsys):
    assert cli.main(["list", "--weights", "--model=ViT-H/*", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown.keys() == {entry.name for entry in zoo.entries() if entry.model == "ViT-H/14"}
    values = shown["imagenet21k/ViT-H_14"]
    assert values["urls"] == ["https://storage.googleapis.com/vit_models/imagenet21k/ViT-H_14.npz"]
    assert (values["mib"], values["top1"], values["reported_by"]) == (2519, None, "")
    assert shown["timm/vit_huge_patch14_224.mae"]["license"] == "cc-by-nc-4.0"


def test_the_best_of_an_index(capsys, index):
    assert cli.main(["list", f"--augreg-index={index}", "--model=B/16"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["augreg/B_16-b", "ViT-B/16", "ImageNet-21k", "0.4700"] in lines
    tuned = ["augreg/B_16-b--imagenet2012-384-0.85", "ImageNet,", "384", "pixels", "0.8500"]
    assert tuned in lines
    assert cli.main(["list", f"--augreg-index={index}", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert {name: one["val"] for name, one in shown.items()} == {
        "ViT-B/16": 0.47,
        "R50+ViT-L/32": 0.48,
    }
    assert cli.main(["list", f"--augreg-index={index}", "--model=H/14"]) == 2
    assert "known: R50+ViT-L/32, ViT-B/16" in capsys.readouterr().err
    with index.open("a") as file:
        file.write(row("B/16", "i21k", 0.5, "B_16-z", "cifar10", 0.9, 224) + "\n")
    assert cli.main(["list", "--weights", f"--augreg-index={index}", "--model=ViT-B*"]) == 0
    assert "augreg/B_16-z " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--weights", "--model=ViT-X*"], "--model=ViT-X*: no such published model; known: "),
        (["--weights", "--table=3"], "--table=3: selects configs; drop it"),
        (["--augreg-index=none.csv"], "none.csv: cannot be read: No such file or directory"),
        (["--augreg-index=https://x.org/a.pkl"], "objects of any class"),
        (["--augreg-index=~nobody-here/x.csv"], "cannot be read: No such file or directory"),
    ],
)
def test_mistakes(capsys, arguments, text):
    assert text in commands.woe(commands.run(capsys, "list", *arguments))
