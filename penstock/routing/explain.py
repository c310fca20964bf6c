"""Explains where a request would go: every region considered, kept or rejected and why, and the choice.

Nothing is decided here. The functions that the live router calls (`decision`, `residency`, `region_selection`,
`endpoint_selection`) are called once more, and their results are arranged by region.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from random import Random

import msgspec

from penstock.planning.plan import NONE_CLOSED, Arc, ArcReason, RegionPlan
from penstock.policy.geography import NOWHERE, Location
from penstock.policy.model_versions import models_for, versions_of
from penstock.policy.policy import Policy, Tenant, Version
from penstock.policy.residency import Mask, RequestFacts, applies
from penstock.routes.route_query import MatchedRoute, matched_route
from penstock.routing.decision import admit_at_origin, decide
from penstock.routing.reasons import ConsideredEndpoint, Reason, Refusal, Rejection
from penstock.routing.region_selection import RegionChoice, RegionOption, RegionView


class ExplainQuery(msgspec.Struct, frozen=True):
    """What of a request decides where it runs."""

    origin: str
    """The region that it arrives at."""
    model: str
    tenant: str | None = None
    """None: no key was sent, so the request is the anonymous tenant's, where policy has one."""
    location: Location = NOWHERE
    """The location of its client."""
    tried: dict[str, Reason] = {}
    """Regions that did not start it, and the reason of each."""
    overflow: bool = False
    """Its origin is full, so it may only go where a spill credit is held."""
    path: str = ""
    """Its path, of which the route is explained; empty for any."""
    method: str = "POST"
    """Its method; `WEBSOCKET` for an upgrade to one."""


class RegionVerdict(StrEnum):
    """The result for a region."""

    SERVES = "serves"
    """It would be chosen, always or with some probability."""
    SPARE = "spare"
    """It could serve and is not needed: the plan gives it nothing, and nothing nearer has failed."""
    REJECTED = "rejected"
    """Permitted, but it cannot serve this request now."""
    FORBIDDEN = "forbidden"
    """Residency forbids it; no failure ever permits it."""
    UNCONSIDERED = "unconsidered"
    """The request is refused before this region is considered."""


class ConsideredRegion(msgspec.Struct, frozen=True):
    """One region in the decision."""

    region: str
    verdict: RegionVerdict
    reasons: tuple[Rejection, ...] = ()
    """Reasons against it, or against a larger share: each with the rule's file and line, or the number that was over a
    limit."""
    chance: float = 0.0
    """Probability (0-1) of being chosen now."""
    why: ArcReason | None = None
    """Why it would be chosen."""
    spends_credit: bool = False
    """Choosing it is spillover beyond the plan, and uses one of its credits."""
    arc: Arc | None = None
    """What the plan gives it."""
    fallback: int | None = None
    """Its position (from 1) among the plan's fallbacks."""
    closed: bool = False
    """An operator has closed it: it receives what its arc still gives it, and nothing else."""
    round_trip_ms: float | None = None
    """From the origin, in milliseconds."""
    view: RegionView | None = None
    """Its state as the origin sees it; None where the origin has none."""


class ApplicableRule(msgspec.Struct, frozen=True):
    """A residency rule that applies to the request, or may apply."""

    name: str
    source: str
    """File and line."""
    applies: bool | None
    """None where that depends on an unknown part of the client's location, so that the request is refused."""
    allows: tuple[str, ...] | None
    """Regions; None where the rule only denies."""
    denies: tuple[str, ...]


class Explanation(msgspec.Struct, frozen=True):
    """The whole explanation."""

    query: ExplainQuery
    data_class: str | None
    """The tenant's; None where there is no such tenant."""
    policy_digest: str
    plan_generation: int | None
    """Of the origin's plan; None where there is none."""
    plan_epoch: int | None
    planned: bool
    """Whether the plan has an entry for this traffic class; without one the nearest region serves."""
    residency: str | None
    """Name of the residency class; None where the request is refused before it has one."""
    rules: tuple[ApplicableRule, ...]
    """The residency rules that apply, in the order of application."""
    regions: tuple[ConsideredRegion, ...]
    """Every region of the policy, in the order of `RegionVerdict`, the likeliest first and then the nearest."""
    chosen: RegionChoice | None
    """One draw of the decision; another request may draw another region, by the chances above."""
    refusal: Refusal | None = None
    """The refusal that the client receives instead."""
    endpoints: tuple[ConsideredEndpoint, ...] = ()
    """The origin's endpoints for the model, soonest first, where they are known."""
    versions: tuple[Version, ...] = ()
    """The models that the name selects from, where there are several; the model of the same name is explained."""
    route: MatchedRoute | None = None
    """The route of the path; None where the query has no path, or the path has no route."""


