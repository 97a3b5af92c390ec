"""Every cell of the paper's tables is one measure of runs of the catalog, and has its number.

`paper_tables.json` was typed from the paper by other hands than `vit_jax/config/paper.py`.
"""

import collections
import json
import statistics

import pytest

import runs
from vit_jax import config
from vit_jax.config import catalog, table_names
from vit_jax.pages import listing
from vit_jax.studies.reproduce import exhibit, tables

ROWS = json.loads((runs.ROOT / "tests" / "paper_tables.json").read_text())
SETS = {"JFT-300M": "JFT-300M", "JFT": "JFT-300M", "I21k": "ImageNet-21k",
        "ImageNet-21k": "ImageNet-21k", "ImageNet": "ImageNet"}  # fmt: skip
COLUMNS = {"ImageNet ReaL": "ReaL", "CIFAR10": "CIFAR-10", "CIFAR100": "CIFAR-100",
           "Oxford-IIIT Pets": "Pets", "Oxford-IIIT-Pets": "Pets",
           "Oxford Flowers-102": "Flowers"}  # fmt: skip


def printed(name):
    rows = [row for row in ROWS if row["table"] == name]
    assert rows
    return rows


def cells(name):
    """The cells of a table by row and column, each once."""
    found = {}
    for cell in tables.table(name).scores:
        assert (cell.row, cell.column) not in found
        found[cell.row, cell.column] = cell
    return found


def spelled(model):
    return model.replace("ResNet", "R").replace("R50x1+", "R50+")


def runs(cell):
    return [run.name for run in cell.runs]


def test_table_2():
    found = cells("table2")
    for row in printed("Table 2"):
        model, _, pretrained = row["model"].rstrip(")").partition(" (")
        title = f"{model}, {SETS[pretrained]}"
        if row.get("metric") == "TPUv3-core-days":
            cell = found.pop((title, "core-days"))
            assert (cell.printed, cell.measure, cell.share) == (row["value"], "core-days", False)
            assert catalog.about(cell.runs[0].name).core_days == row["value"]
            continue
        column = "VTAB" if "VTAB" in row["dataset"] else COLUMNS.get(row["dataset"], row["dataset"])
        cell = found.pop((title, column))
        assert (cell.printed, cell.std) == (row["mean"], row["std"])
        assert cell.measure == ("real/top1" if column == "ReaL" else "top1")
        assert len(cell.runs) == (19 if column == "VTAB" else 1)
        assert ("-51" in cell.runs[0].name) == (column in ("ImageNet", "ReaL"))
        what = {"ReaL": "ReaL, 3 runs", "VTAB": "mean of 19, 3 runs"}.get(column, "top-1, 3 runs")
        for name in runs(cell):
            assert (what, row["mean"], "2", row["std"]) in catalog.about(name).results
    assert {row for row, _ in found} == {BIT, NOISY}


BIT, NOISY = "BiT-L (R152x4), JFT-300M", "Noisy Student (EfficientNet-L2)"


def test_table_2_has_the_columns_of_others():
    """Big Transfer's is runs of the catalog; Noisy Student's is numbers without a run."""
    found = {key: cell for key, cell in cells("table2").items() if key[0] in (BIT, NOISY)}
    for row in printed("Table 2, others"):
        title = BIT if row["model"].startswith("BiT-L") else NOISY
        if row.get("metric") == "TPUv3-core-days":
            cell = found.pop((title, "core-days"))
            assert (cell.printed, cell.measure) == (row["value"], "core-days")
        else:
            column = COLUMNS.get(row["dataset"], row["dataset"])
            cell = found.pop((title, "VTAB" if "VTAB" in column else column))
            assert (cell.printed, cell.std) == (row["mean"], row.get("std"))
            assert cell.measure == ("real/top1" if column == "ReaL" else "top1")
        if title == NOISY:
            assert cell.runs == ()
            continue
        assert all(name.startswith("bit/R152x4-jft-") for name in runs(cell))
        assert len(cell.runs) == (19 if cell.column == "VTAB" else 1)
    assert not found


