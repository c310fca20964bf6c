"""Bounds retries to a share of recent requests, plus a constant rate for agents with few requests.

If all requests fail, retries only multiply the load on the remaining capacity. After the retry budgets of Finagle
(https://twitter.github.io/finagle/docs/com/twitter/finagle/service/RetryBudget.html) and linkerd: 20 % of the requests
in the last ten seconds, plus ten per second.
"""

from __future__ import annotations

from typing import Final

SHARE: Final = 0.2
"""Maximum number of retries per request, in addition to MIN_PER_S."""

MIN_PER_S: Final = 10.0
"""Retries per second that are always allowed."""

WINDOW_S: Final = 10.0
"""Length of the window of recent requests, in seconds."""


class RetryBudget:
    """Requests and retries of the current half window and of the one before it."""

    def __init__(self, now: float) -> None:
        """Create an empty budget. `now` is monotonic time in seconds, in all methods."""
        self._began_at = now
        self._requests = self._requests_before = 0
        self._retries = self._retries_before = 0

    def request(self, now: float) -> None:
        """Count a request."""
        if now - self._began_at >= WINDOW_S / 2:
            self._roll(now)
        self._requests += 1

    def withdraw(self, now: float) -> bool:
        """Count one more retry if it is allowed; return whether it is allowed."""
        if not self.allows_one(now):
            return False
        self._retries += 1
        return True

    def allows_one(self, now: float) -> bool:
        """Whether one more retry is allowed."""
        if now - self._began_at >= WINDOW_S / 2:
            self._roll(now)
        allowed = MIN_PER_S * WINDOW_S + SHARE * (self._requests + self._requests_before)
        return self._retries + self._retries_before + 1 <= allowed

    def more_in_s(self, now: float) -> float:
        """Return the time (s) until the window advances and more retries are allowed."""
        return max(0.0, self._began_at + WINDOW_S / 2 - now)

    def _roll(self, now: float) -> None:
        recent = now - self._began_at < WINDOW_S
        self._requests_before = self._requests if recent else 0
        self._retries_before = self._retries if recent else 0
        self._requests = self._retries = 0
        self._began_at = now
