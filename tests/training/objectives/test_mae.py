"""Masked autoencoding: masks, positions, targets and loss, against float64 and transformers."""

import dataclasses
import json

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import numpy as safetensors

import foreign
from stepping import Stepper, configure, losses_of
from vit_jax import config, models, weights
from vit_jax.inference import loading
from vit_jax.models import initializers, variants
from vit_jax.models import mae as decoders
from vit_jax.training import objectives
from vit_jax.training.objectives import mae
from vit_jax.training.objectives.masked_patches import keys
from vit_jax.utils import tree_utils

MAE = {
    "model": {
        "num_classes": None, "pooling": "token", "patch_size": 2, "init": "mae", "gelu": "erf",
        "position": "sincos_2d_mae",
    },
    "data": {"channels": 3},
    "objective": {"name": "mae", "decoder_width": 8, "decoder_depth": 2, "decoder_heads": 2},
    "optimizer": {"lr": 0.1},
}  # fmt: skip


def autoencoder(**sections):
    return configure(**{key: MAE.get(key, {}) | sections.get(key, {}) for key in MAE | sections})


def orders(seed, step, rows, patches):
    return np.asarray(mae.ranks(keys(seed, jnp.asarray(step), rows), patches))


def positions64(rows, columns, width):
    """MAE's positions, (rows * columns, width): columns first, then rows."""
    table = np.zeros((rows, columns, width))
    omega = 1 / 10_000 ** (np.arange(width // 4) / (width // 4))
    for y in range(rows):
        for x in range(columns):
            angles = x * omega, y * omega
            table[y, x] = np.concatenate([f(a) for a in angles for f in (np.sin, np.cos)])
    return table.reshape(-1, width)


def losses64(images, guess, rank, kept, patch, *, norm_pix):
    """The loss of each image, one patch and pixel after another."""
    found = []
    for image, predicted, order in zip(images, guess, rank, strict=True):
        errors = []
        for number in np.flatnonzero(order >= kept):
            y, x = divmod(int(number), image.shape[1] // patch)
            y, x = y * patch, x * patch
            wanted = image[y : y + patch, x : x + patch].astype(np.float64).ravel()
            if norm_pix:
                deviation = np.sqrt(wanted.var() * wanted.size / (wanted.size - 1) + 1e-6)
                wanted = (wanted - wanted.mean()) / deviation
            errors.append(np.mean((predicted[number] - wanted) ** 2))
        found.append(np.mean(errors))
    return np.array(found)


# Masks


def test_an_order_is_a_function_of_seed_step_and_row():
    found = orders(1, 5, 8, 12)
    assert (np.sort(found) == np.arange(12)).all()
    np.testing.assert_array_equal(found[:4], orders(1, 5, 4, 12))  # whatever the batch
    assert len({row.tobytes() for row in found}) == 8
    for seed, step in ((2, 5), (1, 6)):
        assert (found != orders(seed, step, 8, 12)).any(axis=1).all()


@pytest.mark.parametrize(
    ("ratio", "patches", "kept"), [(0.75, 196, 49), (0.75, 256, 64), (0.9, 196, 19), (0.5, 9, 4)]
)
def test_as_many_are_kept_as_in_the_papers_code(ratio, patches, kept):
    assert variants.kept_patches(config.Mae(mask_ratio=ratio), patches) == kept


# Loss


@pytest.mark.parametrize("norm_pix", [True, False])
def test_losses_equal_float64(norm_pix):
    random = np.random.default_rng(0)
    model = models.create(
        config.Model(patch_size=(4, 4), width=8, depth=1, mlp_dim=8, heads=1),
        image_size=(8, 12), headless=True,
    )  # fmt: skip
    pixels = random.normal(size=(3, 8, 12, 3)).astype(np.float32)
    pixels[2] *= 1e-3  # whose variance is that of epsilon
    guess = random.normal(size=(3, 6, 48)).astype(np.float32)
    options, rank = config.Mae(mask_ratio=0.6, norm_pix=norm_pix), orders(0, 0, 3, 6)
    found = mae.losses(model, options, jnp.asarray(guess), jnp.asarray(pixels), jnp.asarray(rank))
    expected = losses64(pixels, guess, rank, 2, 4, norm_pix=norm_pix)
    np.testing.assert_allclose(found, expected, rtol=2e-6)
    wanted, mean, std = mae.targets(jnp.asarray(pixels), (4, 4), norm_pix=norm_pix)
    again = np.asarray(wanted * std + mean)[0, 4].reshape(4, 4, 3)
    np.testing.assert_allclose(again, pixels[0, 4:, 4:8], rtol=0, atol=1e-6)


def test_a_step_masks_by_its_number_and_compares_what_the_model_sees(monkeypatch):
    """All but the networks: orders, normalized pixels, dropout's key, mean and cost."""
    cfg = autoencoder(data={"mean": (0.25,), "std": (0.5,)}, objective={"norm_pix": False})
    cfg = dataclasses.replace(cfg, seed=3)
    model = models.create(cfg.model, image_size=(8, 8), headless=True)
    made = objectives.create_objective(objectives.Setup(cfg, model, None, 160))
    assert not made.needs_labels
    images = np.random.default_rng(0).integers(0, 256, (16, 8, 8, 3), np.uint8)
    key, given = jax.random.key(7), []

    def reconstruct(*arguments, key):
        given[:] = *arguments, key
        return jnp.zeros((16, 16, 12))

    @jax.jit
    def step(images, number):
        batch = made.prepare({"image": images}, number)
        found = made.forward({}, batch, objectives.Inputs(number, key))
        order = mae.ranks(keys(cfg.seed, number, 16), 16)
        return batch["rank"], order, made.loss(found, None)

    monkeypatch.setattr(mae, "reconstruct", reconstruct)
    rank, order, (loss, measures) = step(images, 3)
    assert given[:2] == [model, cfg.mae]
    assert given[5] is key
    np.testing.assert_array_equal(rank, order)
    pixels, nothing = (images / 255 - 0.25) / 0.5, np.zeros((16, 16, 12))
    expected = losses64(pixels, nothing, np.asarray(rank), 4, 2, norm_pix=False)
    np.testing.assert_allclose(loss, expected.mean(), rtol=1e-5)
    assert measures == {}
    forward = variants.flops(cfg.model, (8, 8), 3, cfg.mae)
    assert made.flops(3.0) == 3 * forward < 3 * variants.flops(cfg.model, (8, 8), 3)


def test_the_kept_patches_are_encoded_in_their_order(monkeypatch):
    class Encoder:
        patches = 8

        def encode_kept(self, params, pixels, kept, *, key):
            return params, pixels, kept, key

    class Decoder:
        def decode(self, params, tokens, rank):
            return params, tokens, rank

    monkeypatch.setattr(decoders, "create_decoder", lambda model, options: Decoder())
    rank = np.array([[4, 0, 3, 1, 7, 6, 2, 5], [0, 1, 2, 3, 4, 5, 6, 7]])
    params, options = {"objective": "decoder"}, config.Mae(mask_ratio=0.5)
    given = Encoder(), options, params, "pixels", rank
    own, (encoder, pixels, kept, key), places = mae.reconstruct(*given, key="key")
    assert (own, encoder, pixels, key) == ("decoder", params, "pixels", "key")
    assert kept.tolist() == [[1, 3, 6, 2], [0, 1, 2, 3]]
    assert places is rank


# Against transformers


RECORD = json.loads((foreign.FOLDER / "mae.json").read_text())


def drawn(step, record=RECORD):
    """Images, and places of their patches in the order of the noise, as make_mae.py draws them."""
    random, rows = np.random.RandomState(step), len(record["logits"])
    images = random.randint(0, 256, (rows, 16, 16, 3)).astype(np.uint8)
    noise = random.uniform(size=(rows, 16)).astype(np.float32)
    return images, noise.argsort(axis=1).argsort(axis=1).astype(np.int32)


def write_published(folder, **changes):
    """Writes the tiny ViTMAEForPreTraining of transformers, some arrays of other shapes."""
    shapes = RECORD["arrays"] | changes
    arrays = {name: foreign.numbers(name, shape) for name, shape in shapes.items()}
    for name in RECORD["fixed"]:
        table = positions64(4, 4, arrays[name].shape[-1])
        arrays[name] = np.pad(table, ((1, 0), (0, 0)))[None].astype(np.float32)
    safetensors.save_file(arrays, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(RECORD["config"]))
    return folder


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """It, loaded."""
    return loading.load(write_published(tmp_path_factory.mktemp("vit_mae")))


def test_a_decoder_of_other_proportions_is_left_out(tmp_path):
    parts = {"intermediate.dense.weight": [24, 12], "intermediate.dense.bias": [24],
             "output.dense.weight": [12, 24]}  # fmt: skip
    layers = [f"decoder.decoder_encoder.layer.{k}" for k in range(2)]
    narrow = {f"{layer}.{part}": shape for layer in layers for part, shape in parts.items()}
    assert weights.read_spec(write_published(tmp_path)).mae is not None
    silent = {name: value for name, value in RECORD["config"].items() if name != "norm_pix_loss"}
    (tmp_path / "config.json").write_text(json.dumps(silent))
    assert not weights.read_spec(tmp_path).mae.norm_pix  # transformers' default
    assert weights.read_spec(write_published(tmp_path, **narrow)).mae is None


@pytest.mark.slow
def test_loss_and_reconstruction_equal_those_of_transformers(published):
    images, rank = drawn(0)
    options = published.config.mae
    assert options == config.Mae(
        name="mae", mask_ratio=0.75, norm_pix=True, decoder_width=12, decoder_depth=2,
        decoder_heads=3,
    )  # fmt: skip
    pixels = published.preprocess(images)
    given = published.model, options, published.params, pixels, jnp.asarray(rank)
    guess = mae.reconstruct(*given)
    np.testing.assert_allclose(guess, RECORD["logits"], rtol=1e-5, atol=1e-5)
    losses = mae.losses(published.model, options, guess, pixels, jnp.asarray(rank))
    np.testing.assert_allclose(losses.mean(), RECORD["loss"], rtol=1e-5)


@pytest.mark.slow
def test_twenty_steps_equal_those_of_transformers_under_adamw(published, monkeypatch):
    ranks = jnp.stack([drawn(step)[1] for step in range(20)])

    def prepare(self, batch, step):
        return batch | {"rank": ranks[step]}

    monkeypatch.setattr(mae.MaskedAutoencoder, "prepare", prepare)
    stepper = Stepper(
        config.build({
            "model": vars(published.config.model) | {"num_classes": None},
            "data": {"image_size": 16, "mean": published.config.data.mean,
                     "std": published.config.data.std},
            "objective": vars(published.config.objective),
            "train": {"batch_size": 6, "duration": "20 steps"},
            "optimizer": {"lr": 3e-3, "b2": 0.95, "weight_decay": 0.05, "freeze": ("position",)},
            "schedule": {"name": "constant"},
        }),
        devices=1,
    )  # fmt: skip
    live = jax.tree.map(jnp.array, published.params)
    stepper.state |= {"params": live}
    batches = lambda step: {"image": drawn(step)[0], "label": np.full(6, -1, np.int32)}  # noqa: E731
    found = losses_of(stepper.run(20, batches))
    np.testing.assert_allclose(found, RECORD["losses"], rtol=1e-5)


@pytest.mark.slow
def test_a_decoder_goes_back_by_the_names_of_published_files(published, tmp_path):
    folder, params = tmp_path / "back", jax.device_get(published.params)
    weights.save(params, published.spec, "hf", folder)
    arrays = safetensors.load_file(folder / "model.safetensors")
    renamed = {name.replace("decoder_encoder.layer", "decoder_layers") for name in RECORD["arrays"]}
    assert arrays.keys() == renamed
    table = positions64(4, 4, 12)
    np.testing.assert_allclose(arrays["decoder.decoder_pos_embed"][0, 1:], table, atol=1e-6)
    fields = json.loads((folder / "config.json").read_text())
    assert fields["architectures"] == ["ViTMAEForPreTraining"]
    assert RECORD["config"].items() <= fields.items()
    again = loading.load(folder)
    assert again.config.objective == published.config.objective
    chex.assert_trees_all_equal(again.params, published.params)


@pytest.mark.slow
def test_fine_tuning_takes_the_encoder_and_its_positions_as_a_table():
    cfg = autoencoder()
    model = models.create(cfg.model, image_size=(8, 8), headless=True)
    decoder = decoders.create_decoder(model, cfg.mae).init(jax.random.key(1))
    params = jax.device_get(model.init(jax.random.key(0)) | {"objective": decoder})
    spec = weights.ModelSpec(model=model.config, data=cfg.data, mae=cfg.mae)
    tuned = dataclasses.replace(
        cfg.model, num_classes=5, pooling="gap", class_token=True, position="learned_1d",
        norm_place="pooled",
    )  # fmt: skip
    target = models.create(tuned, image_size=(8, 8))
    found, report = weights.fit_params(params, spec, target, keep_head=False)
    np.testing.assert_allclose(found["position"]["table"][0, 1:], positions64(4, 4, 16), atol=1e-6)
    assert not found["position"]["table"][0, 0].any()  # of the class token
    assert set(report.dropped) == {f"objective/{name}" for name in tree_utils.flatten(decoder)}
    assert set(report.dropped.values()) == {"of the objective it was trained by"}
    assert set(report.fresh) == {"head/kernel", "head/bias"}
    assert "model.norm_place" not in weights.numerics(spec, keep_head=False)


# The network


@pytest.mark.slow
def test_tokens_of_kept_patches_do_not_depend_on_others():
    cfg = autoencoder()
    model = models.create(cfg.model, image_size=(8, 8), headless=True)
    params, random = model.init(jax.random.key(0)), np.random.default_rng(0)
    images = random.normal(size=(2, 8, 8, 3)).astype(np.float32)
    kept = jnp.array([[0, 5, 9], [15, 2, 1]], jnp.int32)
    tokens = np.asarray(model.encode_kept(params, jnp.asarray(images), kept))
    changed = images.copy()
    changed[0, 6:, 6:] += 1  # patch 15, which the second image keeps
    changed[1, 6:, 6:] += 1
    after = np.asarray(model.encode_kept(params, jnp.asarray(changed), kept))
    np.testing.assert_array_equal(after[0], tokens[0])
    assert (after[1] != tokens[1]).any(axis=-1).all()
    # All patches in their order are the whole network.
    every = jnp.broadcast_to(jnp.arange(16, dtype=jnp.int32), (2, 16))
    whole = model.apply(params, jnp.asarray(images))[1]["tokens"]
    given = model.encode_kept(params, jnp.asarray(images), every)
    np.testing.assert_allclose(given, whole, rtol=1e-5, atol=1e-6)


def test_the_decoder_puts_tokens_and_mask_tokens_in_their_places(monkeypatch):
    """In float64, with layers that add the first token to all."""
    stub = lambda self, x, key, capture: (x + x[:, :1], None)  # noqa: E731
    monkeypatch.setattr(decoders.DecoderNetwork, "encode", stub)
    encoder = autoencoder(model={"registers": 1, "norm_epsilon": 1e-3}).model
    encoder = models.create(encoder, image_size=(8, 12), headless=True)
    decoder, random = decoders.create_decoder(encoder, autoencoder().mae), np.random.default_rng(0)
    flat = {
        name: random.normal(size=leaf.shape).astype(np.float32)
        for name, leaf in tree_utils.flatten(decoder.shapes()).items()
    }
    tokens, rank = random.normal(size=(2, 2 + 6, 16)), orders(0, 0, 2, 24)
    found = jax.jit(decoder.decode)(tree_utils.nest(flat), np.float32(tokens), rank)
    wide = tokens @ flat["embed/kernel"] + flat["embed/bias"]
    for image, order, predicted in zip(wide, rank, found, strict=True):
        table = positions64(4, 6, 8)
        x = np.stack([
            (image[2 + place] if place < 6 else flat["mask_token"][0, 0]) + table[patch]
            for patch, place in enumerate(order)
        ])  # fmt: skip
        x = x + image[0]
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-3)
        x = x * flat["norm/scale"] + flat["norm/bias"]
        expected = x @ flat["pixels/kernel"] + flat["pixels/bias"]
        np.testing.assert_allclose(predicted, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("unroll", "layers"), [(None, 1), (1, 1), (2, 3)])
def test_a_decoder_is_unrolled_as_its_encoder(unroll, layers):
    cfg = autoencoder(model={"unroll": unroll}, objective={"decoder_depth": 3})
    encoder = models.create(cfg.model, image_size=(8, 8), headless=True)
    assert decoders.create_decoder(encoder, cfg.mae).config.unroll == layers


@pytest.mark.parametrize(
    "fans",
    [
        {"embed/kernel": (16, 64), "pixels/kernel": (64, 12)},
        pytest.param(
            {
                "encoder/attention/query/kernel": (64, 192),
                "encoder/attention/out/kernel": (64, 64),
                "encoder/mlp/fc1/kernel": (64, 256), "encoder/mlp/fc2/kernel": (256, 64),
            },
            marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_the_decoder_begins_as_the_papers(fans):
    decoder = decoders.create_decoder(
        models.create(autoencoder().model, image_size=(8, 8), headless=True),
        config.Mae(decoder_width=64, decoder_depth=1, decoder_heads=4),
    )
    biases = [f"{name.removesuffix('kernel')}bias" for name in fans]

    @jax.jit
    def initial(key):
        flat = tree_utils.flatten(decoder.init(key))
        return {name: flat[name] for name in (*fans, *biases, "mask_token")}

    flat = jax.device_get(initial(jax.random.key(0)))
    for name, pair in fans.items():
        bound = np.sqrt(6 / sum(pair))
        assert 0.97 * bound < np.abs(flat[name]).max() <= bound, name
    assert 0.012 < flat["mask_token"].std() < 0.028  # of 0.02, by 64 numbers
    for name in biases:
        assert not flat[name].any(), name
    assert initializers.STYLES["mae"].tokens == 0.02


# Cost


def test_flops_are_those_of_kept_patches_and_of_the_decoder():
    def flops(variant, **options):
        model = models.complete(config.Model(variant=variant, num_classes=1000))
        masked = config.Mae(**options) if options else None
        return variants.flops(model, (224, 224), 3, masked)

    def by_hand(n, width, depth, mlp):
        return depth * (4 * n * width**2 + 2 * n * width * mlp + 2 * n * n * width)

    patches, kept = 196, 49
    macs = patches * 768 * 768 + by_hand(kept + 1, 768, 12, 3072)
    macs += (kept + 1) * (patches + 1) * 768 + patches * (kept + 1) * 512  # by one-hot rows
    macs += (kept + 1) * 768 * 512 + by_hand(patches + 1, 512, 8, 2048) + patches * 512 * 768
    assert flops("ViT-B/16", mask_ratio=0.75) == 2 * macs
    for variant, most in (("ViT-B/16", 0.58), ("ViT-L/16", 0.36), ("ViT-H/14", 0.33)):
        assert flops(variant, mask_ratio=0.75) < most * flops(variant)


# The step


# Mistakes


@pytest.mark.parametrize(
    ("sections", "line"),
    [
        ({"objective": {"mask_ratio": 0.99}}, "objective.mask_ratio=0.99: keeps 0 of 16 patches"),
        ({"objective": {"decoder_heads": 3}}, "objective.decoder_heads=3: does not divide"),
        ({"objective": {"decoder_width": 10}}, "objective.decoder_width=10: its positions need"),
        ({"model": {"rotary": 100.0}}, "model.rotary=100: objective.name=mae has layers that do"),
        ({"model": {"position": "relative"}}, "model.position=relative: objective.name=mae has"),
        ({"model": {"relative_bias": "shared"}}, "model.relative_bias=shared: objective.name=mae"),
        ({"model": {"position": "learned_1d", "position_place": "layers"}},
         "model.position_place=layers: objective.name=mae has layers"),
        ({"model": {"pooling": "map"}}, "model.pooling=map: objective.name=mae would leave it"),
        ({"model": {"norm_place": "pooled"}}, "model.norm_place=pooled: objective.name=mae pools"),
        ({"model": {"resnet_units": (1,)}}, "objective.name=mae: a hybrid's ResNet mixes"),
        ({"train": {"mixup": 0.5}}, "train.mixup=0.5: objective.name=mae has no labels to blend"),
        ({"checkpoint": {"best": "top1"}}, "checkpoint.best=top1: objective.name=mae has no"),
        ({"data": {"aspect": "native"}}, "data.aspect=native: is not for objective.name=mae"),
        ({"model": {"patch_size": (1, 1)}, "data": {"channels": 1}},
         "objective.norm_pix=true: divides by the deviation of a patch"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_one_line(sections, line):
    from vit_jax.training import run_config

    with pytest.raises(config.ConfigError) as caught:
        run_config.complete(autoencoder(**sections))
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)


def test_an_axial_network_drops_no_patches():
    axial = config.Model(architecture="axial_vit", pooling="gap")
    with pytest.raises(config.ConfigError, match="^objective.name=mae: axial_vit has no patches"):
        models.check_masked(axial, config.Mae(name="mae"))
