"""The runs of a table in order: cost, state and missing requirements."""

import dataclasses
import functools
import pathlib
import re
import shlex
from collections.abc import Iterator, Mapping

from vit_jax import config, weights
from vit_jax.config import catalog, components
from vit_jax.data import availability, datasets, tasks
from vit_jax.pages import listing
from vit_jax.preflight import program
from vit_jax.studies.report import run_data
from vit_jax.studies.reproduce import measurements
from vit_jax.studies.reproduce.exhibit import Exhibit, Score, TableRun
from vit_jax.studies.reproduce.measurements import Found, Number
from vit_jax.training import run_config
from vit_jax.utils import limits, storage

SEEDS = 3  # of the final runs of a transfer
PEAK = 61.5e12  # FLOP/s of a TPUv3 core; core-days are estimated as in `preflight`
RECORDED = "preflight-table3.jsonl"
SHOWN = 3  # options of a run that are not the table's
DONE, BEGUN, READY, WAITS, LACKS = "done", "begun", "can run", "waits", "lacks"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Planned:
    """A run with its cost and its state.

    Attributes:
      run: the training or transfer.
      runs: number of runs: candidates and seeds of a transfer.
      steps: training steps of all runs; None if that depends on the user's data.
      exaflops: their compute.
      core_days: TPUv3-core-days as printed, else estimated as in `preflight`.
      slices: slices it fits on, from stored preflight results.
      state: `done`, `begun`, `can run`, `waits` for another run, or `lacks` a requirement.
      why: the awaited run, the missing requirement, the progress, or of a run that is done the
        options that are not the table's and the final runs that failed.
      command: command that runs it or provides the requirement.
    """

    run: TableRun
    runs: int
    steps: int | None
    exaflops: float | None
    core_days: float | None
    slices: tuple[str, ...]
    state: str
    why: str = ""
    command: str = ""


