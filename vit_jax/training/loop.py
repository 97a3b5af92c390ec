"""The training loop: one step after another, and hooks around them."""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from vit_jax.data import prefetch
from vit_jax.runtime.goodput import STEP
from vit_jax.runtime.preemption import Stop
from vit_jax.runtime.watchdog import PhaseTimer

Step = Callable[[Any, dict[str, jax.Array]], tuple[Any, dict[str, jax.Array]]]


@dataclasses.dataclass(kw_only=True)
class Moment:
    """A state that hooks act on.

    Attributes:
      state: the training state.
      step: its step.
      stopping: whether the run is to stop here.
      restored: whether the state comes from a checkpoint.
      measured: whether that checkpoint contains its evaluation, by all of today's evaluators.
      results: evaluation of the state, set by a hook.
    """

    state: Any
    step: int
    stopping: bool = False
    restored: bool = False
    measured: bool = False
    results: Mapping[str, float] | None = None


class Hook:
    """What happens around steps; override what is needed."""

    def before(self, step: int) -> None:
        """Runs before the batch of a step is read."""

    def dispatched(
        self, step: int, metrics: Mapping[str, jax.Array], batch: Mapping[str, np.ndarray]
    ) -> None:
        """Runs while the devices may still work on a step."""

    def due(self, step: int) -> bool:
        """Returns whether the hook wants the state after a step."""
        return False

    def after(self, moment: Moment, *, due: bool) -> None:
        """Acts on a state that this hook or another one wanted, or on the last one of a stop."""

    def end(self) -> None:
        """Runs after the last step."""


def train(
    moment: Moment,
    *,
    steps: int,
    step: Step | None,
    batches: Callable[[int], prefetch.BatchIterator],
    put: Callable[[Mapping[str, np.ndarray]], dict[str, jax.Array]],
    hooks: Sequence[Hook],
    stop: Stop,
    phases: PhaseTimer,
) -> tuple[Any, Mapping[str, float]]:
    """Trains to the last step; returns the state and the last evaluation.

    Args:
      moment: the state to begin with. A restored one without its evaluation is evaluated.
      steps: the last step.
      step: the compiled step, which donates its state; None if no step is left.
      batches: starts loading after a step.
      put: moves a batch to the devices.
      hooks: called in this order.
      stop: asked after every step.
      phases: times data and steps.

    Raises what hooks raise, such as Preempted.
    """
    results: Mapping[str, float] = {}
    stop.hold()
    moment.stopping = stop()
    if moment.stopping or (moment.restored and not moment.measured):
        _visit(hooks, moment)
        results = moment.results or results
    if step is None:
        return moment.state, results
    with contextlib.closing(batches(moment.step)) as loading, phases(STEP):
        for number in range(moment.step + 1, steps + 1):
            for hook in hooks:
                hook.before(number)
            try:
                with phases("data"):
                    batch = next(loading)
            except prefetch.StoppedError:
                _visit(hooks, dataclasses.replace(moment, stopping=True, results=None))
                raise
            state, metrics = step(moment.state, put(batch))
            for hook in hooks:
                hook.dispatched(number, metrics, batch)
            moment = Moment(state=state, step=number, stopping=stop(number))
            _visit(hooks, moment)
            results = moment.results or results
    for hook in hooks:
        hook.end()
    return moment.state, results


def _visit(hooks: Sequence[Hook], moment: Moment) -> None:
    due = [hook.due(moment.step) for hook in hooks]  # all of them: some ask the other processes
    if moment.stopping or any(due):
        for hook, wanted in zip(hooks, due, strict=True):
            hook.after(moment, due=wanted)
