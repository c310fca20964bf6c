"""`/v1/dns`: what the DNS names of the policy resolve to now, with the reason against each other region."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import Field

from adapters.geoip_lookup import GeoIpLookup
from control_plane.api.openapi import returns
from control_plane.api.responses import Problem, json_response
from control_plane.api.serving.api_threads import in_api_thread
from control_plane.api.serving.client_location import ClientPlace, require_policy
from control_plane.auth.required_roles import Viewer
from control_plane.status.fleet_view import FleetView
from control_plane.status.query_responses import DnsResponse
from penstock.dns.name_answer import EntryState, NameServerView
from penstock.dns.record_sets import name_records
from penstock.fleet.snapshot import pools
from penstock.overrides.override_check import NO_REPORTS
from penstock.policy.policy import Policy


class DnsQuery(ClientPlace):
    """A query: the location of its client subnet, if it has one."""

    name: str | None = Field(None, max_length=253, description="The name. Default: every name of the policy.")


def routes(view: FleetView, geoip: GeoIpLookup) -> APIRouter:
    """Return the router of DNS names."""
    router = APIRouter(prefix="/v1/dns", tags=["explain"])

    @router.get("", responses=returns(DnsResponse, "The names, and their records."))
    async def names(caller: Viewer, query: Annotated[DnsQuery, Query()]) -> Response:
        """Get what DNS names resolve to, for a client subnet at a location or without one.

        `shares` are the answers of agents through PowerDNS; `record_sets` are the records for a server that has one
        answer for all clients. A control plane that has just taken over answers 503 until regions have had time to
        report to it, as they would seem lost.
        """
        return json_response(await in_api_thread(lambda: _answers(view, geoip, query)))

    return router


def _answers(view: FleetView, geoip: GeoIpLookup, query: DnsQuery) -> DnsResponse:
    policy = require_policy(view.policy)
    if not view.has_full_snapshot:
        raise Problem(503, NO_REPORTS, {"retry-after": "2"})
    known = policy.dns_names or {}
    if query.name is not None and query.name not in known:
        raise Problem(404, f"the policy has no DnsName {query.name!r}")
    client, fleet = query.location(geoip), _fleet(view, policy)
    asked = known.values() if query.name is None else (known[query.name],)
    return DnsResponse(tuple(name_records(policy, name, fleet, client) for name in asked), policy.digest())


def _fleet(view: FleetView, policy: Policy) -> NameServerView:
    """The fleet as the reports of its agents state it; plans as published."""
    found = pools(view.snapshot, view.now())
    states = {}
    for region in policy.regions:
        models = {model: pool for (where, model), pool in found.items() if where == region}
        ready = frozenset(model for model, pool in models.items() if pool.report.ready > 0)
        state, asleep = view.snapshot.state(region), frozenset(models) - ready
        states[region] = EntryState(state, ready, accepts_clients=not models, asleep=asleep)
    return NameServerView(states, view.plans)