class TablePlan:
    """The state of a table's runs in a folder: done, ready, waiting, or lacking data.

    Compiles nothing and uses no device.

    Attributes:
      found: the stored results of each run, by directory.
      planned: the runs in the order to run them, by directory.
    """

    def __init__(
        self,
        table: Exhibit,
        workdir: pathlib.Path,
        overrides: Mapping[str, str],
        *,
        smoke: bool = False,
    ) -> None:
        """Reads the existing runs.

        `overrides` are options of the user's data, for runs whose own data is unavailable. With
        `smoke` the runs are tiny copies, so their options are not the table's.

        Raises ConfigError for other overrides.
        """
        self.table, self.workdir, self._overrides = table, workdir, overrides
        self._smoke = smoke
        _check_overrides(table, overrides)
        self.found: Found = {
            run.directory: measurements.read_stored(run, workdir) for run in table.runs
        }
        self.planned: dict[str, Planned] = {}
        slices = dict(_slices())
        for run in table.runs:
            about, entry = catalog.about(run.name), _entry(run.name)
            runs = _runs(about) if run.kind == "transfer" else 1
            exaflops = None if entry.exaflops is None else runs * entry.exaflops
            mfu, _ = program.expected_mfu(entry.cfg.model.width)
            reckoned = None if exaflops is None else exaflops * 1e18 / (mfu * PEAK * 86_400)
            state, why, command = self._state(run, entry)
            self.planned[run.directory] = Planned(
                run=run,
                runs=runs,
                steps=None if entry.steps is None else runs * entry.steps,
                exaflops=exaflops,
                core_days=about.core_days or reckoned,
                slices=tuple(slices.get(_program(run.name), ())),
                state=state,
                why=why,
                command=command,
            )

    @functools.cached_property
    def numbers(self) -> dict[Score, Number]:
        """The numbers that have been measured."""
        measured = {}
        for score in self.table.scores:
            if score.runs:
                exaflops = self.planned[score.runs[0].directory].exaflops
                measured[score] = measurements.number(score, self.found, exaflops)
        return {score: number for score, number in measured.items() if number is not None}

    def options(self, run: TableRun) -> dict[str, str]:
        """The options of a run: initial weights, measurements, the user's data."""
        there = self.found.get(run.directory)
        if isinstance(there, run_data.StoredTransfer):  # resumes with its initial weights
            began = _began_with(there)
            return self._given(run) | ({"init_from": began} if began else {})
        options = self._given(run)
        if run.origin is not None and measurements.finished(self.found.get(run.origin.directory)):
            options["init_from"] = str(self.workdir / run.origin.directory)
        return options

    def _given(self, run: TableRun) -> dict[str, str]:
        """Measurements and the user's data."""
        return dict(run.measured) | dict(self._overrides if catalog.about(run.name).needs else ())

    def _state(self, run: TableRun, entry: listing.ConfigEntry) -> tuple[str, str, str]:
        """The state of a run, the reason, and the command that helps."""
        there = self.found[run.directory]
        # First what is there: a finished run needs neither data nor weights any more.
        if measurements.finished(there):
            remarks = self._differing(run, there), _failed(there)
            return DONE, "; ".join(filter(None, remarks)), ""
        lack = self._lacks(run, entry)
        if lack is not None:
            return lack
        words = command(run, self.workdir, self.options(run))
        line = f"vit_jax {shlex.join(words)}"
        return (READY, "", line) if there is None else (BEGUN, _progress(there), line)

    def _differing(
        self, run: TableRun, there: run_data.StoredRun | run_data.StoredTransfer | None
    ) -> str:
        """The options of a run that are not the table's; empty if there are none."""
        if self._smoke or there is None:
            return ""
        given = self.options(run)
        try:
            if isinstance(there, run_data.StoredTransfer):
                stored = config.build(there.values["config"])
            elif (stored := there.cfg) is None:
                return ""
            values = run_config.named_values(run.name, given)
            own = run_config.config_from_values(values, given)
        except (config.ConfigError, KeyError):  # as of another version
            return ""
        # What the data decide, such as the number of classes, is no difference.
        changed = config.differences(stored, config.as_recorded(own, stored))
        if stored.init_from is not None:  # whose weights decide these
            spec = weights.ModelSpec(model=stored.model, data=stored.data)
            keep, position = stored.init_head == "keep", own.model.position
            for key in weights.numerics(spec, keep_head=keep, position=position):
                changed.pop(key, None)
        found = [f"{key}={config.show(value)}" for key, (value, _) in changed.items()]
        if isinstance(there, run_data.StoredTransfer):
            found = self._other_weights(run, there) + found
            found += _other_rates(there, catalog.about(run.name))
        more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        return f"with {', '.join(found[:SHOWN])}{more}" if found else ""

    def _other_weights(self, run: TableRun, there: run_data.StoredTransfer) -> list[str]:
        own = [self._given(run).get("init_from"), _entry(run.name).cfg.init_from]
        own += [str(self.workdir / run.origin.directory)] if run.origin else []
        own = [*filter(None, own)] or [None]
        began = _began_with(there)
        # The same folder may be written as a relative and as an absolute path.
        if began in own or (began and _resolved(began) in map(_resolved, filter(None, own))):
            return []
        return [f"init_from={config.show(began)}"]

    def _lacks(self, run: TableRun, entry: listing.ConfigEntry) -> tuple[str, str, str] | None:
        about, options = catalog.about(run.name), self.options(run)
        if run.origin is not None and "init_from" not in options and entry.cfg.init_from is None:
            # Planned already: `Exhibit.runs` has pre-training first.
            origin = self.planned[run.origin.directory]
            waits = origin.state in (READY, BEGUN, WAITS)
            return WAITS if waits else LACKS, run.origin.directory, ""
        if about.needs and not any(key in options for key in about.lifted_by):
            why = about.needs.partition(";")[0]
            return LACKS, why, "--config.data.root=DIR --config.data.name=NAME"
        root = options.get("data.root", entry.cfg.data.root)
        for task, dataset in _datasets(run, entry, options):
            if availability.find_prepared(dataset, root) is None:
                why = f"{dataset.name} in {availability.directory(root)}"
                return LACKS, why, availability.prepare_command(task, root) or ""
        return None


