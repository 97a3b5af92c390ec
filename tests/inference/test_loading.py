import dataclasses
import json
import pathlib
import warnings

import cv2
import jax
import numpy as np
import pytest

import foreign
import image_folders
import runs
import vit_jax
from vit_jax import cli, config, train_loop, weights
from vit_jax.checkpoints import manager
from vit_jax.inference import (
    conversion,
    embedding,
    evaluation,
    loaded_model,
    loading,
    prediction,
    search,
    segmentation,
)
from vit_jax.inference.doctor import listing, reading
from vit_jax.inference.inspect import outputs, view
from vit_jax.runs import directory
from vit_jax.training import build, run_config
from vit_jax.utils import tree_utils
from vit_jax.utils.errors import AssumptionWarning, CheckpointError

FIXTURES = pathlib.Path(__file__).parents[1] / "fixtures"
HF = foreign.FOLDER / "hf_vit_tiny"
TOKEN = FIXTURES / "vit_tiny_token.npz"
# The network of TOKEN, on images of another shape and with another head.
BEGIN = {
    "init_from": str(TOKEN),
    "model.patch_size": "8,8", "model.width": "24", "model.depth": "2", "model.mlp_dim": "48",
    "model.heads": "3", "model.unroll": "1", "model.pooling": "token",
    "model.position": "learned_1d", "data.channels": "3", "data.image_size": "16,24",
    "train.duration": "2", "train.batch_size": "16", "schedule.warmup": "1",
    "checkpoint.every": "2", "evaluation.every": "none", "logging.tensorboard": "false",
}  # fmt: skip


def begin(workdir, **more):
    cfg = directory.reconcile(workdir, run_config.resolve("digits", BEGIN | more), BEGIN | more)
    with runs.on_one_device():
        return train_loop.train(cfg, workdir)


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("begun") / "run"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AssumptionWarning)
        first = {"data.phases.small.until": "1 steps", "data.phases.small.image_size": "8,8"}
        begin(workdir, **{"optimizer.lr": "1e-9"} | first)
    return workdir


def test_programs_are_kept_before_the_first_one_is_compiled(begun, monkeypatch):
    """That is the digests of the run's arrays, which took each command a second."""
    order, load_params = [], loading.load_params
    monkeypatch.setattr(loading.device, "cache_programs", lambda: order.append("kept"))
    monkeypatch.setattr(
        loading, "load_params", lambda *given: order.append("read") or load_params(*given)
    )
    vit_jax.load(begun)
    assert order == ["kept", "read"]


def test_the_holdout_of_a_run_in_another_folder_is_said(tmp_path):
    """There a share of the images alone is measured, and perhaps none was trained on."""
    cfg = runs.configure(data={"source": "folder", "root": str(tmp_path), "holdout": 0.2})
    values = config.to_dict(cfg)
    with warnings.catch_warnings(action="error"):
        loading._resized_from(values, {})
        loading._resized_from(values, {"data.root": f"{tmp_path}/"})
        loading._resized_from(values, {"data.root": "other", "data.holdout": "0.2"})
    with pytest.warns(AssumptionWarning, match="/other: data.holdout=0.2 is the run's, so"):
        loading._resized_from(values, {"data.root": "other"})


@pytest.fixture
def said(caplog):
    """A function that returns the lines logged so far."""
    caplog.set_level("INFO", logger="vit_jax")
    return lambda: [record.message for record in caplog.records]


@pytest.mark.slow
def test_a_begun_run_says_what_became_of_its_weights_and_resumes_without_them(tmp_path, said):
    """Not even where they are must be known any more."""
    moved = tmp_path / "gone.npz"
    moved.write_bytes(TOKEN.read_bytes())
    workdir = tmp_path / "run"
    begin(workdir, init_from=str(moved))
    lines = said()
    first = lines.index(f"starts from {moved}")
    assert lines[first + 1 : first + 5] == [
        "  used: 42 arrays",
        "  dropped: head/bias, head/kernel, pre_logits/bias, pre_logits/kernel "
        "(the head of another task)",
        "  fresh: head/bias, head/kernel (the head is new)",
        "  resized: position/table (from 4 x 4 to 2 x 3 patches)",
    ]
    before = tree_utils.flatten(jax.device_get(loading.load(workdir).params))
    moved.unlink()
    begin(workdir, init_from=str(moved))
    after = tree_utils.flatten(jax.device_get(loading.load(workdir).params))
    for name in before:
        np.testing.assert_array_equal(after[name], before[name])
    with pytest.raises(config.ConfigError, match="holds another run"):
        directory.reconcile(workdir, run_config.resolve("digits", BEGIN), BEGIN)


