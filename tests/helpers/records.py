"""The records below docs/records/, and every number that README and pages quote from them.

`QUOTED` maps a page to what its text must contain, computed from the records. What a page measures
and no record holds, it calls unrecorded. `tests/documents/test_records.py` checks both.
"""

import dataclasses
import functools
import json
import math
import re
import statistics

import scipy.stats

import runs
import vit_jax
from research import corruption, fleet, home_repetitions, label_efficiency
from research import faults as fault_campaign
from research import imbalance as imbalance_study
from research import mixed_aspect as aspect_study
from research import parity as weights_parity
from vit_jax import config, models, preflight
from vit_jax.config import catalog
from vit_jax.preflight import batch, formatting, program, topologies
from vit_jax.studies.records import Records
from vit_jax.weights import zoo

IMAGENET = 1_281_167  # images for training
FOLDER = runs.ROOT / "docs" / "records"


@functools.cache
def lines(name):
    """The lines of a record."""
    return [json.loads(text) for text in (FOLDER / f"{name}.jsonl").read_text().splitlines()]


def names():
    """The records there are."""
    return sorted(path.stem for path in FOLDER.glob("*.jsonl"))


# --- Comparisons taken in turns -------------------------------------------------------------------


def turns(ours, other):
    """How many times faster we are: the median over turns, the least, the most, and CPU time."""
    assert len(ours["seconds"]) == len(other["seconds"]) >= 5
    pairs = [b / a for a, b in zip(ours["seconds"], other["seconds"], strict=True)]
    cpu = statistics.median(other["cpu"]) / statistics.median(ours["cpu"])
    return statistics.median(pairs), min(pairs), max(pairs), cpu


def cells(ours, other, load):
    """The last cells of a row: ratio with its range, that of CPU time, and the load."""
    return "| {:.2f}x ({:.2f} to {:.2f}) | {:.2f}x | {:.0f} |".format(*turns(ours, other), load)


def compared(name):
    """Yields a row of records/README.md and its ratio for every comparison in a record."""
    for line in lines(name):
        work = line["work"]
        for one in line["compared"]:
            ours, *others = one["results"]
            what = one["what"]
            if name == "train":
                what = "{model}, {batch}, {dtype}".format_map(work)
                if (objective := work.get("objective", "supervised")) != "supervised":
                    what = f"{objective.upper()} of {what}"
            for other in others:
                row = f"| {what} | {other['name']} {cells(ours, other, line['load'])}"
                yield what, other["name"], row, turns(ours, other)[0]


def pipelines():
    """Yields a row of records/README.md for our pipeline on one core and on two, and its ratio."""
    for line in lines("input"):
        augment = line["work"]["randaugment"]
        for cores, one in enumerate(line["compared"], start=1):
            found = {result["name"]: result for result in one["results"]}
            ours, other = found["vit_jax"], found["tf.data"]
            speed = 1 / statistics.median(ours["seconds"])
            work = f"RandAugment {augment}" if augment else "no augmentation"
            row = f"| {work}, {cores} core{'s' * (cores > 1)} | {speed:.0f} "
            yield (
                bool(augment),
                cores,
                row + cells(ours, other, line["load"]),
                turns(ours, other)[0],
            )


# --- Pages ----------------------------------------------------------------------------------------


