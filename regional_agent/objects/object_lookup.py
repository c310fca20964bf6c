"""Holds a request until the locations of the objects that the request names have been read from the region's Redis, or
have been asked for in other regions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import NamedTuple

import structlog

from penstock.routing.reasons import Refusal
from regional_agent.http.client_connection import ClientConnection
from regional_agent.http.messages import Request
from regional_agent.http.request_handler import Handler
from regional_agent.objects.known_objects import KnownObjects

Serve = Callable[[Request, ClientConnection, Refusal | None], Handler | None]
"""Handles a request, or responds with its refusal."""

log = structlog.get_logger()


Regions = Callable[[], Collection[str]]
"""Returns the other regions that may be asked for the objects of a request."""


def look_up_objects(
    objects: KnownObjects, request: Request, connection: ClientConnection, sought: SoughtObjects, now: float
) -> ObjectLookup | None:
    """The handler of a request for an object that only another agent may have recorded; None for other requests.

    Args:
        now: by the agent's clock (s).
    """
    unknown = objects.unknown(sought.tenant, sought.object_ids, now)
    regions = sought.regions() if unknown else ()
    if not unknown or not objects.can_seek(regions):
        return None
    return ObjectLookup(request, connection, sought.serve, objects.seek(sought.tenant, unknown, now, regions))


class SoughtObjects(NamedTuple):
    """The objects that a request names."""

    tenant: str
    """The owner of the request."""
    object_ids: Sequence[str]
    serve: Serve
    """Handles the request afterwards, whether or not the objects were found, or refuses it."""
    regions: Regions = tuple


class ObjectLookup:
    """The handler of a request while its object is looked up."""

    def __init__(self, request: Request, connection: ClientConnection, serve: Serve, look_up: Awaitable[None]) -> None:
        """Start `look_up`, and serve the request afterwards."""
        self._request = request
        self._connection = connection
        self._serve = serve
        self._task = asyncio.create_task(self._run(look_up), name="object lookup")

    async def _run(self, look_up: Awaitable[None]) -> None:
        request, connection = self._request, self._connection
        try:
            await look_up
            connection.hand_over(request, self._serve(request, connection, None))
        except Exception:
            log.exception("handling a request for an object failed")
            connection.abort()

    def on_client_gone(self) -> None:
        """Cancel the look-up."""
        self._task.cancel()

    def on_client_writable(self, writable: bool) -> None:
        """Do nothing: no part of a response has been written."""

    def on_request_body(self, chunk: bytes) -> None:
        """Not called: only complete requests wait for a look-up."""

    def on_request_end(self) -> None:
        """Not called: only complete requests wait for a look-up."""

    def on_request_refused(self, refusal: Refusal) -> None:
        """Cancel the look-up and refuse the request: another tenant needs the memory of its body."""
        self._task.cancel()
        self._serve(self._request, self._connection, refusal)

    def drop_body(self) -> bool:
        """Return False: the request has not been sent, so its body is still needed."""
        return False
