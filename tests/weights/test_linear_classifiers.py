"""Checkpoints of self-supervised training with their heads, and Meta's linear classifiers."""

import numpy as np
import pytest
from safetensors import numpy as safetensors

import foreign
from vit_jax import weights
from vit_jax.weights import arrays as named
from vit_jax.weights import exporting, mapping, readers

DESCRIBED = foreign.record("backbones/meta_dinov2")  # width 24
PROJECTION = {"mlp.0.weight": (8, 24), "mlp.2.weight": (4, 8),
              "last_layer.weight_g": (16, 1), "last_layer.weight_v": (16, 4)}  # fmt: skip


@pytest.fixture
def files(monkeypatch):
    """A dictionary of arrays by the names of files, which readers then open."""
    contents = {}

    def open_arrays(path, kind=""):
        values = contents[path.name]
        specs = {n: named.ArraySpec(a.shape, a.dtype) for n, a in values.items()}
        return named.Arrays(specs, values.__getitem__)

    monkeypatch.setattr(readers, "open_arrays", open_arrays)
    return contents


def load(folder, files, **contents):
    for name, values in contents.items():
        file = f"{name}.pth"
        (folder / file).touch()
        files[file] = values
    path = folder if len(contents) > 1 else folder / file
    return weights.load(path, {"model.heads": "3"})


def backbone(prefix="", described=DESCRIBED):
    arrays = foreign.arrays(described)
    return {f"{prefix}{name}": values for name, values in arrays.items()}


def linear(width, count=5):
    return {"weight": foreign.numbers("linear_head.weight", (count, width)),
            "bias": foreign.numbers("linear_head.bias", (count,))}  # fmt: skip


@pytest.mark.slow
def test_a_full_checkpoint_of_dino_is_its_teacher_and_names_what_is_left(tmp_path, files):
    """`dino_deitsmall16_pretrain_full_checkpoint.pth`: its projection heads are weight-normed."""
    heads = {f"{model}.{name}": np.ones(shape, np.float32)
             for model in ("teacher.head", "student.module.head")
             for name, shape in PROJECTION.items()}  # fmt: skip
    student = {f"student.module.backbone.{n}": a + 1 for n, a in backbone().items()}
    full = {**student, **backbone("teacher.backbone."), **heads}
    full["dino_loss.center"] = np.zeros((1, 16), np.float32)
    loaded = load(tmp_path, files, dino=full)
    expected = load(tmp_path, files, alone=backbone())
    foreign.equal(loaded.params, expected.params)
    assert loaded.report.prefix == "teacher.backbone."
    left = {"teacher.head.last_layer.weight_v", "dino_loss.center"}
    assert left <= loaded.report.dropped.keys()
    assert "the model under teacher.backbone., not that under student.module" in "".join(
        loaded.assumed
    )


def test_ibots_mask_is_left_out(tmp_path, files):
    plain = {**foreign.arrays(foreign.record("timm_no_embed_class"))}
    plain["masked_embed"] = np.zeros((1, 24), np.float32)
    loaded = load(tmp_path, files, ibot={f"state_dict.{n}": a for n, a in plain.items()})
    assert loaded.report.dropped == {"masked_embed": "of masked image modeling"}
    assert "as of iBOT's weights" in "".join(loaded.assumed)


def features(loaded):
    """Class token and mean of the patches, side by side, of the headless encoder."""
    classifier = mapping.create_classifier(loaded.spec)
    _, out = classifier.apply(loaded.params, foreign.images(DESCRIBED))
    tokens = np.asarray(out["tokens"])
    return tokens[:, 0], tokens[:, 1:].mean(axis=1)


@pytest.mark.slow
def test_dinov2_with_its_linear_classifier(tmp_path, files):
    encoder, head = backbone(), linear(48)
    loaded = load(tmp_path, files, dinov2_vits14_pretrain=encoder, dinov2_vits14_linear_head=head)
    assert (loaded.spec.model.pooling, loaded.spec.model.num_classes) == ("token_gap", 5)
    pair = np.concatenate(features(loaded), axis=1)
    expected = pair @ head["weight"].T + head["bias"]
    given = foreign.logits(loaded, foreign.images(DESCRIBED))
    np.testing.assert_allclose(given, expected, rtol=0, atol=1e-5)
    # As the hub's model with both parts is saved.
    whole = {**backbone("backbone."), **{f"linear_head.{n}": a for n, a in head.items()}}
    foreign.equal(load(tmp_path, files, whole=whole).params, loaded.params)


