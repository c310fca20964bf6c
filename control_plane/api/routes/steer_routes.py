"""`/v1/steer`: the permitted entry regions of a client, best first, for DNS servers, SDKs and edge workers."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import Field

from adapters.geoip_lookup import GeoIpLookup
from control_plane.api.openapi import returns
from control_plane.api.responses import json_response
from control_plane.api.serving.api_threads import in_api_thread
from control_plane.api.serving.client_location import ClientPlace, require_policy
from control_plane.auth.required_roles import Viewer
from control_plane.status.fleet_view import FleetView
from control_plane.tenants.tenant_store import TenantStore
from penstock.fleet.snapshot import pools
from penstock.policy.policy import Policy
from penstock.routing.steering import Client, SteeringAdvice, SteeringAdvisor


class SteerClient(ClientPlace):
    """A client that needs an entry region."""

    tenant: str | None = Field(
        None, max_length=512, description="Tenant of the client. Default: only regions that every tenant may use."
    )
    model: str | None = Field(None, max_length=512, description="Model that the client will request.")


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
        advice = await in_api_thread(lambda: advisor.advise(client))
        return json_response(advice, headers={"cache-control": f"private, max-age={int(advice.ttl_s)}"})

    return router


class _Advisor:
    """Advises by the current state of the fleet, in any thread; caches the SteeringAdvisor of the policy."""

    def __init__(self, view: FleetView, tenants: TenantStore, geoip: GeoIpLookup) -> None:
        self._view = view
        self._tenants = tenants
        self._geoip = geoip
        self._steer: tuple[Policy, SteeringAdvisor] | None = None

    def advise(self, client: SteerClient) -> SteeringAdvice:
        """Return the advice for a client.

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
        tenant = None if client.tenant is None else self._tenants.sender(policy, client.tenant)
        return steer[1].advise(Client(client.location(self._geoip), tenant, client.model), states, ready)
