"""/v1/steer: the permitted entry regions for a client, best first, for DNS, SDKs and workers at the edge."""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from adapters.geoip_lookup import GeoIpLookup
from control_plane.api.client_location import ClientPlace, policy_in_force
from control_plane.api.json_responses import answer
from control_plane.api.openapi import gives
from control_plane.auth.required_roles import Viewer
from control_plane.daemon import ControlPlane
from penstock.fleet.snapshot import pools
from penstock.health.region_health import RegionState
from penstock.policy.policy import Policy
from penstock.routing.steering import Advice, Client, Steer

MAX_CLIENTS = 500
"""Clients of one batch."""


class SteerClient(ClientPlace):
    """Who wants to come in, as far as it is known."""

    tenant: str | None = Field(
        None, max_length=512, description="Without it, only regions are named that every tenant may use."
    )
    model: str | None = Field(None, max_length=512, description="The model that it will ask for.")


class SteerBatch(BaseModel):
    """Several clients at once."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    clients: list[SteerClient] = Field(max_length=MAX_CLIENTS)


class Steered(msgspec.Struct, frozen=True):
    """Advice for each client of a batch, in their order."""

    advice: tuple[Advice, ...]
    policy_digest: str


def routes(control_plane: ControlPlane, geoip: GeoIpLookup) -> APIRouter:
    """Advises."""
    router = APIRouter(prefix="/v1/steer", tags=["explain"])
    lookout = _Lookout(control_plane, geoip)

    @router.get("", responses=gives(Advice, "Entry regions, best first."))
    async def one(caller: Viewer, client: Annotated[SteerClient, Query()]) -> Response:
        """Say where a client should come in.

        No entries and a `refusal` where residency permits none, or where it depends on a place that is not known.
        Keep the answer for `ttl_s` at most.
        """
        advice = lookout.look().advise(client)
        return answer(advice, headers={"cache-control": f"private, max-age={int(advice.ttl_s)}"})

    @router.post("", responses=gives(Steered, "Advice for each client, in their order."))
    async def batch(caller: Viewer, body: SteerBatch) -> Response:
        """Say it for several clients at once."""
        sight = lookout.look()
        advice = []
        for client in body.clients:
            advice.append(sight.advise(client))
            await asyncio.sleep(0)  # others get their turn: with a thousand regions each takes some 10 ms
        return answer(Steered(tuple(advice), sight.policy.digest()))

    return router


class _Sight(msgspec.Struct, frozen=True):
    """The fleet at one moment."""

    policy: Policy
    steer: Steer
    states: dict[str, RegionState]
    ready: set[tuple[str, str]]
    geoip: GeoIpLookup

    def advise(self, client: SteerClient) -> Advice:
        """Advice for one client."""
        about = Client(client.location(self.geoip), client.tenant, client.model)
        return self.steer.advise(about, self.states, self.ready)


class _Lookout:
    """Sees the fleet as this control plane knows it, and keeps what follows from policy alone."""

    def __init__(self, control_plane: ControlPlane, geoip: GeoIpLookup) -> None:
        self._control_plane = control_plane
        self._geoip = geoip
        self._steer: tuple[Policy, Steer] | None = None

    def look(self) -> _Sight:
        """How it is now.

        Raises:
            Problem: 503, no policy is in force.
        """
        policy = policy_in_force(self._control_plane.policy)
        if self._steer is None or self._steer[0] is not policy:
            self._steer = (policy, Steer(policy))
        snapshot, now = self._control_plane.snapshot, self._control_plane.now()
        states = {region: snapshot.state(region) for region in policy.regions}
        ready = {where for where, one in pools(snapshot, now).items() if one.report.ready > 0}
        return _Sight(policy, self._steer[1], states, ready, self._geoip)
