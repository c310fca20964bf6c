"""Records the locations of objects by the identifiers in the responses that create them."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.routes.object_locations import ObjectLocation
from regional_agent.objects.known_objects import KnownObjects
from regional_agent.requests.request_context import RequestContext
from regional_agent.routing.attempt import Attempt


def keep_created_object(
    context: RequestContext, attempt: Attempt, object_id: str, objects: KnownObjects, now: float
) -> None:
    """Record the location of an object that a response creates.

    Args:
        object_id: the identifier in the response.
        now: monotonic (s).
    """
    location = ObjectLocation(context.model, attempt.region, attempt.endpoint_name)
    objects.created(context.facts.tenant, object_id, location, now)


def keep_items(
    context: RequestContext, attempt: Attempt, item_ids: Iterable[str], objects: KnownObjects, now: float
) -> None:
    """Record the locations of the items of a response, which later requests may name; arguments as above."""
    for item_id in item_ids:
        keep_created_object(context, attempt, item_id, objects, now)


def keep_client_object(context: RequestContext, attempt: Attempt, objects: KnownObjects, now: float) -> None:
    """Record the endpoint that accepted a request as the location of the object whose identifier the client chose.

    Args:
        now: monotonic (s).
    """
    location = ObjectLocation(context.model, attempt.region, attempt.endpoint_name)
    objects.created(context.facts.tenant, context.client_object, location, now)
