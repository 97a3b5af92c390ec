"""`data.aspect=native`: each image in its own shape, compared with one image at a time."""

import dataclasses
import io
import math

import cv2
import jax
import numpy as np
import PIL.Image
import pytest
import scipy.ndimage

import runs
import tiffs
import vit_jax
from vit_jax import cli, config, models, train_loop
from vit_jax.data import decoding, native_aspect, sources, transforms
from vit_jax.data.source import Record
from vit_jax.evaluation import features, task_sets
from vit_jax.evaluation.evaluation import open_evaluation
from vit_jax.inference import loading
from vit_jax.models import variants
from vit_jax.weights import adapting

NATIVE = {"data.aspect": "native"}
WEIGHTS = runs.ROOT / "tests/fixtures/vit_tiny_token.npz"
GRID, PATCH = (4, 4), (4, 4)
KNOWN = native_aspect.shapes(GRID, PATCH)
SIZES = [(30, 30), (24, 37), (37, 24), (20, 70), (16, 90), (40, 31), (31, 32)]


def picture(rng, height, width, label):
    noise = rng.integers(0, 200, (height, width, 3))
    noise[..., label] += 55
    return noise.astype(np.uint8)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of fixed views on files of many shapes, some of them turned by EXIF."""
    top = tmp_path_factory.mktemp("native")
    rng = np.random.default_rng(0)
    for split, count in (("train", 12), ("test", 11)):
        for label, name in enumerate("abc"):
            folder = top / "data" / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                image = PIL.Image.fromarray(picture(rng, *SIZES[rng.integers(len(SIZES))], label))
                exif = PIL.Image.Exif()
                if number % 3 == 0:
                    exif[0x0112] = 6
                image.save(folder / f"{number}.png", exif=exif)
    cfg = runs.configure(
        data={
            "source": "folder", "root": str(top / "data"), "train_split": "train", "channels": 3,
            "eval_split": "test", "image_size": 16, "resampling": "antialiased_bilinear",
        },
        train={"batch_size": 8, "duration": "6 steps"},
        schedule={"warmup": 1},
        optimizer={"lr": 3e-3},
    )  # fmt: skip
    with runs.on_one_device():
        train_loop.train(cfg, top / "run")
    return top / "run"


def view_of(image):
    """The view of a Pillow image, by its own crop and resizing."""
    ratio = math.log(image.height / image.width)
    height, width = min(KNOWN, key=lambda one: abs(math.log(one[0] / one[1]) - ratio))
    if image.height * width > image.width * height:
        rows, columns = round(image.width * height / width), image.width
    else:
        rows, columns = image.height, round(image.height * width / height)
    top, left = (image.height - rows) // 2, (image.width - columns) // 2
    part = image.crop((left, top, left + columns, top + rows))
    kind = PIL.Image.Resampling.BILINEAR
    return np.asarray(part.resize((width, rows), kind).resize((width, height), kind))


@pytest.mark.parametrize("size", SIZES)
def test_a_view_is_the_middle_of_its_image(size):
    pixels = picture(np.random.default_rng(0), *size, 0)
    fit = native_aspect.FitNearest(KNOWN, "antialiased_bilinear")
    expected = view_of(PIL.Image.fromarray(pixels))
    np.testing.assert_array_equal(fit(pixels, np.random.default_rng(0)), expected)


def one_by_one(workdir, split="test"):
    """The logits, features and labels of every image, alone, by code of its own."""
    opened = loading.load(workdir)
    data, params = opened.config.data, jax.device_get(opened.params)
    (table,) = [name for name in params["position"] if name != "cls"]
    source = sources.open_source(data, split)
    logits, features, labels, programs = [], [], [], {}
    for index in range(len(source)):
        with PIL.Image.open(io.BytesIO(source[index].image)) as file:
            view = view_of(PIL.ImageOps.exif_transpose(file).convert("RGB"))
        height, width = view.shape[:2]
        grid = height // 4, width // 4
        positions = params["position"][table]
        square = positions[0, 1:].reshape(4, 4, -1)
        zoom = (grid[0] / 4, grid[1] / 4, 1)
        patches = scipy.ndimage.zoom(square.astype(np.float64), zoom, order=1)
        assert patches.shape[:2] == grid
        new = np.concatenate([positions[0, :1], patches.reshape(-1, patches.shape[2])])
        alone = params | {"position": {table: new[None].astype(np.float32)}}
        if (height, width) not in programs:
            model = models.create(opened.config.model, image_size=(height, width))
            programs[height, width] = jax.jit(model.apply)
        seen = ((view / 255 - 0.5) / 0.5).astype(np.float32)[None]
        found, out = programs[height, width](alone, seen)
        logits.append(np.asarray(found)[0])
        features.append(np.asarray(out["pre_logits"])[0])
        labels.append(source[index].label)
    return np.array(logits), np.array(features), np.array(labels), source


@pytest.fixture(scope="module")
def alone(trained):
    return one_by_one(trained)


def test_an_image_of_about_the_shape_is_taken_whole():
    """A hundred columns to a third of the rows: 33 rows would be right for 99 of them, too."""
    pixels = picture(np.random.default_rng(0), 33, 100, 0)
    found = native_aspect.Fit(16, 48)(pixels, np.random.default_rng(0))
    np.testing.assert_array_equal(found, transforms.resize(pixels, 16, 48, "bilinear"))


def test_shapes_are_few_and_have_as_many_patches():
    for grid in ((14, 14), (24, 24), (32, 32), (8, 16), (1, 1), (2, 2)):
        known = native_aspect.shapes(grid, (16, 16))
        most = grid[0] * grid[1]
        assert len(known) == len(set(known)) <= 2 * math.sqrt(most)
        assert {shape[::-1] for shape in known} == set(known)
        for height, width in known:
            assert height % 16 == width % 16 == 0
            patches = height * width // 256
            assert most - min(height, width) // 16 < patches <= most
        ratios = sorted(math.log(height / width) for height, width in known)
        if grid == (14, 14):
            assert len(known) == 15
            assert ratios[-1] == pytest.approx(math.log(4))
            assert np.diff(ratios).max() < 0.29  # so at most 14 % of a side is cut off


@pytest.mark.slow
def test_metrics_are_those_of_each_image_alone(trained, alone):
    logits, _, labels, _ = alone
    found = vit_jax.evaluate(trained, NATIVE)
    shifted = logits - logits.max(axis=1, keepdims=True)
    losses = np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(labels)), labels]
    assert found["test/count"] == len(labels) == 33
    assert found["test/top1"] == pytest.approx(np.mean(logits.argmax(axis=1) == labels))
    assert found["test/loss"] == pytest.approx(losses.mean(), abs=2e-6)
    fixed = vit_jax.evaluate(trained, {})
    assert fixed["test/loss"] != pytest.approx(found["test/loss"], abs=2e-5)


@pytest.mark.slow
def test_the_python_api(trained, alone):
    logits, features, _, source = alone
    opened = loading.load(trained, NATIVE)
    names = [source.name(index) for index in range(len(source))]
    np.testing.assert_allclose(opened.embed(names), features, atol=2e-5)
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    for index, one in enumerate(opened.predict(names, top=1)):
        assert one.image == names[index]
        assert one.top[0][1] == pytest.approx(float(probabilities[index].max()), abs=1e-5)
    with pytest.raises(
        decoding.BadImage, match=r"have views of \d shapes; give them one at a time"
    ):
        opened.preprocess(names)
    first, _ = opened.apply(opened.params, opened.preprocess(names[0]))
    np.testing.assert_allclose(first[0], logits[0], atol=2e-5)
    with pytest.raises(config.ConfigError, match="their number differs; set pre_logits"):
        opened.embed(names, features="tokens")


@pytest.mark.slow
def test_frozen_features_are_in_the_order_of_their_split(trained):
    """Few-shot draws images by their place."""
    overrides = NATIVE | {"evaluation.fewshot": "self", "evaluation.knn": "self"}
    cfg = loading.load(trained, overrides).config
    evaluation = open_evaluation(cfg)
    opened = loading.load(trained, overrides)
    (pair,) = task_sets.open_pairs(cfg, evaluation.runner)["fewshot"]
    extract = features.Extractor(evaluation.model, cfg.data)
    gathered, labels = extract(opened.params, pair.train, stop=lambda: False).gathered()
    _, alone, expected, _ = one_by_one(trained, "train")
    np.testing.assert_array_equal(labels, expected)
    np.testing.assert_allclose(gathered, alone, atol=2e-5)
    found = vit_jax.evaluate(trained, overrides)
    assert "fewshot/self/5shot" in found
    assert "knn/self/20nn/top1" in found


@pytest.mark.slow
def test_an_unreadable_image_counts_once(trained, tmp_path):
    rng = np.random.default_rng(0)
    for name in "abc":
        for split in ("train", "test"):
            (tmp_path / split / name).mkdir(parents=True)
            for number in range(3):
                pixels = picture(rng, 30, 20 + 9 * number, 0)
                cv2.imwrite(str(tmp_path / split / name / f"{number}.png"), pixels)
    (tmp_path / "test" / "b" / "1.png").write_bytes(b"\x89PNG\r\n\x1a\nbad")
    overrides = NATIVE | {"data.root": str(tmp_path)}
    with pytest.raises(config.UserError, match=r"b/1.png: is a truncated or damaged PNG; mend"):
        vit_jax.evaluate(trained, overrides)
    found = vit_jax.evaluate(trained, overrides | {"data.max_bad_examples": 1})
    assert found["test/count"] == 8


def test_a_plan_covers_every_image_once_with_one_shape_in_a_batch():
    source = sources.open_source(config.Data(source="synthetic", num_examples=70), "test")
    rng = np.random.default_rng(0)
    shown = [np.zeros((*SIZES[rng.integers(len(SIZES))], 3), np.uint8) for _ in range(70)]

    class Shown:
        classes = source.classes

        def __len__(self):
            return 70

        def __getitem__(self, index):
            return Record(shown[index], 0)

    for window in (None, 1, 3):
        plan = native_aspect.plan(Shown(), config.Data(), KNOWN, 8, window)
        images = plan.rows[plan.rows >= 0]
        assert sorted(images.tolist()) == list(range(70))
        for shape, row in zip(plan.shapes, plan.rows, strict=True):
            for index in row[row >= 0]:
                assert KNOWN[native_aspect.nearest(KNOWN, *shown[index].shape[:2])] == shape
        if window is not None:  # nothing is behind by more than a window
            firsts = [int(row[0]) // (window * 8) for row in plan.rows]
            assert firsts == sorted(firsts)


def test_sizes_of_headers_are_those_of_pixels():
    rng = np.random.default_rng(0)
    image = PIL.Image.fromarray(picture(rng, 24, 37, 0))
    files = {}
    for kind in ("JPEG", "PNG", "WEBP", "GIF", "BMP"):
        for number in range(10):  # 0 and 9 are none
            exif = PIL.Image.Exif()
            exif[0x0112] = number
            stream = io.BytesIO()
            image.save(stream, kind, **({} if kind in ("GIF", "BMP") else {"exif": exif}))
            files[kind, number] = stream.getvalue()
    pixels = np.asarray(image)
    for number in range(1, 9):
        for order in "<>":
            data = tiffs.tiff(pixels, photometric=2, orientation=number, order=order)
            files["TIFF", number, order] = data
    for name, data in files.items():
        decoded = decoding.decode_image(data, channels=3, max_pixels=10**6)
        assert decoding.size(data) == decoded.shape[:2], name
    with pytest.raises(decoding.BadImage, match="is a truncated or damaged"):
        decoding.size(b"no image at all")


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"position": "learned_2d", "registers": 2}, {"position": "none", "rotary": 100.0},
        {"position": "sincos_2d", "pooling": "map"},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("size", [(12, 20), (8, 32)])  # of fewer patches, and of as many
def test_any_size_is_a_model_of_that_size(options, size):
    from vit_jax import weights

    cfg = variants.complete(
        config.Model(patch_size=(4, 4), width=16, depth=2, mlp_dim=32, heads=2, num_classes=3)
    )
    cfg = dataclasses.replace(cfg, **options)
    model = models.create(cfg, image_size=(16, 16))
    params = model.init(jax.random.key(0))
    leaves, tree = jax.tree.flatten(params)  # zeros would hide what differs
    drawn = [jax.random.normal(jax.random.key(i), x.shape) / 4 for i, x in enumerate(leaves)]
    params = jax.tree.unflatten(tree, drawn)
    images = np.random.default_rng(0).standard_normal((2, *size, 3)).astype(np.float32)
    facts = weights.ModelSpec(model=cfg, data=config.Data(image_size=(16, 16)))
    other = models.create(cfg, image_size=size)
    fitted, _ = weights.fit_params(jax.device_get(params), facts, other, keep_head=True)
    expected, _ = jax.jit(other.apply)(fitted, images)
    found, _ = jax.jit(adapting.any_size(model).apply)(params, images)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(
    "command",
    [
        ["export", "--to=stablehlo", "--output=x.stablehlo"],
        ["inspect", "all"], ["inspect", "view"],
    ],
    ids=lambda parts: parts[1],
)  # fmt: skip
def test_other_commands_refuse_in_one_line(capsys, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = [*command, f"--checkpoint={WEIGHTS}", "--config.data.aspect=native"]
    assert cli.main(arguments) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("vit_jax: data.aspect=native: is for evaluate, embed and predict, not")
