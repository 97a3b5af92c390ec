"""Training steps on the device at hand, in turns with a peer that does the same work."""

import contextlib
import dataclasses
import json
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from vit_jax import config, models
from vit_jax.benchmarks import turns
from vit_jax.benchmarks.turns import OURS, PYTHON, Compared, DoesNotFit, Worker
from vit_jax.runtime import backend

ROUNDS = 5
TURN = 1.0  # seconds that a turn takes at least
CLASSES = 1000
LARGEST, ON_CPU = 1024, 16  # the first batch to try
HERE = pathlib.Path(__file__).parent
WORKER = (*PYTHON, "-m", "vit_jax.benchmarks.train_worker")
# TensorFlow is big_vision's file system; it computes nothing in a step.
BIG_VISION = ("jax", "flax", "optax", "absl", "einops", "ml_collections", "scipy", "tensorflow")
PACKAGES = {"absl": "absl-py", "PIL": "pillow"}  # whose name is not that of the module


class Program(NamedTuple):
    """A program to compare with.

    Attributes:
      objective: what its steps learn, as `StepWork.objective`.
      script: of its workers, beside this file; run by its interpreter.
      needs: what it imports.
      kinds: its ways to compute, a worker each; empty: one.
      source: a file of a checkout that it is imported from, where it is no package.
    """

    objective: str
    script: str
    needs: tuple[str, ...]
    kinds: tuple[str, ...] = ()
    source: str | None = None


