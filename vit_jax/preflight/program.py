"""Compiles one training step and reports its memory, FLOPs and traffic between devices."""

import dataclasses
import json
import math
import re
import time
from typing import Any

import jax

from vit_jax import config, models
from vit_jax.config import options
from vit_jax.preflight.collectives import Transfer, count_collectives, read_transfers
from vit_jax.preflight.topologies import Slice, count_chips
from vit_jax.training import build, run_config
from vit_jax.training.build import Trainer
from vit_jax.training.sharding import device_bytes
from vit_jax.training.step import batch_shapes
from vit_jax.training.teacher import Teacher

# Share of peak FLOP/s that a run is expected to have, by the nearest width, and whose runs say so:
# big_vision's logs of ImageNet-1k on v3-8, deit3-jax's on v4-64, and core-days of the paper.
MFU = {
    384: (0.26, "public runs of ViT-S/16: 24 to 30 %"),
    768: (0.30, "public runs of ViT-B/16: 27 to 34 %"),
    1024: (0.41, "public runs of ViT-L/16: 39 to 43 %"),
    1280: (0.32, "the paper's ViT-H/14: 32 %"),
}
NO_VIT = (0.30, "assumed; --mfu sets it")


def expected_mfu(width: int | None) -> tuple[float, str]:
    """The share of peak FLOP/s of a model with tokens of `width` (None: no ViT), and its source."""
    if not width:
        return NO_VIT
    # By ratio: 576 is nearer to 768 than to 384.
    return MFU[min(MFU, key=lambda known: abs(math.log(known / width)))]


