"""What every argument of a command says of itself, and the function that a command calls."""

import argparse
import dataclasses
import importlib
import inspect
import io
import json
import os
import pathlib
import re
import sys
import types
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

import runs
import vit_jax
from preflight_reports import create_report
from vit_jax import cli, config, preflight
from vit_jax.benchmarks import input as bench_input
from vit_jax.benchmarks import train as bench_train
from vit_jax.benchmarks.turns import Compared, Turns
from vit_jax.cli import arguments, bench, transfer, weights_tables
from vit_jax.cli import preflight as preflight_command
from vit_jax.config import catalog
from vit_jax.data.prepare.request import Request
from vit_jax.inference import loading
from vit_jax.inference.doctor.examination import Finding
from vit_jax.inference.inspect import serve, view
from vit_jax.inference.loaded_model import Prediction
from vit_jax.inference.search import SimilarImage
from vit_jax.inference.segmentation import Segmentation
from vit_jax.pages import listing
from vit_jax.pages.document import Table
from vit_jax.runs.evaluating import Outcome
from vit_jax.runtime import distributed, logs, signals
from vit_jax.studies import reproduce
from vit_jax.training import build, selftest
from vit_jax.training.selftest import Verdict

Path = pathlib.Path


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_argument_says_what_it_is_and_its_default(command):
    for action in cli.command_parser(command)._actions[1:]:
        assert action.help, action.dest
        value = action.default
        if value in (None, "", (), []) or value is False:
            assert f"(default: {value})" not in action.help
            continue
        told = re.search(r"\(default(?:: ([^ ]+)\))?", action.help)
        assert told
        if told[1] is not None:
            assert told[1] == (",".join(value) if isinstance(value, tuple) else str(value))


def test_flags_of_bench_say_which_measurements_have_them():
    texts = {action.dest: str(action.help) for action in cli.command_parser("bench")._actions}
    assert texts["threads"].startswith("input: loader threads")
    assert texts["peer_python"].startswith("startup, input, train: an interpreter")
    assert texts["rounds"].startswith("turns of each")
    for name, (kinds, _, _) in bench.FLAGS.items():
        assert set(kinds.split()) <= set(bench.KINDS), name


@pytest.mark.parametrize(
    ("kind", "read", "refused"),
    [
        (arguments.profile, {"10:15": (10, 15)}, ["10", "10:", ":15", "a:15", "10:b", "10-15"]),
        (arguments.step, {"7": 7, "best": "best", "newest": "newest"}, ["", "-1", "last", "1.0"]),
        (arguments.positive, {"1": 1, "12": 12}, ["0", "-1", "1.5", "1,2", "1_0", " 1", "x", ""]),
        (arguments.holdout, {"0": 0.0, "0.99": 0.99}, ["1", "-0.1", "nan", "x"]),
        (arguments.port, {"0": 0, "65535": 65535}, ["65536", "-1", "x"]),
        (arguments.fraction, {"0.4": 0.4, "1": 1.0}, ["0", "1.1", "nan", "x"]),
        (arguments.amount, {"1e-9": 1e-9, "2000": 2000.0}, ["0", "-1", "inf", "nan", "x"]),
        (arguments.seed, {"0": 0, "4294967295": 4294967295}, ["4294967296", "-1", "0,1", "x"]),
        (
            arguments.seeds,
            {"0,1,0": (0, 1), "7": (7,), "4294967295": (4294967295,)},
            ["", "0,", "0,x", "0,-1", "4294967296"],
        ),
        (arguments.numbers, {"64,4096": (64, 4096)}, ["0", "64,4097", "x", ""]),
        (arguments.learning_rates, {"1e-3,0.01": (1e-3, 0.01)}, ["0", "0.1,inf", "-1", "nan", ""]),
        (
            transfer._tried,
            {"a.b=1,2": ("a.b", ("1", "2")), "a=1,2;3": ("a", ("1,2", "3"))},
            ["a", "a=", "=1"],
        ),
        (arguments.words, {"a,b,a,": ("a", "b"), "": ()}, []),
    ],
)
def test_how_texts_are_read(kind, read, refused):
    for text, value in read.items():
        assert kind(text) == value
        assert type(kind(text)) is type(value)
    for text in refused:
        with pytest.raises(argparse.ArgumentTypeError, match=f"^{re.escape(text)}: must be "):
            kind(text)


