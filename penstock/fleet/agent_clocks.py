"""The difference between the clock of a control plane and those of the agents that report to it."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.fleet.snapshot import HeldReport

MAX_DIFFERENCE_S = 60.0
"""Difference (s) of two clocks that no delay of a message explains. A process ignores what was signed 300 s in its
future, or before a value that it has."""

RECENT_S = 30.0
"""Age (s) up to which a report counts; an agent sends one each second."""


def clock_difference_s(reports: Iterable[HeldReport], now: float) -> float:
    """Return the time (s) by which a clock is ahead of those of most agents, or behind (negative).

    Of agents that disagree, as many as possible count as right; 0 without a recent report.

    Args:
        reports: the newest report of each agent.
        now: Unix time (s) by the clock.
    """
    found = sorted(
        (
            held.received_at - held.report.sent_at
            for held in reports
            if held.report.sent_at and abs(now - held.received_at) <= RECENT_S
        ),
        key=abs,
    )
    return found[(len(found) - 1) // 2] if found else 0.0