def explain(
    policy: Policy,
    plan: RegionPlan | None,
    query: ExplainQuery,
    views: Mapping[str, RegionView],
    rng: Random,
    endpoints: tuple[ConsideredEndpoint, ...] = (),
) -> Explanation:
    """Explain one request.

    Args:
        plan: the origin's.
        views: the state of each region for this model, as the origin sees it.
        rng: makes the draw, as the router's would.
        endpoints: the origin's endpoints, if known.

    Raises:
        KeyError: policy has no region of the origin's name.
    """
    if query.origin not in policy.regions:
        raise KeyError(query.origin)
    explanation = _initial(policy, plan, query)
    if query.path:
        route = matched_route(policy, query.method, query.path, query.model)
        if isinstance(route, Refusal):
            return _refused(policy, explanation, views, route)
        explanation = msgspec.structs.replace(explanation, route=route)
    tenant = tenant_of(policy, query.tenant)
    if isinstance(tenant, Refusal):
        return _refused(policy, explanation, views, tenant)
    versions = versions_of(policy, query.model)
    if versions is not None and query.model not in policy.models:
        names = " or ".join(models_for(policy, query.model))
        several = Refusal(Reason.BAD_REQUEST, f"{query.model} stands for several models; explain {names}")
        return _refused(policy, explanation, views, several)
    facts = RequestFacts(tenant.name, tenant.data_class, query.location)
    explanation = msgspec.structs.replace(
        explanation,
        data_class=tenant.data_class,
        rules=_rules(policy, facts),
        versions=versions.versions if versions is not None else (),
    )
    admitted = admit_at_origin(policy, query.origin, query.model, facts)
    if isinstance(admitted, Refusal):
        return _refused(policy, explanation, views, admitted)
    name = admitted.permitted.name
    planned = plan is not None and plan.lookup(query.model, name) is not None
    explanation = msgspec.structs.replace(explanation, residency=name, planned=planned, endpoints=endpoints)
    return _chosen(policy, plan, explanation, admitted, views, rng)


def _initial(policy: Policy, plan: RegionPlan | None, query: ExplainQuery) -> Explanation:
    """The explanation before anything is decided."""
    return Explanation(
        query,
        data_class=None,
        policy_digest=policy.digest(),
        plan_generation=plan.generation if plan is not None else None,
        plan_epoch=plan.epoch if plan is not None else None,
        planned=False,
        residency=None,
        rules=(),
        regions=(),
        chosen=None,
    )


def _chosen(
    policy: Policy,
    plan: RegionPlan | None,
    explanation: Explanation,
    admitted: Mask,
    views: Mapping[str, RegionView],
    rng: Random,
) -> Explanation:
    """The explanation with every region that may be drawn, and one draw."""
    query = explanation.query
    decision = decide(
        policy, plan, query.origin, query.model, admitted, views, rng, tried=query.tried, overflow=query.overflow
    )
    if isinstance(decision, Refusal):
        regions = _regions(policy, explanation, views, admitted, plan, (), decision.rejected)
        return msgspec.structs.replace(explanation, regions=regions, refusal=decision)
    noted = tuple(dict.fromkeys(rejection for option in decision.options for rejection in option.choice.rejected))
    regions = _regions(policy, explanation, views, admitted, plan, decision.options, noted)
    return msgspec.structs.replace(explanation, regions=regions, chosen=decision.choice)


