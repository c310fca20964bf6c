"""The handler of a complete request that waits: for a look-up, or for the response of another request."""

from __future__ import annotations

from collections.abc import Callable

from penstock.routing.reasons import Refusal


class WaitingRequest:
    """Handles a request of whose response no part has been written."""

    def __init__(self, on_gone: Callable[[], None], on_refused: Callable[[Refusal], None]) -> None:
        """Create the handler.

        Args:
            on_gone: ends the wait, because the client has disconnected.
            on_refused: ends the wait and refuses the request: another tenant needs the memory of its body.
        """
        self._on_gone = on_gone
        self._on_refused = on_refused

    def on_client_gone(self) -> None:
        """End the wait."""
        self._on_gone()

    def on_client_writable(self, writable: bool) -> None:
        """Do nothing: no part of the response has been written."""

    def on_request_body(self, chunk: bytes) -> None:
        """Not called: the request is complete."""

    def on_request_end(self) -> None:
        """Not called: the request is complete."""

    def on_request_refused(self, refusal: Refusal) -> None:
        """End the wait, and refuse the request."""
        self._on_refused(refusal)

    def drop_body(self) -> bool:
        """Return False: the request may yet be sent."""
        return False
