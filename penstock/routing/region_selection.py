"""Where it should run: home or an arc of the plan, filtered by live health, spilling only where it was invited.

The order is fixed: what may never be (residency) was removed before; what cannot be (dead, draining, not ready) goes
next; then the plan's shares are drawn from what is left; only then may overflow leave on a spill credit.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from random import Random
from types import MappingProxyType

import msgspec

from penstock.admission.queueing import MIN_RETRY_S, retry_after_s
from penstock.health.region_health import RegionState
from penstock.planning.change_limit import ramped
from penstock.planning.plan import NONE_CLOSED, ArcReason, ClassPlan
from penstock.policy.policy import Policy
from penstock.policy.residency import ResidencyClass
from penstock.routing.reasons import Reason, Refusal, Rejection


class RegionView(msgspec.Struct, frozen=True):
    """What an origin knows of one region, for one model, at this moment. Its own region is one of them."""

    state: RegionState
    ready: bool
    """Some endpoint there can take the model."""
    weight: float = 1.0
    """0-1; how much of its share it may have while it ramps back."""
    expected_wait_s: float = 0.0
    credits: int = 0
    """Spill credits held from it."""


class Where(msgspec.Struct, frozen=True):
    """The serving region, why it is that one, and why the others are not."""

    region: str
    why: ArcReason
    spends_credit: bool
    """Beyond the plan's share: sending this request uses up one credit of the receiver."""
    rejected: tuple[Rejection, ...] = ()


class Prospect(msgspec.Struct, frozen=True):
    """One way that the choice of a region may go."""

    where: Where
    chance: float
    """0-1."""


NOTHING_TRIED: Mapping[str, Reason] = MappingProxyType({})
NOTHING_LIMITED: Mapping[str, str] = MappingProxyType({})

_UNUSABLE = {
    RegionState.UNKNOWN: Reason.REGION_UNKNOWN,
    RegionState.FAILED: Reason.REGION_FAILED,
    RegionState.DRAINING: Reason.REGION_DRAINING,
}


def choose_region(
    policy: Policy,
    origin: str,
    permitted: ResidencyClass,
    plan: ClassPlan | None,
    views: Mapping[str, RegionView],
    rng: Random,
    *,
    tried: Mapping[str, Reason] = NOTHING_TRIED,
    overflow: bool = False,
    ramp: float = 1.0,
    closed: Mapping[str, bool] = NONE_CLOSED,
    limited: Mapping[str, str] = NOTHING_LIMITED,
) -> Where | Refusal:
    """Pick the serving region for one request that landed on `origin`.

    Args:
        permitted: what the mask left; nothing outside it is even looked at.
        plan: the origin's plan for this traffic class; None where the planner has not seen it.
        views: live knowledge by region; one that is missing counts as unknown.
        rng: draws from the plan's shares.
        tried: regions that did not start this request, and why each did not.
        overflow: the origin's pool is full, so whoever takes this request must have granted a credit.
        ramp: how much (0-1) of a class without a plan the origin may serve itself, by its plan.
        closed: regions that take nothing but what the plan's arcs give them, and whether each is a last resort.
        limited: regions that a limit of spillover closes in the same way, each a resort before those, by the limit.
    """
    usable, rejected = _usable(permitted, views, tried)
    if closed or limited:
        usable = _open(plan, usable, closed, limited, tried, rejected)
    if not usable:
        return _nobody(permitted, views, rejected, tried)
    order = policy.nearest_first(origin, _nearest_of(usable, closed, limited))
    if overflow:
        return _invited(policy, origin, order, usable, views, rejected)
    shares, reasons = odds(plan, usable, tried, order, origin, ramp)
    region = rng.choices(list(shares), list(shares.values()))[0] if len(shares) > 1 else next(iter(shares))
    return _unless_better(policy, origin, region, reasons.get(region, ArcReason.FAILBACK), order, usable, rejected)


def prospects(
    policy: Policy,
    origin: str,
    permitted: ResidencyClass,
    plan: ClassPlan | None,
    views: Mapping[str, RegionView],
    *,
    tried: Mapping[str, Reason] = NOTHING_TRIED,
    overflow: bool = False,
    ramp: float = 1.0,
    closed: Mapping[str, bool] = NONE_CLOSED,
    limited: Mapping[str, str] = NOTHING_LIMITED,
) -> tuple[Prospect, ...] | Refusal:
    """Every way that `choose_region` may go with the same arguments, whatever is drawn."""
    usable, rejected = _usable(permitted, views, tried)
    if closed or limited:
        usable = _open(plan, usable, closed, limited, tried, rejected)
    if not usable:
        return _nobody(permitted, views, rejected, tried)
    order = policy.nearest_first(origin, _nearest_of(usable, closed, limited))
    if overflow:
        where = _invited(policy, origin, order, usable, views, rejected)
        return where if isinstance(where, Refusal) else (Prospect(where, 1.0),)
    shares, reasons = odds(plan, usable, tried, order, origin, ramp)
    whole = sum(shares.values())
    ways = []
    for region, share in shares.items():
        why = reasons.get(region, ArcReason.FAILBACK)
        where = _unless_better(policy, origin, region, why, order, usable, list(rejected))
        ways.append(Prospect(where, share / whole))
    return tuple(ways)


