"""Which agent may run a job, by its claims, and which regions no longer run theirs, by marks in their job stores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.jobs import store_paths
from penstock.jobs.async_request import JobEnd
from penstock.jobs.job_records import BatchCounts, BatchEnd, Claim
from penstock.ledger.spool_format import JobResult

LEASE_S: Final = 30.0
"""Time (s) for which a claim is valid without a renewal."""

RENEW_S: Final = 5.0
"""Interval (s) of renewals."""

CLOCK_SKEW_S: Final = 5.0
"""Time (s) that is added to a lease, since it ends by the clock of another host. A larger difference leads to requests
that run twice, never to two results: results of a claim that has been replaced do not count."""

LOST_S: Final = 120.0
"""Time (s) without a change of its mark after which a region is lost."""

MAX_TRACKED: Final = 10_000
"""Values whose last change an agent remembers."""


def may_claim(newest: Claim | None, agent: str, epoch: int, now: float, unchanged_s: float = 0.0) -> bool:
    """Whether an agent may claim a job at `now` (Unix time, s): there is no valid claim, or that of an earlier start
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


def next_claim(newest: Claim | None, agent: str, epoch: int, now: float) -> Claim:
    """The claim by which an agent continues a job at `now` (Unix time, s); see `may_claim`."""
    if newest is None:
        return Claim(1, agent, epoch, now + LEASE_S, now, BatchCounts())
    return Claim(newest.number + 1, agent, epoch, now + LEASE_S, newest.started_at, newest.counts)


def result_counts(
    result: JobResult, newest: Claim | None, later: Sequence[Claim], end: BatchEnd | JobEnd | None, *, exists: bool
) -> bool | None:
    """Whether a result that was or may have been written counts; None while that is open.

    Only for the agent whose claim wrote it, later than it could write it: what does not exist by then may still arrive,
    and counts if a later claim has read it.

    Args:
        newest: the newest claim of the job; None if the job is deleted.
        later: the claims after that of the result, the newest first.
        end: of the job; None while it is open.
        exists: whether the store has the segment; not read for asynchronous requests.
    """
    if newest is None:
        return False
    if end is not None and (newest.number if end.claim is None else end.claim) == result.claim:
        return True
    if not store_paths.is_batch(result.job):
        return None if end is None else False
    for claim in later:
        # After the end, an agent that was late may have claimed the batch.
        is_late = end is not None and end.claim is not None and claim.number > end.claim
        if claim.accepted is not None and not is_late:
            return result.segment <= dict(claim.accepted).get(result.claim, 0)
    if end is not None:
        return exists
    return True if exists and newest.number == result.claim else None


def is_lost(unchanged_s: float) -> bool:
    """Whether a region is lost whose mark has been the same for `unchanged_s`."""
    return unchanged_s >= LOST_S


class UnchangedValues:
    """Since when values in the store are the same, by the clock of the agent that reads them.

    The marks of other regions, and the ends of other agents' claims.
    """

    def __init__(self) -> None:
        """Start without a value: each is new when it is first read."""
        self._seen: dict[str, tuple[bytes | float, float]] = {}

    def unchanged_s(self, name: str, value: bytes | float, now: float) -> float:
        """Time (s) for which a value has been the same.

        Args:
            name: of what has the value.
            value: as it was read now.
            now: monotonic time (s).
        """
        seen = self._seen.get(name)
        if seen is None or seen[0] != value:
            if len(self._seen) > MAX_TRACKED:
                self._seen.clear()
            seen = self._seen[name] = value, now
        return now - seen[1]
