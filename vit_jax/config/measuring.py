"""Options of checkpoints, evaluation, logs and time limits."""

import dataclasses

from vit_jax.config.durations import Duration
from vit_jax.config.options import GIVEN, Section, option

# Metrics of a whole split, by the entry of `evaluation.metrics` that asks for them.
METRICS = {
    "f1": (
        *("precision", "recall", "f1", "precision_weighted", "recall_weighted", "f1_weighted"),
        "balanced_accuracy",
    ),
    "auroc": ("auroc", "average_precision", "auroc_weighted", "average_precision_weighted"),
    "calibration": ("ece",),
    "ordinal": ("mae", "kappa"),
}
INTERVALS = "intervals"
NUMBERS = ("mae", "rmse", "r2", "spearman")  # of data.targets, always measured


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
    # Choices without repetitions: mae is a metric of numbers and of ordered classes.
    best: str | None = option(
        "auto",
        "Metric that chooses the best checkpoint, ties by loss; auto: top1, map, mae, loss or knn, "
        "none on a test split.",
        choices=(
            "auto",
            "top1",
            "top5",
            "map",
            "loss",
            "knn",
            *dict.fromkeys((*NUMBERS, *sum(METRICS.values(), ()))),
        ),
        free=True,
    )
    # Not free: it decides where a run ends.
    patience: int | None = option(
        None,
        "Evaluations in a row without a better checkpoint.best that end the run; none: it goes on.",
        at_least=1,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluator(Section, kind="evaluator", given=1):  # what it measures
    """An evaluator, whose results have its name."""

    name: str = option("", "Evaluator.", free=True, kind="evaluator")


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfSplit(Evaluator, components=("classification", "masked_patches")):
    """The argument of evaluators of a split."""

    split: str | None = option(
        None, "Split of the data, such as test[:100]; none: data.eval_split.", free=True
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """When data.eval_split is measured, and the additional measurements."""

    every: Duration | None = option(
        Duration(1000, "steps"), "Evaluate this often; none: only at the end.", free=True
    )
    batch_size: int | None = option(
        None, "Images at a time; none: a microbatch of training.", at_least=1, free=True
    )
    metrics: tuple[str, ...] = option(
        (),
        "Also of the splits: f1 (with precision, recall, balanced accuracy), auroc (with average "
        "precision), calibration, ordinal (errors of classes that data.classes puts in order); "
        "intervals: 95 % of each, by bootstrap.",
        choices=(*METRICS, INTERVALS),
        free=True,
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
        (1, 5, 10, 25),
        "Few-shot: training images of each class.",
        at_least=1,
        free=True,
        when={"evaluation.fewshot": GIVEN},
    )
    # 2^10, as in big_vision's fewshot_lsr.py.
    fewshot_l2: tuple[float, ...] = option(
        (1024.0,),
        "Few-shot: L2 regularization strengths; accuracy is reported for each.",
        above=0,
        free=True,
        when={"evaluation.fewshot": GIVEN},
    )
    fewshot_seeds: int = option(
        3,
        "Few-shot: draws of training images to average over.",
        at_least=1,
        free=True,
        when={"evaluation.fewshot": GIVEN},
    )
    probe: tuple[str, ...] = option(
        (), "Sets to train a linear head on frozen features on; named as in fewshot.", free=True
    )
    knn: tuple[str, ...] = option(
        (),
        "Sets to classify by nearest neighbors of frozen features; named as in fewshot.",
        free=True,
    )
    neighbors: tuple[int, ...] = option(
        (10, 20, 100, 200),
        "Numbers of neighbors that vote, as in DINO; those above the number of images are dropped.",
        at_least=1,
        free=True,
        when={"evaluation.knn": GIVEN},
    )
    evaluators: tuple[Evaluator, ...] = option(
        (),
        "Additional evaluators: classification, masked_patches, and those of plug-ins.",
        free=True,
        kind="evaluator",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Logger(
    Section,
    kind="logger",
    given=1,  # the run directory
    components=("jsonl", "tensorboard"),
):
    """A writer of metrics."""

    name: str = option("", "Writer.", free=True, kind="logger")


@dataclasses.dataclass(frozen=True, kw_only=True)
class WandB(Logger, components=("wandb",)):
    """Arguments of Weights & Biases."""

    project: str = option("vit_jax", "Project.", free=True)
    entity: str | None = option(None, "User or team; none: the account's default.", free=True)
    mode: str | None = option(
        None,
        "Where it logs; none: as WANDB_MODE says.",
        choices=("online", "offline", "disabled"),
        free=True,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class MLflow(Logger, components=("mlflow",)):
    """Arguments of MLflow."""

    experiment: str = option("vit_jax", "Experiment; made if it does not exist.", free=True)
    uri: str | None = option(
        None, "Address of the server; none: MLFLOW_TRACKING_URI, else a file store.", free=True
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Logging:
    """Which metrics are logged, how often and where."""

    every: int | None = option(
        None,
        "Steps between lines of metrics.jsonl; none: 50, or fewer for 50 lines of a short run.",
        at_least=1,
        free=True,
    )
    tensorboard: bool = option(True, "Write TensorBoard event files too.", free=True)
    loggers: tuple[Logger, ...] = option(
        (),
        "Additional writers of metrics: wandb, mlflow, or those of plug-ins.",
        free=True,
        kind="logger",
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
