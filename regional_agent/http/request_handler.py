"""What a client connection reports to the part of the agent that handles a request."""

from __future__ import annotations

from typing import Protocol

from penstock.routing.reasons import Refusal


class Handler(Protocol):
    """Handles one request over time, and is informed of events on the client connection."""

    def on_client_gone(self) -> None:
        """Handle the disconnect of the client."""

    def on_client_writable(self, writable: bool) -> None:
        """Stop writing when the client's write buffer is above its high-water mark; continue once it has drained."""

    def on_request_body(self, chunk: bytes) -> None:
        """Process a further part of a body that was incomplete when its request was handled."""

    def on_request_end(self) -> None:
        """Process the end of a body that was incomplete when its request was handled."""

    def on_request_refused(self, refusal: Refusal) -> None:
        """Refuse a request whose incomplete body is malformed, too large or too slow, or whose kept body has to make
        room for the body of another tenant."""

    def drop_body(self) -> bool:
        """Drop the kept body if the target has received it; returns whether it was dropped."""


class TunnelReceiver(Protocol):
    """Receives the client's bytes after a protocol upgrade."""

    def on_client_bytes(self, data: bytes) -> None: ...
    def on_client_eof(self) -> None: ...
