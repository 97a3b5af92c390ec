"""Components by name: registering, arguments by signature, plug-ins and their digests."""

import errno
import importlib
import sys
from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plugins
import vit_jax
import vit_jax.data.transforms
import vit_jax.evaluation.evaluation
import vit_jax.models
from vit_jax import cli, config
from vit_jax.config import components
from vit_jax.training import losses, optimizers, schedules


def test_a_name_belongs_to_one_component(forgotten):
    components.register("loss", "mine")(dict)
    components.register("loss", "mine")(dict)  # the same again, as on a reload
    for kind, name, component, line in (
        ("loss", "mine", list, "both register it"),
        ("loss", "softmax", dict, "loss softmax: vit_jax has one; register yours by another name"),
        ("losss", "mine", dict, "did you mean loss"),
        ("loss", "my-loss", dict, "only letters"),
    ):
        with pytest.raises(ValueError, match=line):
            components.register(kind, name)(component)
    with pytest.raises(config.ConfigError, match=r"mime: no such loss; did you mean mine"):
        components.find("loss", "mime", "loss.name")


def test_arguments_of_a_plug_in_are_those_of_its_signature(forgotten):
    @vit_jax.register("loss", "mine")
    def mine(gamma: float, names: tuple[str, ...] = (), size=3, soft: bool | None = None, f=abs):
        pass

    def build(**texts):
        return config.build(config.override({}, {f"loss.{k}": v for k, v in texts.items()}))

    cfg = build(name="mine", gamma="2", size="1,2", soft="true", names="a,b").loss
    assert (cfg.gamma, cfg.names, cfg.size, cfg.soft) == (2.0, ("a", "b"), (1, 2), True)
    for texts, line in (
        ({"gamma": "x"}, "loss.gamma=x: must be a number"),
        ({"gama": "1"}, "loss.gama=1: mine does not take it; did you mean loss.gamma"),
        ({"f": "1"}, "loss.f: unknown key"),  # a config cannot write a function
        ({}, "loss.gamma: has no default; set it"),
    ):
        with pytest.raises(config.ConfigError, match=line):
            build(name="mine", **texts)
    vit_jax.register("model", "wide")(lambda width=3: None)
    with pytest.raises(config.ConfigError, match="its argument width is an option of every model"):
        config.build({"model": {"architecture": "wide"}})


def test_lists_and_choices_of_a_plug_in_have_their_type(forgotten):
    """One value is a list of one, where the signature has a list."""

    @vit_jax.register("loss", "listed")
    def listed(
        names: list[str] = ["a"],  # noqa: B006
        rates: Sequence[float] | None = None,
        size: tuple[int, int] = (1, 1),
        mode: Literal["mean", "sum"] = "mean",
        sides=(1, 2),
        whole: list = [],  # noqa: B006
        seed: int = None,  # noqa: RUF013
    ):
        pass

    def build(key, value):
        return getattr(
            config.build(
                config.override({"loss": {"name": "listed"}}, {f"loss.{key}": value})
            ).loss,
            key,
        )

    for key, value, made in (
        ("names", "abc", ("abc",)),
        ("names", "1,b", ("1", "b")),
        ("names", ["b", "c"], ("b", "c")),
        ("rates", "1", (1.0,)),
        ("rates", "none", None),
        ("size", "3x4", (3, 4)),
        ("mode", "sum", "sum"),
        ("sides", "3", (3,)),
        ("sides", 3, (3,)),
        ("whole", "exact", ("exact",)),
        ("seed", "none", None),
        ("seed", "3", 3),
    ):
        assert build(key, value) == made
    for key, value, line in (
        ("rates", "1,b", "loss.rates=1,b: must be numbers, such as 0.3,0.6, or none"),
        ("size", "1,2,3", "loss.size=1,2,3: must be two whole numbers"),
        ("size", "x", "loss.size=x: must be two whole numbers"),
        ("mode", "men", "loss.mode=men: no such choice; did you mean mean"),
        ("seed", "x", "loss.seed=x: must be a whole number, or none"),
    ):
        with pytest.raises(config.ConfigError, match=line):
            build(key, value)


def test_no_annotation_of_a_section_made_at_run_time_is_compiled(forgotten, monkeypatch):
    """Reading a foreign record must not compile code; it may name such a component."""
    vit_jax.register("loss", "plain")(lambda gamma=1.0: None)
    monkeypatch.setattr("builtins.compile", None)
    assert config.build({"loss": {"name": "plain", "gamma": 2.0}}).loss.gamma == 2


@pytest.mark.parametrize("kind", ["model", "evaluator", "logger", "transform"])
def test_what_the_package_registers_is_known_before_it_is_imported(kind):
    registered = {name for of_kind, name in plugins.built_in() if of_kind == kind}
    assert registered == set(components.built_in(kind))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", components.built_in("optimizer"))
