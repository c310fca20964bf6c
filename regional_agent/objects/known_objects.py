"""Locations of the objects created through this agent, and of those that other agents of the region have stored."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.routes.object_locations import ObjectLocation, ObjectLocations
from regional_agent.objects.shared_objects import SharedObjects


class KnownObjects:
    """The locations of objects, in the memory of this agent and in the Redis of the region."""

    def __init__(self, shared: SharedObjects | None = None) -> None:
        """Create an empty map; `shared` is None for the only agent of a region, which shares no locations."""
        self.here = ObjectLocations()
        """The locations in the memory of this agent."""
        self._shared = shared

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
        """The identifiers of a tenant's objects that are not in memory, and that another agent may have stored.

        Empty if the agent shares no locations, and while Redis is unreachable.
        """
        if self._shared is None or not self._shared.up:
            return []
        return [object_id for object_id in object_ids if self.here.find(tenant, object_id, now) is None]

    async def seek(self, tenant: str, object_ids: Iterable[str], now: float) -> None:
        """Read the locations of objects that another agent has stored into memory. `now` in s, monotonic."""
        for object_id in object_ids:
            location = None if self._shared is None else await self._shared.find(tenant, object_id)
            if location is not None:
                self.here.learn(tenant, object_id, location, now)

    def status(self) -> dict[str, object]:
        """The state for the status page: number of locations in memory, and state of the exchange with Redis."""
        return {"count": len(self.here), "shared": None if self._shared is None else self._shared.status()}
