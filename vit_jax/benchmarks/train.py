"""Training steps on the device at hand, in turns with a peer that does the same work."""

import contextlib
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence

from vit_jax import config, models
from vit_jax.benchmarks import train_results
from vit_jax.benchmarks.processes import DoesNotFit, Worker
from vit_jax.benchmarks.train_results import Measured, Result, Work
from vit_jax.runtime import backend

OURS = "vit_jax"
PEERS = ("timm", "big_vision")
ROUNDS = 5
LARGEST = 1024  # the first batch to try on an accelerator
ON_CPU = 16
HERE = pathlib.Path(__file__).parent
WORKER = (sys.executable, "-m", "vit_jax.benchmarks.train_worker")
# What a peer imports, and what to install where it is missing. TensorFlow is big_vision's file
# system; it computes nothing in a step.
BIG_VISION = ("jax", "flax", "optax", "absl", "einops", "ml_collections", "scipy", "tensorflow")
NEEDS = {"timm": ("torch", "timm"), "big_vision": BIG_VISION}
PACKAGES = {"absl": "absl-py"}  # whose name is not that of the module


@dataclasses.dataclass(frozen=True, kw_only=True)
class Peer:
    """Whom to compare with: nobody, timm in an interpreter, or a checkout of big_vision."""

    name: str | None = None
    python: str = sys.executable
    path: pathlib.Path | None = None

    def __post_init__(self) -> None:
        if (self.name == "big_vision") != (self.path is not None):
            raise config.ConfigError(
                "bench train: --peer=big_vision and --peer-path=CHECKOUT go together"
            )
        if self.path is not None and not (self.path / "big_vision" / "models" / "vit.py").is_file():
            raise config.ConfigError(f"--peer-path={self.path}: no checkout of big_vision")
        if self.name is not None:
            self._check(NEEDS[self.name])

    def _check(self, packages: Sequence[str]) -> None:
        """Raises ConfigError where the interpreter lacks a package, before anything compiles."""
        code = f"import importlib.util as u; print(*(n for n in {packages} if not u.find_spec(n)))"
        try:
            done = subprocess.run(
                [self.python, "-c", code], capture_output=True, text=True, check=True
            )
        except (OSError, subprocess.CalledProcessError) as error:
            raise config.ConfigError(
                f"--peer-python={self.python}: does not run: {error}"
            ) from None
        if missing := done.stdout.split():
            raise config.ConfigError(
                f"--peer={self.name}: {self.python} has no {' and no '.join(missing)}: install "
                f"{' '.join(PACKAGES.get(name, name) for name in missing)} there, or name another "
                "interpreter by --peer-python"
            )

    def commands(self, work: str) -> dict[str, list[str]]:
        """Returns the command lines of the peer's workers by name."""
        if self.name == "timm":
            script = [self.python, str(HERE / "timm_peer.py"), work]
            return {f"timm, {kind}": [*script, kind] for kind in ("eager", "compiled")}
        if self.name == "big_vision":
            script = [self.python, str(HERE / "big_vision_peer.py"), work, str(self.path)]
            return {"big_vision": script}
        return {}


def works(
    names: Sequence[str],
    sizes: Sequence[int],
    *,
    batch: int | None,
    dtype: str | None,
    attentions: Sequence[str],
) -> list[Work]:
    """Returns every model at every size with every kind of attention.

    The type is bfloat16, on a CPU float32, where none is given.

    Raises ConfigError for a name that is not of a plain ViT, and for sizes that do not divide.
    """
    kinds = {one.name: one for one in dataclasses.fields(config.Model)}["attention"].metadata
    for attention in attentions:
        if attention not in kinds["choices"]:
            choices = ", ".join(kinds["choices"])
            raise config.ConfigError(f"--attention={attention}: must be one of {choices}")
    dtype = dtype or ("float32" if backend.is_cpu_only() else "bfloat16")
    found = []
    for name in names:
        model = models.complete(config.Model(variant=name, num_classes=train_results.CLASSES))
        if not name.startswith("ViT-") or model.patch_size is None:
            raise config.ConfigError(f"--models={name}: must be a ViT, such as ViT-S/16")
        for size in sizes:
            models.check(model, (size, size))
            for attention in attentions:
                found.append(
                    Work(
                        model=name,
                        size=size,
                        patch=model.patch_size[0],
                        width=model.width or 0,
                        depth=model.depth or 0,
                        mlp_dim=model.mlp_dim or 0,
                        heads=model.heads or 0,
                        dtype=dtype,
                        attention=attention,
                        batch=batch,
                    )
                )
    return found


def measure(
    every: Sequence[Work], peer: Peer, *, rounds: int, say: Callable[[str], None]
) -> Iterator[Measured]:
    """Yields the measurements of every work; halves its batch, if none is set, until it fits."""
    for work in every:
        batch = work.batch or _first_batch()
        while True:
            tried = dataclasses.replace(work, batch=batch)
            say(f"{tried.name}, batch {batch}")
            try:
                yield _compare(tried, peer, rounds)
                break
            except DoesNotFit as error:
                if work.batch is not None or batch == 1:
                    raise config.ConfigError(f"bench train: batch {batch}: {error}") from None
                batch //= 2


def _first_batch() -> int:
    return ON_CPU if backend.is_cpu_only() else LARGEST


def _compare(work: Work, peer: Peer, rounds: int) -> Measured:
    """Takes turns with all workers, each round in another order."""
    given = json.dumps(dataclasses.asdict(work))
    commands = {OURS: [*WORKER, given]} | peer.commands(given)
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    cpu: dict[str, list[float]] = {name: [] for name in commands}
    with contextlib.ExitStack() as stack:
        workers, facts = {}, {}
        for name, command in commands.items():  # one compiles at a time
            worker = workers[name] = stack.enter_context(Worker("train", name, command))
            facts[name] = worker.read()
            if facts[OURS]["platform"] == "tpu" and peer.name is not None:
                raise config.ConfigError(
                    f"--peer={peer.name}: a TPU serves one process at a time; measure without it"
                )
        for name in commands:  # two trained-in steps: allocators and caches settle
            warm = workers[name].take(2)
            if name == OURS:
                steps = max(1, round(train_results.TURN / (warm["seconds"] / 2)))
        for turn in range(rounds):
            for name in list(workers) if turn % 2 else list(reversed(workers)):
                took = workers[name].take(steps)
                seconds[name].append(took["seconds"] / steps)
                cpu[name].append(took["cpu"] / steps)
                facts[name]["peak"] = max(facts[name]["peak"], took["peak"])
        load = os.getloadavg()[0]
    results = [
        Result(
            name=name,
            seconds=seconds[name],
            cpu=cpu[name],
            **{key: fact[key] for key in ("peak", "start", "params", "versions")},
        )
        for name, fact in facts.items()
    ]
    device = {key: facts[OURS][key] for key in ("platform", "device", "flops", "peak_flops")}
    return Measured(work=work, results=results, load=load, **device)
