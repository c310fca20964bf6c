"""Explains the selection of a request's region: the verdict on every region with its reasons, and the choice.

This module makes no decisions: it calls the functions of the live router (`decision`, `residency`, `region_selection`,
`endpoint_selection`) and arranges their results by region.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from random import Random
from typing import NamedTuple

import msgspec

from penstock.admission.queue_explanation import QueueExplanation
from penstock.jobs.store_selection import select_store
from penstock.planning.plan import NONE_CLOSED, Arc, ArcReason, RegionPlan
from penstock.policy.geography import NOWHERE, Location
from penstock.policy.kinds.models import Version
from penstock.policy.kinds.tenants import BATCH_PRIORITY, Tenant
from penstock.policy.model_versions import models_for, reserved_model, versions_of, with_share
from penstock.policy.policy import Policy
from penstock.policy.residency import Mask, RequestFacts, applies
from penstock.result_cache.cache_key import cache_for, may_keep
from penstock.routes.route_query import MatchedRoute, matched_route
from penstock.routing.affinity import session_key
from penstock.routing.batch_price import BatchWork
from penstock.routing.decision import authorize_at_origin, decide
from penstock.routing.reasons import ConsideredEndpoint, Reason, Refusal, Rejection
from penstock.routing.region_selection import RegionChoice, RegionOption, RegionRequest, RegionView
from penstock.routing.session_home import home_of
from penstock.tenancy.created_tenants.created_tenant import tenant_under
from penstock.tenancy.permissions import permits_model, restrictions_of
from penstock.tenancy.tenant_record import TenantRecord


class ExplainQuery(msgspec.Struct, frozen=True):
    """The properties of a request that determine its serving region."""

    origin: str
    """Region that receives the request."""
    model: str
    tenant: str | None = None
    """Name of the tenant; None for a request without an API key, which belongs to the anonymous tenant, if any."""
    location: Location = NOWHERE
    """Location of the client."""
    tried: dict[str, Reason] = {}
    """Regions that did not start the request, and the reason of each."""
    overflow: bool = False
    """Whether the origin is full, so that only a region that granted a spill credit may serve the request."""
    path: str = ""
    """Path of the request, whose route is explained; empty for any path."""
    method: str = "POST"
    """HTTP method of the request; `WEBSOCKET` for an upgrade to a WebSocket."""
    session: str = ""
    """Name of the session of the request, which has a home region; empty for none."""
    tier: str | None = None
    """Tier of a tenant that the API created; None for a tenant of the policy, and for the anonymous tenant."""
    is_suspended: bool = False
    """Whether the tenant of the tier is suspended."""
    stays_in: str = ""
    """Region to which the session has spilled from this agent, and where it stays while that region grants credits;
    empty for none, and at control planes."""
    is_batch: bool = False
    """Whether the request is below all priorities: one of a job, or of a tenant whose tier has `batch`."""
    at: float = 0.0
    """Unix time (s) of the prices by which a batch request is placed."""
    max_use: float = 1.0
    """Part (0-1] of a region's slots up to which the batch request starts; 1 at control planes, which know no waits."""
    batch_work: BatchWork | None = None
    """What a mean batch request uses, as the agent measures it; None for the values of the policy."""

    def by(self, record: TenantRecord) -> ExplainQuery:
        """Return the query for a tenant that the API created."""
        return msgspec.structs.replace(self, tenant=record.name, tier=record.tier, is_suspended=record.is_suspended)


class RegionVerdict(StrEnum):
    """The result of a decision for one region."""

    SERVES = "serves"
    """The region would be chosen, always or with some probability."""
    SPARE = "spare"
    """The region could serve but is not needed: the plan assigns no share to it, and no nearer region has failed; or
    it costs more than another region with idle slots for a batch request."""
    REJECTED = "rejected"
    """The region is permitted, but cannot serve this request now."""
    FORBIDDEN = "forbidden"
    """Residency forbids the region; no failure of other regions permits it."""
    UNCONSIDERED = "unconsidered"
    """The request is refused before this region is considered."""


class ConsideredRegion(msgspec.Struct, frozen=True):
    """The result of a decision for one region, with its reasons."""

    region: str
    verdict: RegionVerdict
    reasons: tuple[Rejection, ...] = ()
    """Reasons against the region, or against a larger share of it: each with the rule's file and line, or the number
    that exceeded a limit."""
    chance: float = 0.0
    """Probability (0-1) that the region is chosen now."""
    why: ArcReason | None = None
    """Why the region would be chosen; None if it would not."""
    spends_credit: bool = False
    """Whether the choice of the region is spillover beyond the plan, which uses one of the region's spill credits."""
    arc: Arc | None = None
    """The plan's arc to the region; None if the plan has none."""
    fallback: int | None = None
    """Position (from 1) of the region among the plan's fallbacks; None if it is not among them."""
    closed: bool = False
    """Whether an operator has closed the region: it then serves only the share of its arc, or as a last resort."""
    round_trip_ms: float | None = None
    """Round trip from the origin, in milliseconds."""
    view: RegionView | None = None
    """State of the region in the view of the origin; None if the origin has no view of the region."""
    skew: str = ""
    """How the revision of the model in the region differs from that of other regions; empty if it does not, and at
    agents, which do not know."""
    uses_burst: bool = False
    """Whether a burst endpoint of the region would serve the request, since no region has a slot for it."""


