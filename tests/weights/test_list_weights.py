"""`vit_jax list --weights`."""

import json

import pytest
from test_zoo import index, row

from vit_jax import cli
from vit_jax.weights import zoo

__all__ = ["index"]  # a fixture


def test_names_by_collection(capsys):
    assert cli.main(["list", "--weights"]) == 0
    lines = capsys.readouterr().out.splitlines()
    words = {line.split()[0] for line in lines if line}
    assert {entry.name for entry in zoo.entries()} <= words
    collections = [line.partition(":")[0] for line in lines if ": in the layout of " in line]
    assert collections == list(dict.fromkeys(entry.collection for entry in zoo.entries()))
    chosen = next(line for line in lines if line.startswith("augreg/ViT-B_16 "))
    assert chosen.split()[1:6] == ["ViT-B/16", "224", "391", "85.49", "vision_transformer"]


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


def test_more_rows_of_an_index_change_the_best(capsys, index):
    with index.open("a") as file:
        file.write(row("B/16", "i21k", 0.5, "B_16-z", "cifar10", 0.9, 224) + "\n")
    assert cli.main(["list", "--weights", f"--augreg-index={index}", "--model=ViT-B*"]) == 0
    assert "augreg/B_16-z " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--weights", "--model=ViT-X*"], "--model=ViT-X*: nobody publishes such a model; known: "),
        (["--weights", "--table=3"], "--table=3: selects configs; drop it"),
        (["--augreg-index=none.csv"], "none.csv: cannot be read: No such file or directory"),
        (["--augreg-index=https://x.org/a.pkl"], "objects of any class"),
    ],
)
def test_mistakes(capsys, arguments, text):
    assert cli.main(["list", *arguments]) == 2
    err = capsys.readouterr().err
    assert text in err
    assert err.count("\n") == 1


def test_a_model_that_is_not_in_the_index(capsys, index):
    assert cli.main(["list", f"--augreg-index={index}", "--model=H/14"]) == 2
    assert "known: R50+ViT-L/32, ViT-B/16" in capsys.readouterr().err