@pytest.mark.parametrize("value", [["--plugins"], ["--plugins="], ["--plugins", "--json"]])
def test_plugins_need_a_name(value, capsys):
    assert cli.main(["list", *value]) == 2
    assert (
        capsys.readouterr().err == "vit_jax: --plugins: needs modules, as in --plugins=my_project\n"
    )


@dataclasses.dataclass(frozen=True)
class Call:
    """A command line, and the call that it is.

    Attributes:
      words: the command line.
      function: what is called, below vit_jax.
      given: arguments by name, without those that have their default.
      answer: what the function gives back.
      printed: what the command prints of it.
      code: the exit code.
      also: other functions, and what they give back.
    """

    words: str
    function: str
    given: dict[str, Any]
    answer: Any
    printed: str
    code: int = 0
    also: dict[str, Any] = dataclasses.field(default_factory=dict)


MODEL = "--checkpoint=run --step=best --config.data.depth=16"
LOADED = {"overrides": {"data.depth": "16"}, "step": "best"}
SIMILAR = [SimilarImage("a.png", 0.98765), SimilarImage("b.png", 0.5)]
SEARCH = {"reference": "run", "index": "table.npz", "query": "q.png", **LOADED}
SEGMENTED = Segmentation(
    train=9,
    test=9,
    patches=9,
    l2=0.1,
    pixels=np.array([[900, 100, 0], 3 * [0], 3 * [0]]),
    figure=Figure(),
)
EXAMINED = types.SimpleNamespace(
    findings={"leak": [(0, Finding("a.png", "leak", "as b.png"))]}, left_out=range(1234)
)
EXAMINED_LINES = {
    "inference.doctor.page.assumptions": ["folder: a", "features: b", "copies: c"],
    "inference.doctor.page.summarize": ["3 are in another split"],
    "inference.doctor.page.describe": [("leak", "3", "3", "in two splits")],
}
PLANNED = {
    "studies.reproduce.TablePlan": None,
    "studies.reproduce.blocks": [
        ("Means", Table(header=("a",), rows=[("1",)], caption="of three"))
    ],
    "studies.reproduce.as_dict": {"seed": 7},
}
COMPARED = Compared(
    work="work", unit="images", amount=1000, device="a device",
    results=[Turns(name="vit_jax", seconds=[0.4, 0.5, 0.6], cpu=[1])],
)  # fmt: skip
BENCH = {
    "benchmarks.checkpoint.title": ["a title"],
    "benchmarks.evaluate.title": ["a title"],
    "benchmarks.train.title": ["a title"],
    "runtime.device.step_by_step": None,
}
STEPS = bench_train.works(
    ("ViT-S/16",), (224,), batch=4, dtype="bfloat16", attentions=("explicit",)
)
MEASURED = dataclasses.replace(
    COMPARED, results=[dataclasses.replace(COMPARED.results[0], facts={"versions": {}})]
)
BENCH_TABLE = (
    "a title work program per second seconds CPU seconds vit_jax's speed over it"
    + 2 * " work vit_jax 2,000 images 0.5 1 -"
)
CALLS = [
    Call(
        "average a b --output=mean --config.seed=7", "inference.averaging.average",
        {"references": ["a", "b"], "output": Path("mean"), "overrides": {"seed": "7"}},
        ["first", "second"], "first\nsecond\n",
    ),
    Call(
        "average a --last=3 --output=mean", "inference.averaging.average",
        {"references": ["a"], "output": Path("mean"), "overrides": {}, "last": 3}, [], "",
    ),
    Call(
        "push here user/name", "weights.push.push",
        {"folder": "here", "repository": "user/name"}, ["first", "second"], "first\nsecond\n",
    ),
    Call(
        "push here user/name --public", "weights.push.push",
        {"folder": "here", "repository": "user/name", "public": True}, [], "",
    ),
    Call(
        f"search {MODEL} --index=table.npz --query=q.png", "inference.search.search",
        SEARCH, SIMILAR, "image similarity a.png 0.9877 b.png 0.5000",
    ),
    Call(
        f"search {MODEL} --index=table.npz --query=q.png --top=2 --images=all "
        "--output=p.html --json",
        "inference.search.search",
        SEARCH | {"top": 2, "images": "all", "output": Path("p.html")}, SIMILAR,
        '{"image": "a.png", "similarity": 0.98765}\n{"image": "b.png", "similarity": 0.5}\n',
    ),
    Call(
        f"embed {MODEL} photos --output=f.npz --features=tokens --batch-size=4",
        "inference.embedding.embed",
        {"reference": "run", "output": Path("f.npz"), "images": "photos", **LOADED}
        | {"features": "tokens", "batch_size": 4}, 1234, "f.npz: 1,234 images\n",
    ),
    Call(
        f"convert {MODEL} --to=hf --output=new --dtype=float16 --license=mit",
        "inference.conversion.convert",
        {"reference": "run", "kind": "hf", "output": Path("new"), **LOADED}
        | {"dtype": "float16", "license_id": "mit"}, ["first", "second"], "first\nsecond\n",
    ),
    Call(
        f"evaluate {MODEL} --output=new", "inference.evaluation.evaluate",
        {"reference": "run", "output": Path("new"), **LOADED},
        {"step": 1200, "test/split": "test", "test/count": 1000, "test/top1": 0.5},
        "metric value step 1,200 test/split test test/count 1,000 test/top1 0.5000 written: new",
    ),
    Call(
        f"predict {MODEL} --examples=2 --top=1 --seed=3 --csv", "inference.prediction.predict",
        {"reference": "run", "images": [], **LOADED, "top": 1, "examples": 2, "seed": 3},
        [
            Prediction(image="a", top=(("cat", 0.75),), truth="dog"),
            Prediction(image="c", error="is no image"),
            Prediction(image="b", top=(("dog", 0.5),), truth="dog"),
        ],
        "image,rank,class,probability,truth\na,1,cat,0.750000,dog\nb,1,dog,0.500000,dog\n", 2,
    ),
    Call(
        f"predict {MODEL} . --csv", "inference.prediction.predict",
        {"reference": "run", "images": ["."], **LOADED},
        [Prediction(image="a", numbers=(("width", 0.1), ("height", 2.0)))],
        "image,width,height\na,0.1,2.0\n",
    ),
    Call(
        f"predict {MODEL} .", "inference.prediction.predict",
        {"reference": "run", "images": ["."], **LOADED},
        [Prediction(image="a", top=(("cat", 0.75), ("dog", 0.25)))],
        "image prediction a cat 75.0% dog 25.0%",
    ),
    Call(
        "report a b", "studies.report.write_report",
        {"directories": [Path("a"), Path("b")], "output": None, "images": 512},
        (Path("a.html"), Path("a.md")), "a.html\na.md\n",
    ),
    Call(
        "report a --output=new --images=9 --seed=3", "studies.report.write_report",
        {"directories": [Path("a")], "output": Path("new"), "images": 9, "seed": 3}, (), "",
    ),
    Call(
        "report a --no-predictions", "studies.report.write_report",
        {"directories": [Path("a")], "output": None, "images": 0}, (), "",
    ),
    Call(
        "selftest --hours=2 --model=ViT-B/16 --batch=4", "training.selftest.run",
        {"variant": "ViT-B/16", "batch": 4, "hours": 2.0, "say": print},
        Verdict(rounds=3, devices=1, seconds=7200.4), "3 rounds in 7200 s: no difference\n",
    ),
    Call(
        f"inspect saliency {MODEL} . --count=2 --seed=3 --class=cat --steps=8 --format=both "
        "--output=new", "inference.inspect.outputs.inspect",
        {"what": "saliency", "checkpoint": "run", **LOADED, "images": ["."], "count": 2}
        | {"seed": 3, "output": Path("new"), "formats": ("png", "svg"), "label": "cat", "steps": 8},
        [Path("a.png"), Path("a.svg")], "a.png\na.svg\n",
    ),
    Call(
        "train digits --workdir=new --smoke --profile=3:5 --accept=data,config --config.seed=7",
        "api.train",
        {"name_or_config": "digits", "workdir": Path("new"), "overrides": {"seed": "7"}}
        | {"smoke": True, "profile": (3, 5), "accept": ("data", "config")},
        Outcome(
            workdir=Path("new"), steps=2000, seconds=62.0, results={"test/top1": 0.5}, last={},
            checkpoint="step 3, the newest", files=(Path("new/curves.png"),),
            splits={"test": "test", "validation": "train[90%:]"},
        ),
        "result validation/split train[90%:] test/top1 0.5000 checkpoint step 3, the newest "
        "steps 2,000 time 1m02s curves.png new/curves.png",
    ),
    Call(
        "train digits --dry-run --accept=data", "api.preview",
        {"name_or_config": "digits", "workdir": None, "overrides": {}, "accept": ("data",)},
        [("model", "ViT")], "run model ViT",
    ),
    Call(
        f"segment {MODEL} --data=. --train=fit --test=try", "inference.segmentation.measure",
        {"checkpoint": "run", "root": ".", **LOADED, "splits": ("fit", "try")}
        | {"say": logs.log.info},
        SEGMENTED,
        "class IoU pixels 0 0.9000 1,000 1 0.0000 0 2 - 0 mean IoU 0.4500 pixel accuracy 0.9000",
    ),
    Call(
        f"doctor {MODEL} photos --output=p.html --fix-list=f.csv --leave-out=leak --holdout=0.2 "
        "--no-labels --cosine=0.9", "inference.doctor.run.doctor",
        {"folder": "photos", "checkpoint": "run", **LOADED, "output": Path("p.html")}
        | {"fix_list": Path("f.csv"), "leave_out": ("leak",), "holdout": 0.2, "labels": False}
        | {"cosine": 0.9},
        EXAMINED,
        "folder: a features: b 3 are in another split finding images in the list what it is "
        "leak 3 3 in two splits p.html: a page with pictures, and how this was found "
        "f.csv: 1,234 images to leave out, with --config.data.exclude=f.csv",
        also=EXAMINED_LINES,
    ),
    Call(
        "doctor photos", "inference.doctor.run.doctor",
        {"folder": "photos", "output": Path("doctor.html"), "overrides": {}},
        EXAMINED,
        "folder: a features: b 3 are in another split nothing was found "
        "doctor.html: a page with pictures, and how this was found",
        also=EXAMINED_LINES | {"inference.doctor.page.describe": []},
    ),
    Call(
        "doctor photos --json", "inference.doctor.run.doctor",
        {"folder": "photos", "output": Path("doctor.html"), "overrides": {}},
        EXAMINED, '{"image": "a.png", "kind": "leak", "reason": "as b.png"}\n',
    ),
    Call(
        "reproduce figure4 --config.seed=7", "studies.reproduce.perform",
        {"table": reproduce.table("figure4"), "workdir": Path("runs"), "overrides": {"seed": "7"}}
        | {"smoke": False},
        70, "Means a 1 of three", 70, also=PLANNED,
    ),
    Call(
        "reproduce figure4 --smoke --json", "studies.reproduce.perform",
        {"table": reproduce.tiny(reproduce.table("figure4")), "workdir": Path("runs/smoke")}
        | {"overrides": {}, "smoke": True},
        0, '{"seed": 7}\n', also=PLANNED,
    ),
    Call(
        "bench evaluate --models=a,b --sizes=32 --data=photos --rounds=2",
        "benchmarks.evaluate.measure",
        {"names": ("a", "b"), "sizes": (32,), "batch": 32, "data": Path("photos"), "rounds": 2}
        | {"say": bench._print_progress},
        [[COMPARED], [COMPARED]], BENCH_TABLE, also=BENCH,
    ),
    Call(
        "bench checkpoint --models=a,b --workdir=disk --rounds=2", "benchmarks.checkpoint.measure",
        {"names": ("a", "b"), "where": Path("disk"), "rounds": 2, "say": bench._print_progress},
        [[COMPARED], [COMPARED]], BENCH_TABLE, also=BENCH,
    ),
    Call(
        "bench train --rounds=2 --batch=4 --dtype=bfloat16", "benchmarks.train.measure",
        {"every": STEPS, "peer": bench_train.Peer(), "rounds": 2, "say": bench._print_progress},
        [(STEPS[0], MEASURED), (STEPS[0], MEASURED)], BENCH_TABLE, also=BENCH,
    ),
    Call(
        "prepare mine --from a b --data-dir=d --label=kind --holdout=0.2 --max-side=9 --workers=3 "
        "--dedup-against c,d e --dedup-distance=4 --partial --dry-run",
        "data.prepare.command.prepare",
        {"name": "mine", "request": Request(
            sources=("a", "b"), data_dir="d", label="kind", holdout=0.2, max_side=9, workers=3,
            against=("c", "d", "e"), distance=4, partial=True, dry_run=True,
        )},
        ["first", "second"], "first\nsecond\n", also={"data.prepare.command.names": ["mine"]},
    ),
    Call(
        "prepare mine --from=s3://b/a --cache=c --cache-size=5 --verify --workers=1",
        "data.prepare.command.prepare",
        {"name": "mine", "request": Request(
            sources=("s3://b/a",), cache="c", cache_size=5.0, verify=True
        )},
        [], "", also={"data.prepare.command.names": ["mine"]},
    ),
]  # fmt: skip
WITHOUT_A_LOG = ("bench", "push", "report")


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.words.replace(f" {MODEL}", ""))
def test_a_command_is_the_call_of_a_function(call, monkeypatch, capsys):
    path, _, name = f"vit_jax.{call.function}".rpartition(".")
    module = importlib.import_module(path)
    for other, value in call.also.items():
        monkeypatch.setattr(f"vit_jax.{other}", lambda *_, value=value, **__: value)
    signature = inspect.signature(getattr(module, name))
    done = []

    def stand_in(*args, **kwargs):
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        done.append(bound.arguments)
        return call.answer

    monkeypatch.setattr(module, name, stand_in)
    if name in vit_jax.__all__:
        # Not by setattr, which would find the stand-in there and leave it behind.
        monkeypatch.setitem(vars(vit_jax), name, stand_in)
    monkeypatch.setattr(logs, "setup", lambda: done.append("the log is shown"))
    assert cli.main(call.words.split()) == call.code
    expected = signature.bind(**call.given)
    expected.apply_defaults()
    command = call.words.split()[0]
    assert done == [*([] if command in WITHOUT_A_LOG else ["the log is shown"]), expected.arguments]
    printed = capsys.readouterr().out.replace("─", "")
    assert (printed if call.printed.endswith("\n") else " ".join(printed.split())) == call.printed


