"""The cells of a transfer: the candidates and the final runs."""

import dataclasses
import itertools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from vit_jax import config
from vit_jax.config import ConfigError, catalog, checks
from vit_jax.data import sampling, split_roles
from vit_jax.runs import directory
from vit_jax.studies.cells import Cell
from vit_jax.training import run_config

Number = TypeVar("Number", int, float)

SELECTED_BY = "top1"
MOST = 1000  # combinations of a search
# Sections and options that are the same for all that a search compares: which images are measured,
# and how.
COMPARED = ("evaluation", "checkpoint", "logging", "watchdog", "data.source", "data.name",
            "data.root", "data.exclude", "data.classes", "data.multilabel", "data.labels",
            "data.train_split", "data.eval_split", "data.test_split", "data.holdout")  # fmt: skip
HELD_OUT = 10  # percent, unless the config sets a split
CHOOSE, FINAL = "choose", "final"  # stages


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
    """One setup and learning rate to choose among.

    Attributes:
      setup: `vit` for the config's own options, the name of another setup, such as `bit`, or the
        options of a search, such as `optimizer.weight_decay=0.1`.
      cfg: the run on held-out images.
    """

    setup: str
    cfg: config.Config

    @property
    def lr(self) -> float:
        """The peak learning rate."""
        return self.cfg.optimizer.lr


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransferPlan:
    """The cells of a transfer.

    Attributes:
      name: of the config.
      results: the paper's, to compare with.
      base: the config before selection, with the splits of the final stage.
      candidates: what to choose among; a single one is not trained for selection.
      choose_seeds: seeds of each candidate, ranked by the mean over them.
      seeds: seeds of the final cells.
    """

    name: str
    task: str
    results: tuple[catalog.Result, ...]
    base: config.Config
    candidates: tuple[Candidate, ...]
    choose_seeds: tuple[int, ...]
    seeds: tuple[int, ...]

    def choosing(self) -> tuple[Cell, ...]:
        """The cells on held-out images: all candidates, seed by seed; none for a single one."""
        if len(self.candidates) == 1:
            return ()
        return tuple(
            self.choosing_cell(candidate, seed)
            for seed in self.choose_seeds
            for candidate in self.candidates
        )

    def choosing_cell(self, candidate: Candidate, seed: int) -> Cell:
        """The cell of a candidate with one of the seeds of the choice."""
        directory = f"{CHOOSE}/{self._folder(candidate)}-lr{candidate.lr:g}"
        directory += f"-seed{seed}" if len(self.choose_seeds) > 1 else ""
        return _cell(CHOOSE, candidate, dataclasses.replace(candidate.cfg, seed=seed), directory)

    def _folder(self, candidate: Candidate) -> str:
        """A name of its own for a setup; the options of a search may have any characters."""
        if "=" not in candidate.setup:
            return candidate.setup
        return f"try{list(dict.fromkeys(c.setup for c in self.candidates)).index(candidate.setup)}"

    def final(self, selected: Candidate) -> tuple[Cell, ...]:
        """A candidate on the whole training set, measured once on the test images, seed by seed."""
        data, evaluation = self.base.data, self.base.evaluation
        cfg = dataclasses.replace(
            _on_splits(selected.cfg, data.train_split, data.test_split or data.eval_split),
            evaluation=dataclasses.replace(evaluation, every=None),
        )
        return tuple(
            _cell(FINAL, selected, dataclasses.replace(cfg, seed=seed), f"{FINAL}/seed{seed}")
            for seed in self.seeds
        )


def _cell(stage: str, candidate: Candidate, cfg: config.Config, directory: str) -> Cell:
    split = split_roles.evaluation(cfg.data)
    facts = {
        "stage": stage,
        "setup": candidate.setup,
        "split": {"name": split.name, "split": split.split},
    }
    return Cell(directory=directory, cfg=cfg, facts=facts, alike=True)


