"""Merges the endpoint lists of several agents of a region, received at different times, into one list."""

from __future__ import annotations

import msgspec

from penstock.fleet.endpoint_report import EndpointReport
from penstock.fleet.snapshot import Snapshot

MAX_LIST_AGE_S = 30.0
"""Maximum age (s) of an endpoint list, while another agent of the region has a newer one. Agents send a list at least
every ten seconds."""


class ReportedEndpoint(msgspec.Struct, frozen=True):
    """An endpoint, the agent that reported it, and the report's age."""

    region: str
    agent: str
    """Name of the reporting agent."""
    report: EndpointReport
    age_s: float


def endpoints(snapshot: Snapshot, now: float, region: str | None = None) -> list[ReportedEndpoint]:
    """Returns every endpoint of a region, or of all regions, in no particular order.

    Agents of a region have the same endpoints but may report different states. Of the agents with a recent list, the
    first by name takes precedence, so that the result does not alternate between agents.
    """
    lists: dict[str, list[tuple[float, str, tuple[EndpointReport, ...]]]] = {}
    for (reporting_region, agent), held in snapshot.agents.items():
        if held.report.endpoints is not None and region in (None, reporting_region):
            age_s = max(0.0, now - held.endpoints_at)
            lists.setdefault(reporting_region, []).append((age_s, agent, held.report.endpoints))
    found: list[ReportedEndpoint] = []
    for reporting_region, reported in lists.items():
        recent = sorted((entry for entry in reported if entry[0] <= MAX_LIST_AGE_S), key=lambda entry: entry[1])
        by_name: dict[str, ReportedEndpoint] = {}
        for age_s, agent, rows in recent or sorted(reported, key=lambda entry: (entry[0], entry[1])):
            for row in rows:
                by_name.setdefault(row.name, ReportedEndpoint(reporting_region, agent, row, age_s))
        found += by_name.values()
    return found


def omitted_endpoints(snapshot: Snapshot, region: str | None = None) -> int:
    """Returns the number of endpoints above MAX_ENDPOINTS; a lower bound if agents of a region report different ones.

    Args:
        region: None for all regions.
    """
    omitted: dict[str, int] = {}
    for (reporting_region, _), held in snapshot.agents.items():
        if region in (None, reporting_region):
            omitted[reporting_region] = max(omitted.get(reporting_region, 0), held.report.endpoints_omitted)
    return sum(omitted.values())