@pytest.mark.slow
def test_a_run_begins_with_another_run_and_its_head(begun, tmp_path):
    again = {"init_from": str(begun), "init_head": "keep", "optimizer.lr": "1e-9"}
    begin(tmp_path / "run", **again)
    first, second = (
        tree_utils.flatten(jax.device_get(loading.load(workdir).params))
        for workdir in (begun, tmp_path / "run")
    )
    for name in first:
        np.testing.assert_allclose(second[name], first[name], rtol=0, atol=1e-7, err_msg=name)


@pytest.fixture
def projected(monkeypatch):
    """Begins a run of DINO with one whose projection head is `own`; its parameters and notes."""
    opened = loading.load(HF)
    dense = {"kernel": np.ones((24, 3), np.float32), "bias": np.ones(3, np.float32)}
    head = {"dense_0": dense, "prototypes": {"kernel": np.ones((3, 4), np.float32)}}
    own = {**head, "mask_token": np.ones((1, 1, 24), np.float32), "patches": head}
    monkeypatch.setattr(loading, "projection", lambda _: own)
    monkeypatch.setattr(loading, "load", lambda *_, **__: opened)

    def begun(*, pooling="token", **options):
        cfg = dataclasses.replace(
            opened.config,
            model=dataclasses.replace(opened.config.model, pooling=pooling),
            objective=config.Dino(name="dino", **options),
            init_from="x",
            init_head="keep",
        )
        params, notes, _ = loading.initial_params(cfg, build.create_model(cfg), ())
        return params["objective"].keys(), notes

    return begun


def test_a_kept_projection_head_says_what_of_it_is_not_kept(projected):
    kept, notes = projected(patch_loss=0.0)
    assert kept == {"dense_0", "prototypes"}
    assert "dropped: mask_token, patches (objective.patch_loss=0)" in notes
    assert "center of the teacher's outputs: starts at 0" in notes
    kept, notes = projected(patch_loss=1.0, centering="sinkhorn")
    assert kept == {"dense_0", "prototypes", "mask_token", "patches"}
    assert not any(line.startswith(("center", "dropped: mask")) for line in notes)


def test_a_projection_head_of_other_features_is_refused(projected):
    """The state of a run raised an error of jax instead."""
    with pytest.raises(
        config.ConfigError,
        match="^init_head=keep: .* reads 24 features of an image, and the model gives 48; "
        "set model.pooling=token, or init_head=new$",
    ):
        projected(pooling="token_gap")


DINO = {
    "name": "dino", "prototypes": 24, "head_hidden": 16, "head_bottleneck": 8, "local_views": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("options", "trained"),
    [
        ({"only": ["objective"]}, None),
        ({"head_first": 1, "layer_decay": 0.5, "freeze": ["*/dense_0"]}, ""),
        ({"groups": {"objective": {"lr": 10}}, "only": ["objective", "encoder"]}, "encoder/"),
    ],
)
def test_a_run_is_read_whose_patterns_name_the_objective(options, trained, tmp_path, monkeypatch):
    """Whatever trained, each of its checkpoints was refused: the objective is not read."""
    data = {"train_crop": "inception", "rotation": 0.0, "scale": 0.0, "shift": 0.0}
    sections = {"train": {"label_smoothing": 0.0, "ema": None}, "checkpoint": {"best": None}}
    cfg = runs.configure(objective=DINO, optimizer=options, data=data, **sections)
    cfg = run_config.complete(dataclasses.replace(cfg, init_from=str(tmp_path / "base")))
    with runs.on_one_device():
        state = build.build(cfg, 160).init_state()
        state["ema"] = jax.tree.map(lambda leaf: leaf + 1, state["ema"])
        saver = manager.Manager(tmp_path / "run" / "checkpoints", keep=1, best=None)
        saver.save(2, state, record={"config": config.to_dict(cfg), "classes": []}, metrics={})
        saver.wait()
        saver.close()
        found = tree_utils.flatten(loading.load(tmp_path / "run").params)
    assert "objective" not in {name.partition("/")[0] for name in found}
    for name, leaf in tree_utils.flatten(state["params"]).items():
        if not name.startswith("objective/"):
            average = leaf + float(trained is not None and name.startswith(trained))
            np.testing.assert_array_equal(found[name], average, err_msg=name)
    begun = loading.Initial(jax.device_get(state["params"]), [], ())  # with a head that it keeps
    monkeypatch.setattr(loading, "initial_params", lambda *_: begun)
    if trained is None:
        with pytest.raises(config.ConfigError, match="none of the model's parameters train, so"):
            loading.adapter_base(cfg, ())
    else:
        base = loading.adapter_base(cfg, ())
        assert base.params.keys() == found.keys()
        assert "encoder" in {name.partition("/")[0] for name in base.shapes}


