"""Tables of the status of a fleet."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from control_plane.cli.output import table_of
from control_plane.cli.views.rollout_view import outlook_lines
from control_plane.status.objective_status import ObjectiveStatus, objective_statuses
from control_plane.status.status import AgentStatus, ArcStatus, PoolStatus, RegionStatus, Status
from penstock.health.region_health import RegionState
from penstock.policy.service_objective import within_text
from penstock.rollout.policy_rollout import Phase

FIRST_REPORT_WITHIN_S = 5.0
"""Time (s) after an election in which a missing report is normal; agents report once a second."""

_COLOURS = {
    RegionState.UNKNOWN: "dim",
    RegionState.HEALTHY: "green",
    RegionState.DEGRADED: "yellow",
    RegionState.SUSPECT: "yellow",
    RegionState.FAILED: "bold red",
    RegionState.RECOVERING: "cyan",
    RegionState.DRAINING: "magenta",
}


def status_view(status: Status) -> RenderableType:
    """Return the leader, every region with its load, and the regions that serve each traffic class."""
    return Group(
        _heading(status),
        _regions(status),
        *_objectives(status),
        _serving(status),
        *_overrides(status),
        *_warnings(status),
    )


def _heading(status: Status) -> Text:
    leader = status.leader
    line = Text()
    line.append(
        f"leader {leader.name} (epoch {leader.epoch})" if leader else "no leader", "bold" if leader else "bold red"
    )
    line.append(f" · seen by {status.name}, {status.role} for {status.role_age_s:.0f} s: {status.why}")
    if status.plan is not None:
        line.append(f"\nplan {status.plan.generation}, {status.plan.age_s:.0f} s old")
    digest, provenance = status.policy_in_force
    if digest is not None:
        line.append(f" · policy {digest[:12]}")
    if provenance is not None:
        line.append(f"\ncommit {provenance}")
    rollout = status.rollout
    if rollout is not None and rollout.phase is not Phase.DONE:
        line.append(
            f"\nrollout {rollout.number} of policy {rollout.candidate[:12]}: {rollout.phase.value}, {rollout.why}"
        )
    for text in outlook_lines(status.outlook):
        line.append(f"\n{text}", "yellow")
    for version in status.outlook.versions if status.outlook is not None else ():
        line.append(f"\nrollout of {version.rollout}: {version.text}", "yellow")
    return line


def _regions(status: Status) -> Table:
    numbers = ("agents", "load", "demand /s", "report age")
    table = table_of("region", "city", "state", *numbers, title="Regions", right=numbers)
    for region in status.regions:
        agents = sum(1 for agent in status.agents if agent.region == region.name and agent.registered)
        table.add_row(
            region.name,
            region.city,
            Text(_since(region), _COLOURS[region.state]),
            str(agents),
            _load(region),
            f"{sum(demand.requests_per_s for demand in region.demand):.1f}",
            "never" if region.report_age_s is None else f"{region.report_age_s:.1f} s",
        )
    return table


def _since(region: RegionStatus) -> str:
    return region.state.value if region.state_age_s is None else f"{region.state.value} {region.state_age_s:.0f} s"


def _load(region: RegionStatus) -> str:
    return "\n".join(map(_pool, region.pools)) or "-"


def _pool(pool: PoolStatus) -> str:
    """Return the requests and slots of a pool, its ready endpoints if some are not, and models that share slots."""
    part = f" {pool.in_flight / pool.slots:.0%}" if pool.slots else ""
    missing = f", {pool.ready} of {pool.endpoints} ready" if pool.ready < pool.endpoints else ""
    shared = f", shared with {', '.join(pool.shares_slots_with)}" if pool.shares_slots_with else ""
    return f"{pool.model} {pool.in_flight}/{pool.slots}{part}{missing}{shared}"


def _objectives(status: Status) -> Iterable[Table]:
    """Yield a table of service objectives over all regions, and the regions that miss them."""
    whole = objective_statuses(objective for region in status.regions for objective in region.objectives)
    if not whole:
        return
    table = table_of(
        "model", "objective", "wanted", "attained", "missed in", title="Service objectives, last 5 minutes"
    )
    for objective in whole:
        missed = [
            f"{region.name} {_attained(here)}" for region in status.regions for here in _missed(region, objective)
        ]
        colour = "green" if objective.is_met else "dim" if objective.is_met is None else "bold red"
        within = within_text(objective.limit_s, objective.measure)
        table.add_row(
            objective.model,
            within,
            f"{objective.share:.2%}",
            Text(_attained(objective), colour),
            ", ".join(missed) or "-",
        )
    yield table


def _missed(region: RegionStatus, whole: ObjectiveStatus) -> Iterable[ObjectiveStatus]:
    return (
        objective for objective in region.objectives if objective.is_met is False and objective.wanted == whole.wanted
    )


def _attained(objective: ObjectiveStatus) -> str:
    return "no answers" if objective.attained is None else f"{objective.attained:.2%} of {objective.answers}"


def _serving(status: Status) -> Table:
    table = table_of("origin", "model", "may be in", "served by", title="Who serves whom")
    for (origin, model, residency), arcs in _by_class(status.arcs).items():
        served = ", ".join(f"{arc.server} {arc.share:.0%} ({arc.why.value})" for arc in arcs)
        table.add_row(origin, model, residency, served)
    return table


def _by_class(arcs: Iterable[ArcStatus]) -> dict[tuple[str, str, str], list[ArcStatus]]:
    grouped: dict[tuple[str, str, str], list[ArcStatus]] = {}
    for arc in arcs:
        grouped.setdefault((arc.origin, arc.model, arc.residency), []).append(arc)
    return grouped


def _overrides(status: Status) -> Iterable[Text]:
    for override_status in status.overrides:
        override = override_status.override
        place = "/".join(filter(None, (override.region, override.endpoint)))
        what = f"{override.kind.value.replace('_', ' ')} of {place or override.origin or 'every plan'}"
        yield Text(f"{what} {override_status.state.value}, by {override.author}: {override.reason}", "magenta")


def _warnings(status: Status) -> Iterable[Text]:
    if not status.store.up:
        yield Text("the store does not answer: this is what was last known", "bold red")
    if status.fleet_problem:
        yield Text(
            f"regions as in the last state of {status.name}, which receives no reports: {status.fleet_problem}",
            "bold red",
        )
    for error in status.policy.refused:
        yield Text(f"policy refused{_of(status)}: {error}", "bold red")
    if status.policy.unreadable:
        yield Text(f"policy source cannot be read: {status.policy.unreadable}", "bold red")
    for shortfall in status.shortfalls:
        if shortfall.lost is None:
            where = " or ".join(shortfall.regions)
            yield Text(
                f"{shortfall.model} lacks {shortfall.slots:.1f} slots in {where} to stay within its target", "yellow"
            )
    named = {region.name for region in status.regions}
    for agent in status.agents:
        if agent.region not in named:
            yield Text(f"{agent.region}/{agent.name} is in no use: the policy has no region {agent.region}", "bold red")
        elif _is_missing_report(agent, status):
            yield Text(
                f"{agent.region}/{agent.name} is registered, and no report of it was accepted: its log says why",
                "yellow",
            )
        if agent.refused_plan:
            yield Text(f"{agent.region}/{agent.name} refused the plan: {agent.refused_plan}", "bold red")
        for problem in agent.rejected_files:
            yield Text(f"{agent.region}/{agent.name} rejected a file, the last valid one is in force: {problem}", "red")


def _is_missing_report(agent: AgentStatus, status: Status) -> bool:
    """Whether an agent is registered but has not reported in time to this leader."""
    settled = status.leading and status.role_age_s > FIRST_REPORT_WITHIN_S
    return settled and agent.registered and agent.report_age_s is None


def _of(status: Status) -> str:
    commit = status.policy.refused_provenance
    return f" (commit {commit.commit[:12]} by {commit.author})" if commit is not None else ""
