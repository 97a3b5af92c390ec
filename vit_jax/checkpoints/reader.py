"""Reading checkpoints back, onto whatever devices there are, and checking every array."""

import contextlib
import errno
import os
from collections.abc import Iterator, Mapping

import jax
import numpy as np
from etils import epath

from vit_jax.checkpoints import digests, orbax_logging
from vit_jax.checkpoints import record as records
from vit_jax.runtime import collectives
from vit_jax.utils import messages, tree_utils
from vit_jax.utils.errors import CheckpointError, DamagedCheckpoint
from vit_jax.utils.tree_utils import Tree

# Words in orbax's errors that say nothing about the checkpoint itself.
PASSING = (
    *map(os.strerror, {*records.PASSING, errno.EACCES}),
    "RESOURCE_EXHAUSTED", "PERMISSION_DENIED", "UNAVAILABLE", "DEADLINE_EXCEEDED",
    "UNAUTHENTICATED",
)  # fmt: skip


def restore_subtree(directory: epath.PathLike, step: int, target: Tree) -> Tree:
    """Part of a checkpoint, such as `{"params": ...}`, verified by its digests.

    Args:
      directory: the folder of checkpoints; it is only read.
      step: a committed step; `record.find_step` chooses one.
      target: tree of ShapeDtypeStructs with shardings, for any devices, whose names all occur in
        the checkpoint.

    Raises CheckpointError if the step is missing or damaged or the target does not fit it.
    """
    return restore_exactly(records.absolute(directory), step, target, whole=False)[0]


def restore_exactly(
    directory: epath.Path, step: int, target: Tree, *, whole: bool
) -> tuple[Tree, records.Commit]:
    """Like `restore`, but damage raises a CheckpointError that names the alternatives."""
    try:
        return restore(directory, step, target, whole=whole)
    except DamagedCheckpoint as problem:
        others = collectives.broadcast_from_main(lambda: records.steps(directory))
        raise CheckpointError(
            f"{records.folder(directory, step)}: damaged: {problem}; checkpoints there: {others}"
        ) from problem


def restore(
    directory: epath.Path, step: int, target: Tree, *, whole: bool
) -> tuple[Tree, records.Commit]:
    """The verified state, or the part of it that `target` names, and the public record.

    Raises DamagedCheckpoint; CheckpointError if the target does not fit, or if the checkpoint
    cannot be read for now.
    """
    import orbax.checkpoint as ocp  # half a second that `predict` with a file need not wait for

    path = records.folder(directory, step)
    commit = collectives.broadcast_from_main(lambda: records.read_commit(path))
    wanted = tree_utils.flatten(target)
    # Before anything is read: what does not fit must not be taken for damage.
    _check_fits(path, commit["leaves"], wanted, whole=whole)
    with _in_every_process():  # each reads its share of the files
        records.check_files(path, commit, slice(jax.process_index(), None, jax.process_count()))
    places = {
        name: leaf.sharding or jax.sharding.SingleDeviceSharding(jax.devices()[0])
        for name, leaf in wanted.items()
    }
    full = {name: leaf for name, leaf in wanted.items() if leaf.size}
    arguments = {
        name: ocp.ArrayRestoreArgs(dtype=leaf.dtype, sharding=places[name], global_shape=leaf.shape)
        for name, leaf in full.items()
    }
    arrays: dict[str, jax.Array] = {}
    orbax_logging.silence_orbax()
    with _in_every_process():
        try:
            read = tree_utils.flatten(
                ocp.PyTreeCheckpointHandler().restore(
                    path / records.STATE,
                    args=ocp.args.PyTreeRestore(
                        item=tree_utils.nest(full),
                        restore_args=tree_utils.nest(arguments),
                        partial_restore=True,
                    ),
                )
            )
            arrays = {name: read[name] for name in full}
        except Exception as error:
            said = records.first_line(error)
            # Renaming a good checkpoint because this process is short of something loses steps.
            if isinstance(error, MemoryError) or any(word in str(error) for word in PASSING):
                raise CheckpointError(f"{path}: cannot be read: {said}") from error
            raise DamagedCheckpoint(f"unreadable: {said}") from error
    # Orbax does not save empty arrays.
    for name in wanted.keys() - full.keys():
        empty = np.zeros(wanted[name].shape, wanted[name].dtype)
        arrays[name] = jax.device_put(empty, places[name])
    # In the order of the target: `unflatten` goes by it, and so must the digests, whose program has
    # to be the same in all processes. A difference of sets has an order of its own in each.
    arrays = {name: arrays[name] for name in wanted}
    # Of the arrays as they lie on the devices, so that reading them is verified, too.
    found, _ = digests.Digests(arrays).read()
    wrong = [name for name in found if found[name] != commit["leaves"][name]]
    if wrong:
        raise DamagedCheckpoint(f"{wrong[0]}{messages.more(wrong)} differs from its digest")
    state = jax.tree.unflatten(jax.tree.structure(target), list(arrays.values()))
    return state, records.public_record(commit)


@contextlib.contextmanager
def _in_every_process() -> Iterator[None]:
    """Raises an error of one process in all: others would wait for it in a collective."""
    passing = damage = None
    try:
        yield
    except DamagedCheckpoint as error:
        damage = error
    except CheckpointError as error:
        passing = error
    # Before damage, for which the checkpoint is renamed.
    if said := collectives.first_problem(passing and str(passing)):
        raise CheckpointError(said) from passing
    if said := collectives.first_problem(damage and str(damage)):
        raise DamagedCheckpoint(said) from damage


def _check_fits(
    path: epath.Path,
    saved: Mapping[str, records.Leaf],
    wanted: Mapping[str, jax.ShapeDtypeStruct],
    *,
    whole: bool,
) -> None:
    """Raises CheckpointError unless names, shapes and dtypes match the checkpoint's."""
    missing = [name for name in wanted if name not in saved]
    if missing:
        raise CheckpointError(
            f"{path}: does not fit this config: it has no {missing[0]}{messages.more(missing)}"
        )
    extra = [name for name in saved if name not in wanted] if whole else []
    if extra:
        raise CheckpointError(
            f"{path}: does not fit this config, which has no {extra[0]}{messages.more(extra)}"
        )
    for name, leaf in wanted.items():
        old = f"{saved[name]['dtype']}{saved[name]['shape']}"
        new = f"{leaf.dtype}{list(leaf.shape)}"
        if old != new:
            raise CheckpointError(
                f"{path}: does not fit this config: {name} is {old} there and {new} here"
            )