def readme():
    faults = lines("faults")
    assert not any(line["problem"] or line["hangs"] for line in faults)
    count, kinds = sum(len(line["lost"]) for line in faults), len({one["fault"] for one in faults})
    assert kinds == 6
    yield f"{count:,} faults of six kinds: 0 differences in parameters, moments, metrics or images"
    damaged = [one for one in faults if one["fault"] == "damaged-checkpoint"]
    yield f"{sum(len(one['lost']) for one in damaged)} flipped bits: 0 restored"
    hostile = lines("hostile")
    bad = sum(one[key] for one in hostile for key in ("wrong", "crash", "hang", "memory"))
    assert not bad
    inputs = sum(one["inputs"] for one in hostile)
    readers = len({one["reader"] for one in hostile})
    yield (
        f"{inputs:,} inputs to {readers} readers: 0 crashes, 0 hangs over 5 s, 0 over the "
        "memory limit, 0 that ran code"
    )
    peaks = {
        one["report"]["name"]: one["report"]["peak"] / 2**30
        for one in lines("preflight-table3")
        if one["report"]["topology"] == "v3-128"
    }
    yield "{:.1f} GiB for ViT-B/16, {:.1f} for ViT-L/16, {:.1f} for ViT-H/14".format(
        *(peaks[f"pretrain/ViT-{run}ep"] for run in ("B_16-jft-7", "L_16-jft-7", "H_14-jft-14"))
    )
    steps = {}
    for what, peer, _, ratio in compared("train"):
        if what.startswith("ViT-S/16"):
            steps.setdefault(peer, []).append(ratio)
    yield (
        "ViT-S/16: {:.2f}x timm compiled on one kind of EPYC, {:.2f}x on another and {:.2f}x in "
        "bfloat16 there, {:.2f}x and {:.2f}x on a Xeon with AMX; {:.2f}x big_vision"
    ).format(*steps["timm, compiled"], *steps["big_vision"])
    speeds = {augmented: ratio for augmented, cores, _, ratio in pipelines() if cores == 2}
    yield f"{speeds[False]:.2f}x; {speeds[True]:.1f}x with RandAugment"
    saves = {what: ratio for what, peer, _, ratio in compared("checkpoint") if peer == "orbax"}
    text = "saves at {:.2f}x (S/16) and {:.2f}x (B/16) of orbax's speed"
    yield (text + ", restores at {:.2f}x and {:.2f}x").format(
        *(saves[f"{verb}, ViT-{size}/16"] for verb in ("save", "restore") for size in "SB")
    )
    for entry in zoo.entries():
        if entry.access == "bundled":
            yield f"{bundled(entry.name):.1f} % on CIFAR-10"


def published():
    """The number of published weights of others."""
    yield f"{sum(one.access != 'bundled' for one in zoo.entries())} published checkpoints"


def config_names():
    """The number of configs that `vit_jax list` prints."""
    yield f"{len(catalog.names())} names, each with its table, cost and printed results"


def rows_of_table3():
    """The number of rows that the table of preflight has."""
    rows = [row for row in table3() if row.startswith("| pretrain/")]
    yield f"All {len(rows)} rows of Table 3 on six slices"


def bundled(name):
    """The accuracy in % of weights that come with the package, as they come."""
    (line,) = (one for one in lines("cifar10") if one["name"] == name and "bundled" in one)
    assert line["bundled"]["count"] == 10_000
    return 100 * line["bundled"]["top1"]


def cifar10():
    found = {one["name"]: one for one in lines("cifar10") if "bundled" in one}  # the last of a name
    first, second = found["cifar10/ViT-6_4"], found["cifar10/ViT-6_4-3h"]
    same = {"name": second["name"], "steps": second["steps"]}
    seeds = [one for one in lines("cifar10") if {key: one.get(key) for key in same} == same]
    assert [one["seed"] for one in seeds] == [0, 1]
    yield f"another of the longer run ended at {last_top1(seeds[1]):.1f} %"
    for one in (first, second):
        cfg, flops, begun = vit_jax.get_config(one["name"]), 0.0, 0
        for phase in (*cfg.data.phases, None):
            data = cfg.data.in_phase(phase) if phase else cfg.data
            end = phase.until.steps(one["batch_size"], 50_000) if phase else one["steps"]
            images, begun = (end - begun) * one["batch_size"], end
            model = vit_jax.create_model(dataclasses.replace(cfg, data=data))
            flops += 3 * model.flops * images
        epochs = round(one["steps"] * one["batch_size"] / 50_000)
        minutes = round(one["training_seconds"] / 60)
        yield f"| {one['steps']:,} ({epochs} epochs) | {flops / 1e15:.2f} | {minutes} |"
        yield f"| {minutes} | {last_top1(one):.1f} % |"
    assert second["sessions"] == 5
    yield f"{first['images_per_second']:.0f} images/s"
    changed = [abs(100 * one["bundled"]["top1"] - last_top1(one)) for one in (first, second)]
    yield f"by at most {max(changed):.2f} points"
    longest = found["cifar10/ViT-6_4-progressive"]
    earlier = next(one for one in lines("cifar10") if one["name"] == second["name"])
    yield (
        f"{last_top1(longest):.1f} % after {round(longest['steps'] * 128 / 50_000)} epochs in "
        f"float32 and {last_top1(earlier):.1f} % after 50 epochs in batches of 128"
    )
    seen = statistics.fmean(line["top1"] for line in second["log"][-12:])
    yield f"it is {100 * seen:.1f} %, which is more"
    yield from distilled()


