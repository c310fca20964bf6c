"""POST /v1/explain: why a request goes where it goes, by the functions that agents ask."""

from __future__ import annotations

from random import Random

from fastapi import APIRouter, Response
from pydantic import Field

from adapters.geoip_lookup import GeoIpLookup
from adapters.store.config_store import StoreError
from control_plane.api.client_location import ClientPlace, policy_in_force, region_of
from control_plane.api.json_responses import answer
from control_plane.api.openapi import gives
from control_plane.api.problems import Problem
from control_plane.auth.required_roles import Viewer
from control_plane.daemon import ControlPlane
from control_plane.rollout.rollout_actions import NotKept
from control_plane.status.explain_response import Explained
from control_plane.status.status_builder import policy_status
from penstock.planning.plan import RegionPlan
from penstock.policy.policy import Policy
from penstock.policy.provenance import Provenance
from penstock.routing.explain import ExplainQuery, explain, tenant_by_key
from penstock.routing.reasons import Reason
from penstock.routing.reported_views import believed_views

MAX_TRIED = 100
"""Regions that a request may have been tried at; more than any is."""


class ExplainRequest(ClientPlace):
    """A request, as far as it matters where it runs."""

    origin: str = Field(max_length=253, description="The region that it lands on.")
    model: str = Field(max_length=512, description="The model that it asks for.")
    tenant: str | None = Field(
        None, max_length=512, description="Whose it is; without tenant and key_digest it carries no key."
    )
    key_digest: str | None = Field(
        None, pattern="^[0-9a-f]{64}$", description="SHA-256 of its API key, instead of the tenant."
    )
    tried: dict[str, Reason] = Field(
        default_factory=dict, max_length=MAX_TRIED, description="Regions that did not start it, and why each did not."
    )
    overflow: bool = Field(
        False, strict=True, description="The origin is full: it may only go where a spill credit is held."
    )


def routes(control_plane: ControlPlane, geoip: GeoIpLookup) -> APIRouter:
    """Explains."""
    router = APIRouter(prefix="/v1", tags=["explain"])
    rng = Random()

    @router.post("/explain", responses=gives(Explained, "Every region, and why or why not."))
    async def request(caller: Viewer, body: ExplainRequest) -> Response:
        """Explain where a request would run, and why nowhere else.

        Nothing is changed and nothing is sent. What is said of health is what reports tell; credits and waits are the
        agents' own and not known here.
        """
        plan = control_plane.plans.get(body.origin)
        policy = await _obeyed(control_plane, plan)
        asked = _asked(policy, body, geoip)
        now = control_plane.now()
        views = believed_views(policy, control_plane.snapshot, asked.origin, asked.model, now)
        explanation = explain(policy, plan, asked, views, rng)
        provenance = _provenance(control_plane, plan, explanation.policy_digest)
        return answer(Explained(explanation, control_plane.member.name, control_plane.leading, now, provenance))

    return router


async def _obeyed(control_plane: ControlPlane, plan: RegionPlan | None) -> Policy:
    """The policy that the origin is told to obey, which in a rollout is not that of every region.

    With the store away, or a policy that is kept no more, it is the one that most regions obey.
    """
    policy = policy_in_force(control_plane.policy)
    if plan is None or plan.policy_digest == policy.digest():
        return policy
    try:
        return await control_plane.orders.policy(plan.policy_digest)
    except (NotKept, StoreError):
        return policy


def _provenance(control_plane: ControlPlane, plan: RegionPlan | None, digest: str) -> Provenance | None:
    if plan is not None and plan.policy_digest == digest:
        return plan.provenance
    newest = policy_status(control_plane.policies)
    return newest.provenance if newest.digest == digest else None


def _asked(policy: Policy, body: ExplainRequest, geoip: GeoIpLookup) -> ExplainQuery:
    origin = region_of(policy, body.origin, "origin")
    for region in body.tried:
        region_of(policy, region, "tried")
    tenant = body.tenant
    if body.key_digest is not None:
        if tenant is not None:
            raise Problem(422, "key_digest: give the key or the tenant, not both")
        tenant = tenant_by_key(policy, body.key_digest)
        if tenant is None:
            raise Problem(422, "key_digest: no tenant has this key")
    if body.ip is not None and not geoip.available:
        raise Problem(422, "ip: this control plane has no GeoIP database; give country instead")
    return ExplainQuery(origin, body.model, tenant, body.location(geoip), dict(body.tried), body.overflow)
