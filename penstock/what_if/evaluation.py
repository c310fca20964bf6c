"""Evaluates a demand under a policy: the regions that serve it, round trips, cost, and the share rejected.

The evaluation uses the functions of the live system: `authorize_at_origin` authorizes each request at its origin or
redirects it to a permitted entry region, and the linear program's planner assigns regions. The plan is final,
without the bounded steps towards it; shares that a freeze keeps stay as they are. Demand beyond a tenant's budgets or
beyond a region's slots counts as rejected.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec
from msgspec import UNSET

from penstock.fleet.report import AgentReport, DemandReport, GroupReport, PoolReport
from penstock.fleet.snapshot import HeldReport, Snapshot
from penstock.health.region_health import RegionHealth, RegionState
from penstock.overrides.override_effects import NO_INTERVENTIONS, Interventions
from penstock.planning.linear_program.flow_planner import OFFLINE_LIMIT_S, FlowPlanner
from penstock.planning.plan import RegionPlan
from penstock.planning.share_moves import Key
from penstock.planning.tick_input import TickInput
from penstock.policy.kinds.budgets import BudgetScope, BudgetUnit
from penstock.policy.model_versions import WHOLE_PERCENT, reserved_model, versions_of
from penstock.policy.policy import Policy
from penstock.policy.residency import ResidencyClass
from penstock.routing.reasons import Reason, Refusal
from penstock.scaling.replicas import EndpointCapacity, Expected, needs
from penstock.what_if.demand_outcomes import Capacity, DemandGroup, DemandOutcome, Evaluation
from penstock.what_if.entry_regions import Entered, EntryResolver
from penstock.what_if.shared_slots import burst_shares, served_shares
from penstock.what_if.totals import Loads, totals

FINAL_S = 1e9
"""Time (s) since the shares that a freeze keeps: what else applies to these has had its effect."""


class Moment(NamedTuple):
    """What is in force when a demand is evaluated, besides its policy."""

    interventions: Interventions = NO_INTERVENTIONS
    """The overrides and maintenance windows."""
    now: float | None = None
    """Unix time (s), of the prices; None uses each `cost_per_gpu_hour`."""
    plans: Sequence[RegionPlan] = ()
    """The plan, whose shares a freeze keeps."""


ANY_MOMENT = Moment()


class _Fleet(NamedTuple):
    """The state of the fleet that a plan is computed for."""

    capacities: Sequence[Capacity]
    lost: frozenset[str]
    interventions: Interventions
    now: float
    plans: Sequence[RegionPlan]


def evaluate_demand(
    policy: Policy,
    demand: Sequence[DemandGroup],
    fleet: Sequence[Capacity],
    lost: frozenset[str] = frozenset(),
    moment: Moment = ANY_MOMENT,
) -> Evaluation:
    """Evaluate each group of a demand, and the demand as a whole.

    Args:
        policy: the policy to evaluate.
        demand: the groups to evaluate, with rates in requests per second.
        fleet: capacity by region and model; entries for regions or models that the policy lacks are ignored.
        lost: regions that have failed.
        moment: what is in force besides the policy.
    """
    interventions, now, plans = moment
    if now is None:
        now, policy = 0.0, _without_price_hours(policy)
    resolver = EntryResolver(policy, fleet, lost, frozenset(interventions.drained))
    whole, demand = demand, [part for group in demand for part in _as_served(policy, group, resolver)]
    verdicts = [resolver.enter(group) for group in demand]
    parts_in = _admitted_shares(policy, demand, verdicts, fleet)
    held = [
        msgspec.structs.replace(group, requests_per_s=part * group.requests_per_s)
        for group, part in zip(demand, parts_in, strict=True)
    ]
    shares = _planned(policy, held, verdicts, _Fleet(fleet, lost, interventions, now, plans))
    pools = {(pool.region, pool.model): pool for pool in fleet if pool.region not in lost}
    loads = _loads(held, verdicts, shares)
    own = served_shares(pools, loads)
    burst = burst_shares(policy, pools, loads, own)
    served = {at: share + burst.get(at, 0.0) for at, share in own.items()}
    demand_outcomes = tuple(
        _demand_outcome(group, verdict, shares, served, part)
        for group, verdict, part in zip(demand, verdicts, parts_in, strict=True)
    )
    parts = iter(demand_outcomes)
    versions = [_shares_of(policy, group) for group in whole]
    return Evaluation(
        tuple(_merged(list(islice(parts, len(shares_of))), shares_of) for shares_of in versions),
        msgspec.structs.replace(
            totals(policy, demand, demand_outcomes, Loads(pools, loads, burst, served), now),
            needed_endpoints=_needed_endpoints(policy, held, verdicts, pools.values()),
        ),
    )


def _without_price_hours(policy: Policy) -> Policy:
    if not any(region.price_hours or region.spot for region in policy.regions.values()):
        return policy
    without = msgspec.structs.replace
    regions = {
        name: without(
            region, price_hours=UNSET, spot=tuple(without(pool, price_hours=UNSET) for pool in region.spot or ())
        )
        for name, region in policy.regions.items()
    }
    return without(policy, regions=regions)


def _needed_endpoints(
    policy: Policy,
    demand: Sequence[DemandGroup],
    verdicts: Sequence[Entered | Refusal],
    pools: Iterable[Capacity],
) -> dict[str, dict[str, int]]:
    """The endpoints that each region needs for each model, as the leader recommends them."""
    expected: dict[Key, Expected] = {}
    for group, verdict in zip(demand, verdicts, strict=True):
        if not isinstance(verdict, Refusal):
            entry, permitted = verdict
            key = Key(entry, group.model, permitted.name)
            before = expected[key].requests_per_s if key in expected else 0.0
            expected[key] = Expected(before + group.requests_per_s, permitted.regions)
    sizes = {
        (pool.region, pool.model): EndpointCapacity(
            pool.slots_per_endpoint or policy.models[pool.model].scaling.slots_per_endpoint, pool.service_s
        )
        for pool in pools
        if pool.model in policy.models
    }
    found: dict[str, dict[str, int]] = {}
    for (region, model), need in sorted(needs(policy, sizes, expected).items()):
        found.setdefault(region, {})[model] = need.endpoints
    return found


def _shares_of(policy: Policy, group: DemandGroup) -> dict[str, float]:
    """Shares (0-1) by model that serves a requested model name: its versions, or the model itself."""
    versions = versions_of(policy, group.model)
    if versions is None:
        return {group.model: 1.0}
    tenant = policy.senders.get(group.tenant)
    served_by = None if tenant is None else reserved_model(versions, tenant)
    if served_by is not None:
        return {served_by: 1.0}
    return {version.model: version.percent / WHOLE_PERCENT for version in versions.versions}


def _as_served(policy: Policy, group: DemandGroup, resolver: EntryResolver) -> list[DemandGroup]:
    """Split a group by model version, with the fallback model where no permitted region runs the version."""
    found = []
    for model, share in _shares_of(policy, group).items():
        part = msgspec.structs.replace(group, model=model, requests_per_s=share * group.requests_per_s)
        while (known := policy.models.get(part.model)) is not None and known.fallback is not None:
            verdict = resolver.enter(part)
            if isinstance(verdict, Refusal) or resolver.has(verdict[1], part.model):
                break
            part = msgspec.structs.replace(part, model=known.fallback)
        found.append(part)
    return found


def _merged(parts: list[DemandOutcome], shares: dict[str, float]) -> DemandOutcome:
    """Merge the outcomes of a group's model versions, weighted by their shares."""
    if len(parts) == 1:
        return parts[0]
    servers: dict[str, float] = defaultdict(float)
    refused: dict[Reason, float] = defaultdict(float)
    for part, weight in zip(parts, shares.values(), strict=True):
        for server, share in part.servers.items():
            servers[server] += weight * share
        for reason, share in part.refused.items():
            refused[reason] += weight * share
    return DemandOutcome(parts[0].residency, parts[0].entry, dict(servers), dict(refused))


