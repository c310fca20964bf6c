"""The locations of objects that this agent has seen created, and those that the region's other agents have stored."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.routes.object_locations import ObjectLocation, ObjectLocations
from regional_agent.objects.shared_objects import SharedObjects


class KnownObjects:
    """Where objects are."""

    def __init__(self, shared: SharedObjects | None = None) -> None:
        """Create an empty map; `shared` None is that of the only agent of a region."""
        self.here = ObjectLocations()
        """The locations in the memory of this agent."""
        self._shared = shared

    def created(self, tenant: str, object_id: str, location: ObjectLocation, now: float) -> None:
        """Remember an object that was created at `now` (s, monotonic), and share its location."""
        if self.here.find(tenant, object_id, now) == location:
            return
        self.here.learn(tenant, object_id, location, now)
        if self._shared is not None:
            self._shared.publish(tenant, object_id, location)

    def find(self, tenant: str, object_id: str, now: float) -> ObjectLocation | None:
        """The location of an object of a tenant, as far as this agent's memory has it. `now` in s, monotonic."""
        return self.here.find(tenant, object_id, now)

    def unknown(self, tenant: str, object_ids: Iterable[str], now: float) -> list[str]:
        """Those of a tenant's objects that are not in memory and may have been stored by another agent."""
        if self._shared is None or not self._shared.up:
            return []
        return [object_id for object_id in object_ids if self.here.find(tenant, object_id, now) is None]

    async def seek(self, tenant: str, object_id: str, now: float) -> None:
        """Read the location of an object that another agent may have stored into memory. `now` in s, monotonic."""
        location = None if self._shared is None else await self._shared.find(tenant, object_id)
        if location is not None:
            self.here.learn(tenant, object_id, location, now)

    def status(self) -> dict[str, object]:
        """For the status page."""
        return {"count": len(self.here), "shared": None if self._shared is None else self._shared.status()}
