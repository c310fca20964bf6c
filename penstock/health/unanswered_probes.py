"""Decides whether the requests on an endpoint explain that its server answers no probe.

A server that runs one request at a time answers probes between two requests only. Its silence is no failure while a
request runs there, for as long as the endpoint's own history explains: twice its longest recent response, and at least
`HealthCheck.busy_s`. Whether a server answers probes while it runs requests is learned from the probes.
"""

from __future__ import annotations

from math import inf
from typing import Final

HISTORY_FACTOR: Final = 2.0
"""A response may take this multiple of the longest recent one."""

PROGRESS_S: Final = 10.0
"""Time (s) after a byte of a response for which late probes do not count: the server works."""

WEIGHT: Final = 0.1
"""Weight (0-1) of one probe in `answers`: seven answers during requests show a server that runs them concurrently."""

ANSWERS_FROM: Final = 0.5
"""Share (0-1) of answered probes from which a server counts as one that answers probes while it runs requests."""


class Occupation:
    """What is known about one endpoint's requests and their effect on its probes. Times are monotonic, in seconds."""

    __slots__ = ("_abandoned_at", "_answered_at", "answers", "busy_since", "is_engaged")

    def __init__(self) -> None:
        self.busy_since = inf
        """Since when requests run on the endpoint without interruption; inf if none runs."""
        self._abandoned_at = -inf
        """When a request ended that the server may still run."""
        self._answered_at = -inf
        """When a probe was last answered."""
        self.answers = 0.0
        """Share (0-1) of recent probes that were answered while a request ran."""
        self.is_engaged = False
        """Whether the last probe was late or refused, or was answered with the state busy."""

    def tick(self, in_flight: int, now: float) -> None:
        """Apply the number of requests on the endpoint, from all agents of the region. Called a few times a second."""
        if in_flight <= 0:
            self.busy_since = inf
        elif self.busy_since == inf:
            self.busy_since = now

    def abandoned(self, now: float) -> None:
        """Record that the agent gave up a request, which a server that runs one at a time may not notice."""
        self._abandoned_at = now

    def answered(self, now: float, *, busy: bool, while_running: bool) -> None:
        """Record an answer to a probe.

        Args:
            busy: the answer was that the endpoint is busy.
            while_running: one request ran on the endpoint from the beginning of the probe to its answer.
        """
        self._answered_at = now
        self.is_engaged = busy
        if while_running:
            # A server that is busy with one request runs no second one.
            self.answers += (float(not busy) - self.answers) * WEIGHT

    def not_answered(self, *, explained: bool) -> None:
        """Record that a probe was late or refused; `explained`: requests explain that."""
        self.is_engaged = True
        if explained:
            self.answers -= self.answers * WEIGHT

    def is_serial(self, busy_s: float) -> bool:
        """Whether the server may be one that runs one request at a time; `busy_s`: see `HealthCheck`."""
        return busy_s > 0.0 and self.answers < ANSWERS_FROM

    def explains_silence(
        self, in_flight: int, progressed_at: float, busy_s: float, longest_s: float, now: float, *, refused: bool
    ) -> bool:
        """Whether requests explain that a probe is late or refused.

        Args:
            in_flight: requests on the endpoint.
            progressed_at: when a byte of a response last arrived.
            busy_s: see `HealthCheck`.
            longest_s: duration (s) of the longest recent response.
            now: the present time (s).
            refused: the connection failed; a server that runs requests concurrently accepts connections.
        """
        is_abandoned = not refused and self._abandoned_at > self._answered_at
        if in_flight <= 0 and not is_abandoned:
            return False
        if in_flight > 0 and not refused and now - progressed_at < PROGRESS_S:
            return True
        if not self.is_serial(busy_s):
            return False
        since = self.busy_since if self.busy_since < inf else now
        if is_abandoned:
            since = min(since, self._abandoned_at)
        return now - max(since, progressed_at, self._answered_at) < max(busy_s, HISTORY_FACTOR * longest_s)
