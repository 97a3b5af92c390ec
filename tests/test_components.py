"""Components by name: parsing, registering, and what a config makes of them."""

import ast
import contextlib
import importlib
import json
import sys

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import plugins
import vit_jax.evaluation.named
import vit_jax.models  # noqa: F401
from vit_jax import cli, config, validation
from vit_jax.config import components
from vit_jax.training import losses, optimizers, schedules


@pytest.fixture
def plugin():
    with plugins.loaded() as module:
        yield module


@pytest.mark.parametrize(
    ("text", "name", "arguments"),
    [
        ("lion", "lion", {}),
        ("lion(b1=0.9, b2=-1)", "lion", {"b1": 0.9, "b2": -1}),
        (
            "x(names=['a,b', 'c'], on=True, no=None)",
            "x",
            {"names": ["a,b", "c"], "on": True, "no": None},
        ),
    ],
)
def test_parses_a_name_with_arguments(text, name, arguments):
    assert components.parse(text, "k") == components.Spec(name, arguments)


@pytest.mark.parametrize(
    "text", ["", "a.b", "a(1)", "a(**{})", "a(b=open('x'))", "a(b=c)", "a b", "a()()", "(" * 5000]
)
def test_refuses_anything_else(text):
    with pytest.raises(config.ConfigError, match="must be NAME or NAME"):
        components.parse(text, "optimizer.name")


@pytest.mark.parametrize("text", ["cos]ine", "a.b", "a b", "__import__", "(" * 5000, "a()()\n+1"])
def test_only_what_looks_like_a_call_reaches_the_parser_of_python(text, monkeypatch):
    monkeypatch.setattr(ast, "parse", lambda *_, **__: pytest.fail("parsed"))
    with contextlib.suppress(config.ConfigError):
        components.parse(text, "optimizer.name")


def test_a_name_belongs_to_one_component(monkeypatch):
    monkeypatch.setattr(components, "_TABLES", {kind: {} for kind in components.KINDS})
    components.register("loss", "mine")(dict)
    components.register("loss", "mine")(dict)  # the same again, as on a reload
    with pytest.raises(ValueError, match="both register it"):
        components.register("loss", "mine")(list)
    with pytest.raises(ValueError, match="did you mean loss"):
        components.register("losss", "mine")
    with pytest.raises(ValueError, match="only letters"):
        components.register("loss", "my-loss")
    with pytest.raises(config.ConfigError, match=r"mime: no such loss; did you mean mine"):
        components.find("loss", "mime", "train.loss")


def test_wrong_arguments_are_one_line():
    def component(given, *, b1=0.9):
        return given, b1

    good = components.Spec("c", {"b1": 2})
    assert components.call(component, good, "optimizer.name", 1) == (1, 2)
    with pytest.raises(config.ConfigError, match=r"optimizer.name=c: .*'b3'"):
        components.call(component, components.Spec("c", {"b3": 2}), "optimizer.name", 1)


def test_a_plugin_that_cannot_be_imported_is_one_line(monkeypatch, tmp_path, capsys):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "broken_plugin.py").write_text("1 / 0\n")
    with pytest.raises(config.ConfigError, match=r"--plugins=broken_plugin: ZeroDivisionError"):
        components.load_plugins(["broken_plugin"])
    assert cli.main(["show", "digits", "--plugins=no_such_plugin"]) == 2
    assert "--plugins=no_such_plugin: ModuleNotFoundError" in capsys.readouterr().err
    assert cli.main(["show", "digits", "--plugins"]) == 2


def test_options_name_components():
    def build(**texts):
        keys = {key.replace("__", "."): text for key, text in texts.items()}
        return config.build(config.override({}, keys))

    cfg = build(optimizer__name="lion(b1=0.9,b2=0.95)")
    assert cfg.optimizer.name == "lion(b1=0.9,b2=0.95)"
    assert config.build(json.loads(json.dumps(config.to_dict(cfg)))) == cfg
    with pytest.raises(config.ConfigError, match="did you mean lion"):
        build(optimizer__name="lyon")
    with pytest.raises(config.ConfigError, match="data.transforms=speckle: no such transform"):
        build(data__transforms="speckle")


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("schedule.decay", "cosine(alpha=0.1)"),
        ("optimizer.name", "adam(b1=0.8)"),
        ("data.source", "digits()"),
        ("train.loss", " softmax"),
    ],
)
def test_built_in_components_with_options_take_no_arguments(key, text):
    with pytest.raises(config.ConfigError, match=f"{key}=.*: takes no arguments; write"):
        config.build(config.override({}, {key: text}))


def test_a_plugin_does_not_replace_a_built_in_component():
    with pytest.raises(ValueError, match="loss softmax: vit_jax has one; register yours"):
        components.register("loss", "softmax")(dict)


@pytest.mark.parametrize("kind", ["model", "evaluator", "logger"])
def test_what_the_package_registers_is_known_before_it_is_imported(kind):
    registered = {
        name
        for name, component in components._TABLES[kind].items()
        if (component.__module__ or "").startswith("vit_jax.")
    }
    assert registered == set(components.BUILT_IN[kind])


def test_masked_patches_refuse_augmentations(plugin):
    texts = {"masked.target": "color", "train.augmentations": "jitter", "model.patch_size": "4"}
    with pytest.raises(config.ConfigError, match=r"train.augmentations=jitter: masked patch"):
        validation.check_options(config.build(config.override({}, texts)))


def test_commas_in_parentheses_stay(plugin):
    texts = {"data.transforms": "speckle(share=0.2),speckle"}
    cfg = config.build(config.override({}, texts))
    assert cfg.data.transforms == ("speckle(share=0.2)", "speckle")
    texts = {"train.augmentations": "jitter(amount=0.5,)"}
    assert config.build(config.override({}, texts)).train.augmentations == ("jitter(amount=0.5,)",)


def test_empty_lists_of_components_leave_the_fingerprint(plugin):
    assert config.fingerprint(config.Config()) == "d847bf9edc1ac3d5"
    other = config.build(config.override({}, {"data.transforms": "speckle"}))
    assert config.fingerprint(other) != "d847bf9edc1ac3d5"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", components.OPTAX_OPTIMIZERS)
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
        config.Optimizer(name="lion(b1=0.8,b2=0.95)", weight_decay=0.1, decayed="all"),
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
    loss = losses.cross_entropy(logits, jnp.array([0, 0]), kind="squared")
    share = np.exp(2) / (1 + np.exp(2))
    np.testing.assert_allclose(loss[0], 2 * (1 - share) ** 2, rtol=1e-5)
    np.testing.assert_allclose(losses.probabilities(logits, "squared"), jax.nn.softmax(logits))
    schedule = schedules.create(config.Schedule(decay="triangle"), lr=1.0, steps=10, warmup=0)
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
