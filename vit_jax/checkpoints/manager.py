"""Durable checkpoints: saved asynchronously, committed last, verified on restore.

Orbax writes and reads the arrays, in parallel and for any mesh, but it does not verify them (59 of
60 flipped bits came back as wrong weights), cannot fall back to an older step, and mistakes a
failed save for a successful one. So a checkpoint counts only once its commit record (`record`) has
been written, flushed and read back; restoring compares every array with the digest in that record,
and on a mismatch sets the checkpoint aside and restores the step before it. This replaces Orbax's
own CheckpointManager, which evicts the newest checkpoint when it keeps the best, and silently stops
saving after a rollback.

All processes must call every method in the same order; only process 0 writes records, renames and
deletes, and it chooses the step to restore.
"""

import concurrent.futures
import contextlib
import json
import logging
import math
import shutil
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from vit_jax.checkpoints import digests, orbax_logging, reader
from vit_jax.checkpoints import record as records
from vit_jax.runtime import collectives
from vit_jax.utils import messages, storage, tree_utils
from vit_jax.utils.errors import CheckpointError, DamagedCheckpoint, LeaseLost, UserError
from vit_jax.utils.tree_utils import Tree

log = logging.getLogger("vit_jax")
# Relative to the state's size; orbax also writes a little metadata.
FREE_SPACE = 1.1
TRIES = 10  # to clean up after a failed save, 0.1 s apart


class AllCheckpointsBad(CheckpointError):
    """Checkpoints exist but none can be restored; only the user may decide to start over."""

    exit_code = 78


class SaveFailed(UserError):
    """A checkpoint could not be saved; earlier ones are untouched."""

    exit_code = 70