def test_table_4_is_the_grid():
    found = cells("table4")
    targets = {"ImageNet": "imagenet", "CIFAR-100": "cifar100", "CIFAR100": "cifar100",
               "CIFAR-10": "cifar10", "CIFAR10": "cifar10", "Oxford-IIIT Pets": "pets",
               "Oxford Flowers-102": "flowers"}  # fmt: skip
    for row in printed("Table 4"):
        grid = [f"{lr:g}" for lr in row["base_lr"]]
        target = targets.get(row["dataset"], "vtab")
        rows = {r for r, _ in found if r.endswith(f": {target}")}
        assert len(rows) == (3 if target == "vtab" else 14)
        for title in rows:
            for lr in grid:
                cell = found.pop((title, lr))
                protocol = catalog.about(cell.runs[0].name).transfer
                assert float(lr) in protocol.rates
                assert cell.measure == ("top1" if target == "vtab" else f"held-out/{lr}")
                assert cell.printed is None
    assert not found


def test_table_5():
    found = cells("table5")
    for row in printed("Table 5"):
        column = COLUMNS.get(row["dataset"], row["dataset"])
        cell = found.pop((f"{row['model']}, {SETS[row['pretrain']]}", column))
        assert cell.printed == row["top1"]
        (name,) = runs(cell)
        what = "ReaL" if column == "ReaL" else "top-1"
        assert (what, row["top1"], "5", None) in catalog.about(name).results
        assert cell.measure == ("real/top1" if column == "ReaL" else "top1")
    assert not found


def test_table_6():
    found = cells("table6")
    keys = {"ImageNet": "imagenet", "ReaL": "imagenet_real", "CIFAR-10": "cifar10",
            "CIFAR-100": "cifar100", "Pets": "pets", "Flowers": "flowers",
            "exaFLOPs": "exaflops"}  # fmt: skip
    for row in printed("Table 6"):
        for column, key in keys.items():
            cell = found.pop((f"{spelled(row['model'])}, {row['epochs']} epochs", column))
            assert cell.printed == row[key]
            origin = f"pretrain/{spelled(row['model']).replace('/', '_')}-jft-{row['epochs']}ep"
            if column == "exaFLOPs":
                assert (runs(cell), cell.measure) == ([origin], "exaFLOPs")
                continue
            assert cell.runs[0].origin.name == origin
            what = "ReaL" if column == "ReaL" else "top-1"
            assert (what, row[key], "6", None) in catalog.about(cell.runs[0].name).results
    assert not found


def test_table_7():
    found = cells("table7")
    for row in printed("Table 7"):
        column = COLUMNS.get(row["dataset"], row["dataset"])
        optimizer = row["pretrain_optimizer"]
        cell = found.pop((f"{spelled(row['model'])}, {optimizer}", column))
        assert cell.printed == row["top1"]
        assert len(cell.runs) == (5 if column == "Average" else 1)
        sgd = "-sgd" * (optimizer == "SGD")
        for run in cell.runs:
            assert run.origin.name == f"pretrain/{spelled(row['model'])}-jft-7ep{sgd}"
            assert ("jft7ep-sgd-" in run.directory) == (optimizer == "SGD")
    assert not found


def test_table_8():
    found = cells("table8")
    kinds = {"No": "none", "1-D": "learned 1d", "2-D": "learned 2d", "Rel.": "relative"}
    places = {"Default/Stem": "stem", "Every Layer": "layers", "Every Layer-Shared": "shared"}
    for row in printed("Table 8"):
        cell = found.pop((kinds[row["posemb"].split()[0]], places[row["where"]]))
        assert cell.printed == pytest.approx(100 * row["imagenet_5shot_linear"], abs=1e-9)
        (name,) = runs(cell)
        result = ("5-shot ImageNet", row["imagenet_5shot_linear"], "8", None)
        assert result in catalog.about(name).results
        model = config.build(catalog.load_values(name)).model
        assert model.position == kinds[row["posemb"].split()[0]].replace(" ", "_")
        assert (model.position_place, model.variant) == (places[row["where"]], "ViT-B/16")
        assert dict(cell.runs[0].measured)["evaluation.fewshot"] == "imagenet"
    assert not found


def test_table_9():
    found = cells("table9")
    scores = collections.Counter((row["model"], row["score"]) for row in printed("Table 9"))
    for (_, column), cell in found.items():
        (name,) = runs(cell)
        assert ("top-1", cell.printed, "9", None) in catalog.about(name).results
        model, _, pretrained = column.partition(", ")
        short = {"JFT-300M": "JFT", "ImageNet-21k": "I21k"}[pretrained]
        scores[f"{model} ({short})", cell.printed] -= 1
    assert len(found) == 57
    assert not any(scores.values())


