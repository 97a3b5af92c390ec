"""Flips bits in training steps, and looks whether `train.replay` finds them before a save.

    python -m research.corruption --flips=1000 --steps=100000     continues the record
    python -m research.corruption --cost --seed=1                  what a replay costs

Everything happens in one process with two simulated devices, half of the clean steps with one.
Flips hit images, parameters and moments of one device between steps, and patch embeddings, hidden
layers, pooled features and gradients within the compiled step; half of them come again when the
step is repeated. Clean steps are all replayed, and none may be reported. Batches of both are
appended to docs/records/corruption.jsonl, each with its seed, until there are as many as asked for.
"""

import argparse
import collections
import dataclasses
import functools
import os
import pathlib
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import bit_flips
from research.faults import lines_of
from stepping import Stepper, batch_of, configure
from vit_jax.benchmarks import turns
from vit_jax.models import layers, vit
from vit_jax.pages.markdown import grid
from vit_jax.runtime import device, provenance
from vit_jax.training import replay, sharding
from vit_jax.utils import storage

ROOT = pathlib.Path(__file__).resolve().parents[1]
RECORD = ROOT / "docs/records/corruption.jsonl"
WITHIN = ("patch embeddings", "hidden layers", "pooled features", "gradients")
BETWEEN = ("images", "parameters", "moments")
FLIPS, STEPS = 100, 2000  # of a batch
CFG = {"optimizer": {"name": "adam", "lr": 1e-3, "moment_dtype": "bfloat16"}, "train": {"ema": 0.5}}


@jax.custom_jvp
def flip_within(x, element, mask):
    """A float32 array with bits flipped in one element, inside a program."""
    words, place = jax.lax.bitcast_convert_type(x, jnp.uint32), jnp.zeros(x.shape, jnp.uint32)
    for axis, size in enumerate(x.shape):
        place = place * np.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis)
    hit = jnp.where(place == element % np.uint32(x.size), mask, np.uint32(0))
    return jax.lax.bitcast_convert_type(words ^ hit, x.dtype)


flip_within.defjvps(lambda tangent, *_: tangent, None, None)


def faulty_step(trainer):
    """A compiled step (state, batch, flips), where flips are (element, mask) by site."""
    flips = {}

    def hooked(site, function):
        def wrapper(*args, **keywords):
            result = function(*args, **keywords)
            return flip_within(result, *flips[site]) if site in flips else result

        return wrapper

    def update(grads, state, params=None):
        kernel = hooked("gradients", lambda: grads["head"]["kernel"])()
        return trainer.trainer.optimizer.update(
            grads | {"head": grads["head"] | {"kernel": kernel}}, state, params
        )

    tx = optax.GradientTransformation(trainer.trainer.optimizer.init, update)  # pyright: ignore
    pure = dataclasses.replace(trainer.trainer, optimizer=tx).step

    def faulty(state, batch, given):
        flips.update({site: tuple(one) for site, one in zip(WITHIN, given, strict=True)})
        return pure(state, batch)

    places = jax.tree.map(lambda leaf: leaf.sharding, trainer.trainer.state_shapes)
    whole = jax.sharding.NamedSharding(trainer.mesh, jax.sharding.PartitionSpec())
    sites = (
        (vit.ViT, "patches", "patch embeddings"),
        (layers.Mlp, "__call__", "hidden layers"),
        (vit.ViT, "pool", "pooled features"),
    )
    sound = [(owner, name, getattr(owner, name)) for owner, name, _ in sites]
    try:
        for (owner, name, site), (_, _, function) in zip(sites, sound, strict=True):
            setattr(owner, name, hooked(site, function))
        with jax.set_mesh(trainer.mesh):
            jitted = jax.jit(faulty, donate_argnums=0, out_shardings=(places, whole))
            given = jax.ShapeDtypeStruct((len(WITHIN), 2), jnp.uint32)
            return jitted.lower(trainer.trainer.state_shapes, put(trainer, 0), given).compile()
    finally:
        for owner, name, function in sound:
            setattr(owner, name, function)