def test_an_evaluation_that_would_measure_nothing_is_refused(monkeypatch):
    data = {"train_crop": "inception", "rotation": 0.0, "scale": 0.0, "shift": 0.0}
    sections = {"train": {"label_smoothing": 0.0, "ema": None}, "checkpoint": {"best": None}}
    cfg = runs.configure(objective=DINO, data=data, **sections)
    supervised = loading.load(HF)
    opened = dataclasses.replace(supervised, config=run_config.complete(cfg))
    monkeypatch.setattr(loading, "load", lambda *_, **__: opened)
    monkeypatch.setattr(loading, "require_images", lambda *_: None)
    monkeypatch.setattr(loading, "has_images", lambda _, given: not given)
    line = "^run: the split `test` .* is not measured, as objective.name=dino has no loss on it; if"
    with pytest.raises(config.ConfigError, match=line):
        evaluation.evaluate("run", {})
    opened = supervised
    with pytest.raises(config.ConfigError, match="^run: nothing is measured; set evaluation.knn=S"):
        evaluation.evaluate("run", {"evaluation.knn": ""})


def test_what_belongs_to_the_weights_is_taken_over(tmp_path):
    other = runs.configure(
        model={"gelu": "erf", "norm_epsilon": 1e-12, "position": "sincos_2d_mae"},
        data={"mean": (0.3,), "std": (1.0,)},
    )
    facts = weights.ModelSpec(model=other.model, data=other.data)
    assert weights.numerics(facts, keep_head=False)["model.gelu"] == "erf"
    cfg = run_config.resolve("digits", BEGIN)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "describe_checkpoint", lambda reference, wanted: facts)
        taken = directory.as_in_weights(cfg, BEGIN)
        with pytest.warns(AssumptionWarning, match=r"differs .*: model.gelu: erf -> tanh; le"):
            kept = directory.as_in_weights(cfg, BEGIN | {"model.gelu": "tanh"})
        plain = run_config.resolve("digits", {"init_from": str(TOKEN)})
        fixed = directory.as_in_weights(plain, {}).model.position
        facts = dataclasses.replace(facts, model=dataclasses.replace(other.model, rotary=10.0))
        mae = run_config.resolve("mae/folder", BEGIN | {"data.root": str(tmp_path)})
        with pytest.raises(config.ConfigError, match="^init_from=.*: model.rotary=10: objective"):
            directory.as_in_weights(mae, BEGIN)
    assert (plain.model.position, fixed) == ("sincos_2d", "sincos_2d_mae")
    assert (taken.model.gelu, taken.model.norm_epsilon) == ("erf", 1e-12)
    assert (taken.data.mean, taken.data.std) == ((0.3,), (1.0,))
    assert (kept.model.gelu, kept.model.norm_epsilon) == ("tanh", 1e-12)


def test_a_run_of_another_size_sees_as_much_of_an_image():
    view = {"image_size": (16, 16), "eval_crop": "central", "resize_to": 20}
    values = config.to_dict(runs.configure(data=view, model={"num_classes": 3}))
    for given, box in (
        ({"image_size": 8}, 10),
        ({"image_size": 8, "resize_to": 9}, 9),
        ({"image_size": 8, "crop_pct": 0.5}, 16),
        ({"crop_pct": 1.0}, 16),
    ):
        given = {f"data.{key}": value for key, value in given.items()}
        found, trained = loading._resized_from(values, given)
        assert (found.data.before_crop, trained.data.image_size) == ((box, box), (16, 16))


