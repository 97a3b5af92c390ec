"""What `bench train` measures, with stand-ins for its peers and its worker."""

import dataclasses
import json
import math
import stat
import sys

import pytest

from vit_jax import cli, config
from vit_jax.benchmarks import step_timing, train, train_worker, turns

WORK = train.StepWork(
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
print(json.dumps({{"params": 10, "start": 0.1, "versions": {{"torch": "9"}}, "peak": 2**30,
                  "seconds": 1, "cpu": 1, "loss": 0.0, "platform": "{platform}", "device": "a CPU",
                  "flops": 1e9, "peak_flops": None}}), flush=True)
for line in sys.stdin:
    steps = int(line)
    print(json.dumps({{"seconds": {seconds} * steps, "cpu": 3.0 * steps, "loss": 1.0,
                      "peak": 2**31 + steps}}), flush=True)
"""


def script(path, text):
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def stand_in(path, first="", *, seconds=1000.0, platform="cpu"):
    """A program that answers as a worker or a peer's interpreter would."""
    text = STAND_IN.format(python=sys.executable, first=first, seconds=seconds, platform=platform)
    return script(path, text)


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Replaces our worker by one that needs no compiler and a hundred seconds a step."""
    path = stand_in(tmp_path / "own", seconds=100.0)
    monkeypatch.setattr(train, "WORKER", (path, "worker"))


def measure(work, peer, said=None):
    say = (lambda _: None) if said is None else said.append
    return list(train.measure([work], peer, rounds=3, say=say))


@pytest.mark.parametrize("name", ["R50x1", "R50+ViT-B/16"])
def test_plain_vits_alone_have_peers(name):
    with pytest.raises(config.ConfigError, match="must be a ViT, such as ViT-S/16"):
        train.works([name], [224], batch=8, dtype=None, attentions=["xla"])


def test_the_work_is_a_run_of_the_model():
    (work,) = train.works(["ViT-S/16"], [224], batch=8, dtype=None, attentions=["xla"])
    assert (work.patch, work.width, work.depth, work.mlp_dim, work.heads) == (16, 384, 12, 1536, 6)
    cfg = train_worker.config_from_work(dataclasses.asdict(work))
    assert cfg.model.unroll is None  # as a run decides
    assert (cfg.model.attention, cfg.model.remat) == ("xla", "none")
    assert cfg.train.batch_size == 8
    assert cfg.data.image_size == (224, 224)
    (saving,) = train.works(
        ["ViT-S/16"], [224], batch=8, dtype=None, attentions=["xla"], remat="dots"
    )
    assert saving.name == f"{work.name}, remat dots"
    assert train_worker.config_from_work(dataclasses.asdict(saving)).model.remat == "dots"
    learning = dataclasses.replace(work, objective="mae")
    assert learning.name == f"mae of {work.name}"
    assert train_worker.config_from_work(dataclasses.asdict(learning)).mae == config.Mae(name="mae")
    views = dataclasses.asdict(dataclasses.replace(work, objective="dino"))
    cfg = train_worker.config_from_work(views)
    assert cfg.objective == config.Dino(name="dino")
    assert (cfg.train.clip_norm, cfg.train.clip_by) == (3.0, "parameter")  # as its peer


def test_every_objective_has_a_peer_with_a_command(tmp_path):
    (tmp_path / "main_dino.py").touch()
    python = stand_in(tmp_path / "python")
    script = str(train.HERE / "torch_peer.py")
    assert train.Peer(name="transformers", python=python).commands("{}") == {
        "transformers": [python, script, "{}", "transformers"]
    }
    assert train.Peer(name="dino", python=python, path=tmp_path).commands("{}") == {
        "dino": [python, script, "{}", "dino", str(tmp_path)]
    }
    assert train.Peer(name="timm", python=python).commands("{}")["timm, compiled"][-1] == "compiled"
    assert train.Peer().commands("{}") == {}
    for name, program in train.PROGRAMS.items():
        train.check_peer(name, program.objective)


@pytest.mark.slow
def test_the_worker_takes_the_steps_of_a_run():
    cfg = train_worker.config_from_work(dataclasses.asdict(WORK))
    small = dataclasses.replace(cfg.model, width=24, mlp_dim=48, depth=2, unroll=2, variant=None)
    take, facts = train_worker.prepare(dataclasses.replace(cfg, model=small))
    first = step_timing.answer(take, 1, step_timing.jax_peak)
    later = step_timing.answer(take, 9, step_timing.jax_peak)
    assert first["loss"] == pytest.approx(math.log(1000), rel=1e-3)  # its head starts at zero
    assert later["loss"] < first["loss"]
    assert later["peak"] >= first["peak"] > 0
    assert facts["platform"] == "cpu"
    # A training step: three passes of two operations for each weight of a token, and attention.
    matrices = small.depth * (4 * 24 * 24 + 2 * 24 * 48)
    least = 6 * WORK.batch * (WORK.size // WORK.patch) ** 2 * matrices
    assert least < facts["flops"] < 100 * least


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
    (compared,) = line["compared"]
    ours, eager, compiled = compared["results"]
    # ViT-Ti/16 at 16 pixels (2 tokens) with 1,000 classes, as its paper defines it.
    layer = 4 * (192 * 192 + 192) + 192 * 768 + 768 + 768 * 192 + 192 + 4 * 192
    embedding = 16 * 16 * 3 * 192 + 192 + 192 + 2 * 192
    weights = embedding + 12 * layer + 2 * 192 + 192 * 1000 + 1000
    assert ours["params"] == weights
    assert 0 < min(ours["seconds"]) <= ours["start"]
    assert eager["seconds"] == compiled["seconds"] == [1000.0, 1000.0]
    assert eager["peak"] - 2**31 == compiled["peak"] - 2**31 > 1  # steps of a turn
    assert compiled["ratio"][0] > 10
    assert line["work"]["batch"] == compared["amount"] == 2
    # Forward, and twice that backward; two FLOPs for each weight that meets a token.
    assert compared["flops"] / (2 * 3 * 2) == pytest.approx(2 * weights, rel=0.1)


@pytest.mark.usefixtures("own")
def test_a_batch_that_does_not_fit_a_peer_is_halved_for_all(tmp_path, monkeypatch):
    refuses = "if work['batch'] > 2: print(json.dumps({'memory': 'too large'}), flush=True); exit()"
    peer = train.Peer(name="timm", python=stand_in(tmp_path / "python", refuses))
    said = []
    monkeypatch.setattr(train, "ON_CPU", 8)
    ((work, one),) = measure(dataclasses.replace(WORK, batch=None), peer, said)
    assert work.batch == one.amount == 2
    assert [text.partition("batch ")[2][0] for text in said] == ["8", "4", "2"]
    assert turns.ratios(*one.results[:2]) == (10, 10, 10)
    with pytest.raises(config.ConfigError, match="batch 4: too large"):
        measure(WORK, peer)


@pytest.mark.parametrize(("seconds", "steps"), [(0.01, 100), (0.4, 2), (3.0, 1)])
def test_a_turn_takes_about_a_second(seconds, steps, tmp_path, monkeypatch):
    own = stand_in(tmp_path / "own", seconds=seconds)
    monkeypatch.setattr(train, "WORKER", (own, "worker"))
    ((_, one),) = measure(WORK, train.Peer())
    assert one.results[0].facts["peak"] == 2**31 + steps


def test_a_tpu_is_measured_without_a_peer(tmp_path, monkeypatch):
    own = stand_in(tmp_path / "own", platform="tpu")
    monkeypatch.setattr(train, "WORKER", (own, "worker"))
    with pytest.raises(config.ConfigError, match="one process at a time"):
        measure(WORK, train.Peer(name="timm", python=own))
    ((_, one),) = measure(WORK, train.Peer())
    assert [result.name for result in one.results] == ["vit_jax"]
    assert one.device == "a CPU"


def interpreter(path, missing=""):
    """This Python under a name that says which packages it lacks, whatever it has."""
    return script(
        path,
        f"#!{sys.executable}\n"
        "import os, sys\n"
        "if sys.argv[1] == '-c':\n"
        f"    sys.exit(print({missing!r}))\n"
        "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])\n",
    )


@pytest.fixture
def checkout(tmp_path):
    """A checkout of big_vision, with a stand-in of its model."""
    package = tmp_path / "checkout" / "big_vision" / "models"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "vit.py").write_text(
        "import flax.linen as nn\n"
        "import jax.numpy as jnp\n"
        "def Model(num_classes, **options):\n"
        "    assert options == dict(pool_type='tok', dtype_mm='float32', patch_size=(16, 16),\n"
        "                           width=192, depth=12, mlp_dim=768, num_heads=3)\n"
        "    return Tiny(num_classes)\n"
        "class Tiny(nn.Module):\n"
        "    classes: int\n"
        "    @nn.compact\n"
        "    def __call__(self, images):\n"
        "        return nn.Dense(self.classes)(jnp.mean(images, axis=(1, 2))), {}\n"
    )
    return tmp_path / "checkout"


def test_what_big_vision_needs_is_named_as_pip_names_it(tmp_path, checkout):
    python = interpreter(tmp_path / "python", "absl tensorflow")
    with pytest.raises(
        config.ConfigError, match="no absl and no tensorflow: install absl-py tensorflow there"
    ):
        train.Peer(name="big_vision", path=checkout, python=python)


@pytest.mark.slow
@pytest.mark.usefixtures("own")
def test_a_checkout_of_big_vision_is_imported(tmp_path, checkout):
    peer = train.Peer(name="big_vision", path=checkout, python=interpreter(tmp_path / "python"))
    ((_, one),) = measure(dataclasses.replace(WORK, size=16, batch=2), peer)
    assert one.results[1].name == "big_vision"
    assert one.results[1].facts["params"] == 4 * 1000
    assert set(one.results[1].facts["versions"]) == {"jax", "flax", "optax"}
