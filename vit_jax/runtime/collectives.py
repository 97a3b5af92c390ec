"""Collectives that keep processes consistent about their shared checkpoints."""

import json
from collections.abc import Callable
from typing import TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from vit_jax.utils.errors import CheckpointError, DamagedCheckpoint

T = TypeVar("T")


def broadcast_from_main(function: Callable[[], T]) -> T:
    """Process 0's result, passed as JSON, in every process, or raises its error."""
    if jax.process_count() == 1:
        return function()
    outcome, error = {}, None
    if jax.process_index() == 0:
        try:
            outcome = {"value": function()}
        except Exception as caught:
            # Told to the others as well, which wait in the broadcast below.
            error, outcome = (
                caught,
                {"error": str(caught), "damaged": isinstance(caught, DamagedCheckpoint)},
            )
    # Collectives carry arrays only.
    text = np.frombuffer(json.dumps(outcome).encode(), np.uint8)
    # The length first: all processes must pass arrays of one shape.
    size = int(multihost_utils.broadcast_one_to_all(np.int32(text.size)))
    if jax.process_index() != 0:
        text = np.zeros(size, np.uint8)
    outcome = json.loads(bytes(np.asarray(multihost_utils.broadcast_one_to_all(text))))
    if error is not None:
        raise error
    if "error" in outcome:
        raise (DamagedCheckpoint if outcome["damaged"] else CheckpointError)(outcome["error"])
    return outcome["value"]


def first_problem(problem: str | None) -> str | None:
    """The first problem of any process, in every process."""
    if jax.process_count() == 1:
        return problem
    return next((text for text in gather_texts(problem or "", 512) if text), None)


def gather_texts(text: str, most: int) -> list[str]:
    """The text of every process, in every process, cut to `most` bytes of UTF-8."""
    if jax.process_count() == 1:
        return [text]
    # One shape in all processes, without a collective to agree on a length first.
    padded = np.zeros(most, np.uint8)
    mine = np.frombuffer(text.encode()[:most], np.uint8)
    padded[: mine.size] = mine
    everyone = np.asarray(multihost_utils.process_allgather(padded))
    # The cut at `most` bytes may have split a character.
    return [bytes(row).rstrip(b"\0").decode(errors="replace") for row in everyone]
