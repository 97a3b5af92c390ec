"""The teacher of a run with distillation: loaded, checked, and bound to the compiled step."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from vit_jax import config, models
from vit_jax.data import class_matching
from vit_jax.inference import loading
from vit_jax.runtime import logs
from vit_jax.training import distillation
from vit_jax.utils import tree_utils
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
    if cfg.distill.target == "logits":
        opened = _of_classes(opened, cfg, loading.class_names(classes, cfg))
    teacher = distillation.Teacher(opened.model, opened.config.data)
    distillation.check(cfg, student, teacher)
    flat = {n: jax.device_get(leaf) for n, leaf in tree_utils.flatten(opened.params).items()}
    digest = adapter_file.digest(flat)
    kept = {key: getattr(opened.config.data, key) for key in ("channels", "mean", "std")}
    facts = config.fingerprint(config.Config(model=opened.config.model, data=config.Data(**kept)))
    return Teaching(teacher, teacher.put(opened.params, mesh, cfg.mesh), digest, facts)


def _of_classes(
    opened: loading.LoadedModel, cfg: config.Config, classes: Sequence[str]
) -> loading.LoadedModel:
    """Returns a teacher with the outputs of these classes, by name; raises ConfigError."""
    where = f"distill.teacher={cfg.distill.teacher}"
    opened.check_head()
    remedy = "name one of the same classes, or set distill.target=features or tokens"
    outputs = class_matching.match(opened.classes, classes, where, remedy=remedy)
    told, had, loss = [], len(opened.classes), opened.config.loss.name
    if len(outputs) < had:
        told.append(f"teaches {len(outputs)} of its {had} classes, those of the data")
    if loss != "softmax":
        told.append(f"was trained with loss.name={loss}; its logits are taken by softmax")
    logs.warn_of_assumptions(where, told)
    return opened.with_outputs(outputs)
