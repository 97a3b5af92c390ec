"""Tests devices: each repeats the same training steps and must get the same bits.

Every device of every process computes alone, on its own copy of state and images, so that a
difference names the device that made it.
"""

import dataclasses
import hashlib
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax import config, models
from vit_jax.runtime import collectives, device
from vit_jax.training import replay
from vit_jax.training.build import build
from vit_jax.training.state import State
from vit_jax.utils import tree_utils
from vit_jax.utils.tree_utils import Tree

STEPS, EXAMPLES = 4, 1_281_167  # steps of a round; images of an epoch, for the learning rate


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The result of a test that found no difference.

    Attributes:
      devices: how many devices were examined.
      rounds: how often each has taken the steps.
      seconds: how long that took.
    """

    devices: int
    rounds: int
    seconds: float


def run(
    variant: str, *, batch: int = 8, hours: float = 0.0, say: Callable[[str], None] = print
) -> Verdict:
    """Runs the same training steps on every device until time is up, and compares all results.

    Args:
      variant: the model, such as `ViT-S/16`.
      batch: images of a step.
      hours: how long to go on; at least two rounds are made.
      say: reports the start.

    Raises Corrupted with the device, its host and the first array that differs, or ConfigError.
    """
    with device.memory_errors("lower --batch"):
        names, mesh = replay.hosts(), Mesh(np.array(jax.devices()), ("device",))
        program, live, images = prepare(create_config(variant, batch), mesh)
        _compare_programs(program, names)
        compiled, began = program.compile(), time.monotonic()
        where = f"devices: {mesh.size}; hosts: {', '.join(dict.fromkeys(names))}"
        say(f"{variant}, {STEPS} steps of {batch} images in each round; {where}")
        # Two rounds at least: a device is compared with itself too, not with the others alone.
        first, rounds = None, 0
        while first is None or rounds < 2 or _goes_on(began, hours):
            found = replay.Digests.from_leaves(tree_utils.flatten(compiled(live, images)), mesh)
            # The parts of all devices are copies of one result here.
            found = dataclasses.replace(found, copies=np.zeros_like(found.copies))
            first, rounds = first or found, rounds + 1
            if wrong := replay.differences(first, found):
                one = wrong[0]
                place = mesh.devices.flat[one.device]
                raise replay.Corrupted(
                    f"round {rounds}: {place} ({place.device_kind}) of "
                    f"{names[place.process_index]}: {one.between} of {one.name} differ, "
                    f"{len(wrong)} differences in all; leave this machine out"
                )
    return Verdict(mesh.size, rounds, time.monotonic() - began)


def create_config(variant: str, batch: int) -> config.Config:
    """The config of a model that trains on synthetic images."""
    model = models.complete(config.Model(variant=variant, num_classes=1000))
    cfg = config.Config(
        model=model,
        data=config.Data(source="synthetic"),
        train=config.Train(batch_size=batch, clip_norm=1.0),
    )
    models.check_model(cfg.model, cfg.data.image_size)
    return cfg


def prepare(cfg: config.Config, mesh: Mesh) -> tuple[jax.stages.Lowered, State, Tree]:
    """The program of a round, and its arguments: a state and images for each device."""
    # For one device, whatever their number: each repeats the whole step.
    trainer = build(cfg, EXAMPLES, devices=jax.devices()[:1])
    # The same images on every host, which is what their results are compared by.
    drawn = np.random.default_rng(0)
    shape = (STEPS, *trainer.batch_shapes["image"].shape)
    batches = {
        "image": drawn.integers(0, 256, shape, dtype=np.dtype(cfg.data.pixel_type)),
        "label": drawn.integers(0, 1000, shape[:2], dtype=np.int32),
    }
    split = NamedSharding(mesh, P("device"))

    def copies(tree: Tree) -> Tree:
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (mesh.size, *x.shape)), tree)

    live = jax.jit(lambda: copies(trainer.create_state()), out_shardings=split)()
    images = jax.jit(copies, out_shardings=split)(batches)

    def steps(live: State, batches: Tree) -> tuple[State, Tree]:
        return jax.lax.scan(lambda live, batch: trainer.step(live, batch, None), live, batches)

    # Split along the mapped axis, the program has no collective: each device computes alone.
    lowered = jax.jit(jax.vmap(steps), out_shardings=split).lower(live, images)
    return lowered, live, images


def _compare_programs(program: jax.stages.Lowered, names: list[str]) -> None:
    """Raises ConfigError if a host has lowered another program: other versions, other code."""
    if jax.process_count() == 1:
        return
    digests = collectives.gather_texts(hashlib.sha256(program.as_text().encode()).hexdigest(), 64)
    other = [name for name, digest in zip(names, digests, strict=True) if digest != digests[0]]
    if other:
        raise config.ConfigError(
            f"{other[0]}: compiles another program than {names[0]}; install the same versions "
            "of vit_jax, jax and Python on all hosts"
        )


def _goes_on(began: float, hours: float) -> bool:
    """Whether there is time left, by the first process's clock."""
    # One clock for all: a process that ended alone would leave the others in a collective.
    return collectives.broadcast_from_main(lambda: time.monotonic() - began < 3600 * hours)
