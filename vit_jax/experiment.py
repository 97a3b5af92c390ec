"""From a config to live objects, and from those to results: train and evaluate."""

import contextlib
import dataclasses
import json
import os
import pathlib
import platform
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax

from vit_jax import (
    __version__,
    components,
    config,
    loading,
    locking,
    logs,
    models,
    progress,
    run_config,
    storage,
    validation,
    weights,
)
from vit_jax.checkpoints import collectives, manager
from vit_jax.data import folder_check, pipeline, prefetch, sources, split_roles, transforms
from vit_jax.data.source import digest
from vit_jax.evaluators import (
    classification,
    fewshot,
    linear_data,
    masked_patches,
    named,
    probe,
    registry,
    test_split,
)
from vit_jax.evaluators.runner import SplitRunner
from vit_jax.runtime import (
    consistency,
    device,
    distributed,
    goodput,
    phase_timer,
    preemption,
    watchdog,
)
from vit_jax.training import loop, optimizers, schedules, sharding, state, step

SETS = {f"evaluation.{option}" for option in ("tasks", "fewshot", "probe")}


class Objects:
    """The live objects that training and evaluation of one config share."""

    def __init__(
        self,
        cfg: config.Config,
        *,
        split: bool = True,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Opens the evaluation data and builds the model; raises ConfigError or DataError.

        Without `split` the evaluation split is not of it, and the classes are only numbers. Where
        `stop()` turns true, evaluation does not wait for images that do not come.
        """
        self._stop = stop
        distributed.initialize(None, wait=cfg.watchdog.join, heartbeat=cfg.watchdog.heartbeat)
        cfg = validation.with_accumulation(cfg, jax.device_count())
        validation.check_devices(cfg, jax.device_count())
        self.evaluated = split_roles.evaluation(cfg.data)
        self.eval_source = None
        self.classes = tuple(str(number) for number in range(cfg.model.num_classes or 0))
        if split:
            self.eval_source = sources.open_source(
                cfg.data, cfg.data.eval_split, num_classes=cfg.model.num_classes, train=False
            )
            self.classes = tuple(self.eval_source.classes)
        self.cfg = cfg = run_config.with_classes(cfg, len(self.classes))
        self.mesh = sharding.create_mesh(cfg.mesh.fsdp)
        self.model = loading.create_model(cfg)
        self.evaluators = self._evaluators()

    def _evaluators(self) -> dict[str, loop.Evaluator]:
        """Returns what is measured, by name: first the evaluation split, then what is asked for.

        ReaL's labels are for the test split, where the run has another one.
        """
        model, cfg = self.model, self.cfg
        found: dict[str, loop.Evaluator] = {}
        if self.eval_source is not None:
            real = cfg.data.test_split is None
            found[self.evaluated.name] = self.of_split(self.eval_source, real=real)
        found |= registry.evaluators(model, cfg, self.classes, self.runner)
        for name, kind in (("fewshot", fewshot.FewShot), ("probe", probe.Probe)):
            opened = linear_data.open_pairs(cfg, f"evaluation.{name}", self.runner)
            if opened:
                found[name] = kind(model, cfg, opened)
        return found | named.create(self, found)

    def of_split(self, source: sources.Source, *, real: bool) -> loop.Evaluator:
        """Returns what measures a split; with `real`, by ReaL's labels too where they are asked."""
        model, cfg = self.model, self.cfg
        if cfg.masked.target is not None:
            return masked_patches.MaskedPatches(model, cfg, self.runner(source))
        labels = registry.reassess(cfg, source) if real else None
        split = self.runner(labels or source)
        return classification.Classification(model, cfg, split, labels)

    def open_split(self, split: str) -> sources.Source:
        """Opens a split of the run's data, such as `test[:100]`, without augmentation."""
        return sources.open_source(
            self.cfg.data, split, num_classes=self.cfg.model.num_classes, train=False
        )

    def runner(self, source: sources.Source) -> SplitRunner:
        """Returns what runs a function over every batch of a source."""
        data, rows = self.cfg.data, self.cfg.evaluation.batch_size or self.cfg.train.batch_size

        def batches() -> prefetch.BatchIterator:
            loaded = pipeline.batches(
                source,
                transforms.eval_transforms(data),
                data,
                seed=self.cfg.seed,
                batch_size=rows,
                rows=sharding.host_rows(self.mesh, rows),
                train=False,
                stop_step=-(-len(source) // rows),
            )
            return prefetch.Prefetcher(loaded, self._stop)

        return SplitRunner(self.mesh, rows, batches)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a finished run came to."""

    workdir: pathlib.Path
    steps: int
    seconds: float
    results: Mapping[str, float]
    files: tuple[pathlib.Path, ...]
    splits: Mapping[str, str] = dataclasses.field(default_factory=dict)  # by name of the metrics


def _flops_per_image(model: models.Classifier) -> float | None:
    """Returns the FLOPs of training on one image; logs a line where they are not counted."""
    if model.flops is None:
        logs.log.info("model.architecture=%s: counts no FLOPs; no MFU", model.config.architecture)
        return None
    return 3.0 * model.flops


def train(
    cfg: config.Config, workdir: pathlib.Path, *, profile: tuple[int, int] | None = None
) -> Outcome:
    """Trains to the end, resuming where `workdir` left off.

    Raises Preempted (exit 75), Diverged or SaveFailed (70), InUse (2) where another process trains
    in `workdir`, or another UserError.
    """
    with locking.attempt(workdir, wanted=distributed.is_first()) as refusal:
        return _train(cfg, workdir, profile=profile, refusal=refusal)


def _train(
    cfg: config.Config,
    workdir: pathlib.Path,
    *,
    profile: tuple[int, int] | None,
    refusal: str | None,
) -> Outcome:
    began = time.monotonic()
    # Signals are noted from here on: data set-up, compilation and evaluation end early too.
    spent = phase_timer.PhaseTimer("start")
    watch = watchdog.Watchdog(spent, dataclasses.asdict(cfg.watchdog))
    with (
        loop.Stop() as stop,
        device.memory_errors(),
        distributed.failures(cfg.watchdog.heartbeat),
        watch,
        contextlib.ExitStack() as ending,
    ):
        shown = progress.Progress(active=distributed.is_first())
        ending.callback(shown.close)
        # After Stop: with several processes SIGTERM is jax's, which passes it on to all of them.
        directory = None if refusal else workdir  # that of others is left as it is
        distributed.initialize(directory, wait=cfg.watchdog.join, heartbeat=cfg.watchdog.heartbeat)
        if refusal := collectives.first_problem(refusal):
            raise locking.InUse(refusal)
        # Options that do not change a result must be equal too, or a process would wait.
        whole = digest(repr(cfg).encode())
        _agree(workdir, config=whole, code=consistency.code(), jax=jax.__version__)
        shown.doing("opening the data")
        objects = Objects(cfg, stop=stop)
        cfg, mesh, model = objects.cfg, objects.mesh, objects.model
        split_roles.check(cfg.data)
        source = sources.open_source(
            cfg.data, cfg.data.train_split, num_classes=cfg.model.num_classes, train=True
        )
        if tuple(source.classes) != objects.classes:
            raise config.ConfigError(
                f"data.eval_split={cfg.data.eval_split}: its classes differ from those of "
                f"{cfg.data.train_split}"
            )
        test_source = _open_test(objects)
        test, tested = split_roles.final(cfg.data), None
        if test is not None and test_source is not None:
            tested = test, objects.of_split(test_source, real=True)
        checked = folder_check.check(
            cfg.data,
            {
                cfg.data.train_split: source,
                cfg.data.eval_split: objects.eval_source,
                cfg.data.test_split or "": test_source,
            },
        )
        ready = f"{time.monotonic() - began:.1f}"
        present = _agree(workdir, data=source.fingerprint(), seconds=ready)
        ending.enter_context(preemption.watch_maintenance())
        plan = loop.Plan.of(cfg, len(source))
        if profile is not None and not 1 <= profile[0] <= profile[1] <= plan.steps:
            raise config.ConfigError(
                f"--profile={profile[0]}:{profile[1]}: must be FIRST:LAST "
                f"within steps 1 to {plan.steps}"
            )
        main = jax.process_index() == 0
        if profile is not None and storage.is_remote(workdir):
            raise config.ConfigError(f"--profile: needs a --workdir on a disk, not {workdir}")
        if main:
            _prepare(workdir, cfg)
        device.cache_programs(workdir)
        device.keep_freed_memory()
        tx = optimizers.create(cfg.optimizer, clip_norm=cfg.train.clip_norm)
        schedule = schedules.create(
            cfg.schedule, lr=cfg.optimizer.lr, steps=plan.steps, warmup=plan.warmup
        )
        target = state.abstract_state(model, tx, cfg, mesh)
        evaluated, metric = objects.evaluated, split_roles.best_metric(cfg)
        saver = manager.Manager(workdir / "checkpoints", keep=cfg.checkpoint.keep, best=metric)
        with storage.readable_errors(f"--workdir={workdir}"):
            mirror = storage.RemoteSync(workdir) if main else None
        metrics = None
        if mirror is not None:
            metrics = logs.Metrics(
                mirror.folder, tensorboard=cfg.logging.tensorboard, loggers=cfg.logging.loggers
            )
        kept: goodput.GoodputLog | None = None
        try:
            shown.say(_banner(cfg, model, len(source), plan, workdir))
            notes = split_roles.notes(cfg, plan.evaluations)
            for line in (*present, *filter(None, [checked]), *notes):
                shown.say(line)
            avoid = collectives.broadcast_from_main(lambda: sorted(_suspects(mirror)))
            for number in avoid:
                shown.say(f"from step {number} this run has failed twice; trying an older one")
            shown.doing("looking for a checkpoint")
            restored = saver.restore(target, avoid=avoid)
            measured = True
            if restored is None:
                shown.doing("making the parameters")
                live, start = state.initialize(model, tx, cfg, mesh), 0
                if cfg.init_from is not None:
                    live, lines = _load_init_weights(live, model, cfg)
                    for line in lines:
                        shown.say(line)
            else:
                live, record = restored
                start, measured = record["step"], bool(record["metrics"])
                _check_data(record, source.fingerprint())
                shown.say(f"resuming from step {start}")
            compiling = time.monotonic()
            shown.doing("compiling the step", slow=0.0)
            with spent("compile"):
                function = step.create(model, tx, schedule, cfg)
                compiled = step.compile_step(function, target, cfg, mesh)
            shown.say(
                f"step compiled in {time.monotonic() - compiling:.1f} s, "
                f"ready after {time.monotonic() - began:.1f} s"
            )
            shown.begin(plan.steps, start)
            rows = sharding.host_rows(mesh, cfg.train.batch_size)
            if mirror is not None:
                kept = goodput.GoodputLog(mirror.folder, start, age=time.monotonic() - began)
            live, results = loop.Loop(
                cfg=cfg,
                plan=plan,
                step=compiled,
                batches=lambda first: prefetch.Prefetcher(
                    pipeline.batches(
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
                    stop,
                ),
                put=lambda batch: sharding.put_batch(batch, mesh, cfg.train.batch_size, rows),
                evaluators=objects.evaluators,
                parameters=state.evaluated,
                saver=saver,
                record=_record(cfg, objects, source),
                metrics=metrics,
                progress=shown,
                stop=stop,
                phases=spent,
                sessions=kept,
                mirror=mirror,
                flops_per_image=_flops_per_image(model),
                shown=tuple(
                    components.parse(text, named.KEY).name for text in cfg.evaluation.evaluators
                ),
                splits={f"{evaluated.name}/split": evaluated.split},
                profile=profile,
                profile_directory=str(workdir / "profile"),
            ).run(live, start, evaluated=measured)
            if tested is not None:
                with spent("evaluate"):
                    results |= test_split.Final(
                        test=tested[0],
                        evaluator=tested[1],
                        steps=plan.steps,
                        metric=metric,
                        load=lambda number: loading.load_params(
                            workdir / "checkpoints", number, cfg
                        ),
                    )(
                        state.evaluated(live),
                        saver,
                        metrics=metrics,
                        file=None if mirror is None else mirror.folder / "metrics.jsonl",
                        stop=lambda: spent.beat() or stop(),
                        say=shown.say,
                    )
                if kept is not None:
                    kept.update(plan.steps, spent.seconds)
        except Exception as error:
            if kept is not None and _is_its_own(error):
                kept.failed()
            raise
        finally:
            shown.close()
            if metrics is not None:
                metrics.close()
            if mirror is not None:
                mirror.bring(now=True)
            saver.close()
    files = [workdir / name for name in ("config.json", "metrics.jsonl", "checkpoints")]
    if mirror is not None:
        from vit_jax.reports import curves  # matplotlib is slow to import

        names = [evaluated.name, *([tested[0].name] if tested else [])]
        curves.draw(mirror.folder / "metrics.jsonl", mirror.folder / "curves.png", names)
        mirror.bring(now=True)
        files.append(workdir / "curves.png")
    return Outcome(
        workdir=workdir,
        steps=plan.steps,
        seconds=time.monotonic() - began,
        results=results,
        files=tuple(files),
        splits={one.name: one.split for one in (evaluated, tested and tested[0]) if one},
    )


def evaluate(
    checkpoint: str | os.PathLike[str],
    overrides: Mapping[str, str],
    *,
    at: int | str | None = None,
) -> dict[str, Any]:
    """Returns the metrics of a checkpoint on its evaluation split, or on the one overridden.

    They are called after that split, such as `test/top1`, and `test/split` is the expression, such
    as `test[:100]`. Those of `evaluation.tasks` are called `TASK/top1` and so on, of
    `evaluation.fewshot` `fewshot/SET/5shot`. Weights of other projects bring no images: for them
    `overrides` must name some, or such sets, which are then all that is measured.
    """
    with device.memory_errors():
        split = loading.has_images(checkpoint, overrides) or not SETS & set(overrides)
        if split:
            loading.check_images(checkpoint, overrides)
        opened = loading.load(checkpoint, overrides, step=at)
        if registry.asks_for_real(opened.config) or linear_data.asks_for_own(opened.config):
            loading.check_images(checkpoint, overrides)
        if opened.config.masked.target is None and (split or opened.config.evaluation.tasks):
            opened.check_head()
        objects = Objects(opened.config, split=split)
        results: dict[str, Any] = {}
        for name, evaluator in objects.evaluators.items():
            one = evaluator(opened.params, stop=lambda: False)
            assert one is not None
            results |= {f"{name}/{key}": value for key, value in one.items()}
        step_number = {} if opened.step is None else {"step": opened.step}
        evaluated = objects.evaluated
        beside = {f"{evaluated.name}/split": evaluated.split} if split else {}
        return step_number | results | beside


def _open_test(objects: Objects) -> sources.Source | None:
    """Returns the test split, if the run has one; reads none of its images."""
    data, test = objects.cfg.data, split_roles.final(objects.cfg.data)
    if test is None:
        return None
    source = sources.open_source(
        data, test.split, num_classes=objects.cfg.model.num_classes, key="data.test_split"
    )
    if tuple(source.classes) != objects.classes:
        raise config.ConfigError(
            f"data.test_split={test.split}: its classes differ from those of {data.train_split}"
        )
    return source


def _suspects(mirror: storage.RemoteSync | None) -> set[int]:
    assert mirror is not None  # process 0 has it
    return goodput.suspects(goodput.read(mirror.folder / goodput.FILE))


def _is_its_own(error: Exception) -> bool:
    """Returns whether a failure may come from the state, and not from a disk, data or a peer."""
    if isinstance(error, config.UserError):
        return isinstance(error, loop.Diverged)
    return jax.process_count() == 1


def _agree(workdir: pathlib.Path, **facts: str) -> list[str]:
    return consistency.check(workdir, {"host": platform.node(), "seconds": "?"} | facts)


def _load_init_weights(
    live: dict[str, Any], model: models.Classifier, cfg: config.Config
) -> tuple[dict[str, Any], list[str]]:
    """Returns a new state with the weights that a run begins with, and what became of them."""
    # On every device whole: each process needs all of it.
    opened = loading.load(cfg.init_from or "", {"mesh.fsdp": "1"}, wanted=cfg)
    params, report = weights.fit(
        jax.device_get(opened.params), opened.facts, model, keep_head=cfg.init_head == "keep"
    )
    notes = (f"  {line}" for line in (*opened.notes, *report.lines()))
    return state.begin_with(live, params), [f"begins with {cfg.init_from}", *notes]


def _prepare(workdir: pathlib.Path, cfg: config.Config) -> None:
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        text = json.dumps(config.to_dict(cfg), indent=2) + "\n"
        logs.write_atomically(workdir / "config.json", text)
    except OSError as error:
        full = error.errno in config.NO_ROOM  # that may pass
        kind = logs.NotWritten if full else config.ConfigError
        raise kind(f"--workdir={workdir}: cannot be written: {error.strerror}") from error


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
        "host": platform.node(),
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
