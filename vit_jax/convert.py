"""Any checkpoint written in another form."""

import dataclasses
import os
import pathlib
from collections.abc import Mapping

import jax

from vit_jax import config, loading, weights
from vit_jax.checkpoints import manager

KINDS = (*weights.KINDS, "orbax")


def convert(
    reference: str | os.PathLike[str],
    kind: str,
    output: pathlib.Path,
    overrides: Mapping[str, str] | None = None,
    *,
    at: int | str | None = None,
) -> list[str]:
    """Writes a checkpoint in another form and returns what became of its arrays, for people.

    Args:
      reference: of the checkpoint, as `opening.open_` takes it.
      kind: one of KINDS; `orbax` is a checkpoint of ours, which all verbs open.
      output: the file or folder to write, which must not exist.
      overrides: options by dotted name, as on the command line.
      at: of a run, a step number, `best`, or None for the newest.

    Raises a UserError, and leaves nothing behind, where the form has no place for the model.
    """
    if os.path.lexists(output):
        raise config.ConfigError(f"--output={output}: exists already; choose another, or remove it")
    opened = loading.load_checkpoint(reference, overrides, at=at)
    params, unsaid = jax.device_get(opened.params), ()
    if kind == "orbax":
        _save(opened, params, output)
    else:
        opened.check_whole()
        unsaid = weights.save(params, opened.facts, kind, output)
    return [*opened.notes, *unsaid, f"written: {output} ({kind}, from {opened.kind})"]


def _save(opened: loading.LoadedModel, params: object, output: pathlib.Path) -> None:
    # What is saved are the parameters alone, those that the run would have evaluated.
    cfg = dataclasses.replace(opened.cfg, train=dataclasses.replace(opened.cfg.train, ema=None))
    try:
        output.mkdir(parents=True)
    except OSError as error:
        raise config.ConfigError(
            f"--output={output}: cannot be written: {error.strerror}"
        ) from error
    saver = manager.Manager(output / "checkpoints", keep=1, best=cfg.checkpoint.best)
    try:
        record = {"config": config.to_dict(cfg), "classes": list(opened.classes)}
        saver.save(opened.step or 0, {"params": jax.device_put(params)}, record=record, metrics={})
        saver.wait()
    finally:
        saver.close()
