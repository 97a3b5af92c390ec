"""Where a run starts: at its newest sound checkpoint, or with new parameters."""

from typing import Any

from vit_jax import config, loading, models, teaching
from vit_jax.checkpoints import collectives
from vit_jax.checkpoints.manager import Manager
from vit_jax.data.source import Source
from vit_jax.runtime.run_files import RunFiles
from vit_jax.runtime.session import Session
from vit_jax.training import loop, state, trainable


def restore(
    saver: Manager,
    target: Any,
    source: Source,
    taught: teaching.Teaching | None,
    cfg: config.Config,
    session: Session,
    files: RunFiles,
) -> loop.Moment | None:
    """Returns the newest sound state, if there is one.

    Raises ConfigError for other images, or another teacher.
    """
    avoid = collectives.broadcast_from_main(files.suspects)
    for number in avoid:
        session.progress.say(f"from step {number} this run has failed twice; trying an older one")
    session.progress.doing("looking for a checkpoint")
    restored = saver.restore(target, avoid=avoid)
    if restored is None:
        return None
    live, record = restored
    if record["data"] != source.fingerprint():
        raise config.ConfigError(
            f"data.root: the training examples (fingerprint {source.fingerprint()}) are not those "
            f"this run began with ({record['data']}); restore them, or choose another --workdir"
        )
    if taught is not None and record.get("teacher") != taught.digest:
        raise config.ConfigError(
            "distill.teacher: its parameters are not those this run began with; restore them, or "
            "choose another --workdir"
        )
    session.progress.say(f"resuming from step {record['step']}")
    same = record["config"]["evaluation"] == config.to_dict(cfg)["evaluation"]
    measured = bool(record["metrics"]) and same
    return loop.Moment(state=live, step=record["step"], restored=True, measured=measured)


def begin(
    model: models.Classifier, tx: Any, cfg: config.Config, mesh: Any, session: Session
) -> loop.Moment:
    """Returns a new state, with the weights of `init_from` if it is set."""
    session.progress.doing("making the parameters")
    live = state.initialize(model, tx, cfg, mesh)
    if cfg.init_from is not None:
        params, notes = loading.initial_params(cfg, model)
        live = state.begin_with(live, params, trainable.of(model, cfg))
        session.progress.say(f"begins with {cfg.init_from}")
        for line in notes:
            session.progress.say(f"  {line}")
    return loop.Moment(state=live, step=0)