def test_figure_2():
    """Only its first panel is printed, in Table 2; ViT-H/14's tasks are in Table 9."""
    found = cells("figure2")
    groups = {"Natural": 7, "Specialized": 4, "Structured": 8}
    order = [row["task"] for row in printed("VTAB-1k task")]
    scores = [row["score"] for row in printed("Table 9") if row["model"] == "ViT-H/14 (JFT)"]
    assert len(order) == len(scores) == 19
    (mean,) = [(r["mean"], r["std"]) for r in printed("Table 2")
               if r["model"] == "ViT-H/14 (JFT)" and "VTAB" in r.get("dataset", "")]  # fmt: skip
    assert (found["ViT-H/14", "VTAB"].printed, found["ViT-H/14", "VTAB"].std) == mean
    assert (found["BiT-L (R152x4)", "VTAB"].printed, found["BiT-L (R152x4)", "VTAB"].std) == (
        76.29,
        1.70,
    )
    first = 0
    for group, count in groups.items():
        cell = found["ViT-H/14", group]
        expected = sum(scores[first : first + count]) / count
        assert cell.printed == pytest.approx(expected, abs=0.005)
        assert [catalog.about(name).dataset for name in runs(cell)] == order[first : first + count]
        drawn = found["BiT-L (R152x4)", group]
        assert (drawn.printed, len(drawn.runs)) == (None, count)
        first += count
    for other in ("VIVI-Ex-100% (R50x3)", "S4L (R50x1)"):
        for column in ("VTAB", *groups):
            assert (found[other, column].printed, found[other, column].runs) == (None, ())
    assert len(found) == 4 * 4


FIVE = {"evaluation.fewshot": "imagenet", "evaluation.shots": "5"}


def test_figures_8_9_and_13_measure_5_shot_imagenet():
    """What the paper only draws has no printed number; compute is Table 6's, where that has it."""
    eight = tables.table("figure8")
    assert {c.runs[0].name for c in eight.scores} == {
        n for n in catalog.names() if n.startswith("scaling/")
    }
    nine = tables.table("D.3")
    assert [c.epoch for c in nine.scores] == [1, 2, 3, 4, 5, 6, 7] * 3
    assert {c.runs[0].name for c in nine.scores} == {
        "pooling/token-8e-4", "pooling/gap-8e-4", "pooling/gap-3e-4",
    }  # fmt: skip
    thirteen = tables.table("fig. 13")
    assert [c.row for c in thirteen.scores if c.column == "exaFLOPs"] == [
        "AxialViT-B/16", "AxialViT-B/32", "AxialResNet50", "ViT-B/16", "ViT-B/32", "R50x1",
    ]  # fmt: skip
    compute = {spelled(r["model"]): r["exaflops"] for r in printed("Table 6")}
    for table in (eight, nine, thirteen):
        for cell in table.scores:
            if cell.measure == "exaFLOPs":
                assert cell.printed == compute.get(cell.row)
                continue
            assert (cell.measure, cell.printed) == ("fewshot/imagenet/5shot", None)
            options = dict(cell.runs[0].measured)
            every = {"evaluation.every": "1 epochs"} if cell.epoch else {}
            assert options == FIVE | every
    relative = {c.row: c.x for c in eight.scores}
    assert relative["base"] == 1
    # A layer is 4 d^2 + 2 d m products for each of 50 tokens, and 2 x 50 d for attention.
    d, m, tokens = 1024, 2048, 50
    layer = tokens * (4 * d * d + 2 * d * m + 2 * tokens * d)
    rest = 49 * 32 * 32 * 3 * d + d * d + d * 18_291
    assert relative["depth-64"] == pytest.approx((64 * layer + rest) / (8 * layer + rest), rel=1e-9)


def test_figures():
    three = {(c.row, c.column): c.printed for c in tables.table("fig3").scores}
    five = {(r["model"], SETS[r["pretrain"]]): r["top1"] for r in printed("Table 5")
            if r["dataset"] == "ImageNet"}  # fmt: skip
    assert three == five
    four = tables.table("fig4").scores
    assert len(four) == 24
    assert all(c.printed is None and c.best for c in four)  # its points are only drawn
    assert {c.x for c in four} == {9e6, 30e6, 90e6, 303e6}
    keys = ("imagenet", "cifar10", "cifar100", "pets", "flowers")
    found = cells("fig5")
    for row in printed("Table 6"):
        title = f"{spelled(row['model'])}, {row['epochs']} epochs"
        average = found.pop((title, "Average-5"))
        assert average.printed == round(statistics.fmean(row[key] for key in keys), 2)
        assert (len(average.runs), average.x) == (5, row["exaflops"])
        assert found.pop((title, "ImageNet")).printed == row["imagenet"]
    assert not found


