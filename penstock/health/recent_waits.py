"""What the recent waits of an endpoint explain: how long, for which prompts, and how many at once."""

from __future__ import annotations

from typing import Final

WINDOW_RESPONSES: Final = 32
"""The longest waits of the last one to two times this number of responses are remembered."""


class LongestWaits:
    """The longest of an endpoint's recent waits."""

    def __init__(self) -> None:
        self.count = 0
        """Number of waits."""
        self._now_s = self._before_s = 0.0
        self._largest = (0.0, 0.0)
        """The largest recent prefill (s, reference), and its wait (s)."""
        self._largest_before = (0.0, 0.0)
        self._streams = self._streams_before = 1
        """The largest recent number of requests at once."""

    @property
    def longest_s(self) -> float:
        """The longest wait (s) of the last WINDOW_RESPONSES to twice that number; 0 before the first."""
        return max(self._now_s, self._before_s)

    def add(self, wait_s: float, prefill_s: float = 0.0, streams: int = 1) -> None:
        """Add a wait (s), the prefill (s, reference) that it contained, and the number of requests at once."""
        if self.count and self.count % WINDOW_RESPONSES == 0:
            self._before_s, self._now_s = self._now_s, 0.0
            self._largest_before, self._largest = self._largest, (0.0, 0.0)
            self._streams_before, self._streams = self._streams, 1
        self.count += 1
        if wait_s > self._now_s:
            self._now_s = wait_s
        if prefill_s > self._largest[0]:
            self._largest = prefill_s, wait_s
        self._streams = max(self._streams, streams)

    def crowding(self, streams: int) -> float:
        """How many times longer a wait may be than recent ones, because more requests run at once.

        An engine may run them one after the other, whatever its entry states as its slots.
        """
        return max(1.0, streams / max(self._streams, self._streams_before))

    def explained_s(self, prefill_s: float) -> float:
        """The wait (s) that the largest recent prefill explains of a larger one (s, reference); 0 for a smaller one.

        A prefill takes at most as many times longer as it is larger.
        """
        largest_s, wait_s = max(self._largest, self._largest_before)
        return wait_s * prefill_s / largest_s if prefill_s > largest_s > 0.0 else 0.0
