"""What every objective says of itself: its data, parameters, state and loss.

An objective has two halves. `forward` computes outputs of each image, a microbatch at a time;
`loss` turns outputs into a scalar. Where `loss` compares images with each other (`whole_batch`), it
gets the outputs of the global batch, however many devices and microbatches there are: those of
microbatches are computed twice, once to see them all, and once to pass the gradient on.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax

from vit_jax import config, models
from vit_jax.config import components
from vit_jax.data.pipeline import View
from vit_jax.training.durations import Durations
from vit_jax.training.losses import ClassCounts
from vit_jax.training.teacher import Teacher

Batch = dict[str, jax.Array]


class Setup(NamedTuple):
    """What an objective is made for.

    Attributes:
      cfg: the run.
      model: the network.
      durations: of the run, in steps; schedules need them.
      teacher: the frozen model of distillation, or None.
      counts: of the training images by class, where the loss needs them and the data are there.
    """

    cfg: config.Config
    model: models.Classifier
    durations: Durations
    teacher: Teacher | None = None
    counts: ClassCounts | None = None


class Inputs(NamedTuple):
    """What a step passes to an objective besides parameters and images.

    Attributes:
      step: the number of steps taken, () int32; schedules are functions of it.
      key: of dropout in this microbatch, or None.
      drawn: what `draw` returned for the step.
      state: what the objective keeps.
      teacher: parameters of the teacher, or None.
    """

    step: jax.Array
    key: jax.Array | None = None
    drawn: Any = None
    state: Any = None
    teacher: models.Params | None = None


class Objective:
    """What a run minimizes; `loss` and `forward` are required, all else has a default.

    Everything random is a function of (seed, step): `training.streams` has the keys.

    Attributes:
      needs_labels: whether it learns from labels; without, data need none and the model no head.
      measures: names of the numbers that `loss` returns beside the loss; () float32 ones are
        logged, others are for `update`.
      whole_batch: whether `loss` compares images with each other; its outputs are then floats.
      rows_together: rows of a batch that stay together in a microbatch.
    """

    needs_labels: ClassVar[bool] = True
    measures: tuple[str, ...] = ()
    whole_batch: bool = False
    rows_together: int = 1

    def __init__(self, setup: Setup) -> None:
        self.cfg, self.model, self.teacher = setup.cfg, setup.model, setup.teacher
        self.durations = setup.durations

    @property
    def views(self) -> tuple[View, ...]:
        """The views of every image, each group under its name in the batch, uint8.

        A group of one is (B, H, W, C), one of n (B, n, H, W, C).
        """
        return (View("image", self.cfg.data),)

    def init(self, key: jax.Array) -> models.Params:
        """New parameters besides the model's, such as heads; they train, decay, shard like those.

        The state has them in `params`, under `objective`.
        """
        return {}

    def init_state(self, params: models.Params) -> Mapping[str, Any]:
        """What the training state keeps besides parameters: a teacher's average, centers, queues.

        It is sharded by the rules of parameters, saved and resumed.
        """
        return {}

    def draw(self, step: jax.Array) -> Any:
        """Draws what all images of a step share, such as the ratio of mixup."""
        return None

    def prepare(self, batch: Batch, step: jax.Array) -> Batch:
        """Adds to or changes the whole batch on the device, before it is cut into microbatches."""
        return batch

    def forward(self, params: models.Params, batch: Batch, inputs: Inputs) -> Any:
        """Outputs of each image: arrays (B, ...) in any structure.

        Args:
          params: the model's, and under `objective` those of `init`.
          batch: the views by name, `label`, and what `prepare` added.
          inputs: of the step.
        """
        raise NotImplementedError

    def loss(self, outputs: Any, inputs: Inputs) -> tuple[jax.Array, dict[str, jax.Array]]:
        """The loss, () float32, and measures by name, of outputs as from `forward`."""
        raise NotImplementedError

    def update(
        self, state: Any, params: models.Params, measures: Mapping[str, jax.Array], step: jax.Array
    ) -> Any:
        """What is kept after a step, from its new parameters and the measures of its batch.

        A step that is not finite changes nothing.
        """
        return state

    def flops(self, passes: float) -> float | None:
        """FLOPs of training on one image, all views; None: not counted.

        Args:
          passes: of training the model, as multiples of its forward pass.
        """
        forward = self.model.flops
        return None if forward is None else passes * forward * sum(v.number for v in self.views)


def create(setup: Setup) -> Objective:
    """The objective that a config names."""
    made = components.make(setup.cfg.objective, "objective.name", setup)
    if not isinstance(made, Objective):
        raise config.ConfigError(
            f"objective.name={setup.cfg.objective.name}: must make a training.objectives.Objective"
        )
    return made