class ApplicableRule(msgspec.Struct, frozen=True):
    """A residency rule that applies to the request, or may apply."""

    name: str
    source: str
    """File and line of the rule."""
    applies: bool | None
    """Whether the rule applies; None if this depends on an unknown part of the client's location, so that the request
    is refused."""
    allows: tuple[str, ...] | None
    """Regions that the rule allows; None if the rule only denies."""
    denies: tuple[str, ...]


class Explanation(msgspec.Struct, frozen=True):
    """The explanation of the decision for one request."""

    query: ExplainQuery
    data_class: str | None
    """Data class of the tenant; None if the tenant does not exist."""
    policy_digest: str
    plan_generation: int | None
    """Generation of the origin's plan; None without a plan."""
    plan_epoch: int | None
    planned: bool
    """Whether the plan has an entry for this traffic class; without an entry, the nearest region serves."""
    residency: str | None
    """Name of the residency class; None if the request is refused before a class is assigned."""
    rules: tuple[ApplicableRule, ...]
    """The residency rules that apply, in the order of application."""
    regions: tuple[ConsideredRegion, ...]
    """Every region of the policy, in the order of `RegionVerdict`, the likeliest first and then the nearest."""
    chosen: RegionChoice | None
    """One draw of the decision; another request may draw another region, with the probabilities in `regions`."""
    refusal: Refusal | None = None
    """The refusal that the client receives; None if a region is chosen."""
    home: str | None = None
    """Home of the session: the region that serves its requests while its share lasts; None without a session."""
    endpoints: tuple[ConsideredEndpoint, ...] = ()
    """The origin's endpoints for the model, soonest first; empty if unknown."""
    versions: tuple[Version, ...] = ()
    """The model versions that the name selects from; empty if the name has only one model. The model of the same name
    is explained."""
    route: MatchedRoute | None = None
    """The route of the path; None where the query has no path, or the path has no route."""
    queue: QueueExplanation | None = None
    """The admission queue for the model at the agent; None if it is empty or unknown."""
    job_store: str | None = None
    """Name of the store of the tenant's files and batches, or why there is none; None if the policy has no job
    store."""
    result_cache: str | None = None
    """Name of the `ResultCache` document by which the response to a deterministic request of the path is kept; None if
    it is not kept."""


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
        plan: the origin's plan; None without a plan.
        views: the state of each region for this model, in the view of the origin.
        rng: random source of the draw.
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
    tenant = tenant_of(policy, query)
    if isinstance(tenant, Refusal):
        return _refused(policy, explanation, views, tenant)
    versions = versions_of(policy, query.model)
    share = None if versions is None or plan is None else plan.version_share(policy, query.model)
    if versions is not None and share is not None:
        versions = with_share(versions, share.to, share.percent)
    served_by = None if versions is None else reserved_model(versions, tenant)
    if served_by is not None:
        versions, query = None, msgspec.structs.replace(query, model=served_by)
        explanation = msgspec.structs.replace(explanation, query=query)
    if versions is not None and query.model not in policy.models:
        # Those without a share, too, where a rollout moves to them.
        known, shares = models_for(policy, query.model), {each.model: each.percent for each in versions.versions}
        names = " or ".join(f"{name} ({shares[name]:g} % of its requests)" for name in known)
        several = Refusal(Reason.BAD_REQUEST, f"{query.model} stands for several models; explain {names}")
        return _refused(policy, explanation, views, several)
    if query.model in policy.models and not permits_model(policy, restrictions_of(policy, tenant), query.model):
        hidden = Refusal(Reason.MODEL_NOT_FOUND, f"tenant {tenant.name} may not use the model {query.model}")
        return _refused(policy, explanation, views, hidden)
    if tenant.priority == BATCH_PRIORITY and not query.is_batch:
        query = msgspec.structs.replace(query, is_batch=True)
        explanation = msgspec.structs.replace(explanation, query=query)
    facts = RequestFacts(tenant.name, tenant.data_class, query.location)
    explanation = msgspec.structs.replace(
        explanation,
        data_class=tenant.data_class,
        rules=_rules(policy, facts),
        versions=versions.versions if versions is not None else (),
    )
    residency = authorize_at_origin(policy, query.origin, query.model, facts)
    if isinstance(residency, Refusal):
        return _refused(policy, explanation, views, residency)
    name = residency.permitted.name
    planned = plan is not None and plan.lookup(query.model, name) is not None
    explanation = msgspec.structs.replace(explanation, residency=name, planned=planned, endpoints=endpoints)
    if policy.job_stores:
        store = select_store(policy, query.origin, residency.permitted.regions)
        explanation = msgspec.structs.replace(
            explanation, job_store=store.detail if isinstance(store, Refusal) else store.name
        )
    matched = explanation.route
    if policy.result_caches and matched is not None and may_keep(query.origin, residency.permitted):
        cache = cache_for(policy, matched.name, tenant.name)
        explanation = msgspec.structs.replace(explanation, result_cache=None if cache is None else cache.name)
    return _chosen(policy, plan, explanation, residency, views, rng)


