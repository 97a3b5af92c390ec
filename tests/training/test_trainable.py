"""Parts that train, at rates of their own, and adapters: against gradients and updates by hand."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import runs
from stepping import CLASSES, Stepper, batch_of, configure
from vit_jax import cli, config, models, preflight, weights
from vit_jax.config import patterns
from vit_jax.inference import loading
from vit_jax.training import run_config, trainable
from vit_jax.training.build import build
from vit_jax.utils import tree_utils
from vit_jax.weights import readers

SIZES = {
    "patch_size": 4, "width": 16, "depth": 3, "mlp_dim": 32, "heads": 2,
    "num_classes": CLASSES,
}  # fmt: skip


def trained(**options):
    """How the parameters of a model of three layers train."""
    values = {f"model.{key}": str(value) for key, value in SIZES.items()}
    values |= {"data.image_size": "8", "data.channels": "1"}
    cfg = run_config.config_from_values({}, values | options)
    return trainable.from_config(models.create(cfg.model, image_size=(8, 8), channels=1), cfg)


LAYERS = {"encoder/mlp/fc1/kernel": 4, "encoder_norm/bias": 1, "head/kernel": 1, "head/bias": 1}


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("head", {"head/kernel": [0], "head/bias": [0]}),
        ("*/bias", {"encoder_norm/bias": [0], "head/bias": [0]}),
        ("enc*", {"encoder/mlp/fc1/kernel": [0, 1, 2, 3], "encoder_norm/bias": [0]}),
        ("encoder", {"encoder/mlp/fc1/kernel": [0, 1, 2, 3]}),
        ("encoder[:2]", {"encoder/mlp/fc1/kernel": [0, 1]}),
        ("encoder[-1]/*/kernel", {"encoder/mlp/fc1/kernel": [3]}),
        ("encoder[1]/mlp", {"encoder/mlp/fc1/kernel": [1]}),
        ("encoder[1]/attention", {}),
        ("*[2:9]", {"encoder/mlp/fc1/kernel": [2, 3]}),
        ("encoder/mlp/fc?", {"encoder/mlp/fc1/kernel": [0, 1, 2, 3]}),
        ("ead/kernel", {}),
    ],
)
def test_patterns_take_parameters_and_layers(text, taken):
    pattern = patterns.parse_pattern(text, "k")
    found = {name: list(pattern.taken(name, count)) for name, count in LAYERS.items()}
    assert {name: layers for name, layers in found.items() if layers} == taken


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"optimizer.freeze": "encodr/mlp"},
            "optimizer.freeze=encodr/mlp: matches no parameter; close: encoder/mlp, "
            "encoder/mlp/fc2, encoder/mlp/fc1",
        ),
        ({"optimizer.freeze": "head/weight"}, "close: head/bias, head/kernel"),
        ({"optimizer.freeze": "encoder[3]"}, "none of the 3 layers; they are 0 to 2"),
        ({"optimizer.only": "head[0]"}, "optimizer.only=head[0]: has no layers; leave out the"),
        ({"optimizer.freeze": "*"}, "optimizer.freeze=*: leaves no parameter to train"),
        ({"optimizer.freeze": "a b"}, "must be a path of parameters, such as head, */bias or"),
        ({"optimizer.groups": "head"}, "optimizer.groups=head: sets nothing; set optimizer.gro"),
        ({"optimizer.groups.hed.lr": "2"}, "optimizer.groups=hed: matches no parameter; close: he"),
        ({"optimizer.weight_decay": "0", "optimizer.groups.head.decay": "2"},
         "optimizer.groups.head.decay=2: is a factor on optimizer.weight_decay=0; set that"),
        ({"optimizer.name": "lamb", "optimizer.weight_decay": "1",
          "optimizer.groups.head.decay": "1"}, "ratio, but optimizer.groups.head.decay decays"),
        ({"optimizer.head_first": "3", "optimizer.freeze": "head"}, "the head is frozen; set 0"),
        ({"lora.rank": "2", "lora.where": "*norm*"}, "lora.where=*norm*: matches no parameter"),
        ({"lora.rank": "2", "lora.where": "encoder[1]"}, "adapters are for all layers"),
        ({"lora.alpha": "2"}, "lora.alpha=2: lora.rank=none does not read it"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(options, message):
    with pytest.raises(config.ConfigError, match=re.escape(message)):
        trained(**options)


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        ({"lora.rank": "2", "optimizer.layer_decay": "0.5"}, []),
        ({"optimizer.freeze": "encoder[:2]", "optimizer.groups.encoder.lr": "2"}, []),
        ({"optimizer.freeze": "encoder[:2]", "optimizer.groups.encoder[0].lr": "2"},
         ["optimizer.groups.encoder[0]: none of its parameters trains"]),
        ({"lora.rank": "2", "optimizer.groups.encoder.lr": "2"},
         ["optimizer.groups.encoder: none of its parameters trains; their adapters are "
          "lora/encoder"]),
        ({"lora.rank": "2", "optimizer.groups.lora/encoder.lr": "2"}, []),
        ({"lora.rank": "2", "optimizer.freeze": "cls,encoder[:2]"},
         ["optimizer.freeze=encoder[:2]: its matrices change by their adapters, which train; to "
          "freeze those, add lora/encoder[:2]"]),
        ({"lora.rank": "2", "optimizer.freeze": "encoder[:2],lora/encoder[:2]"}, []),
        ({"lora.rank": "2", "optimizer.freeze": "encoder", "lora.where": "head"}, []),
    ],
)  # fmt: skip
def test_patterns_without_effect_are_said(options, lines):
    assert trained(**options).remarks() == lines


PLAIN = {"momentum": 0.0, "lr": 0.5, "weight_decay": 0.1}


def gradients(model, params, batch):
    """The gradient of the mean cross-entropy, by jax, with respect to all parameters."""

    def loss(params):
        images = jnp.asarray(batch["image"], jnp.float32) / 127.5 - 1
        logs = jax.nn.log_softmax(model.apply(params, images)[0])
        return -jnp.mean(jnp.take_along_axis(logs, batch["label"][:, None], axis=1))

    return jax.jit(jax.grad(loss))(params)


def expected_update(name, layer):
    """Whether a layer trains, its rate and decay in `test_parts_of_an_array...`, by hand."""
    if name.startswith("embedding/") or name.endswith("out/bias"):
        return None
    if name.startswith("encoder/") and layer == 0:
        return None
    decay = 1.0 if name.endswith("kernel") else 0.0
    if name.startswith("encoder/"):
        rate = {1: 0.25, 2: 0.5}[layer]
        if "norm" in name:
            decay = 0.5
        if layer == 2 and "fc1" in name:
            return 3 * rate, 2.0
        return rate, decay
    if name.startswith("encoder_norm"):
        return 1.0, 0.5
    return (10.0, decay) if name.startswith("head/") else (0.0625, decay)


@pytest.mark.slow
def test_parts_of_an_array_train_at_rates_of_their_own():
    cfg = configure(
        model=SIZES | {"pooling": "token"},
        train={"clip_norm": 0.1, "ema": 0.75, "accumulation": 2},
        optimizer=PLAIN
        | {
            "freeze": ["embedding", "encoder[:1]", "*/out/bias"],
            "layer_decay": 0.5,
            "groups": {
                "head": {"lr": 10.0},
                "encoder[2]/mlp/fc1": {"lr": 3.0, "decay": 2.0},
                "*norm*": {"decay": 0.5},
            },
        },
    )
    trainer = Stepper(cfg, devices=2)
    before = jax.device_get(trainer.state["params"])
    averages = tree_utils.flatten(jax.device_get(trainer.state["ema"]))
    flat = tree_utils.flatten(before)
    grads = tree_utils.flatten(gradients(trainer.model, before, batch_of(0)))
    factors, norm = {}, 0.0
    for name in flat:
        count = 3 if name.startswith("encoder/") else 1
        factors[name] = [expected_update(name, layer) for layer in range(count)]
        for layer, factor in enumerate(factors[name]):
            if factor is not None:
                part = grads[name][layer] if count > 1 else grads[name]
                norm += float(np.sum(np.square(part, dtype=np.float64)))
    (metrics,) = trainer.run(1)
    np.testing.assert_allclose(metrics["grad_norm"], np.sqrt(norm), rtol=1e-5)
    clip = 0.1 / np.sqrt(norm)
    after = tree_utils.flatten(jax.device_get(trainer.state["params"]))
    for name, value in flat.items():
        for layer, factor in enumerate(factors[name]):
            index = layer if len(factors[name]) > 1 else ...
            old, new, grad = value[index], after[name][index], np.asarray(grads[name])[index]
            if factor is None:
                np.testing.assert_array_equal(new, old, err_msg=name)
                continue
            rate, decay = factor
            wanted = old - 0.5 * rate * (clip * grad + 0.1 * decay * old)
            np.testing.assert_allclose(new, wanted, rtol=1e-5, atol=1e-7, err_msg=name)
    # Moments and average exist for what trains, of stacked layers those two.
    frozen = {"embedding/kernel", "embedding/bias", "encoder/attention/out/bias"}
    assert set(averages) == set(flat) - frozen
    assert averages["encoder/mlp/fc1/kernel"].shape == (2, 16, 32)
    moments = tree_utils.flatten(trainer.state["opt"])
    for tree in (averages, {n: m for n, m in moments.items() if n.endswith("fc1/kernel")}):
        assert all(leaf.shape[0] == 2 for name, leaf in tree.items() if "encoder/" in name)
    assert len(moments) == len(averages)
    live = tree_utils.flatten(trainer.trainer.eval_params(trainer.state))
    for name, value in flat.items():
        if name in frozen:
            np.testing.assert_array_equal(live[name], value)
    kernel = live["encoder/mlp/fc1/kernel"]
    name = "encoder/mlp/fc1/kernel"
    np.testing.assert_array_equal(kernel[0], flat[name][0])
    average = 0.75 * averages[name] + 0.25 * after[name][1:]
    np.testing.assert_allclose(kernel[1:], average, rtol=1e-6, atol=1e-8)


def merged_by_hand(params, scale):
    """The model's parameters: every matrix with its adapter, one layer and one sum at a time."""
    adapters = tree_utils.flatten(params["lora"])
    flat = tree_utils.flatten({k: v for k, v in params.items() if k != "lora"})
    forms = {"out": "hdr,ro->hdo", "fc1": "ir,ro->io", "fc2": "ir,ro->io"}
    for name in {name.rpartition("/")[0] for name in adapters}:
        matrix, a, b = flat[name], adapters[f"{name}/a"], adapters[f"{name}/b"]
        form = forms.get(name.split("/")[-2], "ir,rhd->ihd")
        layers = []
        for layer in range(3):
            one, two = a[layer], b[layer]
            if form.startswith("hdr"):
                one = one.reshape(*matrix.shape[1:3], 2)
            if form.endswith("ihd"):
                two = two.reshape(2, *matrix.shape[2:])
            layers.append(matrix[layer] + scale * jnp.einsum(form, one, two))
        flat[name] = jnp.stack(layers)
    return tree_utils.nest(flat)


