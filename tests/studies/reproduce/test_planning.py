"""What is planned, what it lacks, and how it is shown: done, begun, failed, not run."""

import json
import pathlib
import subprocess
import sys
import types

import pytest

import pages
import runs
from vit_jax import cli, config
from vit_jax.config import catalog
from vit_jax.studies import reproduce
from vit_jax.studies.report import run_data
from vit_jax.studies.reproduce import document, exhibit, measurements, tables
from vit_jax.training import run_config

NAME = "finetune/ViT-B_16-i21k-cifar10"
REAL = "finetune/ViT-B_16-i21k-imagenet"


@pytest.fixture(autouse=True)
def no_data(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "data"))


def put_data(tmp_path, name, version):
    folder = tmp_path / "data" / name / version
    folder.mkdir(parents=True)
    info = {"fileFormat": "array_record", "splits": [{"name": "train", "shardLengths": ["9"]}]}
    (folder / "dataset_info.json").write_text(json.dumps(info))


def put_transfer(workdir, name, **values):
    pages.write_transfer(workdir / name, **{"name": name} | values)


def planned(table, workdir, **overrides):
    return reproduce.TablePlan(tables.table(table), workdir, overrides).planned


def grid(table, workdir):
    """Our line of every row, by column."""
    block = document.grid(reproduce.TablePlan(tables.table(table), workdir, {}))
    lines, title = {}, ""
    for row in block.rows:
        title = row[0] or title
        lines[title, row[1]] = dict(zip(block.header[2:], row[2:], strict=True))
    return lines


def test_what_a_run_lacks_is_said_with_the_command(tmp_path):
    steps = planned("table5", tmp_path)
    jft = steps["pretrain/ViT-B_16-jft-7ep"]
    assert (jft.state, jft.why) == ("lacks", "data.root=none: JFT-300M is private")
    assert steps["finetune/ViT-B_16-jft-cifar10"].why == "pretrain/ViT-B_16-jft-7ep"
    ours = steps[NAME]
    assert ours.state == "lacks"
    assert ours.why == f"cifar10 in {tmp_path / 'data'}"
    assert ours.command == "vit_jax prepare cifar10"
    put_data(tmp_path, "cifar10", "3.0.2")
    ours = planned("table5", tmp_path)[NAME]
    assert (ours.state, ours.why) == ("can run", "")
    assert ours.command == f"vit_jax transfer {NAME} --workdir={tmp_path / NAME}"
    # ReaL is measured on the same pass, so its labels have to be there too.
    put_data(tmp_path, "imagenet2012", "5.1.0")
    assert planned("table5", tmp_path)[REAL].command.startswith("vit_jax prepare imagenet-real")


def test_a_data_set_of_the_users_takes_the_place_of_jft(tmp_path):
    (tmp_path / "mine").mkdir()
    own = {"data.root": str(tmp_path / "mine"), "data.name": "my_photos"}
    steps = planned("table6", tmp_path, **own)
    first = steps["pretrain/ViT-B_16-jft-7ep"]
    assert first.state == "can run"
    assert first.command.endswith(
        f"--config.data.root={tmp_path / 'mine'} --config.data.name=my_photos"
    )
    second = steps["finetune/ViT-B_16-jft-cifar10"]
    assert (second.state, second.why) == ("waits", "pretrain/ViT-B_16-jft-7ep")


def test_transfers_begin_with_runs_that_are_here(tmp_path):
    put_data(tmp_path, "cifar10", "3.0.2")
    origin = "pretrain/ViT-B_16-jft-7ep"
    name = "finetune/ViT-B_16-jft-cifar10"
    assert planned("table5", tmp_path)[name].state == "lacks"
    pages.write_run(tmp_path / origin, name=origin, results={"test/top1": 0.5})
    steps = planned("table5", tmp_path)
    assert steps[origin].state == "done"
    assert steps[name].state == "can run"
    assert steps[name].command.endswith(f"--config.init_from={tmp_path / origin}")
    # One that was begun with other weights goes on with those.
    put_transfer(tmp_path, name, results=None, config={"init_from": "elsewhere"})
    began = planned("table5", tmp_path)[name]
    assert (began.state, began.why) == ("begun", "3 of 4 cells")
    assert began.command.endswith("--config.init_from=elsewhere")


