"""What names and shapes cannot tell: as the reference where somebody says it, else told."""

import dataclasses
import json

import numpy as np
import pytest

import foreign
from containers import FIXTURES, read, refusal, write
from vit_jax import cli, config, weights
from vit_jax.inference import loading
from vit_jax.runs import directory
from vit_jax.training import build, run_config
from vit_jax.utils.errors import AssumptionWarning
from vit_jax.weights import importing

HEADS = {"model.heads": "3"}
# What config.json would say of timm's, if there were one; those of transformers have it.
SAID = {
    "timm_avg_with_token": {"model.pooling": "gap"},
    "timm_max": {"model.pooling": "max"},
    "timm_avgmax": {"model.pooling": "gap_max"},
    "timm_silu": {"model.activation": "silu"},
    "timm_relu": {"model.activation": "relu"},
    "timm_gelu_tanh": {"model.gelu": "tanh"},
    "timm_map_with_token": {"model.activation": "relu"},
    "timm_4_by_9": {"model.gelu": "tanh", "data.image_size": "32,72"},
    "timm_remainder": {"data.image_size": "35,29"},
    "timm_hybrid_remainder": {"data.image_size": "53,45"},
}
TOKEN, TOK = FIXTURES / "vit_tiny_token.npz", FIXTURES / "bv_vit_tok.npz"
GAP = FIXTURES / "bv_vit_gap_sincos.npz"
SIZE = {"data.image_size": "32,32"}


def error(loaded, described, output=foreign.logits):
    expected = np.asarray(described["logits"])
    return np.abs(output(loaded, foreign.images(described)) - expected).max()


# Values


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "name", [*SAID, "timm_pre_logits", "hf_pooler_relu", "hf_silu_4_by_9", "hf_relu_remainder"]
)
def test_what_is_said_gives_the_logits_of_the_library(tmp_path, name):
    described, said = foreign.record(name), SAID.get(name, {})
    loaded = weights.load(foreign.write(tmp_path, described), HEADS | said)
    output = foreign.pre_logits if name == "hf_pooler_relu" else foreign.logits
    assert error(loaded, described, output) < 1e-5
    assert loaded.report.dropped == {}
    assert not [line for line in loaded.assumed for key in said if f"{key}=" in line]


def test_the_first_token_is_no_pooling_of_timm(tmp_path):
    assert any("model.pooling=gap" in line for line in weights.load(GAP, SIZE).assumed)
    loaded = weights.load(GAP, SIZE | {"model.pooling": "first"})
    with pytest.raises(weights.WeightsError, match=r"^model.pooling=first: timm has no equivalent"):
        weights.save(loaded.params, loaded.spec, "timm", tmp_path / "out")
    with pytest.raises(weights.WeightsError, match=r"which reads back as gap$"):
        weights.save(loaded.params, loaded.spec, "google", tmp_path / "out.npz")


def test_what_an_option_settles_is_not_told():
    facts = weights.read_spec(foreign.FOLDER / "timm_vit_tiny.safetensors")

    def told(**overrides):
        text = " ".join(
            importing.assumptions(facts, {f"model.{k}": v for k, v in overrides.items()})
        )
        return {key for key in ("activation", "gelu", "pooling") if f"model.{key}=" in text}

    assert told() >= {"activation", "gelu"}
    assert told(gelu="erf") == told() - {"gelu"}
    assert told(activation="gelu") == told() - {"activation"}
    assert told(activation="relu") == told() - {"activation", "gelu"}  # which has no such form


def test_a_file_without_a_resnet_leaves_nothing_open_of_one():
    facts = weights.read_spec(FIXTURES / "vit_tiny_token.npz")
    assert "model.norm_epsilon" in facts.assumed
    assert "model.resnet_epsilons" not in facts.assumed


def test_what_metadata_say_of_a_head_is_taken_before_a_config_beside_the_file():
    facts = weights.read_spec(foreign.FOLDER / "timm_vit_tiny.safetensors")
    names = [f"class of metadata {k}" for k in range(facts.model.num_classes)]
    several = {"label_names": names, "problem_type": "multi_label_classification"}
    said = {importing.HEAD: json.dumps(several)}
    found = importing.with_head(facts, said)
    assert (found.classes, found.loss) == (tuple(names), "sigmoid")
    own = tuple(f"class of config {k}" for k in range(facts.model.num_classes))
    known = dataclasses.replace(facts, classes=own, loss="softmax")
    found = importing.with_head(known, said)
    assert (found.classes, found.loss) == (tuple(names), "sigmoid")
    found = importing.with_head(known, {importing.HEAD: "{}"})
    assert (found.classes, found.loss) == (own, "softmax")
    one = dataclasses.replace(facts, model=dataclasses.replace(facts.model, num_classes=1))
    found = importing.with_head(one, {})
    assert (found.loss, importing.ONE_OUTPUT in found.assumed.values()) == ("sigmoid", True)
    told = importing.assumptions(found)
    assert "assumed sigmoid for softmax: the head has one output" in " ".join(told)
    others = {"loss.name": "mse"}, {}, {}
    runs = None, config.Config(), config.Config(init_from="x", init_head="keep")
    for overrides, wanted, same in zip(others, runs, (False, False, True), strict=True):
        lines = importing.assumptions(found, overrides, wanted=wanted)
        assert any("sigmoid for softmax" in line for line in lines) == same
    with pytest.raises(weights.WeightsError, match="vit_jax.head: must be a JSON object"):
        importing.with_head(facts, {importing.HEAD: "["})


