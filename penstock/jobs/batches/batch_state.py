"""The states of a batch, as of OpenAI's API, and the transitions between them as a table.

Source: https://platform.openai.com/docs/api-reference/batch/object
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class BatchState(StrEnum):
    """A state of a batch."""

    VALIDATING = "validating"
    """No agent has begun to run the batch."""
    FAILED = "failed"
    """The batch cannot run; `errors` has the reasons."""
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    """Every request has a result; the result files are being written."""
    COMPLETED = "completed"
    EXPIRED = "expired"
    """The completion window has passed; requests without a result have an error."""
    CANCELLING = "cancelling"
    """Cancellation was requested; running requests end."""
    CANCELLED = "cancelled"


TRANSITIONS: Final[Mapping[BatchState, frozenset[BatchState]]] = {
    BatchState.VALIDATING: frozenset({BatchState.IN_PROGRESS, BatchState.FAILED, BatchState.CANCELLING}),
    # FAILED: the input file was deleted, or the policy no longer permits the batch.
    BatchState.IN_PROGRESS: frozenset({BatchState.FINALIZING, BatchState.CANCELLING, BatchState.FAILED}),
    BatchState.FINALIZING: frozenset({BatchState.COMPLETED, BatchState.EXPIRED, BatchState.FAILED}),
    BatchState.CANCELLING: frozenset({BatchState.CANCELLED, BatchState.FAILED}),
    BatchState.FAILED: frozenset(),
    BatchState.COMPLETED: frozenset(),
    BatchState.EXPIRED: frozenset(),
    BatchState.CANCELLED: frozenset(),
}
"""The allowed transitions; a state without any is an end."""


class InvalidTransition(Exception):
    """Raised for a transition that TRANSITIONS does not contain, which is a defect."""


def advance(state: BatchState, to: BatchState) -> BatchState:
    """Return the next state; raises InvalidTransition for a transition that the table lacks."""
    if to not in TRANSITIONS[state]:
        raise InvalidTransition(f"{state} -> {to}")
    return to


def end_running(to: BatchState) -> BatchState:
    """Return the end of a batch that runs, after the states between; raises InvalidTransition."""
    if to is BatchState.CANCELLED:
        return advance(advance(BatchState.IN_PROGRESS, BatchState.CANCELLING), to)
    if to is BatchState.FAILED:
        return advance(BatchState.IN_PROGRESS, to)
    return advance(advance(BatchState.IN_PROGRESS, BatchState.FINALIZING), to)


def is_end(state: BatchState) -> bool:
    """Whether a batch in this state changes no more."""
    return not TRANSITIONS[state]