def test_what_trains_of_a_layer_is_clipped_by_one_norm():
    """Of queries, keys and values, frozen in unlike layers, whose rows are then of unlike ones."""
    cfg = configure(
        train={"clip_norm": 0.5, "clip_by": "parameter"},
        optimizer={
            "momentum": 0.0,
            "freeze": ("encoder/attention/query[0]", "encoder/attention/key[1]"),
        },
    )
    trainer, rng = build(cfg, 1000, devices=jax.devices()[:1]), np.random.default_rng(0)
    shapes = tree_utils.flatten(trainer.model.shapes())
    whole = {name: np.float32(rng.normal(size=leaf.shape)) for name, leaf in shapes.items()}
    grads, tx = trainer.trainable.split(tree_utils.nest(whole)), trainer.optimizer
    found = tree_utils.flatten(tx.update(grads, tx.init(grads), grads)[0])
    for layer, trains in enumerate(["key value", "query value"]):
        names = [f"encoder/attention/{name}/kernel" for name in trains.split()]
        factor = 0.5 / np.sqrt(sum((whole[name][layer] ** 2).sum() for name in names))
        for name, row in zip(names, (0, layer), strict=True):
            np.testing.assert_allclose(found[name][row], whole[name][layer] * factor, rtol=1e-5)


