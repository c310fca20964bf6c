"""The rule of every check of a run: a check without observations fails, since what did not happen proves nothing."""

from __future__ import annotations

from typing import NamedTuple

NOTHING = "nothing to judge by: "


class Measured(NamedTuple):
    """What a fault measured while it was in effect."""

    events: int
    """Number of events that the fault caused or measured; without any, the fault was not in effect."""
    says: str


def judged(holds: bool, observed: int, says: str) -> tuple[bool, str]:
    """Return whether a check passed, and its text.

    Args:
        holds: whether no observation contradicts the promise.
        observed: number of events that could have contradicted the promise.
        says: the text for a report.
    """
    return (holds, says) if observed > 0 else (False, NOTHING + says)
