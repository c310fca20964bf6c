"""`POST /v1/explain`: the region that would serve a request, determined by the functions that agents use."""

from __future__ import annotations

from random import Random
from typing import Annotated, NamedTuple

import msgspec
from fastapi import APIRouter, Depends, Response
from pydantic import Field

from adapters.geoip_lookup import GeoIpLookup
from adapters.store.config_store import StoreError
from control_plane.api.json_bodies import JsonBody
from control_plane.api.openapi import returns
from control_plane.api.responses import Problem, large_response
from control_plane.api.routes.plans_routes import MAX_GENERATION
from control_plane.api.serving.client_location import ClientPlace, require_policy, require_region
from control_plane.auth.required_roles import Viewer
from control_plane.planning.past_moment import NOT_KEPT, KeptPast, views_then
from control_plane.request_model import RequestModel
from control_plane.rollout.rollout_actions import PolicyNotStored, RolloutActions
from control_plane.status.fleet_view import FleetView
from control_plane.status.query_responses import ExplainResponse
from control_plane.status.status import PolicyStatus
from control_plane.status.status_reporter import StatusReporter
from control_plane.tenants.key_revocation_store import KeyRevocationStore
from control_plane.tenants.tenant_store import TenantStore
from penstock.fleet.region_skew import region_skews
from penstock.fleet.reported_endpoints import endpoints
from penstock.fleet.reported_views import reported_views
from penstock.planning.plan import RegionPlan
from penstock.policy.adapter_patterns import served_model
from penstock.policy.policy import Policy
from penstock.policy.provenance import Provenance
from penstock.routing.explain import ExplainQuery, explain, tenant_by_key
from penstock.routing.reasons import Reason
from penstock.tenancy.tenant_record import TenantRecord

MAX_BODY_BYTES = 64 * 1024
"""Maximum size (bytes) of the body: MAX_TRIED regions with long names."""

MAX_TIME_S = 1e11

MAX_TRIED = 100
"""Maximum number of regions in `tried`."""


class PastMoment(RequestModel):
    """The moment of a logged request, by the fields of the access log."""

    at: float = Field(strict=True, ge=0.0, le=MAX_TIME_S, description="Unix time (s).")
    policy_digest: str | None = Field(None, pattern="^[0-9a-f]{64}$", description="SHA-256 of the policy.")
    plan_generation: int | None = Field(
        None, strict=True, ge=0, le=MAX_GENERATION, description="Generation of the plan; none for no plan."
    )
    server: str | None = Field(None, max_length=253, description="Region that served the request.")


class ExplainRequest(ClientPlace):
    """The properties of a request that determine its region."""

    origin: str = Field(max_length=253, description="Region that receives the request.")
    model: str = Field(max_length=512, description="Requested model.")
    tenant: str | None = Field(
        None,
        max_length=512,
        description="Tenant of the request. Without `tenant` and `key_digest` the request has no API key.",
    )
    key_digest: str | None = Field(
        None, pattern="^[0-9a-f]{64}$", description="SHA-256 of the request's API key, instead of `tenant`."
    )
    tried: dict[str, Reason] = Field(
        default_factory=dict,
        max_length=MAX_TRIED,
        description="Regions that did not start the request, with the reason of each.",
    )
    overflow: bool = Field(
        False,
        strict=True,
        description="Whether the origin is full, so that other regions need a spill credit.",
    )
    batch: bool = Field(
        False, strict=True, description="Whether the request is below all priorities, as those of jobs are."
    )
    path: str = Field("", max_length=2048, description="Path of the request, of which the route is explained.")
    method: str = Field("POST", max_length=16, description="Method of the request; `WEBSOCKET` for an upgrade to one.")
    session: str = Field("", max_length=256, description="Name of the session, as in the header `x-session-id`.")
    then: PastMoment | None = Field(
        None, description="Explain by the policy, plan and region states of this moment, as far as they are kept."
    )


class TenantKeys(NamedTuple):
    """The tenants and keys that are not in the policy."""

    tenants: TenantStore
    revocations: KeyRevocationStore


ExplainBody = Annotated[ExplainRequest, Depends(JsonBody(ExplainRequest, MAX_BODY_BYTES).read)]