def test_bench_input_is_kept_and_says_how_many_cores_feed_a_slice(tmp_path, monkeypatch, capsys):
    """By the last measurement, on all cores."""
    slower, output = dataclasses.replace(COMPARED, amount=1), tmp_path / "speed.jsonl"
    monkeypatch.setattr(bench_input, "measure", lambda _: [slower, slower, COMPARED])
    one, *others = COMPARED.results
    threads = [dataclasses.replace(one, name=f"vit_jax, {n} threads", seconds=[s] * 3)
               for n, s in ((1, 2.0), (4, 0.25))]  # fmt: skip
    threads = dataclasses.replace(COMPARED, results=[*threads, *others])
    monkeypatch.setattr(bench_input, "title", lambda _: ["a title"])
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(4))
    words = ["bench", "input", "--feed=ViT-B/32", "--topology=v3-8", f"--output={output}"]
    assert cli.main(words) == 0
    printed = capsys.readouterr().out
    assert "host cores like these, at 500 images/s each" in printed
    assert re.findall(r"work +vit_jax +(\S+) images", printed) == ["2", "2", "2,000"]
    (line,) = map(json.loads, output.read_text().splitlines())
    assert [one["amount"] for one in line["compared"]] == [1, 1, 1000]
    monkeypatch.setattr(bench_input, "measure", lambda _: [threads])
    assert cli.main([*words, "--threads=1,4"]) == 0  # the best number of those tried
    assert "host cores like these, at 1,000 images/s each" in capsys.readouterr().out


