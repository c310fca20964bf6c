"""Checks that the plans of every planner stay within residency classes when regions are lost.

The checks cover arcs, fallbacks and failover tables. A plan cannot move a request out of its class, since the decision
considers permitted regions only (`stages`). A forbidden region in a plan would still distort probes, status and
capacity.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

import msgspec

from penstock.fleet.report import AgentReport, DemandReport, PoolReport
from penstock.fleet.snapshot import HeldReport, Snapshot
from penstock.health.region_health import RegionHealth, RegionState
from penstock.planning.failover_tables import compute_tables
from penstock.planning.linear_program.flow_planner import OFFLINE_LIMIT_S, FlowPlanner
from penstock.planning.plan import RegionPlan
from penstock.planning.planner import Planner, PlanResult
from penstock.planning.tick_input import TickInput
from penstock.planning.waterfall import WaterfallPlanner
from penstock.policy.policy import Policy
from penstock.policy.residency import ResidencyClass
from penstock.verification.breach import Breach, breach
from penstock.verification.situations import Situation

MAX_FOR_PAIRS = 12
"""Maximum number of regions for which every loss of two regions is planned; else, only every loss of one region."""

SLOTS = 100
"""Slots of every region for the one model that is planned."""

AMPLE_PER_S, SCARCE_PER_S = 0.5, 200.0
"""Demand of each class at each origin in requests per second: within the slots of a region, and beyond all slots."""


class Plans(msgspec.Struct, frozen=True):
    """The result of the plan checks."""

    made: int
    """Number of plans computed."""
    max_lost: int
    """Every loss of at most this many regions was planned."""
    breaches: tuple[Breach, ...]


def planned(policy: Policy, examples: Mapping[ResidencyClass, Situation]) -> Plans:
    """Plan demand of all classes at all permitted origins: without loss, and for each loss from the plan without loss.

    Args:
        policy: the policy to check.
        examples: an example situation for each class.
    """
    classes = tuple(examples)
    max_lost = min(len(policy.regions), 2 if len(policy.regions) <= MAX_FOR_PAIRS else 1)
    named = {residency.name: (residency.regions, example) for residency, example in examples.items()}
    breaches: list[Breach] = []
    made = 0
    for per_s in (AMPLE_PER_S, SCARCE_PER_S):
        whole = _snapshot(policy, classes, (), per_s)
        before = WaterfallPlanner().plan(_tick(policy, whole, {})).plans
        for size in range(max_lost + 1):
            for lost in combinations(policy.regions, size):
                snapshot = _snapshot(policy, classes, lost, per_s)
                by: dict[str, Planner] = {
                    "linear program": FlowPlanner(OFFLINE_LIMIT_S),
                    "waterfall": WaterfallPlanner(),
                }
                for name, planner in by.items():
                    result = planner.plan(_tick(policy, snapshot, before))
                    made += 1
                    breaches += _outside(policy, result, named, lost, name)
    return Plans(made, max_lost, tuple(breaches))


def _outside(
    policy: Policy,
    planned: PlanResult,
    named: Mapping[str, tuple[frozenset[str], Situation]],
    lost: tuple[str, ...],
    planner: str,
) -> Iterator[Breach]:
    for origin, plan in planned.plans.items():
        for entry in plan.classes:
            regions, example = named[entry.residency]
            for region in sorted({*(arc.server for arc in entry.arcs), *entry.fallbacks} - regions):
                yield breach(policy, "plan", example, region, f"in the {planner}'s plan for {origin}", lost)
    for key, tables in compute_tables((flows.problem for flows in planned.answers), planned.plans).items():
        regions, example = named[key.residency]
        for region in sorted({arc.server for table in tables for arc in table.arcs} - regions):
            yield breach(policy, "failover table", example, region, key.origin, lost)


def _tick(policy: Policy, snapshot: Snapshot, previous: Mapping[str, RegionPlan]) -> TickInput:
    return TickInput(policy=policy, snapshot=snapshot, previous=previous, now=0.0, epoch=1, generation=1, elapsed_s=1.0)


def _snapshot(policy: Policy, classes: Sequence[ResidencyClass], lost: tuple[str, ...], per_s: float) -> Snapshot:
    """A fleet with demand of every class at each of its regions; lost regions are failed and send no report."""
    model = next(iter(policy.models))
    agents = {}
    for region in policy.regions:
        demand = tuple(
            DemandReport(model, residency.name, tuple(sorted(residency.regions)), per_s)
            for residency in classes
            if region in residency.regions
        )
        pool = PoolReport(model, 1, 1, SLOTS, 0, 1.0)
        if region not in lost:
            agents[region, "1"] = HeldReport(AgentReport(region, "1", 1, 1, 0.0, (pool,), demand), 0.0)
    health = {
        name: RegionHealth(RegionState.FAILED if name in lost else RegionState.HEALTHY) for name in policy.regions
    }
    return Snapshot(agents, health)
