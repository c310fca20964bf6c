"""Memory that the requests of several tenants hold, within one bound.

One tenant may use all of the memory until another tenant needs some. Then the tenant that holds the most is displaced,
for any tenant that still holds less. Every tenant can therefore reach an equal share, regardless of the use by other
tenants. Priorities have no effect: they order the use of endpoints, and a tenant of high priority must not be able to
lock out other tenants.
"""

from __future__ import annotations

from typing import Generic, TypeVar

Holder = TypeVar("Holder")


class MemoryShares(Generic[Holder]):
    """The memory (bytes) of each holder (a request) of each tenant."""

    __slots__ = ("_by_tenant", "_max_bytes", "_used_bytes", "held_bytes")

    def __init__(self, max_bytes: int) -> None:
        """Create a record without holders; `max_bytes` is the bound for all tenants together."""
        self._max_bytes = max_bytes
        self._used_bytes: dict[str, int] = {}
        self.held_bytes = 0
        """Memory (bytes) of all holders together."""
        self._by_tenant: dict[str, dict[Holder, int]] = {}

    def has_room(self, size_bytes: int) -> bool:
        """Whether `size_bytes` more fit without displacement."""
        return self.held_bytes + size_bytes <= self._max_bytes

    def make_room(self, tenant: str, size_bytes: int) -> list[Holder] | None:
        """Release the largest holders of the tenants that hold the most, until `size_bytes` more of `tenant` fit.

        Returns:
            the released holders, all of other tenants; None, without a release, if the tenant has to be refused.
        """
        released: list[tuple[str, Holder, int]] = []
        while not self.has_room(size_bytes):
            heaviest = max(self._used_bytes, key=lambda name: (self._used_bytes[name], name), default=tenant)
            if self._used_bytes.get(heaviest, 0) <= self._used_bytes.get(tenant, 0) + size_bytes:
                for name, holder, held_bytes in released:
                    self.hold(name, holder, held_bytes)
                return None
            held = self._by_tenant[heaviest]
            largest = max(held, key=held.__getitem__)
            released.append((heaviest, largest, held[largest]))
            self.release(heaviest, largest)
        return [holder for _, holder, _ in released]

    def hold(self, tenant: str, holder: Holder, size_bytes: int) -> None:
        """Count `size_bytes` more for a holder."""
        held = self._by_tenant.setdefault(tenant, {})
        held[holder] = held.get(holder, 0) + size_bytes
        self._count(tenant, size_bytes)

    def release(self, tenant: str, holder: Holder) -> None:
        """Stop counting a holder. No effect if the holder has no memory."""
        held = self._by_tenant.get(tenant)
        if held is not None and holder in held:
            self._count(tenant, -held.pop(holder))
            if not held:
                del self._by_tenant[tenant]

    def _count(self, tenant: str, size_bytes: int) -> None:
        self.held_bytes += size_bytes
        used = self._used_bytes.pop(tenant, 0) + size_bytes
        if used:
            self._used_bytes[tenant] = used