@pytest.mark.parametrize("first", [True, False])
def test_a_selftest_joins_its_processes_and_the_first_one_speaks(first, monkeypatch, capsys):
    joined = []
    monkeypatch.setattr(distributed, "initialize", lambda *given: joined.append(given))
    monkeypatch.setattr(distributed, "is_first", lambda: first)

    def run(variant, *, batch, hours, say):
        say("round 1")
        return Verdict(rounds=3, devices=1, seconds=7200.4)

    monkeypatch.setattr(selftest, "run", run)
    assert cli.main(["selftest"]) == 0
    assert joined == [()]  # there is no run directory to share
    said = "round 1\n3 rounds in 7200 s: no difference\n"
    assert capsys.readouterr().out == (said if first else "")


@pytest.mark.parametrize(
    ("words", "names", "fits", "code"),
    [
        ("digits --topology=cpu,gpu --fit --loops --output=f --price=2 --mfu=0.4", ["digits"],
         [True, True], 0),
        ("digits cifar10/ViT-6_4 --topology=cpu", ["digits", "cifar10/ViT-6_4"], [True, False], 78),
        ("--table=home --topology=cpu", ["digits", "digits-token"], [True, True], 0),
    ],
)  # fmt: skip
def test_preflight_measures_every_config_on_every_slice(
    words, names, fits, code, monkeypatch, capsys
):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    given = {}
    reports = [create_report(fits=one) for one in fits]

    def measure_all(runs, slices, **options):
        given.update(options, runs=runs, slices=slices)
        options["say"]("compiling")
        return reports

    monkeypatch.setattr(preflight, "measure_all", measure_all)
    monkeypatch.setattr(preflight, "open_slice", lambda name: f"the slice {name}")
    rows = {"home": [types.SimpleNamespace(name=name) for name in names]}
    monkeypatch.setattr(listing, "entries", lambda table: rows[table])
    assert cli.main(["preflight", *words.split()]) == code
    assert [cfg.name for cfg, _ in given["runs"]] == names
    assert [count for _, count in given["runs"]] == [catalog.about(name).images for name in names]
    topologies = re.search(r"--topology=(\S+)", words)[1].split(",")
    assert given["slices"] == [f"the slice {one}" for one in topologies]
    assert (given["fit"], given["loops"]) == ("--fit" in words, "--loops" in words)
    assert given["output"] == (Path("f") if "--output" in words else None)
    out, err = capsys.readouterr()
    share, price = (0.4, 2.0) if "--mfu" in words else (None, None)
    days = {name: catalog.about(name).core_days for name in names}
    assert out.splitlines() == preflight.markdown(reports, share, days, price)
    assert err.endswith("compiling\n")


