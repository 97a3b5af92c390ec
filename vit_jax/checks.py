"""Combinations of knobs that cannot work, each ended in one line before anything else happens."""

from vit_jax import config


def of_knobs(cfg: config.Config) -> None:
    """Raises ConfigError for a combination of knobs that cannot work; `models.check` has more."""
    data, train = cfg.data, cfg.train
    if data.channels == 2:
        raise config.ConfigError("data.channels=2: must be 1 or 3")
    if data.source == "tfds" and not data.name:
        raise config.ConfigError("data.name=none: tfds needs a dataset; set data.name=cifar10, say")
    if data.source == "folder" and not data.root:
        raise config.ConfigError("data.root=none: set it to the folder of images")
    if data.labels is not None and data.source != "tfds":
        raise config.ConfigError(
            f"data.labels={data.labels}: is for data.source=tfds; for {data.source} set it to none"
        )
    for key in ("mean", "std"):
        if len(values := getattr(data, key)) not in (1, data.channels):
            raise config.ConfigError(
                f"data.{key}={config.show(values)}: needs 1 number, or {data.channels}, "
                "one for each channel"
            )
    for key in ("crop_area", "crop_aspect"):
        low, high = getattr(data, key)
        if low > high:
            raise config.ConfigError(
                f"data.{key}={low:g},{high:g}: the first must not exceed the second"
            )
    if data.randaugment is not None:
        _check_randaugment(data.randaugment)
    crops = data.train_crop == "random" or data.eval_crop == "central"
    if crops and data.resize_to is not None and data.resize_to < max(data.image_size):
        raise config.ConfigError(
            f"data.resize_to={data.resize_to}: smaller than data.image_size "
            f"{config.show(data.image_size)}; at least {max(data.image_size)}"
        )
    if train.batch_size % train.accumulation:
        raise config.ConfigError(
            f"train.batch_size={train.batch_size}: not a multiple of train.accumulation "
            f"{train.accumulation}; nearest: {_multiple(train.batch_size, train.accumulation)}"
        )
    together = 2 * train.accumulation
    if train.mixup and train.batch_size % together:
        raise config.ConfigError(
            f"train.batch_size={train.batch_size}: train.mixup needs pairs, a multiple of "
            f"{together}; nearest: {_multiple(train.batch_size, together)}"
        )
    if train.duration.amount <= 0:
        raise config.ConfigError(f"train.duration={train.duration}: must be more than 0")
    if cfg.schedule.warmup.amount < 0:
        raise config.ConfigError(f"schedule.warmup={cfg.schedule.warmup}: must not be negative")
    if cfg.schedule.end > cfg.optimizer.lr:
        raise config.ConfigError(
            f"schedule.end={cfg.schedule.end:g}: exceeds optimizer.lr {cfg.optimizer.lr:g}"
        )
    for key in ("checkpoint.every", "evaluation.every"):
        every = config.get(cfg, key)
        if every is not None and every.amount <= 0:
            raise config.ConfigError(f"{key}={every}: must be more than 0, or none")


def of_devices(cfg: config.Config, devices: int) -> None:
    """Raises ConfigError where the batch or the mesh does not divide over `devices`."""
    if devices % cfg.mesh.fsdp:
        fits = [n for n in range(1, devices + 1) if devices % n == 0]
        nearest = min(fits, key=lambda n: abs(n - cfg.mesh.fsdp))
        raise config.ConfigError(
            f"mesh.fsdp={cfg.mesh.fsdp}: does not divide the {devices} devices; nearest: {nearest}"
        )
    parts = devices * cfg.train.accumulation
    if cfg.train.batch_size % parts:
        raise config.ConfigError(
            f"train.batch_size={cfg.train.batch_size}: not a multiple of {devices} devices x "
            f"train.accumulation {cfg.train.accumulation}; nearest: "
            f"{_multiple(cfg.train.batch_size, parts)}"
        )
    batch = cfg.evaluation.batch_size
    if batch is not None and batch % devices:
        raise config.ConfigError(
            f"evaluation.batch_size={batch}: not a multiple of {devices} devices; "
            f"nearest: {_multiple(batch, devices)}"
        )


def of_length(cfg: config.Config, steps: int, warmup: int) -> None:
    """Raises ConfigError where durations, now known in steps, contradict each other."""
    if warmup >= steps:
        raise config.ConfigError(
            f"schedule.warmup={cfg.schedule.warmup}: {warmup} steps, but the run has {steps}; "
            f"at most {steps - 1} steps"
        )


def _check_randaugment(pair: tuple[int, ...]) -> None:
    key = f"data.randaugment={config.show(pair)}"
    if len(pair) != 2:
        raise config.ConfigError(
            f"{key}: needs two numbers, operations and magnitude, such as 2,10"
        )
    if pair[0] < 1:
        raise config.ConfigError(f"{key}: needs at least 1 operation per image; none turns it off")
    if pair[1] > 30:
        raise config.ConfigError(f"{key}: magnitude {pair[1]} is more than 30")


def _multiple(value: int, of: int) -> int:
    return max(1, round(value / of)) * of
