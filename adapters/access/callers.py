"""Callers of the API, and their roles. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import msgspec


class Role(StrEnum):
    """Permissions of a caller. Each role includes all roles that are listed before it."""

    MONITOR = "monitor"
    """May read metrics."""
    VIEWER = "viewer"
    """May read everything except secrets."""
    OPERATOR = "operator"
    """May also set and lift overrides, and halt or roll back rollouts."""
    ADMIN = "admin"
    """May also put policies in force, and override guard rails."""

    def covers(self, needed: Role) -> bool:
        """Whether this role includes `needed`."""
        order = list(Role)
        return order.index(self) >= order.index(needed)


class Caller(msgspec.Struct, frozen=True):
    """An authenticated caller."""

    name: str
    """Name of the caller, recorded in the audit log."""
    role: Role
    regions: frozenset[str] | None = None
    """Regions that the caller may change; None: all regions, and resources of the whole fleet, such as policies. Read
    access depends on the role only."""
    is_dry_run: bool = False
    """Whether a change of the caller is only to be shown: it is checked like any change, and nothing is written."""

    def reaches(self, regions: Iterable[str] | None) -> bool:
        """Whether the caller may change all of `regions`; None stands for the whole fleet."""
        if self.regions is None:
            return True
        return regions is not None and self.regions.issuperset(regions)
