"""Checks across options: combinations that cannot work, and options that nothing reads.

Each ends in one line before anything else happens.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping

from vit_jax import config
from vit_jax.config import components
from vit_jax.config.options import is_nothing, unread
from vit_jax.utils.errors import ConfigError

SHARE_OF_START = 0.25  # of an average: the paper's own runs with one end with up to 0.14


def check_read(cfg: config.Config, keys: Iterable[str]) -> None:
    """Raises ConfigError for the first of the options `keys` that others leave unread.

    One whose value asks for nothing (`options.is_nothing`) passes. A model of a plug-in may read
    every option of its section. `models.check_read` has more.
    """
    fields = {key: field for key, field, _ in config.fields(cfg)}
    name = cfg.model.architecture or "vit"
    own = name not in components.built_in("model")
    for key in keys:
        if key not in fields:
            continue  # an argument of a component in a list
        value = config.get(cfg, key)
        if is_nothing(value):
            continue
        if key == "data.crop_area" and cfg.dino is not None:
            raise ConfigError(
                f"{key}={config.show(value)}: not read with objective.name={cfg.objective.name}; "
                "set objective.global_area or objective.local_area"
            )
        if (why := unread(cfg, key, fields)) and not (own and key.startswith("model.")):
            raise ConfigError(f"{key}={config.show(value)}: {why}")


def check_options(cfg: config.Config) -> None:
    """Raises ConfigError for a combination of options that cannot work.

    `models.check_model` has more; what depends on the number of devices is `check_devices`'.
    """
    data, train, scheduled = cfg.data, cfg.train, cfg.optimizer.weight_decay_end is not None
    if data.source == "tfds" and not data.name:
        raise ConfigError("data.name=none: tfds needs a dataset, such as data.name=cifar10")
    if data.source in config.FILES and not data.root:
        raise ConfigError("data.root=none: set it to the folder of images")
    for key in ("crop_area", "crop_aspect"):
        _check_range(f"data.{key}", getattr(data, key))
    if data.aspect == "native" and (cfg.masked or cfg.mae):
        raise ConfigError(
            f"data.aspect=native: is not for objective.name={cfg.objective.name}; set fixed"
        )
    for group in cfg.optimizer.groups:
        if group.lr is None and group.decay is None:
            key = f"optimizer.groups.{group.pattern}"
            raise ConfigError(
                f"optimizer.groups={group.pattern}: sets nothing; set {key}.lr or {key}.decay"
            )
    if data.randaugment is not None:
        _check_randaugment("data.randaugment", data.randaugment)
    if data.phases:
        _check_phases(cfg)
    if data.source == "digits" and data.channels not in (1, 3):
        raise ConfigError(
            f"data.channels={data.channels}: digits are gray; set 1, or 3 for three equal channels"
        )
    if data.channels not in (1, 3) or data.depth != 8:
        _check_plain_colors(cfg)
    _check_crops(data)
    if cfg.distillation is not None:
        _check_distillation(cfg, cfg.distillation)
    if data.targets:
        _check_targets(cfg)
    # mae is a metric of ordered classes, too.
    elif cfg.checkpoint.best in config.NUMBERS and not (
        cfg.checkpoint.best in config.METRICS["ordinal"] and "ordinal" in cfg.evaluation.metrics
    ):
        raise ConfigError(f"checkpoint.best={cfg.checkpoint.best}: needs data.targets; set top1")
    if data.multilabel:
        _check_multilabel(cfg)
    elif cfg.checkpoint.best == "map":
        raise ConfigError("checkpoint.best=map: needs data.multilabel=true; set top1")
    rules = {"balanced", "effective"} & set(train.class_weights)
    if rules and len(train.class_weights) > 1:
        raise ConfigError(
            f"train.class_weights={config.show(train.class_weights)}: cannot combine {min(rules)}"
        )
    named = [text.rpartition(":")[0] for text in train.class_weights if text not in rules]
    if twice := sorted(name for name in set(named) if named.count(name) > 1):
        raise ConfigError(
            f"train.class_weights={config.show(train.class_weights)}: names {twice[0]} twice"
        )
    _check_metrics(cfg)
    if train.duration.amount <= 0:
        raise ConfigError(f"train.duration={train.duration}: must be more than 0")
    for key in ("schedule.warmup", "schedule.cooldown"):
        if config.get(cfg, key).amount < 0:
            raise ConfigError(f"{key}={config.get(cfg, key)}: must not be negative")
    if isinstance(cfg.schedule, config.Falling) and cfg.schedule.end > cfg.optimizer.lr:
        raise ConfigError(
            f"schedule.end={cfg.schedule.end:g}: exceeds optimizer.lr {cfg.optimizer.lr:g}"
        )
    if cfg.masked is not None:
        _check_masked(cfg, cfg.masked)
    if cfg.mae is not None:
        _check_mae(cfg, cfg.mae)
    decays = {
        f"optimizer.groups.{group.pattern}.decay": group.decay
        for group in cfg.optimizer.groups
        if group.decay is not None
    }
    # A factor of 0 asks for no decay, and there is none.
    without_effect = [f"{key}={decay:g}" for key, decay in decays.items() if decay]
    if without_effect and not cfg.optimizer.weight_decay and not scheduled:
        raise ConfigError(
            f"{without_effect[0]}: is a factor on optimizer.weight_decay=0; set that, or leave "
            "this out"
        )
    if cfg.optimizer.name in ("lamb", "lars") and (scheduled or decays or cfg.dino is not None):
        key = "optimizer.weight_decay_end" if scheduled else next(iter(decays), None)
        key = key or f"objective.name={cfg.objective.name}"
        raise ConfigError(
            f"optimizer.name={cfg.optimizer.name}: has weight decay in its trust ratio, but {key} "
            "decays parameters apart from it; set adam"
        )
    if not cfg.needs_labels:
        _check_unlabeled(cfg)
    if cfg.dino is not None:
        _check_dino(cfg, cfg.dino)
    for key in ("checkpoint.every", "evaluation.every"):
        every = config.get(cfg, key)
        if every is not None and every.amount <= 0:
            raise ConfigError(f"{key}={every}: must be more than 0, or none")


def _check_range(key: str, ends: tuple[float, float]) -> None:
    if ends[0] > ends[1]:
        raise ConfigError(f"{key}={config.show(ends)}: the first must not exceed the second")


def _check_crops(data: config.Data) -> None:
    if data.crop_pct is not None and data.resize_to is not None:
        raise ConfigError(
            f"data.crop_pct={data.crop_pct:g}: data.resize_to={data.resize_to} sets it too; set "
            "one of them to none"
        )
    for key in ("mean", "std", "fill"):
        values = getattr(data, key)
        if values is not None and len(values) not in (1, data.channels):
            raise ConfigError(
                f"data.{key}={config.show(values)}: needs 1 number, or {data.channels}, "
                "one for each channel"
            )
    # Only these views are cut out of what was resized, and need as much.
    whole = data.fill is None and data.eval_crop in ("central", "squash")
    small = any(n < side for n, side in zip(data.before_crop, data.image_size, strict=True))
    if small and (data.train_crop == "random" or whole):
        if data.crop_pct is not None:
            bordered = ", or set data.fill=0 for a black border around evaluation views"
            raise ConfigError(
                f"data.crop_pct={data.crop_pct:g}: crops more than the image; at most 1"
                f"{bordered if data.train_crop != 'random' else ''}"
            )
        raise ConfigError(
            f"data.resize_to={data.resize_to}: smaller than data.image_size "
            f"{config.show(data.image_size)}; at least {max(data.image_size)}"
        )


def check_sequences(cfg: config.Config) -> None:
    """Raises ConfigError for options that cannot train on images at their own aspect ratio.

    `models.check_sequences` has more.
    """
    if cfg.data.aspect != "native":
        return
    one_size = {  # what compares, blends or cuts images of one size
        "objective.name": "supervised",
        "train.mixup": 0.0,
        "train.cutmix": 0.0,
        "train.augmentations": (),
    }
    _require(cfg, one_size, "needs images of one shape, and data.aspect=native has several")
    if cfg.data.train_crop == "random":
        raise ConfigError(
            "data.train_crop=random: cuts one size, and data.aspect=native has several; set "
            "inception or resize"
        )


def check_fixed(cfg: config.Config, command: str) -> None:
    """Raises ConfigError for `data.aspect=native` in a command that needs one view shape."""
    if cfg.data.aspect != "fixed":
        raise ConfigError(
            f"data.aspect={cfg.data.aspect}: is for evaluate, embed and predict, not for "
            f"{command}; set fixed"
        )


def check_devices(cfg: config.Config, devices: int, *, training: bool = True) -> None:
    """Raises ConfigError where a batch or the mesh does not divide over `devices`.

    Without `training` its batch does not matter.
    """
    if devices % cfg.mesh.fsdp:
        fits = [n for n in range(1, devices + 1) if devices % n == 0]
        nearest = min(fits, key=lambda n: abs(n - cfg.mesh.fsdp))
        raise ConfigError(
            f"mesh.fsdp={cfg.mesh.fsdp}: does not divide the {devices} devices; nearest: {nearest}"
        )
    if training:
        _check_batch(cfg, devices)
    batch = cfg.evaluation.batch_size
    if batch is not None and batch % devices:
        raise ConfigError(
            f"evaluation.batch_size={batch}: not a multiple of {devices} devices; "
            f"nearest: {_multiple(batch, devices)}"
        )


def _check_batch(cfg: config.Config, devices: int) -> None:
    """Raises ConfigError where the batch does not divide; one remedy that all rules accept."""
    train, parts = cfg.train, _parts(cfg, devices)
    if train.batch_size % parts == 0:
        return
    # A microbatch chooses the accumulation among those that divide the batch.
    accumulation = 1 if train.microbatch else train.accumulation
    together = accumulation * _mixed(train)
    divisors = [f"{devices} devices"] * (devices > 1)
    divisors += [f"train.accumulation {accumulation}"] * (accumulation > 1)
    why = f"not a multiple of {' x '.join(divisors)}"
    if not train.batch_size % accumulation and train.batch_size % together:
        mixing = "mixup" if train.mixup else "cutmix"
        why = f"train.{mixing} needs pairs, a multiple of {together}"
    # The batch may stay where another accumulation divides it, of no larger microbatches.
    counts = [n for n in accumulations(train, devices) if n >= train.accumulation]
    instead = ""
    if counts and not train.microbatch:
        instead = f", or set train.microbatch={train.batch_size // devices // counts[0]}"
    raise ConfigError(
        f"train.batch_size={train.batch_size}: {why}; nearest: "
        f"{_multiple(train.batch_size, parts)}{instead}"
    )


def _parts(cfg: config.Config, devices: int) -> int:
    """The divisor that a batch must have."""
    accumulation = 1 if cfg.train.microbatch else cfg.train.accumulation
    return accumulation * math.lcm(devices, _mixed(cfg.train))


def accumulations(train: config.Train, devices: int) -> list[int]:
    """Counts of microbatches, each whole on every device and of whole pairs; ascending."""
    rows, left = divmod(train.batch_size, devices)
    mixed = _mixed(train)
    return [
        n for n in range(1, rows + 1) if not (left or rows % n or train.batch_size // n % mixed)
    ]


def _mixed(train: config.Train) -> int:
    """The number of images that a microbatch mixes with each other, and must be a multiple of."""
    return 2 if train.mixup or train.cutmix else 1


def with_accumulation(cfg: config.Config, devices: int) -> config.Config:
    """The config with the accumulation that train.microbatch asks for on `devices`."""
    train = cfg.train
    rows, counts = train.batch_size // devices, accumulations(train, devices)
    if train.microbatch is None or not counts:
        return cfg  # `check_devices` refuses a batch that does not divide
    fits = [n for n in counts if rows // n <= train.microbatch]
    if not fits:
        raise ConfigError(
            f"train.microbatch={train.microbatch}: train.mixup and train.cutmix need pairs; "
            f"at least {rows // counts[-1]}"
        )
    # The fewest microbatches, so the largest that is allowed.
    return dataclasses.replace(cfg, train=dataclasses.replace(train, accumulation=fits[0]))


def check_length(cfg: config.Config, steps: int, warmup: int, cooldown: int) -> None:
    """Raises ConfigError where durations, now known in steps, contradict each other."""
    if warmup >= steps:
        raise ConfigError(
            f"schedule.warmup={cfg.schedule.warmup}: {warmup} steps, but the run has {steps}; "
            f"at most {steps - 1} steps; set schedule.warmup={steps - 1} or less, or raise "
            "train.duration"
        )
    if warmup + cooldown > steps:
        raise ConfigError(
            f"schedule.cooldown={cfg.schedule.cooldown}: {cooldown} steps, but {steps - warmup} of "
            f"{steps} follow the warm-up; at most {steps - warmup} steps; set schedule.cooldown="
            f"{steps - warmup} or less, or raise train.duration"
        )


def check_phases(cfg: config.Config, steps: int, ends: Iterable[int]) -> None:
    """Raises ConfigError where phases of training views, now known in steps, are none."""
    others: dict[int, str] = {0: "the run begins"}
    for phase, end in zip(cfg.data.phases, ends, strict=True):
        key = f"data.phases.{phase.name}"
        if end >= steps:
            raise ConfigError(
                f"{key}.until={phase.until}: {end} steps, but the run has {steps}; at most "
                f"{steps - 1} steps; set {key}.until='{steps - 1} steps' or less, or raise "
                "train.duration"
            )
        if end in others:
            raise ConfigError(f"{key}.until={phase.until}: {end} steps, where {others[end]}")
        others[end] = f"{key} ends"


def unused_labels(cfg: config.Config) -> list[str]:
    """A line on distillation by the teacher alone: options that it leaves unread."""
    distillation = cfg.distillation
    if distillation is None or distillation.weight < 1:
        return []
    options = ("train.label_smoothing", "train.class_weights")
    set_here = {name: value for name in options if (value := config.get(cfg, name))}
    if not set_here:
        return []
    shown = ", ".join(f"{name}={config.show(value)}" for name, value in set_here.items())
    key = f"objective.weight={distillation.weight:g}"
    return [f"{key}: leaves out the loss of labels, and with it {shown}"]


def short_run(cfg: config.Config, steps: int, examples: int) -> list[str]:
    """A line for each option that needs a longer run than `steps`; an epoch has `examples`."""
    if cfg.data.source == "synthetic":  # of --smoke, whose results mean nothing
        return []
    lines, run = [], f"the run has {steps:,} steps"
    if cfg.train.ema is not None and (left := cfg.train.ema**steps) > SHARE_OF_START:
        # The most nines with which 1 / (1 - ema) steps fit into the run five times.
        nines = math.floor(math.log10(max(steps / 5, 1)))
        lines.append(
            f"train.ema={cfg.train.ema:g}: {run}, after which {left:.0%} of the average, which is "
            f"evaluated, are still the initial parameters; set --config.train.ema="
            f"{f'{1 - 10.0**-nines:g}' if nines else 'none'}"
        )
    if (first := cfg.optimizer.head_first) >= steps:
        lines.append(f"optimizer.head_first={first}: {run}, so nothing but the head trains")
    if (dino := cfg.dino) is None:
        return lines
    waits = {
        "freeze_last_layer": "the prototypes never train",
        **({"gram_start": f"objective.gram={dino.gram:g} never begins"} if dino.gram else {}),
    }
    for name, why in waits.items():
        duration = getattr(dino, name)
        if duration.steps(cfg.train.batch_size, examples) >= steps:
            lines.append(f"objective.{name}={duration}: {run}, so {why}")
    return lines


def large_batch(cfg: config.Config, examples: int, devices: int) -> list[str]:
    """A warning for a batch larger than the training split, which is rarely intended."""
    # Views of one image count once.
    rows = cfg.train.batch_size // cfg.data.repeats
    if rows <= examples:
        return []
    # The largest power of two with which an epoch has at least four steps; 8 at least.
    fewer = max(1 << (examples // 4).bit_length() - 1, 8) if examples > 3 else 8
    fewer = _multiple(fewer, _parts(cfg, devices))
    return [
        f"train.batch_size={cfg.train.batch_size}: each step has every one of the {examples:,} "
        f"training images about {rows / examples:.1f} times; for so few images set "
        f"--config.train.batch_size={fewer}"
    ]


def _check_phases(cfg: config.Config) -> None:
    data, needed = cfg.data, {"objective.name": "supervised", "data.aspect": "fixed"}
    _require(cfg, needed, "has no data.phases")
    for phase in data.phases:
        key = f"data.phases.{phase.name}"
        views = data.in_phase(phase)
        if phase.until.amount <= 0:
            raise ConfigError(f"{key}.until={phase.until}: must be more than 0")
        if views == dataclasses.replace(data, phases=()):
            raise ConfigError(
                f"{key}: its views are those of the rest; set {key}.image_size=16, say"
            )
        if phase.crop_area is not None and data.train_crop != "inception":
            raise ConfigError(
                f"{key}.crop_area={config.show(phase.crop_area)}: is not read with "
                f"data.train_crop={data.train_crop}; set inception"
            )
        if phase.crop_area is not None:
            _check_range(f"{key}.crop_area", phase.crop_area)
        if phase.randaugment:
            _check_randaugment(f"{key}.randaugment", phase.randaugment)
        if phase.image_size and data.train_crop == "random" and data.resize_to is not None:
            raise ConfigError(
                f"data.resize_to={data.resize_to}: is one size before the crop, and {key} has "
                "another; set data.crop_pct instead"
            )


def _check_randaugment(key: str, pair: tuple[int, ...]) -> None:
    key = f"{key}={config.show(pair)}"
    if len(pair) != 2:
        raise ConfigError(f"{key}: needs two numbers, operations and magnitude, such as 2,10")
    if pair[0] < 1:
        raise ConfigError(f"{key}: needs at least 1 operation per image; none turns it off")
    if pair[1] > 30:
        raise ConfigError(f"{key}: magnitude {pair[1]} is more than 30")


def _check_plain_colors(cfg: config.Config) -> None:
    data = cfg.data
    other = f"data.depth={data.depth}" if data.depth != 8 else f"data.channels={data.channels}"
    # Those of plug-ins may take any pixels.
    made = [one.name for one in data.transforms if one.name in components.built_in("transform")]
    dino = cfg.dino
    for key, given, remedy in (
        ("data.randaugment", data.randaugment, "none"),
        *(
            (f"data.phases.{phase.name}.randaugment", phase.randaugment, "()")
            for phase in data.phases
        ),
        ("data.transforms", made and made[0], "none"),
        ("objective.name", cfg.masked and cfg.objective.name, "supervised"),
        ("objective.jitter", dino and dino.jitter, "0"),
        ("objective.gray", dino and dino.gray, "0"),
        ("objective.blur", dino and any(dino.blur) and dino.blur, "0,0,0"),
        ("objective.solarize", dino and any(dino.solarize) and dino.solarize, "0,0,0"),
    ):
        if given:
            raise ConfigError(
                f"{key}={config.show(given)}: is for gray or RGB of 8 bits, not {other}; set "
                f"{remedy}"
            )


def _require(cfg: config.Config, values: Mapping[str, object], why: str) -> None:
    """Raises ConfigError for the first option that has another value, and says why."""
    for key, value in values.items():
        if (given := config.get(cfg, key)) != value:
            raise ConfigError(f"{key}={config.show(given)}: {why}; set {config.show(value)}")


def _check_multilabel(cfg: config.Config) -> None:
    key = "data.multilabel=true"
    # A softmax makes the classes of an image compete.
    if cfg.loss.meaning == "softmax":
        raise ConfigError(f"loss.name={cfg.loss.name}: is for one class per image; set sigmoid")
    one = {"train.class_weights": (), "data.sampling": "uniform"}
    _require(cfg, one, f"needs one class per image, but {key} has several")
    _require(cfg, {"data.classes": None, "evaluation.tasks": ()}, f"does not go with {key}")
    if cfg.masked or cfg.mae:
        _require(cfg, {"objective.name": "supervised"}, f"does not go with {key}")
    for name in ("fewshot", "probe", "knn"):
        if "self" in getattr(cfg.evaluation, name):
            raise ConfigError(
                f"evaluation.{name}=self: needs one class per image, but {key} has several"
            )
    if cfg.distillation is not None and cfg.distillation.target == "logits":
        raise ConfigError(
            f"objective.target=logits: is for one class per image, but {key} has "
            "several; set features or tokens"
        )
    if cfg.checkpoint.best == "top5":
        raise ConfigError(f"checkpoint.best=top5: is not measured with {key}; set map")


def _check_targets(cfg: config.Config) -> None:
    targets = cfg.data.targets
    key = f"data.targets={config.show(targets)}"
    if len(set(targets)) < len(targets):
        raise ConfigError(f"{key}: names a column twice")
    if not cfg.needs_labels:
        raise ConfigError(f"{key}: objective.name={cfg.objective.name} needs no targets; set ()")
    if not isinstance(cfg.loss, config.Regression):
        raise ConfigError(f"loss.name={cfg.loss.name}: is for classes, but {key} has numbers; set "
                          "mse, l1 or huber")  # fmt: skip
    classes = {
        "data.multilabel": False,
        "data.classes": None,
        "data.sampling": "uniform",
        "train.class_weights": (),
        "train.label_smoothing": 0.0,
        "evaluation.tasks": (),
    }
    _require(cfg, classes, f"is for classes, but {key} has numbers")
    for name in ("fewshot", "probe", "knn"):
        if "self" in getattr(cfg.evaluation, name):
            raise ConfigError(f"evaluation.{name}=self: needs classes, and {key} has numbers")
    if cfg.distillation is not None and cfg.distillation.target == "logits":
        raise ConfigError(
            f"objective.target=logits: is for classes, but {key} has numbers; set features "
            "or tokens"
        )
    wrong = [name for name in cfg.evaluation.metrics if name != config.INTERVALS]
    if wrong:
        raise ConfigError(
            f"evaluation.metrics={config.show(cfg.evaluation.metrics)}: {wrong[0]} is for classes, "
            f"but {key} has numbers, which are measured anyway; set intervals or ()"
        )
    if cfg.checkpoint.best not in (None, "auto", "loss", *config.NUMBERS):
        raise ConfigError(
            f"checkpoint.best={cfg.checkpoint.best}: is for classes, but {key} has numbers; set mae"
        )


def check_numbers(cfg: config.Config) -> None:
    """Raises ConfigError if the head predicts numbers and the images have none, or others.

    A checkpoint with such a head can do without images of its own, and may be asked for one of its
    columns, so this is no combination of options that cannot work.
    """
    if isinstance(cfg.loss, config.Regression) and not cfg.data.targets:
        raise ConfigError(
            f"loss.name={cfg.loss.name}: predicts numbers; set data.source=csv, and data.targets "
            "to columns of its lists, such as age"
        )
    targets = cfg.data.targets
    for name in ("mean", "std"):
        given = getattr(cfg.loss, name, None)
        if targets and given is not None and len(given) != len(targets):
            raise ConfigError(
                f"loss.{name}={config.show(given)}: needs {len(targets)} "
                f"number{'s' * (len(targets) > 1)}, one for each of data.targets="
                f"{config.show(targets)}; none takes those of the training images"
            )


def check_decay(cfg: config.Config) -> None:
    """Raises ConfigError for weight decay by an argument of optax's optimizers.

    optax does not multiply that by the learning rate, as everything is here; other masks would do
    nothing.
    """
    for name in ("weight_decay_rate", "weight_decay_mask", "mask"):
        value = getattr(cfg.optimizer, name, None)
        if value is not None and cfg.optimizer.name in components.OPTAX_OPTIMIZERS:
            raise ConfigError(
                f"optimizer.{name}={config.show(value)}: set optimizer.weight_decay, which is "
                "multiplied by the learning rate, and optimizer.decayed"
            )


def _check_distillation(cfg: config.Config, distillation: config.Distillation) -> None:
    if distillation.teacher is None:
        raise ConfigError(
            "objective.teacher=none: distillation needs a teacher; name a run directory, a "
            "file or folder of weights, or a published name"
        )
    why = "does not go with objective.name=distillation, whose teacher sees the same pixels"
    _require(cfg, {"train.augmentations": ()}, why)
    # First, as other checks of these propose other values.
    if not cfg.knows_classes:
        unread = {"evaluation.metrics": (), "evaluation.tasks": ()}
        why = f"objective.target={distillation.target} trains no head"
        _require(cfg, unread, why)
        if cfg.checkpoint.best not in ("auto", "knn", None):
            raise ConfigError(f"checkpoint.best={cfg.checkpoint.best}: {why}; set auto, or knn")


def _check_metrics(cfg: config.Config) -> None:
    asked, best, loss = cfg.evaluation.metrics, cfg.checkpoint.best, cfg.loss.name
    if cfg.data.targets:
        return
    key = f"evaluation.metrics={config.show(asked)}"
    if asked and not cfg.needs_labels:
        raise ConfigError(f"{key}: objective.name={cfg.objective.name} has no classes; set ()")
    if loss == "emd" or "ordinal" in asked:
        what = "loss.name=emd" if loss == "emd" else key
        if cfg.data.multilabel:
            raise ConfigError(f"{what}: needs one class per image; data.multilabel has several")
        if cfg.data.classes is None:
            raise ConfigError(
                f"{what}: needs the order of the classes, from lowest to highest, such as "
                "data.classes=poor,fair,good"
            )
    if "calibration" in asked and (cfg.data.multilabel or loss == "sigmoid"):
        raise ConfigError(f"{key}: calibration needs one class per image and a softmax")
    group = next((group for group, names in config.METRICS.items() if best in names), None)
    if group is not None and group not in asked:
        both = ",".join((*asked, group))
        raise ConfigError(f"checkpoint.best={best}: is not measured; set evaluation.metrics={both}")
    if best == "knn" and not cfg.evaluation.knn:
        raise ConfigError("checkpoint.best=knn: is not measured; set evaluation.knn=self")
    if best == "balanced_accuracy" and cfg.data.multilabel:
        raise ConfigError(f"checkpoint.best={best}: needs one class per image; set f1")


def _check_unlabeled(cfg: config.Config) -> None:
    name = f"objective.name={cfg.objective.name}"
    unused = {  # of a model or a loss of classes: which value means that there is none
        "model.representation_size": (None, "no layer before a head of classes"),
        "model.head_bias": (0.0, "no head of classes"),
        "train.mixup": (0.0, "no labels to blend"),
        "train.cutmix": (0.0, "no labels to blend"),
        "train.augmentations": ((), "a step without them"),
        "train.label_smoothing": (0.0, "no labels to smooth"),
        "train.class_weights": ((), "no classes to weigh"),
        "data.sampling": ("uniform", "no classes to sample by"),
        "loss.name": ("softmax", "a loss of its own"),
        "evaluation.tasks": ((), "no classes to name"),
    }
    for key, (value, why) in unused.items():
        _require(cfg, {key: value}, f"{name} has {why}")
    if cfg.checkpoint.best in ("top1", "top5"):
        raise ConfigError(
            f"checkpoint.best={cfg.checkpoint.best}: {name} has no classes to name; set loss, knn, "
            "auto or none"
        )


def _check_predicts_patches(cfg: config.Config) -> None:
    """Raises ConfigError for models that leak masked patches or leave their pooling untrained."""
    model, key = cfg.model, f"objective.name={cfg.objective.name}"
    if model.resnet_units is not None:
        raise ConfigError(
            f"{key}: a hybrid's ResNet mixes the pixels of neighboring patches, which "
            "gives masked patches away; set supervised"
        )
    if model.pooling == "map":
        raise ConfigError(f"model.pooling=map: {key} would leave it untrained; set token or gap")
    if model.norm_place == "pooled":
        raise ConfigError(f"model.norm_place=pooled: {key} pools nothing; set tokens")


def _check_masked(cfg: config.Config, masked: config.MaskedPatches) -> None:
    _check_predicts_patches(cfg)
    model = cfg.model
    patch = model.patch_size or (1, 1)
    if masked.target == "color_4x4" and min(patch) < 4:
        raise ConfigError(
            f"objective.target={masked.target}: patches of {config.show(patch)} pixels have no "
            "4 x 4 parts; set color"
        )
    # 0.7 + 0.2 + 0.1 is not 1 in binary.
    if len(masked.split) != 3 or abs(sum(masked.split) - 1) > 1e-6:
        raise ConfigError(
            f"objective.split={config.show(masked.split)}: needs three shares that add up to 1, "
            "such as 0.8,0.1,0.1"
        )
    height, width = cfg.data.image_size
    patches = (height // patch[0]) * (width // patch[1])
    if round(masked.rate * patches) == 0:
        raise ConfigError(
            f"objective.rate={masked.rate:g}: masks none of the {patches} patches; more than "
            f"{0.5 / patches:g}"
        )


def _check_mae(cfg: config.Config, mae: config.Mae) -> None:
    _check_predicts_patches(cfg)
    model, key = cfg.model, "objective.name=mae"
    why = f"{key} has layers that do not see every patch"
    stem = {"model.rotary": None, "model.relative_bias": "none", "model.position_place": "stem"}
    if model.position == "relative":
        raise ConfigError(f"model.position=relative: {why}; set sincos_2d_mae")
    _require(cfg, stem, why)
    if mae.decoder_width % mae.decoder_heads:
        raise ConfigError(
            f"objective.decoder_heads={mae.decoder_heads}: does not divide "
            f"objective.decoder_width {mae.decoder_width}"
        )
    # Sines and cosines of rows and of columns take a quarter each.
    if mae.decoder_width % 4:
        raise ConfigError(
            f"objective.decoder_width={mae.decoder_width}: its positions need a multiple of 4; "
            f"nearest: {_multiple(mae.decoder_width, 4)}"
        )
    height, width = cfg.data.image_size
    patch = model.patch_size or (1, 1)
    patches = (height // patch[0]) * (width // patch[1])
    kept = int(patches * (1 - mae.mask_ratio))  # as in models.variants.kept_patches
    if not 0 < kept < patches:
        raise ConfigError(
            f"objective.mask_ratio={mae.mask_ratio:g}: keeps {kept} of {patches} patches; it "
            "must keep some, and not all"
        )
    if mae.norm_pix and patch == (1, 1) and cfg.data.channels == 1:
        raise ConfigError(
            "objective.norm_pix=true: divides by the deviation of a patch, and a patch of "
            "model.patch_size=1,1 is one number; set objective.norm_pix=false or a larger patch"
        )


def _check_dino(cfg: config.Config, dino: config.Dino) -> None:
    key = f"objective.name={cfg.objective.name}"
    _require(cfg, {"train.ema": None}, f"{key} has an average, its teacher, by objective.momentum")
    _require(cfg, {"data.train_crop": "inception", "data.aspect": "fixed"}, f"{key} cuts crops")
    for name in ("blur", "solarize"):
        if len(values := getattr(dino, name)) != 3:
            raise ConfigError(
                f"objective.{name}={config.show(values)}: needs three probabilities, of the first, "
                "the second, and the small views, such as 1,0.1,0.5"
            )
    for name in ("global_area", "local_area", "mask_ratio"):
        _check_range(f"objective.{name}", getattr(dino, name))
    durations = ("freeze_last_layer", "teacher_temperature_warmup", "gram_start", "gram_every")
    for name in durations:
        if (duration := getattr(dino, name)).amount < 0:
            raise ConfigError(f"objective.{name}={duration}: must not be negative")
    if dino.gram and cfg.lora.rank is not None:
        raise ConfigError(
            f"objective.gram={dino.gram:g}: keeps all parameters of an earlier teacher, and "
            f"lora.rank={cfg.lora.rank} trains few; set 0"
        )
    if dino.koleo and cfg.train.batch_size < 2:
        raise ConfigError(
            f"objective.koleo={dino.koleo:g}: compares images, and train.batch_size is 1; set 0"
        )


def _multiple(value: int, factor: int) -> int:
    return max(1, round(value / factor)) * factor
