"""Where a run starts: at its newest sound checkpoint, or with new parameters.

Every commit record holds a seal: the facts that decide how the run goes on. Resuming compares all
of them, here alone.
"""

import platform
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import jax

from vit_jax import __version__, config, models, run_directory, teaching
from vit_jax.checkpoints.manager import CheckpointError, Manager
from vit_jax.config import components
from vit_jax.data import class_matching
from vit_jax.inference import loading
from vit_jax.runtime import collectives
from vit_jax.runtime.run_files import RunFiles
from vit_jax.runtime.session import Session
from vit_jax.training import loop, state, trainable


def restore(
    saver: Manager,
    target: Any,
    seal: dict[str, Any],
    session: Session,
    files: RunFiles,
    *,
    accept: Collection[str] = (),
) -> loop.Moment | None:
    """Returns the newest sound state, if there is one.

    Args:
      saver: the checkpoints.
      target: the shapes and shardings of the state.
      seal: this run's, from `seal`; differences that the user accepts are added to it.
      session: this process.
      files: the run's.
      accept: parts of the seal that may differ.

    Raises ConfigError for any other difference.
    """
    avoid = collectives.broadcast_from_main(files.suspects)
    for number in avoid:
        session.progress.say(f"from step {number} this run has failed twice; trying an older one")
    session.progress.doing("looking for a checkpoint")
    restored = saver.restore(target, avoid=avoid)
    if restored is None:
        return None
    live, record = restored
    if missing := {"config", "classes", "data", "examples"} - record.keys():
        raise CheckpointError(
            f"{session.workdir}: the record of step {record['step']} has no {min(missing)}, so "
            "that is no checkpoint of a run; choose another --workdir"
        )
    changed = class_matching.differences(record["classes"], seal["classes"])
    if changed:  # which nobody can accept: the rows of the head mean what they meant
        raise config.ConfigError(
            f"data.train_split: the classes are not those this run began with: {changed}; restore "
            "them, or choose another --workdir"
        )
    changes = list(record.get("changes", ()))
    for part, line in _differences(record, seal):
        if part not in accept:
            raise config.ConfigError(
                f"{line}, or choose another --workdir; --accept={part} resumes with the change"
            )
        changes.append(f"step {record['step']}: {line.partition(';')[0]}")
        session.progress.say(f"accepted: {line.partition(';')[0]}")
    seal |= {"changes": changes} if changes else {}
    for name, version in seal["versions"].items():
        if (old := record.get("versions", {}).get(name, version)) != version:
            session.progress.say(f"the run so far had {name} {old}, this is {version}")
    session.progress.say(f"resuming from step {record['step']}")
    same = record["config"]["evaluation"] == seal["config"]["evaluation"]
    measured = bool(record["metrics"]) and same
    return loop.Moment(state=live, step=record["step"], restored=True, measured=measured)


def seal(
    cfg: config.Config,
    *,
    data: str,
    measured: Mapping[str, str],
    examples: int,
    classes: Collection[str],
    taught: teaching.Teaching | None,
    mesh: Mapping[str, int],
) -> dict[str, Any]:
    """The facts in every commit record, besides its step and the digests of its arrays.

    Args:
      cfg: the run.
      data: fingerprint of the training examples.
      measured: those of the other splits, by the name of their metrics.
      examples: their number.
      classes: their classes.
      taught: the teacher.
      mesh: sizes of its axes.
    """
    values = config.to_dict(cfg)
    teacher = {} if taught is None else {"teacher": taught.digest, "teacher_model": taught.facts}
    plugins = (
        {"plugins": components.digests(values[config.PLUGINS])} if config.PLUGINS in values else {}
    )
    return {
        "config": values,
        "fingerprint": config.fingerprint(cfg),
        "data": data,
        "measured": dict(measured),
        "examples": examples,
        "classes": list(classes),
        **teacher,
        **plugins,
        "mesh": dict(mesh),
        "device": jax.devices()[0].device_kind,
        "host": platform.node(),
        "versions": {
            "vit_jax": __version__,
            "jax": jax.__version__,
            "python": platform.python_version(),
        },
    }


def _differences(record: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields each part that differs, and a line that says how, with a remedy.

    A checkpoint of an older version lacks some facts; those are not compared.
    """
    new = config.build(now["config"])
    if changed := run_directory.changes(record, new):
        yield "config", f"the options are not those of step {record['step']} ({changed}); undo that"
    if record["data"] != now["data"]:
        yield (
            "data",
            (
                f"data.root: the training examples (fingerprint {now['data']}) are not those "
                f"this run began with ({record['data']}); restore them"
            ),
        )
    for name, fingerprint in now["measured"].items():
        if (old := record.get("measured", {}).get(name, fingerprint)) != fingerprint:
            yield (
                "data",
                (
                    f"data.root: the examples of {name} (fingerprint {fingerprint}) are not those "
                    f"measured so far ({old}); restore them"
                ),
            )
    for key, what in (("teacher", "parameters"), ("teacher_model", "model or preprocessing")):
        if key in now and record.get(key, now[key]) != now[key]:
            yield (
                "teacher",
                (f"distill.teacher: its {what} are not those this run began with; restore them"),
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


def begin(
    model: models.Classifier,
    tx: Any,
    cfg: config.Config,
    classes: Sequence[str],
    mesh: Any,
    session: Session,
) -> loop.Moment:
    """Returns a new state for data of these classes, with the weights of `init_from` if set."""
    session.progress.doing("making the parameters")
    live = state.initialize(model, tx, cfg, mesh)
    if cfg.init_from is not None:
        params, notes = loading.initial_params(cfg, model, classes)
        live = state.begin_with(live, params, trainable.of(model, cfg))
        session.progress.say(f"begins with {cfg.init_from}")
        for line in notes:
            session.progress.say(f"  {line}")
    return loop.Moment(state=live, step=0)
