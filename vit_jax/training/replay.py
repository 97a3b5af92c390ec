"""Silent data corruption: steps that run twice must agree in every bit.

A step is a pure function of state and batch, and a sound device computes the same bits from the
same inputs. One that does not is found by repeating steps. Both repetitions run the program of
the other steps, so that a run with replayed steps gives the results of one without.
"""

import dataclasses
import functools
import platform
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax import config
from vit_jax.checkpoints import digests
from vit_jax.runtime import collectives
from vit_jax.training import sharding
from vit_jax.training.state import State
from vit_jax.training.step import Metrics, Step
from vit_jax.utils import tree_utils
from vit_jax.utils.tree_utils import Tree

# A bit flipped by a particle is right the next time; a device that differs again is broken.
ATTEMPTS = 2


def checked(
    step: Step, cfg: config.Config, mesh: Mesh, first: int, say: Callable[[str], None]
) -> Step:
    """The compiled step, or a `Replay` of it where `train.replay` is set."""
    every = cfg.train.replay
    return step if every is None else Replay(step, mesh, every=every, first=first, say=say)


class Corrupted(config.UserError):
    """A device has computed different results from the same inputs."""

    exit_code = 71


@dataclasses.dataclass(frozen=True)
class Difference:
    """An array that has different bits on a device.

    Attributes:
      device: the device's place in the mesh.
      name: of the array, such as `params/head/kernel`.
      between: `repetitions` of the step, or `copies` that devices hold of one array.
    """

    device: int
    name: str
    between: str


class Replay:
    """A compiled step that runs every K-th step twice, and compares both results.

    Compared are the new state with its moments and average, the loss and the other metrics, on
    every device; and the copies of an array that several devices hold. A difference is reported
    and the step repeated; a second one raises Corrupted, before anything is saved.
    """

    def __init__(
        self, step: Step, mesh: Mesh, *, every: int, first: int, say: Callable[[str], None]
    ) -> None:
        """Repeats the steps whose number `every` divides.

        Args:
          step: the compiled step; may donate its state.
          mesh: of the state.
          every: N of `train.replay`.
          first: the step that the run begins or resumes with.
          say: reports differences.
        """
        self._step, self._mesh, self._say = step, mesh, say
        self._every, self._number = every, first
        self._hosts = hosts()

    def __call__(self, state: State, *inputs: Tree) -> tuple[State, Metrics]:
        """The state after a step, and its metrics; raises Corrupted."""
        self._number += 1
        if self._number % self._every:
            return self._step(state, *inputs)
        for attempt in range(1, ATTEMPTS + 1):
            # Copies both times: the step donates its state, and another attempt needs it again.
            first = self._digests(self._step(_copied(state), *inputs))
            result = self._step(_copied(state), *inputs)
            found = differences(first, self._digests(result))
            if not found:
                return result
            text = self._describe(found)
            if attempt < ATTEMPTS:
                self._say(f"{text}; repeating the step")
        raise Corrupted(
            f"{text}, and again when repeated: nothing of it is saved; leave the machine out "
            "(`vit_jax selftest` examines one), and resume on another with the same command"
        )

    def _digests(self, result: tuple[State, Metrics]) -> "Digests":
        state, metrics = result
        return Digests.from_leaves(
            tree_utils.flatten({"state": state, "metrics": metrics}), self._mesh
        )

    def _describe(self, found: Sequence[Difference]) -> str:
        devices = sorted({one.device for one in found})
        names = list(dict.fromkeys(one.name.removeprefix("state/") for one in found))
        places = list(self._mesh.devices.flat)
        where = [f"{places[n]} of {self._hosts[places[n].process_index]}" for n in devices[:3]]
        more = [f"{len(devices) - 3} more devices"] if len(devices) > 3 else []
        kinds = " and ".join(dict.fromkeys(one.between for one in found))
        return (
            f"step {self._number}: {kinds} of {names[0]}"
            + (f" and {len(names) - 1} more arrays" if len(names) > 1 else "")
            + f" differ on {', '.join([*where, *more])}"
        )


@dataclasses.dataclass(frozen=True)
class Digests:
    """The digest of each device's part of arrays.

    Attributes:
      names: of the arrays.
      values: (devices, arrays, 2) uint32, devices in the order of the mesh.
      copies: (devices, arrays) int; the first device that holds the same part of an array.
    """

    names: tuple[str, ...]
    values: np.ndarray
    copies: np.ndarray

    @classmethod
    def from_leaves(cls, leaves: Mapping[str, jax.Array], mesh: Mesh) -> "Digests":
        """Digests arrays on a mesh; a collective, so every process must call it."""
        specs = tuple(_spec(leaf) for leaf in leaves.values())
        # Programs with collectives in flight can starve each other on simulated CPU devices.
        jax.block_until_ready(leaves)
        values = np.asarray(_program(mesh, specs)(list(leaves.values())))
        shapes = tuple(leaf.shape for leaf in leaves.values())
        return cls(tuple(leaves), values, _copies(mesh, shapes, specs))


def differences(first: Digests, second: Digests) -> list[Difference]:
    """Arrays that differ between two repetitions, or between copies within the second."""
    found = [
        Difference(int(device), first.names[array], "repetitions")
        for device, array in np.argwhere((first.values != second.values).any(axis=-1))
    ]
    originals = second.values[second.copies, np.arange(len(second.names))]
    for array in np.flatnonzero((second.values != originals).any(axis=(0, 2))):
        values, held, name = second.values[:, array], second.copies[:, array], second.names[array]
        for part in np.unique(held):
            devices = np.flatnonzero(held == part)
            # The majority counts as right: the first copy may be the odd one.
            each, counts = np.unique(values[devices], axis=0, return_counts=True)
            usual = each[counts.argmax()]
            odd = devices[(values[devices] != usual).any(axis=-1)]
            found += [Difference(int(device), name, "copies") for device in odd]
    return found


def _copied(state: State) -> State:
    """A copy, as the step may donate its state."""
    leaves, structure = jax.tree.flatten(state)
    return jax.tree.unflatten(
        structure, sharding.copied(leaves, [leaf.sharding for leaf in leaves])
    )


def _spec(leaf: jax.Array) -> P:
    return leaf.sharding.spec if isinstance(leaf.sharding, NamedSharding) else P()


@functools.cache
def _program(mesh: Mesh, specs: tuple[P, ...]) -> Callable[[list[jax.Array]], jax.Array]:
    """The compiled digest of arrays; its small result is on every device."""

    def parts(arrays: list[jax.Array]) -> jax.Array:
        return jnp.stack([digests.lanes(x) for x in arrays])[None]

    each = jax.shard_map(parts, mesh=mesh, in_specs=(list(specs),), out_specs=P(mesh.axis_names))
    return jax.jit(each, out_shardings=NamedSharding(mesh, P()))


@functools.cache
def _copies(mesh: Mesh, shapes: tuple[tuple[int, ...], ...], specs: tuple[P, ...]) -> np.ndarray:
    def holders(shape: tuple[int, ...], spec: P) -> list[int]:
        parts = NamedSharding(mesh, spec).devices_indices_map(shape)
        first: dict[str, int] = {}
        # By their text: before Python 3.12, a slice has no hash.
        return [first.setdefault(str(parts[d]), n) for n, d in enumerate(mesh.devices.flat)]

    return np.array([holders(*one) for one in zip(shapes, specs, strict=True)]).T


def hosts() -> list[str]:
    """The host name of each process."""
    return collectives.gather_texts(platform.node(), 64)