def test_adapters_by_hand():
    cfg = configure(
        model=SIZES | {"unroll": 3},
        train={"clip_norm": None, "ema": 0.5},
        optimizer=PLAIN | {"layer_decay": 0.5},
        lora={"rank": 2, "alpha": 6.0},
    )
    trainer = Stepper(cfg, devices=2)
    adapters = tree_utils.flatten(trainer.state["params"]["lora"])
    assert {name.split("/")[2] for name in adapters} == {
        *("query", "key", "value", "out", "fc1", "fc2")
    }
    for number, (name, leaf) in enumerate(adapters.items()):
        values = np.random.default_rng(number).normal(size=leaf.shape) / 4
        if name.endswith("/b"):
            np.testing.assert_array_equal(leaf, np.zeros(leaf.shape))
        else:
            bound = 1 / np.sqrt(leaf.shape[1])
            assert 0.5 * bound < np.abs(leaf).max() <= bound
        adapters[name] = jax.device_put(values.astype(np.float32), leaf.sharding)
    trainer.state["params"]["lora"] = tree_utils.nest(adapters)
    before = jax.device_get(trainer.state["params"])
    old_average = tree_utils.flatten(jax.device_get(trainer.state["ema"]))

    class Merging:
        def apply(self, params, images):
            return trainer.model.apply(merged_by_hand(params, 3.0), images)

    grads = tree_utils.flatten(gradients(Merging(), before, batch_of(0)))
    trainer.run(1)
    after = tree_utils.flatten(jax.device_get(trainer.state["params"]))
    flat, rates = tree_utils.flatten(before), np.array([0.125, 0.25, 0.5])[:, None, None]
    for name, old in flat.items():
        if name.startswith("lora/"):
            wanted = old - 0.5 * rates * np.asarray(grads[name])
        elif name.startswith("head/"):
            decay = 0.1 if name == "head/kernel" else 0.0
            wanted = old - 0.5 * (np.asarray(grads[name]) + decay * old)
        else:
            np.testing.assert_array_equal(after[name], old, err_msg=name)
            continue
        np.testing.assert_allclose(after[name], wanted, rtol=2e-5, atol=2e-7, err_msg=name)
        average = 0.5 * old_average[name] + 0.5 * after[name]
        ours = tree_utils.flatten(trainer.state["ema"])[name]
        np.testing.assert_allclose(ours, average, rtol=1e-6, atol=1e-8)
    evaluated = tree_utils.flatten(trainer.trainer.eval_params(trainer.state))
    averaged = before | jax.device_get(trainer.state["ema"])
    merged = jax.jit(merged_by_hand, static_argnums=1)(averaged, 3.0)
    for name, value in tree_utils.flatten(merged).items():
        np.testing.assert_allclose(evaluated[name], value, rtol=1e-6, atol=1e-7, err_msg=name)