def _admitted_shares(
    policy: Policy, demand: Sequence[DemandGroup], verdicts: Sequence[Entered | Refusal], fleet: Sequence[Capacity]
) -> list[float]:
    """Share (0-1) of each group that its tenant's budgets of requests and of concurrent requests admit, in the steady
    state. A budget of the fleet refuses the same share in all regions.

    Bursts are ignored, and so are budgets of what the demand does not state: tokens, GPU time and money. Concurrency is
    the rate times the service time (Little's law), which is the mean of the fleet or else the policy's expected service
    time. The tenant that represents those that the API creates with a tier has no budget, since it stands for several.
    """
    times_s: dict[str, list[float]] = defaultdict(list)
    for pool in fleet:
        times_s[pool.model].append(pool.service_s)
    rates: dict[tuple[str, str], float] = defaultdict(float)
    running: dict[tuple[str, str], float] = defaultdict(float)
    for group, verdict in zip(demand, verdicts, strict=True):
        if not isinstance(verdict, Refusal):
            times = times_s.get(group.model, [policy.models[group.model].expected_service_s])
            for where in (verdict[0], ""):
                rates[where, group.tenant] += group.requests_per_s
                running[where, group.tenant] += group.requests_per_s * sum(times) / len(times)
    shares = {}
    for entry, tenant in rates:
        known = policy.tenants.get(tenant)
        share = 1.0
        for budget in () if known is None else known.budgets:
            where = entry if budget.scope is BudgetScope.REGION else ""
            if budget.unit is BudgetUnit.REQUESTS:
                share = min(share, budget.per_s / rates[where, tenant])
            elif budget.unit is BudgetUnit.CONCURRENT_REQUESTS:
                share = min(share, budget.limit / running[where, tenant])
        shares[entry, tenant] = share
    return [
        1.0 if isinstance(verdict, Refusal) else shares[verdict[0], group.tenant]
        for group, verdict in zip(demand, verdicts, strict=True)
    ]


