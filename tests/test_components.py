"""Components by name: parsing, registering, and what a config makes of them."""

import dataclasses
import importlib
import json
import pickle
import sys

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import plugins
import vit_jax
import vit_jax.data.transforms
import vit_jax.evaluation.evaluation
import vit_jax.models
from vit_jax import cli, config
from vit_jax.config import checks, components
from vit_jax.training import losses, optimizers, schedules


@pytest.fixture
def plugin():
    with plugins.loaded() as module:
        yield module


def test_a_name_belongs_to_one_component(monkeypatch):
    monkeypatch.setattr(components, "_REGISTERED", {})
    components.register("loss", "mine")(dict)
    components.register("loss", "mine")(dict)  # the same again, as on a reload
    with pytest.raises(ValueError, match="both register it"):
        components.register("loss", "mine")(list)
    with pytest.raises(ValueError, match="did you mean loss"):
        components.register("losss", "mine")
    with pytest.raises(ValueError, match="only letters"):
        components.register("loss", "my-loss")
    with pytest.raises(config.ConfigError, match=r"mime: no such loss; did you mean mine"):
        components.find("loss", "mime", "loss.name")


def build(**texts):
    return config.build(config.override({}, {k.replace("__", "."): v for k, v in texts.items()}))


@pytest.mark.parametrize(
    ("texts", "line"),
    [
        (
            {"optimizer.momentum": "0.8"},
            "optimizer.momentum=0.8: adam does not take it; it takes b1, b2, eps, moment_dtype",
        ),
        (
            {"optimizer.name": "sgd", "optimizer.momntum": "0.8"},
            "optimizer.momntum=0.8: sgd does not take it; did you mean optimizer.momentum?",
        ),
        (
            {"optimizer.name": "lion", "optimizer.eps": "0.1"},
            "optimizer.eps=0.1: lion does not take it; it takes b1, b2, mu_dtype",
        ),
        ({"optimizer.lrr": "1"}, "optimizer.lrr: unknown key; did you mean optimizer.lr?"),
        ({"optimizer.name": "lyon"}, "optimizer.name=lyon: no such optimizer; did you mean lion?"),
        ({"optimizer.b1": "2"}, "optimizer.b1=2: must be less than 1"),
        (
            {"data.source": "folder", "data.holdout": "1"},
            "data.holdout=1: must be less than 1",
        ),
        ({"data.root": "x"}, "data.root=x: digits does not take it; folder, csv, tfds would"),
        (
            {"schedule.name": "constant", "schedule.drops": "0.5"},
            "schedule.drops=0.5: constant does not take it; it takes cooldown",
        ),
        (
            {"logging.loggers.wandb.projct": "x"},
            "logging.loggers.wandb.projct=x: wandb does not take it; did you mean "
            "logging.loggers.wandb.project?",
        ),
        (
            {"logging.loggers.wandbb.project": "x"},
            "logging.loggers=wandbb: no such logger; did you mean wandb?",
        ),
        (
            {"logging.loggers.wandb": "x"},
            "logging.loggers.wandb=x: write logging.loggers=wandb, or set one of its options",
        ),
        ({"logging.loggers.wandb.mode": "of"}, "logging.loggers.wandb.mode=of: no such choice"),
        ({"optimizer.name": "lion(b1=0.9)"}, "optimizer.name=lion(b1=0.9): no such optimizer"),
    ],
)
def test_what_a_component_does_not_take_is_one_line(texts, line):
    with pytest.raises(config.ConfigError) as raised:
        config.build(config.override({}, texts))
    assert str(raised.value).startswith(line)
    assert "\n" not in str(raised.value)


def test_a_file_is_checked_alike():
    for values, line in (
        ({"optimizer": {"momentum": 0.3}}, "optimizer.momentum=0.3: adam does not take it"),
        ({"optimizer": {"name": 3}}, "optimizer.name=3: must be text"),
        ({"logging": {"loggers": [{"name": "wandb", "a": 2}]}}, "logging.loggers.wandb.a=2: wandb"),
        ({"logging": {"loggers": [{"project": 2}]}}, "logging.loggers={'project': 2}: must be a n"),
        ({"logging": {"loggers": 3}}, "logging.loggers=3: must be a list of names"),
    ):
        with pytest.raises(config.ConfigError) as raised:
            config.build(values)
        assert str(raised.value).startswith(line)


