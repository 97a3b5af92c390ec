"""`vit_jax report`: pages of runs and transfers, whole, partial and damaged."""

import collections
import dataclasses
import json
import re
import subprocess
import sys
import types
import urllib.parse

import jax
import numpy as np
import pytest
from PIL import Image

import browsing
import pages
import runs
from vit_jax import cli, config, train_loop
from vit_jax.data import sources
from vit_jax.data.split_roles import Role
from vit_jax.inference import conversion, loading
from vit_jax.inference.inspect import figure_index
from vit_jax.inference.loaded_model import Prediction
from vit_jax.pages import html, markdown
from vit_jax.pages.document import Confusion, Sample
from vit_jax.runtime.goodput import GoodputLog
from vit_jax.studies import report
from vit_jax.studies.report import page as report_page
from vit_jax.studies.report import run_data, run_section, transfer_section
from vit_jax.training import sharding

RESULTS = {"test/top1": 0.8125, "test/top5": 0.98, "test/loss": 0.5432, "test/count": 100,
           "real/top1": 0.8642}  # fmt: skip


def page_of(*directories, images=0, out=None):
    path, words = report.write_report(directories, out, images=images)
    return pages.Page.read(path), words.read_text()


def assert_stands_alone(page):
    assert all(a.startswith("data:image/png;base64,") for a in page.addresses)
    assert {"script", "link", "iframe", "object", "use"}.isdisjoint(t for t, _ in page.elements)


def test_the_numbers_of_a_run_are_those_of_its_files(tmp_path):
    cfg = pages.write_run(tmp_path, results=RESULTS)
    GoodputLog(tmp_path, 0, age=100).update(25, {"step": 80.0, "compile": 20.0})
    page, words = page_of(tmp_path)
    assert_stands_alone(page)
    assert page.words[:2] == ["mine", "mine"]  # title and heading
    for number in ("81.25 %", "98.00 %", "0.5432", "of 100 test images", "86.42 %", "25",
                   "160 parameters", "200 images of digits", "8 \u00d7 TPU v3, tpu-0",
                   "jax 0.10.2", "25.0% of the time",
                   "goodput 80% of 1m40s (compile 20%)"):  # fmt: skip
        assert number in page.text, number
    # 25 steps of 32 images at 64 images per second.
    assert "13s" in page.words or "12s" in page.words
    assert "64" in page.words
    assert page.count("svg", "chart") == 4
    for key, value in (
        ("optimizer.lr", None),
        ("train.ema", "0.9"),
        ("schedule.warmup", "3 steps"),
    ):
        assert (key in page.words) == (value is not None)
        assert value is None or page.words[page.words.index(key) + 1] == value
    assert cfg.train.ema == 0.9
    for line in ("| Top-1 accuracy | 81.25 % of 100 test images |", "| real top-1 | 86.42 % |"):
        assert line in words
    assert "finished" in page.words


def test_accepted_changes_are_listed(tmp_path):
    pages.write_run(tmp_path, record=False)
    pages.write_record(tmp_path, 25, changes=["step 20: data.root: other examples"])
    line = "Resumed with a change (--accept) at step 20: data.root: other examples."
    words = page_of(tmp_path)[0].words
    assert line in words
    assert "Training time" in words
    pages.write_record(tmp_path, 30, changes=["step 20: the options (train.batch_size: 8 -> 4)"])
    assert "Training time" not in page_of(tmp_path)[0].words


def test_a_run_of_the_catalog_stands_beside_the_paper(tmp_path):
    pages.write_run(tmp_path, name="finetune/ViT-B_16-i21k-imagenet", results=RESULTS)
    page, words = page_of(tmp_path)
    assert "| top-1 | 83.97 | 81.25 | -2.72 | Table 5 |" in words
    assert "| ReaL | 88.35 | 86.42 | -1.93 | Table 5 |" in words
    assert "-2.72" in page.words


def test_a_finished_run_that_measured_nothing(tmp_path):
    pages.write_run(tmp_path)
    page, _ = page_of(tmp_path)
    assert "Nothing was evaluated." in page.words


