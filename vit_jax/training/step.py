"""One training step: a pure function of (state, batch, teacher_params), and its compiled form."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax import config, models
from vit_jax.config import components
from vit_jax.models.variants import required
from vit_jax.training import (
    compiler_options,
    distillation,
    masked_objective,
    mixup,
    normalization,
    objectives,
    sharding,
    streams,
)
from vit_jax.training.state import State
from vit_jax.training.trainable import Trainable

Batch = dict[str, jax.Array]
Metrics = dict[str, jax.Array]
Step = Callable[[State, Batch, models.Params | None], tuple[State, Metrics]]

AUGMENTATIONS = "train.augmentations"  # the option


def create(
    model: models.Classifier,
    optimizer: optax.GradientTransformation,
    schedule: optax.Schedule,
    trainable: Trainable,
    cfg: config.Config,
    teacher: distillation.Teacher | None = None,
) -> Step:
    """Builds the pure step, (state, batch, teacher's parameters or None) -> (state, metrics).

    A step whose loss or gradient is not finite leaves parameters, moments and average as they
    were, counts itself in `bad_steps`, and says so in the metric `finite`.
    """
    train = cfg.train
    objective = objectives.create(model, cfg, teacher)
    gradient = _accumulated(_reduced(objective.loss, trainable, cfg), objective, trainable, cfg)
    prepare = _preparation(model, cfg)

    def step(
        state: State, batch: Batch, teacher_params: models.Params | None = None
    ) -> tuple[State, Metrics]:
        # Everything random is a function of (seed, step), so that a resumed run repeats it.
        key = _dropout_key(cfg, state["step"])
        mix = mixup.draw(cfg.seed, state["step"], train, cfg.data.image_size)
        batch = prepare(batch, state["step"])
        params = _gathered(model, state["params"], cfg)
        (loss, measured), grads = gradient(params, batch, key, mix, teacher_params)
        norm = optax.tree.norm(grads)
        finite = jnp.isfinite(loss) & jnp.isfinite(norm)
        lr = jnp.asarray(schedule(state["step"]))

        old = state | {"params": trainable.split(state["params"])}
        updates, opt = optimizer.update(grads, state["opt"], old["params"])
        updates = trainable.scale(updates, old["params"], state["step"])
        params = optax.apply_updates(old["params"], optax.tree.scale(-lr, updates))
        new = {"params": params, "opt": opt}
        if "ema" in state:
            new["ema"] = optax.incremental_update(params, state["ema"], 1.0 - (train.ema or 0.0))
        new = {
            name: jax.tree.map(lambda n, o: _kept(finite, n, o), tree, old[name])
            for name, tree in new.items()
        }
        new["params"] = trainable.join(new["params"], state["params"])
        new["step"] = state["step"] + 1
        new["bad_steps"] = state["bad_steps"] + jnp.where(finite, 0, 1)
        metrics = {"loss": loss, "grad_norm": norm, "lr": lr} | measured
        return new, metrics | {"finite": finite, "bad_steps": new["bad_steps"]}

    return step


# Up to this per-device batch size, overlapping the all-gather with compute pays off. Its price: 9 %
# more memory and 3 % more bytes for ViT-B/32 on v3-128, with 32 images per device.
FEW = 16


def _hides_links(cfg: config.Config, devices: int) -> bool:
    """Returns whether layers are gathered one by one, each while those before it compute.

    A loop over layers needs all of them before its first turn; one over microbatches would keep a
    second copy of all.
    """
    one_by_one = cfg.model.depth is not None and (cfg.model.unroll or 1) >= cfg.model.depth
    few = cfg.train.batch_size <= FEW * devices
    return one_by_one and cfg.train.accumulation == 1 and few


def _gathered(model: models.Classifier, params: Any, cfg: config.Config) -> Any:
    """Returns the parameters that a step computes with, cast before devices gather them."""
    devices = jax.sharding.get_abstract_mesh().size
    if not cfg.mesh.zero or devices <= cfg.mesh.fsdp:
        return params
    split = sharding.constrain(model.cast(params), cfg.mesh, sharding.UPDATE)
    if not _hides_links(cfg, devices):
        return sharding.constrain(split, cfg.mesh, sharding.COMPUTE)
    # One ring after the other: TPUs sum what is thinner than a tile, which takes twice the bytes.
    steps = (sharding.REDUCE, sharding.COMPUTE)
    return sharding.gather(split, cfg.mesh, steps, required(cfg.model.depth))


def _reduced(
    loss: Callable[..., Any], trainable: Trainable, cfg: config.Config
) -> Callable[..., Any]:
    """Builds (params, ...) -> (loss, float32 gradients of what trains, sharded like its update)."""

    def trained_loss(trained: Any, params: Any, *args: Any) -> Any:
        return loss(trainable.network(trained, params), *args)

    gradient = jax.value_and_grad(trained_loss, has_aux=True)

    def reduced(params: Any, *args: Any) -> Any:
        values, grads = gradient(trainable.split(params), params, *args)
        # Reduce one mesh axis at a time; a joint reduction becomes a full all-reduce on TPU.
        for axes in (sharding.REDUCE, sharding.UPDATE):
            grads = sharding.constrain(grads, cfg.mesh, axes)
        return values, jax.tree.map(lambda x: x.astype(jnp.float32), grads)

    return reduced


def _dropout_key(cfg: config.Config, step: jax.Array) -> jax.Array | None:
    """The key of dropout and stochastic depth; None without them."""
    drops = cfg.model.dropout or cfg.model.stochastic_depth
    return streams.key(cfg.seed, streams.DROPOUT, step) if drops else None


def _accumulated(
    gradient: Callable[..., Any],
    objective: objectives.Objective,
    trainable: Trainable,
    cfg: config.Config,
) -> Callable[..., Any]:
    """Averages `gradient` over microbatches, computed one after another."""
    count = cfg.train.accumulation
    if count == 1:
        return gradient

    def accumulated(
        params: Any,
        batch: Batch,
        key: jax.Array | None,
        mix: mixup.Mix | None,
        teacher_params: models.Params | None,
    ) -> Any:
        together = 1 if mix is None else 2
        micro = jax.tree.map(lambda x: _microbatches(x, count, together), batch)

        def add(total: Any, indexed: tuple[jax.Array, Batch]) -> tuple[Any, None]:
            index, part = indexed
            own = None if key is None else jax.random.fold_in(key, index)
            one = gradient(params, part, own, mix, teacher_params)
            return jax.tree.map(jnp.add, total, one), None

        nothing = {name: jnp.zeros((), jnp.float32) for name in objective.measures}
        trained = jax.eval_shape(trainable.split, params)
        grads = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), trained)
        zeros = (
            (jnp.zeros((), jnp.float32), nothing),
            sharding.constrain(grads, cfg.mesh, sharding.UPDATE),
        )
        total, _ = jax.lax.scan(add, zeros, (jnp.arange(count, dtype=jnp.int32), micro))
        return jax.tree.map(lambda x: x / count, total)

    return accumulated


# What happens to a batch before its gradient: corruption of patches, augmentations of plug-ins.


def _preparation(
    model: models.Classifier, cfg: config.Config
) -> Callable[[Batch, jax.Array], Batch]:
    """Builds the on-device batch preprocessing, a function of (seed, step)."""
    augmentations = [components.make(one, AUGMENTATIONS) for one in cfg.train.augmentations]

    def prepare(batch: Batch, step: jax.Array) -> Batch:
        if cfg.masked.target is not None:
            keys = masked_objective.keys(cfg.seed, step, cfg.train.batch_size)
            return batch | masked_objective.corrupt(keys, model.patches, cfg.masked)
        return _augmented(batch, augmentations, cfg, step) if augmentations else batch

    return prepare


def _augmented(
    batch: Batch, augmentations: list[Callable[..., Any]], cfg: config.Config, step: jax.Array
) -> Batch:
    """Returns the batch with normalized pixels after its augmentations."""
    images, labels = normalization.normalize_pixels(batch["image"], cfg.data), batch["label"]
    step_key = streams.key(cfg.seed, streams.AUGMENTATION, step)
    for index, augment in enumerate(augmentations):
        key = jax.random.fold_in(step_key, index)
        before = images
        images, labels = augment(key, images, labels)
        if (images.shape, images.dtype) != (before.shape, before.dtype) or (
            labels.shape[:1] != before.shape[:1]
        ):
            raise config.ConfigError(
                f"{AUGMENTATIONS}={cfg.train.augmentations[index].name}: returned images "
                f"{images.dtype} {images.shape} and labels {labels.shape}; images must stay "
                f"{before.dtype} {before.shape}, labels (B,) or (B, K)"
            )
    return batch | {"image": images, "label": labels}


def batch_shapes(cfg: config.Config) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes of a batch: images (B, H, W, C), labels (B,) int32 or (B, K) float32."""
    rows, data = cfg.train.batch_size, cfg.data
    label = jax.ShapeDtypeStruct((rows,), jnp.int32)
    if cfg.data.multilabel:
        label = jax.ShapeDtypeStruct((rows, required(cfg.model.num_classes)), jnp.float32)
    return {
        "image": jax.ShapeDtypeStruct(
            (rows, *data.image_size, data.channels), jnp.dtype(data.pixel_type)
        ),
        "label": label,
    }


def compile_step(
    step: Step,
    target: State,
    cfg: config.Config,
    mesh: Mesh,
    teacher: distillation.Teacher | None = None,
) -> jax.stages.Compiled:
    """Compiles the step for `mesh`; it donates its state.

    Args:
      step: the pure step.
      target: ShapeDtypeStructs of the state, with shardings.
      cfg: the run; gives the shapes of a batch.
      mesh: the ('data', 'zero', 'fsdp') mesh.
      teacher: as in `create`.
    """
    place = NamedSharding(mesh, sharding.BATCH)
    batch = {
        name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place)
        for name, leaf in batch_shapes(cfg).items()
    }
    teacher_params = None if teacher is None else teacher.shapes(mesh, cfg.mesh)
    places = jax.tree.map(lambda leaf: leaf.sharding, target)
    jitted = jax.jit(step, donate_argnums=0, out_shardings=(places, NamedSharding(mesh, P())))
    with jax.set_mesh(mesh):
        lowered = jitted.lower(target, batch, teacher_params)
        device = mesh.devices.flat[0]
        options = compiler_options.for_device(device) if _hides_links(cfg, mesh.size) else {}
        if cfg.train.sdc_checker:
            options = options | compiler_options.sdc_checker(device)
        return compiler_options.compile_with(lowered, options)


def _kept(finite: jax.Array, new: jax.Array, old: jax.Array) -> jax.Array:
    """Returns the leaf of a state after a step: `new`, or `old` where the step was not finite.

    A select, as it fuses into the update, where a conditional would be a barrier; and in float32,
    as XLA leaves a select in bfloat16 out of that fusion, which then reads everything twice.
    """
    if new.dtype != jnp.bfloat16:
        return jnp.where(finite, new, old)
    return jnp.where(finite, new.astype(jnp.float32), old.astype(jnp.float32)).astype(new.dtype)


def _microbatches(x: jax.Array, count: int, together: int) -> jax.Array:
    """Returns (B, ...) as (count, B / count, ...), every microbatch spread over all devices.

    Cut into groups of `together` rows, microbatch i takes groups i, i + count, ...: neighbors stay
    on their device, nothing moves.
    """
    rest = x.shape[1:]
    x = x.reshape(x.shape[0] // (count * together), count, together, *rest)
    x = jnp.moveaxis(x, 1, 0).reshape(count, -1, *rest)
    if jax.sharding.get_abstract_mesh().empty:
        return x
    return jax.lax.with_sharding_constraint(x, P(None, *sharding.BATCH))
