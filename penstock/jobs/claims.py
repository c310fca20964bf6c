"""Which agent may run a batch, by its claims, and which regions no longer run theirs, by marks in their job stores."""

from __future__ import annotations

from typing import Final

from penstock.jobs.job_records import Claim

LEASE_S: Final = 30.0
"""Time (s) for which a claim is valid without a renewal."""

RENEW_S: Final = 5.0
"""Interval (s) of renewals."""

CLOCK_SKEW_S: Final = 5.0
"""Time (s) that is added to a lease, since it ends by the clock of another host. A larger difference leads to requests
that run twice, never to two results: results of a claim that has been replaced do not count."""

LOST_S: Final = 120.0
"""Time (s) without a change of its mark after which a region is lost."""


def may_claim(newest: Claim | None, agent: str, epoch: int, now: float, unchanged_s: float = 0.0) -> bool:
    """Whether an agent may claim a batch at `now` (Unix time, s): there is no valid claim, or that of an earlier start
    of the agent.

    Args:
        newest: the claim with the highest number; None if there is none.
        agent: unique name of the agent.
        epoch: number of the agent's start.
        unchanged_s: time (s) for which the agent has seen this claim without a renewal, by its own clock, since the
            clock of a dead agent may have been ahead.
    """
    if newest is None or newest.until + CLOCK_SKEW_S < now or unchanged_s > LEASE_S + CLOCK_SKEW_S:
        return True
    return newest.agent == agent and newest.epoch < epoch


class RegionMarks:
    """The marks that the agents of other regions change in the store, and since when they are the same."""

    def __init__(self) -> None:
        """Start without a mark: a region is lost at the earliest LOST_S after its mark was first read."""
        self._seen: dict[str, tuple[bytes, float]] = {}

    def is_lost(self, region: str, mark: bytes, now: float) -> bool:
        """Return whether a region is lost.

        Args:
            mark: what its agents have written last; empty if they have written nothing.
            now: monotonic time (s).
        """
        seen = self._seen.get(region)
        if seen is None or seen[0] != mark:
            self._seen[region] = mark, now
            return False
        return now - seen[1] >= LOST_S
