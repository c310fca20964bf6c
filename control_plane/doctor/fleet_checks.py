"""Checks of a fleet by the status of its control plane. Pure: the status and the time are parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from control_plane.doctor.findings import (
    MAX_SKEW_S,
    SYNCHRONISE,
    Finding,
    of_certificate,
    of_clocks,
    ok,
    problem,
    warning,
)
from control_plane.status.status import AgentStatus, RegionStatus, Status
from penstock.fleet.endpoint_report import EndpointCondition
from penstock.health.region_health import RegionState

MAX_REPORT_AGE_S = 5.0
"""Age (s) of an agent's report from which on it is late: agents report about each second."""

MAX_MODELS_SHOWN = 5

_INTENDED_STATES = (RegionState.DRAINING, RegionState.RECOVERING)
"""States of a region by an operator's order, and on the way back to healthy."""

_REMEDIES = {
    EndpointCondition.DRAINING: "`penstock endpoint undrain` ends a drain by an operator; otherwise nothing",
    EndpointCondition.UNLOADED: "load a model, unless it sleeps until requests need it (docs/on-demand.md)",
    EndpointCondition.WARMING: "wait: its share of requests grows",
}


def fleet_findings(status: Status, now: float) -> list[Finding]:
    """Return what is wrong with a fleet, and what was found right.

    Args:
        status: the status of the leader, or of the first control plane that answers.
        now: Unix time (s) of this machine, when the status arrived.
    """
    return [
        *_of_control_planes(status, now),
        *_of_policy(status),
        *(finding for region in status.regions for finding in _of_region(region)),
        *(finding for agent in status.agents for finding in _of_agent(agent, status)),
        *_of_releases(status),
    ]


def _of_control_planes(status: Status, now: float) -> Iterator[Finding]:
    names = ", ".join(member.name for member in status.control_planes) or status.name
    if status.leader is None:
        remedy = "check etcd and the logs of the control planes (runbooks/PenstockNoLeader.md)"
        yield problem("control planes", f"none leads; known: {names}", remedy)
    else:
        yield ok("control planes", f"{status.leader.name} at {status.leader.url} leads; known: {names}")
    if len(status.control_planes) == 1:
        yield warning("control planes", "there is one: no plan is made while it is down", "run a second one")
    if not status.store.up:
        remedy = "run `penstock doctor --control-plane-config FILE` on the host of a control plane"
        yield problem("etcd", f"{status.name} does not reach it", remedy)
    if status.fleet_problem:
        yield warning("control planes", status.fleet_problem, "check the connections between control planes")
    yield from of_clocks(status.name, status.at, now)


def _of_policy(status: Status) -> Iterator[Finding]:
    policy, (in_force, _) = status.policy, status.policy_in_force
    if in_force is None:
        yield problem("policy", "none is in force", "give the control plane a bundle: `penstock policy init`")
    else:
        yield ok("policy", f"{in_force[:12]} is in force")
    if policy.unreadable:
        yield problem("policy source", policy.unreadable, "repair the source; the policy in force stays")
    for error in policy.refused[:5]:
        yield problem("policy source", f"the newest revision is refused: {error}", "correct it; the last one stays")
    if in_force is not None and status.plan is None:
        yield problem("plan", "there is none", "wait for the leader's first plan; see PenstockPlanNotPublished.md")


def _of_region(region: RegionStatus) -> Iterator[Finding]:
    subject = f"region {region.name}"
    if region.state is RegionState.HEALTHY:
        # Models may share endpoints, so that there is no sum.
        shown = ", ".join(f"{pool.model} {pool.ready}" for pool in region.pools[:MAX_MODELS_SHOWN])
        more = len(region.pools) - MAX_MODELS_SHOWN
        yield ok(subject, f"healthy; ready endpoints by model: {shown or 'none'}{f', {more} more' * (more > 0)}")
    elif region.state in _INTENDED_STATES:
        remedy = f"`penstock overrides list` says who and why; `penstock undrain {region.name}` ends a drain"
        yield warning(subject, f"is {region.state}", remedy)
    else:
        remedy = "see its agents and endpoints below, and runbooks/PenstockRegionFailed.md"
        yield problem(subject, f"is {region.state}", remedy)
    # Endpoints that sleep until requests need them, or that an operator drains, are no fault of the pool.
    intended = bool(region.unready) and all(endpoint.state in _REMEDIES for endpoint in region.unready)
    for pool in region.pools:
        if pool.endpoints and not pool.ready:
            remedy = f"`penstock endpoints --region {region.name} --model {pool.model}` says why"
            found = f"no endpoint of {pool.model} is ready, of {pool.endpoints}"
            yield (warning if intended else problem)(subject, found, remedy)
    for endpoint in region.unready:
        remedy = "check that the agent reaches its address, and its health path (docs/endpoints.md)"
        found = f"{endpoint.state}: {endpoint.reason}"
        yield warning(f"endpoint {region.name}/{endpoint.name}", found, _REMEDIES.get(endpoint.state, remedy))


def _of_agent(agent: AgentStatus, status: Status) -> Iterator[Finding]:
    subject = f"agent {agent.region}/{agent.name}"
    if agent.report_age_s is None:
        yield problem(subject, "has not reported", "check its log, and `control_plane_urls` in its settings")
        return
    if agent.report_age_s > MAX_REPORT_AGE_S:
        remedy = "check that it runs and reaches a control plane: `penstock doctor --agent-config FILE` on its host"
        yield problem(subject, f"last reported {agent.report_age_s:.0f} s ago", remedy)
    else:
        yield ok(subject, f"reports; policy {agent.policy_digest[:12] or 'not yet'}, plan {agent.plan_generation}")
    if abs(agent.clock_ahead_s) > MAX_SKEW_S:
        found = f"its clock and that of {status.name} differ by {abs(agent.clock_ahead_s):.0f} s"
        yield problem(subject, found, SYNCHRONISE)
    elif not agent.registered:
        yield warning(subject, "is not registered in etcd, so other regions do not find it", "check its way to etcd")
    if agent.refused_plan:
        yield problem(subject, f"refuses the newest plan: {agent.refused_plan}", "upgrade it, or correct the policy")
    for rejected in agent.rejected_files:
        yield problem(subject, f"a file is rejected: {rejected}", "correct it; its last valid content is in force")
    if agent.certificate_expires_at:
        yield from of_certificate(subject, agent.certificate_expires_at, status.at)
    lost = [peer.region for peer in agent.peers if peer.state is RegionState.FAILED]
    healthy = {region.name for region in status.regions if region.state is RegionState.HEALTHY}
    unreachable = [name for name in lost if name in healthy]
    if unreachable:
        remedy = "open its way to the peer listeners there, or set advertise_peer_url to a gateway"
        yield problem(subject, f"does not reach the healthy regions {', '.join(sorted(unreachable))}", remedy)


def _of_releases(status: Status) -> Iterator[Finding]:
    releases = _named(agent.release for agent in status.agents) | _named([status.release])
    if len(releases) > 1:
        yield warning("releases", f"several run: {', '.join(sorted(releases))}", "complete the upgrade (upgrading.md)")


def _named(releases: Iterable[str]) -> set[str]:
    return {release for release in releases if release}
