"""What would become of a demand under a policy: who serves it, how far away, at what cost, and what is refused.

Every request goes the live road: admitted by `admit_at_origin` where it lands, sent on to a permitted entry where it
may not be there, planned for by the logic that the policy names. The plan is the one that is wanted in the end,
without the bounded steps towards it. What is beyond a tenant's quota counts as refused, and so does what a region is
asked for beyond its slots.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import islice

import msgspec

from penstock.fleet.report import AgentReport, DemandReport, PoolReport
from penstock.fleet.snapshot import HeldReport, Snapshot
from penstock.health.region_health import RegionHealth, RegionState
from penstock.planning.registry import OFFLINE_LIMIT_S, planner
from penstock.planning.share_moves import Key
from penstock.planning.tick_input import TickInput
from penstock.policy.model_versions import WHOLE_PERCENT, versions_of
from penstock.policy.policy import Policy
from penstock.policy.residency import ResidencyClass
from penstock.routing.reasons import Reason, Refusal
from penstock.what_if.entry_regions import Entered, Entrances
from penstock.what_if.outcomes import Asked, Capacity, Fate
from penstock.what_if.quota_share import let_in
from penstock.what_if.totals import Totals, totals


class Outcome(msgspec.Struct, frozen=True):
    """One policy's answer to a demand."""

    fates: tuple[Fate, ...]
    """In the order of the demand."""
    totals: Totals


def outcome(
    policy: Policy, demand: Sequence[Asked], fleet: Sequence[Capacity], lost: frozenset[str] = frozenset()
) -> Outcome:
    """What becomes of each kind of request, and of all of it.

    Args:
        fleet: what regions can run; what the policy does not know of it is passed over.
        lost: regions that have failed.
    """
    entered = Entrances(policy, fleet, lost)
    whole, demand = demand, [part for one in demand for part in _as_served(policy, one, entered)]
    verdicts = [entered.enter(one) for one in demand]
    parts_in = _let_in(policy, demand, verdicts, fleet)
    held = [
        msgspec.structs.replace(one, requests_per_s=part * one.requests_per_s)
        for one, part in zip(demand, parts_in, strict=True)
    ]
    shares = _planned(policy, held, verdicts, fleet, lost)
    pools = {(one.region, one.model): one for one in fleet if one.region not in lost}
    loads = _loads(held, verdicts, shares)
    served = {
        pool: min(1.0, pools[pool].slots / pools[pool].service_s / load) if load > 0.0 else 1.0
        for pool, load in loads.items()
    }
    fates = tuple(
        _fate(one, verdict, shares, served, part) for one, verdict, part in zip(demand, verdicts, parts_in, strict=True)
    )
    parts = iter(fates)
    versions = [_shares_of(policy, one) for one in whole]
    return Outcome(
        tuple(_together(list(islice(parts, len(one))), one) for one in versions),
        totals(policy, demand, fates, pools, loads),
    )


def _shares_of(policy: Policy, one: Asked) -> dict[str, float]:
    """The models that serve what is asked for by one name, with their shares (0-1): its versions, or itself."""
    versions = versions_of(policy, one.model)
    if versions is None:
        return {one.model: 1.0}
    return {version.model: version.percent / WHOLE_PERCENT for version in versions.versions}


def _as_served(policy: Policy, one: Asked, entrances: Entrances) -> list[Asked]:
    """A kind of request by version; for each the lighter model that stands in where no permitted region has it."""
    found = []
    for model, share in _shares_of(policy, one).items():
        part = msgspec.structs.replace(one, model=model, requests_per_s=share * one.requests_per_s)
        while (known := policy.models.get(part.model)) is not None and known.fallback is not None:
            verdict = entrances.enter(part)
            if isinstance(verdict, Refusal) or entrances.has(verdict[1], part.model):
                break
            part = msgspec.structs.replace(part, model=known.fallback)
        found.append(part)
    return found


def _together(parts: list[Fate], shares: dict[str, float]) -> Fate:
    """The fate of a kind of request from those of its versions."""
    if len(parts) == 1:
        return parts[0]
    servers: dict[str, float] = defaultdict(float)
    refused: dict[Reason, float] = defaultdict(float)
    for part, weight in zip(parts, shares.values(), strict=True):
        for server, share in part.servers.items():
            servers[server] += weight * share
        for reason, share in part.refused.items():
            refused[reason] += weight * share
    return Fate(parts[0].residency, parts[0].entry, dict(servers), dict(refused))