class Manager:
    """Saves and restores a training state in a directory, and keeps the newest and the best."""

    def __init__(
        self,
        directory: epath.PathLike,
        *,
        keep: int,
        best: str | None,
        check_lease: Callable[[], None] = lambda: None,
    ) -> None:
        """Creates the directory and removes the remains of interrupted saves.

        Args:
          directory: shared by all processes; created if missing.
          keep: number of newest checkpoints to keep, in addition to the best one.
          best: metric that chooses the best, such as `validation/top1`, as `record.score` ranks
            it. None: keep no best checkpoint.
          check_lease: called by process 0 before it writes, renames or deletes; raises LeaseLost
            if another process has taken over the directory.

        Raises CheckpointError if the directory cannot be written or is not shared.
        """
        orbax_logging.silence_orbax()
        self._directory = records.absolute(directory)
        self._keep, self._metric, self._check_lease = keep, best, check_lease
        # Compressing takes as long as the rest of a save, and float32 shrinks by 8 %.
        self._checkpointer = ocp.AsyncCheckpointer(
            ocp.PyTreeCheckpointHandler(use_compression=False)
        )
        # One thread: saves are committed in the order in which they began.
        self._background = concurrent.futures.ThreadPoolExecutor(1, "checkpoint")
        self._pending: concurrent.futures.Future[None] | None = None
        probe = self._directory / collectives.broadcast_from_main(
            lambda: records.prepare_directory(self._directory)
        )
        # Process 0 has just written it, under a random name.
        alone = None if probe.exists() else f"process {jax.process_index()} sees another directory"
        alone = collectives.first_problem(alone)
        if jax.process_index() == 0:
            probe.unlink(missing_ok=True)
        if alone:
            raise CheckpointError(f"{self._directory}: {alone}; it must be on shared storage")
        self._score = self._best_score()

    def save(
        self,
        step: int,
        state: Tree,
        *,
        record: Mapping[str, object],
        metrics: Mapping[str, float] | None,
    ) -> None:
        """Starts saving a state after the previous save has finished; `wait` completes it.

        The state may be donated as soon as this returns.

        Args:
          step: step of the state.
          state: tree of jax arrays.
          record: JSON-compatible facts about the run, which `restore` returns.
          metrics: evaluation of this state, which selects the best checkpoint.

        Raises SaveFailed: the save before failed, or there is no room. That an array is not finite
        shows in the background, as failures of the storage do.
        """
        # First: the failure of the save before is raised here, or never.
        self.wait()
        # Copy, as the record is written later; values that JSON cannot hold fail here, at the
        # cause.
        facts = json.loads(json.dumps(record, allow_nan=False))
        leaves = tree_utils.flatten(state)
        # Counts stay integers: a study that reads them here must get what the evaluation gave.
        known = {
            "step": step,
            "facts": facts,
            "metrics": {
                name: value if isinstance(value, int) else _finite(value)
                for name, value in (metrics or {}).items()
            },
            "best": self._metric,
        }

        def commit() -> records.Commit:
            found, bad = sums.read()
            # A state that is not finite must not replace a sound one.
            if bad:
                raise SaveFailed(f"{bad[0]}{messages.more(bad)} is not finite")
            return {**known, "leaves": found}

        size = sum(leaf.nbytes for leaf in leaves.values())
        # At once, although the save still runs: the next evaluation is compared with this one.
        if self.is_best(metrics):
            self._score = records.score(metrics, self._metric)
        try:
            if collectives.broadcast_from_main(lambda: self._is_committed(step)):
                sums = digests.Digests(leaves)
                # The same state may be committed already: only its metrics were missing.
                if collectives.broadcast_from_main(lambda: self._is_same(step, commit)):
                    return
            collectives.broadcast_from_main(lambda: self._make_room(step, size))
            path = records.folder(self._directory, step) / records.STATE
            # Orbax rejects empty arrays; the commit record describes them completely.
            full = tree_utils.nest({name: leaf for name, leaf in leaves.items() if leaf.size})
            self._checkpointer.save(path, args=ocp.args.PyTreeSave(full))  # pyright: ignore
            # After orbax's copies, which training waits for, and before it may donate the state;
            # they are read when orbax is done.
            sums = digests.Digests(leaves)
        except LeaseLost:
            raise
        except Exception as error:
            raise self._failed(step, error) from error
        self._pending = self._background.submit(self._finish, step, commit)

    def poll(self) -> None:
        """Raises SaveFailed if a background save has failed; cheap, so call it at every step."""
        if self._pending is not None and self._pending.done():
            error = self._pending.exception()
            if error is not None:
                # Raised once: `close` would log it a second time.
                self._pending = None
                raise error

    def wait(self) -> None:
        """Waits until the last save is committed; raises SaveFailed, in every process."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        error = pending.exception()
        problem = collectives.first_problem(None if error is None else str(error))
        if error is not None:
            raise error
        if problem:
            raise SaveFailed(problem)

    def steps(self) -> list[int]:
        """The committed steps in the directory, ascending."""
        return records.steps(self._directory)

    def best_step(self) -> int | None:
        """The best committed step, by `record.best`."""
        return records.best(records.readable(self._directory), self._metric)

    def is_best(self, metrics: Mapping[str, float] | None) -> bool:
        """Whether the metrics are better than at every saved step."""
        score = records.score(metrics, self._metric)
        return score is not None and (self._score is None or score > self._score)

    def compares(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
        """Whether results under two facts are of the same images; if not, forgets the best."""
        same = self._metric is None or records.same_images(before, now, self._metric)
        self._score = self._score if same else None
        return same

    def restore(
        self, target: Tree, *, step: int | None = None, avoid: Collection[int] = ()
    ) -> tuple[Tree, records.Commit] | None:
        """Restores the newest intact state and its record; None if nothing was ever committed.

        Renames a damaged checkpoint to NUMBER.bad and restores the one before it.

        Args:
          target: tree of ShapeDtypeStructs with the shardings to restore to, whatever mesh the
            state was saved from.
          step: restore this step or nothing.
          avoid: steps to skip, as long as others exist.

        Returns the state, equal to the saved one bit for bit, and the record given to `save` with
        `step` and `metrics` added.

        Raises:
          AllCheckpointsBad: checkpoints exist, but none is intact.
          CheckpointError: `step` is missing or damaged, or the target does not fit the checkpoint.
        """
        self.wait()
        if step is not None:
            return reader.restore_exactly(self._directory, step, target, whole=True)
        # Those that an earlier start set aside count too: without them, a directory of damaged
        # checkpoints would pass for a new run's.
        steps, spoilt = collectives.broadcast_from_main(
            lambda: (self.steps(), records.bad_steps(self._directory))
        )
        # Newest first; a step to avoid is better than none.
        for candidate in reversed([one for one in steps if one not in avoid] or steps):
            try:
                restored = reader.restore(self._directory, candidate, target, whole=True)
            except DamagedCheckpoint as problem:
                spoilt.append(candidate)
                path = records.folder(self._directory, candidate)
                aside = collectives.broadcast_from_main(
                    lambda path=path: str(records.set_aside(path) or "")
                )
                if jax.process_index() == 0:
                    what = f"set aside as {aside}" if aside else "could not be set aside"
                    log.warning("checkpoint %s is damaged (%s); %s", path, problem, what)
                continue
            if spoilt and jax.process_index() == 0:
                log.warning("restored the checkpoint of step %d instead", candidate)
            self._score = self._best_score(candidate)
            return restored
        if spoilt:
            raise AllCheckpointsBad(
                f"{self._directory}: none of its checkpoints can be restored; "
                "move the .bad folders away to start over from step 0"
            )
        return None

    def close(self) -> None:
        """Waits for a running save, logs its failure instead of raising, and frees threads."""
        pending, self._pending = self._pending, None
        if pending is not None and (error := pending.exception()) is not None:
            log.error("%s", error)
        self._background.shutdown()
        self._checkpointer.close()

    def _is_committed(self, step: int) -> bool:
        """Whether a step is committed, with a sound record; sets a damaged one aside."""
        self._check_lease()
        path = records.folder(self._directory, step)
        if not records.is_committed(path):
            return False
        try:
            records.read_commit(path)
        except DamagedCheckpoint:
            records.set_aside(path)
            return False
        return True

    def _is_same(self, step: int, commit: Callable[[], records.Commit]) -> bool:
        """Whether a committed step has this state, and then adds the metrics to its record."""
        path = records.folder(self._directory, step)
        old, new = records.read_commit(path), commit()
        if old["leaves"] == new["leaves"]:
            # Those before an accepted change may be of other images.
            before, after = (one["facts"].get("changes") for one in (old, new))
            kept = old["metrics"] if before == after else {}
            records.write_commit(path, {**new, "metrics": kept | new["metrics"]})
            return True
        # A trajectory before a rollback also saved this step; keep it until this one commits.
        records.move_checkpoint(path, path.with_name(f"{path.name}.old"))
        return False

    def _make_room(self, step: int, size: int) -> None:
        """Makes a step's folder, in place of the remains of another, if `size` bytes fit."""
        path = records.folder(self._directory, step)
        # Before the disk is asked: the remains of an unfinished save may be what fills it.
        path.rmtree(missing_ok=True)
        if not storage.is_remote(path):
            free, needed = shutil.disk_usage(self._directory).free, int(FREE_SPACE * size)
            if free < needed:
                raise SaveFailed(
                    f"{messages.size_text(needed)} needed, {messages.size_text(free)} free"
                )
        path.mkdir(parents=True)

    def _finish(self, step: int, commit: Callable[[], records.Commit]) -> None:
        """Commits once orbax is done; runs in the background."""
        path = records.folder(self._directory, step)
        try:
            # Orbax ends a save with a barrier: past it, all processes have written.
            self._checkpointer.wait_until_finished()
            record = commit()
            if jax.process_index() == 0:
                # Asked again: orbax may have written for longer than the lease lasts.
                self._check_lease()
                records.write_commit(path, record)
        except LeaseLost:
            raise  # another process owns the directory: leave it as it is
        except Exception as error:
            if jax.process_index() == 0:
                # Without a record the folder is an unfinished save, which `tidy` may remove.
                with contextlib.suppress(OSError), storage.os_errors():
                    (path / records.COMMIT).unlink(missing_ok=True)
            raise self._failed(step, error) from error
        if jax.process_index() == 0:
            try:
                with storage.os_errors():
                    self._retire(step)
            except OSError as error:
                # The new checkpoint is committed, and the next save tries again.
                log.warning("old checkpoints cannot be removed: %s", records.first_line(error))

    def _failed(self, step: int, error: Exception) -> SaveFailed:
        """Frees the space of a save that failed and returns the error to raise."""
        if jax.process_index() == 0:
            # Writers that orbax abandoned may still add files to a folder during its removal, or
            # recreate it; the next start removes any leftovers.
            for _ in range(TRIES):
                with contextlib.suppress(OSError), storage.os_errors():
                    if not records.tidy(self._directory):
                        break
                time.sleep(0.1)
        steps = self.steps()
        return SaveFailed(
            f"step {step} was not saved in {self._directory}: {records.first_line(error)}; "
            f"newest checkpoint: {f'step {steps[-1]}' if steps else 'none'}"
        )

    def _retire(self, step: int) -> None:
        """Deletes what is bad, after this step, or neither among the newest nor the best."""
        for path, match in records.checkpoint_folders(self._directory):
            # .old of another trajectory, .bad of a damaged state: the step is sound again.
            if int(match["step"]) == step and match["suffix"]:
                path.rmtree(missing_ok=True)
        commits = records.readable(self._directory)
        valid = _up_to(step, commits)
        kept = {*sorted(valid)[-self._keep :], records.best(valid, self._metric)}
        for old in commits.keys() - kept:
            path = records.folder(self._directory, old)
            # Delete the record first: an interrupted deletion must not leave a valid checkpoint.
            (path / records.COMMIT).unlink(missing_ok=True)
            path.rmtree(missing_ok=True)

    def _best_score(self, last: float = math.inf) -> tuple[float, ...] | None:
        """The best score of the checkpoints up to a step, the same in all processes."""

        def find() -> tuple[float, float] | None:
            commits = _up_to(last, records.readable(self._directory))
            step = records.best(commits, self._metric)
            return None if step is None else records.score(commits[step]["metrics"], self._metric)

        # Kept in memory: processes might see different directory contents.
        found = collectives.broadcast_from_main(find)
        return found and tuple(found)  # JSON made it a list


def _up_to(last: float, commits: Mapping[int, records.Commit]) -> dict[int, records.Commit]:
    """The records up to a step: a run that has gone back does the later steps again."""
    return {step: commit for step, commit in commits.items() if step <= last}


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