def test_a_run_that_has_begun_says_how_far_it_is(tmp_path):
    name = "home/ViT-half"
    pages.write_run(tmp_path / name, name=name, steps=(10, 20))
    begun = planned("home", tmp_path)[name]
    assert (begun.state, begun.why) == ("begun", "step 20 of 25")


def test_a_run_that_is_done_says_which_options_are_not_the_tables(tmp_path, monkeypatch):
    name, target, few = "home/ViT-half", "home/ViT-digits", {"fewshot/digits/5shot": 0.6}
    pages.write_run(tmp_path / name, name=name, results=few | {"test/top1": 0.5})
    given = {"train.duration": "25 steps", "schedule.warmup": "0 steps", "optimizer.lr": "0.5"}
    made = config.to_dict(run_config.resolve(name, given))
    (tmp_path / name / "config.json").write_text(json.dumps(made))
    own = config.to_dict(run_config.resolve(target, {"init_from": str(tmp_path / name)}))
    own["model"]["gelu"] = "erf"  # as the weights have it
    put_transfer(tmp_path, target, config=own, candidates=[["vit", 0.1]])
    steps = planned("home", tmp_path)
    unlike = "with train.duration=25 steps, optimizer.lr=0.5, schedule.warmup=0 steps"
    assert (steps[name].state, steps[name].why) == ("done", unlike)
    assert (steps[target].state, steps[target].why) == ("done", "with --rates=0.1")
    table = tables.table("home")
    caption = "Some runs had options of their own or failed, as said beside their state."
    assert caption in document.grid(reproduce.TablePlan(table, tmp_path, {})).caption
    tiny = reproduce.TablePlan(table, tmp_path, {}, smoke=True)
    assert not any(one.why for one in tiny.planned.values() if one.state == "done")
    protocol = catalog.about(target).transfer.rates
    rates = [["vit", lr] for lr in protocol]
    put_transfer(tmp_path, target, config=own, candidates=rates)
    assert planned("home", tmp_path)[target].why == ""
    monkeypatch.chdir(tmp_path)  # runs note absolute paths
    assert planned("home", pathlib.Path())[target].why == ""
    done = {"stage": "final", "setup": "vit", "lr": 0.1, "directory": "final", "state": "done"}
    cells = [done, done | {"state": "failed"}]
    put_transfer(tmp_path, target, config=own, candidates=rates, cells=cells)
    assert planned("home", tmp_path)[target].why == "1 of 2 final runs failed"
    # From random weights, or other ones, it would stand in the row of those of its origin.
    for began, shown in ((None, "none"), ("elsewhere", "elsewhere")):
        put_transfer(tmp_path, target, config=own | {"init_from": began}, candidates=rates)
        assert planned("home", tmp_path)[target].why.startswith(f"with init_from={shown}")


def test_costs(tmp_path):
    steps = planned("table6", tmp_path)
    first = steps["pretrain/ViT-B_16-jft-7ep"]
    assert (first.runs, first.steps) == (1, 517_823)
    assert first.exaflops == pytest.approx(224, rel=0.01)
    # 30 % of 61.5 TFLOP/s, the share of a width of 768.
    assert first.core_days == pytest.approx(first.exaflops * 1e18 / (0.3 * 61.5e12) / 86400)
    assert "v3-32" in first.slices
    longer, shorter = (steps[f"pretrain/ViT-L_16-jft-{epochs}ep"].slices for epochs in (14, 7))
    assert longer == shorter != ()  # the same program
    fine = steps["finetune/ViT-B_16-jft-cifar10"]
    assert (fine.runs, fine.steps) == (4 + 3, 70_000)
    # ResNets try Big Transfer's setup besides.
    assert steps["finetune/R50x1-jft7ep-cifar10"].runs == 4 + 1 + 3
    assert planned("table9", tmp_path)["vtab/ViT-L_16-i21k-dtd"].runs == 3
    long = planned("table2", tmp_path)
    assert long["pretrain/ViT-L_16-jft-14ep"].core_days == 680  # as printed


