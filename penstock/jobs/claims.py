"""Which agent may run a job, by its claims, and which regions no longer run theirs, by marks in their job stores."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
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

MAX_UNSEEN_S: Final = 40.0
"""Time (s) of a pause between two looks at a value that counts as time without a change: slightly more than the longest
interval of looks. While a store is lost, no agent can change its objects."""

MAX_TRACKED: Final = 10_000
"""Values whose last change an agent remembers."""


def may_claim(
    newest: Claim | None, agent: str, epoch: int, now: float, unchanged_s: float = 0.0, usable_s: float = inf
) -> bool:
    """Whether an agent may claim a job at `now` (Unix time, s): there is no valid claim, or that of an earlier start
    of the agent.

    Args:
        newest: the claim with the highest number; None if there is none.
        agent: unique name of the agent.
        epoch: number of the agent's start.
        unchanged_s: time (s) for which the agent has seen this claim without a renewal, by its own clock, since the
            clock of a dead agent may have been ahead.
        usable_s: see `StoreLosses.usable_s`: agents that live renew first.
    """
    if newest is None or (newest.agent == agent and newest.epoch < epoch):
        return True
    is_over = newest.until + CLOCK_SKEW_S < now or unchanged_s > LEASE_S + CLOCK_SKEW_S
    return is_over and usable_s > LEASE_S


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
        self._seen: dict[str, tuple[bytes | float, float, float]] = {}
        """The value, the time (s) without a change, and when (s) it was read."""

    def unchanged_s(self, name: str, value: bytes | float, now: float) -> float:
        """Time (s) for which a value has been the same. Of a pause between two readings, MAX_UNSEEN_S count.

        Args:
            name: of what has the value.
            value: as it was read now.
            now: monotonic time (s).
        """
        before, unchanged_s, read_at = self._seen.get(name, (None, 0.0, now))
        unchanged_s = unchanged_s + min(MAX_UNSEEN_S, now - read_at) if before == value else 0.0
        if len(self._seen) > MAX_TRACKED:
            self._seen.clear()
        self._seen[name] = value, unchanged_s, now
        return unchanged_s


class StoreLosses:
    """Since when stores can be used again that were lost for so long that valid claims have ended."""

    def __init__(self) -> None:
        """Start without a loss."""
        self._failing_since: dict[str, float] = {}
        self._usable_since: dict[str, float] = {}

    def failed(self, store: str, since: float) -> None:
        """Record that a look at a store failed, which began at `since` (monotonic time, s)."""
        self._failing_since.setdefault(store, since)

    def usable_s(self, store: str, now: float) -> float:
        """Time (s) since the end of a loss of a store that can be used at `now` (monotonic time, s); infinity without
        a loss."""
        if now - self._failing_since.pop(store, now) > LEASE_S / 2:
            self._usable_since[store] = now
        return now - self._usable_since.get(store, -inf)