def create_plan(
    reference: str,
    overrides: Mapping[str, str],
    *,
    rates: Sequence[float] = (),
    search: Mapping[str, Sequence[object]] | None = None,
    draws: int | None = None,
    choose_seeds: Sequence[int] = (),
    seeds: Sequence[int] = (),
    tiny: bool = False,
) -> TransferPlan:
    """Plans the transfer of a catalog name or config file.

    Args:
      reference: the config's name.
      overrides: options of every cell, by dotted name, as on the command line.
      rates: learning rates to try, each once; (): those of the config.
      search: further options to choose among, and their values, as such or as texts of the command
        line: every combination is tried.
      draws: how many combinations to try instead, drawn by the config's seed.
      choose_seeds: seeds to try each with, each once; (): those of the config's protocol, else its
        seed.
      seeds: seeds of the final runs, each once; (): those of the config's protocol.
      tiny: shrink every cell to two steps on random pixels.

    Reads at most the metadata of the initial weights. Raises ConfigError.
    """
    # As Python's numbers, which JSON holds; a run that counts twice would narrow the interval.
    rates = _each("rates", rates, float, "learning rates, such as [0.003, 0.01]")
    seeds, choose_seeds = (
        _each(name, given, operator.index, "seeds, such as [0, 1]")
        for name, given in (("seeds", seeds), ("choose_seeds", choose_seeds))
    )
    for rate in rates:
        if not 0 < rate < math.inf:
            raise ConfigError(f"rates={rate:g}: must be finite and above 0")
    for name, given in (("seeds", seeds), ("choose_seeds", choose_seeds)):
        for seed in given:
            config.check_seed(name, seed)
    if draws is not None:
        config.check_count("draws", draws)
        if not search:
            raise ConfigError(f"draws={draws}: draws combinations of search; give search")
    about = catalog.about(reference)
    protocol = about.transfer or catalog.TransferSettings()
    values = catalog.load_values(reference)
    if run_config.names_other_data(values, overrides):  # of which the paper knows no cut
        protocol = dataclasses.replace(protocol, task="", train="", held_out="")
    name = values["name"]
    _check_overrides(name, overrides, protocol)

    def resolve(tried: Mapping[str, str], setup: Mapping[str, Any]) -> config.Config:
        given = {**overrides, **tried}
        values = config.override(run_config.named_values(reference, given), setup)
        cfg = run_config.config_from_values(values, given, tiny=tiny)
        checks.check_fixed(cfg, "transfer")
        checks.check_decay(cfg)
        _check_chooses(cfg)
        return directory.as_in_weights(cfg, given)

    base = resolve({}, {})
    unused = {"checkpoint.patience": (None,), "checkpoint.best": ("auto", "top1", None)}
    for key, fits in unused.items():
        if (given := config.get(base, key)) not in fits:
            raise ConfigError(
                f"{key}={given}: each run of a transfer is measured once, at its end, and top-1 "
                f"chooses; set {key}={config.show(fits[0])}"
            )
    # In this order: the paper's own cut, a validation split of the data, a tenth held out.
    # Tiny copies see random pixels, for which the paper's cut means nothing.
    if protocol.train and not tiny:
        splits = protocol.train, protocol.held_out
    elif base.data.test_split and split_roles.evaluation(base.data).role == split_roles.VALIDATION:
        splits = base.data.train_split, base.data.eval_split
    else:
        splits = _cut(base.data.train_split)
    if search:
        if not isinstance(search, Mapping):
            raise ConfigError(f"search={search}: must be a dict of values by dotted name")
        # What must not be set for all cells must not be searched either: rates, seeds and splits.
        search = {key: _texts(key, given) for key, given in search.items()}
        _check_overrides(name, {key: ",".join(v) for key, v in search.items()}, protocol)
        # Each is resolved anew, as one option decides others: `init_from` those of its weights.
        tried = [
            (" ".join(f"{key}={value}" for key, value in options.items()), _at_rate(cfg, lr))
            for options in _combinations(search, overrides)
            for cfg in (resolve(options, {}),)
            for lr in rates or protocol.rates or (base.optimizer.lr,)
        ]
        if draws is not None:
            drawn = sampling.draw_indices(len(tried), draws, base.seed)
            # Sorted, as setups are numbered in this order.
            tried = [tried[number] for number in sorted(drawn)]
    else:
        tried = [("vit", _at_rate(base, lr)) for lr in rates or protocol.rates]
        tried += [(setup, resolve({}, options)) for setup, options in protocol.setups.items()]
    candidates = [_candidate(setup, cfg, *splits) for setup, cfg in tried]
    if not candidates:
        raise ConfigError(
            f"transfer: {base.name} names no learning rates to try; set --rates=0.003,0.01,0.03"
        )
    if choose_seeds and len(candidates) == 1:
        raise ConfigError(
            f"choose_seeds={config.show(choose_seeds)}: {base.name} has nothing to choose among "
            f"but lr={candidates[0].lr:g}; give several rates, or leave it out"
        )
    return TransferPlan(
        name=base.name,
        task=protocol.task or base.data.name or base.data.source,
        results=about.results,
        base=base,
        candidates=tuple(candidates),
        choose_seeds=tuple(choose_seeds) or protocol.choose_seeds or (base.seed,),
        seeds=tuple(seeds) or protocol.seeds,
    )