# Grids of positions


@pytest.fixture
def oblong(tmp_path):
    """A Google file of 4 x 9 patches, which would be 6 x 6 of a square, and what timm gives."""
    (tmp_path / "in").mkdir()
    described = foreign.record("timm_4_by_9")
    overrides = HEADS | SAID["timm_4_by_9"]
    loaded = weights.load(foreign.write(tmp_path / "in", described), overrides)
    told = weights.save(loaded.params, loaded.spec, "google", tmp_path / "w.npz")
    assert "data.image_size=32,72: reads back as 48,48" in told
    return tmp_path / "w.npz", described


def test_the_grid_is_what_the_image_size_says_and_told_where_nothing_does(oblong):
    path, described = oblong
    loaded = weights.load(path, {"data.image_size": "32,72"})
    assert error(loaded, described) < 1e-5
    assert loaded.report.resized == {}
    assert not [line for line in loaded.assumed if "image_size" in line]
    line = "assumed data.image_size=48,48: 36 positions as a square of 6 x 6; the file does not say"
    assert line in weights.load(path).assumed
    other = weights.load(path, {"data.image_size": "32,80"})
    assert line in other.assumed
    assert other.report.lines()[1:] == ["resized: position/table (from 6 x 6 to 4 x 10 patches)"]


@pytest.mark.parametrize("name", ["timm_4_by_9", "hf_silu_4_by_9"])
def test_the_grid_is_what_config_says(tmp_path, name):
    described = foreign.record(name)
    fields = {
        "architecture": "vit_tiny_patch16_224",
        "model_args": {**HEADS_OF_TIMM, "img_size": [32, 72]},
    }
    changes = {"config": fields} if name.startswith("timm") else {}
    path = foreign.write(tmp_path, described, **changes)
    assert error(weights.load(path), described) < 1e-5
    # Other images are seen through positions resized from that grid, though 6 x 6 are as many.
    loaded = weights.load(path, {"data.image_size": "48,48"})
    assert loaded.report.resized == {"position/table": "from 4 x 9 to 6 x 6 patches"}


HEADS_OF_TIMM = {"num_heads": 3, "act_layer": "gelu_tanh", "global_pool": "token"}


def test_a_run_begins_with_the_grid_of_its_own_images(oblong):
    path, _ = oblong
    overrides = {
        "init_from": str(path), "init_head": "new", "data.image_size": "32,72",
        "data.channels": "3", "model.patch_size": "8,8", "model.width": "24", "model.depth": "2",
        "model.mlp_dim": "48", "model.heads": "3", "model.unroll": "1", "model.pooling": "token",
        "model.position": "learned_1d", "model.num_classes": "10",
    }  # fmt: skip
    with pytest.warns(AssumptionWarning) as told:
        cfg = directory.as_in_weights(run_config.resolve("digits", overrides), overrides)
    opened = loading.load(str(path), wanted=cfg)
    params, report = weights.fit_params(
        opened.params, opened.spec, build.create_model(cfg), keep_head=False
    )
    assert report.resized == {}
    foreign.equal(
        params["position"], weights.load(path, {"data.image_size": "32,72"}).params["position"]
    )
    first, again = {str(warning.message) for warning in told}, opened.assumed
    assert first == {f"{path}: {'; '.join(again)}"}  # the config's words are those of the weights
    assert [line for line in again if "assumed model.activation=gelu, model.gelu=tanh" in line]
    assert not [line for line in again if "image_size" in line or "eval_crop" in line]


