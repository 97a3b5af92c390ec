"""Runs one cell in its own process, as `transfer.worker`, and measures the network."""

import json
import pathlib
import sys
from typing import Any

from research.findings import measures
from research.findings.records import DONE
from vit_jax import config
from vit_jax.studies.transfer import worker


def work(cfg: config.Config, workdir: pathlib.Path, directory: str) -> dict[str, Any]:
    """Trains or resumes a cell until its end, and returns its result with all measurements.

    The third argument of this process lists the measurements as JSON: kind and options.
    """
    answer = worker.work(cfg, workdir, directory)
    if answer["state"] == DONE:
        for kind, options in json.loads(sys.argv[3]):
            answer["results"] |= measures.take(kind, options, workdir / directory)
    return answer


if __name__ == "__main__":
    worker.serve(work)