def last_top1(one):
    """Accuracy after the last step, in percent."""
    return 100 * one["test"][f"{one['steps']}"]["top1"]


def soup():
    """The mean of the parameters of two runs, beside both."""
    found = {one["name"].rpartition("-")[2]: one for one in lines("cifar10") if "test" in one}
    both = [last_top1(found[name]) for name in ("progressive", "light")]
    mean = 100 * found["averaged"]["test"]["top1"]
    yield "runs with {:.1f} and {:.1f} % has {:.1f} %".format(*both, mean)


def distilled():
    """The paired comparison of a student alone and with a teacher, over seeds."""
    from scipy import stats

    scores, seconds = {}, {}
    for name in ("cifar10/ViT-3_4", "cifar10/ViT-3_4-distilled"):
        own = sorted((o for o in lines("cifar10") if o["name"] == name), key=lambda o: o["seed"])
        assert all(one["test"]["count"] == 10_000 for one in own)
        scores[name] = [100 * one["test"]["top1"] for one in own]
        seconds[name] = statistics.fmean(one["cpu_seconds"] for one in own)
    pairs = {}
    for one in (one for one in lines("cifar10") if "seed" in one):
        pairs.setdefault((one["seed"], one["steps"]), []).append(one.get("batches"))
    assert all(len({str(b) for b in found}) == 1 for found in pairs.values())  # the same pixels
    alone, with_teacher = scores.values()
    difference = [b - a for a, b in zip(alone, with_teacher, strict=True)]
    low, high = stats.ttest_rel(with_teacher, alone).confidence_interval(0.95)
    for label, values in (
        ("alone", alone),
        ("distilled", with_teacher),
        ("difference", difference),
    ):
        numbers = [f"{value:.2f}" for value in (*values, statistics.fmean(values))]
        half = f" ± {(high - low) / 2:.2f}" * (label == "difference")
        yield f"| {label} | {' | '.join(numbers)}{half} |"
    yield f"{statistics.fmean(difference):.2f} ± {(high - low) / 2:.2f} points"
    yield "{:.0f} CPU seconds alone and {:.0f} with a teacher".format(*seconds.values())


def reliability():
    yield from fault_campaign.markdown(lines("faults"))
    yield from (line for line in corruption.markdown(lines("corruption")) if line)
    for one in lines("hostile"):
        counts = [one[key] for key in ("read", "refused", "wrong", "crash", "hang", "memory")]
        row = (one["reader"], one["inputs"], *counts, one["seconds"])
        yield f"| {' | '.join(map(str, row))} |"
    yield from fleet.table()
    (digits,) = lines("digits")
    assert digits["results"]["test/count"] == 360
    yield f"{digits['results']['test/top1']:.1%}".replace("%", " %")


def paper():
    home = lines("home")
    yield from home_repetitions.table(home)
    means = home_repetitions.values(home, "ViT", 100, "fine-tuned").values()
    yield f"between {min(means):.1f} and {max(means):.1f} %"


def contrast(claim, name="findings.md"):
    """Mean, half its 95 % interval, seeds and verdict of a claim on a page of findings."""
    page = (runs.ROOT / "docs" / name).read_text()
    start = page.index(f"| {claim} |")
    cells = [cell.strip() for cell in page[start : page.index("\n", start)].split("|")]
    return *(float(part.split()[0]) for part in cells[3].split("±")), int(cells[4]), cells[7]