@pytest.mark.parametrize("name", tables.NAMES)
def test_every_run_is_in_the_catalog_and_follows_what_it_begins_with(name):
    table = tables.table(name)
    known, seen = catalog.names(), []
    for run in table.runs:
        assert run.name in known
        assert run.directory not in seen
        if run.kind == "transfer":
            assert run.origin is None or run.origin.directory in seen
            assert catalog.about(run.name).transfer is not None
        seen.append(run.directory)
    # No two cells are the same measure of the same runs, but for what two names of a table share.
    used = collections.Counter((c.runs, c.measure, c.epoch) for c in table.scores if c.runs)
    assert set(used.values()) == {1}
    assert table.name == name
    number = name.replace("table", "").replace("figure", "figure ")
    for cell in table.scores:
        for run in cell.runs:
            if run.name.startswith(("finetune/", "vtab/")) and name not in ("table7", "figure5"):
                assert number in catalog.about(run.name).tables, (run.name, number)


@pytest.mark.slow
@pytest.mark.parametrize("name", table_names.EXHIBITS)
def test_list_and_reproduce_know_the_same_names(name):
    """What `list --table` shows is what `reproduce` takes, or one line says what to do instead."""
    listed = {entry.name for entry in listing.entries(table=name)}
    assert listed
    if name in table_names.UNMEASURED:
        with pytest.raises(config.ConfigError, match=f"list --table={name}` lists them"):
            tables.table(name)
        return
    taken = {run.name for run in tables.table(name).runs}
    measured = {run.name for cell in tables.table(name).scores for run in cell.runs}
    if name == "table7":  # the four pre-trainings; their transfers are those of Table 6
        measured = taken - measured
    if name == "table4":  # its grid is that of every fine-tuning; reproduced for Table 5's
        taken |= {run.name for run in tables.table("table6").runs}
    assert measured <= listed <= taken
    for label in table_names.EXHIBITS[name]:
        assert tables.table(label).name == name


def test_names_in_any_spelling():
    for typed in ("figure8", "Figure 8", "fig8", "fig. 8", "D.2", "d2", "appendix D.2"):
        assert tables.table(typed).name == "figure8"
    for typed in ("table5", "5", "Table 5", "TABLE_5"):
        assert tables.table(typed).name == "table5"


def test_other_names_are_a_line():
    meant = ("; did you mean figure5?", "; did you mean table5?", "")
    for typed, near in zip(("figure15", "tabel5", "D.7"), meant, strict=True):
        with pytest.raises(config.ConfigError) as caught:
            tables.table(typed)
        line = str(caught.value)
        assert line.startswith(f"reproduce {typed}: no such table or figure{near}; known: table2, ")
        assert "figure8 (D.2), figure9 (D.3)" in line
        assert "\n" not in line
        assert len(line) <= 500
    with pytest.raises(config.ConfigError, match="reproduce table3: its columns are settings"):
        tables.table("table3")


def test_the_experiment_on_half_of_the_digits():
    """A quarter, a half and all of the 901 training images of 0 to 4."""
    home = tables.table("home")
    whole = catalog.about("home/ViT-half").images
    assert [c.x for c in home.scores[:6:2]] == [round(whole / 4), round(whole / 2), whole]
    assert {c.row for c in home.scores} == {
        f"{model}, {count:.0f} images" for model in ("ViT", "ResNet") for count in
        (round(whole / 4), round(whole / 2), whole)
    }  # fmt: skip


def test_real_is_measured_on_imagenet_alone():
    """Not where the network was pre-trained on ImageNet: CIFAR-10 has no ReaL labels."""
    for table in ("table2", "table5"):
        for run in tables.table(table).runs:
            real = ("evaluation.tasks", "imagenet-real") in run.measured
            target = catalog.about(run.name).transfer
            assert real == (target is not None and target.task == "imagenet"), run.name


def test_only_a_transfer_of_another_origin_has_a_name_of_its_own():
    name, usual = "finetune/R50x1-jft7ep-cifar10", "pretrain/R50x1-jft-7ep"
    assert catalog.about(name).origin == usual
    for same in (exhibit.transfer(name), exhibit.transfer(name, usual)):
        assert (same.directory, same.origin.directory) == (name, usual)
    other = exhibit.transfer(name, f"{usual}-sgd")
    assert (other.directory, other.name) == ("finetune/R50x1-jft7ep-sgd-cifar10", name)
    assert other.origin.directory == f"{usual}-sgd"