def test_what_is_missing_or_damaged_is_a_line(tmp_path):
    pages.write_run(tmp_path, record=False)
    page, _ = page_of(tmp_path, images=8)
    for line in ("Nothing has been evaluated yet.", "checkpoints: none has been saved yet.",
                 "No predictions: no checkpoint has been saved yet."):  # fmt: skip
        assert line in page.words
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 1, "train/loss": null}\n{"step": 1, "test/auroc": null, "test/count": 8}\n'
    )
    page, _ = page_of(tmp_path, images=8)
    assert "Not a number, so not shown: auroc." in page.words
    (tmp_path / "metrics.jsonl").write_bytes(
        b'{"step": 1, "train/loss": 2}\n[3]\n\xff{"st\n{"a":1}'
    )
    (tmp_path / "config.json").write_text("{")
    pages.write_record(tmp_path, 25)
    (tmp_path / "checkpoints" / "00000025" / "commit.json").write_text("nonsense")
    page, _ = page_of(tmp_path)
    problems = [w for w in page.words if w.startswith(("config.json", "checkpoints"))]
    assert len(problems) == 3
    assert all(len(problem) < 120 and "\n" not in problem for problem in problems)
    assert "A run without a readable config." in page.words
    (tmp_path / "config.json").unlink()
    (tmp_path / "metrics.jsonl").unlink()
    page, _ = page_of(tmp_path)
    assert "config.json: is missing." in page.words
    assert page.words.count("nothing measured yet") == 4


def test_a_folder_that_is_no_run_is_refused_and_weights_alone_are_called_that(tmp_path):
    folder = tmp_path / "timm"
    folder.mkdir()
    (folder / "config.json").write_text('{"architecture": "vit_tiny_patch16_224"}')
    with pytest.raises(config.ConfigError, match=r"timm: holds no run: config\.json: cannot be"):
        page_of(folder)
    cfg = config.to_dict(runs.configure())
    pages.write_record(tmp_path / "copy", 25, origin="digits: step 20, the newest", config=cfg)
    page, words = page_of(tmp_path / "copy")
    assert "weights alone, written from digits: step 20, the newest." in page.text
    assert "## Curves" not in words
    assert "is missing" not in page.text


@pytest.mark.parametrize(
    ("stored", "problem"),
    [
        ({"model": {"architecture": "of_others"}}, "model.architecture=of_others: no such model"),
        (None, "'config'"),
    ],
)
def test_weights_alone_whose_config_cannot_be_read_are_noted(stored, problem, tmp_path):
    more = {} if stored is None else {"config": stored}
    pages.write_record(tmp_path, 25, origin="mean of a, b", **more)
    page, _ = page_of(tmp_path)
    assert "A run without a readable config." in page.words
    assert f"checkpoints: cannot be read ({problem}" in page.text


def test_a_run_without_its_config_has_that_of_its_newest_checkpoint(tmp_path):
    pages.write_run(tmp_path, name="mine", record=False)
    file = tmp_path / "config.json"
    pages.write_record(tmp_path, 25, config=json.loads(file.read_text()))
    whole = run_data.read_run(tmp_path)
    file.write_text(json.dumps(json.loads(file.read_text()) | {"seed": 7}))
    found = run_data.read_run(tmp_path)
    assert (found.cfg, found.problems) == (
        whole.cfg,
        ["config.json: is not that of the newest checkpoint, which is shown (seed: 0 -> 7)"],
    )
    file.unlink()
    found = run_data.read_run(tmp_path)
    assert (found.cfg, found.steps) == (whole.cfg, whole.steps)
    assert found.problems == ["config.json: is missing"]


