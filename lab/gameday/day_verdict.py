"""Checks the facts of a game day against the expected outcome of its fault."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from control_plane.planning.plan_publisher import REFRESH_S
from lab.demo.findings import Finding, Measured, finding, percent, residency, seconds
from lab.demo.records import Outcome, Served, Sighting
from lab.gameday.fault import Fault, TargetKind
from lab.gameday.fault_catalogue import PLANET
from lab.planet.configs import QUEUE_PER_ENGINE
from lab.planet.fleet_watch import Look

RECOVERED_WITHIN_S = 10.0
"""Maximum time (s) from the end of a fault until the fleet has recovered."""

EMPTY_WITHIN_S = 5.0
"""Maximum time (s) from the last response until no agent holds a request."""

UNSERVED_BEFORE_S = 2.0
"""Time (s) before a fault: requests due within it may still wait when the fault removes their engines."""

AGENTS_LEFT = 1
"""Agents that remain in a region of two agents after half of them are killed."""

PLAN_TRAVELS_S = REFRESH_S + 2.0
"""Maximum time (s) after which agents have a plan or a later one: the slice of a region that has not changed is written
again after REFRESH_S, and needs up to 2 s to reach the agents."""

HERD_S = 0.5
"""Window (s) in which an engine must not receive more requests than it can run and queue."""

LESS_SHARE = 0.5
"""Maximum share of its pool's requests that a slow endpoint may receive in the last half of the fault, as a part (0-1)
of its share before the fault."""


class Day(msgspec.Struct, frozen=True):
    """The facts of one game day; times are seconds since the start of its schedule."""

    from_s: float
    """Time (s) at which the fault began."""
    to_s: float
    """Time (s) at which the fault ended."""
    ended_s: float
    """Time (s) at which the last request had completed."""
    served: tuple[Served, ...]
    sightings: tuple[Sighting, ...]
    started: frozenset[str]
    """Ids of the requests that an engine started."""
    looks: tuple[Look, ...]
    died: tuple[str, ...]
    """Processes that exited unexpectedly."""
    measured: Measured | None = None
    """Measurement that the fault returned; None for a fault without one."""


def judge(fault: Fault, day: Day) -> tuple[Finding, ...]:
    """Check every expectation of a game day."""
    found = [_lost(fault, day), residency(day.sightings)]
    if fault.kind is TargetKind.SLOW_ENDPOINT:
        found.append(_avoided(fault, day))
    elif fault.detected_within_s is not None:
        found.append(_detected(fault, day, fault.detected_within_s))
    found += [_recovered(fault, day), _empty(day)]
    if fault.clients_within_s is not None:
        found.append(_clients(fault, day, fault.clients_within_s))
    if fault.kind is TargetKind.POLICY:
        found.append(_policy_kept(day))
    found.append(_spread(day))
    if day.measured is not None:
        found.append(finding("in effect", True, day.measured.events, day.measured.says))
    if day.died:
        found.append(finding("no process died", False, len(day.died), "; ".join(day.died)))
    return tuple(found)


def _lost(fault: Fault, day: Day) -> Finding:
    there = {sighting.id for sighting in day.sightings if sighting.region == fault.region}
    refused = [request for request in day.served if _may_refuse(fault, day, request)]
    unserved = [request for request in day.served if request.outcome is not Outcome.OK and request not in refused]
    broken = [
        request
        for request in unserved
        if fault.may_break
        and request.outcome is Outcome.FAILED
        and request.due_s <= day.from_s
        and (request.origin == fault.region or request.id in there)
    ]
    never = [request for request in unserved if request.id not in day.started]
    lost = [request for request in unserved if request not in broken or request in never]
    says = (
        f"{len(day.served) - len(unserved) - len(refused)} of {len(day.served)} requests were answered, "
        f"{len(refused)} were refused without an available engine; {len(broken)} broke in "
        f"{fault.region or 'the fleet'}; {len(lost)} were lost; {len(never)} of the unanswered requests had not started"
    )
    slowest_s = max((request.e2e_s for request in day.served if request.e2e_s is not None), default=None)
    says += f"; the slowest response took {seconds(slowest_s)}"
    if lost:
        says += f"; the first lost request: {lost[0].id}, {lost[0].detail or lost[0].status}"
    return finding("no request lost", not lost, len(day.served), says)


def _may_refuse(fault: Fault, day: Day, request: Served) -> bool:
    """Whether a request was refused because no engine served its model during the fault."""
    in_time = day.from_s - UNSERVED_BEFORE_S <= request.due_s < day.to_s + RECOVERED_WITHIN_S
    return bool(fault.model) and request.model == fault.model and request.outcome is Outcome.REFUSED and in_time


def _detected(fault: Fault, day: Day, within_s: float) -> Finding:
    leader = next((look.leaders for look in reversed(day.looks) if look.at_s < day.from_s and look.leaders), ())
    took_s = _first(day.looks, day.from_s, day.to_s, lambda look: _is_detected(fault, look, leader))
    passed = took_s is not None and took_s <= within_s
    says = f"{seconds(took_s)} after the fault began by all observers (at most {within_s:g} s)"
    if fault.kind is TargetKind.AGENTS:
        gone = sorted(
            {name for look in day.looks for name, failed in look.failed_peers.items() if fault.region in failed}
        )
        passed = passed and not gone
        says += f"; {', '.join(gone) or 'no agent'} reported the whole region as failed"
    if fault.kind is TargetKind.REGION:
        first_s = _first(day.looks, day.from_s, day.to_s, lambda look: _is_suspected(fault, look))
        says += f", {seconds(first_s)} by the first"
    return finding("detected", passed, _looks(day, day.from_s, day.to_s), says)


def _is_suspected(fault: Fault, look: Look) -> bool:
    return any(fault.region in failed for failed in look.failed_peers.values())


def _is_detected(fault: Fault, look: Look, leader: tuple[str, ...]) -> bool:
    if fault.kind is TargetKind.LEADER:
        return bool(look.leaders) and not set(look.leaders) & set(leader)
    if fault.kind is TargetKind.POLICY:
        return len(look.refusing) > 1
    if fault.kind is TargetKind.MODEL:
        return fault.endpoints <= {name for names in look.unready.values() for name in names}
    if fault.kind is TargetKind.PARTITION:
        return _is_partitioned(fault, look)
    if fault.kind is TargetKind.AGENTS:
        seen = [peers.get(fault.region) for name, peers in look.reachable.items() if _region(name) != fault.region]
        return bool(seen) and all(count == AGENTS_LEFT for count in seen)
    if fault.kind is TargetKind.CONFIG:
        return bool(look.plans) and set(look.unconfirmed) >= look.plans.keys()
    if fault.kind is TargetKind.REGION:
        others = [failed for name, failed in look.failed_peers.items() if _region(name) != fault.region]
        return bool(others) and all(fault.region in failed for failed in others)
    own = [name for name in look.unready if _region(name) == fault.region]
    return bool(own) and all(len(look.unready[name]) == look.endpoints[name] for name in own)


def _is_partitioned(fault: Fault, look: Look) -> bool:
    """Whether each of the two regions reports the other as failed, and no third region does."""
    apart = {fault.region: fault.other, fault.other: fault.region}
    seen = {name: set(failed) & apart.keys() for name, failed in look.failed_peers.items()}
    return bool(seen) and all(
        failed == ({apart[_region(name)]} if _region(name) in apart else set()) for name, failed in seen.items()
    )


def _recovered(fault: Fault, day: Day) -> Finding:
    took_s = _first(day.looks, day.to_s, float("inf"), lambda look: not _deviation(fault, look, _due_plan(day, look)))
    passed = took_s is not None and took_s <= RECOVERED_WITHIN_S
    says = f"{seconds(took_s)} after the fault ended (at most {RECOVERED_WITHIN_S:g} s)"
    before = [look for look in day.looks if look.at_s >= day.to_s and (took_s is None or look.at_s < day.to_s + took_s)]
    if before:
        says += f"; until then: {_deviation(fault, before[-1], _due_plan(day, before[-1]))}"
    return finding("recovered", passed, _looks(day, day.to_s, float("inf")), says)


def _due_plan(day: Day, look: Look) -> tuple[int, int] | None:
    """Return the newest plan that was published at least PLAN_TRAVELS_S before `look`; None without such a plan."""
    made = [
        earlier.newest_plan
        for earlier in day.looks
        if earlier.newest_plan and earlier.at_s <= look.at_s - PLAN_TRAVELS_S
    ]
    return max(made, default=None)


def _deviation(fault: Fault, look: Look, due_plan: tuple[int, int] | None) -> str:
    """Return the first deviation from the state before the fault; empty if the fleet has recovered."""
    if look.silent:
        return f"{', '.join(look.silent)} did not respond"
    if len(look.leaders) != 1:
        return f"{len(look.leaders)} control planes led"
    if look.refusing:
        return f"{', '.join(look.refusing)} reported errors of the policy source"
    left = fault.endpoints & {name for names in look.unready.values() for name in names}
    if left:
        return f"{', '.join(sorted(left))} were not ready"
    if fault.kind is TargetKind.PARTITION:
        apart = {fault.region, fault.other}
        still = [name for name, peers in look.failed_peers.items() if apart & set(peers)]
        return f"{', '.join(still)} reported one of {', '.join(sorted(apart))} as failed" if still else ""
    if due_plan is not None:
        for name, plan in look.plans.items():
            if plan < due_plan:
                return f"{name} had plan {_slashed(plan)}, {PLAN_TRAVELS_S:g} s after {_slashed(due_plan)}"
    if look.unconfirmed:
        return f"the configuration of {', '.join(look.unconfirmed)} was not confirmed by etcd"
    if fault.kind is TargetKind.AGENTS:
        return _missing_agents(fault, look)
    if fault.kind in (TargetKind.REGION, TargetKind.ENDPOINTS):
        for name, failed in look.failed_peers.items():
            if fault.region in failed:
                return f"{name} reported {fault.region} as failed"
        for name, unready in look.unready.items():
            if _region(name) == fault.region and unready:
                return f"{', '.join(unready)} were not ready at {name}"
    return ""


def _missing_agents(fault: Fault, look: Look) -> str:
    """Describe the first agent that does not reach all agents of the region; empty if there is none."""
    for name, peers in look.reachable.items():
        if _region(name) != fault.region and peers.get(fault.region, 0) <= AGENTS_LEFT:
            return f"{name} reached {peers.get(fault.region, 0)} agents of {fault.region}"
    return ""


def _empty(day: Day) -> Finding:
    took_s = _first(day.looks, day.ended_s, float("inf"), lambda look: look.held == 0 and not look.silent)
    passed = took_s is not None and took_s <= EMPTY_WITHIN_S
    says = f"no agent held a request {seconds(took_s)} after the last response (at most {EMPTY_WITHIN_S:g} s)"
    return finding("counters at zero", passed, _looks(day, day.ended_s, float("inf")), says)


def _clients(fault: Fault, day: Day, within_s: float) -> Finding:
    late_s = [
        attempt.at_s - day.from_s
        for request in day.served
        for attempt in request.attempts
        if attempt.region == fault.region and day.from_s <= attempt.at_s < day.to_s
    ]
    clients = [
        request
        for request in day.served
        if request.home == fault.region and request.outcome is Outcome.OK and day.from_s <= request.due_s < day.to_s
    ]
    attempts = "no attempt" if not late_s else f"last attempt {seconds(max(late_s))} after the fault began"
    says = f"{attempts} at {fault.region} (at most {within_s:g} s); {len(clients)} requests of its clients were served"
    return finding("clients rerouted", max(late_s, default=0.0) <= within_s, len(clients), says)


def _policy_kept(day: Day) -> Finding:
    policies = sorted({digest for look in day.looks for digest in look.policies})
    says = f"{len(policies)} policies were in force: {', '.join(digest[:12] for digest in policies)}"
    return finding("policy kept", len(policies) == 1, _looks(day, day.from_s, day.to_s), says)


def _spread(day: Day) -> Finding:
    """Check that no engine receives more requests within HERD_S after the fault than it can run and queue."""
    limits = {
        engine.name: engine.max_num_seqs + QUEUE_PER_ENGINE for region in PLANET.regions for engine in region.engines
    }
    times: dict[str, list[float]] = {}
    for seen in sorted(day.sightings, key=lambda seen: seen.at_s):
        if seen.at_s >= day.to_s and seen.endpoint in limits:
            times.setdefault(seen.endpoint, []).append(seen.at_s)
    most = {
        endpoint: max(sum(at_s <= later < at_s + HERD_S for later in arrivals) for at_s in arrivals)
        for endpoint, arrivals in times.items()
    }
    over = {endpoint: count for endpoint, count in most.items() if count > limits[endpoint]}
    worst = max(most, key=lambda endpoint: most[endpoint] / limits[endpoint], default=None)
    says = "no engine received" if worst is None else f"{worst} received {most[worst]} of at most {limits[worst]}"
    says = f"{says} requests within {HERD_S:g} s after the end"
    return finding("no herd", not over, sum(map(len, times.values())), says)


def _slashed(plan: tuple[int, int]) -> str:
    return f"{plan[0]}/{plan[1]}"


def _avoided(fault: Fault, day: Day) -> Finding:
    before = _share(fault, day, 0.0, day.from_s)
    late = _share(fault, day, (day.from_s + day.to_s) / 2, day.to_s)
    passed = before is not None and late is not None and late <= LESS_SHARE * before
    says = (
        f"{fault.endpoint} received {percent(before)} of its pool's requests before the fault, {percent(late)} in "
        f"the last half of the fault (at most {LESS_SHARE:.0%} of its share before)"
    )
    return finding("avoided", passed, sum(day.from_s <= seen.at_s < day.to_s for seen in day.sightings), says)


def _share(fault: Fault, day: Day, from_s: float, to_s: float) -> float | None:
    """Return the share (0-1) that the endpoint received of its region's requests for its model."""
    models = {request.id: request.model for request in day.served}
    arrived = [seen for seen in day.sightings if seen.region == fault.region and from_s <= seen.at_s < to_s]
    model = next((models.get(seen.id) for seen in day.sightings if seen.endpoint == fault.endpoint), None)
    of_model = [seen for seen in arrived if models.get(seen.id) == model]
    return sum(seen.endpoint == fault.endpoint for seen in of_model) / len(of_model) if of_model else None


def _looks(day: Day, from_s: float, to_s: float) -> int:
    """Return the number of looks at the fleet in a period (s)."""
    return sum(from_s <= look.at_s <= to_s for look in day.looks)


def _first(looks: Iterable[Look], from_s: float, to_s: float, holds: Callable[[Look], bool]) -> float | None:
    """Return the time (s) from `from_s` until the first look for which `holds` is true; None without such a look."""
    return next((look.at_s - from_s for look in looks if from_s <= look.at_s <= to_s and holds(look)), None)


def _region(agent: str) -> str:
    return agent.partition("/")[0]