def soonest_retry_s(permitted: ResidencyClass, views: Mapping[str, RegionView]) -> float:
    """When a client that no permitted region has room for should come again (s): by the one with the shortest wait."""
    waits = [view.expected_wait_s for name in permitted.regions if (view := views.get(name)) is not None and view.ready]
    return retry_after_s(min(waits, default=0.0))


def is_usable(view: RegionView) -> bool:
    """Whether a region is believed to be there, and not about to be emptied."""
    return view.state not in _UNUSABLE


def stands_idle_elsewhere(
    origin: str, permitted: ResidencyClass, views: Mapping[str, RegionView], tried: Mapping[str, Reason]
) -> bool:
    """Whether another permitted region would start a request at once, if only it granted a credit."""
    return any(
        view.ready and view.expected_wait_s <= 0.0 and is_usable(view)
        for name in permitted.regions
        if name != origin and tried.get(name, Reason.SATURATED) is Reason.SATURATED
        if (view := views.get(name)) is not None
    )


def _usable(
    permitted: ResidencyClass, views: Mapping[str, RegionView], tried: Mapping[str, Reason]
) -> tuple[dict[str, RegionView], list[Rejection]]:
    usable: dict[str, RegionView] = {}
    rejected: list[Rejection] = []
    for region in sorted(permitted.regions):
        view = views.get(region)
        if region in tried:
            rejected.append(Rejection(region, Reason.ALREADY_TRIED, tried[region]))
        elif view is None or view.state in _UNUSABLE:
            rejected.append(Rejection(region, _UNUSABLE[view.state if view else RegionState.UNKNOWN]))
        elif not view.ready:
            rejected.append(Rejection(region, Reason.MODEL_NOT_READY))
        else:
            usable[region] = view
    return usable, rejected


def _nobody(
    permitted: ResidencyClass,
    views: Mapping[str, RegionView],
    rejected: list[Rejection],
    tried: Mapping[str, Reason],
) -> Refusal:
    busy = Reason.SATURATED in tried.values()
    return Refusal(
        Reason.SATURATED if busy else Reason.NONE_READY,
        "every permitted region that serves this model is full"
        if busy
        else "no permitted region is ready for this model",
        tuple(rejected),
        retry_after_s=soonest_retry_s(permitted, views) if busy else MIN_RETRY_S,
    )


def _nearest_of(
    usable: Mapping[str, RegionView], closed: Mapping[str, bool], limited: Mapping[str, str]
) -> frozenset[str]:
    """The regions that may be taken for being near: resorts only where there is nobody else."""
    names = frozenset(usable)
    if closed or limited:
        return names - closed.keys() - limited.keys() or names
    return names


def _open(
    plan: ClassPlan | None,
    usable: dict[str, RegionView],
    closed: Mapping[str, bool],
    limited: Mapping[str, str],
    tried: Mapping[str, Reason],
    rejected: list[Rejection],
) -> dict[str, RegionView]:
    """Without the closed regions that the plan gives nothing; where none else is there, with those that only a limit of
    spillover closes; and where there are none of these, with those that are being emptied and are a last resort.

    A region that is merely full is there: what waits for it must not fill one that is being emptied.
    """
    resorts = {**dict.fromkeys(limited, 1), **dict.fromkeys(closed, 2)}
    given = {arc.server for arc in plan.arcs if arc.share > 0.0} if plan is not None else set()
    left = {name: view for name, view in usable.items() if name not in resorts or name in given}
    full = [resorts.get(name, 0) for name, reason in tried.items() if reason is Reason.SATURATED]
    for resort in (1, 2):
        if not left and all(one >= resort for one in full):
            left = {name: view for name, view in usable.items() if resorts[name] == resort and closed.get(name, True)}
    rejected += [
        Rejection(name, Reason.SPILLOVER_LIMIT, limited[name])
        if resorts[name] == 1
        else Rejection(name, Reason.REGION_DRAINING)
        for name in usable
        if name not in left
    ]
    return left