def test_the_head_first():
    cfg = configure(model=SIZES | {"depth": 1}, optimizer={"head_first": 2, "weight_decay": 0.1})
    trainer = Stepper(cfg, devices=1)
    first = jax.device_get(trainer.state["params"])
    trainer.run(2)
    second = jax.device_get(trainer.state["params"])
    trainer.run(1)
    third = tree_utils.flatten(jax.device_get(trainer.state["params"]))
    for name, value in tree_utils.flatten(second).items():
        same = np.array_equal(value, tree_utils.flatten(first)[name])
        assert same == (not name.startswith("head/")), name
        assert not np.array_equal(third[name], value), name


BASE = {
    "model": {
        "variant": None, "patch_size": 4, "width": 16, "depth": 3, "mlp_dim": 32, "heads": 2,
        "dropout": 0.0, "num_classes": 4,
    },
    "data": {"image_size": 8, "channels": 1},
}  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A Google file with random weights, of another number of classes."""
    model = runs.configure(**BASE).model
    classifier = models.create(model, image_size=(8, 8), channels=1)
    params = jax.device_get(classifier.init(jax.random.key(7)))
    path = tmp_path_factory.mktemp("base") / "base.npz"
    data = config.Data(image_size=(8, 8), channels=1)
    weights.save(params, weights.ModelSpec(model=model, data=data), "google", path)
    return path


KIT = {
    "optimizer": {"freeze": ["encoder[0]/mlp"], "only": ["head", "encoder"], "layer_decay": 0.9},
    "lora": {"rank": 2, "where": ["encoder/attention"]},
    "train": {"duration": "8 steps"},
    "evaluation": {"every": 4},
    "checkpoint": {"every": 4},
}


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
def test_a_run_resumes_bit_for_bit_and_becomes_an_adapter(base, tmp_path, monkeypatch, capsys):
    cfg = runs.configure(model=SIZES | {"dropout": 0.0, "num_classes": 10}, **KIT)
    cfg = dataclasses.replace(cfg, init_from=str(base))
    run = runs.assert_resumes(monkeypatch, cfg, tmp_path, 5)
    held = runs.digests(run)
    assert "params/lora/encoder/attention/out/kernel/a" in held
    assert not [name for name in held if name.startswith(("ema/", "opt/")) and "embedding" in name]
    merged = loading.load(run)
    arrays = tree_utils.flatten(jax.device_get(merged.params))
    assert set(arrays) == set(tree_utils.flatten(merged.model.shapes()))
    start = tree_utils.flatten(loading.load(base).params)
    for name in ("embedding/kernel", "encoder/norm1/scale"):
        same = np.array_equal(arrays[name], start[name])
        assert same == name.startswith("embedding/")
    np.testing.assert_array_equal(
        arrays["encoder/mlp/fc1/kernel"][0], start["encoder/mlp/fc1/kernel"][0]
    )
    adapter = tmp_path / "adapter"
    line = ["convert", f"--checkpoint={run}"]
    assert cli.main([*line, "--to=adapter", f"--output={adapter}"]) == 0
    held = readers.open_arrays(adapter / "model.safetensors").specs
    assert held["encoder/mlp/fc1/kernel"].shape == (2, 16, 32)
    assert "lora/encoder/attention/out/kernel/a" in held
    assert not [name for name in held if name.startswith(("embedding", "encoder_norm"))]
    again = loading.load(adapter)
    assert (again.kind, again.classes) == ("adapter", merged.classes)
    opened = loading.load(base, wanted=again.config)
    assert again.assumed == opened.assumed
    for name, leaf in tree_utils.flatten(again.params).items():
        np.testing.assert_array_equal(leaf, arrays[name], err_msg=name)
    assert again.temperature is None
    with monkeypatch.context() as patch:
        fitted = loading.fitted_temperature
        patch.setattr(
            loading, "fitted_temperature", lambda one: 1.5 if "metrics" in one else fitted(one)
        )
        assert cli.main([*line, "--to=adapter", f"--output={tmp_path / 'scaled'}"]) == 0
    assert loading.load(tmp_path / "scaled").temperature == 1.5
    # At another size its positions are those of the run.
    larger = {"data.image_size": "16,16"}
    of_run = tree_utils.flatten(jax.device_get(loading.load(run, larger).params))
    for name, leaf in tree_utils.flatten(loading.load(adapter, larger).params).items():
        np.testing.assert_array_equal(leaf, of_run[name], err_msg=name)
    assert of_run["position/table"].shape != arrays["position/table"].shape
    said = "vit_jax: data.image_size=16,16: an adapter keeps the image size of its run; set this"
    capsys.readouterr()
    size = "--config.data.image_size=16,16"
    assert cli.main([*line, "--to=adapter", f"--output={tmp_path / 'none'}", size]) == 2
    assert capsys.readouterr().err.startswith(said)
    # Every other form holds the sums.
    assert cli.main([*line, "--to=google", f"--output={tmp_path / 'merged.npz'}"]) == 0
    exported = tree_utils.flatten(loading.load(tmp_path / "merged.npz").params)
    assert cli.main(["convert", f"--checkpoint={adapter}", "--to=orbax", f"--output={run}2"]) == 0
    copied = tree_utils.flatten(jax.device_get(loading.load(f"{run}2").params))
    for name, leaf in arrays.items():
        np.testing.assert_array_equal(exported[name], leaf, err_msg=name)
        np.testing.assert_array_equal(copied[name], leaf, err_msg=name)
    with np.load(base) as file:
        other = {name: file[name] for name in file.files}
    other["embedding/kernel"] = other["embedding/kernel"] + 1
    np.savez(base.parent / "other.npz", **other)
    capsys.readouterr()
    text = f"--config.init_from={base.parent / 'other.npz'}"
    assert cli.main(["predict", f"--checkpoint={adapter}", "--examples=1", text]) == 2
    assert "other.npz is not the base it was trained on; set --config." in capsys.readouterr().err


def test_an_adapter_holds_a_frozen_head_that_its_base_lacks(base):
    cfg = runs.configure(model=SIZES | {"num_classes": 10}, optimizer={"only": ["encoder"]})
    cfg = run_config.complete(dataclasses.replace(cfg, init_from=str(base)))
    shapes = loading.adapter_base(cfg, tuple(map(str, range(10)))).shapes
    assert shapes["head/kernel"].shape == (16, 10)
    assert {name.partition("/")[0] for name in shapes} == {"encoder", "head"}


def test_layers_are_taken_as_they_are_named_and_by_a_slice_if_they_adjoin():
    every = np.arange(4)
    for layers in ((0,), (1, 2), (0, 3), (0, 2, 3), (1, 3), (0, 1, 2, 3)):
        ones = np.ones(len(layers))
        spec = trainable.TrainSpec(layers=layers, count=4, rate=ones, decay=ones, head=False)
        assert tuple(every[spec.index]) == layers
        assert isinstance(spec.index, slice) == (layers[-1] - layers[0] < len(layers))


def test_what_follows_the_layers_trains_at_the_full_rate():
    """SigLIP's pooling, which is a layer of attention, too."""
    found = trained(**{"optimizer.layer_decay": "0.5", "model.pooling": "map"})
    for name, rates in (
        ("embedding/kernel", [0.5**4]),
        ("encoder/mlp/fc1/kernel", [0.5**3, 0.5**2, 0.5]),
        ("pooling/mlp/fc1/kernel", [1.0]),
        ("encoder_norm/scale", [1.0]),
        ("head/kernel", [1.0]),
    ):
        assert found.specs[name].rate.tolist() == rates, name