def _check_overrides(table: Exhibit, overrides: Mapping[str, str]) -> None:
    """Raises ConfigError for an option that would change the table's own runs, or none."""
    lifted = {key for run in table.runs for key in catalog.about(run.name).lifted_by}
    for key, value in overrides.items():
        # A dataset of the user's own may need other options of data, too.
        if key in lifted or ("data.root" in lifted and key.startswith("data.")):
            continue
        reads = ", ".join(sorted(lifted)) or "none"
        raise config.ConfigError(
            f"{key}={value}: the runs of {table.name} have the paper's options (to set: {reads}); "
            "run another with `vit_jax train` or `transfer`, in a --workdir of its own"
        )


def _began_with(there: run_data.StoredTransfer) -> str | None:
    return (there.values.get("config") or {}).get("init_from")


def _failed(there: run_data.StoredRun | run_data.StoredTransfer | None) -> str:
    """How many final runs of a transfer failed, so that its mean is over the others."""
    cells = there.cells("final") if isinstance(there, run_data.StoredTransfer) else []
    failed = sum(cell.get("state") == "failed" for cell in cells)
    return f"{failed} of {len(cells)} final runs failed" if failed else ""


def _resolved(path: str) -> pathlib.Path:
    return pathlib.Path(path).resolve()


def _other_rates(there: run_data.StoredTransfer, about: catalog.About) -> list[str]:
    tried = [lr for setup, lr in there.values.get("candidates", ()) if setup == "vit"]
    rates = about.transfer.rates if about.transfer else ()
    listed = ",".join(f"{lr:g}" for lr in tried)
    return [] if sorted(tried) == sorted(rates) else [f"--rates={listed}"]


def command(run: TableRun, workdir: pathlib.Path, options: Mapping[str, str]) -> list[str]:
    """The words of the command of one run."""
    flags = [f"--config.{key}={value}" for key, value in options.items()]
    flags += [f"--plugins={module}" for module in components.plugins()]
    return [run.kind, run.name, f"--workdir={workdir / run.directory}", *flags]


def _datasets(
    run: TableRun, entry: listing.ConfigEntry, options: Mapping[str, str]
) -> Iterator[tuple[str, datasets.Dataset]]:
    """The datasets that a run trains or evaluates on, with a task of each."""
    data = entry.cfg.data
    name = options.get("data.name", data.name)
    if options.get("data.source", data.source) == "tfds" and name is not None:
        bare, _, version = name.partition(":")
        for task in tasks.TASKS.values():
            # Any task of the dataset: its name is that of a command which prepares it.
            if task.dataset.tfds == bare:
                yield task.name, dataclasses.replace(task.dataset, version=version)
                break
    for key, value in run.measured:
        # The digits come with this package.
        if key in ("evaluation.tasks", "evaluation.fewshot") and value != "digits":
            task = tasks.find_task(value)
            yield task.name, task.dataset


def _progress(found: run_data.StoredRun | run_data.StoredTransfer) -> str:
    if isinstance(found, run_data.StoredTransfer):
        cells = found.values.get("cells", ())
        return f"{sum(cell.get('state') == 'done' for cell in cells)} of {len(cells)} cells"
    return f"step {found.step:,}" + ("" if found.steps is None else f" of {found.steps:,}")


@functools.cache
def _entry(name: str) -> listing.ConfigEntry:
    return listing.entry(name)


def _runs(about: catalog.About) -> int:
    """The number of fine-tuning runs of a transfer: candidates, if several, and seeds."""
    protocol = about.transfer or catalog.TransferSettings()
    candidates = len(protocol.rates) + len(protocol.setups)
    choosing = candidates * max(len(protocol.choose_seeds), 1)
    # A single candidate needs no choice.
    return SEEDS + (choosing if candidates > 1 else 0)


def _slices() -> Iterator[tuple[str, list[str]]]:
    """Yields programs and the slices they fit on, from preflight results stored in a checkout."""
    # An installed package has no docs: the column is then left out.
    file = catalog.directory().parent / "docs" / "records" / RECORDED
    fits: dict[str, list[str]] = {}
    for _, line in storage.read_lines(file, limits.RECORD) if file.is_file() else ():
        report = line["report"]
        if report["fits"]:
            fits.setdefault(_program(report["name"]), []).append(report["topology"])
    yield from fits.items()


def _program(name: str) -> str:
    """The common key of pre-training rows that differ only in epochs."""
    return re.sub(r"-\d+ep$", "", name)