def odds(
    plan: ClassPlan | None,
    usable: Mapping[str, RegionView],
    tried: Mapping[str, Reason],
    order: tuple[str, ...],
    origin: str,
    ramp: float,
) -> tuple[dict[str, float], dict[str, ArcReason]]:
    """The plan's shares over what is usable, and why each; where the plan leaves nothing to draw from, the nearest.

    What a dead arc had goes as the plan's failover table says, else to the others in proportion; what a failback ramp
    withholds goes as `ramped` says, and has no reason of its own.
    """
    arcs = [arc for arc in plan.arcs if arc.server in usable and arc.share > 0.0] if plan is not None else []
    ramps = {name: usable[name].weight for name in order if usable[name].weight < 1.0}
    shares = {arc.server: arc.share for arc in arcs}
    reasons = {arc.server: arc.why for arc in arcs}
    if plan is not None and plan.detours and len(arcs) < len(plan.arcs):
        _detour(plan, usable, tried, shares)
        reasons |= {
            server: ArcReason.HOME if server == origin else ArcReason.FAILOVER
            for server in shares.keys() - reasons.keys()
        }
    if shares:
        whole = sum(shares.values())
        shares = {server: share / whole for server, share in shares.items()}
    else:
        nearest = order[0]
        shares = {nearest: 1.0}
        reasons = {nearest: ArcReason.HOME if nearest == origin else ArcReason.FAILOVER}
        if ramp < 1.0:
            ramps[origin] = ramp
    if ramps:
        shares = ramped(shares, ramps, order)
    if plan is not None and 0 < len(arcs) < len(plan.arcs):
        at_home = reasons.get(origin, ArcReason.FAILBACK)
        reasons = dict.fromkeys(shares, ArcReason.FAILOVER) | {origin: at_home}
    return shares, reasons


def _detour(
    plan: ClassPlan, usable: Mapping[str, RegionView], tried: Mapping[str, Reason], shares: dict[str, float]
) -> None:
    """Add to `shares` what lost regions had, as the failover table spreads it over those that are there.

    A region that only refused this one request is not lost, and what it had does not follow the table.
    """
    tables = {way.lost: way.arcs for way in plan.detours}
    for arc in plan.arcs:
        if arc.server in usable or arc.server in tried or arc.share <= 0.0:
            continue
        takers = [one for one in tables.get(arc.server, ()) if one.server in usable]
        whole = sum([one.share for one in takers])
        for one in takers:
            shares[one.server] = shares.get(one.server, 0.0) + arc.share * one.share / whole


def _invited(
    policy: Policy,
    origin: str,
    order: tuple[str, ...],
    usable: Mapping[str, RegionView],
    views: Mapping[str, RegionView],
    rejected: list[Rejection],
) -> Where | Refusal:
    """Of the regions that granted a credit, the one that starts the request soonest.

    None is better than to wait at home where that is over sooner than the trip and the margin: saturated, for now. A
    home that is full though its estimate says that nobody waits has been proved wrong by an engine.
    """
    home = views.get(origin)
    home_s = home.expected_wait_s if home is not None and home.ready else 0.0
    worth_s = home_s - policy.spillover.margin_s if home_s > 0.0 else inf
    best, best_s = None, worth_s
    ordered = origin in policy.spillover_orders
    for name in order:
        start_s = usable[name].expected_wait_s + policy.round_trip_ms(origin, name) / 1000
        if name == origin:
            continue
        if usable[name].credits <= 0:
            rejected.append(Rejection(name, Reason.NO_CREDIT))
        elif start_s < best_s and (best is None or not ordered):
            best, best_s = name, start_s
        elif start_s >= worth_s:
            rejected.append(Rejection(name, Reason.NOT_WORTH_THE_TRIP, f"would start in {start_s:.3f} s"))
    if best is None:
        return Refusal(
            Reason.SATURATED,
            f"{origin} is full and no other permitted region has granted room that is worth the trip",
            tuple(rejected),
            retry_after_s=retry_after_s(home_s),
        )
    return Where(best, ArcReason.SPILLOVER, spends_credit=True, rejected=tuple(rejected))


def _unless_better(
    policy: Policy,
    origin: str,
    region: str,
    why: ArcReason,
    order: tuple[str, ...],
    usable: Mapping[str, RegionView],
    rejected: list[Rejection],
) -> Where:
    """`region`, or where its overflow is better off."""
    spill = _better_elsewhere(policy, origin, region, order, usable, rejected)
    if spill is not None:
        return Where(spill, ArcReason.SPILLOVER, spends_credit=True, rejected=tuple(rejected))
    return Where(region, why, spends_credit=False, rejected=tuple(rejected))


def _better_elsewhere(
    policy: Policy,
    origin: str,
    region: str,
    order: tuple[str, ...],
    usable: Mapping[str, RegionView],
    rejected: list[Rejection],
) -> str | None:
    """A region that has invited us and would start this request sooner by more than the trip and the margin.

    Only overflow of the origin itself spills; what the plan already sends away is the receiver's business.
    """
    if region != origin or usable[origin].expected_wait_s <= 0.0:
        return None
    best, best_s = None, usable[origin].expected_wait_s - policy.spillover.margin_s
    for name in order:
        if name == origin:
            continue
        start_s = usable[name].expected_wait_s + policy.round_trip_ms(origin, name) / 1000
        if usable[name].credits <= 0:
            rejected.append(Rejection(name, Reason.NO_CREDIT))
        elif start_s >= best_s:
            rejected.append(Rejection(name, Reason.NOT_WORTH_THE_TRIP, f"would start in {start_s:.3f} s"))
        elif best is None or origin not in policy.spillover_orders:
            best, best_s = name, start_s
    return best