def test_positions_that_may_have_a_class_token_or_not(tmp_path):
    """17 rows are 4 x 4 and the class token; 16 are 4 x 4 without, or 3 x 5 and the class token."""
    described = foreign.record("timm_no_embed_class")
    path = foreign.write(tmp_path, described)
    loaded = weights.load(path, HEADS)
    assert loaded.spec.model.class_position is False
    assert [line for line in loaded.assumed if "model.class_position=False" in line]
    loaded = weights.load(path, HEADS | {"data.image_size": "24,40"})
    assert (loaded.spec.model.class_position, loaded.report.resized) == (True, {})
    loaded = weights.load(path, HEADS | SIZE)
    assert loaded.spec.model.class_position is False
    assert not [line for line in loaded.assumed if "class_position" in line]


# big_vision


def test_a_run_that_begins_with_tok_has_no_position_for_the_class_token():
    overrides = {"init_from": str(TOK), "data.image_size": "32,32"}
    cfg = run_config.resolve("digits", overrides)
    taken = directory.as_in_weights(cfg, overrides)
    assert taken.model.class_position is False
    kept = directory.as_in_weights(cfg, overrides | {"model.class_position": "true"})
    assert kept.model.class_position is cfg.model.class_position is True


def test_tok_reaches_hugging_face_with_zeros_that_are_told(tmp_path):
    arrays = {n: a for n, a in read(TOK).items() if not n.startswith("pre_logits")}
    loaded = weights.load(write(tmp_path / "w.npz", arrays))
    told = weights.save(loaded.params, loaded.spec, "hf", tmp_path / "hf")
    assert [line for line in told if line.startswith("model.class_position=false: Hugging Face")]
    again = weights.load(tmp_path / "hf")
    table = again.params["position"]["table"]
    np.testing.assert_array_equal(table[:, 0], 0)
    np.testing.assert_array_equal(table[:, 1:], arrays["pos_embedding"])
    weights.save(loaded.params, loaded.spec, "timm", tmp_path / "timm")
    kept = weights.load(tmp_path / "timm")
    assert kept.spec.model.class_position is False
    foreign.equal(kept.params, loaded.params)


def stacked(arrays):
    """The arrays as big_vision stores them with `scan=True`: one for both layers."""
    first, found = "Transformer/encoderblock_0/", {}
    for name, array in arrays.items():
        if name.startswith(first):
            both = [array, arrays[name.replace("block_0", "block_1")]]
            found[name.replace("block_0", "block")] = np.stack(both)
        elif not name.startswith("Transformer/encoderblock_"):
            found[name] = array
    return found


def test_layers_in_one_array_of_which_one_is_wrong(tmp_path):
    arrays = stacked(read(TOK))
    del arrays["Transformer/encoderblock/LayerNorm_1/bias"]
    arrays["Transformer/encoderblock/MlpBlock_0/Dense_1/bias"] = np.zeros((3, 24), np.float32)
    assert refusal(write(tmp_path / "scan.npz", arrays)) == (
        "Transformer/encoderblock/MlpBlock_0/Dense_1/bias is (3, 24), not (2, 24); "
        "Transformer/encoderblock/LayerNorm_1/bias is missing"
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bv_vit_map", "hybrid_tiny"])
def test_files_without_a_head(tmp_path, name):
    source = FIXTURES / f"{name}.npz"
    arrays = {n: a for n, a in read(source).items() if not n.startswith(("head", "resnet/head"))}
    assert len(arrays) == len(read(source)) - 2
    loaded = weights.load(write(tmp_path / "w.npz", arrays))
    assert set(loaded.report.fresh) == {"head/kernel", "head/bias"}
    whole = weights.load(source).params
    for key in whole.keys() - {"head"}:
        foreign.equal(loaded.params[key], whole[key])
    assert weights.load(tmp_path / "w.npz", {"model.num_classes": "5"}).params["head"][
        "bias"
    ].shape == (5,)
    weights.save(loaded.params, loaded.spec, "google", tmp_path / "out.npz")
    assert read(tmp_path / "out.npz").keys() == arrays.keys()


# What people see


@pytest.mark.parametrize("command", ["predict", "convert"])
def test_commands_tell_what_is_assumed(tmp_path, capsys, command):
    arguments = {
        "predict": ["--examples=1", "--config.data.source=synthetic"],
        "convert": ["--to=orbax", f"--output={tmp_path / 'out'}"],
    }[command]
    words = [command, f"--checkpoint={TOKEN}", *arguments, "--config.model.gelu=erf"]
    assert cli.main(words) == 0
    text = capsys.readouterr().err
    said = text.splitlines()
    assert "AssumptionWarning" not in text
    code = "as in Google's code; the file does not say"
    assert [line for line in said if line.endswith(code) and "model.norm_epsilon" in line]
    assert [line for line in said if "data.image_size=32,32: 16 positions as a square" in line]
    assert not [line for line in said if "model.gelu" in line]