def test_done_failed_and_not_run_are_told_apart(tmp_path):
    put_transfer(tmp_path, NAME)
    lines = grid("table5", tmp_path)
    row = "ViT-B/16, ImageNet-21k"
    assert lines[row, "paper"]["CIFAR-10"] == "98.95"
    assert lines[row, "here"]["CIFAR-10"] == "98.74 ± 0.30, n = 3 (-0.21)"
    assert lines[row, "here"]["CIFAR-100"] == "not run"
    # A transfer of which every run failed has no result.
    put_transfer(tmp_path, NAME, results=None)
    assert grid("table5", tmp_path)[row, "here"]["CIFAR-10"] == "not run"
    four = grid("table4", tmp_path)[f"{row}: cifar10", "here"]
    assert four == {"0.003": "91.00", "0.01": "93.00", "0.03": "not run", "0.001": "not run",
                    "0.06": ""}  # fmt: skip
    (tmp_path / NAME / "transfer.json").write_text("{")
    assert grid("table5", tmp_path)[row, "here"]["CIFAR-10"] == "not run"


def test_a_mean_of_several_runs_is_that_of_each_seed(tmp_path):
    columns = ("imagenet", "cifar10", "cifar100", "pets", "flowers")
    for index, target in enumerate(columns):
        values = [0.8 + index / 100, 0.9 + index / 100]
        results = {"top1": {"mean": sum(values) / 2, "std": 0.0707, "values": values}}
        put_transfer(tmp_path, f"finetune/R50x1-jft7ep-{target}", results=results)
    shown = grid("table7", tmp_path)["R50x1, Adam", "here"]["Average"]
    assert shown == "87.00 ± 63.53, n = 2 (-2.33)"  # seeds: 82 and 92; 12.706 standard errors of 5
    numbers = reproduce.TablePlan(tables.table("table7"), tmp_path, {}).numbers
    assert {round(number.std, 4) for number in numbers.values()} == {7.0711}
    assert grid("table7", tmp_path)["R50x1, SGD", "here"]["Average"] == "not run"
    three = {"top1": {"mean": 0.8, "std": 0.0, "values": [0.8] * 3}}
    put_transfer(tmp_path, "finetune/R50x1-jft7ep-pets", results=three)
    assert grid("table7", tmp_path)["R50x1, Adam", "here"]["Average"] == "no mean: n = 2, 3"
    (tmp_path / "finetune/R50x1-jft7ep-pets/transfer.json").unlink()
    assert grid("table7", tmp_path)["R50x1, Adam", "here"]["Average"] == "not run"


def test_numbers_of_training_runs(tmp_path):
    few = {"fewshot/imagenet/5shot": 0.6, "test/top1": 0.5}
    pages.write_run(tmp_path / "posemb/none", name="posemb/none", results=few)
    assert grid("table8", tmp_path)["none", "here"] == {
        "stem": "60.00 (-1.38)", "layers": "", "shared": "",
    }  # fmt: skip
    # Figure 4 stops early: what counts is the evaluation with the best top-1.
    name = "figure4/ViT-B_32-jft-9M"
    pages.write_run(tmp_path / name, name=name, results=few)
    with (tmp_path / name / "metrics.jsonl").open("a") as file:
        better = {"step": 20, "fewshot/imagenet/5shot": 0.7, "test/top1": 0.9}
        file.write(json.dumps(better) + "\n")
    assert grid("fig4", tmp_path)["ViT-B/32", "here"]["9M"] == "70.00"
    # 25 steps of 32 images at 64/s on 8 cores.
    origin = "pretrain/ViT-L_16-i21k-90ep"
    pages.write_run(tmp_path / origin, name=origin, results=few)
    cell = next(c for c in tables.table("table2").scores
                if c.measure == tables.CORE_DAYS and c.runs[0].name == origin)  # fmt: skip
    found = {origin: run_data.read_run(tmp_path / origin)}
    assert measurements.number(cell, found, None).mean == pytest.approx(12.5 * 8 / 86400)


