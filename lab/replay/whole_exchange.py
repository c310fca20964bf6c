"""The answer to a request whose response is one JSON object and not streamed."""

from __future__ import annotations

from collections.abc import Callable

from lab.replay.response_exchange import ResponseExchange

MAX_BODY_BYTES = 16 * 1024 * 1024


class WholeExchange(ResponseExchange):
    """Listens to the answer to one such request."""

    __slots__ = ("_body", "_missing_from")

    def __init__(self, clock: Callable[[], float], missing_from: Callable[[bytes], str]) -> None:
        """An exchange that has not begun.

        Args:
            clock: gives the time (s) that is noted.
            missing_from: what a body lacks; empty where it lacks nothing.
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