def test_options_leave_no_part_of_a_run_out(tmp_path):
    """What remains would compute something else, from arrays that all fit."""
    model = {"num_classes": 3, "registers": 2, "pooling": "token"}
    cfg = runs.configure(model=model)
    params = build.create_model(cfg).init(jax.random.key(0))
    opened = loaded_model.LoadedModel(config=cfg, params=params, classes=(), kind="run", step=1)
    conversion.save_checkpoint(opened, params, tmp_path / "run", "")
    for options, line in (
        ({"model.registers": 0}, "which has no params/registers; keep the run's options$"),
        ({"model.pooling": "gap"}, "which has no params/cls; set model.class_token=true$"),
    ):
        with pytest.raises(CheckpointError, match=line):
            loading.load(tmp_path / "run", options)
    whole = {"model.pooling": "gap", "model.class_token": True}
    assert "cls" in loading.load(tmp_path / "run", whole).params


@pytest.mark.slow
def test_weights_of_a_file_are_evaluated_on_images_of_the_user(tmp_path):
    image_folders.draw(
        tmp_path / "data",
        *(f"{split}/c{k}/{i}.png" for split in ("train", "test") for k in range(7) for i in "012"),
        size=(32, 32),
    )
    where = {"data.source": "folder", "data.root": str(tmp_path / "data")}
    results = vit_jax.evaluate(TOKEN, where)
    assert results["test/count"] == 21
    predictor = loading.load(TOKEN)
    files = list(prediction.read_files(prediction.list_files([tmp_path / "data" / "test"])))
    top = [one.top[0][0].removeprefix("class ") for one in predictor.classify(files, 1)]
    truth = [pathlib.Path(name).parent.name.removeprefix("c") for name, _, _ in files]
    assert results["test/top1"] == sum(a == b for a, b in zip(top, truth, strict=True)) / 21
    # A size of another number of patches, for which the positions are resized.
    assert vit_jax.evaluate(TOKEN, where | {"data.image_size": "48,40"})["test/count"] == 21


@pytest.mark.parametrize("command", [["evaluate"], ["predict", "--examples=1"]])
def test_weights_bring_no_images(command, capsys):
    assert cli.main([command[0], f"--checkpoint={TOKEN}", *command[1:]]) == 2
    assert capsys.readouterr().err == (
        f"vit_jax: {TOKEN} names no images; set --config.data.source=folder and "
        "--config.data.root=DIR, or --config.data.source=tfds and --config.data.name=NAME\n"
    )


def test_copies_of_weights_bring_no_images_either(tmp_path, capsys):
    """Those of a run do: a checkpoint that it wrote names its data."""
    copy, named = tmp_path / "copy", tmp_path / "named"
    conversion.convert(TOKEN, "orbax", copy)
    conversion.convert(TOKEN, "orbax", named, {"data.source": "folder", "data.root": "photos"})
    found = loading.has_images(copy, {}), loading.has_images(named, {})
    assert found == (False, True)
    assert loading.has_images(copy, {"data.root": "photos"})
    assert cli.main(["evaluate", f"--checkpoint={copy}"]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"vit_jax: {copy} names no images; ")


@pytest.mark.parametrize(
    "command", [["evaluate"], ["predict", "--examples=1"], ["predict", "IMAGE"]]
)
def test_a_folder_that_is_no_checkpoint_is_called_that(command, tmp_path, capsys):
    """And not told to bring images, whatever else it holds."""
    (tmp_path / "image.png").write_bytes(b"")
    words = [str(tmp_path / "image.png") if word == "IMAGE" else word for word in command]
    line = "not a checkpoint: neither a run directory (no checkpoints/ inside) nor a folder of "
    for name in ("empty", "begun"):
        folder = tmp_path / name
        folder.mkdir()
        if name == "begun":  # a run that was killed before its first save
            (folder / "config.json").write_text("{}")
        assert cli.main([words[0], f"--checkpoint={folder}", *words[1:]]) == 2
        assert capsys.readouterr().err.startswith(f"vit_jax: {folder}: {line}")
    note = tmp_path / "note.txt"
    note.write_text("no weights")
    assert cli.main([words[0], f"--checkpoint={note}", *words[1:]]) == 2
    assert "unsupported file type; supported: " in capsys.readouterr().err


