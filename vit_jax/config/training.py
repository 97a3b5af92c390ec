"""Options of the objective, the optimizer and the devices."""

import dataclasses

from vit_jax.config import patterns
from vit_jax.config.components import component
from vit_jax.config.durations import Duration
from vit_jax.config.options import option


@dataclasses.dataclass(frozen=True, kw_only=True)
class Train:
    """How long, on how much at a time, and against which loss."""

    batch_size: int = option(4096, "Global batch in images.", at_least=1)
    accumulation: int = option(
        1, "Microbatches the global batch is cut into, one after another.", at_least=1, free=True
    )
    microbatch: int | None = option(
        None,
        "Most images of a device at a time: chooses accumulation by the devices there are.",
        at_least=1,
        free=True,
    )
    duration: Duration = option(
        Duration(90, "epochs"), "Length of the run: N steps, epochs or examples."
    )
    loss: str = component("softmax", "loss", "Cross-entropy, or the loss of a plug-in.")
    augmentations: tuple[str, ...] = component(
        (), "batch_augmentation", "Augmentations of a batch by plug-ins, on the device."
    )
    label_smoothing: float = option(0.0, "Label mass spread over all classes.", at_least=0, below=1)
    mixup: float = option(
        0.0, "Beta parameter of mixup, which blends pairs of images; 0: off.", at_least=0
    )
    cutmix: float = option(
        0.0,
        "Beta parameter of CutMix, a box of one image in another; 0: off. With mixup, one of both.",
        at_least=0,
        later=True,
    )
    clip_norm: float | None = option(
        None, "Global gradient norm to clip at; none: no clipping.", above=0
    )
    ema: float | None = option(
        None,
        "Decay of the averaged parameters that are evaluated; none: no average.",
        above=0,
        below=1,
    )
    max_bad_steps: int = option(
        0,
        "Steps with a loss or gradient that is not finite to skip before the run stops.",
        at_least=0,
        free=True,
    )
    replay: int | None = option(
        None,
        "Run every N-th step twice: results that differ in a bit end the run; none: off.",
        at_least=1,
        free=True,
    )
    sdc_checker: bool = option(
        False,
        "Have the TPU compiler check results for silent corruption; a device that finds it halts.",
        free=True,
        later=True,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Masked:
    """Self-supervision by masked patches, in place of labels (ViT, section 4.6 and B.1.2)."""

    target: str | None = option(
        None,
        "What is predicted: a patch's mean color, that of 4 x 4 parts, or its pixels; none: off.",
        choices=("color", "color_4x4", "pixels"),
    )
    rate: float = option(
        0.5, "Share of an image's patches that are corrupted, and predicted.", above=0, below=1
    )
    split: tuple[float, ...] = option(
        (0.8, 0.1, 0.1),
        "Of the corrupted: shares that become the mask token, another patch, or stay.",
        at_least=0,
        at_most=1,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizer:
    """The update rule."""

    name: str = component(
        "adam",
        "optimizer",
        "Update rule; those of optax and of plug-ins take arguments: lion(b1=0.9,b2=0.99).",
    )
    lr: float = option(1e-3, "Peak learning rate.", above=0)
    b1: float = option(0.9, "Adam's first-moment decay.", at_least=0, below=1)
    b2: float = option(0.999, "Adam's second-moment decay.", at_least=0, below=1)
    eps: float = option(1e-8, "Adam's epsilon.", above=0)
    momentum: float = option(0.9, "SGD's momentum.", at_least=0, below=1)
    moment_dtype: str = option(
        "float32", "Type of Adam's first moment or SGD's momentum.", choices=("float32", "bfloat16")
    )
    weight_decay: float = option(
        0.0, "Decoupled weight decay, multiplied by the learning rate.", at_least=0
    )
    decayed: str = option(
        "kernels", "Parameters that decay: kernels only, or all.", choices=("kernels", "all")
    )
    freeze: tuple[str, ...] = option(
        (),
        "Parameters that stay as they are, by pattern: embedding, encoder[:8], */bias.",
        check=patterns.check,
        later=True,
    )
    only: tuple[str, ...] = option(
        (),
        "The parameters that train, by pattern, all others frozen: head; (): all that may.",
        check=patterns.check,
        later=True,
    )
    layer_decay: float | None = option(
        None,
        "Factor on the learning rate for every layer below the head, as in BEiT and MAE.",
        above=0,
        at_most=1,
        later=True,
    )
    groups: tuple[str, ...] = option(
        (),
        "Factors on rate and weight decay by pattern: head(lr=10), */bias(lr=2,decay=0).",
        check=patterns.check_group,
        later=True,
    )
    head_first: int = option(
        0, "Steps at first in which the head alone trains.", at_least=0, later=True
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lora:
    """Low-rank adapters (LoRA, Hu et al. 2021): they and the head train, all else is frozen."""

    rank: int | None = option(
        None, "Rank of the adapters; none: no adapters.", at_least=1, later=True
    )
    alpha: float = option(
        16.0, "Scale of the adapters, which add alpha / rank A B.", above=0, later=True
    )
    where: tuple[str, ...] = option(
        (),
        "Matrices with an adapter, by pattern: encoder/attention/query; (): all of the encoder's.",
        check=patterns.check,
        later=True,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Distill:
    """A frozen teacher, whose outputs are part of the loss."""

    teacher: str | None = option(
        None,
        "Who teaches: a run, a file or folder of weights, or a published name; none: nobody.",
        later=True,
    )
    target: str = option(
        "logits",
        "What is learned: logits of the same classes; cosines between features or between tokens.",
        choices=("logits", "features", "tokens"),
        later=True,
    )
    weight: float = option(
        1.0,
        "Share of the teacher in the loss; labels have the rest.",
        above=0,
        at_most=1,
        later=True,
    )
    temperature: float = option(1.0, "Temperature of both models' logits.", above=0, later=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule:
    """The learning rate over the run, relative to optimizer.lr."""

    warmup: Duration = option(Duration(0, "steps"), "Linear warm-up from 0.")
    decay: str = component("cosine", "schedule", "Shape after the warm-up.")
    cooldown: Duration = option(
        Duration(0, "steps"),
        "Linear fall to 0 at the end of a constant or rsqrt decay.",
        later=True,
    )
    end: float = option(0.0, "Learning rate a cosine or linear decay ends at.", at_least=0)
    timescale: float = option(10_000.0, "Steps after which rsqrt has visibly decayed.", above=0)
    drops: tuple[float, ...] = option(
        (0.3, 0.6, 0.9),
        "Shares of the run after which step divides the rate by 10.",
        above=0,
        below=1,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mesh:
    """How devices share the work."""

    zero: bool = option(
        True,
        "Split the float32 parameters, moments and average over all devices (ZeRO, stage 1).",
        free=True,
    )
    fsdp: int = option(
        1,
        "Devices that share one copy of the parameters while a step computes.",
        at_least=1,
        free=True,
    )
    fsdp_min_size: int = option(
        4096, "Arrays with fewer elements stay whole on every device.", at_least=0, free=True
    )
