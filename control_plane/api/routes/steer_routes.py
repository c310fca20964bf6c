"""`/v1/steer`: the permitted entry regions of a client, best first, for DNS servers, SDKs and edge workers."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Query, Response
from pydantic import Field

from adapters.geoip_lookup import GeoIpLookup
from control_plane.api.json_bodies import JsonBody
from control_plane.api.openapi import returns
from control_plane.api.responses import json_response, large_response
from control_plane.api.serving.api_threads import in_api_thread
from control_plane.api.serving.client_location import ClientPlace, require_policy
from control_plane.auth.required_roles import Viewer
from control_plane.request_model import RequestModel
from control_plane.status.fleet_view import FleetView
from control_plane.tenants.tenant_store import TenantStore
from penstock.fleet.snapshot import pools
from penstock.health.region_health import RegionState
from penstock.policy.policy import Policy
from penstock.routing.steering import Client, SteeringAdvice, SteeringAdvisor

MAX_BODY_BYTES = 256 * 1024
"""Maximum size (bytes) of the body: 500 bytes for each of MAX_CLIENTS."""

MAX_CLIENTS = 500
"""Maximum number of clients in a batch."""


class SteerClient(ClientPlace):
    """A client that needs an entry region."""

    tenant: str | None = Field(
        None, max_length=512, description="Tenant of the client. Default: only regions that every tenant may use."
    )
    model: str | None = Field(None, max_length=512, description="Model that the client will request.")


class SteerBatch(RequestModel):
    """Several clients."""

    clients: list[SteerClient] = Field(max_length=MAX_CLIENTS, fail_fast=True)


SteerBody = Annotated[SteerBatch, Depends(JsonBody(SteerBatch, MAX_BODY_BYTES).read)]


class SteerBatchResponse(msgspec.Struct, frozen=True):
    """SteeringAdvice for each client of a batch, in the same order."""

    advice: tuple[SteeringAdvice, ...]
    policy_digest: str


def routes(view: FleetView, tenants: TenantStore, geoip: GeoIpLookup) -> APIRouter:
    """Return the router of steering."""
    router = APIRouter(prefix="/v1/steer", tags=["explain"])
    advisor = _Advisor(view, tenants, geoip)

    @router.get("", responses=returns(SteeringAdvice, "Entry regions, best first."))
    async def one(caller: Viewer, client: Annotated[SteerClient, Query()]) -> Response:
        """Get the entry regions of a client.

        If residency permits no region, or if the result depends on an unknown location, the response has a `refusal`
        and no entries. Cache the response for at most `ttl_s`.
        """
        advice = await in_api_thread(lambda: advisor.current().advise(client))
        return json_response(advice, headers={"cache-control": f"private, max-age={int(advice.ttl_s)}"})

    @router.post("", responses=returns(SteerBatchResponse, "SteeringAdvice for each client, in the same order."))
    async def batch(caller: Viewer, body: SteerBody) -> Response:
        """Get the entry regions of several clients."""

        def found() -> dict[str, Any]:
            """Return a SteerBatchResponse. The advice is encoded one by one: one call for all of it takes 20 ms."""
            current = advisor.current()
            advice = [msgspec.Raw(msgspec.json.encode(current.advise(client))) for client in body.clients]
            return {"advice": advice, "policy_digest": current.policy.digest()}

        return await large_response(found)

    return router


class _FleetMoment(msgspec.Struct, frozen=True):
    """The fleet at one moment."""

    policy: Policy
    steer: SteeringAdvisor
    states: dict[str, RegionState]
    ready: set[tuple[str, str]]
    tenants: TenantStore
    geoip: GeoIpLookup

    def advise(self, client: SteerClient) -> SteeringAdvice:
        """Return the advice for one client."""
        tenant = None if client.tenant is None else self.tenants.sender(self.policy, client.tenant)
        about = Client(client.location(self.geoip), tenant, client.model)
        return self.steer.advise(about, self.states, self.ready)


class _Advisor:
    """Provides the current state of the fleet, in any thread; caches the SteeringAdvisor of the policy."""

    def __init__(self, view: FleetView, tenants: TenantStore, geoip: GeoIpLookup) -> None:
        self._view = view
        self._tenants = tenants
        self._geoip = geoip
        self._steer: tuple[Policy, SteeringAdvisor] | None = None

    def current(self) -> _FleetMoment:
        """Return the current state of the fleet.

        Raises:
            Problem: 503, no policy is in force.
        """
        policy = require_policy(self._view.policy)
        steer = self._steer
        if steer is None or steer[0] is not policy:
            self._steer = steer = (policy, SteeringAdvisor(policy))
        snapshot, now = self._view.snapshot, self._view.now()
        states = {region: snapshot.state(region) for region in policy.regions}
        ready = {key for key, pool in pools(snapshot, now).items() if pool.report.ready > 0}
        return _FleetMoment(policy, steer[1], states, ready, self._tenants, self._geoip)