def test_weights_without_a_head_name_nothing(tmp_path, capsys):
    folder = foreign.write(tmp_path, foreign.record("hf_model"))
    line = f"{folder}: holds no head, so it knows no classes; train one: vit_jax train NAME "
    for command in ("evaluate", "predict"):
        more = ["--examples=1"] if command == "predict" else []
        arguments = [f"--checkpoint={folder}", *more, "--config.data.source=digits"]
        assert cli.main([command, *arguments]) == 2
        *_, said = capsys.readouterr().err.splitlines()  # after what had to be assumed
        assert said == f"vit_jax: {line}--config.init_from={folder}"


@pytest.mark.filterwarnings("ignore:.*assumed")
def test_weights_without_a_head_have_none_as_a_checkpoint(tmp_path):
    """The head of zeros predicted `class 0` of every image."""
    folder = foreign.write(tmp_path, foreign.record("hf_model"))
    conversion.convert(folder, "orbax", tmp_path / "copy")
    copy = loading.load(tmp_path / "copy")
    assert copy.fresh == loading.load(folder).fresh != {}
    with pytest.raises(weights.WeightsError, match="holds no head, so it knows no classes"):
        copy.predict(np.zeros((8, 8, 3), np.uint8))
    assert loading.describe_checkpoint(str(tmp_path / "copy")).headless
    lines = conversion.convert(tmp_path / "copy", "hf", tmp_path / "back")
    assert "README.md: names no license; --license=ID does" in lines
    assert weights.load(tmp_path / "back").spec.headless
    assert not loading.load(TOKEN).fresh


@pytest.mark.filterwarnings("ignore:.*assumed")
def test_a_head_that_no_loss_has_trained_names_nothing(tmp_path):
    """The head of zeros predicted the first class of every image."""
    opened = loading.load(TOKEN)
    objective = config.Distillation(name="distillation", teacher="x", target="features")
    cfg = dataclasses.replace(opened.config, objective=objective)
    run = dataclasses.replace(opened, config=cfg, kind="run")
    conversion.save_checkpoint(run, jax.device_get(run.params), tmp_path / "run", "a test")
    copy = loading.load(tmp_path / "run")
    line = r"no loss has trained its head \(objective.target=features\), so it knows .*DIR, its"
    with pytest.raises(weights.WeightsError, match=line):
        copy.predict(np.zeros((8, 8, 3), np.uint8))
    assert loading.describe_checkpoint(str(tmp_path / "run")).headless
    conversion.convert(tmp_path / "run", "hf", tmp_path / "hf")
    assert weights.load(tmp_path / "hf").spec.headless
    kept = dataclasses.replace(cfg, init_from="y", init_head="keep")
    assert not loading._fresh({"config": config.to_dict(kept)})
    model = dataclasses.replace(cfg.model, pooling="distilled")
    second = dataclasses.replace(cfg, model=model)
    assert "head_dist/bias" in loading._fresh({"config": config.to_dict(second)})


PLAIN = FIXTURES / "weights" / "timm_vit_tiny.safetensors"


def test_python_is_warned_once_of_what_a_file_leaves_open():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("once", AssumptionWarning)
        model = vit_jax.load(PLAIN, {"model.heads": "3", "data.std": "0.5"})
        vit_jax.load(PLAIN, {"model.heads": "3", "data.std": "0.5"})
    (warning,) = caught
    assert warning.filename == __file__
    assert str(warning.message) == f"{PLAIN}: {'; '.join(model.assumed)}"
    assert [line for line in model.assumed if "model.gelu=erf" in line]
    assert not [line for line in model.assumed if "data.std" in line]


def test_a_config_that_takes_options_of_weights_warns_of_what_they_leave_open():
    with pytest.warns(AssumptionWarning) as caught:
        cfg = vit_jax.get_config("digits", BEGIN)
    (warning,) = caught
    assert cfg.model.gelu == "tanh"
    assert "assumed model.activation=gelu, model.gelu=tanh" in str(warning.message)


