"""Adds burst endpoints to the explanation of a request for which the origin has no free slot.

They come last, in the order of the live router: the burst endpoints of the origin, then those of other regions
(`penstock.routing.burst_regions`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from msgspec.structs import replace

from penstock.planning.plan import ArcReason, RegionPlan
from penstock.policy.policy import Policy
from penstock.policy.residency import RequestFacts
from penstock.pools.burst import Otherwise
from penstock.routing.decision import authorize_at_origin, decide_burst
from penstock.routing.explain import ConsideredRegion, Explanation, RegionVerdict, tenant_of
from penstock.routing.reasons import Reason, Refusal
from penstock.routing.region_selection import RegionChoice, RegionRequest, RegionView

LACKS_ROOM: Final = (Reason.SATURATED, Reason.NONE_READY)
"""Reasons of refusals instead of which burst endpoints may serve."""

CLOSED: Final = (Reason.REGION_DRAINING, Reason.SPILLOVER_LIMIT)
"""Reasons against the origin that its burst endpoints share."""


class BurstFacts(NamedTuple):
    """What an agent knows of a request that burst endpoints may serve."""

    otherwise: Otherwise
    """What becomes of the request at the origin without burst endpoints."""
    service_s: float
    """Expected time (s) of the request on a server that runs."""
    is_served_here: bool
    """Whether a burst endpoint of the origin serves the request."""


def with_burst(
    policy: Policy, plan: RegionPlan | None, explained: Explanation, views: Mapping[str, RegionView], known: BurstFacts
) -> Explanation:
    """Return the explanation with the burst endpoint that serves the request, if one does; else as it is.

    Args:
        plan: the origin's plan; None without a plan.
        views: the state of each region for the model, in the view of the origin.
    """
    query = explained.query
    if explained.residency is None or query.is_batch or not _lacks_room(explained, known.otherwise):
        return explained
    rejected = () if explained.refusal is None else explained.refusal.rejected
    if known.is_served_here and not any(each.what == query.origin and each.reason in CLOSED for each in rejected):
        return _served(explained, RegionChoice(query.origin, ArcReason.HOME, False, rejected, uses_burst=True))
    tenant = tenant_of(policy, query)
    if isinstance(tenant, Refusal):
        return explained
    facts = RequestFacts(tenant.name, tenant.data_class, query.location)
    residency = authorize_at_origin(policy, query.origin, query.model, facts)
    if isinstance(residency, Refusal):
        return explained
    request = RegionRequest(
        query.origin,
        query.model,
        residency.permitted,
        {**query.tried, query.origin: Reason.SATURATED},
        service_s=known.service_s,
    )
    choice = decide_burst(policy, plan, residency, request, views, known.otherwise)
    return explained if choice is None else _served(explained, choice)


def _lacks_room(explained: Explanation, otherwise: Otherwise) -> bool:
    """Whether no region has a slot for the request, so that it would wait at the origin or be refused."""
    if explained.refusal is not None:
        return explained.refusal.reason in LACKS_ROOM
    chosen = explained.chosen
    waits = chosen is not None and chosen.region == explained.query.origin and not chosen.spends_credit
    return waits and not otherwise.free_slots


def _served(explained: Explanation, choice: RegionChoice) -> Explanation:
    regions = [_marked(region, choice) for region in explained.regions]
    order = list(RegionVerdict)
    regions.sort(key=lambda region: order.index(region.verdict))
    return replace(explained, regions=tuple(regions), chosen=choice, refusal=None)


def _marked(region: ConsideredRegion, choice: RegionChoice) -> ConsideredRegion:
    if region.region == choice.region:
        return replace(region, verdict=RegionVerdict.SERVES, why=choice.why, chance=1.0, uses_burst=True)
    if region.verdict is RegionVerdict.SERVES:
        # The request would wait there.
        return replace(region, verdict=RegionVerdict.SPARE, why=None, chance=0.0)
    return region
