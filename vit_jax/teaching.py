"""The teacher of a run with distillation: loaded, checked, and bound to the compiled step."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from vit_jax import config, loading, logs, models, tree_utils
from vit_jax.training import distillation
from vit_jax.weights import adapter_file


class Teaching(NamedTuple):
    """A teacher with its parameters.

    Attributes:
      teacher: the model.
      params: on the devices.
      digest: of the parameters, which a resumed run compares.
      facts: digest of its model and preprocessing, likewise.
    """

    teacher: distillation.Teacher
    params: models.Params
    digest: str
    facts: str

    def bind(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a compiled step as one of (state, batch), its batch without the teacher."""
        return lambda state, batch: compiled(state, {**batch, distillation.KEY: self.params})


def load(
    cfg: config.Config, student: models.Classifier, classes: Sequence[str], mesh: Mesh
) -> Teaching | None:
    """Returns the teacher of a run, or None; raises ConfigError for one that cannot teach it.

    Args:
      cfg: the run.
      student: its model.
      classes: names of its classes.
      mesh: the devices.
    """
    if cfg.distill.teacher is None:
        return None
    # Whole on every device: each process needs all of it.
    opened = loading.load(cfg.distill.teacher, {"mesh.fsdp": "1"})
    teacher = distillation.Teacher(opened.model, opened.config.data)
    distillation.check(cfg, student, teacher)
    if cfg.distill.target == "logits":
        _compare(cfg.distill.teacher, opened.classes, classes)
    flat = {n: jax.device_get(leaf) for n, leaf in tree_utils.flatten(opened.params).items()}
    digest = adapter_file.digest(flat)
    kept = {key: getattr(opened.config.data, key) for key in ("channels", "mean", "std")}
    facts = config.fingerprint(config.Config(model=opened.config.model, data=config.Data(**kept)))
    return Teaching(teacher, teacher.put(opened.params, mesh, cfg.mesh), digest, facts)


def _compare(name: str, theirs: Sequence[str], ours: Sequence[str]) -> None:
    """Raises ConfigError for the same classes in another order; logs other names."""
    different = [(k, a, b) for k, (a, b) in enumerate(zip(theirs, ours, strict=True)) if a != b]
    if not different:
        return
    place, their, our = different[0]
    if sorted(theirs) == sorted(ours):
        raise config.ConfigError(
            f"distill.teacher={name}: its classes are in another order: class {place} is {their}, "
            f"that of the data {our}; set distill.target=features"
        )
    logs.log.info(
        "distill.teacher=%s: calls class %d %s, and the data %s; by logits they are one class",
        name, place, their, our,
    )  # fmt: skip