def _planned(
    policy: Policy,
    demand: Sequence[DemandGroup],
    verdicts: Sequence[Entered | Refusal],
    fleet: _Fleet,
) -> dict[Key, dict[str, float]]:
    """Plan shares by entry region, model and residency class, as the control plane would compute them."""
    rates: dict[str, dict[tuple[str, ResidencyClass], float]] = defaultdict(lambda: defaultdict(float))
    for group, verdict in zip(demand, verdicts, strict=True):
        if not isinstance(verdict, Refusal):
            entry, permitted = verdict
            rates[entry][group.model, permitted] += group.requests_per_s
    agents = {
        (region, ""): HeldReport(_report(region, fleet, rates[region]), fleet.now)
        for region in policy.regions
        if region not in fleet.lost
    }
    health = {
        name: RegionHealth(RegionState.FAILED if name in fleet.lost else RegionState.HEALTHY) for name in policy.regions
    }
    tick = TickInput(
        policy=policy,
        snapshot=Snapshot(agents, health),
        previous=_frozen(fleet),
        now=fleet.now,
        epoch=1,
        generation=1,
        elapsed_s=FINAL_S,
        interventions=fleet.interventions,
    )
    plans = FlowPlanner(OFFLINE_LIMIT_S).plan(tick).plans
    return {
        Key(origin, entry.model, entry.residency): {arc.server: arc.share for arc in entry.arcs}
        for origin, plan in plans.items()
        for entry in plan.classes
    }


def _frozen(fleet: _Fleet) -> dict[str, RegionPlan]:
    """The entries of the plan in force that a freeze concerns, by origin."""
    found = {}
    for plan in fleet.plans:
        kept = [entry for entry in plan.classes if fleet.interventions.of(plan.region, entry.model).frozen]
        if kept:
            found[plan.region] = msgspec.structs.replace(plan, classes=tuple(kept))
    return found


def _report(region: str, fleet: _Fleet, rates: Mapping[tuple[str, ResidencyClass], float]) -> AgentReport:
    """The report that a single agent of the region would send."""
    pools = tuple(
        PoolReport(pool.model, 1, 1, pool.slots, 0, pool.service_s)
        for pool in fleet.capacities
        if pool.region == region and pool.slots > 0
    )
    demand = tuple(
        DemandReport(model, permitted.name, tuple(sorted(permitted.regions)), rate)
        for (model, permitted), rate in rates.items()
    )
    shared = {
        group.models: GroupReport(group.models, 1, 1, int(group.slots), 0)
        for pool in fleet.capacities
        if pool.region == region
        for group in pool.shared
    }
    return AgentReport(region, "", 1, 1, fleet.now, pools, demand, groups=tuple(shared.values()))


def _loads(
    demand: Sequence[DemandGroup], verdicts: Sequence[Entered | Refusal], shares: Mapping[Key, Mapping[str, float]]
) -> dict[tuple[str, str], float]:
    """Offered load of each pool in requests per second, by (region, model)."""
    loads: dict[tuple[str, str], float] = defaultdict(float)
    for group, verdict in zip(demand, verdicts, strict=True):
        if not isinstance(verdict, Refusal):
            for server, share in shares.get(Key(verdict[0], group.model, verdict[1].name), {}).items():
                loads[server, group.model] += share * group.requests_per_s
    return dict(loads)


def _demand_outcome(
    group: DemandGroup,
    verdict: Entered | Refusal,
    shares: Mapping[Key, Mapping[str, float]],
    served: Mapping[tuple[str, str], float],
    part: float,
) -> DemandOutcome:
    """The outcome of one group of the demand, of which `part` (0-1) is within its tenant's budgets."""
    if isinstance(verdict, Refusal):
        return DemandOutcome("", "", {}, {verdict.reason: 1.0})
    entry, permitted = verdict
    planned = shares.get(Key(entry, group.model, permitted.name))
    if not planned:
        return DemandOutcome(permitted.name, entry, {}, {Reason.NONE_READY: 1.0})
    servers = {server: part * share * served[server, group.model] for server, share in planned.items()}
    refused = {Reason.QUOTA_EXCEEDED: 1.0 - part, Reason.SATURATED: part - sum(servers.values())}
    return DemandOutcome(
        permitted.name, entry, servers, {reason: share for reason, share in refused.items() if share > 1e-9}
    )
