"""Options of the objective, the optimizer, the learning rate and the devices."""

import dataclasses
from typing import ClassVar

from vit_jax.config import patterns
from vit_jax.config.data import Data
from vit_jax.config.durations import Duration
from vit_jax.config.options import GIVEN, Section, option
from vit_jax.utils.errors import ConfigError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Augmentation(Section, kind="batch_augmentation"):
    """An augmentation of a whole batch."""

    name: str = option("", "Augmentation of a plug-in.", kind="batch_augmentation")


def check_class_weights(text: str, key: str) -> None:
    """Raises ConfigError for a text that is neither a rule nor CLASS:WEIGHT."""
    name, _, weight = text.rpartition(":")
    try:
        # NaN fails the comparison.
        good = text in ("balanced", "effective") or (name and 0 <= float(weight) < 1e6)
    except ValueError:
        good = False
    if not good:
        raise ConfigError(
            f"{key}={text}: must be balanced, effective, or weights such as cat:2,dog:0.5"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Train:
    """Length of the run, batch size, and how a batch is processed."""

    # The paper's for pre-training.
    batch_size: int = option(4096, "Global batch in images.", at_least=1, at_most=10**7)
    # Free, as the batch stays the same: a run may resume on devices with other memory.
    accumulation: int = option(
        1,
        "Microbatches that the global batch is split into; their gradients are added up.",
        at_least=1,
        free=True,
    )
    microbatch: int | None = option(
        None,
        "Largest microbatch per device, in images; sets accumulation to match the devices.",
        at_least=1,
        free=True,
    )
    duration: Duration = option(
        Duration(90, "epochs"), "Length of the run: N steps, epochs or examples."
    )
    augmentations: tuple[Augmentation, ...] = option(
        (), "Batch augmentations of plug-ins, run on the device.", kind="batch_augmentation"
    )
    class_weights: tuple[str, ...] = option(
        (),
        "Loss weights by class: balanced, effective, or class by class, as in cat:2,dog:0.5.",
        check=check_class_weights,
    )
    label_smoothing: float = option(0.0, "Label mass spread over all classes.", at_least=0, below=1)
    mixup: float = option(
        0.0,
        "Beta parameter of mixup, which blends pairs of images; 0: off.",
        at_least=0,
        at_most=1e6,
    )
    cutmix: float = option(
        0.0,
        "Beta parameter of CutMix; 0: off. With mixup also set, each step picks one of the two.",
        at_least=0,
        at_most=1e6,
    )
    clip_norm: float | None = option(None, "Gradient norm to clip at; none: no clipping.", above=0)
    clip_by: str = option(
        "global",
        "Norm to clip: of the whole gradient, or of each parameter's, as in DINO's code.",
        choices=("global", "parameter"),
        when={"train.clip_norm": GIVEN},
    )
    ema: float | None = option(
        None,
        "Decay of the averaged parameters that are evaluated; none: no average.",
        above=0,
        below=1,
    )
    max_bad_steps: int = option(
        0,
        "Steps with a non-finite loss or gradient that are skipped before the run stops.",
        at_least=0,
        free=True,
    )
    replay: int | None = option(
        None,
        "Run every N-th step twice and stop if the results differ in any bit; none: off.",
        at_least=1,
        free=True,
    )
    sdc_checker: bool = option(
        False,
        "Have the TPU compiler check results for silent corruption; a device that finds it halts.",
        free=True,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loss(Section, kind="loss", components=("softmax", "sigmoid", "emd")):
    """The loss of an image against its labels."""

    name: str = option(
        "softmax",
        "For classes: softmax, sigmoid, focal, logit_adjusted, emd (ordered classes), or a "
        "plug-in's; for numbers: mse, l1, huber.",
        kind="loss",
    )

    @property
    def meaning(self) -> str:
        """The function of the logits: `softmax` for every loss of one class per image."""
        # They change the loss of a softmax, not what its outputs mean.
        softmax = isinstance(self, Focal | LogitAdjusted) or self.name == "emd"
        return "softmax" if softmax else self.name


@dataclasses.dataclass(frozen=True, kw_only=True)
class Focal(Loss, components=("focal",)):
    """The argument of the focal loss (Lin et al. 2017) on softmax probabilities."""

    # The value that works best in the paper.
    gamma: float = option(
        2.0,
        "Exponent of the weight (1 - p), which plays down confident images.",
        at_least=0,
        at_most=100,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogitAdjusted(Loss, components=("logit_adjusted",)):
    """The argument of logit adjustment (Menon et al. 2021)."""

    tau: float = option(
        1.0,
        "Factor on the log class frequencies that are added to the logits in training.",
        at_least=0,
        at_most=100,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Regression(Loss, components=("mse", "l1")):
    """Arguments of regression losses on the columns of `data.targets`, each standardized."""

    mean: tuple[float, ...] | None = option(
        None, "Value of each column that the head predicts as 0; none: the training mean."
    )
    std: tuple[float, ...] | None = option(
        None,
        "Units of each column per unit of the head; none: the training standard deviation.",
        above=0,
    )

    @property
    def meaning(self) -> str:
        """`mse` for every regression loss: outputs are values in standard deviations."""
        return "mse"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Huber(Regression, components=("huber",)):
    """Arguments of the Huber loss (Huber 1964)."""

    delta: float = option(
        1.0,
        "Error, in standard deviations, beyond which the loss grows linearly.",
        above=0,
        at_most=1e6,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Objective(Section, kind="objective", given=1, components=("supervised",)):
    """The training objective."""

    needs_labels: ClassVar[bool] = True

    name: str = option(
        "supervised",
        "What the run learns: supervised, distillation, masked_patches, mae, dino, or a plug-in's.",
        kind="objective",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedPatches(Objective, components=("masked_patches",)):
    """Arguments of self-supervision by masked patches (ViT, section 4.6 and B.1.2)."""

    needs_labels: ClassVar[bool] = False

    target: str = option(
        "color",
        "What is predicted: a patch's mean color, that of 4 x 4 parts, or its pixels.",
        choices=("color", "color_4x4", "pixels"),
    )
    rate: float = option(
        0.5, "Share of an image's patches that are corrupted and then predicted.", above=0, below=1
    )
    split: tuple[float, ...] = option(
        (0.8, 0.1, 0.1),
        "Shares of corrupted patches: mask token, another patch, unchanged.",
        at_least=0,
        at_most=1,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mae(Objective, components=("mae",)):
    """Arguments of masked autoencoding (He et al. 2022): predict the pixels of dropped patches."""

    needs_labels: ClassVar[bool] = False

    # The defaults are the paper's: 75 % masked, and a decoder of 8 layers of width 512.
    mask_ratio: float = option(
        0.75, "Share of an image's patches that the encoder does not see.", above=0, below=1
    )
    norm_pix: bool = option(
        True, "Whether target pixels are normalized by their patch's mean and variance."
    )
    decoder_width: int = option(512, "Token width of the decoder.", at_least=4, at_most=10**6)
    decoder_depth: int = option(8, "Number of decoder layers.", at_least=1, at_most=10_000)
    decoder_heads: int = option(16, "Attention heads of the decoder.", at_least=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Distillation(Objective, components=("distillation",)):
    """Arguments of distillation: a frozen teacher, whose outputs are part of the loss."""

    teacher: str | None = option(
        None, "Teacher checkpoint: run directory, weights file or folder, or published name."
    )
    target: str = option(
        "logits",
        "What the student matches: logits of the same classes, or features or tokens by cosine.",
        choices=("logits", "features", "tokens"),
    )
    weight: float = option(
        1.0, "Weight of the teacher in the loss; labels get the rest.", above=0, at_most=1
    )
    temperature: float = option(
        1.0,
        "Temperature that divides the logits of teacher and student.",
        above=0,
        at_most=1e6,
        when={"objective.target": ("logits",)},
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dino(Objective, components=("dino",)):
    """Arguments of DINO (Caron et al. 2021), by default those of its code."""

    needs_labels: ClassVar[bool] = False

    prototypes: int = option(
        65536,
        "Number K of prototypes, the outputs of the projection head.",
        at_least=2,
        at_most=10**8,
    )
    head_layers: int = option(
        3, "Dense layers of the head before the prototypes.", at_least=1, at_most=100
    )
    head_hidden: int = option(
        2048, "Hidden width of the projection head.", at_least=1, at_most=10**7
    )
    head_bottleneck: int = option(
        256,
        "Width of the vectors that are compared with the prototypes.",
        at_least=1,
        at_most=10**6,
    )
    norm_last_layer: bool = option(
        True, "Whether prototypes keep length 1; otherwise their lengths train."
    )
    freeze_last_layer: Duration = option(
        Duration(1, "epochs"), "How long the prototypes stay frozen at the start."
    )
    momentum: float = option(
        0.996,
        "Decay of the teacher, a moving average of the student, at the start.",
        at_least=0,
        at_most=1,
    )
    momentum_end: float = option(
        1.0, "Decay of the teacher at the end, reached along a half cosine.", at_least=0, at_most=1
    )
    student_temperature: float = option(0.1, "Temperature of the student's logits.", above=0)
    teacher_temperature: float = option(0.04, "Temperature of the teacher's logits.", above=0)
    # Equal to the one above: DINO's code has no warm-up by default.
    teacher_temperature_start: float = option(
        0.04,
        "Temperature of the teacher's logits at step 0.",
        above=0,
        when={"objective.teacher_temperature_warmup": GIVEN},
    )
    teacher_temperature_warmup: Duration = option(
        Duration(0, "epochs"), "Length of the linear change from the temperature at step 0."
    )
    centering: str = option(
        "mean",
        "How collapse is avoided: subtract the mean logits (mean), or Sinkhorn-Knopp.",
        choices=("mean", "sinkhorn"),
    )
    center_momentum: float = option(
        0.9,
        "Decay of the running mean of the teacher's logits.",
        at_least=0,
        below=1,
        when={"objective.centering": ("mean",)},
    )
    koleo: float = option(
        0.0,
        "Weight of the KoLeo loss, which spreads features apart (DINOv2: 0.1); 0: off.",
        at_least=0,
    )
    patch_loss: float = option(
        0.0, "Weight of the loss on masked patches (iBOT, DINOv2: 1); 0: off.", at_least=0
    )
    gram: float = option(
        0.0,
        "Weight of Gram anchoring, which keeps patches as similar as an earlier teacher has them "
        "(DINOv3 has 2); 0: off.",
        at_least=0,
    )
    gram_start: Duration = option(
        Duration(0, "steps"),
        "When it begins, with the teacher of then (DINOv3: a million steps).",
        when={"objective.gram": GIVEN},
    )
    gram_every: Duration = option(
        Duration(10_000, "steps"),
        "How often the teacher of then takes over; 0: never.",
        when={"objective.gram": GIVEN},
    )
    mask_probability: float = option(
        0.5,
        "Probability that a large view is masked for the student.",
        above=0,
        at_most=1,
        when={"objective.patch_loss": GIVEN},
    )
    mask_ratio: tuple[float, float] = option(
        (0.1, 0.5),
        "Range of the share of patches masked in such a view.",
        above=0,
        at_most=1,
        when={"objective.patch_loss": GIVEN},
    )
    patch_head: bool = option(
        False,
        "Whether patches get a separate projection head, as in DINOv2 on ImageNet-21k.",
        when={"objective.patch_loss": GIVEN},
    )
    global_area: tuple[float, float] = option(
        (0.4, 1.0),
        "Range of the share of the image that the two large views show.",
        above=0,
        at_most=1,
    )
    local_views: int = option(8, "Number of small views, which only the student sees.", at_least=0)
    local_size: int | None = option(
        None,
        "Side of the small views in pixels; none: 3/7 of image_size in whole patches.",
        at_least=1,
        at_most=10_000,
        when={"objective.local_views": GIVEN},
    )
    local_area: tuple[float, float] = option(
        (0.05, 0.4),
        "Range of the share of the image that the small views show.",
        above=0,
        at_most=1,
        when={"objective.local_views": GIVEN},
    )
    jitter: float = option(0.8, "Probability of color jitter.", at_least=0, at_most=1)
    gray: float = option(0.2, "Probability of conversion to gray.", at_least=0, at_most=1)
    blur: tuple[float, ...] = option(
        (1.0, 0.1, 0.5),
        "Probability of Gaussian blur in the first large, the second large and the small views.",
        at_least=0,
        at_most=1,
    )
    solarize: tuple[float, ...] = option(
        (0.0, 0.2, 0.0),
        "Probability of solarization in the first large, the second large and the small views.",
        at_least=0,
        at_most=1,
    )
    collapse_steps: int = option(
        500, "Consecutive collapsed steps before a warning is logged.", at_least=1, free=True
    )
    stop_on_collapse: bool = option(
        False, "Whether a collapse ends the run, with exit code 78.", free=True
    )

    def small_size(self, data: Data, patch: tuple[int, int]) -> tuple[int, int]:
        """Height and width of small views: `local_size`, else 3/7 of the large in whole patches."""
        if self.local_size is not None:
            return self.local_size, self.local_size
        height, width = (
            # 3/7 of 224 is 96, the side of the small views in DINO's code.
            max(1, round(side * 3 / 7 / step)) * step
            for side, step in zip(data.image_size, patch, strict=True)
        )
        return height, width


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParamGroup:
    """Parameters with a learning rate or weight decay of their own."""

    pattern: str = option("", "Parameters, by pattern: head, */bias.", check=patterns.parse_pattern)
    lr: float | None = option(None, "Factor on the learning rate; none: 1.", at_least=0, below=1e6)
    decay: float | None = option(
        None,
        "Factor on the weight decay, also where optimizer.decayed has none; none: no change.",
        at_least=0,
        below=1e6,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizer(Section, kind="optimizer", given_by_name=("learning_rate",)):
    """The update rule."""

    name: str = option(
        "adam", "Update rule; the other options are its arguments.", kind="optimizer"
    )
    lr: float = option(1e-3, "Peak learning rate.", above=0)
    weight_decay: float = option(
        0.0, "Decoupled weight decay, multiplied by the learning rate.", at_least=0
    )
    weight_decay_end: float | None = option(
        None, "Weight decay at the end, reached along a half cosine; none: constant.", at_least=0
    )
    decayed: str = option(
        "kernels",
        "Parameters that decay: kernels only, or all.",
        choices=("kernels", "all"),
        when={
            "optimizer.weight_decay": GIVEN,
            "optimizer.weight_decay_end": GIVEN,
            "optimizer.name": ("lamb", "lars"),  # whose trust ratios are of what decays
        },
    )
    freeze: tuple[str, ...] = option(
        (),
        "Frozen parameters, by pattern: embedding, encoder[:8], */bias.",
        check=patterns.parse_pattern,
    )
    only: tuple[str, ...] = option(
        (),
        "Trainable parameters, by pattern, such as head; the rest is frozen. (): no limit.",
        check=patterns.parse_pattern,
    )
    layer_decay: float | None = option(
        None,
        "Factor on the learning rate for every layer below the head, as in BEiT and MAE.",
        above=0,
        at_most=1,
    )
    groups: tuple[ParamGroup, ...] = option(
        (), "Factors on learning rate (lr) and weight decay (decay) by pattern: groups.head.lr=10."
    )
    head_first: int = option(
        0, "Initial steps in which only the head, or the objective's own part, trains.", at_least=0
    )


MOMENT_TYPES = ("float32", "bfloat16")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adam(Optimizer, components=("adam",)):
    """Adam's arguments."""

    b1: float = option(0.9, "First-moment decay.", at_least=0, below=1)
    b2: float = option(0.999, "Second-moment decay.", at_least=0, below=1)
    eps: float = option(1e-8, "Epsilon.", above=0)
    # The second moment stays float32: changes of a share 1 - b2 are lost in bfloat16.
    moment_dtype: str = option("float32", "Type of the first moment.", choices=MOMENT_TYPES)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sgd(Optimizer, components=("sgd",)):
    """SGD's arguments."""

    momentum: float = option(0.9, "Momentum.", at_least=0, below=1)
    moment_dtype: str = option("float32", "Type of the momentum.", choices=MOMENT_TYPES)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Muon(Optimizer, components=("muon",)):
    """Muon's arguments: it orthogonalizes the encoder's matrices, and Adam updates the rest."""

    beta: float = option(0.95, "Momentum of the matrices.", at_least=0, below=1)
    ns_steps: int = option(5, "Newton-Schulz iterations.", at_least=1, at_most=100)
    nesterov: bool = option(True, "Whether the momentum is Nesterov's.")
    consistent_rms: float | None = option(
        None, "Root mean square of an update; none: scaled by the matrix's shape.", above=0
    )
    eps: float = option(1e-8, "Epsilon.", above=0)
    adam_b1: float = option(0.9, "Adam's first-moment decay.", at_least=0, below=1)
    adam_b2: float = option(0.999, "Adam's second-moment decay.", at_least=0, below=1)
    mu_dtype: str | None = option(
        None, "Type of the first moments; none: the parameters'.", choices=MOMENT_TYPES
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lamb(Optimizer, components=("lamb",)):
    """LAMB's arguments: Adam, each array's update scaled to the norm of that array."""

    b1: float = option(0.9, "First-moment decay.", at_least=0, below=1)
    b2: float = option(0.999, "Second-moment decay.", at_least=0, below=1)
    # optax's default for LAMB; Adam's is 1e-8.
    eps: float = option(1e-6, "Epsilon.", above=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lars(Optimizer, components=("lars",)):
    """LARS's arguments, by optax's names: weight decay stands in its trust ratio."""

    trust_coefficient: float = option(0.001, "Factor on the trust ratio.", above=0)
    eps: float = option(0.0, "Epsilon of the trust ratio.", at_least=0)
    trust_ratio_mask: bool = option(
        True, "Whether updates of what decays (optimizer.decayed) are scaled by the trust ratio."
    )
    momentum: float = option(0.9, "Momentum.", at_least=0, below=1)
    nesterov: bool = option(False, "Whether the momentum is Nesterov's.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lora:
    """Low-rank adapters (LoRA, Hu et al. 2021): they and the head train, the rest is frozen."""

    rank: int | None = option(None, "Rank of the adapters; none: no adapters.", at_least=1)
    alpha: float = option(
        16.0,
        "Scale of the adapters: each adds alpha / rank * A B to its matrix.",
        above=0,
        when={"lora.rank": GIVEN},
    )
    where: tuple[str, ...] = option(
        (),
        "Matrices with an adapter, by pattern: encoder/attention/query; (): all of the encoder's.",
        check=patterns.parse_pattern,
        when={"lora.rank": GIVEN},
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule(Section, kind="schedule", given_by_name=("lr", "steps", "warmup")):
    """The learning rate over the run, relative to optimizer.lr."""

    cooldown: ClassVar[Duration] = Duration(0, "steps")  # of schedules that end by themselves

    name: str = option("cosine", "Shape after the warm-up.", kind="schedule")
    warmup: Duration = option(Duration(0, "steps"), "Linear warm-up from 0.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Falling(Schedule, components=("cosine", "linear")):
    """The argument of a decay over the whole run."""

    end: float = option(0.0, "Learning rate at the end.", at_least=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepSchedule(Schedule, components=("step",)):
    """The argument of a learning rate that drops in steps."""

    drops: tuple[float, ...] = option(
        (0.3, 0.6, 0.9),
        "Shares of the run after which the learning rate is divided by 10.",
        above=0,
        below=1,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cooled(Schedule, components=("constant",)):
    """The argument of schedules that do not depend on the run's length before they cool down."""

    cooldown: Duration = option(Duration(0, "steps"), "Length of the linear decay to 0 at the end.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReciprocalSqrt(Cooled, components=("rsqrt",)):
    """Arguments of a decay with the inverse square root of the step."""

    timescale: float = option(
        10_000.0,
        "Steps over which the decay sets in: the rate is lr / sqrt(1 + step / timescale).",
        above=0,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mesh:
    """How arrays are split over devices."""

    zero: bool = option(
        True,
        "Split the float32 parameters, moments and average over all devices (ZeRO-1).",
        free=True,
    )
    fsdp: int = option(
        1,
        "Devices that share one copy of the parameters during a step (FSDP).",
        at_least=1,
        free=True,
    )
    # A small array saves little memory when split, and costs a collective of its own.
    fsdp_min_size: int = option(
        4096, "Arrays with fewer elements stay whole on every device.", at_least=0, free=True
    )