def test_weights_of_four_channels_load(tmp_path):
    """They name no images; the digits, which a config would otherwise have, are gray."""
    described = foreign.record("timm_folder")
    described["arrays"]["patch_embed.proj.weight"][1] = 4
    described["files"]["config.json"]["pretrained_cfg"] |= {
        "mean": [0.5] * 4, "std": [0.5] * 4, "input_size": [4, 32, 32],
    }  # fmt: skip
    described["files"]["config.json"]["model_args"]["in_chans"] = 4
    folder = foreign.write(tmp_path, described)
    model = loading.load(folder)
    assert model.config.data.channels == 4
    assert model.predict(np.zeros((32, 32, 4), np.uint8))[0].top
    conversion.convert(folder, "orbax", tmp_path / "copy")
    assert not loading.has_images(tmp_path / "copy", {})  # `evaluate` took random pixels


def test_predictions_stand_in_the_order_of_their_images():
    """Those that cannot be read too, of any shapes and at most a batch at a time."""
    model = loading.load(TOKEN)
    good = np.random.default_rng(0).integers(0, 256, (40, 20, 32, 3), np.uint8)
    images = [*good[:35], b"no image", good[35, :9], b"", *good[36:]]
    found = model.predict(images, top=99)
    assert [one.image for one in found] == [f"images[{k}]" for k in range(len(images))]
    assert [k for k, one in enumerate(found) if one.error] == [35, 37]
    for k in (0, 34, 36, 38):
        (alone,) = model.predict(images[k], top=99)
        assert found[k].top[0][0] == alone.top[0][0]
        assert found[k].top[0][1] == pytest.approx(alone.top[0][1], abs=1e-6)
    assert {name for name, _ in found[0].top} == set(model.classes)  # there are no more
    cranes = dataclasses.replace(model, classes=("crane", *"abcde", "crane"))
    (one,) = cranes.predict(images[0], top=99)
    assert {name for name, _ in one.top} == {"crane (0)", *"abcde", "crane (6)"}


def test_outputs_that_are_not_finite_are_an_error_of_their_image():
    """Of a run that has diverged: finite weights, so large that the activations overflow."""
    model = loading.load(TOKEN)
    large = jax.tree.map(lambda x: x * np.float32(1e30), model.params)
    (one,) = dataclasses.replace(model, params=large).predict(np.ones((8, 8, 3), np.uint8))
    assert one.top == ()
    assert one.error == "the model's outputs are not finite; its training has diverged"
    assert "nan" not in json.dumps(prediction.as_dict(one)).casefold()


