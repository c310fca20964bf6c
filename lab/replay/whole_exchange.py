"""Receives a response that is one JSON object and not streamed."""

from __future__ import annotations

from collections.abc import Callable

from lab.replay.response_exchange import ResponseExchange

MAX_BODY_BYTES = 16 * 1024 * 1024


class WholeExchange(ResponseExchange):
    """Receives a response that is not streamed."""

    __slots__ = ("_body", "_missing_from")

    def __init__(self, clock: Callable[[], float], missing_from: Callable[[bytes], str]) -> None:
        """Create an exchange.

        Args:
            clock: returns the time (s) to record.
            missing_from: returns what a body lacks; empty if it lacks nothing.
        """
        super().__init__(clock)
        self._body = bytearray()
        self._missing_from = missing_from

    def _take(self, piece: bytes) -> None:
        self._body += piece
        if len(self._body) > MAX_BODY_BYTES:
            self.give_up("the answer is too long")

    def _missing(self) -> str:
        missing = self._missing_from(bytes(self._body))
        self.whole = not missing
        return missing
