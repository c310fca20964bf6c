"""Every endpoint of the fleet once, from what several agents of a region told at different times."""

from __future__ import annotations

import msgspec

from penstock.fleet.endpoint_report import EndpointReport
from penstock.fleet.snapshot import Snapshot

LATE_S = 30.0
"""A list this old (s) is not heard any more where another agent of the region told a newer one: agents tell theirs
every ten seconds or more often."""


class SeenEndpoint(msgspec.Struct, frozen=True):
    """An endpoint, who says so, and since when."""

    region: str
    agent: str
    """Whose word it is."""
    report: EndpointReport
    age_s: float


def endpoints(snapshot: Snapshot, now: float, region: str | None = None) -> list[SeenEndpoint]:
    """Every endpoint of a region, or of all, in no order.

    Agents of a region see the same endpoints and may judge them differently. Of those who told of one lately the first
    by name is believed, so that the answer does not swing between them.
    """
    lists: dict[str, list[tuple[float, str, tuple[EndpointReport, ...]]]] = {}
    for (where, agent), held in snapshot.agents.items():
        if held.report.endpoints is not None and region in (None, where):
            age_s = max(0.0, now - held.endpoints_at)
            lists.setdefault(where, []).append((age_s, agent, held.report.endpoints))
    found: list[SeenEndpoint] = []
    for where, told in lists.items():
        lately = sorted((one for one in told if one[0] <= LATE_S), key=lambda one: one[1])
        seen: dict[str, SeenEndpoint] = {}
        for age_s, agent, rows in lately or sorted(told, key=lambda one: (one[0], one[1])):
            for row in rows:
                seen.setdefault(row.name, SeenEndpoint(where, agent, row, age_s))
        found += seen.values()
    return found


def left_out(snapshot: Snapshot, region: str | None = None) -> int:
    """How many endpoints no list has room for; at least, where a region's agents told of different ones.

    Args:
        region: None for all.
    """
    most: dict[str, int] = {}
    for (where, _), held in snapshot.agents.items():
        if region in (None, where):
            most[where] = max(most.get(where, 0), held.report.endpoints_left_out)
    return sum(most.values())