def test_the_first_group_that_fits_counts():
    given = {
        "encoder[1].lr": "2", "encoder/mlp.lr": "3", "encoder/mlp.decay": "0",
        "encoder.lr": "5", "encoder.decay": "7",
    }  # fmt: skip
    options = {f"optimizer.groups.{key}": value for key, value in given.items()}
    options["optimizer.weight_decay"] = "0.1"
    specs = trained(**options).specs
    share = specs["encoder/mlp/fc1/kernel"]
    assert share.rate.tolist() == [3, 2, 3]
    assert share.decay.tolist() == [0]
    share = specs["encoder/attention/out/kernel"]
    assert share.rate.tolist() == [5, 2, 5]
    assert share.decay.tolist() == [7]


@pytest.mark.parametrize(("layers", "first"), [("[1:]", 1), ("[2]", 2), ("[0]", 0)])
def test_gradients_pass_the_layers_from_the_first_that_trains(layers, first):
    name = "encoder/mlp/fc1/kernel"
    found = trained(**{"optimizer.only": f"encoder{layers}/mlp", "model.unroll": "3"})
    share = found.specs[name]
    assert found._through(name, share) == pytest.approx(1 - first / 3)
    params = tree_utils.map_named(
        lambda _, leaf: np.arange(leaf.size, dtype=np.float32).reshape(leaf.shape), found.shapes
    )
    part = tree_utils.flatten(found.split(params))[name]
    whole = tree_utils.flatten(params)[name]
    np.testing.assert_array_equal(part, whole[list(share.layers)])


