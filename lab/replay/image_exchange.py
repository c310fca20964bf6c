"""The answer to a request for an image: one JSON object, which is not streamed."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from lab.replay.response_exchange import ResponseExchange

MAX_BODY_BYTES = 16 * 1024 * 1024


class _Images(msgspec.Struct):
    images: list[str]
    """Base64."""


_decoder = msgspec.json.Decoder(_Images)


class ImageExchange(ResponseExchange):
    """Listens to the answer to one request for an image."""

    __slots__ = ("_body",)

    def __init__(self, clock: Callable[[], float]) -> None:
        """Args: `clock` gives the time (s) that is noted."""
        super().__init__(clock)
        self._body = bytearray()

    def _take(self, piece: bytes) -> None:
        self._body += piece
        if len(self._body) > MAX_BODY_BYTES:
            self.give_up("the answer is too long")

    def _missing(self) -> str:
        try:
            images = _decoder.decode(self._body).images
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return "the answer is not that of a text-to-image service"
        self.whole = bool(images) and all(images)
        return "" if self.whole else "the answer has no image"
