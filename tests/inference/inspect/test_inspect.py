"""`vit_jax inspect`: figures and numbers of checkpoints of every kind, and a line for mistakes."""

import csv
import json
import pathlib
import re
import types

import cv2
import numpy as np
import pytest
from matplotlib.text import Text

import image_folders
import pages
import runs
import vit_reference
from vit_jax import cli, train_loop
from vit_jax.data import sampling
from vit_jax.inference import loading
from vit_jax.inference.inspect import figure_index, figures, measures, outputs, saliency
from vit_jax.models import positions
from vit_jax.studies import report

FIXTURES = pathlib.Path(__file__).parents[2] / "fixtures"
GOOGLE, RESNET = FIXTURES / "vit_tiny_token.npz", FIXTURES / "bit_tiny_legacy.npz"
EVERY = ["filters", "posemb", "attention-distance", "rollout", "attention", "features", "matches",
         "saliency"]  # fmt: skip


pytestmark = pytest.mark.usefixtures("one_device")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A folder of three images, of other sizes than any model takes."""
    return image_folders.draw(tmp_path_factory.mktemp("photos"), "a.png", "b.png", "c.png")


def inspect(what, checkpoint, *arguments):
    return cli.main(["inspect", what, f"--checkpoint={checkpoint}", *map(str, arguments)])


def numbers(folder, what):
    return dict(np.load(folder / f"{what}.npz"))


@pytest.mark.slow
def test_everything_of_a_google_file(photos, tmp_path, capsys):
    out = tmp_path / "inspect"
    assert inspect("all", GOOGLE, f"{photos}", f"--output={out}", "--format=both") == 0
    names = [*EVERY[:4], "attention-1", "attention-2", "attention-3", *EVERY[5:], "saliency-curves"]
    files = {f"{name}.{form}" for name in names for form in ("png", "svg")}
    files |= {f"{what}.npz" for what in EVERY} | {
        f"{what}.csv" for what in ("attention-distance", "matches", "saliency")
    }
    assert {pathlib.Path(line).name for line in capsys.readouterr().out.split()} == files
    assert {path.name for path in out.iterdir()} == files | {"figures.json"}
    for name in names:
        image = cv2.imread(str(out / f"{name}.png"))
        assert min(image.shape[:2]) > 100
        assert image.std() > 10
        assert b"<svg" in (out / f"{name}.svg").read_bytes()
    pages.write_run(tmp_path)
    page = pages.Page.read(report.write_report([tmp_path], None, images=0)[0])
    assert page.count("img") == len(names)
    assert "Inside the model" in page.words

    # All numbers once more, from the weights and the files, in float64.
    opened = loading.load(GOOGLE)
    height, width = opened.config.data.image_size
    views = [cv2.imread(str(photos / f"{name}.png"))[:, :, ::-1] for name in "abc"]
    views = np.stack([cv2.resize(view, (width, height)) for view in views])
    mean, std = (np.asarray(v) for v in (opened.config.data.mean, opened.config.data.std))
    images = (views / 255 - mean) / std
    *_, weights = vit_reference.forward(opened.config.model, opened.params, images)
    maps = numbers(out, "attention")["attention"]
    np.testing.assert_allclose(
        maps.reshape(3, *weights.shape[0:3:2], -1),
        weights.swapaxes(0, 1)[:, :, :, 0, 1:],
        rtol=0,
        atol=2e-6,
    )
    assert numbers(out, "attention")["images"].tolist() == [f"{photos}/{n}.png" for n in "abc"]
    rolled = numbers(out, "rollout")["rollout"].reshape(3, -1)
    tokens = weights.shape[-1]
    for image in range(3):
        product = np.eye(tokens)
        for layer in weights[:, image].mean(axis=1):
            product = (layer + np.eye(tokens)) / 2 @ product
        np.testing.assert_allclose(rolled[image], product[0, 1:], rtol=0, atol=2e-6)
    columns = maps.shape[-1]
    place = np.array([divmod(i, columns) for i in range(tokens - 1)]) * (height / maps.shape[-2])
    far = np.linalg.norm(place[:, None] - place[None], axis=-1)
    reach = (weights[..., 1:, 1:] * far).sum(-1).mean(-1).mean(1)
    np.testing.assert_allclose(numbers(out, "attention-distance")["pixels"], reach, rtol=1e-5)
    with (out / "attention-distance.csv").open() as file:
        header, *rows = csv.reader(file)
    assert header == ["layer", "head", "pixels"]
    for layer, head, pixels in rows:
        assert float(pixels) == pytest.approx(reach[int(layer) - 1, int(head) - 1], abs=1e-4)
    assert len(rows) == reach.size


def test_figures_of_many_images_show_the_first(photos, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(outputs, "DRAWN", 2)
    shapes = []

    def counted(draw):
        return lambda images, *rest: (
            shapes.append((len(images), *map(len, rest[:1]))) or draw(images, *rest)
        )

    for name in ("rollout", "features", "saliency"):
        monkeypatch.setattr(figures, name, counted(getattr(figures, name)))
    arguments = [f"{photos}", f"--output={tmp_path}", "--count=3"]
    for kind in ("rollout", "attention", "features", "saliency"):
        assert inspect(kind, GOOGLE, *arguments) == 0
        assert len(numbers(tmp_path, kind)["images"]) == 3
        assert "figures show at most 2 images; the numbers are of all" in capsys.readouterr().err
    assert shapes == [(2, 2)] * 3
    assert len(list(tmp_path.glob("attention-*.png"))) == 2
    with (tmp_path / "saliency.csv").open() as file:
        assert len({row["image"] for row in csv.DictReader(file)}) == 3
    assert inspect("attention-distance", GOOGLE, *arguments) == 0
    assert "figures show" not in capsys.readouterr().err


def test_a_resnet_has_filters_and_maps_for_a_class(tmp_path, capsys, monkeypatch):
    arguments = [RESNET, f"--output={tmp_path / 'out'}"]
    assert inspect("all", *arguments) == 0
    assert {path.stem for path in (tmp_path / "out").glob("*.npz")} == {"filters"}
    errors = capsys.readouterr().err
    said = re.findall("^(.*) left out: a ResNet has no ", errors, re.MULTILINE)
    assert said == EVERY[1:5]
    for what in EVERY[5:]:
        assert f"{what} left out: needs images" in errors
    monkeypatch.delitem(outputs.KINDS, "filters")
    assert inspect("all", *arguments) == 2
    line = "vit_jax: inspect all: nothing of this model can be drawn"
    assert capsys.readouterr().err.splitlines()[-1] == line


def test_without_images_what_needs_none_is_drawn(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert inspect("all", GOOGLE) == 0
    folder = tmp_path / "inspect" / "vit_tiny_token"
    assert {path.stem for path in folder.glob("*.npz")} == {"filters", "posemb"}
    said = capsys.readouterr().err.splitlines()
    for what in EVERY[2:]:
        assert f"{what} left out: needs images: name files or folders" in said


@pytest.mark.slow
def test_a_run_is_looked_at_with_its_own_images(tmp_path, capsys):
    workdir = tmp_path / "run"
    plain = {"duration": "4 steps", "ema": None, "clip_norm": None}
    cfg = runs.configure(
        model={"dropout": 0.0}, data={"rotation": 0.0}, train=plain, evaluation={"every": None}
    )
    train_loop.train(cfg, workdir)
    capsys.readouterr()
    assert inspect("all", workdir, "--count=5") == 0
    folder = workdir / "inspect"
    listed = json.loads((folder / "figures.json").read_text())
    assert sorted(one["what"] for one in listed) == sorted([*EVERY, "saliency", *["attention"] * 4])
    assert {one["step"] for one in listed} == {4}
    named = numbers(folder, "attention-distance")["images"].tolist()
    drawn = sampling.draw_indices(100, 5, 0)
    assert named == [f"digits test[{i}]" for i in drawn]

    # One kind anew takes the place of that kind alone.
    assert inspect("attention", workdir / "checkpoints", "--count=1") == 0
    listed = json.loads((folder / "figures.json").read_text())
    assert sorted(one["what"] for one in listed) == sorted([*EVERY, "saliency"])

    page, words = report.write_report([workdir], None, images=0)
    page = pages.Page.read(page)
    assert "Inside the model" in page.words
    assert page.count("img") == len(listed)
    assert all(address.startswith("data:image/png;base64,") for address in page.addresses)
    assert "![inspect/rollout.png](inspect/rollout.png)" in words.read_text()
    assert page.text.count("Step 4.") == len(listed)


def test_new_figures_take_the_place_of_those_of_their_kind(tmp_path):
    def add(*pairs):
        figures = [figure_index.Figure(what=what, file=file, caption="") for what, file in pairs]
        figure_index.add_figures(tmp_path, figures)
        return [(one.what, one.file) for one in figure_index.read_index(tmp_path)]

    add(("filters", "a.png"), ("rollout", "b.png"))
    new = ("filters", "c.png"), ("posemb", "d.png")
    assert add(*new) == [("rollout", "b.png"), *new]


def test_what_is_damaged_in_the_folder_is_a_line_of_the_report(tmp_path):
    pages.write_run(tmp_path)
    (tmp_path / "inspect").mkdir()
    index = tmp_path / "inspect" / "figures.json"

    def page(*entries):
        index.write_text(json.dumps(entries))
        return pages.Page.read(report.write_report([tmp_path], None, images=0)[0])

    entry = {"what": "posemb", "file": "posemb.png", "caption": "<b>&", "step": None}
    assert "inspect/posemb.png: is missing." in page(entry).words
    (tmp_path / "inspect" / "posemb.png").write_bytes(b"GIF89a")
    assert "inspect/posemb.png: is not a PNG." in page(entry).words
    (tmp_path / "inspect" / "posemb.png").write_bytes(cv2.imencode(".png", np.eye(9))[1].tobytes())
    assert "<b>&" in page(entry).words
    for wrong in ({"a": 1}, 3, entry | {"file": "../config.json"}, entry | {"file": "a)(b.png"}):
        assert "inspect/figures.json: cannot be read (ValueError)." in page(wrong).words
    index.write_text("[{")
    assert (
        "Inside the model"
        in pages.Page.read(report.write_report([tmp_path], None, images=0)[0]).words
    )


def test_mistakes_are_one_line(photos, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("sub", "empty"):
        (tmp_path / folder).mkdir()
    photo, file = photos / "a.png", tmp_path / "file"
    (tmp_path / "sub" / "cut.png").write_bytes(photo.read_bytes()[:99])
    file.touch()
    for checkpoint, what, words, line in (
        (GOOGLE, "rollout", "none", "none: no such file or folder"),
        (GOOGLE, "view", "none", "none: no such file or folder"),
        (GOOGLE, "rollout", "empty", "empty: holds no .jpg"),
        (GOOGLE, "all", "sub", "cut.png: is a truncated or damaged PNG"),
        (GOOGLE, "saliency", "", "inspect saliency: needs images: name files or folders"),
        (GOOGLE, "view", "", "inspect view: needs images"),
        (GOOGLE, "matches", photo, "matches: needs two images: name both"),
        (GOOGLE, "filters", "--output=file/x", "file is no folder"),
        (GOOGLE, "saliency", "file --output=file/x", "file is no folder"),
        (
            GOOGLE,
            "rollout",
            "--output=cat.PNG",
            "--output=cat.PNG: is a folder, for several files;",
        ),
        (GOOGLE, "view", "--output=a.html --serve", "--output=a.html: --serve writes no file"),
        (GOOGLE, "view", "--format=svg", "--format=svg: `inspect view` draws no figures"),
        (GOOGLE, "view", "--steps=8", "--steps=8: only for `inspect saliency`"),
        (GOOGLE, "all", "--serve=80", "--serve=80: only for `inspect view`"),
        (GOOGLE, "filters", "--count=3", "--count=3: `inspect filters` shows no images; leave it"),
        (GOOGLE, "filters", "--seed=3", "--seed=3: `inspect filters` shows no images; leave it"),
        (GOOGLE, "posemb", photo, f"{photo}: `inspect posemb` shows no images; leave it out"),
        (GOOGLE, "rollout", "--class=1", "--class=1: only for `inspect saliency`"),
        (GOOGLE, "saliency", "--class=cat", "--class=cat: the model has no such class, of 0 to "),
        (GOOGLE, "filters", "--step=3", "--step=3: "),
        (RESNET, "posemb", "", "inspect posemb: a ResNet has no position embedding"),
        (RESNET, "attention", "", "inspect attention: a ResNet has no tokens"),
        (RESNET, "features", photo, "inspect features: a ResNet has no"),
        (RESNET, "view", photo, "a ResNet has no tokens"),
        ("nothing.npz", "filters", "", "nothing.npz"),
        ("ViT-B_17", "filters", "", "ViT-B_17"),
    ):
        assert inspect(what, checkpoint, *str(words).split()) == 2, line
        errors = capsys.readouterr().err
        assert line in errors.splitlines()[-1]
        assert "Traceback" not in errors
    assert {path.name for path in tmp_path.iterdir()} == {"sub", "empty", "file"}
    with pytest.raises(SystemExit) as stop:
        inspect("filter", GOOGLE)
    assert stop.value.code == 2
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert all(what in errors for what in (*EVERY, "all"))


@pytest.fixture
def words(monkeypatch):
    """A function of a figure that returns the words drawn in it, with their places."""
    drawn, draw = [], Text.draw

    def note(text, renderer):
        if text.get_visible() and text.get_text().strip():
            drawn.append((text.get_text(), text.get_window_extent(renderer)))
        draw(text, renderer)

    monkeypatch.setattr(Text, "draw", note)

    def words(figure):
        drawn.clear()
        figure.draw_without_rendering()
        return list(drawn)

    return words


@pytest.mark.parametrize("side", [4, 14])
def test_colors_of_positions_span_what_differs(side):
    """Sin-cos embeddings are all alike (0.6 and more): of -1 to 1 they took a fifth of the map."""
    table = np.asarray(positions.sincos_2d(side, side, 64)).reshape(side, side, 64)
    cosines = measures.position_similarity(table)[None]
    flat = cosines.reshape(side**2, side**2).astype(float)
    others = [flat[a, b] for a in range(side**2) for b in range(side**2) if a != b]
    figure = figures.posemb(cosines)
    (image,) = figure.axes[0].images
    assert image.get_clim() == pytest.approx((min(others), max(others)), abs=1e-6)
    (least, greatest), itself = image.get_clim(), image.to_rgba(np.array([1.0]))[0]
    np.testing.assert_allclose(itself, (0.75, 0.75, 0.75, 1.0))  # gray: it is beyond the colors
    shades = image.to_rgba(np.array([least, greatest]))[:, :3] @ [0.2126, 0.7152, 0.0722]
    assert shades[1] - shades[0] > 0.7
    assert "itself" in figure.axes[-1].get_ylabel()


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_positions_that_are_all_alike_are_drawn(value, words):
    figure = figures.posemb(np.full((2, 3, 2, 3, 2), value, np.float32))
    low, high = figure.axes[0].images[0].get_clim()
    assert low < value < high
    assert words(figure)


def test_maps_color_the_cells_of_their_image():
    view, mask = np.full((4, 6, 3), 100, np.uint8), np.float32([[0, 1, 0], [0, 0, 0]])
    figure = figures.saliency(view[None], ["a"], [{"grad": (mask, "0.5")}])
    assert [axes.get_title() for axes in figure.axes] == ["Input", "Grad"]
    assert [axes.get_xlabel() for axes in figure.axes] == ["a", "0.5"]
    image = np.asarray(figure.axes[1].images[0].get_array()).astype(float)
    rows, columns = image.shape[0] // 2, image.shape[1] // 3
    cells = image.reshape(2, rows, 3, columns, 3).mean(axis=(1, 3, 4))
    assert np.unravel_index(cells.argmax(), cells.shape) == (0, 1)
    assert np.ptp(np.delete(cells.ravel(), 1)) < 1e-9


def test_a_random_order_is_dashed_among_curves():
    shares = np.linspace(0, 1, 3)
    curve = saliency.Curve(shares=shares, deletion=shares, insertion=shares)
    figure = figures.curves({"Grad-CAM": curve, "random order": curve})
    for axes in figure.axes:
        assert [line.get_linestyle() for line in axes.get_lines()] == ["-", "--"]


def test_light_follows_the_mask():
    view = np.full((4, 4, 1), 200, np.uint8)
    flat = figures.shade(view, np.full((2, 2), 0.25, np.float32))
    assert flat.shape == (224, 224, 3)
    assert (flat == 200).all()
    mask = np.zeros((4, 4), np.float32)
    mask[:, :2] = 0.1
    left_lit = figures.shade(view, mask)
    assert left_lit[:, 0].min() > 190
    assert left_lit[:, -1].max() < 10
    assert (np.diff(left_lit[100, :, 0].astype(int)) <= 0).all()
    top_lit = figures.shade(view, mask.T)
    np.testing.assert_allclose(top_lit, left_lit.transpose(1, 0, 2), atol=1)


@pytest.mark.parametrize(("mae", "said"), [(None, False), (False, False), (True, True)])
def test_what_a_model_predicts_is_drawn_for_masked_models_alone(mae, said, monkeypatch):
    required, shown = [], types.SimpleNamespace(views="views", names=["a"])
    monkeypatch.setattr(measures, "require_masked", required.append)
    monkeypatch.setattr(measures, "predict_masked", lambda opened, views: {"found": views})
    monkeypatch.setattr(figures, "reconstruction", lambda found: "figure")
    chosen = None if mae is None else types.SimpleNamespace(norm_pix=mae)
    opened = types.SimpleNamespace(config=types.SimpleNamespace(mae=chosen))
    subject = types.SimpleNamespace(
        opened=opened,
        counts={"reconstruct": 1},
        pictures=types.SimpleNamespace(first=lambda n: shown),
    )
    answer = outputs._reconstruct(subject)
    assert required == [opened]
    (figure, caption) = answer.figures["reconstruct"]
    assert figure == "figure"
    assert caption.endswith("deviation of the true one.") == said
    assert answer.arrays["found"] == "views"


def test_every_image_asked_for_is_reconstructed():
    dark = np.zeros((19, 4, 4, 1), np.uint8)
    found = dict.fromkeys(("original", "corrupted", "predicted"), dark)
    figure = figures.reconstruction(found | {"masked": dark[..., 0] > 0})
    drawn = [axes.images[0].get_array()[::119, 0, 0].tolist() for axes in figure.axes]
    assert drawn == [[0] * 5] * 3 + [[0] * 4 + [255]]
