"""From a config to live objects: the only module that knows every room."""

import dataclasses
import json
import pathlib
import platform
import time
from collections.abc import Mapping
from typing import Any

import jax

from vit_jax import __version__, catalog, config, host, logs, models, smoke
from vit_jax.checkpoints import manager
from vit_jax.data import pipeline, sources, transforms
from vit_jax.evaluators import classification
from vit_jax.training import loop, optimizer, schedules, sharding, state, step


def resolve(reference: str, overrides: Mapping[str, str], *, tiny: bool = False) -> config.Config:
    """Returns the checked config of a catalog name or file, sizes filled in; `tiny`, cut down.

    Raises ConfigError; reads no data and compiles nothing.
    """
    cfg = config.build(config.override(catalog.load(reference), overrides))
    if tiny:  # what is overridden is not cut down
        cfg = config.build(config.override(config.to_dict(smoke.shrink(cfg)), overrides))
    return complete(cfg)


def complete(cfg: config.Config) -> config.Config:
    """Returns the config with the sizes of its model variant, or raises ConfigError."""
    cfg = dataclasses.replace(cfg, model=models.complete(cfg.model))
    models.check(cfg.model, cfg.data.image_size)
    config.check(cfg)
    return cfg


def of_directory(
    workdir: pathlib.Path,
    reference: str | None,
    overrides: Mapping[str, str],
    *,
    tiny: bool = False,
) -> config.Config:
    """Returns the config to run in `workdir`: a new one, or the one of the run it holds.

    A run in progress may change only the knobs that do not decide its result; anything else
    raises ConfigError, naming each difference.
    """
    file = workdir / "config.json"
    if not file.exists():
        if reference is None:
            raise config.ConfigError(
                f"--workdir={workdir}: holds no run to resume (no config.json); "
                "name a config to start one"
            )
        return resolve(reference, overrides, tiny=tiny)
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise config.ConfigError(
            f"--workdir={workdir}: config.json is unreadable: {error}"
        ) from error
    old = complete(config.build(stored))
    if reference is None:
        new = complete(config.build(config.override(stored, overrides)))
    else:
        new = resolve(reference, overrides, tiny=tiny)
    if new.model.num_classes is None:  # the data's, which the stored config knows already
        new = _with_classes(new, old.model.num_classes)
    changed = config.differences(old, new)
    if changed:
        listed = ", ".join(
            f"{key}: {before} -> {after}" for key, (before, after) in changed.items()
        )
        raise config.ConfigError(
            f"--workdir={workdir}: holds another run ({listed}); "
            "resume it without these changes, or choose another --workdir"
        )
    return new