def test_preflight_of_one_config(monkeypatch, capsys):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    report = create_report()
    monkeypatch.setattr(preflight, "measure_all", lambda *_, **__: [report])
    assert cli.main(["preflight", "digits", "--topology=cpu", "--fit"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.endswith(f"flags {report.settings.flags()}")
    assert cli.main(["preflight", "digits", "--topology=cpu", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == preflight.as_dict(report)
    assert cli.main(["preflight", "digits", "--topology=cpu", "--scaling"]) == 0
    assert capsys.readouterr().out.splitlines() == preflight.scaling_table([report], None)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("", "preflight: name a config (see `vit_jax list`), or a --table"),
        ("digits --table=home", "preflight: name a config (see `vit_jax list`), or a --table"),
        ("image_folder", "image_folder: its length is 90 epochs and its number of images is not "
         "known; set --examples=N"),
        ("image_folder --config.train.duration=900 --config.data.phases.a.until=1_epochs "
         "--config.data.phases.a.image_size=160", "image_folder: data.phases.a.until is 1 epochs "
         "and its number of images is not known; set --examples=N"),
    ],
)  # fmt: skip
def test_preflight_needs_configs_and_their_number_of_images(words, line, monkeypatch, capsys):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    words = [word.replace("_epochs", " epochs") for word in words.split()]
    assert cli.main(["preflight", "--topology=cpu", *words]) == 2
    assert capsys.readouterr().err == f"vit_jax: {line}\n"


def test_preflight_says_whose_images_an_epoch_has(caplog):
    slices = {"data.train_split": "train[:10%]", "data.workers": "0"}
    assert preflight_command._run("digits", slices, 144)[1] == 144
    assert preflight_command._run("digits", {"data.workers": "0"}, None)[1] == 1437
    assert not caplog.messages
    assert preflight_command._run("digits", slices, None)[1] == 1437
    said = "digits: epochs are of 1,437 images, as of the config's own data; set --examples=N for"
    assert caplog.messages == [f"{said} others"]


def test_preflight_reads_the_model_of_every_teacher_once(monkeypatch):
    plain, distilled = runs.configure(), runs.configure(
        objective={"name": "distillation", "teacher": "weights.npz"}
    )  # fmt: skip
    asked = []
    monkeypatch.setattr(loading, "describe_checkpoint", lambda name: asked.append(name) or plain)
    found = preflight_command._teachers([plain, distilled, distilled])
    assert found == {"weights.npz": config.Config(model=plain.model, data=plain.data)}
    assert asked == ["weights.npz"]
    assert preflight_command._teachers([plain]) == {}


def test_a_served_page_takes_images_until_ctrl_c(monkeypatch, capsys):
    served = []

    class Server:
        url = "http://127.0.0.1:9"

        def __init__(self, viewer, page, port):
            served.append((viewer, page, port))

        def __enter__(self):
            return self

        def __exit__(self, *_):
            served.append("closed")

        def serve_forever(self):
            raise KeyboardInterrupt

    monkeypatch.setattr(view, "open_viewer", lambda *_, **given: ("viewer", ["image"]))
    monkeypatch.setattr(view, "page", lambda viewer, pictures, *, live: (viewer, pictures, live))
    monkeypatch.setattr(serve, "Server", Server)
    assert cli.main(["inspect", "view", "--checkpoint=run", "--serve=9"]) == 0
    assert served == [("viewer", ("viewer", ["image"], True), 9), "closed"]
    assert capsys.readouterr().out == "http://127.0.0.1:9 (on this machine only; Ctrl-C ends it)\n"


def test_tables_of_weights_leave_out_columns_that_are_empty():
    made = [weights_tables.zoo.entries()[0]]
    whole = dataclasses.replace(made[0], top1=81.5, image_size=224)
    bare = dataclasses.replace(made[0], model="", top1=None, image_size=None)
    (table,) = weights_tables.groups([whole])
    assert {"name", "model", "pixels", "top-1"} <= {*table.header}
    (table,) = weights_tables.groups([bare])
    assert table.header[0] == "name"
    assert not {"model", "pixels", "top-1"} & {*table.header}


@pytest.mark.parametrize("described", [[], [("views", "two of 224"), ("objective", "dino")]])
def test_show_describes_the_objective(described, monkeypatch, capsys):
    monkeypatch.setattr(build, "describe_run", lambda cfg: described)
    assert cli.main(["show", "dino/folder"]) == 0
    out = capsys.readouterr().out
    assert ("\n\nviews: two of 224\nobjective: dino\n\nchoice" in out) == bool(described)
    assert "\n\n\n" not in out
    assert cli.main(["show", "digits"]) == 0
    assert "views" not in capsys.readouterr().out


def test_ctrl_c_ends_a_command_with_130_and_a_line(monkeypatch, capsys):
    def interrupted(**_):
        raise KeyboardInterrupt

    monkeypatch.setattr(listing, "entries", interrupted)
    assert cli.main(["list"]) == 130
    assert capsys.readouterr().err == "vit_jax: interrupted\n"


@pytest.mark.parametrize(("written", "code", "ends"), [(True, 0, 0), (True, 2, 2), (False, 0, 70)])
def test_the_exit_code_of_a_process(written, code, ends, monkeypatch, capsys):
    """That of its command; 70 where standard output cannot be written."""

    def end(code):
        raise SystemExit(code)

    monkeypatch.setattr(signals, "listen", lambda: None)
    monkeypatch.setattr(cli, "main", lambda command: code)
    monkeypatch.setattr(cli, "_flush", lambda: written)
    monkeypatch.setattr(os, "_exit", end)
    with io.TextIOWrapper(io.BytesIO(), encoding="ascii") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        with pytest.raises(SystemExit) as caught:
            cli.entry()
        print("\u00e9", file=stream)  # a file name, say
    assert caught.value.code == ends
    assert ("standard output: cannot be written" in capsys.readouterr().err) == (not written)


def test_what_is_no_number_is_null_in_json(monkeypatch, capsys):
    """As in metrics.jsonl: JSON has no NaN."""
    found = {"test/r2": float("nan"), "test/split": "test"}
    monkeypatch.setattr(vit_jax, "evaluate", lambda *_, **__: found)
    assert cli.main(["evaluate", "--checkpoint=x", "--json"]) == 0
    assert capsys.readouterr().out == '{"test/r2": null, "test/split": "test"}\n'