TORCH = "torch_peer.py"
PROGRAMS = {
    "timm": Program("supervised", TORCH, ("torch", "timm"), ("eager", "compiled")),
    "big_vision": Program(
        "supervised", "big_vision_peer.py", BIG_VISION, source="big_vision/models/vit.py"
    ),
    "transformers": Program("mae", TORCH, ("torch", "transformers")),
    "dino": Program("dino", TORCH, ("torch", "numpy", "PIL"), source="main_dino.py"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepWork:
    """A step to take: the sizes of a plain ViT, a batch, and how to compute.

    Attributes:
      batch: images of a step; None: the largest power of two that fits, 16 on a CPU.
      dtype: our `model.dtype`; peers compute in bfloat16 unless it is float32.
      attention: our `model.attention`; peers have their own.
      objective: our `objective.name`: supervised, mae or dino.
      remat: our `model.remat`.
    """

    model: str
    size: int
    patch: int
    width: int
    depth: int
    mlp_dim: int
    heads: int
    dtype: str
    attention: str
    batch: int | None
    objective: str = "supervised"
    classes: int = CLASSES
    remat: str = "none"

    @property
    def name(self) -> str:
        """The start of a line about it."""
        what = "" if self.objective == "supervised" else f"{self.objective} of "
        kinds = self.attention if self.remat == "none" else f"{self.attention}, remat {self.remat}"
        return f"{what}{self.model} at {self.size}, batch {self.batch}, {self.dtype}, {kinds}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Peer:
    """The program to compare with, one of `PROGRAMS`, and where it is; by default none."""

    name: str | None = None
    python: str = sys.executable
    path: pathlib.Path | None = None

    def __post_init__(self) -> None:
        if self.name is None:
            given = {"path": self.path, "python": self.python}
            for flag, value in given.items():
                if value not in (None, sys.executable):
                    raise config.ConfigError(
                        f"--peer-{flag}={value}: needs --peer=NAME; set that, or leave this out"
                    )
            return
        program = PROGRAMS[self.name]
        if (program.source is None) != (self.path is None):
            needed = "imported from a checkout; set" if program.source else "a package; leave out"
            raise config.ConfigError(f"--peer={self.name}: is {needed} --peer-path")
        if self.path is not None and program.source and not (self.path / program.source).is_file():
            raise config.ConfigError(f"--peer-path={self.path}: no checkout of {self.name}")
        # Before anything compiles.
        code = (
            "import importlib.util as u; "
            f"print(*(n for n in {program.needs} if not u.find_spec(n)))"
        )
        if missing := output(self.python, code).split():
            raise config.ConfigError(
                f"--peer={self.name}: {self.python} has no {' and no '.join(missing)}: install "
                f"{' '.join(PACKAGES.get(name, name) for name in missing)} there, or name another "
                "interpreter by --peer-python"
            )

    def commands(self, work: str) -> dict[str, list[str]]:
        """The command lines of the peer's workers by name."""
        if self.name is None:
            return {}
        program = PROGRAMS[self.name]
        command = [self.python, str(HERE / program.script), work]
        if program.script == TORCH:
            command.append(self.name)
        if self.path is not None:
            command.append(str(self.path))
        if program.kinds:
            return {f"{self.name}, {kind}": [*command, kind] for kind in program.kinds}
        return {self.name: command}


def check_peer(name: str | None, objective: str) -> None:
    """Raises ConfigError for a peer whose steps learn something else."""
    if name is None or (own := PROGRAMS[name].objective) == objective:
        return
    others = [other for other, one in PROGRAMS.items() if one.objective == objective]
    raise config.ConfigError(
        f"--peer={name}: takes {own} steps, and --objective is {objective}; set --objective={own}, "
        f"or --peer={' or --peer='.join(others)}"
    )


def output(python: str, code: str) -> str:
    """The output of a program in a peer's interpreter; raises ConfigError if that does not run."""
    try:
        return subprocess.run(
            [python, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        raise config.ConfigError(f"--peer-python={python}: does not run: {error}") from None


def works(
    names: Sequence[str],
    sizes: Sequence[int],
    *,
    batch: int | None,
    dtype: str | None,
    attentions: Sequence[str],
    objective: str = "supervised",
    remat: str = "none",
) -> list[StepWork]:
    """Every model at every size with every kind of attention.

    The type is bfloat16, on a CPU float32, where none is given. Raises ConfigError for a name that
    is not of a plain ViT, and for sizes that do not divide.
    """
    kinds = {one.name: one for one in dataclasses.fields(config.Model)}["attention"].metadata
    for attention in attentions:
        if attention not in kinds["choices"]:
            choices = ", ".join(kinds["choices"])
            raise config.ConfigError(f"--attention={attention}: must be one of {choices}")
    dtype = dtype or ("float32" if backend.is_cpu_only() else "bfloat16")
    found = []
    for name in names:
        model = models.complete(config.Model(variant=name, num_classes=CLASSES))
        if not name.startswith("ViT-") or model.patch_size is None:
            raise config.ConfigError(f"--models={name}: must be a ViT, such as ViT-S/16")
        own = {key: getattr(model, key) for key in ("width", "depth", "mlp_dim", "heads")}
        own |= {"model": name, "patch": model.patch_size[0]}
        given = {"dtype": dtype, "batch": batch, "objective": objective, "remat": remat}
        for size in sizes:
            models.check_model(model, (size, size))
            found += [
                StepWork(size=size, attention=attention, **own, **given) for attention in attentions
            ]
    return found


def measure(
    every: Sequence[StepWork], peer: Peer, *, rounds: int, say: Callable[[str], None]
) -> Iterator[tuple[StepWork, Compared]]:
    """Yields each work and its comparison; halves the batch, if none is set, until it fits."""
    for work in every:
        batch = work.batch or (ON_CPU if backend.is_cpu_only() else LARGEST)
        while True:
            tried = dataclasses.replace(work, batch=batch)
            say(tried.name)
            try:
                yield tried, _compare(tried, peer, rounds)
                break
            except DoesNotFit as error:
                if work.batch is not None or batch == 1:
                    raise config.ConfigError(f"bench train: batch {batch}: {error}") from None
                # Every worker starts again: the largest batch is one that all programs can take.
                batch //= 2


def _compare(work: StepWork, peer: Peer, rounds: int) -> Compared:
    given = json.dumps(dataclasses.asdict(work))
    commands = {OURS: [*WORKER, given]} | peer.commands(given)
    with contextlib.ExitStack() as stack:
        workers, facts = {}, {}
        for name, command in commands.items():  # one compiles at a time
            worker = workers[name] = stack.enter_context(Worker("train", name, command))
            facts[name] = worker.answer()
            if facts[OURS]["platform"] == "tpu" and peer.name is not None:
                raise config.ConfigError(
                    f"--peer={peer.name}: a TPU serves one process at a time; measure without it"
                )
        # Two steps that do not count: allocators and caches settle.
        warm = {name: worker.take(2).seconds for name, worker in workers.items()}
        # All programs take as many steps as ours, so that their turns are equal work.
        steps = max(1, round(TURN / warm[OURS]))
        programs = {name: lambda one=one: one.take(steps) for name, one in workers.items()}
        results = [
            dataclasses.replace(
                one,
                facts={
                    **one.facts,
                    **{k: facts[one.name][k] for k in ("start", "params", "versions")},
                },
            )
            for one in turns.take(programs, rounds=rounds)
        ]
    ours = facts[OURS]
    return Compared(
        work=work.name,
        unit="images",
        amount=work.batch or 0,
        results=results,
        flops=ours["flops"],
        peak_flops=ours["peak_flops"],
        device=ours["device"],
    )


def title(device: str | None, rounds: int) -> list[str]:
    """Lines about the measurement and its machine."""
    return [
        "one step: uint8 images on the device -> loss, gradient, Adam; parameters float32; "
        f"{rounds} turns of at least {TURN:g} s; medians over the turns; ratios within each turn",
        "MFU: three forward passes of the images (two FLOPs for each multiply-accumulate) per "
        "second and per dense bfloat16 peak of the device",
        turns.machine(device),
    ]