def test_a_curve_by_epoch_has_the_evaluation_after_each(tmp_path):
    name = "pooling/gap-3e-4"
    key = "fewshot/imagenet/5shot"
    pages.write_run(tmp_path / name, name=name, results={key: 0.7, "test/top1": 0.5})
    # 200 images in batches of 32: an epoch is 6.25 steps, evaluated every 7, and 25 steps are 4.
    with (tmp_path / name / "metrics.jsonl").open("a") as file:
        for step, value in ((7, 0.1), (14, 0.2), (15, 0.9)):
            file.write(json.dumps({"step": step, key: value, "test/top1": 0.1}) + "\n")
    shown = grid("figure9", tmp_path)["GAP, lr 0.0003", "here"]
    assert shown["epoch 1"] == "10.00"
    assert shown["epoch 2"] == "20.00"
    assert shown["epoch 3"] == "not run"
    assert shown["epoch 4"] == "70.00"
    assert shown["epoch 5"] == "not run"


def test_measures_stand_beside_costs_and_others_models_are_no_runs(tmp_path):
    table = tables.table("figure8")
    block = document.costs(reproduce.TablePlan(table, tmp_path, {}))
    rows = [dict(zip(block.header, row, strict=True)) for row in block.rows]
    assert [row["run"] for row in rows][:2] == ["scaling/base", "scaling/depth-2"]
    assert {row["measures"] for row in rows} == {"fewshot/imagenet/5shot"}
    base = rows[0]
    assert (base["steps"], base["exaFLOPs"]) == ("517,823", "45.4")
    # The command that runs it has the measure, once there are images of its own and ImageNet's.
    put_data(tmp_path, "imagenet2012", "5.1.0")
    put_data(tmp_path, "mine", "1.0.0")
    own = {"data.root": str(tmp_path / "data"), "data.name": "mine"}
    command = planned("figure8", tmp_path, **own)["scaling/base"].command
    assert "--config.evaluation.fewshot=imagenet --config.evaluation.shots=5" in command
    two = grid("table2", tmp_path)
    assert two["Noisy Student (EfficientNet-L2)", "paper"]["ReaL"] == "90.55"
    assert two["Noisy Student (EfficientNet-L2)", "here"]["ReaL"] == "others' model"
    assert two["BiT-L (R152x4), JFT-300M", "paper"]["VTAB"] == "76.29 ± 1.70"
    assert two["BiT-L (R152x4), JFT-300M", "here"]["VTAB"] == "not run"
    # Only cells that have a run count as what could have been run.
    words, _ = reproduce.write_document(
        reproduce.TablePlan(tables.table("figure2"), tmp_path, {}), tmp_path / "figure2.md"
    )
    assert "0 of 8 cells have been run." in words.read_text()
    assert planned("figure2", tmp_path)["bit/R152x4-jft-40ep"].core_days == 9900


def test_the_page_and_the_json_of_a_table(tmp_path):
    put_transfer(tmp_path, NAME)
    table = tables.table("table5")
    plan = reproduce.TablePlan(table, tmp_path, {})
    words, html = reproduce.write_document(plan, tmp_path / "out" / "table5.md")
    text = words.read_text()
    assert "| ViT-B/16, ImageNet-21k | paper | 83.97 | 88.35 | 98.95 |" in text
    assert "|  | here | not run | not run | 98.74 ± 0.30, n = 3 (-0.21) |" in text
    assert "here ± is half the 95 % confidence interval of the mean over n seeds" in text
    assert f"| {NAME} | 98.74 % | 3 | 8 \u00d7 TPU v3, tpu-0 | 2026-11-22 | 3m13s |" in text
    assert "1 of 84 cells have been run." in text
    shown = pages.Page.read(html)
    assert shown.words.count("not run") == 83
    assert not shown.addresses
    values = json.loads(json.dumps(reproduce.as_dict(plan)))
    assert len(values["cells"]) == 84
    (ran,) = [cell for cell in values["cells"] if cell["ours"]]
    assert ran["runs"] == [NAME]
    assert (ran["paper"], ran["ours"]["mean"], ran["ours"]["seeds"]) == (
        98.95,
        pytest.approx(98.74),
        3,
    )