def findings():
    """What guides quote of the findings, whose page is written from its records."""
    behind, half, seeds, verdict = contrast(
        "with 5,000 labels masked patch prediction is ahead of scratch"
    )
    assert verdict.startswith("undecided")
    yield f"{-behind:.1f} ± {half:.1f} points"
    yield f"{seeds} seeds"


def paper_findings():
    page = (runs.ROOT / "docs" / "findings.md").read_text()
    assert "| reproduced" not in page
    assert "| not reproduced" not in page
    control = "control: the ViT M classifies 30% of its own test images or more"
    own, *_ = contrast(control)
    yield f"{own:.0f} % of its own test images"
    own, *_, verdict = contrast(control, "findings_long.md")
    assert verdict == "holds"
    yield f"{own:.0f} % of their own test images"
    first, best = (one for one in lines("cifar10") if one["name"] == "attention-distance")
    for line in (first, best):
        means = [statistics.fmean(heads) for heads in line["pixels"].values()]
        yield f"{means[0]:.1f} pixels, that of the second {means[1]:.1f} and that of the last"
        yield f"{means[-1]:.1f} (`{line['checkpoint']}`)"
    yield f"reaches {min(first['pixels']['1']) / first['uniform']:.2f} of the distance"
    yield f"one head of the first layer at {min(best['pixels']['1']):.1f} pixels"


def table3():
    known = list(batch.read_reports(FOLDER / "preflight-table3.jsonl").values())
    known += [longer for one in known for longer in other_lengths(one)]
    printed = {one.name: catalog.about(one.name).core_days for one in known}
    yield from preflight.markdown(known, 0.4, printed)
    scaled = batch.read_reports(FOLDER / "preflight-scaling.jsonl").values()
    for row in formatting.scaling_rows(scaled, 0.4):
        label = row[0].split("-jft")[0].removeprefix("pretrain/").replace("_", "/")
        yield f"| {' | '.join([label, *row[1:9]])} |".replace("%", " %")
    for one in batch.read_reports(FOLDER / "preflight-1000.jsonl").values():
        name = one.name.removesuffix("-jft-7ep").removeprefix("pretrain/").replace("_", "/")
        yield (
            f"| {name} | {one.peak / 2**30:.2f} | {one.bytes_accessed / 1e9:.2f} "
            f"| {1e3 * one.compiler_seconds:.1f} | {one.sent / 1e9:.2f} |"
        )


def newest_libtpu():
    """The memory of programs of Table 3 by a newer compiler, which changes nothing else."""
    known = batch.read_reports(FOLDER / "preflight-table3.jsonl")
    shares = []
    for key, one in batch.read_reports(FOLDER / "preflight-newest.jsonl").items():
        assert one.compiler_flops == known[key].compiler_flops
        assert one.collectives == known[key].collectives
        shares.append(one.peak / known[key].peak)
    yield f"take {min(shares):.3g} to {max(shares):.3g} times the memory"


def other_lengths(report):
    """Yields the reports of runs that are the same program for more or fewer epochs."""
    stem, _, epochs = report.name.removesuffix("ep").rpartition("-")
    for name in catalog.names():
        if name != report.name and re.fullmatch(re.escape(stem) + r"-\d+ep", name):
            steps = report.steps * int(name[len(stem) + 1 : -2]) // int(epochs)
            yield dataclasses.replace(report, name=name, steps=steps)


