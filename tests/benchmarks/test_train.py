"""What `bench train` measures and how it says it, with stand-ins for peers."""

import dataclasses
import json
import math
import pathlib
import stat
import statistics
import sys

import pytest

from vit_jax import cli, config
from vit_jax.benchmarks import step_timing, train, train_results, train_worker, turns

WORK = train_results.Work(
    model="ViT-Ti/16",
    size=32,
    patch=16,
    width=192,
    depth=12,
    mlp_dim=768,
    heads=3,
    dtype="float32",
    attention="explicit",
    batch=4,
)

STAND_IN = """#!{python}
import json, sys
if sys.argv[1] == "-c":
    sys.exit()  # asked whether it has packages: all
work = json.loads(sys.argv[2])
{first}
print("a library that prints")
print(json.dumps({{"params": 10, "start": 0.1, "versions": {{"torch": "9"}}, "peak": 2**30,
                  "seconds": 1, "cpu": 1, "loss": 0.0, "platform": "{platform}", "device": "a CPU",
                  "flops": 1e9, "peak_flops": None}}), flush=True)
for line in sys.stdin:
    steps = int(line)
    print(json.dumps({{"seconds": {seconds} * steps, "cpu": 3.0 * steps, "loss": 1.0,
                      "peak": 2**31}}), flush=True)
"""