@dataclasses.dataclass(frozen=True)
class Settings:
    """Options that change the memory and speed of a step, but not its result."""

    accumulation: int
    remat: str
    unroll: int
    fsdp: int

    @classmethod
    def from_config(cls, cfg: config.Config) -> "Settings":
        """The settings of a config."""
        return cls(cfg.train.accumulation, cfg.model.remat, cfg.model.unroll or 1, cfg.mesh.fsdp)

    def apply(self, cfg: config.Config) -> config.Config:
        """Applies the settings to a config."""
        return dataclasses.replace(
            cfg,
            model=dataclasses.replace(cfg.model, remat=self.remat, unroll=self.unroll),
            # `microbatch` would override the accumulation.
            train=dataclasses.replace(cfg.train, accumulation=self.accumulation, microbatch=None),
            mesh=dataclasses.replace(cfg.mesh, fsdp=self.fsdp),
        )

    def flags(self) -> str:
        """The command-line flags for `vit_jax train`."""
        return (
            f"--config.train.accumulation={self.accumulation} --config.model.remat={self.remat} "
            f"--config.model.unroll={self.unroll} --config.mesh.fsdp={self.fsdp}"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """One compiled step; sizes in bytes and counts per device unless noted."""

    name: str
    topology: str
    settings: Settings
    devices: int
    cores: int
    batch: int  # images, of one microbatch on one device
    fits: bool
    memory: float | None  # of the device
    peak: int | None  # None if compilation failed first
    exceeds: str | None  # the compiler's message
    params: int
    optimizer: int
    activations: int | None  # peak less the state and the batch
    model_flops: float | None  # in forward passes, three if all trains; None: not counted
    compiler_flops: float  # by XLA's count, recomputation included; at most those executed
    bytes_accessed: float | None  # None if a loop hides all but one turn
    compiler_seconds: float | None  # likewise
    collectives: dict[str, dict[str, int]]  # kind: {"count", "bytes"}, loops multiplied
    steps: int
    global_batch: int
    peak_flops: float | None
    bandwidth: float | None
    links: float | None
    compile_seconds: float
    # Collectives that overlap arithmetic: {"kind", "bytes", "count", "beside"}; None: not recorded.
    asynchronous: list[dict[str, Any]] | None = None
    width: int | None = None  # of tokens; None: no ViT, or not recorded

    @property
    def expected_mfu(self) -> tuple[float, str]:
        """The share of peak FLOP/s to estimate time with, and where it is from."""
        return expected_mfu(self.width)

    def bounds(self) -> dict[str, float]:
        """Lower bounds on the seconds per step, by resource; unknown ones are absent."""
        needs = {
            "compute": (self.compiler_flops, self.peak_flops),
            "memory": (self.bytes_accessed, self.bandwidth),
            "links": (self.sent, self.links),
        }
        return {key: need / has for key, (need, has) in needs.items() if need is not None and has}

    @property
    def sent(self) -> int:
        """Bytes that a device of a large slice sends in a step, at least."""
        return sum(
            Transfer(kind, one["bytes"], 1, 0.0).sent for kind, one in self.collectives.items()
        )

    def run(self, mfu: float | None, price: float | None = None) -> dict[str, float] | None:
        """Time, core-days and rate of the whole run at a share `mfu` of peak.

        None is the expected share. With a price per chip and hour, also its cost.
        """
        if self.peak_flops is None or self.model_flops is None:
            return None
        mfu = mfu or self.expected_mfu[0]
        seconds = self.model_flops / (mfu * self.peak_flops)
        days = self.steps * seconds / 86_400
        chip_hours = 24 * days * count_chips(self.topology, self.devices)
        return {
            "step_seconds": seconds,
            "days": days,
            "core_days": days * self.cores,
            "chip_hours": chip_hours,
            "images_per_second": self.global_batch / seconds,
            **({} if price is None else {"cost": price * chip_hours}),
        }


def prepare_config(cfg: config.Config) -> config.Config:
    """Completes and validates a config on random pixels, so its data need not be available."""
    cfg = dataclasses.replace(cfg, model=models.complete(cfg.model), data=cfg.data.synthetic())
    run_config.check_config(cfg)
    return cfg


# Options that change constants of a compiled step, or nothing in it.
CONSTANTS = re.compile(
    r"name|seed|init_from|init_head|(schedule|checkpoint|evaluation|logging)\..*"
    r"|data\.(?!(depth|multilabel|targets)$).*"
    r"|optimizer\.(lr|b1|b2|eps|momentum)|train\.duration|model\.(variant|head_bias)"
)


def same_program(cfg: config.Config) -> str:
    """A key that is equal for configs whose compiled steps differ in constants only.

    Other options are part of it only if they differ from their defaults, so a new option does not
    change the texts of earlier results.
    """
    values: dict[str, Any] = {
        key: options.to_dict(value)
        for key, value in config.changed(cfg).items()
        if not CONSTANTS.fullmatch(key)
    }
    # Their values are constants of the program, but whether they are set changes it.
    for key in ("optimizer.weight_decay", "train.clip_norm"):
        if key in values:
            values[key] = True
    unroll = build.unroll(cfg.model, "tpu")
    values = {**values, "model.unroll": unroll} if unroll > 1 else values
    # CONSTANTS drops all of data.* and schedule.*, but these change shapes or the program.
    values["view"] = [cfg.data.image_size, cfg.data.channels, cfg.schedule.name]
    if cfg.data.aspect == "native":
        values["view"].append(cfg.data.lengths)
    if cfg.data.phases:
        values["view"].append([phase.image_size for phase in cfg.data.phases])
    return json.dumps(values, sort_keys=True)


def peak_bytes(analysis: Any, platform: str) -> int:
    """Peak memory of a device in bytes, including arguments and results."""
    if platform != "cpu":
        return analysis.peak_memory_in_bytes
    # On CPU, XLA omits temporaries from the peak, and allocates all of them at once.
    results = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    # Results that reuse donated arguments are already counted as arguments.
    return analysis.argument_size_in_bytes + results + analysis.temp_size_in_bytes


def measure(
    cfg: config.Config, where: Slice, examples: int, teacher: config.Config | None = None
) -> Report:
    """Compiles the step of `cfg` for a slice and returns the compiler's report.

    Args:
      cfg: a complete config whose number of classes is known; reads no data.
      where: the devices.
      examples: images per epoch, which turn the duration of the run into steps.
      teacher: `model` and `data` of `objective.teacher`.

    Raises ConfigError if the batch or the mesh does not divide by the devices.
    """
    trainer = build.build(
        cfg, examples, devices=where.devices, teacher=_teacher(cfg, teacher, where.platform)
    )
    cfg, shapes, distilled = trainer.machine_cfg, trainer.state_shapes, trainer.teacher
    began = time.monotonic()
    compiled, exceeds = None, None
    try:
        compiled = trainer.compile_program()
    except jax.errors.JaxRuntimeError as error:
        # A program that does not fit is an answer of preflight, not an error.
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        # Without the status code in front, and the table of buffers that follows.
        exceeds = str(error).splitlines()[0].partition(": ")[2]
    seconds = time.monotonic() - began

    peak, arguments, costs, transfers = None, 0, {}, []
    if compiled is not None:
        analysis, text = compiled.memory_analysis(), compiled.as_text()
        assert analysis is not None
        assert text is not None
        peak, arguments = peak_bytes(analysis, where.platform), analysis.argument_size_in_bytes
        # None where a backend has no cost analysis.
        costs = compiled.cost_analysis() or {}
        transfers = read_transfers(text)
    # XLA counts the body of a loop once, so bytes and seconds are kept only without loops.
    # And of several shapes, the largest alone is compiled: its peak is the run's.
    whole = _without_loops(cfg) == cfg and len(trainer.objective.variants) < 2
    flops = trainer.flops_per_image
    of_model = flops and flops * cfg.train.batch_size / len(where.devices)
    counted = step_flops(trainer) / len(where.devices)
    # Of stacked layers of which some are frozen, that has gradients which the compiler drops.
    if trainer.trainable.cut:
        counted = min(counted, of_model or counted)
    fits = peak is not None and (where.memory is None or peak <= where.memory)
    return Report(
        name=cfg.name,
        topology=where.name,
        settings=Settings.from_config(cfg),
        devices=len(where.devices),
        cores=where.cores,
        batch=cfg.train.batch_size // len(where.devices) // cfg.train.accumulation,
        fits=fits,
        memory=where.memory,
        peak=peak,
        exceeds=exceeds,
        params=device_bytes(shapes["params"])
        + (0 if distilled is None else device_bytes(distilled.shapes(trainer.mesh, cfg.mesh))),
        optimizer=device_bytes(shapes["opt"]) + device_bytes(shapes.get("ema", {})),
        activations=None if peak is None else max(peak - arguments, 0),
        model_flops=of_model,
        compiler_flops=counted,
        bytes_accessed=costs.get("bytes accessed") if whole else None,
        compiler_seconds=costs.get("optimal_seconds") if whole else None,
        collectives=count_collectives(transfers),
        steps=trainer.durations.steps,
        global_batch=cfg.train.batch_size,
        peak_flops=where.flops,
        bandwidth=where.bandwidth,
        links=where.links,
        compile_seconds=seconds,
        asynchronous=[one._asdict() for one in transfers if one.beside],
        width=cfg.model.width,
    )


def step_flops(trainer: Trainer) -> float:
    """XLA's count of the floating-point operations of one step over the whole batch.

    Of several shapes of views it is the mean over the run.

    Counted before optimization on a program without loops, as XLA counts a loop's body once;
    microbatches are counted as one batch, which is the same arithmetic.
    """
    cfg = _without_loops(trainer.cfg)
    cfg = dataclasses.replace(cfg, train=dataclasses.replace(cfg.train, microbatch=None))
    devices, teacher = list(trainer.mesh.devices.flat), trainer.teacher
    whole = build.build(cfg, trainer.examples, devices=devices, teacher=teacher)
    # Shapes only: neither the state nor the teacher is allocated.
    shapes = jax.eval_shape(whole.create_state)
    teacher_params = teacher and jax.eval_shape(teacher.model.cast, teacher.model.shapes())
    total = 0.0
    for views, share in whole.objective.variants:
        batch = batch_shapes(whole.cfg, views)
        lowered = jax.jit(whole.step).lower(shapes, batch, teacher_params)
        total += share * (lowered.cost_analysis() or {})["flops"]
    return total


def _teacher(cfg: config.Config, teacher: config.Config | None, platform: str) -> Teacher | None:
    if cfg.distillation is None:
        return None
    assert teacher is not None
    students, teachers = cfg.model.num_classes, teacher.model.num_classes
    if cfg.distillation.target == "logits" and (teachers or 0) > (students or 0):
        # A run takes its data's classes by name.
        model = dataclasses.replace(teacher.model, num_classes=students)
        teacher = dataclasses.replace(teacher, model=model)
    return Teacher(build.create_model(teacher, platform), teacher.data)


def deepest(cfg: config.Config) -> int:
    """The `model.unroll` that removes the loop over layers."""
    return cfg.model.depth or max(cfg.model.resnet_units or (1,))


def _without_loops(cfg: config.Config) -> config.Config:
    return dataclasses.replace(
        Settings.from_config(cfg), accumulation=1, unroll=deepest(cfg)
    ).apply(cfg)