def unlabeled_programs():
    """Rows of preflight.md about steps that learn without labels, and their share of others."""
    known = list(batch.read_reports(FOLDER / "preflight-unlabeled.jsonl").values())
    for one in sorted(known, key=lambda one: (one.name, one.topology)):
        whole, bounds = one.run(None), one.bounds()
        yield (
            f"| {one.name} | {one.topology} | {one.batch} | {one.peak / 2**30:.2f} "
            f"| {one.model_flops / one.batch / 1e9:,.0f} | {1e3 * whole['step_seconds']:.1f} "
            f"| {1e3 * bounds['links']:.1f} | {whole['core_days']:,.0f} "
            f"| {whole['chip_hours']:,.0f} |"
        )
    labeled = batch.read_reports(FOLDER / "preflight-table3.jsonl").values()
    for size in ("B", "L"):
        own, other = (
            next(
                one.model_flops / one.batch / one.settings.accumulation
                for one in reports
                if (one.name, one.topology) == (name.format(size), "v5e-256")
            )
            for reports, name in (
                (known, "mae/ViT-{}_16-800ep"), (labeled, "pretrain/ViT-{}_16-imagenet-300ep")
            )
        )  # fmt: skip
        yield f"{own / other:.2f}x of {size}/16"
    # A quarter of the patches are as many as half the side has.
    small, whole = (cost("ViT-B/16", (side, side))[1] for side in (112, 224))
    yield f"{small / whole:.2f}x of B/16's encoder alone"


def peaks():
    """What steps of ViT-S/16 take: GiB at most, also with `model.remat`, and by timm's."""
    newest = {
        (result["name"], line["work"]["objective"], line["work"]["remat"]): result
        for line in lines("memory")
        for result in line["compared"][0]["results"]
    }
    gib = {key: f"{result['peak'] / 2**30:.2f}" for key, result in newest.items()}
    plain, remat = ("supervised", "none"), ("supervised", "dots_no_batch")
    yield (
        f"ViT-S/16, 16 images: {gib['vit_jax', *plain]} GiB, timm {gib['timm, eager', *plain]} "
        f"(eager) and {gib['timm, compiled', *plain]} (compiled); "
        f"{gib['vit_jax', *remat]} with `model.remat=dots_no_batch`"
    )
    more, less = (statistics.median(newest["vit_jax", *kind]["cpu"]) for kind in (remat, plain))
    yield f"a step takes {more / less - 1:.0%}".replace("%", " %") + " more CPU time"


def peaks_without_labels():
    newest = {
        line["work"]["objective"]: line["compared"][0]["results"][0] for line in lines("memory")
    }
    mae, dino = (f"{newest[name]['peak'] / 2**30:.1f}" for name in ("mae", "dino"))
    yield f"MAE takes {mae} GiB, DINO {dino}"


def starts():
    """What commands and their peers take from start to end: CPU seconds, peak MB, the load.

    Beside the newest record, what other processors took for our commands.
    """
    xeon, line = lines("startup")
    ours = [
        statistics.median(result["cpu"])
        for one in xeon["compared"]
        for result in one["results"]
        if result["name"] == "vit_jax"
        and one["what"].split()[0] in ("predict", "evaluate", "train")
    ]
    yield ", ".join(f"{cpu:.2f}" for cpu in ours[:-1]) + f" and {ours[-1]:.2f} CPU seconds"
    for one in line["compared"]:
        for result in one["results"]:
            cpu = statistics.median(result["cpu"])
            yield f"| {one['what']} | {result['name']} | {cpu:.2f} | {result['peak'] / 1e6:.0f} |"
    yield f"a load of {line['load']:.0f}"


def commands():
    """CPU seconds of the commands in README's table, and of timm for the same."""
    cpu = {
        (one["what"], result["name"]): statistics.median(result["cpu"])
        for one in lines("startup")[-1]["compared"]
        for result in one["results"]
    }
    photo = "predict a photo, ViT-S/16"
    yield (
        f"CPU seconds: {cpu[photo, 'vit_jax']:.1f} to predict a photo with ViT-S/16 (timm "
        f"{cpu[photo, 'timm']:.1f}), {cpu['list', 'vit_jax']:.1f} to list (timm "
        f"{cpu['list', 'timm']:.1f}), {cpu['evaluate digits', 'vit_jax']:.1f} to evaluate and "
        f"{cpu['train digits --dry-run', 'vit_jax']:.1f} for a dry run (imports of jax and flax "
        f"{cpu['evaluate digits', 'import jax, flax']:.1f})"
    )


