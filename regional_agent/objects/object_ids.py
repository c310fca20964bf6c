"""Records the locations of objects by the identifiers in the responses that create them."""

from __future__ import annotations

from penstock.routes.object_id_scanner import ObjectIdScanner
from penstock.routes.object_locations import ObjectLocation
from regional_agent.objects.known_objects import KnownObjects
from regional_agent.routing.attempt import Attempt
from regional_agent.routing.request_context import RequestContext
from regional_agent.upstream.response_head import ResponseHead


class ObjectIdWatcher:
    """Watches one response for the identifier of the object that it creates."""

    __slots__ = ("_location", "_objects", "_scanner", "_tenant")

    def __init__(self, scanner: ObjectIdScanner, location: ObjectLocation, tenant: str, objects: KnownObjects) -> None:
        """Watch for an object of `tenant` at `location`, which is added to `objects`."""
        self._scanner = scanner
        self._location = location
        self._tenant = tenant
        self._objects = objects

    def feed(self, chunk: bytes, now: float) -> bool:
        """Scan a part of the response; returns whether the next part must be scanned too. `now` in s, monotonic."""
        object_id = self._scanner.feed(chunk)
        if object_id is not None:
            self._objects.created(self._tenant, object_id, self._location, now)
            return False
        return not self._scanner.gave_up


def watch_object_id(
    context: RequestContext, attempt: Attempt, head: ResponseHead, objects: KnownObjects
) -> ObjectIdWatcher | None:
    """The watcher of a response; None if the response creates no object, or has a Content-Encoding."""
    route = context.request.route
    if route is None or not route.object_id or not route.creates_objects or not 200 <= head.status < 300:
        return None
    if head.by_name.get(b"content-encoding", b"identity") != b"identity":
        return None
    is_event_stream = head.by_name.get(b"content-type", b"").lower().startswith(b"text/event-stream")
    scanner = ObjectIdScanner(route.object_id, is_event_stream=is_event_stream)
    location = ObjectLocation(context.model, attempt.region, attempt.endpoint_name)
    return ObjectIdWatcher(scanner, location, context.facts.tenant, objects)


def keep_client_object(context: RequestContext, attempt: Attempt, objects: KnownObjects, now: float) -> None:
    """Record the endpoint that accepted a request as the location of the object whose identifier the client chose.

    Args:
        now: monotonic (s).
    """
    location = ObjectLocation(context.model, attempt.region, attempt.endpoint_name)
    objects.created(context.facts.tenant, context.client_object, location, now)
