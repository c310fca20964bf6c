"""Sums the reports of a region's agents for operators: demand by country, tenants, queues, spill credits and jobs."""

from __future__ import annotations

from penstock.fleet.jobs_report import JobsReport, jobs_of_region
from penstock.fleet.report import CountryReport, SpilloverReport, TenantReport, busiest_tenants
from penstock.fleet.snapshot import Snapshot, freshness


def countries(snapshot: Snapshot, region: str, now: float) -> tuple[CountryReport, ...]:
    """Returns the demand that enters at a region by country, largest first, weighted by the age of the reports."""
    total: dict[str, float] = {}
    for held in snapshot.of(region):
        weight = freshness(now - held.received_at)
        for row in held.report.countries:
            total[row.country] = total.get(row.country, 0.0) + weight * row.requests_per_s
    found = (CountryReport(country, rate) for country, rate in total.items() if rate > 0.0)
    return tuple(sorted(found, key=lambda row: (-row.requests_per_s, row.country)))


def spillover(snapshot: Snapshot, region: str, now: float) -> tuple[SpilloverReport, ...]:
    """Returns queue and spill credits of each model, summed over the agents whose reports have weight."""
    total: dict[str, SpilloverReport] = {}
    for held in snapshot.of(region):
        if freshness(now - held.received_at) <= 0.0:
            continue
        for row in held.report.spillover:
            before = total.get(row.model, SpilloverReport(row.model, 0, 0, 0, 0))
            total[row.model] = SpilloverReport(
                row.model,
                before.waiting + row.waiting,
                before.headroom + row.headroom,
                before.granted + row.granted,
                before.held + row.held,
            )
    return tuple(total[model] for model in sorted(total))


def tenants(snapshot: Snapshot, region: str, now: float) -> tuple[TenantReport, ...]:
    """Returns the busiest tenants of a region, over the agents whose reports have weight."""
    fresh = [held.report for held in snapshot.of(region) if freshness(now - held.received_at) > 0.0]
    return busiest_tenants(row for report in fresh for row in report.tenants)


def jobs(snapshot: Snapshot, region: str, now: float) -> JobsReport | None:
    """Returns the jobs of a region, over the agents whose reports have weight; None without a job store."""
    return jobs_of_region(held.report.jobs for held in snapshot.of(region) if freshness(now - held.received_at) > 0.0)