class Objects:
    """The live objects that training and evaluation of one config share."""

    def __init__(self, cfg: config.Config) -> None:
        """Opens the evaluation data and builds the model; raises ConfigError or DataError."""
        host.start_distributed()
        config.check_devices(cfg, jax.device_count())
        self.eval_source = sources.open_source(
            cfg.data, cfg.data.eval_split, num_classes=cfg.model.num_classes, train=False
        )
        self.classes = tuple(self.eval_source.classes)
        self.cfg = cfg = _with_classes(cfg, len(self.classes))
        self.mesh = sharding.create_mesh(cfg.mesh.fsdp)
        self.model = create_model(cfg)

    def evaluator(self) -> classification.Classification:
        """Returns the measure of the evaluation split."""
        data, rows = self.cfg.data, self.cfg.evaluation.batch_size or self.cfg.train.batch_size

        def batches() -> pipeline.Batches:
            return pipeline.batches(
                self.eval_source,
                transforms.eval_transforms(data),
                data,
                seed=self.cfg.seed,
                batch_size=rows,
                rows=sharding.host_rows(self.mesh, rows),
                train=False,
                stop_step=-(-len(self.eval_source) // rows),
            )

        return classification.Classification(self.model, self.cfg, self.mesh, batches)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a finished run came to."""

    workdir: pathlib.Path
    steps: int
    seconds: float
    results: Mapping[str, float]
    files: tuple[pathlib.Path, ...]


def train(
    cfg: config.Config, workdir: pathlib.Path, *, profile: tuple[int, int] | None = None
) -> Outcome:
    """Trains to the end, resuming where `workdir` left off.

    Raises Preempted (exit 75), Diverged or SaveFailed (70), or another UserError.
    """
    began = time.monotonic()
    # Signals are noted from here on: data set-up, compilation and evaluation end early too.
    with loop.Stop() as stop, host.memory_errors():
        objects = Objects(cfg)
        cfg, mesh, model = objects.cfg, objects.mesh, objects.model
        source = sources.open_source(
            cfg.data, cfg.data.train_split, num_classes=cfg.model.num_classes, train=True
        )
        if tuple(source.classes) != objects.classes:
            raise config.ConfigError(
                f"data.eval_split={cfg.data.eval_split}: its classes differ from those of "
                f"{cfg.data.train_split}"
            )
        plan = loop.Plan.of(cfg, len(source))
        if profile is not None and not 1 <= profile[0] <= profile[1] <= plan.steps:
            raise config.ConfigError(
                f"--profile={profile[0]}:{profile[1]}: must be FIRST:LAST "
                f"within steps 1 to {plan.steps}"
            )
        main = jax.process_index() == 0
        if main:
            _prepare(workdir, cfg)
        host.cache_programs(workdir)
        host.keep_freed_memory()
        tx = optimizer.create(cfg.optimizer, clip_norm=cfg.train.clip_norm)
        schedule = schedules.create(
            cfg.schedule, lr=cfg.optimizer.lr, steps=plan.steps, warmup=plan.warmup
        )
        target = state.target(model, tx, cfg, mesh)
        saver = manager.Manager(
            workdir / "checkpoints", keep=cfg.checkpoint.keep, best=cfg.checkpoint.best
        )
        metrics = logs.Metrics(workdir, tensorboard=cfg.logging.tensorboard) if main else None
        progress = logs.Progress(total=plan.steps, active=main)
        try:
            progress.say(_banner(cfg, model, len(source), plan, workdir))
            restored = saver.restore(target)
            if restored is None:
                live, start = state.initialise(model, tx, cfg, mesh), 0
            else:
                live, record = restored
                start = record["step"]
                _check_data(record, source.fingerprint())
                progress.say(f"resuming from step {start}")
            compiling = time.monotonic()
            compiled = step.compile_step(step.create(model, tx, schedule, cfg), target, cfg, mesh)
            progress.say(
                f"step compiled in {time.monotonic() - compiling:.1f} s, "
                f"ready after {time.monotonic() - began:.1f} s"
            )
            rows = sharding.host_rows(mesh, cfg.train.batch_size)
            live, results = loop.Loop(
                cfg=cfg,
                plan=plan,
                step=compiled,
                batches=lambda first: pipeline.batches(
                    source,
                    transforms.train_transforms(cfg.data),
                    cfg.data,
                    seed=cfg.seed,
                    batch_size=cfg.train.batch_size,
                    rows=rows,
                    train=True,
                    start_step=first,
                    stop_step=plan.steps,
                ),
                put=lambda batch: sharding.put_batch(batch, mesh, cfg.train.batch_size, rows),
                evaluators={"test": objects.evaluator()},
                parameters=state.evaluated,
                saver=saver,
                record=_record(cfg, objects, source),
                metrics=metrics,
                progress=progress,
                stop=stop,
                flops_per_image=6.0 * model.macs,
                profile=profile,
                profile_directory=str(workdir / "profile"),
            ).run(live, start)
        finally:
            progress.close()
            if metrics is not None:
                metrics.close()
            saver.close()
    files = [workdir / name for name in ("config.json", "metrics.jsonl", "checkpoints")]
    if main:
        from vit_jax.reports import curves  # matplotlib is slow to import

        files.append(curves.draw(workdir / "metrics.jsonl", workdir / "curves.png"))
    return Outcome(
        workdir=workdir,
        steps=plan.steps,
        seconds=time.monotonic() - began,
        results=results,
        files=tuple(files),
    )


def evaluate(
    checkpoint: pathlib.Path, overrides: Mapping[str, str], *, at: int | str | None = None
) -> dict[str, float]:
    """Returns the metrics of a run's checkpoint on its evaluation split (or an overridden one)."""
    with host.memory_errors():
        directory, step_number, record = find(checkpoint, at)
        cfg = complete(config.build(config.override(record["config"], overrides)))
        objects = Objects(cfg)
        params = load_params(directory, step_number, objects.cfg)
        results = objects.evaluator()(params, stop=lambda: False)
        assert results is not None
        return {"step": step_number, **results}


def find(
    checkpoint: pathlib.Path, at: int | str | None = None
) -> tuple[pathlib.Path, int, dict[str, Any]]:
    """Returns the checkpoint folder, step and commit record of a run.

    Args:
      checkpoint: a run directory, its `checkpoints` folder, or one step of that.
      at: a step number, `best`, or None for the newest.

    Raises CheckpointError.
    """
    path = pathlib.Path(checkpoint)
    if path.name.isdigit() and (path / "commit.json").exists():
        at, path = int(path.name), path.parent
    directory = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    if not directory.is_dir():
        raise manager.CheckpointError(f"--checkpoint={checkpoint}: no such run directory")
    number, record = manager.find(directory, at)
    return directory, number, record


def load_params(directory: pathlib.Path, step_number: int, cfg: config.Config) -> Any:
    """Returns the parameters to evaluate (the average where the run kept one), verified."""
    mesh = sharding.create_mesh(cfg.mesh.fsdp)
    name = "params" if cfg.train.ema is None else "ema"
    shapes = {name: create_model(cfg).shapes()}
    target = sharding.placed(shapes, mesh, min_size=cfg.mesh.fsdp_min_size)
    return manager.restore_subtree(directory, step_number, target)[name]


def create_model(cfg: config.Config) -> models.Classifier:
    """Returns the model in the compute type of this backend; num_classes must be known."""
    dtype = cfg.model.dtype
    if dtype == "auto":
        dtype = "float32" if jax.default_backend() == "cpu" else "bfloat16"
    return models.create(
        cfg.model, image_size=cfg.data.image_size, channels=cfg.data.channels, dtype=dtype
    )


def _with_classes(cfg: config.Config, classes: int | None) -> config.Config:
    """Returns the config with num_classes filled in where the user left it to the data."""
    model = dataclasses.replace(cfg.model, num_classes=cfg.model.num_classes or classes)
    return dataclasses.replace(cfg, model=model)


def _prepare(workdir: pathlib.Path, cfg: config.Config) -> None:
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        text = json.dumps(config.to_dict(cfg), indent=2) + "\n"
        logs.write_atomically(workdir / "config.json", text)
    except OSError as error:
        raise config.ConfigError(
            f"--workdir={workdir}: cannot be written: {error.strerror}"
        ) from error


def _record(cfg: config.Config, objects: Objects, source: sources.Source) -> dict[str, Any]:
    """Returns what every commit record says about the run, besides its step and digests."""
    return {
        "config": config.to_dict(cfg),
        "fingerprint": config.fingerprint(cfg),
        "data": source.fingerprint(),
        "examples": len(source),
        "classes": list(objects.classes),
        "mesh": dict(objects.mesh.shape),
        "device": jax.devices()[0].device_kind,
        "versions": {
            "vit_jax": __version__,
            "jax": jax.__version__,
            "python": platform.python_version(),
        },
    }


def _check_data(record: Mapping[str, Any], fingerprint: str) -> None:
    if record["data"] != fingerprint:
        raise config.ConfigError(
            f"data.root: the training examples (fingerprint {fingerprint}) are not those this run "
            f"began with ({record['data']}); restore them, or choose another --workdir"
        )


def _banner(
    cfg: config.Config,
    model: models.Classifier,
    examples: int,
    plan: loop.Plan,
    workdir: pathlib.Path,
) -> str:
    devices = f"{jax.device_count()} x {jax.devices()[0].device_kind}"
    if jax.process_count() > 1:
        devices += f" in {jax.process_count()} processes"
    return (
        f"{cfg.name}: {model.num_params:,} parameters, {examples:,} examples, "
        f"{plan.steps:,} steps of {cfg.train.batch_size:,} images on {devices}, in {workdir}"
    )
