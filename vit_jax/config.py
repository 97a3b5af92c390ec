"""The schema of a run: every option with its type, its bounds and its one-line meaning.

A config file returns an `ml_collections.ConfigDict`; `build` turns it into the frozen dataclasses
below or raises a one-line `ConfigError` that names the key, the value and the nearest valid choice.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any

from vit_jax import components
from vit_jax import options as _options
from vit_jax.options import NO_ROOM as NO_ROOM
from vit_jax.options import ConfigError as ConfigError
from vit_jax.options import Duration as Duration
from vit_jax.options import UserError as UserError
from vit_jax.options import differences as differences
from vit_jax.options import fingerprint as fingerprint
from vit_jax.options import get as get
from vit_jax.options import option
from vit_jax.options import show as show
from vit_jax.options import suggest as suggest

PLUGINS = "plugins"  # of a recorded config: the modules of its components


def _component(default: Any, kind: str, doc: str, **more: Any) -> Any:
    """Declares an option that names components: built in, or registered by a plug-in."""
    check = functools.partial(components.check, kind=kind)
    return option(default, doc, choices=components.BUILT_IN[kind], check=check, kind=kind, **more)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """The network; sizes left at None come from `variant`."""

    variant: str | None = option(
        None, "Size by name, such as ViT-B/16 or R50+ViT-B/32; fills the sizes left at none."
    )
    architecture: str | None = _component(
        None, "model", "Kind of network; none: what the variant names, else vit."
    )
    resnet_units: tuple[int, ...] | None = option(
        None,
        "Bottleneck units per stage of the ResNet (before an encoder); (): its stem alone.",
        at_least=1,
    )
    resnet_width: float | None = option(
        None, "Factor on the widths of the ResNet; none: the variant's, else 1.", above=0
    )
    resnet_version: str = option(
        "v1", "ResNet units: post-activation v1, or pre-activation v2.", choices=("v1", "v2")
    )
    resnet_pool: str = option(
        "zeros",
        "Padding of v2's max-pool: zeros as in BiT's code, or nothing as in big_vision's.",
        choices=("zeros", "nothing"),
    )
    resnet_epsilons: str = option(
        "version",
        "What keeps a ResNet's divisions from 0: that of its version's own code, or of timm's.",
        choices=("version", "timm"),
    )
    patch_size: tuple[int, int] | None = option(
        None, "Patch height and width in pixels, or in positions of the ResNet's map.", at_least=1
    )
    width: int | None = option(None, "Token width D.", at_least=1)
    depth: int | None = option(None, "Number of encoder layers.", at_least=1)
    mlp_dim: int | None = option(None, "Hidden width of the MLP.", at_least=1)
    heads: int | None = option(None, "Number of attention heads; must divide width.", at_least=1)
    num_classes: int | None = option(
        None, "Outputs of the head; none: the number of classes of the data.", at_least=1
    )
    patch_remainder: str = option(
        "refuse",
        "Pixels that fill no whole patch: refuse such image sizes, or drop them, as others do.",
        choices=("refuse", "drop"),
    )
    pooling: str = option(
        "token",
        "What the head sees: class token, first token, mean, maximum, both, or attention (map).",
        choices=("token", "first", "gap", "max", "gap_max", "map"),
    )
    class_token: bool | None = option(
        None, "Whether a class token stands before the patches; none: if pooling is token."
    )
    position: str = option(
        "learned_1d",
        "Position embedding: none, learned by index or row and column, relative, or fixed sin-cos.",
        choices=("none", "learned_1d", "learned_2d", "relative", "sincos_1d", "sincos_2d"),
    )
    class_position: bool = option(
        True, "Whether learned positions have one for the class token; those of big_vision do not."
    )
    position_place: str = option(
        "stem",
        "Where positions are added: after the stem, to the input of every layer, or there shared.",
        choices=("stem", "layers", "shared"),
    )
    representation_size: int | None = option(
        None,
        "Width of the dense layer before the head (pre_logits); none: no such layer.",
        at_least=1,
    )
    representation_activation: str = option(
        "tanh",
        "Activation of the layer before the head; tanh as in Google's code.",
        choices=("tanh", "relu", "silu"),
    )
    head_bias: float = option(
        0.0, "Initial bias of the head; -10 suits sigmoid loss on many classes."
    )
    activation: str = option(
        "gelu",
        "Activation of the MLPs; model.gelu is the form of GELU.",
        choices=("gelu", "silu", "relu"),
    )
    gelu: str = option(
        "tanh", "GELU form: tanh as in Google's code, erf as in timm.", choices=("tanh", "erf")
    )
    norm_epsilon: float = option(1e-6, "Epsilon of LayerNorm.", above=0)
    norm_place: str = option(
        "tokens",
        "Input of the last LayerNorm: the tokens, or what pooling makes of them (timm's fc_norm).",
        choices=("tokens", "pooled"),
    )
    dropout: float = option(0.0, "Dropout rate in the paper's four places.", at_least=0, below=1)
    stochastic_depth: float = option(
        0.0, "Share of images the last layer is skipped for; rises from 0.", at_least=0, below=1
    )
    attention: str = option(
        "explicit",
        "Attention code: explicit einsums, or jax.nn.dot_product_attention with XLA or cuDNN.",
        choices=("explicit", "xla", "cudnn"),
        free=True,
    )
    unroll: int = option(
        1,
        "Layers unrolled per scan step: 1 compiles fastest, depth runs fastest.",
        at_least=1,
        free=True,
    )
    remat: str = option(
        "none",
        "What backward recomputes: nothing, attention weights, all, all but (weight) matmuls.",
        choices=("none", "attention", "full", "dots", "dots_no_batch"),
        free=True,
    )
    dtype: str = option(
        "auto",
        "Compute type; auto: bfloat16 on TPU and GPU, float32 on CPU. Parameters are float32.",
        choices=("auto", "float32", "bfloat16"),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
    """Where images come from and what happens to their pixels before the model."""

    source: str = _component(
        "digits",
        "source",
        "Kind of data: embedded digits, folder of images, TFDS dataset, or random pixels.",
    )
    name: str | None = option(None, "TFDS dataset, such as cifar10 or cifar10:3.0.2.")
    root: str | None = option(None, "Folder of images, or TFDS data_dir.", free=True)
    labels: str | None = option(
        None,
        "TFDS labels: a rule such as clevr-count, or a class label by name; none: the data's own.",
    )
    examples: str | None = option(
        None,
        "List of the images of data.train_split, to be found by hash; `vit_jax prepare` writes it.",
        free=True,
    )
    classes: tuple[str, ...] | None = option(
        None, "Classes to keep, by name and in this order, such as 0,1,2; none: all of the data's."
    )
    train_split: str = option("train", "Split to train on; TFDS slices such as train[:99%] work.")
    eval_split: str = option(
        "test",
        "Split to evaluate on while training; auto: a validation split if there is one, else test.",
    )
    test_split: str | None = option(
        None,
        "Split to measure once, at the end; auto: test, where a validation split is evaluated on.",
    )
    holdout: float = option(
        0.0,
        "Share of each class of an unsplit folder kept for evaluation; 0: root has split folders.",
        at_least=0,
        below=1,
    )
    image_size: tuple[int, int] = option(
        (224, 224), "Input height and width in pixels.", at_least=1
    )
    channels: int = option(3, "Color channels: 3, or 1 for gray.", at_least=1, at_most=3)
    mean: tuple[float, ...] = option(
        (0.5,), "Pixel value, of 0 to 1, the model sees as 0; one, or one for each channel."
    )
    std: tuple[float, ...] = option(
        (0.5,), "Pixel values between the model's 0 and 1; one, or one for each channel.", above=0
    )
    resampling: str = option(
        "bilinear",
        "Resizing: bilinear as in TensorFlow, or antialiased, as timm and Hugging Face do.",
        choices=("bilinear", "antialiased_bilinear", "antialiased_bicubic"),
    )
    train_crop: str = option(
        "inception",
        "Training view: resize to image_size, random crop of resize_to, or Inception crop.",
        choices=("resize", "random", "inception"),
    )
    eval_crop: str = option(
        "resize",
        "Evaluation view: resize to image_size, or central crop after a short-side resize.",
        choices=("resize", "central"),
    )
    resize_to: int | None = option(
        None,
        "Side before a random crop, short side before a central crop; none: 8/7 of image_size.",
        at_least=1,
    )
    crop_area: tuple[float, float] = option(
        (0.05, 1.0), "Inception crop: smallest and largest share of the image.", above=0, at_most=1
    )
    crop_aspect: tuple[float, float] = option(
        (0.75, 4 / 3), "Inception crop: smallest and largest width / height.", above=0
    )
    randaugment: tuple[int, ...] | None = option(
        None,
        "RandAugment as big_vision's at 224 pixels: operations, magnitude to 30 (2,10); none: off.",
        at_least=0,
    )
    erase: float = option(
        0.0,
        "Random erasing: probability that a rectangle, 2 to 33 % of the view, becomes noise.",
        at_least=0,
        at_most=1,
    )
    transforms: tuple[str, ...] = _component(
        (), "transform", "Transforms of one training image by plug-ins, after all others."
    )
    flip: bool = option(True, "Mirror left-right with probability 1/2 while training.")
    rotation: float = option(
        0.0, "Random rotation up to this many degrees.", at_least=0, at_most=180
    )
    scale: float = option(0.0, "Random zoom up to this share, either way.", at_least=0, below=1)
    shift: float = option(0.0, "Random shift up to this share of the side.", at_least=0, below=1)
    num_examples: int = option(1024, "Examples per epoch of synthetic data.", at_least=1)
    workers: int = option(
        0, "Loader processes; 0 loads in this one.", at_least=0, at_most=256, free=True
    )
    threads: int = option(2, "Loader threads per process.", at_least=1, at_most=256, free=True)
    prefetch: int = option(
        4, "Batches made ahead of the step.", at_least=1, at_most=1024, free=True
    )
    max_bad_examples: int = option(
        0,
        "Unreadable images to replace by their neighbor before the run stops.",
        at_least=0,
        free=True,
    )
    max_pixels: int = option(
        100_000_000, "Largest image, in pixels, that is decoded at all.", at_least=1, free=True
    )
    partial_decoding: bool = option(
        True,
        "Decode only the part of a JPEG that a training crop needs; pixels are the same.",
        free=True,
    )


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
    loss: str = _component("softmax", "loss", "Cross-entropy, or the loss of a plug-in.")
    augmentations: tuple[str, ...] = _component(
        (), "batch_augmentation", "Augmentations of a batch by plug-ins, on the device."
    )
    label_smoothing: float = option(0.0, "Label mass spread over all classes.", at_least=0, below=1)
    mixup: float = option(
        0.0, "Beta parameter of mixup, which blends pairs of images; 0: off.", at_least=0
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

    name: str = _component(
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule:
    """The learning rate over the run, relative to optimizer.lr."""

    warmup: Duration = option(Duration(0, "steps"), "Linear warm-up from 0.")
    decay: str = _component("cosine", "schedule", "Shape after the warm-up.")
    end: float = option(0.0, "Learning rate a cosine or linear decay ends at.", at_least=0)
    timescale: float = option(10_000.0, "Steps after which rsqrt has visibly decayed.", above=0)
    drops: tuple[float, ...] = option(
        (0.3, 0.6, 0.9),
        "Shares of the run after which step divides the rate by 10.",
        above=0,
        below=1,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """When the state is written and how much of it is kept."""

    every: Duration | None = option(
        Duration(1000, "steps"), "Save this often; none: not by steps.", free=True
    )
    minutes: float | None = option(
        None, "Save this often by the clock; none: not by time.", above=0, free=True
    )
    keep: int = option(
        2, "Newest checkpoints to keep, in addition to the best one.", at_least=1, free=True
    )
    best: str | None = option(
        "auto",
        "Metric that chooses the best checkpoint; auto: top1 or loss, none on a test split.",
        choices=("auto", "top1", "top5", "loss"),
        free=True,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """When data.eval_split is measured, and the additional measurements."""

    every: Duration | None = option(
        Duration(1000, "steps"), "Evaluate this often; none: only at the end.", free=True
    )
    batch_size: int | None = option(
        None, "Images at a time; none: train.batch_size.", at_least=1, free=True
    )
    tasks: tuple[str, ...] = option(
        (),
        "Additional sets to measure, such as imagenet-v2,imagenet-c/*; see `vit_jax list --tasks`.",
        free=True,
    )
    fewshot: tuple[str, ...] = option(
        (),
        "Sets for few-shot linear accuracy, such as imagenet,pets; digits; self: the run's splits.",
        free=True,
    )
    shots: tuple[int, ...] = option(
        (1, 5, 10, 25), "Few-shot: training images of each class.", at_least=1, free=True
    )
    fewshot_l2: tuple[float, ...] = option(
        (1024.0,), "Few-shot: weight of the squared norm; several are all told.", above=0, free=True
    )
    fewshot_seeds: int = option(
        3, "Few-shot: draws of training images to average over.", at_least=1, free=True
    )
    probe: tuple[str, ...] = option(
        (), "Sets to train a linear head on frozen features on; named as in fewshot.", free=True
    )
    evaluators: tuple[str, ...] = _component(
        (),
        "evaluator",
        "Additional evaluators, such as classification(split='test[:100]').",
        free=True,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Logging:
    """What is written while training."""

    every: int = option(50, "Steps between lines of metrics.jsonl.", at_least=1, free=True)
    tensorboard: bool = option(True, "Write TensorBoard event files too.", free=True)
    loggers: tuple[str, ...] = _component(
        (), "logger", "Additional writers of metrics, of plug-ins.", free=True
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Watchdog:
    """How long a process may be busy with one thing until it counts as stuck and ends (code 70)."""

    compile: float | None = option(
        7200.0, "Seconds for compiling the step; none: for ever.", above=0, free=True
    )
    data: float | None = option(
        900.0, "Seconds of waiting for a batch; none: for ever.", above=0, free=True
    )
    step: float | None = option(900.0, "Seconds for a step; none: for ever.", above=0, free=True)
    evaluate: float | None = option(
        1800.0, "Seconds for a batch of evaluation; none: for ever.", above=0, free=True
    )
    save: float | None = option(
        3600.0, "Seconds of waiting for a checkpoint; none: for ever.", above=0, free=True
    )
    join: int = option(
        300, "Seconds to wait for the other processes of a run.", at_least=1, free=True
    )
    heartbeat: int = option(
        30, "Seconds without a sign of life until a process counts as lost.", at_least=1, free=True
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mesh:
    """How devices share the work."""

    fsdp: int = option(
        1, "Devices that share one copy of parameters and optimizer state.", at_least=1, free=True
    )
    fsdp_min_size: int = option(
        4096, "Arrays with fewer elements stay whole on every device.", at_least=0, free=True
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """A whole run."""

    name: str = option("unnamed", "Name of the run's config.", free=True)
    seed: int = option(
        0, "Seed of initialization, data order, augmentation and dropout.", at_least=0, below=2**32
    )
    init_from: str | None = option(
        None,
        "Weights to begin with: a run, a file or folder, or a published name; none: random ones.",
    )
    init_head: str = option(
        "new",
        "Layers after the encoder: new ones as in fine-tuning, or those of init_from.",
        choices=("new", "keep"),
    )
    model: Model = Model()
    data: Data = Data()
    train: Train = Train()
    masked: Masked = Masked()
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    checkpoint: Checkpoint = Checkpoint()
    evaluation: Evaluation = Evaluation()
    logging: Logging = Logging()
    watchdog: Watchdog = Watchdog()
    mesh: Mesh = Mesh()

    def __repr__(self) -> str:
        """Returns the options that differ from their defaults, one per line."""
        default = Config()
        lines = [
            f"  {key}={_options.get(self, key)!r},\n"
            for key, _, _ in options()
            if _options.get(self, key) != _options.get(default, key)
        ]
        return f"Config(\n{''.join(lines)})"


def build(values: Mapping[str, Any]) -> Config:
    """Returns the config that nested `values` describe, or raises ConfigError.

    `plugins` in them names the modules of its components, as in `to_dict`. They are never imported,
    only named in the error where such a component is missing.
    """
    plugins = values.get(PLUGINS) if hasattr(values, "items") else None
    if plugins is not None:
        values = {key: value for key, value in values.items() if key != PLUGINS}
    try:
        return _options.build(Config, values)
    except components.UnknownComponent as error:
        if how := components.needed(plugins):
            option = str(error).partition(": no such ")[0]
            raise ConfigError(f"{option}: comes from a plug-in; {how}") from None
        raise


def to_dict(config: Config) -> dict[str, Any]:
    """Returns nested plain values that JSON holds and `build` reads back unchanged.

    If it uses components of plug-ins, `plugins` lists the modules to import.
    """
    modules: set[str] = set()
    for key, field, _ in options():
        if kind := field.metadata["kind"]:
            named = _options.get(config, key)
            for text in named if isinstance(named, tuple) else [named] if named else []:
                modules |= components.modules(kind, text)
    return ({PLUGINS: sorted(modules)} if modules else {}) | _options.to_dict(config)


def override(values: Mapping[str, Any], assignments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns nested `values` with texts or values at dotted keys, such as `optimizer.lr`."""
    return _options.override(Config, values, assignments)


def options() -> Iterator[tuple[str, dataclasses.Field[Any], Any]]:
    """Yields `(dotted key, field, type)` of every option in the order of the schema."""
    return _options.each(Config)


def with_classes(cfg: Config, classes: int | None) -> Config:
    """Returns the config with `model.num_classes`, where the user left it to the data."""
    model = dataclasses.replace(cfg.model, num_classes=cfg.model.num_classes or classes)
    return dataclasses.replace(cfg, model=model)