@pytest.mark.slow
@pytest.mark.parametrize(("figure", "count"), [("fig2", 1), ("fig5", 2), ("fig8", 1), ("fig9", 1)])
def test_figures_draw_the_papers_points_hollow_and_ours_filled(tmp_path, figure, count):
    put_transfer(tmp_path, REAL)
    put_transfer(tmp_path, "finetune/R50x1-jft7ep-imagenet")
    few = {"fewshot/imagenet/5shot": 0.6, "test/top1": 0.5}
    for name in ("figure4/R50x1-jft-9M", "scaling/depth-64", "axial/R50x1", "pooling/gap-8e-4"):
        pages.write_run(tmp_path / name, results=few)
    for task in ("camelyon", "eurosat", "resisc45", "retinopathy"):
        put_transfer(tmp_path, f"bit/R152x4-jft-vtab-{task}")
    table = tables.table(figure)
    _, html = reproduce.write_document(
        reproduce.TablePlan(table, tmp_path, {}), tmp_path / "out.md"
    )
    shown = pages.Page.read(html)
    assert shown.count("svg", "chart") == count
    marks = [a["class"] for tag, a in shown.elements if tag == "circle"]
    # Figure 2's first panel of two networks, and the three groups that Table 9 has.
    hollow = {"fig2": 5, "fig5": 36}.get(figure, 0)
    assert sum("hollow" in mark for mark in marks) == hollow
    assert len(marks) == hollow + 1


def test_a_dry_run_asks_for_no_device(tmp_path):
    """With a platform that does not exist, whatever asks for a device fails."""
    done = subprocess.run(
        [sys.executable, "-m", "vit_jax", "reproduce", "table5", "--dry-run",
         f"--workdir={tmp_path}"],
        cwd=runs.ROOT, capture_output=True, text=True,
        env=runs.environment() | {"JAX_PLATFORMS": "no_such_platform"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "not run" in done.stdout
    assert "vit_jax prepare cifar10" in done.stdout


def test_mistakes_are_one_line(tmp_path, capsys):
    assert cli.main(["reproduce", "table1", "--dry-run"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    for table, option in (("home", "data.root=x"), ("table5", "optimizer.lr=3"), ("masked", "x=1")):
        assert cli.main(["reproduce", table, "--dry-run", f"--config.{option}"]) == 2
        told = capsys.readouterr().err
        assert told.startswith(f"vit_jax: {option}: the runs of {table} have the paper's options")
        assert told.count("\n") == 1
    (tmp_path / "file").write_text("")
    arguments = ["reproduce", "table8", "--dry-run", f"--output={tmp_path / 'file' / 'x.md'}"]
    assert cli.main(arguments) == 2
    assert "--output=" in capsys.readouterr().err


def test_a_point_stands_at_the_place_of_its_score(tmp_path, monkeypatch):
    """At 0 where that is its place; hollow what the paper prints, filled what was measured."""
    run = tables.table("figure2").scores[0].runs
    scores = (
        exhibit.Score(row="ViT", column="a", runs=run, x=2.0, printed=80.0),
        exhibit.Score(row="ViT", column="a", runs=run, x=0.0, printed=70.0, measure="loss"),
    )
    table = exhibit.Exhibit(name="figure2", title="t", scores=scores, x="images")
    known = {scores[0]: measurements.Number(81.0, None, 1)}
    plan = types.SimpleNamespace(table=table, numbers=known)
    (chart,) = document.charts(plan)
    paper, here = chart.series
    assert (paper.points, paper.hollow) == ([(2.0, 80.0), (0.0, 70.0)], True)
    assert (here.points, here.hollow) == ([(2.0, 81.0)], False)
    assert document.charts(types.SimpleNamespace(table=tables.table("table9"), numbers={})) == []


def test_a_page_says_what_is_left(tmp_path):
    plan = reproduce.TablePlan(tables.table("table9"), tmp_path, {})
    assert "Remaining runs" in [one.title for one in document.document(plan).sections]
    assert document.commands(plan).rows