@pytest.mark.slow
def test_every_cut_of_the_files_of_a_run_makes_a_page(tmp_path):
    pages.write_run(tmp_path, results=RESULTS)
    files = [tmp_path / "config.json", tmp_path / "metrics.jsonl",
             tmp_path / "checkpoints" / "00000025" / "commit.json"]  # fmt: skip
    for file in files:
        whole = file.read_bytes()
        for length in range(0, len(whole), max(len(whole) // 12, 1)):
            file.write_bytes(whole[:length])
            page_of(tmp_path)
        file.write_bytes(whole)


def test_a_transfer_has_its_choice_and_the_papers_number(tmp_path):
    pages.write_transfer(tmp_path)
    for place in ("choose/vit-lr0.003", "choose/vit-lr0.01", "final/seed0"):
        pages.write_run(tmp_path / place, results=RESULTS)
    page, words = page_of(tmp_path)
    assert_stands_alone(page)
    # Table 5: 98.95.
    # Of 98.62, 98.74, 98.86: the deviation is 0.12, and 4.3027 standard errors are 0.298.
    assert "| top-1 | 98.74 ± 0.30 | 3 | 98.95 | -0.21 | Table 5 |" in words
    assert "± is half the 95 % confidence interval of the mean over n seeds" in words
    assert (
        "| **vit** | **0.01** | **0** | **done** | **93.00 %** | **0.2500** | **1m02s** |" in words
    )
    interval = "± 0.30 (95 % interval), 3 runs"
    for number in ("98.74 %", interval, "0.01", "of 4", "3m13s", "8 \u00d7 TPU v3, tpu-0"):
        assert number in page.words, number
    assert "| **vit** | **0.01** | **93.00 %** |  | **1** |" in words
    assert page.count("tr", "highlighted") == 2  # of the candidates and of their cells
    assert page.count("svg", "chart") == 3  # held-out accuracy by rate; losses of both stages
    (tmp_path / "transfer.json").write_text('{"cells": [')
    page, _ = page_of(tmp_path)
    assert any(w.startswith("transfer.json: cannot be read") for w in page.words)
    pages.write_transfer(tmp_path, results=None)
    assert "Compared with the paper" not in page_of(tmp_path)[0].words


@pytest.mark.parametrize("place", ["../a", "/etc", "link", ".", ""])
def test_a_cell_outside_of_the_directory_of_its_transfer_is_not_read(tmp_path, place):
    pages.write_run(tmp_path / "a", results=RESULTS)
    (tmp_path / "transfer").mkdir()
    (tmp_path / "transfer/link").symlink_to(tmp_path / "a")
    cells = [pages.TRANSFER["cells"][2] | {"directory": place}]
    pages.write_transfer(tmp_path / "transfer", cells=cells)
    (problem,) = run_data.read_transfer(tmp_path / "transfer").problems
    assert problem.startswith("transfer.json: cannot be read (directory")
    assert "81.25 %" not in page_of(tmp_path / "transfer")[0].text


def test_several_runs_are_compared_and_then_shown(tmp_path):
    pages.write_run(tmp_path / "a", results=RESULTS)
    pages.write_run(tmp_path / "b", results=RESULTS | {"test/top1": 0.5})
    values = json.loads((tmp_path / "b" / "config.json").read_text())
    values["optimizer"]["lr"] = 0.5
    (tmp_path / "b" / "config.json").write_text(json.dumps(values))
    page, words = page_of(tmp_path / "a", tmp_path / "b", out=tmp_path / "both.html")
    assert (tmp_path / "both.md").read_text() == words
    assert "| optimizer.lr | 0.001 | 0.5 |" in words
    assert words.index("81.25 %") < words.index("50.00 %")
    assert page.count("svg", "chart") == 5 + 4 + 4
    titles = [line.removeprefix("## ") for line in words.splitlines() if line.startswith("## ")]
    assert titles == [
        "Results",
        "Curves",
        "Where they differ",
        str(tmp_path / "a"),
        str(tmp_path / "b"),
    ]
    legend = [attrs["class"] for tag, attrs in page.elements if tag == "i"][:2]
    assert legend == ["key solid c0", "key solid c1"]


@pytest.mark.parametrize("place", ["a", "my pages"])
def test_the_pictures_of_a_run_are_linked_from_where_the_page_is(place, tmp_path):
    """`curves.png` would be that of the run that the page is beside, or nothing."""
    drawn = {name: figure_index.MAGIC + bytes(16) + name.encode() for name in "ab"}
    for name, png in drawn.items():
        run = tmp_path / name
        pages.write_run(run, results=RESULTS)
        (run / "curves.png").write_bytes(name.encode())
        (run / "inspect").mkdir()
        (run / "inspect/filters.png").write_bytes(png)
        one = figure_index.Figure(what="filters", file="filters.png", caption="Filters.")
        figure_index.add_figures(run / "inspect", [one])
    (tmp_path / place).mkdir(exist_ok=True)
    _, words = page_of(tmp_path / "a", tmp_path / "b", out=tmp_path / place / "report.html")
    links = re.findall(r"!\[.*\]\((.*)\)", words)
    found = [(tmp_path / place / urllib.parse.unquote(one)).read_bytes() for one in links]
    assert found == [b"a", drawn["a"], b"b", drawn["b"]]


def confusion(classes, pairs):
    return Confusion(classes=classes, counts=collections.Counter(pairs))


HOSTILE = "</td><script>alert('x')</script>|`*_a\"&amp;"


def hostile_document(tmp_path):
    pages.write_run(tmp_path, name=HOSTILE, results=RESULTS)
    sample = Sample(
        name=HOSTILE, png=b"png", truth=HOSTILE, top=[(HOSTILE + "2", 0.5)], right=False
    )
    predictions = run_section.Predictions(
        seen=1, total=1, samples=[sample], mistakes=[sample], wrong=1,
        confusion=confusion([HOSTILE, HOSTILE + "2"], [(HOSTILE, HOSTILE + "2")]),
    )  # fmt: skip
    made = report_page.document([run_data.read_directory(tmp_path)], {0: predictions})
    return dataclasses.replace(made, facts={"by": HOSTILE})


def test_names_are_shown_as_they_are(tmp_path):
    document = hostile_document(tmp_path)
    page = pages.Page(html.page(document))
    assert_stands_alone(page)
    assert HOSTILE in page.words
    assert f"is {HOSTILE}" in page.words
    assert {a["alt"] for t, a in page.elements if t == "img"} == {HOSTILE}
    words = markdown.page(document)
    assert not re.search(r"(?<!\\)[<>]", words)
    rows = [line for line in words.splitlines() if line.startswith("|")]
    assert all(len(re.findall(r"(?<!\\)\|", row)) in (3, 4, 5) for row in rows)


def test_a_confusion_of_many_classes_is_a_table():
    classes = [f"class {k}" for k in range(51)]
    pairs = (
        [("class 1", "class 2")] * 5 + [("class 3", "class 0")] * 9 + [("class 4", "class 4")] * 99
    )
    many = confusion(classes, pairs)
    assert [row[2] for row in many.commonest().rows] == ["9", "5"]
    page = pages.Page(html.render_block(many))
    assert page.count("svg") == 0
    assert page.words == ["true class", "taken for", "images", "class 3", "class 0", "9",
                          "class 1", "class 2", "5"]  # fmt: skip
    few = pages.Page(html.render_block(confusion(classes[:50], pairs)))
    assert few.count("td", "hit") == 1
    assert few.count("td", "miss") == 2
    assert "class 3 taken for class 0: 9" in [attrs.get("title") for _, attrs in few.elements]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A short run on one device: programs for eight compile slowly."""
    workdir, create = tmp_path_factory.mktemp("runs") / "digits", sharding.create_mesh
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharding, "create_mesh", lambda fsdp, *_: create(fsdp, jax.devices()[:1]))
        outcome = train_loop.train(runs.configure(train={"duration": "10 steps"}), workdir)
    return workdir, outcome


@pytest.mark.slow
def test_without_predictions_no_jax_is_imported(trained, tmp_path):
    workdir, _ = trained
    code = (
        "import sys\nfrom vit_jax import cli\n"
        f"words = ['report', {str(workdir)!r}, '--no-predictions', '--output={tmp_path}']\n"
        "code = cli.main(words)\n"
        "heavy = {'jax', 'flax', 'orbax', 'cv2', 'matplotlib', 'grain'} & set(sys.modules)\n"
        "sys.exit(code or (repr(heavy) if heavy else 0))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=runs.ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == [str(tmp_path / "report.html"), str(tmp_path / "report.md")]


@pytest.mark.parametrize("output", ["mine.html", "mine.md"])
def test_either_file_may_be_named(output, tmp_path):
    pages.write_run(tmp_path / "run")
    written = report.write_report([tmp_path / "run"], tmp_path / output, images=0)
    assert written == (tmp_path / "mine.html", tmp_path / "mine.md")
    assert all(path.is_file() for path in written)


def test_mistakes_are_one_line(tmp_path, capsys):
    for arguments, words in (
        ([tmp_path / "none"], "no such directory"),
        ([tmp_path], "holds no run"),
    ):
        assert cli.main(["report", *map(str, arguments)]) == 2
        err = capsys.readouterr().err
        assert words in err
        assert err.count("\n") == 1
    pages.write_run(tmp_path / "run")
    (tmp_path / "file").write_text("")
    with pytest.raises(config.ConfigError, match="--output=.*cannot be written"):
        report.write_report([tmp_path / "run"], tmp_path / "file" / "x.html", images=0)
    assert cli.main(["report", str(tmp_path / "run"), "--config.seed=1"]) == 2


@pytest.mark.slow
@pytest.mark.skipif(browsing.BROWSER is None, reason="no chromium here: apt-get install chromium")
@pytest.mark.parametrize("width", [1280, 500])
def test_a_browser_shows_the_page_without_scrolling_sideways(trained, tmp_path, width):
    path, _ = report.write_report([trained[0]], tmp_path, images=100)
    # A script of the test's own writes what the browser made of the page into its title.
    probe = (
        "<script>addEventListener('load', () => {"
        "const wide = document.documentElement.scrollWidth > innerWidth;"
        "const broken = [...document.images].filter(i => !i.naturalWidth).length;"
        "const flat = [...document.querySelectorAll('svg')].filter(s => s.clientHeight < 100);"
        "document.title = `wide ${wide} broken ${broken} flat ${flat.length} "
        "images ${document.images.length}`;});</script></body>"
    )
    probed = tmp_path / "probed.html"
    probed.write_text(browsing.allowing(path.read_text().replace("</body>", probe), probe))
    done = subprocess.run(
        [browsing.BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu",
         f"--window-size={width},900",
         f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", f"file://{probed}"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    title = re.search("<title>(.*?)</title>", done.stdout)[1]
    images = pages.Page.read(path).count("img")
    assert title == f"wide false broken 0 flat 0 images {images}"


def test_the_rates_of_a_choice_are_points_with_their_intervals(tmp_path):
    cells = [
        {"stage": "choose", "setup": "vit", "lr": lr, "seed": seed, "state": "done",
         "directory": f"choose/{lr}-{seed}", "results": {"top1": top1}}
        for lr, values in ((0.003, (0.9, 0.92)), (0.01, (0.94, 0.94))) for seed, top1 in
        enumerate(values)
    ]  # fmt: skip
    pages.write_transfer(tmp_path, cells=cells)
    stored = run_data.read_transfer(tmp_path)
    chart = transfer_section._rates(stored)
    assert (chart.log_x, chart.percent) == (True, True)
    (series,) = chart.series
    assert series.points == [(0.003, pytest.approx(0.91)), (0.01, pytest.approx(0.94))]
    # Of two values Student's factor is 12.706, and the standard error half their distance.
    assert series.errors == [pytest.approx(12.706 * 0.01, rel=1e-4), pytest.approx(0)]
    assert series.marks
    named = transfer_section._named
    assert named(cells[0], several=True) == "rate 0.003, seed 0"
    assert named(cells[0] | {"setup": "bit"}, several=False) == "setup bit rate 0.003"
    assert named(cells[0] | {"stage": "final"}, several=False) == "seed 0"


def test_copies_of_foreign_weights_are_shown_no_images(tmp_path):
    copy = tmp_path / "copy"
    conversion.convert(runs.ROOT / "tests" / "fixtures" / "vit_tiny_token.npz", "orbax", copy)
    page, _ = page_of(copy, images=8)
    assert any(f"No predictions: {copy} names no images; set" in word for word in page.words)


def test_without_one_prediction_the_report_says_why(tmp_path, monkeypatch):
    cfg = runs.configure(data={"eval_split": "test[:20]"})

    class Model:
        config, selection = cfg, "step 9, the newest"
        names = classes = tuple("0123456789")

        def classify(self, examples, top):
            return (Prediction(image=name, error="not finite") for name, *_ in examples)

    monkeypatch.setattr(loading, "load", lambda directory: Model())
    monkeypatch.setattr(loading, "require_images", lambda *_: None)
    pages.write_run(tmp_path, results=RESULTS)
    page, _ = page_of(tmp_path, images=8)
    assert "No predictions: not finite" in page.words


def test_predictions_count_the_mistakes_and_show_the_surest_first(tmp_path, monkeypatch):
    """A model that calls every digit a 5, with a certainty that grows from image to image."""
    cfg = runs.configure(data={"eval_split": "test[:20]"})
    source = sources.open_source(cfg.data, cfg.data.eval_split, labels=True)

    class Model:
        config, selection = cfg, "step 9, the newest"
        names = classes = source.classes

        def classify(self, examples, top):
            for number, (name, _, truth) in enumerate(examples):
                yield Prediction(image=name, top=(("5", 0.5 + number / 100),), truth=truth)

    monkeypatch.setattr(loading, "load", lambda directory: Model())
    found = report_page.predict_some(tmp_path, 20, 3)
    truths = [source.classes[int(source[index].label)] for index in range(20)]
    assert (found.seen, found.total, found.seed) == (20, 20, 3)
    assert found.wrong == sum(truth != "5" for truth in truths)
    assert 0 < found.wrong < 20
    sure = [sample.top[0][1] for sample in found.mistakes]
    assert sure == sorted(sure, reverse=True)
    assert all(sample.truth != "5" for sample in found.mistakes)
    assert {sample.right for sample in found.samples if sample.truth == "5"} == {True}
    assert found.selection == "step 9, the newest"
    assert found.confusion.counts == collections.Counter((truth, "5") for truth in truths)


def test_images_without_a_class_are_no_mistakes(tmp_path, monkeypatch):
    """Top-1 of several classes leaves them out; the number of mistakes has to say the same."""
    images = {f"{i}.png": np.full((8, 8, 3), i, np.uint8) for i in range(6)}
    for name, pixels in images.items():
        Image.fromarray(pixels).save(tmp_path / name)
    texts = ("a", "a;b", "b", "b", "", "")
    rows = [f"{name},{text}" for name, text in zip(images, texts, strict=True)]
    for split in ("train", "test"):
        (tmp_path / f"{split}.csv").write_text("\n".join(["image,class", *rows]))
    data = {"source": "csv", "root": str(tmp_path), "multilabel": True, "eval_split": "test"}
    cfg = runs.configure(data=data, loss={"name": "sigmoid"}, model={"num_classes": 2})

    class Model:
        config, selection = cfg, "step 9, the newest"
        names = classes = ("a", "b")

        def classify(self, examples, top):
            for name, _, truth in examples:
                yield Prediction(image=name, top=(("a", 0.9),), truth=truth)

    monkeypatch.setattr(loading, "load", lambda directory: Model())
    found = report_page.predict_some(tmp_path, 6)
    assert (found.seen, found.wrong, found.unlabeled) == (6, 2, 2)
    assert [one.truth for one in found.mistakes] == ["b", "b"]
    assert found.confusion is None
    run = types.SimpleNamespace(
        cfg=cfg, results={"top1": 0.5, "count": 6.0}, reported=Role("test", "test", "test"),
        step=3, steps=3, seconds=None, points=lambda key: [],
    )  # fmt: skip
    value, _, remark = next(iter(run_section._headline(run)))
    assert (value, remark) == ("50.00 %", "of 6 test images, without those of no class")


@pytest.mark.parametrize(("cfg", "results"), [(None, {"top1": 0.5}), ("a config", {})])
def test_nothing_is_said_of_the_splits_of_a_run_without_a_config_or_results(cfg, results):
    run = types.SimpleNamespace(cfg=cfg, results=results, evaluated=None, tested=None)
    assert list(run_section._measured_on(run)) == []
