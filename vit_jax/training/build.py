"""Builds the model of a config, and everything that trains it, as one object."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax import config, models
from vit_jax.config import checks
from vit_jax.data import pipeline, prefetch
from vit_jax.data.source import Source
from vit_jax.runtime import device
from vit_jax.training import (
    compiler_options,
    objectives,
    optimizers,
    schedules,
    sharding,
    state,
    step,
    trainable,
)
from vit_jax.training.durations import Durations
from vit_jax.training.losses import ClassCounts
from vit_jax.training.step import Step
from vit_jax.training.teacher import Teacher
from vit_jax.utils import machine
from vit_jax.utils.messages import memory_text
from vit_jax.weights import adapting


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trainer:
    """The parts of a training run; made by `build`.

    Attributes:
      cfg: the config, with the accumulation that these devices need.
      examples: images of an epoch.
      durations: the config's, in steps.
      mesh: the ('data', 'zero', 'fsdp') mesh.
      optimizer: the update rule, without learning rate.
      schedule: step -> learning rate.
      trainable: which parameters train.
      objective: what is minimized.
      teacher: the model to distill from, or None.
    """

    cfg: config.Config
    examples: int
    durations: Durations
    mesh: Mesh
    optimizer: optax.GradientTransformation
    schedule: optax.Schedule
    trainable: trainable.Trainable
    objective: objectives.Objective
    teacher: Teacher | None = None

    @property
    def model(self) -> models.Classifier:
        """The network."""
        return self.objective.model

    def create_state(self) -> state.State:
        """A new training state; call it under `jit` or `eval_shape`."""
        return state.create_state(self.objective, self.optimizer, self.trainable, self.cfg)

    @property
    def batch_shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes of a global batch; of the largest one if the shape changes between steps."""
        return step.batch_shapes(self.cfg, self.objective.variants[0][0])

    @functools.cached_property
    def state_shapes(self) -> state.State:
        """ShapeDtypeStructs of the training state, with shardings; nothing is allocated."""
        return sharding.placed(jax.eval_shape(self.create_state), self.mesh, self.cfg.mesh)

    def init_state(self) -> state.State:
        """A new training state, each shard created on its device."""
        # Sharded from the start: a large model never exists on one device.
        places = jax.tree.map(lambda leaf: leaf.sharding, self.state_shapes)
        return jax.jit(self.create_state, out_shardings=places)()

    def check_memory(self) -> None:
        """Raises OutOfMemory if the state or a batch is larger than the memory that has to hold it.

        The memory of a step is known only after compilation.
        """
        local = [one for one in self.mesh.devices.flat if one.process_index == jax.process_index()]
        limit, state_bytes = device.memory(local[0]), sharding.device_bytes(self.state_shapes)
        # CPU devices share the memory of the machine.
        if local[0].platform == "cpu":
            state_bytes *= len(local)
        if limit is not None and state_bytes > limit:
            raise device.OutOfMemory(
                f"the training state takes {memory_text(state_bytes)}, but a {local[0].platform} "
                f"has {memory_text(limit)}; set mesh.fsdp, or choose a smaller model"
            )
        rows = len(self._rows) / self.cfg.train.batch_size  # share of this host
        batch = rows * sum(
            math.prod(one.shape) * one.dtype.itemsize for one in self.batch_shapes.values()
        )
        if batch > machine.memory():
            raise device.OutOfMemory(
                f"train.batch_size={self.cfg.train.batch_size}: a batch takes "
                f"{memory_text(batch)}, but this host has "
                f"{memory_text(machine.memory())}; lower it"
            )

    @property
    def machine_cfg(self) -> config.Config:
        """The config with `model.unroll` for these devices; runs record the user's value."""
        return dataclasses.replace(self.cfg, model=self.model.config)

    @functools.cached_property
    def step(self) -> Step:
        """The pure step, (state, batch, teacher_params) -> (state, metrics)."""
        return step.create_step(
            self.objective, self.optimizer, self.schedule, self.trainable, self.machine_cfg
        )

    def compile_step(self) -> Step:
        """The step compiled for the mesh, once for each shape of views; it donates its state."""
        # The first group of views alone may change its shape (`Objective.variants`).
        by_shape = {views[0].shape: views for views, _ in self.objective.variants}
        programs = {shape: self.compile_program(views) for shape, views in by_shape.items()}
        # glibc keeps what compiling took, and the step's buffers do not fit between what is left:
        # half a GiB of the peak of MAE with ViT-S/16 at batch 16.
        device.return_freed_memory()
        if len(programs) == 1:
            return next(iter(programs.values()))
        name = self.objective.views[0].name
        return lambda state, batch, teacher_params=None: programs[batch[name].shape[1:]](
            state, batch, teacher_params
        )

    def compile_program(self, views: Sequence[pipeline.View] = ()) -> jax.stages.Compiled:
        """The step compiled for views of one shape each, by default the largest."""
        cfg, mesh = self.machine_cfg, self.mesh
        shapes = step.batch_shapes(cfg, views) if views else self.batch_shapes
        place = NamedSharding(mesh, sharding.BATCH)
        batch = {
            name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place)
            for name, leaf in shapes.items()
        }
        teacher_params = None if self.teacher is None else self.teacher.shapes(mesh, cfg.mesh)
        # The state keeps its shardings: left to the compiler, it may come back in some that the
        # next call does not accept. Metrics are whole on every device: every process reads them.
        places = jax.tree.map(lambda leaf: leaf.sharding, self.state_shapes)
        jitted = jax.jit(
            self.step, donate_argnums=0, out_shardings=(places, NamedSharding(mesh, P()))
        )
        # Constraints within the step name axes only; they need a mesh to be of.
        with jax.set_mesh(mesh):
            lowered = jitted.lower(self.state_shapes, batch, teacher_params)
            chip = mesh.devices.flat[0]
            # With more images per device these options cost more than they hide (see step.FEW).
            hides = step.hides_links(cfg, mesh.size)
            options = compiler_options.for_device(chip) if hides else {}
            if chip.platform == "cpu":
                options = compiler_options.CPU
            if cfg.train.sdc_checker:
                options = options | compiler_options.sdc_checker(chip)
            return compiler_options.compile_with(lowered, options)

    def eval_params(self, live: state.State) -> models.Params:
        """The parameters of a state to evaluate: the average where there is one."""
        return state.evaluated(live, self.cfg.mesh, self.trainable)

    @property
    def flops_per_image(self) -> float | None:
        """FLOPs of training on one image, all views and a teacher's included; None: not counted."""
        return self.objective.flops(self.trainable.passes())

    @functools.cached_property
    def flops_by_phase(self) -> list[tuple[int, float | None]]:
        """The last step of each phase, in which views keep their size, and its FLOPs per image."""
        return self.objective.flops_by_phase(self.trainable.passes())

    def flops_at(self, step: int) -> float | None:
        """FLOPs of training on one image in the step that ends at `step`; None: not counted."""
        return next(flops for end, flops in self.flops_by_phase if step <= end)

    def steps_left(self, step: int) -> float:
        """The work left after `step`, counted in steps as costly as that one."""
        one, left = self.flops_at(step), 0.0
        for end, flops in self.flops_by_phase:
            if step < end:
                # Phases of small views are cheap: by steps alone, the time left would be wrong.
                left += (end - step) * (flops / one if flops and one else 1)
                step = end
        return left

    @functools.cached_property
    def _rows(self) -> np.ndarray:
        return sharding.host_rows(self.mesh, self.cfg.train.batch_size)

    def load(self, source: Source, first: int, stop: Callable[[], bool]) -> prefetch.BatchIterator:
        """Starts loading this host's rows of the batches after step `first`."""
        batches = pipeline.batches(
            source,
            (),
            self.cfg.data,
            views=self.objective.views,
            seed=self.cfg.seed,
            batch_size=self.cfg.train.batch_size,
            rows=self._rows,
            train=True,
            start_step=first,
            stop_step=self.durations.steps,
        )
        return prefetch.Prefetcher(batches, stop)

    def put(self, batch: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
        """Moves this host's rows of a batch to the devices: views and labels, global arrays."""
        inputs = {name: batch[name] for name in self.batch_shapes}
        return sharding.put_batch(inputs, self.mesh, self.cfg.train.batch_size, self._rows)

    def gather(self, ids: np.ndarray) -> np.ndarray | jax.Array:
        """The example numbers of a batch from those of this host; all hosts call it at one step."""
        if jax.process_count() == 1:
            return ids
        numbers = {"index": ids.astype(np.int32)}
        placed = sharding.put_batch(numbers, self.mesh, self.cfg.train.batch_size, self._rows)
        return sharding.copied([placed["index"]], [NamedSharding(self.mesh, P())])[0]


def build(
    cfg: config.Config,
    examples: int,
    *,
    devices: Sequence[Any] | None = None,
    teacher: Teacher | None = None,
    counts: ClassCounts | None = None,
) -> Trainer:
    """Builds everything that trains a config; allocates no array and reads no data.

    Args:
      cfg: a complete config whose `model.num_classes` is known, if it has any.
      examples: images of an epoch.
      devices: to train on, or a slice that only the compiler describes; None: all of the run.
      teacher: that of `objective.teacher`.
      counts: training images per class; None if the loss does not use them.

    Raises ConfigError for a batch or mesh that does not divide over the devices, conflicting
    durations, or a teacher that does not fit.
    """
    devices = jax.devices() if devices is None else devices
    # First, as it turns `train.microbatch` into the accumulation that must divide the batch.
    cfg = checks.with_accumulation(cfg, len(devices))
    checks.check_devices(cfg, len(devices))
    durations = Durations.from_config(cfg, examples)
    platform = devices[0].platform
    # For the model alone: `cfg`, which the run records, keeps the user's value.
    network = dataclasses.replace(cfg.model, unroll=unroll(cfg.model, platform))
    model = create_model(dataclasses.replace(cfg, model=network), platform)
    setup = objectives.Setup(cfg, model, durations, examples, teacher, counts)
    objective = objectives.create_objective(setup)
    own = jax.eval_shape(objective.init, jax.random.key(0))
    trains = trainable.from_config(model, cfg, own, waits=objective.waits, steps=durations.steps)
    return Trainer(
        cfg=cfg,
        examples=examples,
        durations=durations,
        mesh=sharding.create_mesh(cfg.mesh.fsdp, devices),
        optimizer=optimizers.create_optimizer(
            cfg.optimizer,
            clip_norm=cfg.train.clip_norm,
            clip_by=cfg.train.clip_by,
            waits=objective.waits,
            layers=trains.cut,
        ),
        schedule=schedules.create_schedule(
            cfg.schedule,
            lr=cfg.optimizer.lr,
            steps=durations.steps,
            warmup=durations.warmup,
            cooldown=durations.cooldown,
        ),
        trainable=trains,
        objective=objective,
        teacher=teacher,
    )


def describe_run(cfg: config.Config) -> list[tuple[str, str]]:
    """The views and the state of a complete config's objective, each with a label."""
    # A description reads no schedule, so any length will do.
    length = Durations(steps=1, warmup=0, cooldown=0, evaluate=None, save=None)
    setup = objectives.Setup(cfg, create_model(cfg), length, cfg.train.batch_size)
    return objectives.create_objective(setup).describe()


def unroll(model: config.Model, platform: str) -> int:
    """`model.unroll`, or the fastest value for training on this kind of device."""
    if model.unroll is not None:
        return model.unroll
    # A loop over layers stacks its residuals (ViT-B/16 on v3-32 at batch 1024: 6.68 GiB instead
    # of 3.03), and differentiates frozen layers too. XLA for CPUs has no fast gradient of a
    # convolution in a loop: three stages of two units train five times as slowly; elsewhere
    # unrolled convolutions only take longer to compile.
    units = max(model.resnet_units or (1,)) if platform == "cpu" else 1
    return max(model.depth or 1, units)


def create_model(cfg: config.Config, platform: str | None = None) -> models.Classifier:
    """The model of a config.

    Args:
      cfg: a complete config, such as that of `get_config`, which sets the sizes of a
        `model.variant`: only sizes count here. `model.num_classes` must be set.
      platform: which `model.dtype=auto` is for; by default, that of this process.

    Raises ConfigError.

    Examples:
        >>> import jax
        >>> import vit_jax
        >>> model = vit_jax.create_model(vit_jax.get_config("digits"))
        >>> params = model.init(jax.random.key(0))
        >>> logits, out = model.apply(params, jax.numpy.zeros((1, 8, 8, 1)))
        >>> logits.shape
        (1, 10)
    """
    if not isinstance(cfg, config.Config):
        raise config.ConfigError(f"create_model: takes a config, such as get_config({cfg!r})")
    dtype = cfg.model.dtype
    # Most CPUs have no arithmetic in bfloat16: they convert before and after every operation.
    if dtype == "auto":
        dtype = "float32" if (platform or jax.default_backend()) == "cpu" else "bfloat16"
    # Without labels there is no head, whatever classes the images are sorted by.
    needed = cfg.needs_labels
    model = models.create(
        cfg.model if needed else dataclasses.replace(cfg.model, num_classes=None),
        image_size=cfg.data.image_size,
        channels=cfg.data.channels,
        dtype=dtype,
        masked=cfg.masked,
        headless=not needed,
    )
    if cfg.data.aspect == "fixed" and not cfg.data.phases:
        return model
    made = adapting.any_size(model)
    for phase in cfg.data.phases:
        made.check_size(phase.image_size or cfg.data.image_size)
    return made