def test_features_that_are_not_finite_are_refused(tmp_path):
    """`embed` and `doctor` took them for those of other images."""
    model = loading.load(TOKEN)
    large = jax.tree.map(lambda x: x * np.float32(1e30), model.params)
    model = dataclasses.replace(model, params=large)
    for name in ("a/0.png", "a/1.png", "b/2.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        cv2.imwrite(str(tmp_path / name), np.full((8, 8, 3), len(name), np.uint8))
    line = "^the model's outputs are not finite; its training has diverged$"
    with pytest.raises(config.ConfigError, match=line):
        model.embed(np.ones((8, 8, 3), np.uint8))
    with pytest.raises(config.ConfigError, match=line):
        embedding.write_features(model, tmp_path / "features.npz", tmp_path)
    assert not (tmp_path / "features.npz").exists()
    with pytest.raises(config.ConfigError, match=line):
        reading.read_images(listing.list_images(tmp_path, 0.5, labels=True), model)


def test_a_crop_grows_with_the_image_size(tmp_path):
    folder = foreign.write(tmp_path, foreign.record("timm_folder"))
    own = loading.load(folder).config.data
    assert own.eval_crop == "central"
    twice = ",".join(str(2 * side) for side in own.image_size)
    data = loading.load(folder, {"data.image_size": twice}).config.data
    assert (own.before_crop, data.before_crop) == ((35, 35), (71, 71))  # floor(64 / 0.9), as timm
    data = loading.load(folder, {"data.image_size": twice, "data.resize_to": "999"}).config.data
    assert data.before_crop == (999, 999)
    with pytest.raises(config.ConfigError, match=r"crop_pct=1.2: crops more than the image"):
        loading.load(folder, {"data.crop_pct": "1.2"})


# Conversion


@pytest.mark.slow
@pytest.mark.parametrize("size", ["24,32", (8, 8)], ids=["larger", "of_its_first_phase"])
def test_positions_of_a_run_are_resized_as_those_of_a_file(size, begun, tmp_path):
    folder = tmp_path / "run"
    assert cli.main(["convert", "--checkpoint", str(begun), "--to=timm", f"--output={folder}"]) == 0
    # How it resizes is not stored in a file.
    expected = loading.load(folder, {"data.image_size": size, "model.position_resize": "aligned"})
    resized = loading.load(begun, {"data.image_size": size, "mesh.fsdp": 8})
    assert resized.config.model == loading.load(begun).config.model
    arrays = tree_utils.flatten(resized.params)
    for name, leaf in tree_utils.flatten(expected.params).items():
        np.testing.assert_array_equal(arrays.pop(name), leaf, err_msg=name)
    assert not arrays
    grid = "3 x 4" if size == "24,32" else "1 x 1"
    lines = conversion.convert(begun, "timm", tmp_path / "new", {"data.image_size": size})
    assert lines[0] == f"resized: position/table (from 2 x 3 to {grid} patches)"


@pytest.mark.parametrize(
    ("size", "at"), [("16,24", ""), ("32,48", " at 16,24 pixels, not at 32,48")]
)
def test_a_temperature_of_another_image_size_is_said(size, at, begun, monkeypatch, said):
    monkeypatch.setattr(loading, "fitted_temperature", lambda record: 1.5)
    assert vit_jax.load(begun, {"data.image_size": size}).temperature == 1.5
    assert said()[-1].endswith(f"; temperature 1.500, fitted on validation{at}")


@pytest.mark.parametrize("kind", ["orbax", "google"])
def test_an_interrupted_conversion_leaves_nothing(kind, tmp_path, monkeypatch):
    output = tmp_path / {"google": "new.npz"}.get(kind, "new")
    seen = []

    def interrupted(*arguments, **keywords):
        seen.extend(path.name for path in tmp_path.iterdir())  # what a kill would leave
        raise KeyboardInterrupt

    monkeypatch.setattr(conversion.manager.Manager, "save", interrupted)
    monkeypatch.setattr(np.lib.format, "write_array", interrupted)
    options = {key: value for key, value in BEGIN.items() if key.startswith("data.")}
    with pytest.raises(KeyboardInterrupt):
        conversion.convert(TOKEN, kind, output, options)
    assert seen
    assert all(name.startswith(f".{output.name}.") for name in seen)
    assert list(tmp_path.iterdir()) == []


def test_a_path_of_one_step_and_another_step(tmp_path):
    (tmp_path / "checkpoints/00000012").mkdir(parents=True)
    (tmp_path / "checkpoints/00000012/commit.json").touch()
    with pytest.raises(config.ConfigError, match=r"^--step=best: .*/00000012 is step 12 alone; na"):
        loading.load(tmp_path / "checkpoints/00000012", step="best")


@pytest.mark.parametrize(
    "call",
    [
        lambda photo, given: next(vit_jax.predict("gone", photo, given)),
        lambda photo, given: vit_jax.embed("gone", "new.npz", photo.parent, given),
        lambda photo, given: search.search("gone", photo.parent, photo, given),
        lambda photo, given: vit_jax.doctor(photo.parent, "gone", given),
        lambda photo, given: segmentation.measure("gone", photo.parent, given),
        lambda photo, given: next(outputs.inspect("rollout", "gone", given, images=[photo])),
        lambda photo, given: view.open_viewer("gone", given, images=[photo]),
    ],
    ids=["predict", "embed", "search", "doctor", "segment", "inspect", "view"],
)
def test_a_dataset_beside_given_images_is_refused(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.png").touch()
    line = "data.exclude=fix.csv: is not read, as the images are given; leave one of them out"
    with pytest.raises(config.ConfigError, match=line):
        call(tmp_path / "a.png", {"data.exclude": "fix.csv"})