def test_every_named_optimizer_descends(name):
    params = {"kernel": jnp.ones((3, 4))}
    tx = optimizers.create_optimizer(config.Optimizer(name=name), clip_norm=1.0)
    grads = {"kernel": jnp.full((3, 4), 0.5)}
    updates, _ = tx.update(grads, tx.init(params), params)
    assert np.all(np.asarray(updates["kernel"]) > 0)  # the step multiplies by minus the rate


def test_loss_probabilities_and_schedule_of_a_plug_in():
    with plugins.loaded():
        logits = jnp.array([[2.0, 0.0], [0.0, 3.0]])
        squared = config.Loss(name="squared")
        loss = losses.cross_entropy(logits, jnp.array([0, 0]), loss=squared)
        share = np.exp(2) / (1 + np.exp(2))
        np.testing.assert_allclose(loss[0], 2 * (1 - share) ** 2, rtol=1e-5)
        np.testing.assert_allclose(losses.probabilities(logits, squared), jax.nn.softmax(logits))
        triangle = config.Schedule(name="triangle")
        schedule = schedules.create_schedule(triangle, lr=1.0, steps=10, warmup=0)
        rates = [schedule(step) for step in (0, 5, 10)]
        np.testing.assert_allclose(rates, [0.1, 1.0, 0.0], atol=1e-6)


def test_a_component_that_finds_no_room_on_the_disk_is_no_mistake_of_the_user(forgotten):
    @vit_jax.register("loss", "full")
    def full():
        raise OSError(errno.ENOSPC, "no space")

    with pytest.raises(OSError, match="no space"):
        components.make(config.Loss(name="full"), "loss.name")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module' ("),
        ("x = 1\n1 / 0", "ZeroDivisionError: division by zero (FILE:2)"),
        ("raise SystemExit(3)", "SystemExit: 3 (FILE:1)"),
        ("def f(:", "SyntaxError: invalid syntax (broken.py, line 1)"),
        (
            "import vit_jax\nvit_jax.register('los', 'x')(print)",
            "ValueError: los: no such kind of component; did you mean loss? (FILE:2)",
        ),
        ("import vit_jax\nvit_jax.register([], 'x')", "ValueError: []: no such kind of component"),
    ],
)
def test_a_plug_in_that_fails_is_one_line(text, line, tmp_path, forgotten, capsys):
    (tmp_path / "broken.py").write_text(text)
    forgotten.syspath_prepend(str(tmp_path))
    assert cli.main(["show", "digits", "--plugins=broken"]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    said = said.replace(str(tmp_path / "broken.py"), "FILE")
    assert said.startswith(f"vit_jax: --plugins=broken: {line}")


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        ("no.such", "is its folder on PYTHONPATH?"),
        ("mine", "it is here; run PYTHONPATH=. vit_jax ..."),
        ("parts/mine.py", "it is here; run PYTHONPATH=. vit_jax ... --plugins=parts.mine"),
    ],
)
def test_a_plug_in_that_is_not_found_says_where_to_look(
    given, remedy, tmp_path, forgotten, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").touch()
    (tmp_path / "parts").mkdir()
    monkeypatch.setattr("sys.path", [path for path in sys.path if path])
    assert cli.main(["show", "digits", f"--plugins={given}"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"vit_jax: --plugins={given}: ModuleNotFoundError: No module named ")
    assert said.endswith(f"; {remedy}\n")


def test_a_plug_in_is_known_by_its_source_and_what_it_imports_beside_it(tmp_path, monkeypatch):
    files = {
        "first_plugin.py": "import json, side, vit_jax.config\nfrom pack.deep import x\n",
        "side.py": "def lazily():\n    from pack import late\n",
        "pack/__init__.py": "",
        "pack/deep.py": "from . import near\nfrom .near import far\nx = 1\n",
        "pack/near.py": "from pack.inner.last import z\nfar = 1\n",
        "pack/inner/__init__.py": "",
        "pack/inner/last.py": "z = 1\n",
        "pack/late.py": "",
        "unused.py": "",
        "vit_jax/config.py": "",  # of the package, which has a version instead
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("first_plugin")
    names = [
        *("first_plugin", "pack", "pack.deep", "pack.inner", "pack.inner.last", "pack.late"),
        *("pack.near", "side"),
    ]
    try:
        before = components.digests(["first_plugin", "__main__", "never_imported"])
        assert list(before) == names
        inner = ["pack", "pack.inner", "pack.inner.last"]  # a module runs all packages it is in
        assert list(components.digests(inner[-1:])) == inner
        (tmp_path / "pack" / "late.py").write_text("# changed")
        after = components.digests(["first_plugin"])
        assert {name for name in names if before[name] != after[name]} == {"pack.late"}
    finally:
        for name in names:
            sys.modules.pop(name, None)
