"""Starts a run at its newest sound checkpoint, or with new parameters.

Every commit record holds the facts that decide how the run goes on: config, data, classes, teacher,
plug-ins. Resuming compares all of them, here alone.
"""

import pathlib
import platform
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import jax

from vit_jax import __version__, config
from vit_jax.checkpoints import record as records
from vit_jax.checkpoints.manager import CheckpointError, Manager
from vit_jax.config import components
from vit_jax.data import class_matching, split_roles
from vit_jax.data.sources import RunSplits
from vit_jax.inference import loading
from vit_jax.runs import directory
from vit_jax.runs.session import Session
from vit_jax.runs.teacher import LoadedTeacher
from vit_jax.runtime import collectives
from vit_jax.runtime.run_files import RunFiles
from vit_jax.training import state
from vit_jax.training.build import Trainer
from vit_jax.training.state import State


class Start(NamedTuple):
    """The starting point of a process of a run.

    Attributes:
      state: the training state.
      step: its step; 0: new.
      facts: what every commit record of this process holds, besides step and digests.
      restored: whether the state comes from a checkpoint.
      evaluated: whether that checkpoint has the results that today's evaluators would give.
      patience: what that checkpoint records of early stopping.
    """

    state: State
    step: int
    facts: Mapping[str, Any]
    restored: bool = False
    evaluated: bool = False
    patience: Mapping[str, Any] | None = None


def start(
    trainer: Trainer,
    splits: RunSplits,
    teacher: LoadedTeacher | None,
    manager: Manager,
    session: Session,
    files: RunFiles,
    accept: Collection[str],
    like: pathlib.Path | None = None,
) -> Start:
    """Restores the run's newest sound checkpoint, else begins it; raises as both do.

    One that begins must be `like` another run in what `check_alike` compares.
    """
    own = facts(trainer, splits, teacher)
    shapes = trainer.state_shapes
    restored = restore(manager, shapes, own, session, files, accept=accept)
    if restored is not None:
        return restored
    if like is not None:
        check_alike(like, own)
    return begin(trainer, splits.classes, own, session)


def restore(
    manager: Manager,
    shapes: State,
    facts: Mapping[str, Any],
    session: Session,
    files: RunFiles,
    *,
    accept: Collection[str] = (),
) -> Start | None:
    """Restores the newest sound checkpoint; None if there is none.

    `shapes` are those of the state, with shardings. Of the run's `facts`, the parts that `accept`
    names (`directory.PARTS`) may differ, which is recorded. Raises ConfigError for any other
    difference.
    """
    # Process 0 decides for all: on shared storage, others may see an older state of the directory.
    avoid = collectives.broadcast_from_main(files.suspects)
    session.progress.doing("looking for a checkpoint")
    restored = manager.restore(shapes, avoid=avoid)
    older = restored is not None and restored[1]["step"] not in avoid
    then = "trying an older checkpoint" if older else "there is no older checkpoint"
    for number in avoid:
        session.progress.say(f"the run has failed twice after step {number}; {then}")
    if restored is None:
        return None
    live, record = restored
    # `convert` and `average` write parameters alone, with no data to go on with.
    if missing := {"config", "classes", "data", "examples"} - record.keys():
        raise CheckpointError(
            f"{session.workdir}: the record of step {record['step']} has no {min(missing)}, so "
            "that is not a checkpoint of a run; choose another --workdir"
        )
    changed = class_matching.differences(record["classes"], facts["classes"])
    # No --accept for this: a row of the head would stand for another class.
    if changed:
        raise config.ConfigError(
            f"data.train_split: the classes are not those this run started with: {changed}; "
            "restore them, or choose another --workdir"
        )
    before = record.get("changes", [])
    changes = list(before)
    for part, line in _differences(record, facts):
        if part not in accept:
            raise config.ConfigError(
                f"{line}, or choose another --workdir; --accept={part} resumes with the change"
            )
        changes.append(f"step {record['step']}: {line.partition(';')[0]}")
        session.progress.say(f"accepted: {line.partition(';')[0]}")
    # Other images of the evaluation split would decide by which were easier.
    compared = manager.compares(record, facts)
    if not compared:
        session.progress.say("checkpoints measured on other images are no longer compared")
    # Logged, not refused: a run may have to continue after an upgrade.
    for name, version in facts["versions"].items():
        if (old := record.get("versions", {}).get(name, version)) != version:
            session.progress.say(f"{name} is {version} here; the checkpoint was written with {old}")
    session.progress.say(f"resuming from step {record['step']}")
    # With other evaluators, another metric of the best, or an accepted change, the state is
    # measured and recorded again before it trains on.
    old, new = (one["config"] for one in (record, facts))
    same = old["evaluation"] == new["evaluation"] and changes == before
    same &= old["checkpoint"]["best"] == new["checkpoint"]["best"]
    return Start(
        state=live,
        step=record["step"],
        facts={**facts, "changes": changes} if changes else facts,
        restored=True,
        evaluated=bool(record["metrics"]) and same,
        patience=record.get("patience") if compared else None,
    )


