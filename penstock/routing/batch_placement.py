"""Selects the region of a batch request: the cheapest permitted region with idle slots, by the prices of the hour and
of egress.

Batch requests follow no shares of the plan, since they use what all other requests leave idle. They need room in every
region: idle slots at the origin, and a batch credit elsewhere, which a region grants out of what remains after the
credits of requests with a priority (`spill_credits.batch_headroom`). A region grants credits up to its target
utilisation, so its slots in use are compared with the bound of the request, too. Without room, a batch request waits
at its origin.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.admission.retry_after import MIN_RETRY_S
from penstock.planning.plan import ArcReason
from penstock.policy.policy import Policy
from penstock.routing.batch_price import batch_price, batch_work
from penstock.routing.reasons import Reason, Refusal, Rejection
from penstock.routing.region_selection import (
    Closures,
    RegionChoice,
    RegionOption,
    RegionRequest,
    RegionView,
    no_region,
    usable_regions,
)


def batch_options(
    policy: Policy, request: RegionRequest, views: Mapping[str, RegionView], closures: Closures
) -> tuple[RegionOption, ...] | Refusal:
    """The choice of the serving region for one batch request; see `region_selection.region_options`.

    Of several regions with the same price, the origin is chosen, or else the nearest one. A standby region is used only
    if no active one has room. Regions that the plan closes receive no batch requests, whatever share the plan still
    gives them.
    """
    usable, rejected = usable_regions(None, request, views, closures)
    if not usable:
        return no_region(request, views, rejected)
    idle = {name: view for name, view in usable.items() if _has_room(view, request.max_use)}
    rejected += [Rejection(name, Reason.NO_IDLE_SLOTS) for name in usable if name not in idle]
    if not idle:
        detail = "no permitted region has idle slots for requests below all priorities"
        return Refusal(Reason.SATURATED, detail, tuple(rejected), retry_after_s=MIN_RETRY_S)
    origin, at = request.origin, request.batch_at
    assert at is not None
    work = request.batch_work or batch_work(policy.models[request.model])
    prices = {name: batch_price(policy, origin, name, request.model, work, at) for name in idle}

    def order(name: str) -> tuple[bool, float, bool, float, str]:
        is_elsewhere = name != origin
        is_standby = is_elsewhere and policy.regions[name].is_standby
        return is_standby, prices[name], is_elsewhere, policy.round_trip_ms(origin, name), name

    chosen = min(idle, key=order)
    rejected += [
        Rejection(name, Reason.COSTS_MORE, f"{price:g} for a GPU hour with egress, and {prices[chosen]:g} in {chosen}")
        for name, price in prices.items()
        if price > prices[chosen]
    ]
    is_away = chosen != origin
    why = ArcReason.BATCH if is_away else ArcReason.HOME
    return (RegionOption(RegionChoice(chosen, why, is_away, tuple(rejected)), 1.0),)


def _has_room(view: RegionView, max_use: float) -> bool:
    return view.batch_room > 0 and (not view.slots or view.in_use < max_use * view.slots)