def test_a_section_has_the_arguments_of_its_component():
    cfg = build(optimizer__b1="0.8", optimizer__name="lion")  # in any order
    assert (cfg.optimizer.b1, cfg.optimizer.b2) == (0.8, 0.99)
    assert config.build(json.loads(json.dumps(config.to_dict(cfg)))) == cfg
    assert pickle.loads(pickle.dumps(cfg)) == cfg
    assert config.changed(cfg) == {"optimizer.name": "lion", "optimizer.b1": 0.8}
    assert config.Adam(b1=0.5) == config.Optimizer(name="adam", b1=0.5)


def test_another_component_drops_the_arguments_of_the_one_before():
    stored = config.to_dict(build(optimizer__b2="0.5", optimizer__lr="3"))
    cfg = config.build(config.override(stored, {"optimizer.name": "lion"}))
    assert (cfg.optimizer.lr, cfg.optimizer.b2) == (3, 0.99)
    same = config.build(config.override(stored, {"optimizer.name": "adam"}))
    assert same.optimizer.b2 == 0.5
    replaced = dataclasses.replace(same.optimizer, name="sgd")
    assert replaced == config.Optimizer(name="sgd", lr=3.0)


def test_lists_of_components_are_names_or_sections(plugin):
    by_name = build(logging__loggers="jsonl,wandb", logging__loggers__wandb__project="x")
    added = build(logging__loggers="jsonl", logging__loggers__wandb__project="x")
    loggers = ["jsonl", {"name": "wandb", "project": "x"}]
    assert by_name == added == config.build({"logging": {"loggers": loggers}})
    twice = {"transforms": ["speckle", {"name": "speckle", "share": 0.2}]}
    cfg = config.build({"data": twice})
    assert [one.share for one in cfg.data.transforms] == [0.1, 0.2]
    assert config.build(config.to_dict(cfg)) == cfg
    with pytest.raises(config.ConfigError, match="speckle is there twice; set it in a config file"):
        config.override(config.to_dict(cfg), {"data.transforms.speckle.share": "0.3"})
    assert config.build(config.override(config.to_dict(cfg), {"data.transforms": "()"})) == (
        config.Config()
    )


def test_arguments_of_a_plug_in_are_those_of_its_signature():
    with plugins.forgotten():

        @vit_jax.register("loss", "mine")
        def mine(gamma: float, names: tuple[str, ...] = (), size=3, soft: bool | None = None):
            pass

        given = {"loss.name": "mine", "loss.gamma": "2", "loss.size": "1,2", "loss.soft": "true"}
        cfg = config.build(config.override({}, given | {"loss.names": "a,b"}))
        assert (cfg.loss.gamma, cfg.loss.names, cfg.loss.size) == (2.0, ("a", "b"), (1, 2))
        assert cfg.loss.soft is True
        for changed, line in (
            ({"loss.gamma": "x"}, "loss.gamma=x: must be a number"),
            ({"loss.gama": "1"}, "loss.gama=1: mine does not take it; did you mean loss.gamma"),
        ):
            with pytest.raises(config.ConfigError, match=line):
                config.build(config.override({}, given | changed))
        with pytest.raises(config.ConfigError, match=r"loss.gamma: has no default; set it"):
            build(loss__name="mine")
        vit_jax.register("model", "wide")(lambda width=3: None)
        with pytest.raises(config.ConfigError, match="its argument width is an option of every mo"):
            build(model__architecture="wide")


def test_a_plugin_that_cannot_be_imported_is_one_line(monkeypatch, tmp_path, capsys):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "broken_plugin.py").write_text("1 / 0\n")
    with pytest.raises(config.ConfigError, match=r"--plugins=broken_plugin: ZeroDivisionError"):
        components.load_plugins(["broken_plugin"])
    assert cli.main(["show", "digits", "--plugins=no_such_plugin"]) == 2
    assert "--plugins=no_such_plugin: ModuleNotFoundError" in capsys.readouterr().err
    assert cli.main(["show", "digits", "--plugins"]) == 2


def test_a_plugin_does_not_replace_a_built_in_component():
    with pytest.raises(ValueError, match="loss softmax: vit_jax has one; register yours"):
        components.register("loss", "softmax")(dict)


