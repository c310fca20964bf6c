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
from regional_agent.http.waiting_request import WaitingRequest
from regional_agent.objects.known_objects import KnownObjects

Serve = Callable[[Request, ClientConnection, Refusal | None], Handler | None]
"""Handles a request, or responds with its refusal."""

log = structlog.get_logger()


Regions = Callable[[], Collection[str]]
"""Returns the other regions that may be asked for the objects of a request."""


def look_up_objects(
    objects: KnownObjects, request: Request, connection: ClientConnection, sought: SoughtObjects, now: float
) -> WaitingRequest | None:
    """The handler of a request for an object that only another agent may have recorded; None for other requests.

    Args:
        now: by the agent's clock (s).
    """
    unknown = objects.unknown(sought.tenant, sought.object_ids, now)
    regions = sought.regions() if unknown else ()
    if not unknown or not objects.can_seek(regions):
        return None
    look_up = objects.seek(sought.tenant, unknown, now, regions)
    return _wait_for(look_up, request, connection, sought.serve)


class SoughtObjects(NamedTuple):
    """The objects that a request names."""

    tenant: str
    """The owner of the request."""
    object_ids: Sequence[str]
    serve: Serve
    """Handles the request afterwards, whether or not the objects were found, or refuses it."""
    regions: Regions = tuple


def _wait_for(look_up: Awaitable[None], request: Request, connection: ClientConnection, serve: Serve) -> WaitingRequest:
    async def run() -> None:
        try:
            await look_up
            connection.hand_over(request, serve(request, connection, None))
        except Exception:
            log.exception("handling a request for an object failed")
            connection.abort()

    def stop() -> None:
        task.cancel()

    def refuse(refusal: Refusal) -> None:
        stop()
        serve(request, connection, refusal)

    task = asyncio.create_task(run(), name="object lookup")
    return WaitingRequest(stop, refuse)
