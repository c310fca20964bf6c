"""A small fleet for tests of plans: two EU regions and one other region, with reports, demand and policy."""

from __future__ import annotations

from penstock.fleet.report import AgentReport, DemandReport, PoolReport
from penstock.fleet.snapshot import HeldReport, Snapshot
from penstock.health.region_health import RegionHealth, RegionState
from penstock.planning.plan import Arc, ArcReason, ClassPlan, RegionPlan
from penstock.policy.kinds.models import Model
from penstock.policy.kinds.regions import Region
from penstock.policy.kinds.spillover_and_failover import Failover, Spillover
from penstock.policy.policy import Policy
from penstock.policy.residency import residency_class

EVERYWHERE = ("de", "es", "us")
EU = ("de", "es")
REGIONS = {
    "de": Region("de", "DE", 50.11, 8.68),
    "es": Region("es", "ES", 40.42, -3.7),
    "us": Region("us", "US", 38.9, -77.04),
}
POLICY = Policy(
    regions=REGIONS,
    models={"m": Model("m"), "n": Model("n", expected_service_s=4.0)},
    tenants={},
    residency=(),
    spillover=Spillover(target_utilisation=0.8, step_per_s=0.25),
    failover=Failover(failback_ramp_s=10.0),
)


def offered(rate: float, regions: tuple[str, ...] = EVERYWHERE, model: str = "m") -> DemandReport:
    """Demand (requests/s) that `regions` may serve."""
    return DemandReport(model, residency_class(frozenset(regions)).name, regions, rate)


def region(
    name: str, *demand: DemandReport, slots: int = 100, ready: int = 4, models: tuple[str, ...] = ("m",)
) -> HeldReport:
    """The report of one region: one pool per model, with a service time of 1 s."""
    pools = tuple(PoolReport(model, 4, ready, slots if ready else 0, 0, 1.0) for model in models)
    return HeldReport(AgentReport(name, "1", 1, 1, 0.0, pools, demand), received_at=0.0)


def fleet(*held: HeldReport, **states: RegionState) -> Snapshot:
    """A snapshot of reports; regions without a state in `states` are healthy."""
    health = {held_report.report.region: RegionHealth(RegionState.HEALTHY) for held_report in held}
    return Snapshot(
        {(held_report.report.region, held_report.report.agent): held_report for held_report in held},
        health | {name: RegionHealth(state) for name, state in states.items()},
    )


def in_force(origin: str, shares: dict[str, float], regions: tuple[str, ...] = EVERYWHERE) -> dict[str, RegionPlan]:
    """The slice of one origin for the class of `regions`."""
    arcs = tuple(Arc(server, share, ArcReason.HOME) for server, share in shares.items())
    entry = ClassPlan("m", residency_class(frozenset(regions)).name, arcs, ())
    return {origin: RegionPlan(origin, 1, 1, "", 0.0, (entry,))}