def _check_chooses(cfg: config.Config) -> None:
    """Raises ConfigError for a run without the top-1 that a transfer chooses by."""
    if not cfg.needs_labels:
        raise ConfigError(
            f"objective.name={cfg.objective.name}: transfer chooses by top-1, and an objective "
            f"without labels has none; run `vit_jax train {cfg.name}`"
        )
    if not cfg.knows_classes and cfg.distillation is not None:
        raise ConfigError(
            f"objective.target={cfg.distillation.target}: transfer chooses by top-1, and this "
            f"trains no head; set objective.target=logits, or run `vit_jax train {cfg.name}`"
        )
    if cfg.data.targets:
        raise ConfigError(
            f"data.targets={config.show(cfg.data.targets)}: transfer chooses by top-1, and "
            f"numbers have none; run `vit_jax train {cfg.name}`"
        )


def _each(name: str, given: Any, number: Callable[[Any], Number], what: str) -> list[Number]:
    """Each of several numbers once; raises ConfigError for anything else."""
    try:
        return list(dict.fromkeys(map(number, given)))
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(f"{name}={given}: must be {what}") from None


def _texts(key: str, values: Sequence[object]) -> tuple[str, ...]:
    """Values to try, as on the command line; raises ConfigError for one alone."""
    values = config.native(values)
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise ConfigError(f"--try={key}={config.show(values)}: must be a list of values")
    # repr: `show` rounds to six digits.
    return tuple(
        repr(one) if isinstance(one, float) else config.show(one)
        for one in map(config.native, values)
    )


def _combinations(
    search: Mapping[str, Sequence[str]], overrides: Mapping[str, str]
) -> list[dict[str, str]]:
    for key, values in search.items():
        shown = f"--try={key}={','.join(values)}"
        if key in COMPARED or key.partition(".")[0] in COMPARED:
            raise ConfigError(
                f"{shown}: all are compared on the same images, in the same way; set "
                f"--config.{key} for all"
            )
        if key in overrides:
            raise ConfigError(f"{shown}: {key}={overrides[key]} is set too; keep one of them")
        if not values or len(set(values)) < len(values):
            raise ConfigError(f"{shown}: needs values, each once")
    count = math.prod(map(len, search.values()))
    if count > MOST:
        raise ConfigError(f"--try: has {count:,} combinations; at most {MOST:,}")
    return [
        dict(zip(search, values, strict=True)) for values in itertools.product(*search.values())
    ]


def _check_overrides(
    name: str, overrides: Mapping[str, str], protocol: catalog.TransferSettings
) -> None:
    instead = {"optimizer.lr": "--rates=LR,...", "seed": "--seeds=N,... or --choose-seeds=N,..."}
    for key, flag in instead.items():
        if key in overrides:
            raise ConfigError(f"{key}={overrides[key]}: differs between cells; set {flag}")
    if protocol.train and "data.train_split" in overrides:
        raise ConfigError(
            f"data.train_split={overrides['data.train_split']}: {name} defines what is held out of "
            f"its training images ({protocol.held_out}); leave it"
        )


def _cut(split: str) -> tuple[str, str]:
    # A percentage of a slice cannot be written in TFDS's syntax.
    if "[" in split or "+" in split:
        raise ConfigError(
            f"data.train_split={split}: transfer holds out a part of it, so it must be a whole "
            "split, such as train"
        )
    return f"{split}[:{100 - HELD_OUT}%]", f"{split}[{100 - HELD_OUT}%:]"


def _at_rate(cfg: config.Config, lr: float) -> config.Config:
    return dataclasses.replace(cfg, optimizer=dataclasses.replace(cfg.optimizer, lr=lr))


def _on_splits(cfg: config.Config, train: str, evaluated: str) -> config.Config:
    data = dataclasses.replace(cfg.data, train_split=train, eval_split=evaluated, test_split=None)
    return dataclasses.replace(cfg, data=data)


def _candidate(setup: str, cfg: config.Config, train: str, held_out: str) -> Candidate:
    # Measure only the held-out images: the additional sets contain test images too.
    evaluation = config.Evaluation(batch_size=cfg.evaluation.batch_size, every=None)
    cfg = dataclasses.replace(_on_splits(cfg, train, held_out), evaluation=evaluation)
    # Splits and evaluation differ from those that were checked before.
    checks.check_options(cfg)
    return Candidate(setup=setup, cfg=cfg)
