"""Decides by the progress of requests whether an endpoint is suspect: it accepts requests and completes none.

Health probes and failed requests do not reveal such a grey failure (Huang et al., "Gray failure: the Achilles' heel of
cloud-scale systems", HotOS 2017): the server responds, and nothing fails before a timeout. The evidence is that a
request waits for longer than its estimated work explains while no byte arrives from any request of the endpoint, and
its siblings do better; or that the engine reports to run nothing although requests wait for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from math import inf
from typing import Final, NamedTuple

DUE_FACTOR: Final = 4.0
"""A first byte is overdue when it takes this many times as long as expected: the factor by which speed learning lets
one observation exceed the expectation. A long prefill alone must not make an endpoint suspect."""

IDLE_READINGS: Final = 3
"""Consecutive readings of an engine's metrics that show no request. Some engines update them once in a while."""

SIBLING_SHARE: Final = 0.5
"""A sibling progresses if it has been silent for less than this share of the time that makes an endpoint suspect."""


class StallReason(StrEnum):
    """The evidence that an endpoint makes no progress."""

    SILENT = "silent"
    """A request is overdue, and no byte has arrived from any request of the endpoint for too long."""
    IDLE = "idle"
    """A request is overdue, and the engine reports that it runs nothing."""


class Stall(NamedTuple):
    """Why an endpoint is suspect."""

    reason: StallReason
    detail: str
    """The numbers of the decision, for operators."""

    def may_resend(self, *, repeatable: bool) -> bool:
        """Whether a request without a byte of a response may be sent to another endpoint.

        Args:
            repeatable: the request's route permits that it is started twice. An idle engine has not started it.
        """
        return repeatable or self.reason is StallReason.IDLE


class ProgressSample(NamedTuple):
    """The progress of one endpoint's requests, all sent by one agent. Times are monotonic, in seconds."""

    progressed_at: float = -inf
    """When a byte of a response last arrived."""
    waiting_since: float = inf
    """When the oldest request without any byte of a response was sent; inf if there is none."""
    overdue_since: float = inf
    """The same, of the requests whose first byte is overdue."""
    idle_since: float = inf
    """When the first of the last IDLE_READINGS readings was taken, all of which show no request; inf if one does."""

    def silent_s(self, now: float) -> float:
        """Time (s) for which a waiting request has seen no progress on the endpoint."""
        return max(0.0, now - max(self.progressed_at, self.waiting_since))


class ProgressTracker:
    """Collects the sample of one endpoint. Each waiting request reports itself between two samples."""

    __slots__ = ("_has_run", "_idle_readings", "_overdue_since", "_waiting_since", "progressed_at")

    def __init__(self) -> None:
        self.progressed_at = -inf
        """When a byte of a response last arrived (s)."""
        self._waiting_since = inf
        self._overdue_since = inf
        self._idle_readings: tuple[float, ...] = ()
        """Times of the last readings, as long as they show no request."""
        self._has_run = False
        """Whether a reading has ever shown a request; a gauge that is always zero proves nothing."""

    def waits(self, since: float, expected_s: float, now: float) -> None:
        """Record that a request waits for its first byte.

        Args:
            since: when it was sent (s).
            expected_s: expected time (s) from then to its first byte.
            now: the same clock.
        """
        if since < self._waiting_since:
            self._waiting_since = since
        if since < self._overdue_since and now - since >= expected_s * DUE_FACTOR:
            self._overdue_since = since

    def read_load(self, requests: float, now: float) -> None:
        """Record a reading of the engine's metrics: the requests that it runs and queues at `now` (s)."""
        if requests > 0:
            self._has_run, self._idle_readings = True, ()
        elif self._has_run:
            self._idle_readings = (*self._idle_readings, now)[-IDLE_READINGS:]

    def take_sample(self) -> ProgressSample:
        """Return the sample, and start the next one."""
        readings = self._idle_readings
        idle_since = readings[0] if len(readings) == IDLE_READINGS else inf
        sample = ProgressSample(self.progressed_at, self._waiting_since, self._overdue_since, idle_since)
        self._waiting_since = self._overdue_since = inf
        return sample


def stall_of(
    sample: ProgressSample, siblings: Iterable[ProgressSample], now: float, suspect_after_s: float
) -> Stall | None:
    """Decide whether an endpoint makes no progress while a sibling could; None if it is not suspect.

    Args:
        sample: of the endpoint.
        siblings: of the other endpoints of a pool that may take requests. If none of them progresses, the cause is
            probably a shared one, and the endpoint is not blamed for it.
        now: the clock of the samples (s).
        suspect_after_s: silence (s) that makes an endpoint suspect; 0 never does.
    """
    if suspect_after_s <= 0.0 or sample.overdue_since == inf:
        return None
    since = max(sample.progressed_at, sample.overdue_since)
    if since <= sample.idle_since < inf:
        detail = f"{IDLE_READINGS} readings show no request; one has waited for {now - sample.overdue_since:.1f} s"
        stall = Stall(StallReason.IDLE, detail)
    elif now - since >= suspect_after_s:
        stall = Stall(StallReason.SILENT, f"a request is overdue, and nothing has arrived for {now - since:.1f} s")
    else:
        return None
    patience_s = suspect_after_s * SIBLING_SHARE
    return stall if any(sibling.silent_s(now) < patience_s for sibling in siblings) else None
