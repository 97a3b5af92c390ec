"""The command as a person uses it: train on a folder, evaluate, predict, look around, err."""

import csv
import io
import json
import pathlib
import re
import resource
import subprocess
import sys
import tempfile

import cv2
import numpy as np
import pytest

import pages
from vit_jax import cli, config
from vit_jax.cli.arguments import matching_names
from vit_jax.config import catalog
from vit_jax.pages import listing
from vit_jax.runtime import logs

COLORS = {"blue": (0, 0, 200), "green": (0, 180, 0), "red": (220, 0, 0)}

OPTIONS = {
    "model.patch_size": "4", "model.width": "16", "model.depth": "2", "model.mlp_dim": "32",
    "model.heads": "2", "data.image_size": "8x16", "data.crop_area": "0.5,1", "data.workers": "0",
    "train.batch_size": "16", "train.duration": "40 steps", "optimizer.lr": "0.01",
    "schedule.warmup": "4 steps", "checkpoint.every": "20 steps", "evaluation.every": "20 steps",
    "logging.every": "10",
}  # fmt: skip


def paint(file, color, rng):
    file.parent.mkdir(parents=True, exist_ok=True)
    image = rng.normal(color, 20, (20, 30, 3)).clip(0, 255).astype(np.uint8)
    assert cv2.imwrite(str(file), image[:, :, ::-1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three colors as classes, a few files each, some nested."""
    root, rng = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    for split, count in (("train", 16), ("test", 9)):
        for name, color in COLORS.items():
            for number in range(count):
                inside = "more" if number % 3 == 0 else "."
                paint(root / split / name / inside / f"{number}.png", color, rng)
    return root


def options(folder, **more):
    pairs = OPTIONS | {"data.root": str(folder)} | more
    return [f"--config.{key}={value}" for key, value in pairs.items()]


@pytest.fixture(scope="module")
def trained(folder, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("runs") / "colors"
    arguments = [f"--workdir={workdir}", "--profile=5:7", *options(folder)]
    assert cli.main(["train", "image_folder-32", *arguments]) == 0
    return workdir


@pytest.mark.slow
def test_training_leaves_what_it_says(trained):
    names = {path.name for path in trained.iterdir()}
    assert names >= {"config.json", "metrics.jsonl", "checkpoints", "curves.png", "tensorboard"}
    lines = logs.read_metrics(trained / "metrics.jsonl")
    assert [line["step"] for line in lines if "train/loss" in line] == [10, 20, 30, 40]
    assert [line["step"] for line in lines if "test/top1" in line] == [20, 40]
    assert cv2.imread(str(trained / "curves.png")).shape == (840, 1320, 3)
    assert list((trained / "profile").rglob("*.xplane.pb"))


@pytest.mark.slow
def test_predict_names_the_colors(trained, folder, tmp_path, capsys):
    files = {name: tmp_path / f"a {name} one.jpg" for name in COLORS}
    for name, file in files.items():
        paint(file, COLORS[name], np.random.default_rng(7))
    assert (
        cli.main(["predict", f"--checkpoint={trained}", "--json", *map(str, files.values())]) == 0
    )
    out = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["image"] for line in out] == [str(f) for f in files.values()]
    assert [line["top"][0]["class"] for line in out] == list(COLORS)
    for line in out:
        assert sum(top["probability"] for top in line["top"]) == pytest.approx(1, abs=1e-6)

    assert cli.main(["predict", f"--checkpoint={trained}", "--csv", "--top=1", str(tmp_path)]) == 0
    rows = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert rows[0] == ["image", "rank", "class", "probability"]
    assert [(row[1], row[2]) for row in rows[1:]] == [("1", name) for name in COLORS]

    assert cli.main(["predict", f"--checkpoint={trained}", str(files["red"])]) == 0
    assert re.search(r"a red one\.jpg +red \d+\.\d%", capsys.readouterr().out)


@pytest.mark.slow
def test_examples_are_drawn_by_seed(trained, folder, capsys):
    """The first nine of the split are all blue, so the first ones are no sample of it."""

    def drawn(*flags):
        arguments = ["predict", f"--checkpoint={trained}", "--json", *flags]
        assert cli.main(arguments) == 0
        out, err = capsys.readouterr()
        return [json.loads(line) for line in out.splitlines()], err

    some, said = drawn("--examples=9")
    assert said.endswith(
        ": step 40, the newest\n9 of 27 images of the split `test`, drawn by seed 0\n"
    )
    assert {one["truth"] for one in some} == set(COLORS)
    names = [one["image"] for one in some]
    assert len(set(names)) == 9
    assert [one["image"] for one in drawn("--examples=9", "--seed=0")[0]] == names
    assert [one["image"] for one in drawn("--examples=4")[0]] == names[:4]
    assert [one["image"] for one in drawn("--examples=9", "--seed=1")[0]] != names
    everything = [one["image"] for one in drawn("--examples=99")[0]]
    assert sorted(everything) == sorted(str(p) for p in (folder / "test").rglob("*.png"))


@pytest.mark.slow
def test_predict_goes_on_after_a_bad_file(trained, folder, tmp_path, capsys):
    (tmp_path / "page.jpg").write_text("<html>not found</html>")
    paint(tmp_path / "red.png", COLORS["red"], np.random.default_rng(1))
    assert cli.main(["predict", f"--checkpoint={trained}", "--json", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert [("error" in json.loads(line)) for line in out.splitlines()] == [True, False]
    _, error = err.splitlines()  # after which checkpoint it is
    assert error.startswith(f"vit_jax: {tmp_path / 'page.jpg'}: is not a JPEG")


def test_predict_from_google_weights(tmp_path, capsys):
    weights = "tests/fixtures/vit_tiny_token.npz"
    paint(tmp_path / "a.png", (9, 9, 9), np.random.default_rng(0))
    assert cli.main(["predict", f"--checkpoint={weights}", "--json", str(tmp_path / "a.png")]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"class [0-6]", json.loads(line)["top"][0]["class"])


def test_list(capsys):
    assert cli.main(["list"]) == 0
    out = capsys.readouterr().out
    for name in catalog.names():
        assert re.search(rf"^{re.escape(name)} ", out, re.MULTILINE), name
    # A row in full: two files can be told apart, and a column of one value is said once.
    (row,) = re.findall(r"^pretrain/ViT-L_16-jft-14ep .*", out, re.MULTILINE)
    assert " ".join(row.split()) == (
        "pretrain/ViT-L_16-jft-14ep 2,3,5,6,fig3,fig10 JFT-300M 14 1035645 0.0004 linear 0.1 0 "
        "1567 1567 680 87.12 89.99 99.38 94.04 97.11 99.56"
    )
    (shared,) = re.findall(r"^pretrain.py: .*\n(.*)", out, re.MULTILINE)
    assert shared == "all: pixels 224, batch 4096"
    assert re.search("^home/ResNet-half +resnet 1-1-1 x 0.5 ", out, re.MULTILINE)
    assert "None" not in out


@pytest.mark.slow
def test_list_of_a_table_or_a_model(capsys):
    def names(*arguments):
        assert cli.main(["list", "--json", *arguments]) == 0
        return set(json.loads(capsys.readouterr().out))

    everything, three = names(), names("--table=3")
    assert len(three) == 26
    assert names("--table=Table 6") == names("--table=6")
    assert names("--table=d2") == {name for name in everything if name.startswith("scaling/")}
    assert len(names("--table=fig 10", "--model=ViT-L_16")) == 3
    large = {name for name in three if name.startswith("pretrain/ViT-L")}
    assert names("--table=3", "--model=ViT-L*") == large
    assert names("--model=R152x?") == {name for name in everything if "R152" in name}
    assert cli.main(["list", "--table=99"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("vit_jax: --table=99: no such table or figure; ")
    assert "known: table2, table3, table4, table5, table6, table7, table8 (D.4), table9" in err
    assert cli.main(["list", "--table=7", "--model=ViT*"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("vit_jax: --model=ViT*: no name in table 7 has such a model; known: ")
    assert err.count("\n") == 1


def test_list_as_json(capsys):
    assert cli.main(["list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    digits = listed["digits"]
    assert digits["config"]["data"]["source"] == "digits"
    assert digits["steps"] == 2021  # 90 epochs of 1,437 images, 64 at a time
    assert listed["image_folder"]["steps"] is None  # depends on how many images there are
    row = listed["finetune/ViT-L_16-i21k-imagenet-512"]
    assert (row["model"], row["dataset"], row["steps"]) == ("ViT-L/16", "ImageNet", 20000)
    assert row["epochs"] == pytest.approx(20000 * 512 / 1281167)
    assert row["results"][0] == {
        "what": "top-1, 3 runs", "value": 85.3, "table": "2", "std": 0.02
    }  # fmt: skip
    assert config.build(row["config"]).train.ema == 0.9999


def test_show(capsys):
    assert cli.main(["show", "digits", "--all", "--config.optimizer.lr=3e-4"]) == 0
    out = capsys.readouterr().out
    for key, field, _ in config.fields():
        assert key in out
        assert field.metadata["doc"].split(",")[0][:20] in out
    assert "0.0003" in out
    assert "to change it" not in out
    assert cli.main(["show", "digits", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown.pop("about")["choices"] == []
    assert config.build(shown).model.width == 64


def test_show_says_what_was_chosen(capsys):
    assert cli.main(["show", "pretrain/R200x3-jft-14ep"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"lr 6e-4 +Table 3 has no R200x3; the values of R152x2 +--config", out)
    assert cli.main(["show", "finetune/ViT-B_16-jft-pets", "--json"]) == 0
    about = json.loads(capsys.readouterr().out)["about"]
    assert about["tables"] == ["4", "5", "6"]
    assert about["choices"][0]["what"] == "lr 0.03"
    assert about["results"] == [
        {"what": "top-1", "value": 95.8, "table": table, "std": None} for table in ("5", "6")
    ]
    assert cli.main(["show", "finetune/ViT-B_16-jft-pets"]) == 0
    *_, source, printed, note = capsys.readouterr().out.splitlines()
    assert source == "source: ViT-B/16 from jft, Pets; table 4, table 5, table 6"
    assert printed == "printed: top-1 95.8 [5], top-1 95.8 [6]"
    assert note.startswith("note: begins with random weights: those of pretrain/ViT-B_16-jft-7ep")
    assert cli.main(["show", "finetune/ViT-L_16-jft-cifar10"]) == 0
    assert "3 runs 99.42±0.03 [2] (± is a standard deviation)\n" in capsys.readouterr().out


def test_a_row_of_private_data_says_so_before_anything_is_written(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", "pretrain/ViT-B_16-jft-7ep"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("vit_jax: data.root=none: JFT-300M is private; set --config.data.root")
    assert not list(tmp_path.iterdir())


def test_a_row_whose_data_is_not_here_says_what_to_run(capsys, tmp_path):
    arguments = [f"--workdir={tmp_path / 'run'}", f"--config.data.root={tmp_path}"]
    assert cli.main(["train", "vtab/ViT-L_16-i21k-kitti-distance", *arguments]) == 2
    assert capsys.readouterr().err == (
        f"vit_jax: data.name=kitti:3.*.*: not in {tmp_path}; "
        f"run `vit_jax prepare vtab/kitti-distance --data-dir={tmp_path}`\n"
    )
    assert not list(tmp_path.iterdir())


def test_a_fine_tuning_says_what_it_begins_with(capsys, tmp_path):
    arguments = [f"--workdir={tmp_path / 'run'}", f"--config.data.root={tmp_path}"]
    assert cli.main(["train", "finetune/ViT-B_16-jft-pets", *arguments]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first == (
        "vit_jax: finetune/ViT-B_16-jft-pets begins with random weights: those of "
        "pretrain/ViT-B_16-jft-7ep were never published; set --config.init_from to a run of yours"
    )
    assert second == (
        f"vit_jax: data.name=oxford_iiit_pet: not in {tmp_path}; "
        f"run `vit_jax prepare pets --data-dir={tmp_path}`"
    )


@pytest.mark.parametrize("command", ["", *cli.COMMANDS])
def test_help(command, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main([*([command] if command else []), "--help"])
    assert caught.value.code == 0
    printed = capsys.readouterr().out
    assert "options:" in printed
    if command:
        takes = cli.command_parser(command).get_default("command").TAKES_CONFIG
        assert (cli.OVERRIDES in printed) == takes


@pytest.mark.parametrize(
    ("classes", "line"),
    [
        (None, "data.root={root}: no such folder"),
        ((), "data.root={root}: has no folders; expected test/CLASS/IMAGE"),
        (
            ("train/a", "test/a"),
            "data.root={root}: 1 class folder in {root}/train; at least 2 are needed, each with "
            "the images of one class; to train without labels, set objective.name=mae or dino",
        ),
        (
            ("train/a", "train/b"),
            "data.eval_split=test: no such folder in data.root={root}; folders there: train; to "
            "keep a tenth of train for it, set data.train_split='train[:90%]' and "
            "data.eval_split='train[90%:]'",
        ),
    ],
)
def test_folders_that_cannot_be_trained_on(classes, line, tmp_path, capsys):
    root, workdir = tmp_path / "root", tmp_path / "run"
    if classes is not None:
        root.mkdir()
        for name in classes:
            paint(root / name / "1.png", (1, 2, 3), np.random.default_rng(0))
    assert cli.main(["train", "image_folder-32", f"--workdir={workdir}", *options(root)]) == 2
    assert capsys.readouterr().err == f"vit_jax: {line.format(root=root)}\n"
    assert not workdir.exists()


NOWHERE = (
    "nodir: no such run, file or folder, and no published checkpoint; "
    "`vit_jax list --weights` shows all"
)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["train"], "train: name a config (see `vit_jax list`), or a --workdir to resume"),
        (["train", "digit"], "--config=digit: no such config; did you mean digits?"),
        (["train", "."], "--config=.: no such config, but a folder; of images: image_folder "
         "--config.data.root=.; of a run: --workdir=."),
        (["train", "--config=hom.py:x"],
         "--config=hom.py: no such file; did you mean home.py?"),
        (["train", "--config=mine/my.py:x"], "--config=mine/my.py: no such file"),
        (["show"], "show: name a config; see `vit_jax list`"),
        (["transfer", "x", "--draws=2"], "--draws=2: draws combinations of --try; add --try"),
        (["preflight", "digits", "--topology=cpu", "--loops"],
         "--loops: restricts what --fit searches; add --fit"),
        (["preflight", "digits", "--topology=cpu", "--scaling", "--price=2"],
         "--price=2: does not go with the table of --scaling"),
        (["preflight", "digits", "--topology=cpu", "--scaling", "--json"],
         "--json: does not go with the table of --scaling"),
        (["export", "--checkpoint=x", "--to=onnx", "--output=y", "--config.model.dtype=bfloat16"],
         "model.dtype=bfloat16: is not read here; set --dtype"),
        (["list", "--config.seed=1"], "--config.seed: list takes no config options"),
        (["predict", "--checkpoint=x", "--examples=1", "--config.seed=1"],
         "--config.seed=1: is not read; --seed=1 draws"),
        (["predict", "--checkpoint=x"], "predict: give image files or folders, or --examples=N"),
        (["predict", "--checkpoint=x", "nofile.jpg"], "nofile.jpg: no such file or folder"),
        (["predict", "--checkpoint=nodir", "--examples=1"], NOWHERE),
        (["evaluate", "--checkpoint=nodir"], NOWHERE),
        (["convert", "--checkpoint", "nodir", "--to=orbax", "--output=new"], NOWHERE),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_wrong_usage(arguments, line, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments) == 2
    assert capsys.readouterr().err == f"vit_jax: {line}\n"


def test_a_name_that_several_patterns_match_counts_once():
    assert matching_names(["digits-*", "digits", "digits*"]) == ["digits-token", "digits"]


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        ([], "name a command: train, "),
        (["evaluate"], "the following arguments are required: --checkpoint; see vit_jax evaluate "),
        (["transfer", "x", "--workdir=gs://b/x"], "must be on a disk"),
        (["trian"], "did you mean train?"),
        (["train", "--lr=1"], "did you mean --config.optimizer.lr=1?"),
        (["train", "--config_file=x"], "see vit_jax train --help"),
        (["train", "--batch-size=64"], "did you mean --config.train.batch_size=64?"),
        (["list", "--data_dir=x"], "did you mean --data-dir?"),
        (["reproduce", "table5", "--dryrun"], "did you mean --dry-run?"),
        (["report", "x", "--out=y"], "did you mean --output?"),
        (["convert", "--checkpoint=x", "--output=y", "--to=tim"], "did you mean timm?"),
        (["inspect", "atention", "--checkpoint=x"], "did you mean attention?"),
        (["train", "--data=x"], "did you mean --config.data.root=x?"),
        (
            ["evaluate", "--checkpoint=x", "--image-size=8"],
            "did you mean --config.data.image_size=8?",
        ),
        (["train", "--epochs=9"], "did you mean --config.train.duration='9 epochs'?"),
        (["train", "--pretrained", "x"], "did you mean --config.init_from?"),
        (["train", "image_folder", "."], "did you mean --config.data.root=.?"),
        (["train", "digits", "--workdir="], "argument --workdir: is empty; name a path, or . for"),
        (["train", "--config="], "argument --config: is empty; give it a value, or leave it out"),
        (["doctor", "x", "--leave-out="], "argument --leave-out: is empty; give it a value"),
        (["train", "image_folder", "nofolder"], "nofolder: no such argument; see vit_jax train"),
        (["train", "digits", "--output_dir=x"], "did you mean --workdir=x?"),
        (["train", "digits", "--momentum=0.9"], "did you mean --config.optimizer.momentum=0.9?"),
        (["list", "--lr=1"], "--lr=1: no such argument; see vit_jax list --help"),
        (
            ["evaluate", "--checkpoint=x", "--batch_size=8"],
            "did you mean --config.evaluation.batch_size=8?",
        ),
        (["report", "x", "--images=9", "--no-predictions"], "not allowed with argument --images"),
    ],
)
def test_wrong_commands_and_flags_are_one_line_with_the_nearest(arguments, remedy, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2
    err = capsys.readouterr().err
    assert remedy in err
    assert err.count("\n") == 1


def test_unreadable_checkpoints(tmp_path, capsys):
    broken = tmp_path / "weights.npz"
    broken.write_bytes(b"<html>")
    assert cli.main(["predict", f"--checkpoint={broken}", "--examples=1"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    (tmp_path / "empty").mkdir()
    assert cli.main(["evaluate", f"--checkpoint={tmp_path / 'empty'}"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code", "both"),
    [(("list",), 70, False), (("show", "nothing"), 2, False), (("show", "digits"), 70, True)],
)
def test_printing_into_a_file_on_a_full_disk_is_one_line(words, code, both):
    with pathlib.Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "vit_jax", *words],
            stdout=full,
            stderr=full if both else subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert ended.returncode == code
    if not both:
        assert ended.stderr.startswith("vit_jax: ")
        assert ended.stderr.count("\n") == 1
        assert code == 2 or "standard output" in ended.stderr


BUNDLED = "--checkpoint=cifar10/ViT-6_4"


@pytest.fixture
def limit(monkeypatch):
    """Sets the most bytes that a file may take from here on."""
    # Where a write falls short, Python keeps the part as a module's byte code.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["convert", BUNDLED, "--to=hf", "--output=new"],
        ["convert", BUNDLED, "--to=google", "--output=new.npz"],
        ["convert", BUNDLED, "--to=orbax", "--output=new"],
        ["export", BUNDLED, "--to=stablehlo", "--output=new", "--platforms=cpu"],
        ["doctor", BUNDLED, "photos", "--output=new.html"],
        ["embed", BUNDLED, "photos", "--output=new.npz"],
        ["embed", BUNDLED, "photos", "--output=new.parquet"],
        ["inspect", "filters", BUNDLED, "--output=new"],
        ["inspect", "view", BUNDLED, "photos", "--output=new.html"],
        ["preflight", "digits", "--topology=cpu", "--output=new.jsonl"],
        ["reproduce", "table9", "--dry-run", "--output=new.md"],
        ["train", "digits", "--smoke"],
        ["transfer", "digits", "--smoke", "--rates=0.001,0.003"],
        ["report", "run", "--no-predictions", "--output=new.html"],
        ["prepare", "mine", "--from=classes", "--data-dir=new", "--workers=1"],
    ],
    ids=lambda words: " ".join(words[:3]),
)
def test_a_full_disk_ends_every_command_that_writes(words, tmp_path, limit, monkeypatch, capsys):
    """Exit code 70, the name of the file, and nothing under the final name that is not whole."""
    monkeypatch.chdir(tmp_path)
    paint(tmp_path / "photos" / "a.png", (9, 9, 9), np.random.default_rng(0))
    for name in ("red", "blue"):
        paint(tmp_path / f"classes/train/{name}/a.png", COLORS[name], np.random.default_rng(0))
    pages.write_run(tmp_path / "run")
    limit(5000 if words[0] == "prepare" else 900)  # whose processes share 4 kB
    assert cli.main(words) == 70
    *logged, line = capsys.readouterr().err.splitlines()
    assert re.match(
        r"vit_jax: .*(new|runs/smoke).*: cannot (be written|write): .*File too large", line
    )
    assert [one for one in logged if re.search("Traceback|Error|Exception|too large", one)] == []


def test_a_disk_without_room_for_temporary_files_is_one_line(limit, monkeypatch, capsys):
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(listing, "entries", lambda **_: tempfile.gettempdir())
    limit(0)
    code = cli.main(["list"])
    limit(resource.RLIM_INFINITY)  # pytest's own output is a file
    assert code == 70
    assert capsys.readouterr().err.startswith("vit_jax: No usable temporary directory found in [")