@pytest.mark.parametrize("kind", ["model", "evaluator", "logger", "transform"])
def test_what_the_package_registers_is_known_before_it_is_imported(kind):
    registered = {
        name
        for (k, name), (component, _) in components._REGISTERED.items()
        if k == kind and (component.__module__ or "").startswith("vit_jax.")
    }
    assert registered == set(components.built_in(kind))


def test_masked_patches_refuse_augmentations(plugin):
    texts = {"masked.target": "color", "train.augmentations": "jitter", "model.patch_size": "4"}
    with pytest.raises(config.ConfigError, match=r"train.augmentations=jitter: masked patch"):
        checks.check_options(config.build(config.override({}, texts)))


def test_what_is_at_its_default_leaves_the_fingerprint(plugin):
    assert config.fingerprint(build(data__transforms="()")) == config.fingerprint(config.Config())
    other = build(data__transforms="speckle")
    assert config.fingerprint(other) != config.fingerprint(config.Config())
    assert config.fingerprint(other) != config.fingerprint(
        build(data__transforms="speckle", data__transforms__speckle__share="0.3")
    )


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", components.built_in("optimizer"))
def test_every_named_optimizer_descends(name):
    params = {"kernel": jnp.ones((3, 4))}
    tx = optimizers.create(config.Optimizer(name=name), clip_norm=1.0)
    grads = {"kernel": jnp.full((3, 4), 0.5)}
    updates, _ = tx.update(grads, tx.init(params), params)
    assert np.all(np.asarray(updates["kernel"]) > 0)  # the step multiplies by minus the rate


def test_lion_is_that_of_optax_with_its_arguments():
    params = {"kernel": jnp.arange(6.0).reshape(2, 3), "bias": jnp.ones(3)}
    grads = jax.tree.map(lambda x: jnp.cos(x * 3), params)
    ours = optimizers.create(
        config.Optimizer(name="lion", b1=0.8, b2=0.95, weight_decay=0.1, decayed="all"),
        clip_norm=None,
    )
    theirs = optax.lion(0.01, b1=0.8, b2=0.95, weight_decay=0.1)
    state, reference = ours.init(params), theirs.init(params)
    for _ in range(3):
        updates, state = ours.update(grads, state, params)
        expected, reference = theirs.update(grads, reference, params)
        chex.assert_trees_all_close(jax.tree.map(lambda x: -0.01 * x, updates), expected, rtol=1e-6)


def test_plugged_in_loss_schedule_and_probabilities(plugin):
    logits = jnp.array([[2.0, 0.0], [0.0, 3.0]])
    loss = losses.cross_entropy(logits, jnp.array([0, 0]), loss=config.Loss(name="squared"))
    share = np.exp(2) / (1 + np.exp(2))
    np.testing.assert_allclose(loss[0], 2 * (1 - share) ** 2, rtol=1e-5)
    np.testing.assert_allclose(
        losses.probabilities(logits, config.Loss(name="squared")), jax.nn.softmax(logits)
    )
    schedule = schedules.create(config.Schedule(name="triangle"), lr=1.0, steps=10, warmup=0)
    np.testing.assert_allclose([schedule(s) for s in (0, 5, 10)], [0.1, 1.0, 0.0], atol=1e-6)


def test_a_plug_in_is_known_by_its_source_and_what_it_imports_beside_it(tmp_path, monkeypatch):
    files = {
        "first_plugin.py": "import json, side, vit_jax.config\nfrom pack.deep import x\n",
        "side.py": "def lazily():\n    from pack import late\n",
        "pack/__init__.py": "",
        "pack/deep.py": "from . import near\nfrom .near import far\nx = 1\n",
        "pack/near.py": "far = 1\n",
        "pack/late.py": "",
        "unused.py": "",
        "json.py.txt": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("first_plugin")
    names = ["first_plugin", "pack", "pack.deep", "pack.late", "pack.near", "side"]
    try:
        before = components.digests(["first_plugin", "__main__", "never_imported"])
        assert list(before) == names
        (tmp_path / "pack" / "late.py").write_text("# changed")
        after = components.digests(["first_plugin"])
        assert {name for name in names if before[name] != after[name]} == {"pack.late"}
    finally:
        for name in names:
            sys.modules.pop(name, None)