@pytest.mark.parametrize(
    ("options", "passes"),
    [
        ({}, 3),
        ({"optimizer.freeze": "*/bias"}, 3),
        ({"optimizer.only": "head"}, 1 + 80 / 6480),
        ({"lora.rank": "2"}, 1 + 1 + (80 + 3 * 1344) / 6480),
        ({"optimizer.only": "encoder[-1]"}, 1 + 1 / 3 + 2048 / 6480),
        ({"optimizer.only": "encoder[-1]", "model.unroll": "1"}, 1 + 1 + 2048 / 6480),
    ],
)
def test_arithmetic_of_what_trains(options, passes):
    # Matrices: 4 * 4 * 16 of patches, of each layer 4 * 16 * 16 + 2 * 16 * 32, 16 * 5 of the head.
    assert 4 * 4 * 16 + 3 * 2048 + 16 * 5 == 6480
    # Adapters of a layer: on four matrices of 16 x 16, and on two of 16 x 32.
    assert 3 * (4 * 2 * (16 + 16) + 2 * 2 * (16 + 32)) == 1344
    found = trained(**{"model.unroll": "3"} | options).passes()
    assert found == pytest.approx(passes)


def test_frozen_parts_take_no_memory_for_gradients_and_moments():
    def report(**sections):
        sections = {"model": {"num_classes": 10, "dropout": 0.0, "depth": 1}} | sections
        sections |= {"mesh": {"zero": False}, "train": {"ema": None}}
        cfg = preflight.prepare_config(runs.configure(**sections))
        return preflight.measure(cfg, preflight.open_slice("cpu"), examples=200)

    full, probe = report(), report(optimizer={"only": ["head"]})
    head = 16 * 10 + 10
    assert probe.optimizer == 2 * 4 * head + 4
    assert probe.params == full.params
    assert full.peak - probe.peak > full.optimizer - probe.optimizer > 0
    assert probe.compiler_flops < 0.5 * full.compiler_flops
    last = report(
        model={"num_classes": 10, "dropout": 0.0, "depth": 2},
        optimizer={"only": ["head", "encoder[1:]"]},
    )
    assert last.compiler_flops == last.model_flops  # not those of both layers
