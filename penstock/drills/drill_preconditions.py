"""The conditions under which a drill may begin."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from penstock.drills.drill_state import Drill, DrillRequest
from penstock.fleet.snapshot import Snapshot
from penstock.health.region_health import RegionHealth, RegionState
from penstock.overrides.override_effects import Interventions
from penstock.planning.linear_program.flow_planner import OFFLINE_LIMIT_S, FlowPlanner
from penstock.planning.tick_input import TickInput
from penstock.policy.policy import Policy
from penstock.policy.service_objective import within_text
from penstock.rollout.objective_analysis import ObjectiveCounts, counted, merge_counts


class FleetBeforeDrill(msgspec.Struct, frozen=True):
    """The fleet before a drill."""

    newest: Drill | None
    """The newest drill, over or under way; None without one."""
    is_rolling_out: bool
    """Whether a rollout of a policy is under way."""
    states: Mapping[str, RegionState]
    """State of each region."""
    withdrawn: tuple[str, ...]
    """Regions that overrides or maintenance windows drain."""
    control_planes: int
    """Number of registered control planes."""
    objectives: tuple[ObjectiveCounts, ...]
    """Attainment of the service objectives in the last minutes."""


def refusal(request: DrillRequest, policy: Policy, now_is: FleetBeforeDrill) -> str | None:
    """Returns the reason why a drill may not begin; None if it may begin unless `missing_without` finds a shortfall."""
    if now_is.newest is not None and not now_is.newest.is_over:
        return f"drill {now_is.newest.number} is under way, and there is one at a time"
    if now_is.is_rolling_out:
        return "a rollout of a policy is under way"
    failed = [region for region, state in now_is.states.items() if state is RegionState.FAILED]
    if failed:
        return f"{', '.join(failed)} failed"
    for counts in now_is.objectives:
        if counts.is_broken:
            within = within_text(counts.limit_s, counts.measure)
            return f"only {counts.attained:.2%} of answers of {counts.model} {within} now"
    if request.region is None:
        return None if now_is.control_planes > 1 else "there is no second control plane to take over"
    if request.region not in policy.regions:
        return f"the policy has no region {request.region}"
    if now_is.withdrawn:
        return f"{', '.join(now_is.withdrawn)} is drained already"
    state = now_is.states.get(request.region, RegionState.UNKNOWN)
    return None if state is RegionState.HEALTHY else f"{request.region} is {state.value}, not healthy"


def missing_without(policy: Policy, snapshot: Snapshot, region: str, interventions: Interventions, now: float) -> str:
    """Describes the capacity that the fleet would lack for its present demand without a region; empty if none.

    Args:
        now: the leader's clock, in seconds.
    """
    lost = msgspec.structs.replace(snapshot, health={**snapshot.health, region: RegionHealth(RegionState.FAILED)})
    objective = msgspec.structs.replace(policy.objective, survive_one_loss=False)
    tick = TickInput(
        policy=msgspec.structs.replace(policy, objective=objective),
        snapshot=lost,
        previous={},
        now=now,
        epoch=1,
        generation=1,
        elapsed_s=1.0,
        interventions=interventions,
    )
    found = FlowPlanner(OFFLINE_LIMIT_S).plan(tick).shortfalls
    if not found:
        return ""
    worst = max(found, key=lambda shortfall: shortfall.slots)
    return (
        f"the reserve does not cover the loss of {region}: {worst.slots:.1f} slots would be missing for {worst.model}"
        f" ({worst.requests_per_s:.1f} requests/s)"
    )


def recent_objectives(snapshot: Snapshot) -> tuple[ObjectiveCounts, ...]:
    """Returns the attainment of the service objectives over the last minutes, by all agents' reports."""
    return tuple(merge_counts(_recent(snapshot)).values())


def _recent(snapshot: Snapshot) -> Iterable[ObjectiveCounts]:
    for held in snapshot.agents.values():
        for report in held.report.objectives:
            yield counted(report, report.answers, report.within)