def tenant_of(policy: Policy, name: str | None) -> Tenant | Refusal:
    """The tenant of that name; without a name, the anonymous tenant."""
    if name is None:
        name = policy.anonymous_tenant
        if name is None:
            return Refusal(Reason.INVALID_API_KEY, "no API key was sent, and policy allows no anonymous requests")
    return policy.tenants.get(name) or Refusal(Reason.INVALID_API_KEY, f"policy has no tenant {name!r}")


def tenant_by_key(policy: Policy, key_digest: str) -> str | None:
    """The name of the tenant that has an API key, by the key's SHA-256 in lower-case hex."""
    return next((tenant.name for tenant in policy.tenants.values() if key_digest in tenant.key_digests), None)


def _rules(policy: Policy, facts: RequestFacts) -> tuple[ApplicableRule, ...]:
    seen = []
    for rule in policy.residency:
        match = applies(rule, facts)
        if match is not False:
            allows = tuple(sorted(rule.allow)) if rule.allow is not None else None
            seen.append(ApplicableRule(rule.name, rule.source, match, allows, tuple(sorted(rule.deny))))
    return tuple(seen)


def _refused(
    policy: Policy, explanation: Explanation, views: Mapping[str, RegionView], refusal: Refusal
) -> Explanation:
    """The explanation of a request that is refused before a region is selected."""
    regions = _regions(policy, explanation, views, None, None, (), refusal.rejected)
    return msgspec.structs.replace(explanation, regions=regions, refusal=refusal)


def _regions(
    policy: Policy,
    explanation: Explanation,
    views: Mapping[str, RegionView],
    admitted: Mask | None,
    plan: RegionPlan | None,
    drawn: tuple[RegionOption, ...],
    noted: tuple[Rejection, ...],
) -> tuple[ConsideredRegion, ...]:
    """Every region, with all reasons that were given on the way."""
    origin = explanation.query.origin
    rejections = (*admitted.rejected, *noted) if admitted is not None else noted
    forbidden = {rejection.what for rejection in (admitted.rejected if admitted is not None else noted)}
    class_plan = (
        plan.lookup(explanation.query.model, admitted.permitted.name) if plan is not None and admitted else None
    )
    closed = plan.closed_for(explanation.query.model) if plan is not None else NONE_CLOSED
    arcs = {arc.server: arc for arc in class_plan.arcs} if class_plan is not None else {}
    fallbacks = class_plan.fallbacks if class_plan is not None else ()
    places = {name: place for place, name in enumerate(fallbacks, 1)}
    regions = []
    for name in policy.regions:
        reasons = tuple(rejection for rejection in rejections if rejection.what == name)
        options = [option for option in drawn if option.choice.region == name]
        regions.append(
            ConsideredRegion(
                name,
                _verdict(explanation.query, admitted, options, reasons, is_forbidden=name in forbidden),
                reasons,
                chance=sum(option.probability for option in options),
                why=options[0].choice.why if options else None,
                spends_credit=any(option.choice.spends_credit for option in options),
                arc=arcs.get(name),
                fallback=places.get(name),
                closed=name in closed,
                round_trip_ms=policy.round_trip_ms(origin, name),
                view=views.get(name),
            )
        )
    order = list(RegionVerdict)
    regions.sort(key=lambda region: (order.index(region.verdict), -region.chance, region.round_trip_ms, region.region))
    return tuple(regions)


_OVERFLOW_ONLY = frozenset({Reason.NO_CREDIT, Reason.NOT_WORTH_THE_TRIP})
"""Reasons that keep overflow from a region; what the plan sends there still goes there."""


def _verdict(
    query: ExplainQuery,
    admitted: Mask | None,
    options: list[RegionOption],
    reasons: tuple[Rejection, ...],
    *,
    is_forbidden: bool,
) -> RegionVerdict:
    if is_forbidden:
        return RegionVerdict.FORBIDDEN
    if admitted is None:
        return RegionVerdict.UNCONSIDERED
    if options:
        return RegionVerdict.SERVES
    is_rejected = any(query.overflow or rejection.reason not in _OVERFLOW_ONLY for rejection in reasons)
    return RegionVerdict.REJECTED if is_rejected else RegionVerdict.SPARE
