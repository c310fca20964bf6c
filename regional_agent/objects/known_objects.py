"""Locations of the objects created through this agent, and of those that other agents and regions know.

The locations are recorded by the identifiers in the responses that create the objects.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from penstock.routes.object_locations import ObjectLocation, ObjectLocations
from regional_agent.objects.region_objects import RegionObjects
from regional_agent.objects.shared_objects import SharedObjects
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


class KnownObjects:
    """The locations of objects, in the memory of this agent, in the Redis of the region, and in other regions."""

    def __init__(self, shared: SharedObjects | None = None, elsewhere: RegionObjects | None = None) -> None:
        """Create an empty map.

        Args:
            shared: None for the only agent of a region, which shares no locations.
            elsewhere: asks other regions; None asks none.
        """
        self.here = ObjectLocations()
        """The locations in the memory of this agent."""
        self._shared = shared
        self._elsewhere = elsewhere

    def created(self, tenant: str, object_id: str, location: ObjectLocation, now: float) -> None:
        """Record the location of an object that was created at `now` (s, monotonic), and share the location."""
        if self.find(tenant, object_id, now) == location:
            return
        self.here.learn(tenant, object_id, location, now)
        if self._shared is not None:
            self._shared.publish(tenant, object_id, location)

    def find(self, tenant: str, object_id: str, now: float) -> ObjectLocation | None:
        """The location of a tenant's object in the memory of this agent, or None. `now` in s, monotonic.

        Shares the location again from time to time: other agents forget an object that is used only here.
        """
        location = self.here.find(tenant, object_id, now)
        if location is not None and self._shared is not None and self.here.share_again(tenant, object_id, now):
            self._shared.publish(tenant, object_id, location)
        return location

    def unknown(self, tenant: str, object_ids: Iterable[str], now: float) -> list[str]:
        """The identifiers of a tenant's objects that are not in memory. `now` in s, monotonic."""
        return [object_id for object_id in object_ids if self.here.find(tenant, object_id, now) is None]

    def can_seek(self, regions: Collection[str]) -> bool:
        """Whether an object that is not in memory may be found: in Redis, or in one of the other `regions`."""
        return (self._shared is not None and self._shared.entries.up) or (
            self._elsewhere is not None and len(regions) > 0
        )

    async def seek(self, tenant: str, object_ids: Iterable[str], now: float, regions: Collection[str] = ()) -> None:
        """Read the locations of objects that another agent has stored into memory.

        Args:
            now: monotonic (s).
            regions: other regions that are asked for objects which this region does not know.
        """
        for object_id in object_ids:
            location = None if self._shared is None else await self._shared.find(tenant, object_id)
            if location is not None:
                self.here.learn(tenant, object_id, location, now)
            elif self._elsewhere is not None and regions:
                location = await self._elsewhere.find(tenant, object_id, regions)
                if location is not None:
                    self.created(tenant, object_id, location, now)

    def status(self) -> dict[str, object]:
        """The state for the status page: number of locations in memory, and state of the exchange with Redis."""
        return {"count": len(self.here), "shared": None if self._shared is None else self._shared.status()}
