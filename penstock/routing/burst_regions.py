"""Selects the region whose burst endpoint serves a request for which no region has a slot.

The order is fixed: the free slots of all permitted regions, then the burst endpoints of the origin, then those of
another permitted region. Limits of spillover and closed regions hold as for spillover.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from penstock.health.region_health import RegionState
from penstock.planning.egress_cost import egress_cost
from penstock.planning.plan import ArcReason, ClassPlan
from penstock.policy.policy import MS_PER_S, Policy
from penstock.pools.burst import BurstStart, Otherwise, why_not
from penstock.routing.region_selection import Closures, RegionChoice, RegionRequest, RegionView, usable_regions


def burst_region(
    policy: Policy,
    plan: ClassPlan | None,
    request: RegionRequest,
    views: Mapping[str, RegionView],
    closures: Closures,
    otherwise: Otherwise,
) -> RegionChoice | None:
    """The region whose burst endpoint is worth most to a request that the origin has no target for; None if none is,
    or while a region grants spill credits. If the origin has a spillover order, the first such region of it.

    Args:
        plan: the origin's plan for the traffic class; None if the plan has no entry for the class.
        otherwise: what becomes of the request at the origin.
    """
    origin, model = request.origin, policy.models.get(request.model)
    if model is None:
        return None
    granting, _ = usable_regions(plan, request, views, closures)
    if any(view.credits > 0 for view in granting.values()):
        return None
    paid = {name: _as_paid(view) for name, view in views.items() if name != origin}
    usable, rejected = usable_regions(plan, request, paid, closures)
    best, best_s = None, 0.0
    for name in policy.nearest_first(origin, frozenset(usable)):
        terms, view = policy.regions[name].burst_of(request.model), usable[name]
        egress = egress_cost(model, policy.regions[origin].egress_cost_per_gb, policy.regions[name].egress_cost_per_gb)
        trip_s = policy.round_trip_ms(origin, name) / MS_PER_S
        start = BurstStart(view.burst_start_s, request.service_s, trip_s, egress)
        if terms is None or why_not(policy, terms, otherwise, start) is not None:
            continue
        total_s = start.start_s + start.price_s(policy, terms)
        if best is None or (total_s < best_s and origin not in policy.spillover_orders):
            best, best_s = name, total_s
    if best is None:
        return None
    return RegionChoice(best, ArcReason.SPILLOVER, spends_credit=False, rejected=tuple(rejected), uses_burst=True)


def _as_paid(view: RegionView) -> RegionView:
    """The view of a region by its burst endpoints, which it may have without a ready endpoint of its own.

    Only agents that answer state a room, so a failed region with one has lost its own endpoints alone.
    """
    is_failed = view.state is RegionState.FAILED and view.burst_room > 0
    return replace(view, ready=view.burst_room > 0, state=RegionState.DEGRADED if is_failed else view.state)