def put(trainer, number):
    """The batch of a step on the devices."""
    size = trainer.cfg.train.batch_size
    rows = sharding.host_rows(trainer.mesh, size)
    return sharding.put_batch(batch_of(number, rows=size), trainer.mesh, size, rows)


def bits(result):
    """The bytes of every device's part of a step's result."""
    leaves = jax.tree.leaves(result)
    return [np.asarray(s.data).tobytes() for leaf in leaves for s in leaf.addressable_shards]


class Faulty:
    """A step that flips a bit of one place in chosen calls.

    Attributes:
      results: the bits of each call's results.
    """

    def __init__(self, trainer, compiled, place, rng, calls):
        self.trainer, self.compiled, self.place = trainer, compiled, place
        self.calls, self.results, self.rng = calls, [], rng

    def __call__(self, state, batch):
        """Takes a step, with the flips of this call."""
        given = np.zeros((len(WITHIN), 2), np.uint32)
        if len(self.results) + 1 in self.calls:
            element, bit = self.rng.integers(2**20, size=2).tolist()
            if self.place in WITHIN:
                given[WITHIN.index(self.place)] = element, 1 << bit % 32
            else:
                state, batch = self._struck(state, batch, element, bit)
        result = self.compiled(state, batch, given)
        self.results.append(bits(result))
        return result

    def _struck(self, state, batch, element, bit):
        devices = list(self.trainer.mesh.devices.flat)
        device = devices[self.rng.integers(len(devices))]
        if self.place == "images":
            image = bit_flips.flipped(batch["image"], device, element, bit)
            return state, batch | {"image": image}
        part = {"parameters": "params", "moments": "opt"}[self.place]
        leaves, structure = jax.tree.flatten(state[part])
        chosen = self.rng.integers(len(leaves))
        leaves[chosen] = bit_flips.flipped(leaves[chosen], device, element, bit)
        return state | {part: jax.tree.unflatten(structure, leaves)}, batch


def strike(trainer, compiled, count, rng):
    """Counts by place: flips that changed a result, were found, and got through."""
    counts = collections.defaultdict(collections.Counter)
    for number in range(count):
        place = (*WITHIN, *BETWEEN)[rng.integers(len(WITHIN) + len(BETWEEN))]
        again = bool(number % 2)
        batch = put(trainer, int(rng.integers(2**31)))
        clean = bits(compiled(replay._copied(trainer.state), batch, np.zeros((4, 2), np.uint32)))
        faulty = Faulty(trainer, compiled, place, rng, {1, 3} if again else {1})
        lines = []
        checked = replay.Replay(
            faulty,  # pyright: ignore[reportArgumentType]
            trainer.mesh, every=1, first=0, say=lines.append,
        )  # fmt: skip
        try:
            saved = bits(checked(trainer.state, batch))
        except replay.Corrupted:
            saved = None
        changed = faulty.results[0] != faulty.results[1]
        counts[place]["struck"] += 1
        counts[place]["changed"] += changed
        counts[place]["found"] += changed and bool(lines)
        counts[place]["false alarms"] += bool(lines) and not changed
        counts[place]["ended the run"] += saved is None
        counts[place]["saved wrong"] += saved is not None and saved != clean
    return {place: dict(found) for place, found in counts.items()}


def clean(trainer, steps, seed):
    """The number of differences that replaying the steps of a sound device reports."""
    lines = []
    checked = replay.Replay(trainer.compiled, trainer.mesh, every=1, first=0, say=lines.append)
    live = replay._copied(trainer.state)
    batches = [put(trainer, seed * 1000 + number) for number in range(50)]
    for number in range(steps):
        try:
            live, _ = checked(live, batches[number % len(batches)], None)
        except replay.Corrupted as error:
            lines.append(str(error))
    assert int(live["step"]) == int(trainer.state["step"]) + steps
    return len(lines)