def records():
    for name in ("train", "checkpoint", "evaluate", "dispatch"):
        yield from (row for _, _, row, _ in compared(name))
    for objective, name, _, own, peak in steps_without_labels():
        yield f"{objective} {own:.1f} GiB at its peak ({name} {peak:.1f})"
    for line in lines("train"):
        (found,) = line["compared"]
        if found["what"].startswith("ViT-S/16") and "bfloat16" in found["what"]:
            own, *others = (one["peak"] / 2**30 for one in found["results"])
            yield f"memory: {others[0]:.1f} GiB, where vit_jax takes {own:.1f}"
    yield from (row for _, _, row, _ in pipelines())


def bfloat16_step():
    """Seconds of a step of ViT-S/16 on an EPYC with products in bfloat16, and without."""
    ours = {
        line["work"]["dtype"]: line["compared"][0]["results"][0]
        for line in lines("train")
        if line["compared"][0]["what"].startswith("ViT-S/16")
        and line.get("processor") == "AMD EPYC"
    }
    rounded, exact = (
        statistics.median(ours[dtype]["seconds"]) for dtype in ("bfloat16_matmul", "float32")
    )
    yield f"{rounded:.2f} s in place of {exact:.2f}"


def unlabeled_steps():
    """What unlabeled.md says of steps beside their peers."""
    for _, _, ratio, own, peak in steps_without_labels():
        yield f"{ratio:.2f}x, {own:.1f} GiB of memory in place of {peak:.1f}"


def steps_without_labels():
    """Yields (objective, peer, speed over the peer's, our peak in GiB, the peer's)."""
    for line in lines("train"):
        objective = line["work"].get("objective", "supervised")
        if objective != "supervised":
            ours, other = line["compared"][0]["results"]
            own, peak = (one["peak"] / 2**30 for one in (ours, other))
            yield objective.upper(), other["name"], other["ratio"][0], own, peak


def speed():
    one, two = (ratio for augmented, _, _, ratio in pipelines() if not augmented)
    yield f"{one:.2f} times"
    yield f"{two:.2f} on two"


def laptop():
    """Rows of own_images.md: top-1 on test images by seed, the mean, and its 95 % interval."""
    by_folder = {}
    for line in lines("laptop"):
        by_folder.setdefault(line["of"], []).append(line)
    for of, seeds in by_folder.items():
        top1 = sorted(100 * line["test"]["top1"] for line in seeds)
        mean, half = statistics.mean(top1), student(top1)
        images = ", ".join(str(seeds[0]["images"][split]) for split in ("train", "val", "test"))
        yield (
            f"{of} | {seeds[0]['classes']} | {images} | {', '.join(f'{x:.0f}' for x in top1)} % "
            f"| {mean:.0f} ± {half:.0f} % | {100 * seeds[0]['largest_class']:.0f} % |"
        )


def planted_errors():
    """What the doctor found of errors that were planted."""
    (line,) = lines("planted_errors")
    rows = {row["kind"]: row for row in line["rows"]}
    copies, labels = rows["all copies"], rows["label"]
    suspects = line["cleanlab"]["confident_learning"]
    assert suspects["shared"] == suspects["found"] == labels["found"]
    for kind in ("broken", "tiny", "aspect", "mode"):
        assert rows[kind]["hits"] == rows[kind]["planted"] == rows[kind]["found"]
    yield f"among {10 * line['each']} test images of CIFAR-10"
    yield (
        f"found {copies['hits']} of {copies['planted']} copies, and {copies['hits']} of the "
        f"{copies['found']} images it called copies were; it found {labels['hits']} of "
        f"{labels['planted']} swapped labels among {labels['found']} suspects, the "
        f"{suspects['found']} that cleanlab's"
    )


def listing():
    """What a million images take to list and check."""
    found = {kind: [one for one in lines("listing") if one["kind"] == kind]
             for kind in ("folder", "csv", "parquet")}  # fmt: skip
    assert {one["images"] for one in lines("listing")} == {10**6}

    def cost(one):
        return f"{one['cpu']:.0f} CPU seconds and {one['peak'] / 1e9:.2f} GB"

    first, last = sorted(found["folder"], key=lambda one: one["cpu"])
    yield f"{first['cpu']:.0f} to {cost(last)}"
    yield f"{first['seconds']:.0f} seconds on two cores with a load of {first['load']:.0f}"
    yield from (cost(one) for kind in ("csv", "parquet") for one in found[kind])