def begin(
    trainer: Trainer, classes: Collection[str], facts: Mapping[str, Any], session: Session
) -> Start:
    """Makes a new state for data of these classes, with the weights of `init_from` if set."""
    session.progress.doing("initializing the parameters")
    live, cfg = trainer.init_state(), trainer.cfg
    if cfg.init_from is not None:
        params, notes, _ = loading.initial_params(cfg, trainer.model, tuple(classes))
        live = state.begin_with(
            live, params, trainer.trainable, trainer.objective, trainer.optimizer
        )
        session.progress.say(f"starts from {cfg.init_from}")
        for line in notes:
            session.progress.say(f"  {line}")
    return Start(state=live, step=0, facts=facts)


def facts(trainer: Trainer, splits: RunSplits, teacher: LoadedTeacher | None) -> dict[str, Any]:
    """The facts that every commit record holds, besides its step and the digests of its arrays."""
    cfg = trainer.cfg
    values, final = config.to_dict(cfg), split_roles.final(cfg.data)
    # Other images would choose another best checkpoint, and nothing else would show it.
    evaluated = {split_roles.evaluation(cfg.data).name: splits.evaluation.fingerprint()}
    if final is not None and splits.test is not None:
        evaluated[final.name] = splits.test.fingerprint()
    found = {
        "config": values,
        "fingerprint": config.fingerprint(cfg),
        "data": splits.train.fingerprint(),
        "measured": evaluated,
        "examples": len(splits.train),
        "classes": list(splits.classes),
        # For people: not compared, because a run may resume on other devices and versions.
        "mesh": dict(trainer.mesh.shape),
        "device": jax.devices()[0].device_kind,
        "host": platform.node(),
        "versions": {
            "vit_jax": __version__,
            "jax": jax.__version__,
            "python": platform.python_version(),
        },
    }
    if teacher is not None:
        found |= {"teacher": teacher.digest, "teacher_model": teacher.model_digest}
        # Which neither parameters nor model of a network without a table of positions tell.
        found["teacher_size"] = list(teacher.teacher.model.image_size)
    if config.PLUGINS in values:
        found["plugins"] = components.digests(values[config.PLUGINS])
    return found


def check_alike(other: pathlib.Path, facts: Mapping[str, Any]) -> None:
    """Raises ConfigError if another run has other data, plug-ins or teacher: not comparable.

    Options may differ: of plug-ins those count that both use, of teachers one of the same name.
    """
    _, record = records.find_step(other / "checkpoints", records.NEWEST)
    old, new = (one.get("plugins", {}) for one in (record, facts))
    # Each side is given the plug-ins that it lacks, so that only common ones are compared.
    same = {**record, "config": facts["config"], "plugins": {**new, **old}}
    now = {**facts, "plugins": {**old, **new}}
    if record["config"].get("objective") != facts["config"].get("objective"):
        now = {key: value for key, value in now.items() if not key.startswith("teacher")}
    for _, line in _differences(same, now):
        raise config.ConfigError(
            f"cannot be compared with {other}: {line}, or choose another --workdir"
        )


def _differences(record: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each part that differs, and a line that says how, with a remedy.

    A checkpoint of an older version lacks some facts; those are not compared.
    """
    new = config.build(now["config"])
    if changed := directory.changes(record, new):
        yield (
            "config",
            f"the options are not those of step {record['step']} ({changed}); undo the change",
        )
    if record["data"] != now["data"]:
        yield (
            "data",
            (
                f"data.root: the training examples (fingerprint {now['data']}) are not those "
                f"this run started with ({record['data']}); restore them"
            ),
        )
    # A split that was not measured before has nothing to be compared with.
    for name, fingerprint in now["measured"].items():
        if (old := record.get("measured", {}).get(name, fingerprint)) != fingerprint:
            yield (
                "data",
                (
                    f"data.root: the examples of {name} (fingerprint {fingerprint}) are not those "
                    f"measured so far ({old}); restore them"
                ),
            )
    for key, what in (
        ("teacher", "parameters"),
        ("teacher_model", "model or preprocessing"),
        ("teacher_size", "height and width"),
    ):
        if key in now and record.get(key, now[key]) != now[key]:
            yield (
                "teacher",
                f"objective.teacher: its {what} are not those this run started with; restore them",
            )
    old, plugins = record.get("plugins"), now.get("plugins", {})
    if old is not None and old != plugins:
        names = sorted(name for name in {*old, *plugins} if old.get(name) != plugins.get(name))
        yield (
            "plugins",
            (
                f"--plugins: {', '.join(names)} changed since step {record['step']}; restore "
                f"{'it' if len(names) == 1 else 'them'}"
            ),
        )