@pytest.mark.slow
def test_dinos_linear_classifier_takes_both_features_number_by_number(tmp_path, files):
    head = {f"state_dict.module.linear.{n}": a for n, a in linear(48).items()}
    head["epoch"] = np.zeros(1, np.float32)
    loaded = load(
        tmp_path, files, dino_vitbase16_pretrain=backbone(), dino_vitbase16_linearweights=head
    )
    pair = np.stack(features(loaded), axis=-1).reshape(2, 48)
    expected = pair @ linear(48)["weight"].T + linear(48)["bias"]
    given = foreign.logits(loaded, foreign.images(DESCRIBED))
    np.testing.assert_allclose(given, expected, rtol=0, atol=1e-5)


def layers(depth):
    """The encoder with this many layers: those of the fixture, then further ones."""
    shapes = dict(DESCRIBED["arrays"])
    first = {name: shape for name, shape in shapes.items() if name.startswith("blocks.0.")}
    for layer in range(depth):
        shapes |= {name.replace(".0.", f".{layer}.", 1): shape for name, shape in first.items()}
    return backbone(described={**DESCRIBED, "arrays": shapes})


def until(encoder, count):
    """The encoder without the layers from `count` on."""
    return {n: a for n, a in encoder.items() if not n.startswith("blocks.") or
            int(n.split(".")[1]) < count}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("mean", [True, False])
def test_a_classifier_of_four_layers_reads_the_class_token_after_each(tmp_path, files, mean):
    """DINOv2's `linear4_head`, and DINO's of its small models, without the mean."""
    encoder, head = layers(6), linear((4 + mean) * 24)
    name, what = (
        ("dinov2_vits14", "linear4_head") if mean else ("dino_deitsmall16", "linearweights")
    )
    loaded = load(tmp_path, files, **{f"{name}_pretrain": encoder, f"{name}_{what}": head})
    model = loaded.spec.model
    assert (model.pooling, model.pooled_layers) == ("token_gap" if mean else "token", 4)
    # What a layer leaves, normalized by the last norm, is what an encoder that ends there returns.
    several = [features(load(tmp_path, files, short=until(encoder, n))) for n in (3, 4, 5, 6)]
    parts = [token for token, _ in several] + ([several[-1][1]] if mean else [])
    expected = np.concatenate(parts, axis=1) @ head["weight"].T + head["bias"]
    pictures = foreign.images(DESCRIBED)
    given = foreign.logits(loaded, pictures)
    np.testing.assert_allclose(given, expected, rtol=0, atol=1e-5)

    # Out again, by the names of the authors' model with both parts.
    there = tmp_path / "out.safetensors"
    lines = exporting.save(loaded.params, loaded.spec, "timm", there)
    assert "written as backbone.* and linear_head.*, as in DINOv2's code" in lines
    written = safetensors.load_file(there)
    files[there.name] = written
    np.testing.assert_array_equal(written["linear_head.weight"], head["weight"])
    np.testing.assert_array_equal(written["backbone.cls_token"], encoder["cls_token"])
    foreign.equal(weights.load(there, {"model.heads": "3"}).params, loaded.params)


def test_one_of_several_classifiers_is_named_by_its_file(tmp_path, files):
    heads = {f"dinov2_vits14_{n}": linear(k * 24) for n, k in
             (("linear_head", 2), ("linear4_head", 5))}  # fmt: skip
    with pytest.raises(weights.WeightsError, match="holds several linear classifiers .*name the"):
        load(tmp_path, files, dinov2_vits14_pretrain=layers(4), **heads)
    for name, count in (("linear_head", 1), ("linear4_head", 4)):
        spec = weights.read_spec(tmp_path / f"dinov2_vits14_{name}.pth")
        assert (spec.model.pooling, spec.model.pooled_layers) == ("token_gap", count)
    alone = tmp_path / "dinov2_vitb14_linear_head.pth"
    alone.touch()
    with pytest.raises(weights.WeightsError, match=r"beside it, dinov2_vitb14_pretrain\.pth"):
        weights.load(alone)


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (linear(3 * 24), "a linear classifier of 3 x 24 features, which is not supported; those"),
        (linear(5 * 24), r"model\.pooled_layers=4: more than model\.depth"),
        ({**linear(48), "other.weight": np.ones((2, 2), np.float32)}, "one linear layer"),
        ({"weight": np.ones((5, 48), np.float32)}, "is not one linear layer"),
    ],
)
def test_other_classifiers_are_refused(tmp_path, files, head, message):
    with pytest.raises(weights.WeightsError, match=message):
        load(tmp_path, files, dinov2_vits14_pretrain=backbone(), dinov2_vits14_linear_head=head)