def _let_in(
    policy: Policy, demand: Sequence[Asked], verdicts: Sequence[Entered | Refusal], fleet: Sequence[Capacity]
) -> list[float]:
    """How much (0-1) of each kind of request its tenant's quota admits where it comes in."""
    times_s: dict[str, list[float]] = defaultdict(list)
    for one in fleet:
        times_s[one.model].append(one.service_s)
    return let_in(
        policy,
        [
            None if isinstance(verdict, Refusal) else (verdict[0], one.tenant, one.model, one.requests_per_s)
            for one, verdict in zip(demand, verdicts, strict=True)
        ],
        {model: sum(some) / len(some) for model, some in times_s.items()},
    )


def _planned(
    policy: Policy,
    demand: Sequence[Asked],
    verdicts: Sequence[Entered | Refusal],
    fleet: Sequence[Capacity],
    lost: frozenset[str],
) -> dict[Key, dict[str, float]]:
    """Shares by entry, model and class: the plan that the control plane would come to."""
    rates: dict[str, dict[tuple[str, ResidencyClass], float]] = defaultdict(lambda: defaultdict(float))
    for one, verdict in zip(demand, verdicts, strict=True):
        if not isinstance(verdict, Refusal):
            entry, permitted = verdict
            rates[entry][one.model, permitted] += one.requests_per_s
    agents = {
        (region, ""): HeldReport(_report(region, fleet, rates[region]), 0.0)
        for region in policy.regions
        if region not in lost
    }
    health = {
        name: RegionHealth(RegionState.FAILED if name in lost else RegionState.HEALTHY) for name in policy.regions
    }
    tick = TickInput(
        policy=policy,
        snapshot=Snapshot(agents, health),
        previous={},
        now=0.0,
        epoch=1,
        generation=1,
        elapsed_s=1.0,
    )
    plans = planner(policy.objective.plan_logic, OFFLINE_LIMIT_S).plan(tick).plans
    return {
        Key(origin, entry.model, entry.residency): {arc.server: arc.share for arc in entry.arcs}
        for origin, plan in plans.items()
        for entry in plan.classes
    }


def _report(region: str, fleet: Sequence[Capacity], rates: Mapping[tuple[str, ResidencyClass], float]) -> AgentReport:
    """What the region's only agent would report."""
    pools = tuple(
        PoolReport(one.model, 1, 1, one.slots, 0, one.service_s)
        for one in fleet
        if one.region == region and one.slots > 0
    )
    demand = tuple(
        DemandReport(model, permitted.name, tuple(sorted(permitted.regions)), rate)
        for (model, permitted), rate in rates.items()
    )
    return AgentReport(region, "", 1, 1, 0.0, pools, demand)


def _loads(
    demand: Sequence[Asked], verdicts: Sequence[Entered | Refusal], shares: Mapping[Key, Mapping[str, float]]
) -> dict[tuple[str, str], float]:
    """Requests per second that each pool is asked for, by (region, model)."""
    loads: dict[tuple[str, str], float] = defaultdict(float)
    for one, verdict in zip(demand, verdicts, strict=True):
        if not isinstance(verdict, Refusal):
            for server, share in shares.get(Key(verdict[0], one.model, verdict[1].name), {}).items():
                loads[server, one.model] += share * one.requests_per_s
    return dict(loads)


def _fate(
    one: Asked,
    verdict: Entered | Refusal,
    shares: Mapping[Key, Mapping[str, float]],
    served: Mapping[tuple[str, str], float],
    part: float,
) -> Fate:
    """What becomes of one kind of request, of which `part` (0-1) is within its tenant's quota."""
    if isinstance(verdict, Refusal):
        return Fate("", "", {}, {verdict.reason: 1.0})
    entry, permitted = verdict
    planned = shares.get(Key(entry, one.model, permitted.name))
    if not planned:
        return Fate(permitted.name, entry, {}, {Reason.NONE_READY: 1.0})
    servers = {server: part * share * served[server, one.model] for server, share in planned.items()}
    refused = {Reason.QUOTA_EXCEEDED: 1.0 - part, Reason.SATURATED: part - sum(servers.values())}
    return Fate(permitted.name, entry, servers, {reason: share for reason, share in refused.items() if share > 1e-9})
