"""The interface of an objective: its data, parameters, state and loss.

An objective has two halves. `forward` computes outputs of each image, a microbatch at a time;
`loss` turns outputs into a scalar. Where `loss` compares images with each other (`whole_batch`), it
gets the outputs of the global batch, however many devices and microbatches there are: those of
microbatches are computed twice, once to see them all, and once to pass the gradient on.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, NamedTuple

import jax

from vit_jax import config, models
from vit_jax.data.pipeline import View
from vit_jax.models import variants
from vit_jax.training.durations import Durations
from vit_jax.training.losses import ClassCounts
from vit_jax.training.teacher import Teacher
from vit_jax.utils import tree_utils
from vit_jax.utils.tree_utils import Tree

Batch = dict[str, jax.Array]


class Setup(NamedTuple):
    """The arguments of an objective's factory.

    Attributes:
      cfg: the run.
      model: the network.
      durations: of the run, in steps; schedules need them.
      examples: images of an epoch.
      teacher: the frozen model of distillation, or None.
      counts: of the training images by class, where the loss needs them and the data are there.
    """

    cfg: config.Config
    model: models.Classifier
    durations: Durations
    examples: int
    teacher: Teacher | None = None
    counts: ClassCounts | None = None

    def steps(self, duration: config.Duration) -> int:
        """A duration of the objective in steps."""
        return duration.steps(self.cfg.train.batch_size, self.examples)

    @property
    def phases(self) -> list[config.Phase]:
        """The phases of training views, by their ends: a ConfigDict orders them by name."""
        return sorted(self.cfg.data.phases, key=lambda phase: self.steps(phase.until))


class Inputs(NamedTuple):
    """Inputs of an objective besides parameters and batch.

    Attributes:
      step: the number of steps taken, () int32; schedules are functions of it.
      key: of dropout in this microbatch, or None.
      drawn: what `draw` returned for the step.
      state: what the objective keeps.
      teacher: parameters of the teacher, or None.
      average: the average of the parameters, where the objective `averages`; else None.
    """

    step: jax.Array
    key: jax.Array | None = None
    drawn: Tree = None
    state: Tree = None
    teacher: models.Params | None = None
    average: models.Params | None = None


class Objective:
    """An objective that a run minimizes; only `loss` and `forward` are required.

    Everything random is a function of (seed, step): `training.streams` has the keys.

    Attributes:
      needs_labels: whether it learns from labels; without, data need none and the model no head.
      measures: names of the numbers that are logged beside the loss, as `summarize` returns them.
      shown: those of them in every line of the log.
      averages: whether it learns from the average of the parameters, its teacher. The average is
        then kept even without `train.ema`, and `evaluate`, `embed`, `convert` and fine-tuning use
        it.
      waits: the steps before parameters start to train, by prefix of their names; until then they
        have no moments and do not decay.
      whole_batch: whether `loss` compares images with each other; its outputs are then floats.
      rows_together: rows of a batch that stay together in a microbatch.
    """

    needs_labels: ClassVar[bool] = True
    averages: ClassVar[bool] = False
    measures: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    whole_batch: bool = False
    rows_together: int = 1
    waits: Mapping[str, int] = MappingProxyType({})

    def __init__(self, setup: Setup) -> None:
        self.cfg, self.model, self.teacher = setup.cfg, setup.model, setup.teacher
        self.durations, self._by_end = setup.durations, setup.phases

    @property
    def views(self) -> tuple[View, ...]:
        """The views of every image, each group under its name in the batch, uint8.

        A group of one is (B, H, W, C), one of n (B, n, H, W, C).
        """
        return (View("image", self.cfg.data),)

    def init(self, key: jax.Array) -> models.Params:
        """New parameters besides the model's, such as heads; treated like the model's.

        The state has them in `params`, under `objective`.
        """
        return {}

    def init_state(self, params: models.Params) -> Mapping[str, Tree]:
        """The objective's part of the training state: a teacher's average, centers, queues.

        It is sharded by the rules of parameters, saved and resumed.
        """
        return {}

    @property
    def variants(self) -> list[tuple[tuple[View, ...], float]]:
        """The views in each shape that occurs, with the share of steps that have it; largest first.

        Of several groups, the first alone may have several.
        """
        first, *others = self.views
        return [((one, *others), share) for one, share in first.variants(self.durations.steps)]

    def draw(self, batch: Batch, step: jax.Array) -> Tree:
        """Random values shared by all images of a step, such as the ratio of mixup."""
        return None

    def prepare(self, batch: Batch, step: jax.Array) -> Batch:
        """Adds to or changes the whole batch on the device, before it is cut into microbatches."""
        return batch

    def forward(self, params: models.Params, batch: Batch, inputs: Inputs) -> Tree:
        """Outputs of each image: arrays (B, ...) in any structure.

        Args:
          params: the model's, and under `objective` those of `init`.
          batch: the views by name, `label`, and what `prepare` added.
          inputs: of the step.
        """
        raise NotImplementedError

    def loss(self, outputs: Tree, inputs: Inputs) -> tuple[jax.Array, dict[str, jax.Array]]:
        """The loss, () float32, and measures by name, of outputs as from `forward`.

        Measures are means over images: those of microbatches are averaged.
        """
        raise NotImplementedError

    def summarize(self, measures: dict[str, jax.Array], inputs: Inputs) -> dict[str, jax.Array]:
        """The measures of a step, from the global batch's; scalars, () float32, are logged.

        Computes what is not a mean over images, such as the entropy of a mean.
        """
        return measures

    def decay(self, step: jax.Array) -> float | jax.Array:
        """The decay of the average of the parameters."""
        return self.cfg.train.ema or 0.0

    def warning(self, metrics: Mapping[str, float]) -> tuple[str, bool] | None:
        """A warning about a step's metrics, with the remedy, and whether it ends the run."""
        return None

    def update(
        self,
        state: Tree,
        params: models.Params,
        measures: Mapping[str, jax.Array],
        step: jax.Array,
        average: models.Params | None,
    ) -> Tree:
        """The objective's state after a step; a step that is not finite changes nothing.

        Args:
          state: before the step.
          params: new ones, as `forward` gets them.
          measures: of the batch, from `summarize`.
          step: steps taken before it.
          average: the new average of the parameters, where the objective `averages`; else None.
        """
        return state

    def flops(self, passes: float) -> float | None:
        """FLOPs of training on one image, all views, the mean over the run; None: not counted.

        The matrices of `init` count as multiplied once for each view.

        Args:
          passes: of training the model, as multiples of its forward pass.
        """
        counts = [(self._flops(group, passes), share) for group, share in self.variants]
        known = [flops * share for flops, share in counts if flops is not None]
        return None if len(known) < len(counts) else sum(known)

    def flops_by_phase(self, passes: float) -> list[tuple[int, float | None]]:
        """The last step of each phase of `data.phases` and of the run, and its FLOPs per image."""
        first, *others = self.views
        if not first.phases:
            return [(self.durations.steps, self.flops(passes))]
        ends = [*(end for end, _ in first.phases), self.durations.steps]
        # Steps are numbered from 0: the last one of a phase is end - 1.
        views = (first.at(self.cfg.seed, end - 1) for end in ends)
        return [
            (end, self._flops((view, *others), passes))
            for end, view in zip(ends, views, strict=True)
        ]

    def _flops(self, views: Sequence[View], passes: float) -> float | None:
        forward = [self.forward_flops(view) for view in views]
        # Three passes (forward, and two backward), two FLOPs for a multiply-accumulate.
        own = 3 * 2 * self.own_matrices * sum(view.number for view in views)
        known = [flops for flops in forward if flops is not None]
        return None if len(known) < len(forward) else passes * sum(known) + own

    def forward_flops(self, view: View) -> int | None:
        """FLOPs of the model's forward pass of a group of views; None: not counted."""
        model, data = self.model, view.data
        size = data.image_size
        if view.patch is not None:  # in one column of patches, which costs the same
            size = max(view.lengths) * view.patch[0], view.patch[1]
        flops = variants.flops(model.config, size, data.channels, model.masked)
        return None if flops is None else view.number * flops

    @property
    def own_matrices(self) -> int:
        """The number of weights in the matrices of `init`."""
        # Below a name, so that a kernel at the top ends in /kernel too.
        own = tree_utils.flatten({"objective": jax.eval_shape(self.init, jax.random.key(0))})
        return sum(leaf.size for name, leaf in own.items() if name.endswith("/kernel"))

    def describe(self) -> list[tuple[str, str]]:
        """Its views of an image and its state, each with a label, for people."""
        groups = [
            f"{view.name}: {view.number} of {config.show(view.data.image_size)} pixels"
            for view in self.views
        ]
        rows = [("views", ", ".join(groups))] if len(groups) > 1 or self.views[0].number > 1 else []
        if lengths := self.views[0].lengths:
            what = " or ".join(map(str, lengths))
            rows = [("views", f"at most {what} patches, at the image's own aspect ratio")]
        if self._by_end:
            size = f"image_size={config.show(self.cfg.data.image_size)}"
            rows = [("views", f"{', '.join(map(config.show, self._by_end))}, then {size}")]
        own = jax.eval_shape(self.init, jax.random.key(0))
        kept = jax.eval_shape(lambda: self.init_state({**self.model.shapes(), "objective": own}))
        what = [f"{tree_utils.count(own):,} parameters of its own"] if own else []
        if self.averages:
            what.append("the average of all parameters, its teacher, which is evaluated")
        what += [f"{name}: {tree_utils.count(part):,} numbers" for name, part in kept.items()]
        return rows + ([("objective", "; ".join(what))] if what else [])
