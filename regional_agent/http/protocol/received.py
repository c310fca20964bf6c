"""What a client has sent on a connection, as its parser returns it."""

from __future__ import annotations

from typing import Final

from penstock.routing.reasons import Refusal
from regional_agent.http.messages import Request

SMALL_BODY_BYTES: Final = 64 * 1024
"""Maximum size of a small body, which the parser collects. A request with a larger body is announced by its head and
may be handled before the body is complete, and its body counts towards `Limits.max_kept_bytes`."""


class HeadReceived:
    """The head of a request whose body is, or may be, larger than SMALL_BODY_BYTES, or waits for `100 Continue`."""

    def __init__(self, request: Request) -> None:
        self.request = request


class PartReceived:
    """A part of the body of such a request, after the first SMALL_BODY_BYTES, that no field of the request counts."""

    def __init__(self, request: Request, chunk: bytes) -> None:
        self.request = request
        self.chunk = chunk


class RequestRefused:
    """A refusal that ends a connection, since the start of the next request is unknown."""

    def __init__(self, refusal: Refusal, request: Request | None) -> None:
        self.refusal = refusal
        self.request = request
        """The refused request, perhaps without all of its head; None if the bytes are no request."""


Received = Request | HeadReceived | PartReceived | RequestRefused
"""A `Request` is complete; a `RequestRefused` was malformed."""
