"""Selects the serving region of a request: the plan's shares over live health, and spillover on spill credits.

The order of the steps is fixed. Residency has removed forbidden regions before. Regions that are unknown, failed,
draining or not ready are removed next. The plan's shares apply to the regions that remain. Only then may overflow leave
the origin, and only on a spill credit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from random import Random
from types import MappingProxyType
from typing import Final

import msgspec

from penstock.admission.retry_after import MIN_RETRY_S, retry_after_s
from penstock.health.region_health import RegionState
from penstock.planning.plan import NONE_CLOSED, ArcReason, ClassPlan
from penstock.planning.share_change_limit import ramped
from penstock.policy.policy import Policy
from penstock.policy.residency import ResidencyClass
from penstock.routing.batch_price import BatchWork
from penstock.routing.prefixes.region_prefixes import NOTHING_SPARED
from penstock.routing.reasons import Reason, Refusal, Rejection
from penstock.routing.session_home import home_of


class RegionView(msgspec.Struct, frozen=True):
    """The current state of one region for one model, in the view of an origin; the origin has a view of itself too."""

    state: RegionState
    ready: bool
    """Whether an endpoint of the region can serve the model."""
    weight: float = 1.0
    """Part (0-1) of its share that the region may receive; below 1 during its failback ramp."""
    expected_wait_s: float = 0.0
    credits: int = 0
    """Spill credits that the region granted to this origin."""
    context_tokens: int = 0
    """Largest context length (tokens) of the region's endpoints for the model; 0 if unknown."""
    batch_room: int = 0
    """Batch requests that may start in the region now: batch credits that it granted to this origin, or idle slots of
    the origin itself."""
    slots: int = 0
    """Slots of another region, by its last answer; 0 if unknown."""
    in_use: int = 0
    """Slots of another region that are in use or promised: by its last answer, and by what was sent there since."""
    extends_text: bool = False
    """Whether a ready endpoint of the region can extend the text of an answer."""
    burst_room: int = 0
    """Requests of this origin that burst endpoints of another region may serve now."""
    burst_start_s: float = 0.0
    """Expected time (s) until a server of these endpoints runs; 0 if one runs."""


class RegionChoice(msgspec.Struct, frozen=True):
    """The serving region, the reason for it, and the reasons against the others."""

    region: str
    why: ArcReason
    spends_credit: bool
    """Whether the request exceeds the plan's share and uses one spill credit of the region."""
    rejected: tuple[Rejection, ...] = ()
    uses_burst: bool = False
    """Whether a burst endpoint of the region is to serve the request, since no region has a slot for it."""


class RegionOption(msgspec.Struct, frozen=True):
    """One possible choice and its probability."""

    choice: RegionChoice
    probability: float
    """Probability (0-1) of the choice; for a session, its share, by which the session's home is found."""
    planned: str = ""
    """The region to which the share belongs; `choice` differs where the request spills. Empty for the only choice."""


NOTHING_TRIED: Mapping[str, Reason] = MappingProxyType({})
NOTHING_LIMITED: Mapping[str, str] = MappingProxyType({})

_UNUSABLE = {
    RegionState.UNKNOWN: Reason.REGION_UNKNOWN,
    RegionState.FAILED: Reason.REGION_FAILED,
    RegionState.DRAINING: Reason.REGION_DRAINING,
}