def totals(lines):
    """Counts by place, and the clean steps with their alarms."""
    counts = collections.defaultdict(collections.Counter)
    for line in lines:
        for place, found in line.get("flips", {}).items():
            counts[place].update(found)
    steps = sum(line.get("steps", 0) for line in lines)
    return counts, steps, sum(line.get("alarms", 0) for line in lines)


HEADER = ("struck", "changed", "found", "false alarms", "ended the run", "saved wrong")


def markdown(lines):
    """The lines of the table."""
    counts, steps, alarms = totals(lines)
    together = collections.Counter()
    for found in counts.values():
        together.update(found)
    rows = [
        (place, *(found[key] for key in HEADER))
        for place, found in (*sorted(counts.items()), ("all", together))
    ]
    return [
        *grid(("bit of", *HEADER), rows),
        "",
        f"{steps:,} clean steps, all replayed: {alarms} false alarms.",
    ]


def cost(seed, rounds=7, steps=10):
    """Yields (K, time of replaying every K-th step over that of none, less 1: median and range)."""
    wide = {"patch_size": 1, "width": 128, "depth": 4, "mlp_dim": 512, "heads": 4}
    train = CFG["train"] | {"batch_size": 64}
    trainer = Stepper(configure(**CFG | {"train": train}, model=wide), devices=1)
    begun = trainer.trainer.init_state()
    batch, states, programs = put(trainer, seed), {}, {}

    def take_steps(every, run):
        for _ in range(steps):
            states[every], _ = run(states[every], batch, None)
        jax.block_until_ready(states[every])

    for every in (None, 2, 5, 10):
        run = trainer.compiled
        if every:
            run = replay.Replay(run, trainer.mesh, every=every, first=0, say=print)
        states[every] = replay._copied(begun)
        programs[str(every)] = functools.partial(take_steps, every, run)
        programs[str(every)]()
    alone, *others = turns.take(programs, rounds=rounds)
    for one in others:
        more = [b / a - 1 for a, b in zip(alone.cpu, one.cpu, strict=True)]
        yield int(one.name), float(np.median(more)), min(more), max(more)


def main():
    """Continues the record and prints its table, or measures what a replay costs."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--flips", type=int, default=0, help="that change a result, in all")
    parser.add_argument("--steps", type=int, default=0, help="clean steps, in all")
    parser.add_argument("--cost", action="store_true", help="time replays instead")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
    jax.config.update("jax_platforms", "cpu")
    device.step_by_step()  # as `vit_jax train` does
    if options.cost:
        for every, median, least, most in cost(options.seed):
            bar = 1 / every + 0.02
            print(f"| {every} | {median:.1%} ({least:.1%} to {most:.1%}) | {bar:.1%} |")
        return 0
    trainers = [Stepper(configure(**CFG), devices=count) for count in (1, 2)]
    for trainer in trainers:
        trainer.run(20)  # as flips in moments that are zero change little
    trainer = trainers[1]
    compiled = faulty_step(trainer) if options.flips else None
    while True:
        lines = lines_of(RECORD)
        counts, steps, _ = totals(lines)
        began = time.process_time()
        line: dict[str, Any] = {"seed": len(lines)}
        if sum(found["changed"] for found in counts.values()) < options.flips:
            line["flips"] = strike(trainer, compiled, FLIPS, np.random.default_rng(len(lines)))
        elif steps < options.steps:
            line |= {
                "steps": STEPS,
                "alarms": clean(trainers[steps // STEPS % 2], STEPS, len(lines)),
            }
        else:
            break
        line["cpu_seconds"] = round(time.process_time() - began, 1)
        line |= provenance.fields("cpu", {"jax": jax.__version__})
        storage.append_line(RECORD, line)
    print("\n".join(markdown(lines)))
    counts, _, alarms = totals(lines)
    wrong = any(one["changed"] != one["found"] or one["saved wrong"] for one in counts.values())
    return int(wrong or alarms > 0)


if __name__ == "__main__":
    sys.exit(main())
