"""Many runs on many slices: each program compiled once, each result saved at once."""

import contextlib
import dataclasses
import functools
import json
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata

from vit_jax import config
from vit_jax.preflight import search
from vit_jax.preflight.program import Report, Settings, measure, same_program
from vit_jax.preflight.topologies import Slice
from vit_jax.runtime import logs, provenance
from vit_jax.training.durations import Durations
from vit_jax.utils import limits, storage

PACKAGES = ("jax", "libtpu")  # whose versions identify the compiler of a report


def measure_all(
    runs: Sequence[tuple[config.Config, int]],
    slices: Sequence[Slice],
    *,
    fit: bool,
    loops: bool,
    output: pathlib.Path | None,
    say: Callable[[str], None],
    teachers: Mapping[str, config.Config] | None = None,
) -> Iterator[Report]:
    """Yields the report of every run on every slice.

    Args:
      runs: prepared configs, each with the images of its epoch.
      slices: to compile for.
      fit: whether to search for the fastest settings that fit.
      loops: search only among programs that loop over their layers.
      output: a file of JSON lines with earlier reports, which the same compiler does not compile
        again; new reports are appended.
      say: called with a line before every compilation.
      teachers: `model` and `data` of every `objective.teacher` of the runs.
    """
    versions = {name: _version(name) for name in PACKAGES}
    known = read_reports(output, versions)
    for cfg, examples in runs:
        for where in slices:
            ends = [phase.until for phase in cfg.data.phases]
            if ends:  # which set the share of each phase in the arithmetic
                ends.append(cfg.train.duration)
            each = [end.steps(cfg.train.batch_size, examples) for end in ends]
            teacher = cfg.distillation and (teachers or {}).get(cfg.distillation.teacher or "")
            programs = [same_program(teacher)] if teacher else []  # another may have its name
            key = json.dumps([same_program(cfg), where.name, fit, loops, *each, *programs])
            if key in known:
                # One program serves runs of another name or length.
                steps = Durations.from_config(cfg, examples).steps
                yield dataclasses.replace(known[key], name=cfg.name, steps=steps)
                continue
            # Before compiling, which takes minutes for a large model.
            say(f"{cfg.name} on {where.name}")
            compile_ = functools.partial(measure, teacher=teacher)
            if fit:
                report = search.fit_batch(
                    cfg, where, examples, loops=loops, say=say, compile_=compile_
                )
            else:
                report = compile_(cfg, where, examples)
            known[key] = report
            if output is not None:
                made = provenance.fields(where.name, versions)
                storage.append_line(
                    output, {"key": key, "report": dataclasses.asdict(report), **made}
                )
            yield report


def _version(package: str) -> str | None:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return None


def as_dict(
    report: Report, mfu: float | None = None, price: float | None = None
) -> dict[str, object]:
    """A report with its bounds and the cost of the whole run, for JSON."""
    return dataclasses.asdict(report) | {
        "flags": report.settings.flags(),
        "roofline_seconds": report.bounds(),
        "mfu": mfu or report.expected_mfu[0],
        "whole_run": report.run(mfu, price),
    }


def read_reports(
    output: pathlib.Path | None, versions: Mapping[str, str | None] | None = None
) -> dict[str, Report]:
    """Reads the reports in a file of JSON lines, by key; creates the file if it is missing.

    With `versions`, those that say that others compiled them are left out.

    Raises ConfigError for a file that cannot be written, or that contains something else.
    """
    known: dict[str, Report] = {}
    if output is None:
        return known
    with storage.writing("--output", output):
        # Tried first: else hours of compiling could end at a file that cannot be written.
        output.open("a", encoding="utf-8").close()
    try:
        lines = list(storage.read_lines(output, limits.RECORD, logs.log.warning))
    except (OSError, limits.LimitError) as error:
        raise config.ConfigError(f"--output={output}: {storage.reason(error)}") from error
    for number, line in lines:
        try:
            # A report that names no versions is trusted.
            values, compiler = line["report"], {**(versions or {}), **line.get("versions", {})}
            if any(compiler[name] != own for name, own in (versions or {}).items()):
                continue
            known[line["key"]] = Report(**values | {"settings": Settings(**values["settings"])})
        except (LookupError, TypeError) as error:
            raise config.ConfigError(
                f"--output={output}: line {number} is not a report of preflight; "
                "name another file, or remove it"
            ) from error
    return known
