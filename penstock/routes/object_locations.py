"""The endpoints that created objects, so that later requests for an object are sent to the endpoint that has it.

An object belongs to the tenant whose request created it: a lookup needs the tenant and the identifier.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

MAX_OBJECTS: Final = 100_000
"""Maximum number of objects, of all tenants together: about 30 MB with identifiers of OpenAI's length."""

MAX_OBJECT_ID_CHARS: Final = 256
"""Maximum length (characters) of an identifier; an object with a longer identifier is not stored."""

OBJECT_LIFETIME_S: Final = 24 * 3600.0
"""Time (s) after the last request for an object, or after its creation, for which its location is stored."""

SHARE_AGAIN_S: Final = 3600.0
"""Time (s) after which the location of an object in use is shared again, so that the other agents do not forget it."""


class ObjectLocation(NamedTuple):
    """The model, region and endpoint of an object."""

    model: str
    """The model that the endpoint served for the request that created the object."""
    region: str
    endpoint: str
    """Name of the endpoint; empty if the object is in another region, whose agent stores the name."""


class _Entry(NamedTuple):
    location: ObjectLocation
    used_at: float
    shared_at: float


class ObjectLocations:
    """The locations of objects that one agent stores, by tenant and identifier."""

    __slots__ = ("_by_tenant", "_max_objects", "_size")

    def __init__(self, max_objects: int = MAX_OBJECTS) -> None:
        """Create an empty map; `max_objects` is its capacity."""
        self._by_tenant: dict[str, OrderedDict[str, _Entry]] = {}
        """The entries of each tenant, the least recently used first."""
        self._max_objects = max_objects
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def learn(self, tenant: str, object_id: str, location: ObjectLocation, now: float) -> None:
        """Store the location of an object that was created at `now` (s, monotonic); replaces an entry of the same name.

        A full map evicts the least recently used object of the tenant with the most objects, so a tenant that creates
        many objects evicts its own objects.
        """
        if not 0 < len(object_id) <= MAX_OBJECT_ID_CHARS:
            return
        self._remove(tenant, object_id)
        if self._size >= self._max_objects:
            self._evict(now)
        self._by_tenant.setdefault(tenant, OrderedDict())[object_id] = _Entry(location, now, now)
        self._size += 1

    def find(self, tenant: str, object_id: str, now: float) -> ObjectLocation | None:
        """The location of an object of a tenant; None if it is unknown or was not used for OBJECT_LIFETIME_S."""
        entries = self._by_tenant.get(tenant)
        entry = entries.get(object_id) if entries is not None else None
        if entries is None or entry is None:
            return None
        if now - entry.used_at > OBJECT_LIFETIME_S:
            self._remove(tenant, object_id)
            return None
        entries[object_id] = _Entry(entry.location, now, entry.shared_at)
        entries.move_to_end(object_id)
        return entry.location

    def share_again(self, tenant: str, object_id: str, now: float) -> bool:
        """Whether the location of an object in use was shared SHARE_AGAIN_S ago; counts as shared afterwards."""
        entries = self._by_tenant.get(tenant)
        entry = entries.get(object_id) if entries is not None else None
        if entries is None or entry is None or now - entry.shared_at < SHARE_AGAIN_S:
            return False
        entries[object_id] = entry._replace(shared_at=now)
        return True

    def _evict(self, now: float) -> None:
        largest = max(self._by_tenant, key=lambda tenant: len(self._by_tenant[tenant]))
        entries = self._by_tenant[largest]
        while entries:
            object_id, entry = next(iter(entries.items()))
            expired = now - entry.used_at > OBJECT_LIFETIME_S
            if not expired and self._size < self._max_objects:
                return
            self._remove(largest, object_id)

    def _remove(self, tenant: str, object_id: str) -> None:
        entries = self._by_tenant.get(tenant)
        if entries is None or entries.pop(object_id, None) is None:
            return
        self._size -= 1
        if not entries:
            del self._by_tenant[tenant]
