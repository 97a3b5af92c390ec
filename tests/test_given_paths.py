"""Paths and names as people type them: `~`, relative ones, addresses, the wrong case."""

import math
import re

import pytest

import runs
import vit_jax
from vit_jax import cli, config, weights
from vit_jax.checkpoints import record
from vit_jax.config import catalog, table_names
from vit_jax.data import availability, bucket, image_inputs
from vit_jax.inference import search, segmentation
from vit_jax.inference.doctor import run
from vit_jax.inference.inspect import outputs, view
from vit_jax.pages import listing
from vit_jax.preflight import topologies
from vit_jax.training import run_config
from vit_jax.utils import errors, storage


def test_a_home_directory_is_expanded_and_a_relative_root_recorded_whole(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for root in ("~/images", "images", "./images/"):
        given = {"data.root": root, "data.exclude": f"{root}/fix.csv", "model.num_classes": "2"}
        cfg = run_config.resolve("image_folder", given)
        assert cfg.data.root == f"{tmp_path}/images"
        assert cfg.data.exclude == f"{tmp_path}/images/fix.csv"
    with pytest.raises(errors.UserError, match="^data.exclude=s3://b/x: cannot be opened; copy it"):
        run_config.resolve("image_folder", given | {"data.exclude": "s3://b/x"})
    again = run_config.config_from_values(config.to_dict(cfg), {})
    assert config.fingerprint(again) == config.fingerprint(cfg)
    assert storage.as_path("~/run") == tmp_path / "run"
    assert storage.as_path("~nobody-of-this-name/run").name == "run"
    parsed = cli.command_parser("train").parse_all(["digits", "--workdir=~/run"])
    assert parsed.workdir == tmp_path / "run"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: vit_jax.load(None), "--checkpoint: must be text or a path, not NoneType"),
        (lambda: vit_jax.load("a\0"), r"--checkpoint='a\\x00': has a null character, which no"),
        (lambda: vit_jax.load(["run"]), "--checkpoint: must be text or a path, not list"),
        (lambda: vit_jax.load(b"run"), "--checkpoint: must be text or a path, not bytes"),
        (lambda: vit_jax.evaluate(5), "--checkpoint: must be text or a path, not int"),
        (lambda: vit_jax.average([5, 6], "out"), "--checkpoint: must be text or a path, not int"),
        (lambda: vit_jax.average(5, "out"), "average: needs two checkpoints"),
        (lambda: vit_jax.search("run", ".", ["a.png"]), "--query: must be text or a path, not lis"),
        (lambda: vit_jax.embed("run", "a.npz", ["a.png"]), "images: must be text or a path, not l"),
        (lambda: list(vit_jax.predict("run", 5)), "images: must be text or a path, not int"),
        (lambda: vit_jax.get_config(None), "name: must be text or a path, not NoneType"),
        (lambda: vit_jax.get_config("digits", "a=1"), "overrides=a=1: must be a dict of options"),
        (lambda: vit_jax.train("digits", "run", ["a=1"]), r"overrides=\['a=1'\]: must be a dict"),
        (lambda: vit_jax.load("run", [("a", 1)]), "overrides=.*: must be a dict of options by"),
        (lambda: vit_jax.embed("run", "a.npz", overrides="a"), "overrides=a: must be a dict of"),
        (lambda: vit_jax.train("digits", "run", accept=5), r"accept=5: must be names, such as"),
        (lambda: vit_jax.train({"seed": 1}, "run"), "name_or_config: must be a name, a file or wh"),
        (lambda: vit_jax.list_configs(5), r"pattern=5: must be text, such as"),
        (lambda: vit_jax.load("run", {5: 1}), "5: must be the dotted name of an option, not 5"),
        (lambda: vit_jax.load("runs/digits", step=[3]), r".*: no sound checkpoint of step \[3\]"),
        (lambda: vit_jax.convert("run", "tim", "out"), "--to=tim: must be one of google, .*, peft"),
        (lambda: vit_jax.convert("run", "hf", "out", dtype="int8"), "--dtype=int8: must be one of"),
        (lambda: vit_jax.convert("run", "hf", "out", license_id=5), "--license=5: not a license"),
        (lambda: vit_jax.average("run", "out", last=0), "--last=0: must be a whole number, at lea"),
        (lambda: vit_jax.average("run", "out", last=-1), "--last=-1: must be a whole number"),
        (lambda: vit_jax.embed("run", "a.npz", ".", batch_size=0), "--batch-size=0: must be a who"),
        (lambda: vit_jax.search("run", ".", "a.png", top=2.5), "--top=2.5: must be a whole number"),
        (lambda: vit_jax.predict("run", "a.png", top="3"), "--top=3: must be a whole number"),
        (lambda: vit_jax.embed("run", "a.npz", ".", batch_size=10**30),
         "--batch-size=10+: must be at most 1,000,000,000,000,000"),
        (lambda: vit_jax.predict("run", examples=-1), "--examples=-1: must be a whole number, at"),
        (lambda: vit_jax.predict("run", examples=2.5), "--examples=2.5: must be a whole number"),
        (lambda: vit_jax.predict("run", examples=2, seed=-1), "--seed=-1: must be a whole number"),
        (lambda: vit_jax.transfer("digits", "out", rates=0.003), "rates=0.003: must be learning"),
        (lambda: vit_jax.transfer("digits", "out", seeds=[1.5]), r"seeds=\[1.5\]: must be seeds"),
        (lambda: vit_jax.transfer("digits", "out", draws=0), "draws=0: must be a whole number"),
        (lambda: vit_jax.transfer("digits", "out", rates=[0.1, 0.2], parallel=0),
         "--parallel=0: must be a whole number, at least 1"),
        (lambda: vit_jax.transfer("digits", "out", rates=[0.1, 0.2], parallel=10**9),
         "--parallel=1000000000: must be at most 1,000"),
        (lambda: vit_jax.transfer("digits", "out", rates=[0.1], draws=2, parallel=0),
         "draws=2: draws combinations of search; give search"),
    ],
)  # fmt: skip
def test_a_wrong_value_in_python_is_one_line(call, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if "sound" in message:
        step = tmp_path / "runs/digits/checkpoints"
        step.mkdir(parents=True)
        commits = {3: {"metrics": {}}}
        monkeypatch.setattr(record, "readable", lambda _: commits)
    with pytest.raises(errors.UserError, match=f"^{message}"):
        call()
    assert not any(tmp_path.glob("out*"))


@pytest.mark.parametrize("option", ["init_from", "objective.teacher"])
def test_weights_that_are_not_there_are_reported_with_their_option(option, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    other = {"objective.name": "distillation", "objective.teacher": "no/run"}
    given = other if "teacher" in option else {"init_from": "no/run"}
    with pytest.raises(errors.UserError, match=f"^{option}=no/run: no such run, file or folder"):
        vit_jax.preview("digits", "run", given)
    (tmp_path / "some").mkdir()
    with pytest.raises(errors.UserError, match=f"^{option}={tmp_path}/some: not a checkpoint"):
        vit_jax.preview("digits", "run", {**given, option: "some"})


@pytest.mark.parametrize(
    "call",
    [
        lambda path: vit_jax.convert("run", "timm", path),
        lambda path: vit_jax.embed("run", path),
        lambda path: vit_jax.evaluate("run", output=path),
        lambda path: list(image_inputs.read_images([path], config.Data())),
    ],
)
def test_paths_from_python_are_those_of_the_command_line(call, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(errors.UserError, match="gs://bucket/x: must be on a disk; copy it there"):
        call("gs://bucket/x")
    with pytest.raises(errors.UserError, match="file:///x: is an address; write the path, /x"):
        call("file:///x")
    with pytest.raises(errors.UserError, match="is empty; name a path, or . for the current f"):
        call("")
    with pytest.raises(errors.UserError) as raised:
        call("~/x")
    assert "~" not in str(raised.value) or "No such file" in str(raised.value)
    assert not (tmp_path / "~").exists()


@pytest.mark.parametrize(
    "call",
    [
        lambda path: vit_jax.embed("run", "features.npz", path),
        lambda path: vit_jax.predict("run", [path]),
        lambda path: search.search("run", path, "query.png"),
        lambda path: run.doctor(path),
        lambda path: segmentation.measure("run", path, {}),
        lambda path: list(outputs.inspect("attention", "run", {}, images=[path])),
        lambda path: view.open_viewer("run", {}, images=[path]),
    ],
)
def test_images_are_on_a_disk_or_in_a_bucket(call, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(bucket.SCHEMES, "memory", ("none", "none"))
    for path, words in (
        ("memory://bucket/x", "memory://bucket/x: (holds no objects|no such object or folder)"),
        ("https://x/y", "https://x/y: is a web address; name a path on a disk"),
        ("file:///x", "file:///x: is an address; write the path, /x"),
        ("", "=: is empty; name a path, or . for the current folder"),
        ("~/x", "/x: no such f"),
    ):
        with pytest.raises(errors.UserError, match=words) as raised:
            call(path)
        assert "~" not in str(raised.value) or path == "~/x"
    assert not list(tmp_path.iterdir())


def test_an_empty_checkpoint_data_dir_or_config_is_not_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    average = lambda path: vit_jax.average(path, "mean", last=2)  # noqa: E731
    for call in (vit_jax.load, vit_jax.evaluate, average):
        with pytest.raises(config.ConfigError, match="^--checkpoint=: is empty"):
            call("")
    with pytest.raises(config.ConfigError, match="^workdir=: is empty"):
        vit_jax.train("digits", "")
    with pytest.raises(config.ConfigError, match="^--data-dir=: is empty"):
        availability.directory("")
    monkeypatch.setenv("TFDS_DATA_DIR", "")  # as if not set
    assert availability.directory(None).name == "tensorflow_datasets"
    with pytest.raises(config.ConfigError, match="^--config=: no such config(?!, but a folder)"):
        vit_jax.train("")


@pytest.mark.parametrize("scheme", ["s3", "hf", "https"])
def test_addresses_that_are_not_read_are_one_line(scheme, capsys):
    address = f"{scheme}://bucket/images"
    for words in (
        *([["prepare", "cifar10", f"--from={address}"]] if scheme == "https" else []),
        ["prepare", "cifar10", f"--data-dir={address}"],
        ["list", "--tasks", f"--data-dir={address}"],
        *(
            [
                ["train", "image_folder", f"--config.data.root={address}", "--dry-run"],
                ["inspect", "attention", "--checkpoint=none", address],
            ]
            if scheme == "https"
            else []
        ),
        ["train", "digits", f"--workdir={address}", "--dry-run"],
        *([["evaluate", f"--checkpoint={address}"]] if scheme != "https" else []),
    ):
        try:
            code = cli.main(words)
        except SystemExit as ended:
            code = ended.code
        assert code == 2
        line = capsys.readouterr().err
        assert line.count("\n") == 1
        assert address in line
        assert "disk" in line
    with pytest.raises(config.ConfigError, match=f"workdir={address}: cannot be opened"):
        vit_jax.train("digits", address)


def test_names_are_found_in_any_case():
    assert catalog.load_values("Digits") == catalog.load_values("digits")
    assert len(listing.entries(model="vit-b_16")) == len(listing.entries(model="ViT-B/16")) > 0
    assert weights.find_published("CIFAR10/vit-6_4").name == "cifar10/ViT-6_4"
    with pytest.raises(
        config.ConfigError, match=r"--config=my.py: no such file; known: adapt.py, "
    ):
        catalog.load_values("my.py:small")
    with pytest.raises(config.ConfigError, match=r"no such file; did you mean home.py"):
        catalog.load_values("hom.py:small")


@pytest.mark.parametrize(
    ("typed", "command"),
    [("figure12", "bench infer"), ("figure7", "inspect filters"), ("Table 1", "vit_jax list"),
     ("fig. 11", "attention-distance"), ("6", None)],
)  # fmt: skip
def test_an_exhibit_without_configs_names_what_makes_it(typed, command):
    if command is None:
        assert table_names.find_table(typed, "--table=") == "table6"
        return
    with pytest.raises(config.ConfigError, match=f"has no configs; .*{command}"):
        table_names.find_table(typed, "--table=")


def test_the_launcher_and_preflight_know_the_same_small_slices():
    script = (runs.ROOT / "launch/api_tpu.sh").read_text()
    sizes = re.findall(r"v\[56\]e-(\d+)(?= \||\) ;;)", script)
    assert sizes[0] == "1"
    for generation in ("v5e", "v6e"):
        for size in sizes:
            shape = topologies.parse_topology(f"{generation}-{size}")[1]
            assert math.prod(shape) == int(size)
        with pytest.raises(config.ConfigError, match=f"known: {generation}-1, {generation}-4, "):
            topologies.parse_topology(f"{generation}-2")
