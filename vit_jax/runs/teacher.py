"""The teacher of a run with distillation, loaded and matched with the classes of the data."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
from jax.sharding import Mesh

from vit_jax import config, models
from vit_jax.inference import loaded_model, loading
from vit_jax.runtime import logs
from vit_jax.training.teacher import Teacher
from vit_jax.utils import tree_utils
from vit_jax.weights import adapter_file


class LoadedTeacher(NamedTuple):
    """A teacher with its parameters.

    Attributes:
      teacher: the model.
      params: its parameters, numpy arrays.
      digest: of the parameters; a resumed run compares it.
      model_digest: of its model and preprocessing, likewise.
    """

    teacher: Teacher
    params: models.Params
    digest: str
    model_digest: str

    def put(self, mesh: Mesh, options: config.Mesh) -> models.Params:
        """Moves the parameters to the devices of a mesh, split over all of them."""
        return self.teacher.put(self.params, mesh, options)


def load_teacher(cfg: config.Config, classes: Sequence[str]) -> LoadedTeacher | None:
    """Loads `objective.teacher`, if a config has one; raises ConfigError.

    Args:
      cfg: the run, with the number of classes.
      classes: names of the data's classes, which a teacher's logits are matched with.
    """
    if cfg.distillation is None:
        return None
    name = str(cfg.distillation.teacher)
    # Whole on every device: each process needs all of it.
    with loading.named("objective.teacher", name):
        opened = loading.load(name, {"mesh.fsdp": "1"})
    if cfg.distillation.target == "logits":
        opened = _match_classes(opened, name, loaded_model.class_names(classes, cfg))
    teacher = Teacher(opened.model, opened.config.data)
    # In host memory, as the mesh of the run may be another one.
    flat = {n: jax.device_get(leaf) for n, leaf in tree_utils.flatten(opened.params).items()}
    # All that its outputs depend on, beside the parameters; how it was trained is not compared.
    kept = {key: getattr(opened.config.data, key) for key in ("channels", "mean", "std")}
    described = config.Config(model=opened.config.model, data=config.Data(**kept))
    return LoadedTeacher(
        teacher=teacher,
        params=tree_utils.nest(flat),
        digest=adapter_file.digest_params(flat),
        model_digest=config.fingerprint(described),
    )


def _match_classes(
    opened: loaded_model.LoadedModel, teacher: str, classes: Sequence[str]
) -> loaded_model.LoadedModel:
    """The teacher with the outputs of these classes, by name; raises ConfigError."""
    where = f"objective.teacher={teacher}"
    opened.require_head()
    if isinstance(opened.config.loss, config.Regression):
        raise config.ConfigError(
            f"{where}: predicts numbers, which are not logits of classes; set "
            "objective.target=features or tokens"
        )
    remedy = "name one of the same classes, or set objective.target=features or tokens"
    matched = opened.with_classes(classes, where, remedy=remedy)
    notes, before, loss = [], len(opened.classes), opened.config.loss.meaning
    if len(matched.classes) < before:
        notes.append(f"teaches {len(matched.classes)} of its {before} classes, those of the data")
    if loss != "softmax":
        notes.append(f"was trained with loss.name={loss}; its logits are used with softmax")
    if opened.temperature is not None:
        notes.append(
            f"its fitted temperature, {opened.temperature:.3f}, is left out: "
            "objective.temperature alone divides its logits"
        )
    logs.warn_of_assumptions(where, notes)
    return matched