def routes(
    view: FleetView,
    reporter: StatusReporter,
    actions: RolloutActions,
    keys: TenantKeys,
    geoip: GeoIpLookup,
    past: KeptPast,
) -> APIRouter:
    """Return the router of explanations."""
    router = APIRouter(prefix="/v1", tags=["explain"])
    rng = Random()

    @router.post("/explain", responses=returns(ExplainResponse, "Each region, with the reasons for and against it."))
    async def request(caller: Viewer, body: ExplainBody) -> Response:
        """Explain which region would serve a request, with the reasons against the other regions.

        Nothing is sent or changed. Health comes from agents' reports. Spill credits and queue waits are available
        only at the agents. With `then` a logged request is explained by the policy, the plan and the region states of
        its moment, while they are kept, and `present` explains it as of now.
        """
        plan = view.plans.get(body.origin)
        policy = await _policy_of_origin(view, actions, plan)
        is_revoked = body.key_digest is not None and keys.revocations.known.find(body.key_digest) is not None
        now, snapshot, seen_by, newest = view.now(), view.snapshot, reporter.seen_by(), reporter.policy()

        def created(by: Policy) -> TenantRecord | None:
            if is_revoked:
                raise Problem(422, "key_digest: the key is revoked; `penstock tenant revoked-keys` shows by whom")
            return _created(keys.tenants, by, body, now)

        def found() -> ExplainResponse:
            asked = _asked(policy, body, geoip, created(policy), now)
            views = reported_views(policy, snapshot, asked.origin, asked.model, now)
            explanation = explain(policy, plan, asked, views, rng)
            skews = region_skews(endpoints(snapshot, now), policy.models)
            regions = [
                msgspec.structs.replace(each, skew=skews.get((each.region, asked.model), ""))
                for each in explanation.regions
            ]
            explanation = msgspec.structs.replace(explanation, regions=tuple(regions))
            provenance = _provenance(newest, plan, explanation.policy_digest)
            return ExplainResponse(explanation, seen_by.name, seen_by.leading, now, provenance)

        moment = body.then
        if moment is None:
            return await large_response(found)
        old_policy, policy_note = await _policy_then(actions, policy, moment)
        kept = past.events()

        def found_then() -> ExplainResponse:
            asked = _asked(old_policy, body, geoip, created(old_policy), moment.at)
            old = past.plan(asked.origin, moment.plan_generation, plan)
            views = reported_views(old_policy, snapshot, asked.origin, asked.model, now)
            entries = old.plan.classes if old.plan is not None else ()
            planned = {arc.server for entry in entries if entry.model == asked.model for arc in entry.arcs}
            views = views_then(views, kept, moment.at, planned, moment.server)
            explanation = explain(old_policy, old.plan, asked, views, rng)
            answer = ExplainResponse(explanation, seen_by.name, seen_by.leading, now, None)
            is_known = asked.origin in policy.regions
            return msgspec.structs.replace(
                answer,
                provenance=_provenance(newest, old.plan, explanation.policy_digest),
                present=found().explanation if is_known else None,
                notes=(policy_note, old.note, NOT_KEPT),
            )

        return await large_response(found_then)

    return router


async def _policy_of_origin(view: FleetView, actions: RolloutActions, plan: RegionPlan | None) -> Policy:
    """Return the policy that the origin runs, which differs between regions during a rollout.

    If the store does not have that policy or does not respond, return the policy that most regions run.
    """
    policy = require_policy(view.policy)
    if plan is None or plan.policy_digest == policy.digest():
        return policy
    try:
        return await actions.policy(plan.policy_digest)
    except (PolicyNotStored, StoreError):
        return policy


async def _policy_then(actions: RolloutActions, present: Policy, moment: PastMoment) -> tuple[Policy, str]:
    """Return the policy of a past moment, or the present one in its place, and a note about it."""
    digest = moment.policy_digest
    if digest is None:
        return present, "the record names no policy, so the policy of now is used"
    if digest == present.digest():
        return present, f"by policy {digest[:12]}, which is still in force"
    try:
        return await actions.policy(digest), f"by policy {digest[:12]} of that moment"
    except (PolicyNotStored, StoreError) as error:
        return present, f"policy {digest[:12]} of that moment is not available ({error}), so the policy of now is used"


def _provenance(newest: PolicyStatus, plan: RegionPlan | None, digest: str) -> Provenance | None:
    if plan is not None and plan.policy_digest == digest:
        return plan.provenance
    return newest.provenance if newest.digest == digest else None


def _created(tenants: TenantStore, policy: Policy, body: ExplainRequest, now: float) -> TenantRecord | None:
    """Return the tenant of a request if the API created it; None for another one.

    With a key this reads all tenants.

    Raises:
        Problem: 422, the key is revoked or expired.
    """
    if body.key_digest is None:
        return None if body.tenant is None else tenants.find(body.tenant)
    owner = tenants.owner_of(bytes.fromhex(body.key_digest))
    # Agents refuse the keys of a created tenant while a tenant of the policy has its name.
    if owner is None or owner[0].name in policy.tenants:
        return None
    record, key = owner
    if not key.is_valid(now):
        state = "expired" if key.revoked_at is None else "revoked"
        raise Problem(422, f"key_digest: {key.id} is {state}; `penstock tenant key list {record.name}` shows it")
    return record


def _asked(
    policy: Policy, body: ExplainRequest, geoip: GeoIpLookup, created: TenantRecord | None, at: float
) -> ExplainQuery:
    origin = require_region(policy, body.origin, "origin")
    for region in body.tried:
        require_region(policy, region, "tried")
    tenant = body.tenant
    if body.key_digest is not None:
        if tenant is not None:
            raise Problem(422, "key_digest: cannot be combined with tenant")
        tenant = created.name if created is not None else tenant_by_key(policy, body.key_digest)
        if tenant is None:
            raise Problem(422, "key_digest: no tenant has this key")
    if body.ip is not None and not geoip.available:
        raise Problem(422, "ip: this control plane has no GeoIP database; give country instead")
    model, location = served_model(policy, body.model), body.location(geoip)
    tried = dict(body.tried)
    asked = ExplainQuery(origin, model, tenant, location, tried, body.overflow, body.path, body.method, body.session)
    asked = msgspec.structs.replace(asked, is_batch=body.batch, at=at)
    return asked if created is None or created.name in policy.tenants else asked.by(created)