def stand_in(path, first="", *, seconds=1000.0, platform="cpu"):
    """Writes a program that answers as a worker or a peer's interpreter would."""
    path.write_text(
        STAND_IN.format(python=sys.executable, first=first, seconds=seconds, platform=platform)
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Replaces our worker by one that needs no compiler and a hundred seconds a step."""
    path = stand_in(tmp_path / "own", seconds=100.0)
    monkeypatch.setattr(train, "WORKER", (str(path), "worker"))


def result(name, seconds, **values):
    given = {"cpu": seconds, "peak": 2**30, "start": 5.0, "params": 1, "versions": {}}
    return train_results.Result(name=name, seconds=seconds, **(given | values))


def measured(peak_flops=None):
    return train_results.Measured(
        work=WORK,
        results=[result("vit_jax", [1.0, 2.0, 4.0]), result("timm, eager", [2.0, 2.0, 6.0])],
        platform="cpu",
        device="cpu",
        flops=1e12,
        peak_flops=peak_flops,
        load=1.5,
    )


def test_the_ratio_is_that_of_each_turn():
    ours, theirs = measured().results
    assert turns.ratios(ours, theirs) == (1.5, 1.0, 2.0)


@pytest.mark.parametrize(("peak", "shown"), [(None, "0.5"), (2e12, "0.5 (25%)")])
def test_the_table_says_rates_and_how_much_faster(peak, shown):
    header, rows = train_results.table([measured(peak)])
    ours, theirs = (dict(zip(header, row, strict=True)) for row in rows)
    assert ours["images/s"] == "2.0"
    assert ours["TFLOP/s (MFU)"] == shown
    assert ours["vit_jax is faster by"] == "-"
    assert theirs["vit_jax is faster by"] == "1.50x (1.00 to 2.00)"


def test_the_work_is_a_run_of_the_model_with_its_layers_unrolled():
    (work,) = train.works(["ViT-S/16"], [224], batch=8, dtype=None, attentions=["xla"])
    assert (work.patch, work.width, work.depth, work.mlp_dim, work.heads) == (16, 384, 12, 1536, 6)
    cfg = train_worker.config_of(dataclasses.asdict(work))
    assert cfg.model.unroll == 12
    assert cfg.model.attention == "xla"
    assert cfg.train.batch_size == 8
    assert cfg.data.image_size == (224, 224)


def weights(side):
    """Returns the parameters of ViT-Ti/16 with 1,000 classes, as its paper defines it."""
    layer = 4 * (192 * 192 + 192) + 192 * 768 + 768 + 768 * 192 + 192 + 4 * 192
    tokens = (side // 16) ** 2 + 1
    embedding = 16 * 16 * 3 * 192 + 192 + 192 + tokens * 192
    return embedding + 12 * layer + 2 * 192 + 192 * 1000 + 1000


@pytest.mark.slow
def test_the_worker_takes_the_steps_of_a_run():
    cfg = train_worker.config_of(dataclasses.asdict(WORK))
    small = dataclasses.replace(cfg.model, width=24, mlp_dim=48, depth=2, unroll=2, variant=None)
    take, facts = train_worker.prepare(dataclasses.replace(cfg, model=small))
    first = step_timing.answer(take, 1, train_worker.peak_memory)
    later = step_timing.answer(take, 9, train_worker.peak_memory)
    assert first["loss"] == pytest.approx(math.log(1000), rel=1e-3)  # its head starts at zero
    assert later["loss"] < first["loss"]
    assert later["peak"] >= first["peak"] > 0
    assert facts["platform"] == "cpu"
    assert facts["flops"] > 0


@pytest.mark.slow
def test_steps_of_a_run_in_turns_with_a_stand_in(tmp_path, capsys):
    output = tmp_path / "records" / "speed.jsonl"
    python = stand_in(tmp_path / "python")
    arguments = [
        "bench", "train", "--models=ViT-Ti/16", "--sizes=16", "--batch=2", "--rounds=2",
        "--peer=timm", f"--peer-python={python}", f"--output={output}",
    ]  # fmt: skip
    assert cli.main(arguments) == 0
    shown = capsys.readouterr().out
    assert "timm, eager" in shown
    assert "timm, compiled" in shown
    (line,) = map(json.loads, output.read_text().splitlines())
    ours, eager, compiled = line["results"]
    assert ours["name"] == "vit_jax"
    assert ours["params"] == weights(16)
    assert 0 < min(ours["seconds"]) <= ours["start"]
    assert eager["seconds"] == compiled["seconds"] == [1000.0, 1000.0]
    assert eager["peak"] == 2**31
    assert compiled["ratio"][0] > 10
    assert line["work"]["batch"] == 2
    # Forward, and twice that backward; two FLOPs for each weight that meets a token.
    assert line["flops"] / (2 * 3 * 2) == pytest.approx(2 * weights(16), rel=0.1)


@pytest.mark.usefixtures("own")
def test_a_batch_that_does_not_fit_a_peer_is_halved_for_all(tmp_path, monkeypatch):
    refuses = "if work['batch'] > 2: print(json.dumps({'memory': 'too large'}), flush=True); exit()"
    peer = train.Peer(name="timm", python=str(stand_in(tmp_path / "python", refuses)))
    said = []
    monkeypatch.setattr(train, "ON_CPU", 8)
    unset = dataclasses.replace(WORK, batch=None)
    (one,) = train.measure([unset], peer, rounds=3, say=said.append)
    assert one.work.batch == 2
    assert [text.rpartition(" ")[2] for text in said] == ["8", "4", "2"]
    assert turns.ratios(*one.results[:2]) == (10, 10, 10)
    with pytest.raises(config.ConfigError, match="batch 4: too large"):
        list(train.measure([WORK], peer, rounds=1, say=said.append))


@pytest.mark.usefixtures("own")
def test_a_peer_that_ends_is_named_with_its_last_words(tmp_path):
    peer = train.Peer(name="timm", python=str(stand_in(tmp_path / "python", "sys.exit('no room')")))
    with pytest.raises(config.ConfigError, match="timm, eager ended early: no room"):
        list(train.measure([WORK], peer, rounds=1, say=lambda _: None))


def test_a_tpu_is_measured_without_a_peer(tmp_path, monkeypatch):
    own = stand_in(tmp_path / "own", platform="tpu")
    monkeypatch.setattr(train, "WORKER", (str(own), "worker"))
    peer = train.Peer(name="timm", python=str(own))
    with pytest.raises(config.ConfigError, match="one process at a time"):
        list(train.measure([WORK], peer, rounds=1, say=lambda _: None))
    (one,) = train.measure([WORK], train.Peer(), rounds=1, say=lambda _: None)
    assert [result.name for result in one.results] == ["vit_jax"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--peer=timm", "--peer-python=/no/python"], "--peer-python=/no/python: does not run"),
        (["--peer=timm"], "has no torch and no timm: install torch timm there"),
        (["--peer=big_vision"], "--peer=big_vision and --peer-path=CHECKOUT go together"),
        (["--peer-path=/gone"], "--peer=big_vision and --peer-path=CHECKOUT go together"),
        (["--peer=big_vision", "--peer-path=/gone"], "--peer-path=/gone: no checkout"),
        (["--models=R50x1"], "--models=R50x1: must be a ViT"),
        (["--models=ViT-Q/16"], "ViT-Q/16"),
        (["--sizes=40"], "40"),
        (["--attention=fast"], "--attention=fast: must be one of explicit, xla, cudnn"),
    ],
)
def test_mistakes_are_one_line(arguments, message, capsys):
    assert cli.main(["bench", "train", *arguments]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert message in line


def test_flags_of_other_measurements_are_refused(capsys):
    assert cli.main(["bench", "infer", "--peer=timm"]) == 2
    assert "--peer=timm: is a flag of bench train only" in capsys.readouterr().err


def interpreter(path, missing=""):
    """Writes this Python under a name that says which packages it lacks, whatever it has."""
    path.write_text(
        f"#!{sys.executable}\n"
        "import os, sys\n"
        "if sys.argv[1] == '-c':\n"
        f"    sys.exit(print({missing!r}))\n"
        "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])\n"
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def checkout(path):
    """Makes the folders of a checkout of big_vision; returns that of its models."""
    package = path / "big_vision" / "models"
    package.mkdir(parents=True)
    (package / "vit.py").touch()
    return package


def test_what_big_vision_needs_is_named_as_pip_names_it(tmp_path):
    checkout(tmp_path)
    python = interpreter(tmp_path / "python", "absl tensorflow")
    with pytest.raises(
        config.ConfigError, match="no absl and no tensorflow: install absl-py tensorflow there"
    ):
        train.Peer(name="big_vision", path=tmp_path, python=python)


@pytest.mark.slow
@pytest.mark.usefixtures("own")
def test_a_checkout_of_big_vision_is_imported(tmp_path):
    """A stand-in of big_vision's model through the real peer script."""
    package = checkout(tmp_path)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "vit.py").write_text(
        "import flax.linen as nn\n"
        "import jax.numpy as jnp\n"
        "def Model(num_classes, **options):\n"
        "    assert options['pool_type'] == 'tok' and options['dtype_mm'] == 'float32'\n"
        "    return Tiny(num_classes)\n"
        "class Tiny(nn.Module):\n"
        "    classes: int\n"
        "    @nn.compact\n"
        "    def __call__(self, images):\n"
        "        return nn.Dense(self.classes)(jnp.mean(images, axis=(1, 2))), {}\n"
    )
    python = interpreter(tmp_path / "python")
    peer = train.Peer(name="big_vision", path=tmp_path, python=python)
    work = dataclasses.replace(WORK, size=16, batch=2)
    (one,) = train.measure([work], peer, rounds=1, say=lambda _: None)
    assert one.results[1].name == "big_vision"
    assert one.results[1].params == 4 * 1000
    assert set(one.results[1].versions) == {"jax", "flax", "optax"}


RECORDS = pathlib.Path(__file__).parents[2] / "docs" / "records"


def test_the_page_of_records_shows_what_was_measured():
    """Every line names its origin, and the page's rows are computed from the lines."""
    page = (RECORDS / "README.md").read_text()
    lines = [json.loads(line) for line in (RECORDS / "train.jsonl").read_text().splitlines()]
    assert lines
    for line in lines:
        assert line["command"].startswith("vit_jax bench train ")
        assert line["commit"]
        assert line["date"]
        work = line["work"]
        ours, *others = line["results"]
        assert ours["versions"]["jax"]
        for other in others:
            assert len(other["seconds"]) == len(ours["seconds"]) >= 5
            pairs = [b / a for a, b in zip(ours["seconds"], other["seconds"], strict=True)]
            found = (statistics.median(pairs), min(pairs), max(pairs))
            cpu = statistics.median(other["cpu"]) / statistics.median(ours["cpu"])
            row = (
                f"| {work['model']}, {work['batch']}, {work['dtype']} | {other['name']} | "
                "{:.2f}x ({:.2f} to {:.2f}) | {:.2f}x | {:.0f} |".format(*found, cpu, line["load"])
            )
            assert row in page
