"""Repeats the home study with other pre-training seeds: the table of docs/paper.md and its tests.

    python -m research.home_repetitions run --seeds=0,1,2 --rows=ViT-100,ResNet-100
    python -m research.home_repetitions table

A repetition is what `vit_jax reproduce home` does for a row: pre-training, here with a seed of its
own, 5-shot, the choice of the rate, the final runs. It is done in memory, each run one compiled
loop over its batches, without the checkpoints, logs and processes of a run directory: the same
batches, steps and choice, several times as fast. `run` adds a line for each repetition to
docs/records/home.jsonl; what is there is not run again.
"""

import argparse
import dataclasses
import functools
import json
import pathlib
import statistics
import tempfile
from typing import NamedTuple

import jax
import numpy as np
from scipy import stats

import runs
from vit_jax import config, weights
from vit_jax.data import pipeline, sources, transforms
from vit_jax.evaluation import evaluation
from vit_jax.runtime import logs, provenance
from vit_jax.studies import transfer
from vit_jax.training import build, run_config, state
from vit_jax.utils import intervals, storage

RESULTS = runs.ROOT / "docs" / "records" / "home.jsonl"
NETWORKS, SHARES = ("ViT", "ResNet"), (25, 50, 100)
IMAGES = {25: 180, 50: 360, 100: 719}
INTERACTION = {(network, share) for network in NETWORKS for share in (100, 25)}
MEASURES = {"5-shot": "five_shot", "fine-tuned": "top1"}


def read(file=RESULTS):
    """The lines of the file: one for each repetition."""
    return [json.loads(line) for line in file.read_text().splitlines()]


def mean_of(line, measure):
    """The result of a repetition in %; of fine-tuning, the mean over its final runs."""
    value = line[MEASURES[measure]]
    return 100 * (statistics.fmean(value) if isinstance(value, list) else value)


def values(lines, network, share, measure):
    """The results of a row's repetitions, by pre-training seed."""
    matching = (line for line in lines if (line["network"], line["share"]) == (network, share))
    return {line["seed"]: mean_of(line, measure) for line in matching}


def spelled(each):
    """Values as docs/paper.md shows them: mean +- half the 95 % interval, and n."""
    half = intervals.half_width(each)
    return (
        f"{statistics.fmean(each):.1f} +- {half:.1f} %" if half is not None else f"{each[0]:.1f} %"
    )


def table(lines):
    """Yields the rows of the table of docs/paper.md."""
    for network in NETWORKS:
        for share in SHARES:
            cells = [list(values(lines, network, share, m).values()) for m in MEASURES]
            if cells[0]:
                shown = " | ".join(map(spelled, cells))
                yield f"| {network} | {IMAGES[share]} | {len(cells[0])} | {shown} |"


class PairedDifference(NamedTuple):
    """The mean of first - second over pairs, half its 95 % interval, and the p of their t-test."""

    mean: float
    half_width: float
    p: float
    count: int


def paired(first, second):
    """The paired t-test of two rows."""
    test = stats.ttest_rel(first, second)
    low, high = test.confidence_interval(0.95)
    return PairedDifference((low + high) / 2, (high - low) / 2, test.pvalue, len(first))


def compare(lines, measure, first, second):
    """The paired difference of two rows, over the seeds that both have."""
    one, two = (values(lines, network, share, measure) for network, share in (first, second))
    seeds = sorted(set(one) & set(two))
    return paired([one[s] for s in seeds], [two[s] for s in seeds])


def comparisons(lines):
    """Yields (measure, first row, second row, paired difference) for all that can be compared."""
    pairs = [(("ResNet", share), ("ViT", share)) for share in SHARES]
    pairs += [((network, 100), (network, 25)) for network in NETWORKS]
    have = {(line["network"], line["share"]) for line in lines}
    for measure in MEASURES:
        for first, second in pairs:
            if {first, second} <= have:
                yield measure, first, second, compare(lines, measure, first, second)


def interaction(lines, measure):
    """How much more the ViT gains from four times the images than the ResNet, paired."""
    rows = sorted(INTERACTION, key=lambda row: (row[0] != "ViT", row[1] != 100))
    by_row = [values(lines, *row, measure) for row in rows]
    seeds = sorted(set.intersection(*map(set, by_row)))
    gains = [[by_row[i][s] - by_row[i + 1][s] for s in seeds] for i in (0, 2)]
    return paired(*gains)


@functools.cache
def batches(data, seed, size, steps):
    """The images and labels of all steps of a run."""
    source = sources.open_source(data, data.train_split, num_classes=None, train=True)
    loaded = pipeline.batches(
        source, transforms.train_transforms(data), data,
        seed=seed, batch_size=size, rows=np.arange(size), train=True, stop_step=steps,
    )  # fmt: skip
    with loaded:
        each = [{key: np.array(one[key]) for key in ("image", "label")} for one in loaded]
    return {key: np.stack([one[key] for one in each]) for key in ("image", "label")}