def imbalance():
    """Rows of metrics.md: test top-1 of each answer to imbalanced classes."""
    yield from imbalance_study.table(lines("imbalance"))


def label_lift():
    """The README's sentence about MAE on CIFAR-10 with 5,000 labels."""
    rows = [row.split(" | ") for row in labels() if row.startswith("| 5,000")]
    top1 = {row[1]: row[4].partition(" ±")[0] for row in rows}
    yield f"lift a small ViT from {top1['random weights']} to {top1['MAE']} %"


def labels():
    """Rows of unlabeled.md: what the study of labels found after fine-tuning, and by neighbors."""
    records = Records(FOLDER / "label_efficiency.jsonl")
    study = label_efficiency.LabelStudy(FOLDER, records, FOLDER / "label_efficiency", "small")
    yield from label_efficiency.table(study)
    largest = 0.0
    for (arm, count), p in label_efficiency.p_values(study).items():
        ahead = label_efficiency.verdict(study, arm, count).startswith("ahead")
        assert ahead == (arm == "MAE" and count >= 500)  # as the page says
        largest = max(largest, p * ahead)
    yield f"p is at most {largest:.3f}"
    low = [
        100 * line["measures"]["top1"]
        for line in records
        if line["arm"] == label_efficiency.CONTROL and line["labels"] == 50
        if line["seed"] == 0 and line["rate"] in (3e-6, 1e-5, 3e-5)
    ]
    assert len(low) == 3
    yield f"3e-6 to 3e-5 are {max(low) - min(low):.0f} point apart"
    yield from label_efficiency.neighbors(study)


def mixed_aspect():
    """Test top-1 of both arms, and the difference, on photos of mixed aspect."""
    *arms, ahead = aspect_study.table(lines("mixed_aspect"))
    flops = {row.split("|")[2].strip() for row in arms}
    assert len(flops) == 1  # the comparison is at equal compute
    square, native = (row.split("|")[3].strip() for row in arms)
    yield f"{native} % at their own aspect and {square} % as squares"
    yield f"{ahead.removeprefix('native - square: ')} points (95 %)"


def student(values):
    """Half the 95 % interval of a mean, by Student's t."""
    error = statistics.stdev(values) / len(values) ** 0.5
    return scipy.stats.t.ppf(0.975, len(values) - 1) * error


def gpu():
    """Training steps on the card, as rows of gpu.md, and the runs that were resumed there."""
    rows, resumed = {}, []
    for line in lines("gpu"):
        if "images_per_second" in line:
            yield f"logged {line['images_per_second']:,} images/s with the explicit attention"
            continue
        if "compared" not in line:
            resumed.append(line)
            continue
        (one,) = line["compared"]
        for result in one["results"]:
            name = result["name"].replace("vit_jax", f"vit_jax, {line['work']['attention']}")
            rows[line["work"]["model"], name] = (one, result)
    for (model, name), (one, result) in rows.items():
        seconds = statistics.median(result["seconds"])
        _, peer = rows[model, "timm, compiled"]
        ratio = statistics.median(peer["seconds"]) / seconds
        mfu = one["flops"] / seconds / one["peak_flops"]
        yield (
            f"| {model}, {one['amount']} | {name} | {one['amount'] / seconds:,.0f} | {mfu:.0%} "
            f"| {result['peak'] / 2**30:.1f} GiB | {ratio:.2f}x |"
        )
    assert not any(line["differ"] or not line["losses_equal"] for line in resumed)
    yield f"{len(resumed)} runs were stopped and resumed on that GPU, and no bit of their"


def estimate(flops, width, examples, where):
    """Hours of training on a slice, and the share of its peak that `preflight` expects."""
    generation, cores = where.split("-")
    chip = topologies.CHIPS[generation]
    mfu, _ = program.MFU[width]
    return 3 * flops * examples / (mfu * chip.flops * int(cores) / chip.cores) / 3600, mfu


