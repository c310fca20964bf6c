"""The object that a request is for, or that it names: its location as this agent knows it."""

from __future__ import annotations

from typing import Final

from penstock.routes.object_locations import ObjectLocation
from penstock.routes.route import Route
from penstock.routes.route_reader import RouteReader
from penstock.routing.reasons import Reason, Refusal
from regional_agent.http.messages import Request
from regional_agent.objects.known_objects import KnownObjects
from regional_agent.requests.request_context import RequestContext
from regional_agent.requests.route_fields import has_value, is_no_identifier, items_in, object_in

NO_OBJECT: Final = "no object of this tenant with this identifier was created through this region's agents"


def is_for_object(request: Request, reader: RouteReader) -> bool:
    """Whether a request is for an existing object. A query parameter that names the object is optional."""
    place = reader.object_parameter
    return place != "" and (not place.startswith("?") or object_in(request, place) is not None)


def location_at(objects: KnownObjects, request: Request, place: str, tenant: str, now: float) -> ObjectLocation | None:
    """Return the location of the object whose identifier a request has at `place`; None if it is unknown."""
    object_id = object_in(request, place)
    return None if object_id is None else objects.find(tenant, object_id, now)


def prefer_object(objects: KnownObjects, context: RequestContext, now: float) -> None:
    """Set the location of the object that the client named."""
    request, route, tenant = context.request, context.request.route, context.facts.tenant
    assert route is not None
    context.client_object = object_in(request, route.client_object) or ""
    context.object_location = location_at(objects, request, route.client_object, tenant, now)


def refuse_foreign_objects(request: Request, route: Route) -> Refusal | None:
    """Return the refusal of a request that names an object which no route creates; None if it names none."""
    for pointer in route.foreign_objects:
        if has_value(request, pointer):
            return Refusal(Reason.NOT_FOUND, f"{pointer}: {NO_OBJECT}")
    return None


def earlier_object(
    objects: KnownObjects, request: Request, route: Route, tenant: str, now: float
) -> ObjectLocation | Refusal | None:
    """Return the location of the objects from which a request continues: a response, and items of responses.

    None if the request names none. An identifier that is unknown is refused: it may be that of another tenant, and
    engines check no tenant.
    """
    object_id = object_in(request, route.previous_object)
    if object_id is None and is_no_identifier(request, route.previous_object):
        return Refusal(Reason.BAD_REQUEST, f"the value at {route.previous_object} is not a string")
    named = [] if object_id is None else [object_id]
    for pointer in route.cost.prompt:
        items = items_in(request, pointer)
        if items is None:
            return Refusal(Reason.NOT_FOUND, f"{pointer} has references to items that are not clear; send the items")
        named += items
    found: ObjectLocation | None = None
    for name in named:
        location = objects.find(tenant, name, now)
        if location is None:
            return Refusal(Reason.NOT_FOUND, NO_OBJECT)
        if found is not None and location[1:] != found[1:]:
            return Refusal(Reason.NOT_FOUND, "the response and the items are at different endpoints; send the items")
        found = location
    return found