class RegionRequest(msgspec.Struct, frozen=True):
    """One request for which a region is selected."""

    origin: str
    """The region at which the request arrived."""
    model: str
    permitted: ResidencyClass
    """No other region is considered."""
    tried: Mapping[str, Reason] = NOTHING_TRIED
    """Regions that did not start this request, and the reason of each."""
    overflow: bool = False
    """Whether the origin's pool is full, so that only a region that granted a spill credit may serve."""
    session: int | None = None
    """Key of the session that the request belongs to, which has a home among the regions; None: drawn by the shares."""
    may_spill: bool = True
    """Whether the request may use a spill credit; not while requests of higher priorities wait."""
    cached_s: float = 0.0
    """Prefill (s) that the origin's caches spare the request, and another region would have to compute: sessions with
    little cached spill first."""
    stays_in: str = ""
    """The region to which the session has spilled: it stays there while the region grants credits; empty for none."""
    spared_s: Mapping[str, float] = NOTHING_SPARED
    """Prefill (s) that the caches of other regions spare the request: overflow prefers them by that much."""
    batch_at: float | None = None
    """Unix time (s) at which a batch request, which is below all priorities, is placed; None for other requests."""
    max_use: float = 1.0
    """Part (0-1] of a region's slots up to which the batch request starts."""
    batch_work: BatchWork | None = None
    """What the batch request uses, by which regions are compared; None for a mean request by the policy."""
    service_s: float = 0.0
    """Expected time (s) of the request on a burst endpoint whose server runs; 0 if none is compared."""


class Closures(msgspec.Struct, frozen=True):
    """What keeps traffic from regions, beside their health."""

    ramp: float = 1.0
    """Part (0-1) of a class without a plan that the origin may serve itself while it returns."""
    closed: Mapping[str, bool] = NONE_CLOSED
    """Regions that receive only the shares of the plan's arcs, and whether each is a last resort."""
    limited: Mapping[str, str] = NOTHING_LIMITED
    """Regions closed in the same way by a spillover limit, with the limit; each is used before those in `closed`."""


NO_CLOSURES: Final = Closures()


def region_options(
    policy: Policy,
    plan: ClassPlan | None,
    request: RegionRequest,
    views: Mapping[str, RegionView],
    closures: Closures = NO_CLOSURES,
) -> tuple[RegionOption, ...] | Refusal:
    """Every possible choice of a serving region for one request, with its probability.

    Args:
        plan: the origin's plan for this traffic class; None if the plan has no entry for the class.
        views: state by region; a region without one counts as unknown.
    """
    origin, tried = request.origin, request.tried
    closed, limited = closures.closed, closures.limited
    usable, rejected = usable_regions(plan, request, views, closures)
    if not usable:
        return no_region(request, views, rejected)
    spilled = usable.get(request.stays_in)
    if spilled is not None and spilled.credits > 0 and request.may_spill:
        stays = RegionChoice(request.stays_in, ArcReason.SPILLOVER, spends_credit=True, rejected=tuple(rejected))
        return (RegionOption(stays, 1.0),)
    order = policy.nearest_first(origin, _nearest_of(usable, closed, limited))
    if request.overflow and not request.may_spill:
        detail = f"{origin} is full, and requests of higher priority wait for spill credits"
        return Refusal(Reason.SATURATED, detail, tuple(rejected), retry_after_s=MIN_RETRY_S)
    if request.overflow:
        choice = _overflow(policy, request, order, usable, views, rejected)
        return choice if isinstance(choice, Refusal) else (RegionOption(choice, 1.0),)
    shares, reasons = plan_shares(plan, usable, tried, order, origin, closures.ramp)
    total = sum(shares.values())
    options = []
    for region, share in shares.items():
        noted, spill = list(rejected), None
        wait_s = usable[region].expected_wait_s
        # Only requests that would wait at the origin spill: the receiver of a planned arc resolves its own wait.
        if region == origin and wait_s > 0.0 and request.may_spill:
            worth_s = wait_s - policy.spillover.margin_s - request.cached_s
            spill = _spill_region(policy, request, order, usable, worth_s, noted)
        reason = reasons.get(region, ArcReason.FAILBACK) if spill is None else ArcReason.SPILLOVER
        choice = RegionChoice(spill or region, reason, spends_credit=spill is not None, rejected=tuple(noted))
        options.append(RegionOption(choice, share / total, region))
    return tuple(options)


def draw(options: Sequence[RegionOption], rng: Random, session: int | None = None) -> RegionChoice:
    """Return the choice of a session's home; without a session, draw one of the choices by its probability."""
    if len(options) == 1:
        return options[0].choice
    if session is not None:
        home = home_of(session, {option.planned: option.probability for option in options})
        return next(option.choice for option in options if option.planned == home)
    return rng.choices(options, [option.probability for option in options])[0].choice