@functools.cache
def compiled(cfg):
    """Model, optimizer and loop of a config; none of them depends on its seed."""
    trainer = build.build(cfg, examples=1, devices=jax.devices()[:1])  # durations are in steps

    def step(state, batch):
        return trainer.step(state, batch, None)

    return trainer, jax.jit(lambda state, batches: jax.lax.scan(step, state, batches))


def trained(cfg, start=None):
    """The state of a run at its end.

    Durations of the config are in steps, and its classes known. `start` has the config and the
    parameters of the run that it begins with.
    """
    trainer, loop = compiled(dataclasses.replace(cfg, seed=0))
    live = jax.jit(dataclasses.replace(trainer, cfg=cfg).create_state)()
    if start is not None:
        cfg_before, params = start
        facts = weights.ModelSpec(model=cfg_before.model, data=cfg_before.data)
        fitted, _ = weights.fit_params(params, facts, trainer.model, keep_head=False)
        live = state.begin_with(
            live, fitted, trainer.trainable, trainer.objective, trainer.optimizer
        )
    steps = int(cfg.train.duration.amount)
    live, _ = loop(live, batches(cfg.data, cfg.seed, cfg.train.batch_size, steps))
    return jax.device_get(live)


def measured(cfg, params):
    """The results of the evaluation at the end of a run."""
    results = {}
    for name, evaluator in evaluation.open_evaluation(cfg).evaluators.items():
        prefix = "" if name == "test" else f"{name}/"
        found = evaluator(params, stop=lambda: False) or {}
        results |= {f"{prefix}{key}": value for key, value in found.items()}
    return results


def repeat(network, share, seed):
    """The line of one repetition."""
    name = f"home/{network}-half" + ("" if share == 100 else f"-{share}")
    few = {"evaluation.fewshot": "digits", "evaluation.shots": "5"}
    half = config.with_classes(run_config.resolve(name, few | {"seed": str(seed)}), 5)
    params = trained(half)["params"]

    machine = provenance.fields("cpu", {"jax": jax.__version__})
    failed = {"state": "failed", "why": "not finite", "machine": machine | {"devices": 1}}

    def run_cells(cells, workdir, shares, *, started, ended, watch):
        for cell in cells:
            started(cell)
            cfg = config.with_classes(cell.cfg, 10)
            found = trained(cfg, (half, params))
            if found["bad_steps"]:
                ended(cell, 0.0, failed)
            else:
                results = measured(cfg, found["params"])
                done = {"state": "done", "steps": int(found["step"]), "results": results}
                ended(cell, 0.0, done | {"machine": machine | {"devices": 1}})

    plan = transfer.create_plan(f"home/{network}-digits", {"init_from": "none"})
    with tempfile.TemporaryDirectory() as folder:
        found = transfer.perform(plan, pathlib.Path(folder), run=run_cells)
    held_out = {}
    for cell in found["cells"]:
        if cell["stage"] == "choose":
            value = cell["results"] and cell["results"]["top1"]
            held_out.setdefault(f"{cell['lr']:g}", []).append(value)
    return {
        "network": network, "share": share, "seed": seed,
        "five_shot": measured(half, params)["fewshot/digits/5shot"],
        "held_out": held_out, "rate": found["selected"]["lr"],
        "top1": found["results"]["top1"]["values"],
        **machine,
    }  # fmt: skip


def run_all(rows, seeds, output):
    """Runs the repetitions that are not in the file yet, and adds them."""
    logs.setup()
    for seed in seeds:
        for row in rows:
            network, share = row.split("-")
            there = read(output) if output.exists() else []
            key = {"network": network, "share": int(share), "seed": seed}
            if any(key.items() <= line.items() for line in there):
                continue
            storage.append_line(output, repeat(network, int(share), seed))


def main():
    """Adds repetitions to the record, or prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("--seeds", default="0,1,2,3,4,5,6,7,8,9")
    parser.add_argument("--rows", default=",".join(f"{n}-{s}" for n in NETWORKS for s in SHARES))
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS)
    given = parser.parse_args()
    if given.what == "run":
        seeds = [int(seed) for seed in given.seeds.split(",")]
        run_all(given.rows.split(","), seeds, given.results)
        return
    lines = read(given.results)
    print("\n".join(table(lines)))
    for measure, first, second, found in comparisons(lines):
        print(f"{measure}: {first} - {second}: {found}")
    if {(line["network"], line["share"]) for line in lines} >= INTERACTION:
        for measure in MEASURES:
            print(f"{measure}: what the ViT gains more: {interaction(lines, measure)}")


if __name__ == "__main__":
    main()
