"""Any checkpoint written in another form."""

import dataclasses
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import jax

from vit_jax import config, loading, storage, weights
from vit_jax.checkpoints import manager

KINDS = (*weights.KINDS, "orbax")


def convert(
    reference: str | os.PathLike[str],
    kind: str,
    output: str | os.PathLike[str],
    overrides: Mapping[str, Any] | None = None,
    *,
    step: int | str | None = None,
) -> list[str]:
    """Writes a checkpoint in another format and returns lines about its arrays, for people.

    Args:
      reference: a checkpoint, as in `load`.
      kind: `google`, `timm`, `hf`, or `orbax` for a checkpoint of this project.
      output: the file or folder to write, which must not exist.
      overrides: options, as in `load`.
      step: as in `load`.

    Raises a UserError, and leaves nothing behind, where the format cannot hold the model.

    >>> convert(RUN, "orbax", FOLDER / "copy")[-1].endswith("(orbax, from run)")
    True
    >>> load(FOLDER / "copy").step
    2
    """
    output = pathlib.Path(output)
    if os.path.lexists(output):
        raise config.ConfigError(f"--output={output}: exists already; choose another, or remove it")
    opened = loading.load(reference, overrides, step)
    params, unsaid = jax.device_get(opened.params), ()
    if kind == "orbax":
        _save(opened, params, output)
    else:
        opened.check_whole()
        unsaid = weights.save(params, opened.facts, kind, output)
    return [*opened.notes, *unsaid, f"written: {output} ({kind}, from {opened.kind})"]


def _save(opened: loading.LoadedModel, params: object, output: pathlib.Path) -> None:
    # What is saved are the parameters alone, those that the run would have evaluated.
    cfg = dataclasses.replace(
        opened.config, train=dataclasses.replace(opened.config.train, ema=None)
    )
    with storage.writing("--output", output):
        output.mkdir(parents=True)
    saver = manager.Manager(output / "checkpoints", keep=1, best=cfg.checkpoint.best)
    try:
        record = {"config": config.to_dict(cfg), "classes": list(opened.classes)}
        saver.save(opened.step or 0, {"params": jax.device_put(params)}, record=record, metrics={})
        saver.wait()
    finally:
        saver.close()