def soonest_retry_s(permitted: ResidencyClass, views: Mapping[str, RegionView]) -> float:
    """Time (s) after which a client refused for lack of capacity should retry, by the shortest wait in the views."""
    waits = [view.expected_wait_s for name in permitted.regions if (view := views.get(name)) is not None and view.ready]
    return retry_after_s(min(waits, default=0.0))


def is_usable(view: RegionView) -> bool:
    """Whether a region's state allows new requests."""
    return view.state not in _UNUSABLE


def idle_region_exists(
    origin: str, permitted: ResidencyClass, views: Mapping[str, RegionView], tried: Mapping[str, Reason]
) -> bool:
    """Whether another permitted region would start a request at once if it granted a credit."""
    return any(
        view.ready and view.expected_wait_s <= 0.0 and is_usable(view)
        for name in permitted.regions
        if name != origin and tried.get(name, Reason.SATURATED) is Reason.SATURATED
        if (view := views.get(name)) is not None
    )


def usable_regions(
    plan: ClassPlan | None, request: RegionRequest, views: Mapping[str, RegionView], closures: Closures
) -> tuple[dict[str, RegionView], list[Rejection]]:
    """The permitted regions that can serve a request and are open to it, and the reasons against the others.

    Args:
        plan: gives closed regions their remaining shares; None for no shares.
    """
    permitted, tried = request.permitted, request.tried
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
    if closures.closed or closures.limited:
        usable = _open(plan, usable, closures.closed, closures.limited, tried, rejected)
    return usable, rejected


def no_region(request: RegionRequest, views: Mapping[str, RegionView], rejected: list[Rejection]) -> Refusal:
    """The refusal of a request for which no region is usable."""
    permitted, full = request.permitted, Reason.SATURATED in request.tried.values()
    return Refusal(
        Reason.SATURATED if full else Reason.NONE_READY,
        "every permitted region that serves this model is full"
        if full
        else "no permitted region is ready for this model",
        tuple(rejected),
        retry_after_s=soonest_retry_s(permitted, views) if full else MIN_RETRY_S,
    )


def _nearest_of(
    usable: Mapping[str, RegionView], closed: Mapping[str, bool], limited: Mapping[str, str]
) -> frozenset[str]:
    """The regions that proximity may select: closed and limited regions only if no other region is usable."""
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
    """Removes the closed and limited regions to which the plan gives no share.

    If no region remains, the limited regions are used; if there are none, the closed regions that are a last resort.
    Regions of a later step are not used if a region of an earlier step refused this request because it is full:
    overflow must not fill a region that is being emptied.
    """
    resorts = {**dict.fromkeys(limited, 1), **dict.fromkeys(closed, 2)}
    given = {arc.server for arc in plan.arcs if arc.share > 0.0} if plan is not None else set()
    left = {name: view for name, view in usable.items() if name not in resorts or name in given}
    full = [resorts.get(name, 0) for name, reason in tried.items() if reason is Reason.SATURATED]
    for resort in (1, 2):
        if not left and all(level >= resort for level in full):
            left = {name: view for name, view in usable.items() if resorts[name] == resort and closed.get(name, True)}
    rejected += [
        Rejection(name, Reason.SPILLOVER_LIMIT, limited[name])
        if resorts[name] == 1
        else Rejection(name, Reason.REGION_DRAINING)
        for name in usable
        if name not in left
    ]
    return left