def public_runs():
    """Rows of preflight.md about runs that others have published."""
    for text, name, epochs, where, measured in (
        ("ViT-S/16, ImageNet-1k, 90 epochs, v3-8, big_vision", "ViT-S/16", 90, "v3-8", "6 to 7.4"),
        ("DeiT-B/16, ImageNet-1k, 300 epochs, v4-64, deit3-jax", "ViT-B/16", 300, "v4-64", "4.7"),
    ):
        width, flops = cost(name, (224, 224))
        hours, mfu = estimate(flops, width, IMAGENET * epochs, where)
        yield f"| {text} | {measured} hours | {hours:.1f} hours at {mfu:.0%} |"
    for text, name, width, printed in (
        ("ViT-L/16, ImageNet-21k, 90 epochs, TPUv3, the paper", "ViT-L_16-i21k-90ep", 1024, "230"),
        ("ViT-H/14, JFT, 14 epochs, TPUv3, the paper", "ViT-H_14-jft-14ep", 1280, "2,500"),
    ):
        stem, _, epochs = name.removesuffix("ep").rpartition("-")
        (report,) = (  # recorded once for all lengths
            one
            for one in batch.read_reports(FOLDER / "preflight-table3.jsonl").values()
            if one.topology == "v3-128" and one.name.startswith(f"pretrain/{stem}-")
        )
        mfu, _ = program.MFU[width]
        recorded = report.name.removesuffix("ep").rpartition("-")[2]
        days = report.run(mfu)["core_days"] * int(epochs) / int(recorded)
        yield f"| {text} | {printed} core-days | {days:,.0f} core-days at {mfu:.0%} |"


@functools.cache
def cost(variant, size):
    """The width of a variant, as `preflight` groups them, and the FLOPs of an image."""
    model = models.complete(config.Model(variant=variant, num_classes=1000))
    width = min(program.MFU, key=lambda known: abs(math.log(known / model.width)))
    return width, models.create(model, image_size=size).flops


def deit():
    """Rows of paper.md about DeiT: the estimate for all stages of a row, and its chip-hours."""
    for name in (name for name in catalog.names() if name.startswith(("deit/", "deit3/"))):
        if name.endswith("-to-224"):
            continue
        stages = [one for one in (name, f"{name}-to-224") if one in catalog.names()]
        hours = 0.0
        for stage in stages:
            cfg = config.build(catalog.load_values(stage))
            width, flops = cost(cfg.model.variant, cfg.data.image_size)
            examples = cfg.train.duration.amount * IMAGENET
            hours += estimate(flops, width, examples, "v4-64")[0]
        minutes = round(60 * hours)
        yield f" | {minutes // 60}:{minutes % 60:02} | {32 * hours:,.0f} |"


def parity():
    """Errors of each kind of weights, one row of the table each."""
    return (weights_parity.row(line) for line in lines("parity"))


QUOTED = {
    "README.md": (readme, published, rows_of_table3, peaks, commands, label_lift),
    "docs/adapt.md": (soup,),
    "docs/cifar10.md": (cifar10,),
    "docs/own_images.md": (laptop, planted_errors),
    "docs/metrics.md": (imbalance,),
    "docs/paper.md": (paper, config_names, paper_findings, deit),
    "docs/preflight.md": (table3, newest_libtpu, public_runs, unlabeled_programs),
    "docs/devices.md": (bfloat16_step,),
    "docs/records/README.md": (records, bfloat16_step, peaks, peaks_without_labels, starts),
    "docs/reliability.md": (reliability,),
    "docs/unlabeled.md": (findings, labels, unlabeled_steps, peaks_without_labels),
    "docs/gpu.md": (gpu,),
    "docs/how_it_works.md": (speed,),
    "docs/data.md": (speed, listing, mixed_aspect),
    "docs/weights.md": (published, parity),
}


@functools.cache
def quoted(page):
    """What a page must contain, computed from the records."""
    return tuple(text for one in QUOTED.get(page, ()) for text in one())
