"""Callers and roles: what somebody who has proved who they are may do. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import msgspec


class Role(StrEnum):
    """What a caller may do; each role may do what those before it may."""

    VIEWER = "viewer"
    """See everything but secrets."""
    OPERATOR = "operator"
    """Also drain, fail over, weigh, freeze and lift."""
    ADMIN = "admin"
    """Also change policy, and go past guard rails."""

    def covers(self, needed: Role) -> bool:
        """Whether this role may do what `needed` may."""
        order = list(Role)
        return order.index(self) >= order.index(needed)


class Caller(msgspec.Struct, frozen=True):
    """Somebody who has proved who they are."""

    name: str
    """Stands in the audit log."""
    role: Role
    regions: frozenset[str] | None = None
    """The regions that the caller may change; None: every one, and what belongs to no region, such as policy. What a
    caller may see is a matter of role alone."""

    def reaches(self, regions: Iterable[str] | None) -> bool:
        """Whether the caller's scope holds all of `regions`; None stands for what concerns the whole fleet."""
        if self.regions is None:
            return True
        return regions is not None and self.regions.issuperset(regions)
