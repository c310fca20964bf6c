"""Usage of a bounded resource by tenant, and the choice of the tenant to displace when the resource is full.

Tenants of the lowest priority are displaced first. Within a priority, the tenant that uses the most is displaced, and
only for a tenant that still uses less afterwards (max-min fairness), so that a burst of one tenant does not lock out
other tenants.
"""

from __future__ import annotations

from typing import NamedTuple


class Share(NamedTuple):
    """One tenant's requests of one priority."""

    priority: int
    tenant: str


class TenantShares:
    """The usage of one resource by share, in the unit of the resource (requests or bytes)."""

    __slots__ = ("_used", "total")

    def __init__(self) -> None:
        """Create a record without usage."""
        self._used: dict[Share, int] = {}
        self.total = 0

    def used(self, share: Share) -> int:
        """Return the usage of a share."""
        return self._used.get(share, 0)

    def add(self, share: Share, amount: int) -> None:
        """Count `amount` more."""
        if amount:
            self._used[share] = self._used.get(share, 0) + amount
            self.total += amount

    def remove(self, share: Share, amount: int) -> None:
        """Stop counting `amount`, which `add` counted."""
        if amount:
            left = self._used[share] - amount
            self.total -= amount
            if left:
                self._used[share] = left
            else:
                del self._used[share]

    def displaced_by(self, newcomer: Share, amount: int) -> Share | None:
        """Return the share to displace for `amount` more of `newcomer`; None if the newcomer has to be refused."""
        if not self._used:
            return None
        lowest = min(share.priority for share in self._used)
        if lowest > newcomer.priority:
            return None
        used, heaviest = max((used, share) for share, used in self._used.items() if share.priority == lowest)
        if lowest == newcomer.priority and used <= self.used(newcomer) + amount:
            return None
        return heaviest
