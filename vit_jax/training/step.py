"""One training step: a pure function of (state, batch, teacher_params)."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec as P

from vit_jax import config, models
from vit_jax.config import components
from vit_jax.data.pipeline import View
from vit_jax.models import Params
from vit_jax.models.variants import required
from vit_jax.training import sharding, streams
from vit_jax.training.objectives import Batch, Inputs, Objective
from vit_jax.training.state import State
from vit_jax.training.trainable import Trainable
from vit_jax.utils import tree_utils
from vit_jax.utils.tree_utils import Tree

Metrics = dict[str, jax.Array]
Step = Callable[[State, Batch, Params | None], tuple[State, Metrics]]
Values = tuple[jax.Array, Metrics]  # of an objective: its loss, () float32, and measures
Gradient = Callable[[Params, Batch, Inputs], tuple[Values, Tree]]


def create_step(
    objective: Objective,
    optimizer: optax.GradientTransformation,
    schedule: optax.Schedule,
    trainable: Trainable,
    cfg: config.Config,
) -> Step:
    """Builds the pure step, (state, batch, teacher's parameters or None) -> (state, metrics).

    A step whose loss or gradient is not finite, or the update of a plug-in, leaves parameters,
    moments, average and the objective's state as they were, counts itself in `bad_steps`, and says
    so in `finite`.
    """
    gradient = _gradient(objective, trainable, cfg)
    plugged_in = components.modules("optimizer", cfg.optimizer.name) | components.modules(
        "schedule", cfg.schedule.name
    )

    def step(
        state: State, batch: Batch, teacher_params: Params | None = None
    ) -> tuple[State, Metrics]:
        # Everything random is a function of (seed, step), so that a resumed run repeats it.
        inputs = Inputs(
            step=state["step"],
            key=_dropout_key(cfg, state["step"]),
            drawn=objective.draw(batch, state["step"]),
            state=state.get("objective"),
            teacher=teacher_params,
        )
        if objective.averages:
            average = trainable.network(state["ema"], state["params"])
            # Gathered once a step, not in each microbatch.
            inputs = inputs._replace(average=_gathered(objective.model, average, cfg))
        batch = objective.prepare(batch, state["step"])
        params = _gathered(objective.model, state["params"], cfg)
        (loss, measured), grads = gradient(params, batch, inputs)
        measured = objective.summarize(measured, inputs)
        # Before clipping, which the optimizer does: the log shows what is compared with the limit.
        norm = optax.tree.norm(grads)
        # A single NaN or infinity makes the norm non-finite, so two scalars cover all gradients.
        finite = jnp.isfinite(loss) & jnp.isfinite(norm)
        lr = jnp.asarray(schedule(state["step"]))

        # The optimizer sees what trains alone: nothing else has moments, decays or costs memory
        # here.
        old = state | {"params": trainable.split(state["params"])}
        updates, opt = optimizer.update(grads, state["opt"], old["params"])
        updates = trainable.scale(updates, old["params"], state["step"])
        # By the run's own step: a count in optax's state would stand still in a step that is
        # skipped.
        updates = optax.tree.scale(-lr, updates)
        if plugged_in:  # built-in rules turn finite gradients into finite updates
            finite &= jnp.isfinite(optax.tree.norm(updates))
        params = optax.apply_updates(old["params"], updates)
        new = {"params": params, "opt": opt}
        if "ema" in state:
            # optax wants the share of the new parameters.
            rate = 1.0 - objective.decay(state["step"])
            new["ema"] = optax.incremental_update(params, state["ema"], rate)
        if "objective" in state:
            # After the optimizer, and once for all microbatches: a teacher follows the student.
            # Adapters are scaled, as `forward` gets them: a plug-in may average its own teacher.
            whole = trainable.network(params, state["params"])
            averages = objective.averages
            average = trainable.network(new["ema"], state["params"]) if averages else None
            new["objective"] = objective.update(
                inputs.state, whole, measured, state["step"], average
            )
        # Some rules change the type of their state (optax's ademamix: bfloat16 moments, then
        # float32); the compiled step would not take it again.
        for name, key in (("opt", "optimizer.name"), ("objective", "objective.name")):
            _check_types(old.get(name), new.get(name), f"{key}={config.get(cfg, key)}")
        new = {
            name: jax.tree.map(lambda n, o: _kept(finite, n, o), tree, old[name])
            for name, tree in new.items()
        }
        new["params"] = trainable.join(new["params"], state["params"])
        # After a bad step too: batch and keys depend on the step, so the same step would fail
        # again.
        new["step"] = state["step"] + 1
        new["bad_steps"] = state["bad_steps"] + jnp.where(finite, 0, 1)
        # The others, such as the center of DINO, are for the state, not for the log.
        shown = {name: value for name, value in measured.items() if value.ndim == 0}
        metrics = {"loss": loss, "grad_norm": norm, "lr": lr} | shown
        return new, metrics | {"finite": finite, "bad_steps": new["bad_steps"]}

    return step


# Up to this per-device batch size, overlapping the all-gather with compute pays off. Its price: 9 %
# more memory and 3 % more bytes for ViT-B/32 on v3-128, with 32 images per device.
FEW = 16


def hides_links(cfg: config.Config, devices: int) -> bool:
    """Whether layers are gathered one by one, each while those before it compute.

    A loop over layers needs all of them before its first turn; one over microbatches would keep a
    second copy of all.
    """
    one_by_one = cfg.model.depth is not None and (cfg.model.unroll or 1) >= cfg.model.depth
    few = cfg.train.batch_size <= FEW * devices
    return one_by_one and cfg.train.accumulation == 1 and few


def _gathered(model: models.Classifier, params: Params, cfg: config.Config) -> Params:
    """The parameters that a step computes with, cast before devices gather them."""
    devices = jax.sharding.get_abstract_mesh().size
    if not cfg.mesh.zero or devices <= cfg.mesh.fsdp:
        return params
    split = sharding.constrain(model.cast(params), cfg.mesh, sharding.UPDATE)
    if not hides_links(cfg, devices):
        return sharding.constrain(split, cfg.mesh, sharding.COMPUTE)
    # One ring after the other: a joint reduction of arrays thinner than a tile doubles the bytes.
    steps = (sharding.REDUCE, sharding.COMPUTE)
    return sharding.gather_params(split, cfg.mesh, steps, required(cfg.model.depth))


def _dropout_key(cfg: config.Config, step: jax.Array) -> jax.Array | None:
    """The key of dropout and stochastic depth; None without them."""
    drops = cfg.model.dropout or cfg.model.stochastic_depth
    return streams.key(cfg.seed, streams.DROPOUT, step) if drops else None


def _gradient(objective: Objective, trainable: Trainable, cfg: config.Config) -> Gradient:
    """Builds (params, batch, inputs) -> ((loss, measures), gradients of trainable parameters).

    Gradients are float32 and sharded like their update.
    """

    def forward(trained: Tree, params: Params, batch: Batch, inputs: Inputs) -> Tree:
        return objective.forward(trainable.network(trained, params), batch, inputs)

    def whole_loss(trained: Tree, params: Params, batch: Batch, inputs: Inputs) -> Values:
        return objective.loss(forward(trained, params, batch, inputs), inputs)

    def reduced(grads: Tree) -> Tree:
        # Reduce one mesh axis at a time; a joint reduction becomes a full all-reduce on TPU.
        for axes in (sharding.REDUCE, sharding.UPDATE):
            grads = sharding.constrain(grads, cfg.mesh, axes)
        # Cast last: what crosses the links is in the type of the gathered weights, bfloat16 on
        # TPUs.
        return jax.tree.map(lambda x: x.astype(jnp.float32), grads)

    def at_once(params: Params, batch: Batch, inputs: Inputs) -> tuple[Values, Tree]:
        value_and_grad = jax.value_and_grad(whole_loss, has_aux=True)
        values, grads = value_and_grad(trainable.split(params), params, batch, inputs)
        return values, reduced(grads)

    count, together = cfg.train.accumulation, objective.rows_together
    if count == 1:
        return at_once

    def own(inputs: Inputs, index: jax.Array) -> Inputs:
        # Or all microbatches would drop the same units.
        key = None if inputs.key is None else jax.random.fold_in(inputs.key, index)
        return inputs._replace(key=key)

    def scanned(one: Callable[[jax.Array, Tree], Tree], first: Tree, *trees: Tree) -> Tree:
        def add(total: Tree, indexed: tuple[jax.Array, Tree]) -> tuple[Tree, None]:
            return jax.tree.map(jnp.add, total, one(*indexed)), None

        # A loop frees the activations of one microbatch before the next begins.
        return jax.lax.scan(add, first, (jnp.arange(count, dtype=jnp.int32), trees))[0]

    def zeros(params: Params) -> Tree:
        trained = jax.eval_shape(trainable.split, params)
        # Split like the update: sums of whole gradients would be a second model on every device.
        grads = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), trained)
        return sharding.constrain(grads, cfg.mesh, sharding.UPDATE)

    def averaged(params: Params, batch: Batch, inputs: Inputs) -> tuple[Values, Tree]:
        micro = jax.tree.map(lambda x: _microbatches(x, count, together), batch)
        part = jax.tree.map(lambda x: x[0], micro)
        shapes = jax.eval_shape(at_once, params, part, own(inputs, jnp.int32(0)))
        values = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes[0])
        total = scanned(
            lambda index, parts: at_once(params, parts[0], own(inputs, index)),
            (values, zeros(params)),
            micro,
        )
        return jax.tree.map(lambda x: x / count, total)

    def of_whole_batch(params: Params, batch: Batch, inputs: Inputs) -> tuple[Values, Tree]:
        """The loss of all microbatches' outputs together; the gradient passes through each again.

        Outputs are small beside activations: this costs one more forward pass, and no memory.
        """
        micro = jax.tree.map(lambda x: _microbatches(x, count, together), batch)
        trained, indices = trainable.split(params), jnp.arange(count, dtype=jnp.int32)
        parts = jax.lax.map(
            lambda one: forward(trained, params, one[1], own(inputs, one[0])), (indices, micro)
        )
        outputs = jax.tree.map(lambda x: _merged(x, together), parts)
        values, slopes = jax.value_and_grad(objective.loss, has_aux=True)(outputs, inputs)
        slopes = jax.tree.map(lambda x: _microbatches(x, count, together), slopes)

        def pulled(index: jax.Array, parts: Tree) -> Tree:
            part, slope = parts
            local = own(inputs, index)
            _, pull = jax.vjp(lambda one: forward(one, params, part, local), trained)
            return reduced(pull(slope)[0])

        return values, scanned(pulled, zeros(params), micro, slopes)

    return of_whole_batch if objective.whole_batch else averaged


def batch_shapes(cfg: config.Config, views: Sequence[View]) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes of a batch: views (B, ..., H, W, C), labels (B,) int32 or (B, K) float32.

    Sequences are (B, P, h, w, C), with `grids` (B, 2) int32.
    """
    rows = cfg.train.batch_size
    label = jax.ShapeDtypeStruct((rows,), jnp.int32)
    if cfg.data.multilabel or cfg.data.targets:
        label = jax.ShapeDtypeStruct((rows, required(cfg.model.num_classes)), jnp.float32)
    shapes = {
        view.name: jax.ShapeDtypeStruct((rows, *view.shape), jnp.dtype(cfg.data.pixel_type))
        for view in views
    }
    if any(view.patch for view in views):
        shapes["grids"] = jax.ShapeDtypeStruct((rows, 2), jnp.int32)
    return shapes | {"label": label}


def _check_types(old: Tree, new: Tree, key: str) -> None:
    """Raises ConfigError, while the step is traced, for a state that the next step cannot take."""
    before, after = (
        {
            name: f"{jnp.result_type(leaf)} {jnp.shape(leaf)}"
            for name, leaf in tree_utils.flatten(state).items()
        }
        for state in (old, new)
    )
    for name in sorted(before.keys() | after.keys()):
        one, other = (types.get(name, "missing") for types in (before, after))
        if one != other:
            raise config.ConfigError(
                f"{key}: its state {name} is {one} at first and {other} after a step; it must keep "
                "its names, shapes and types"
            )


def _kept(finite: jax.Array, new: jax.Array, old: jax.Array) -> jax.Array:
    """The leaf of a state after a step: `new`, or `old` where the step was not finite.

    A select, as it fuses into the update, where a conditional would be a barrier; and in float32,
    as XLA leaves a select in bfloat16 out of that fusion, which then reads everything twice.
    """
    if new.dtype != jnp.bfloat16:
        return jnp.where(finite, new, old)
    return jnp.where(finite, new.astype(jnp.float32), old.astype(jnp.float32)).astype(new.dtype)


def _microbatches(x: jax.Array, count: int, together: int) -> jax.Array:
    """Cuts (B, ...) into (count, B / count, ...), every microbatch spread over all devices.

    Cut into groups of `together` rows, microbatch i takes groups i, i + count, ...: neighbors stay
    on their device, nothing moves.
    """
    rest = x.shape[1:]
    x = x.reshape(x.shape[0] // (count * together), count, together, *rest)
    x = jnp.moveaxis(x, 1, 0).reshape(count, -1, *rest)
    # `selftest` and the count of FLOPs trace the step without a mesh.
    if jax.sharding.get_abstract_mesh().empty:
        return x
    return jax.lax.with_sharding_constraint(x, P(None, *sharding.BATCH))


def _merged(x: jax.Array, together: int) -> jax.Array:
    """The inverse of `_microbatches`: (count, B / count, ...) to (B, ...), rows in their order."""
    count, rows, *rest = x.shape
    x = x.reshape(count, rows // together, together, *rest)
    x = jnp.moveaxis(x, 0, 1).reshape(count * rows, *rest)
    if jax.sharding.get_abstract_mesh().empty:
        return x
    return jax.lax.with_sharding_constraint(x, sharding.BATCH)
