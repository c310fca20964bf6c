"""Handlers of complete requests, which need no further part of a body."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from penstock.routing.reasons import Refusal
from regional_agent.http.client_connection import ClientConnection
from regional_agent.http.messages import Request
from regional_agent.http.request_handler import Handler

Serve = Callable[[Request, ClientConnection, Refusal | None], Handler | None]
"""Handles a request, or responds with its refusal."""

log = structlog.get_logger()


class CompleteRequest:
    """The part of a handler that a complete request needs not."""

    def on_client_writable(self, writable: bool) -> None:
        """Do nothing: no part of the response has been written."""

    def on_request_body(self, chunk: bytes) -> None:
        """Not called: the request is complete."""

    def on_request_end(self) -> None:
        """Not called: the request is complete."""

    def drop_body(self) -> bool:
        """Return False: the request may yet be sent."""
        return False


class WaitingRequest(CompleteRequest):
    """Handles a request that waits for a look-up, and of whose response no part has been written."""

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

    def on_request_refused(self, refusal: Refusal) -> None:
        """End the wait, and refuse the request."""
        self._on_refused(refusal)


def serve_after(
    look_up: Awaitable[None], request: Request, connection: ClientConnection, serve: Serve
) -> WaitingRequest:
    """The handler of a complete request that is served after a look-up."""

    async def run() -> None:
        try:
            await look_up
            connection.hand_over(request, serve(request, connection, None))
        except Exception:
            log.exception("handling a request after a look-up failed")
            connection.abort()

    def stop() -> None:
        task.cancel()

    def refuse(refusal: Refusal) -> None:
        stop()
        serve(request, connection, refusal)

    task = asyncio.create_task(run(), name="look-up before a request is served")
    return WaitingRequest(stop, refuse)