def plan_shares(
    plan: ClassPlan | None,
    usable: Mapping[str, RegionView],
    tried: Mapping[str, Reason],
    order: tuple[str, ...],
    origin: str,
    ramp: float,
) -> tuple[dict[str, float], dict[str, ArcReason]]:
    """The plan's shares over the usable regions, and the reason of each; the nearest region if no share remains.

    The plan's failover table assigns the share of a lost region; without a table, the other arcs receive the share in
    proportion. `ramped` assigns the part that a failback ramp withholds; that part has no reason of its own.

    Args:
        order: usable regions, the nearest first.
    """
    arcs = [arc for arc in plan.arcs if arc.server in usable and arc.share > 0.0] if plan is not None else []
    ramps = {name: usable[name].weight for name in order if usable[name].weight < 1.0}
    shares = {arc.server: arc.share for arc in arcs}
    reasons = {arc.server: arc.why for arc in arcs}
    if plan is not None and plan.failover_tables and len(arcs) < len(plan.arcs):
        _apply_failover_tables(plan, usable, tried, shares)
        reasons |= {
            server: ArcReason.HOME if server == origin else ArcReason.FAILOVER
            for server in shares.keys() - reasons.keys()
        }
    if shares:
        total = sum(shares.values())
        shares = {server: share / total for server, share in shares.items()}
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


def _apply_failover_tables(
    plan: ClassPlan, usable: Mapping[str, RegionView], tried: Mapping[str, Reason], shares: dict[str, float]
) -> None:
    """Adds the shares of lost regions to the `shares` of usable regions, in the proportions of the failover tables.

    A region that only refused this request is not lost, and its share does not follow the table.
    """
    tables = {table.lost: table.arcs for table in plan.failover_tables}
    for arc in plan.arcs:
        if arc.server in usable or arc.server in tried or arc.share <= 0.0:
            continue
        targets = [target for target in tables.get(arc.server, ()) if target.server in usable]
        total = sum([target.share for target in targets])
        for target in targets:
            shares[target.server] = shares.get(target.server, 0.0) + arc.share * target.share / total


def _overflow(
    policy: Policy,
    request: RegionRequest,
    order: tuple[str, ...],
    usable: Mapping[str, RegionView],
    views: Mapping[str, RegionView],
    rejected: list[Rejection],
) -> RegionChoice | Refusal:
    """The region that receives a request for which the origin has no free slot.

    If the expected wait of a full origin is zero, an engine has contradicted the estimate, so every start is worth the
    trip.
    """
    origin = request.origin
    home = views.get(origin)
    home_s = home.expected_wait_s if home is not None and home.ready else 0.0
    worth_s = home_s - policy.spillover.margin_s - request.cached_s if home_s > 0.0 else inf
    region = _spill_region(policy, request, order, usable, worth_s, rejected)
    if region is None:
        return Refusal(
            Reason.SATURATED,
            f"{origin} is full and no other permitted region has granted room that is worth the trip",
            tuple(rejected),
            retry_after_s=retry_after_s(home_s),
        )
    return RegionChoice(region, ArcReason.SPILLOVER, spends_credit=True, rejected=tuple(rejected))


def _spill_region(
    policy: Policy,
    request: RegionRequest,
    order: tuple[str, ...],
    usable: Mapping[str, RegionView],
    worth_s: float,
    rejected: list[Rejection],
) -> str | None:
    """The region that granted a credit and starts the request soonest; with a spillover order, the first in order.

    The prefill that a region's caches spare counts as an earlier start.

    Args:
        worth_s: a start (s from now, round trip included) this late or later is not worth the trip.
        rejected: receives the regions that do not qualify. A region that qualifies and is not chosen is not rejected.
    """
    best, best_s, origin = None, worth_s, request.origin
    first_wins = origin in policy.spillover_orders
    for name in order:
        if name == origin:
            continue
        start_s = usable[name].expected_wait_s + policy.round_trip_ms(origin, name) / 1000
        if request.spared_s:
            start_s -= request.spared_s.get(name, 0.0)
        if usable[name].credits <= 0:
            rejected.append(Rejection(name, Reason.NO_CREDIT))
        elif start_s >= worth_s:
            rejected.append(Rejection(name, Reason.NOT_WORTH_THE_TRIP, f"would start in {start_s:.3f} s"))
        elif start_s < best_s and (best is None or not first_wins):
            best, best_s = name, start_s
    return best