def _initial(policy: Policy, plan: RegionPlan | None, query: ExplainQuery) -> Explanation:
    """The explanation before the first step of the decision."""
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
    residency: Mask,
    views: Mapping[str, RegionView],
    rng: Random,
) -> Explanation:
    """The explanation with every region that may be drawn, and one draw."""
    query = explanation.query
    session = session_key(f"{query.tenant or policy.anonymous_tenant}/{query.model}", query.session.encode())
    request = RegionRequest(
        query.origin,
        query.model,
        residency.permitted,
        query.tried,
        query.overflow,
        session if query.session else None,
        stays_in=query.stays_in,
        batch_at=query.at if query.is_batch else None,
        max_use=query.max_use,
        batch_work=query.batch_work,
    )
    decision = decide(policy, plan, residency, request, views, rng)
    if isinstance(decision, Refusal):
        regions = _regions(policy, query, views, _Considered(residency, plan, noted=decision.rejected))
        return msgspec.structs.replace(explanation, regions=regions, refusal=decision)
    noted = tuple(dict.fromkeys(rejection for option in decision.options for rejection in option.choice.rejected))
    regions = _regions(policy, query, views, _Considered(residency, plan, decision.options, noted))
    home = None
    if query.session and len(decision.options) > 1:
        home = home_of(session, {option.planned: option.probability for option in decision.options})
    return msgspec.structs.replace(explanation, regions=regions, chosen=decision.choice, home=home)


def tenant_of(policy: Policy, query: ExplainQuery) -> Tenant | Refusal:
    """The tenant of a query, or the sender of that name (`Policy.senders`); without a name, the anonymous tenant."""
    name = query.tenant
    if name is not None and query.tier is not None and name not in policy.tenants:
        return tenant_under(policy, TenantRecord(name, query.tier, 0.0, is_suspended=query.is_suspended))
    if name is None:
        name = policy.anonymous_tenant
        if name is None:
            return Refusal(Reason.INVALID_API_KEY, "no API key was sent, and policy allows no anonymous requests")
    return policy.senders.get(name) or Refusal(Reason.INVALID_API_KEY, f"policy has no tenant {name!r}")


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
    regions = _regions(policy, explanation.query, views, _Considered(noted=refusal.rejected))
    return msgspec.structs.replace(explanation, regions=regions, refusal=refusal)


class _Considered(NamedTuple):
    """What the steps of a decision found."""

    residency: Mask | None = None
    """None if the request is refused before a mask is computed."""
    plan: RegionPlan | None = None
    drawn: tuple[RegionOption, ...] = ()
    """Every region that may be chosen."""
    noted: tuple[Rejection, ...] = ()
    """The reasons against regions."""


def _regions(
    policy: Policy, query: ExplainQuery, views: Mapping[str, RegionView], considered: _Considered
) -> tuple[ConsideredRegion, ...]:
    """Every region of the policy, with all reasons from the steps of the decision."""
    residency, plan, drawn, noted = considered
    origin = query.origin
    rejections = (*residency.rejected, *noted) if residency is not None else noted
    forbidden = {rejection.what for rejection in (residency.rejected if residency is not None else noted)}
    class_plan = plan.lookup(query.model, residency.permitted.name) if plan is not None and residency else None
    closed = plan.closed_for(query.model) if plan is not None else NONE_CLOSED
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
                _verdict(query, residency, options, reasons, is_forbidden=name in forbidden),
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
"""Reasons that keep overflow from a region; requests that the plan assigns to the region are not affected."""


def _verdict(
    query: ExplainQuery,
    residency: Mask | None,
    options: list[RegionOption],
    reasons: tuple[Rejection, ...],
    *,
    is_forbidden: bool,
) -> RegionVerdict:
    if is_forbidden:
        return RegionVerdict.FORBIDDEN
    if residency is None:
        return RegionVerdict.UNCONSIDERED
    if options:
        return RegionVerdict.SERVES
    reasons = tuple(rejection for rejection in reasons if rejection.reason is not Reason.COSTS_MORE)
    is_rejected = any(query.overflow or rejection.reason not in _OVERFLOW_ONLY for rejection in reasons)
    return RegionVerdict.REJECTED if is_rejected else RegionVerdict.SPARE
