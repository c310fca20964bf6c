"""Holds a request until the locations of the objects that the request names have been read from the region's Redis, or
have been asked for in other regions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from regional_agent.http.client_connection import ClientConnection
from regional_agent.http.messages import Request
from regional_agent.http.waiting_request import Serve, WaitingRequest, serve_after
from regional_agent.objects.known_objects import KnownObjects

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
    return serve_after(look_up, request, connection, sought.serve)


class SoughtObjects(NamedTuple):
    """The objects that a request names."""

    tenant: str
    """The owner of the request."""
    object_ids: Sequence[str]
    serve: Serve
    """Handles the request afterwards, whether or not the objects were found, or refuses it."""
    regions: Regions = tuple
