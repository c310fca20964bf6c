"""/v1/dns: what names resolve to by the reports of the fleet, and its errors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import msgspec
import pytest
from msgspec.structs import replace

from adapters.geoip_lookup import GeoIpLookup
from control_plane.auth.authentication import Access
from control_plane.daemon import ControlPlane
from control_plane.planning.planning_loop import PlanningLoop
from control_plane.status.fleet_view import FleetView
from control_plane.status.query_responses import DnsResponse
from lab.geoip import write_geoip
from penstock.dns.record_sets import NameRecords
from penstock.health.region_health import RegionState
from penstock.policy.kinds.dns_names import DnsStrategy
from penstock.policy.kinds.region_entry import RegionEntry
from penstock.policy.policy import Policy
from tests.support.api_app import OPERATOR, REGIONS, TOKEN, client_of, is_problem, leading, served
from tests.support.dns_names import ZONE, a_name
from tests.support.reports import offered, packed, report
from tests.support.wait import until

NEW_YORK = "198.18.13.7"


@pytest.fixture
async def http(
    control_plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[httpx.AsyncClient]:
    write_geoip(tmp_path / "geo.mmdb")
    async with client_of(
        served(control_plane, Access(TOKEN), GeoIpLookup(tmp_path / "geo.mmdb")), **OPERATOR
    ) as client:
        await leading(control_plane)
        for region in REGIONS:
            body, headers = packed(report(region, offered(50.0, "eu-de", "eu-es"), ready=0 if region == "eu-es" else 4))
            assert (await client.post("/v1/reports", content=body, headers=headers)).status_code == 202
        await until(lambda: control_plane.view.snapshot.state("us-east") is RegionState.HEALTHY)
        policy = control_plane.view.policy
        assert policy is not None
        named = _named(policy)
        monkeypatch.setattr(FleetView, "policy", property(lambda view: named))
        yield client


def _named(policy: Policy) -> Policy:
    regions = {
        name: replace(policy.regions[name], entry=RegionEntry(addresses=(f"192.0.2.{number}",)))
        for number, name in enumerate(REGIONS, start=1)
    }
    names = (a_name("eu", tenants=("personal",)), a_name("open", tenants=("open",), strategy=DnsStrategy.NEAREST))
    return replace(
        policy,
        regions=policy.regions | regions,
        dns_zones={ZONE.name: ZONE},
        dns_names={name.name: replace(name, covers=frozenset(REGIONS)) for name in names},
    )


async def resolved(http: httpx.AsyncClient, **params: str) -> list[NameRecords]:
    response = await http.get("/v1/dns", params=params)
    assert response.status_code == 200, response.text
    return list(msgspec.json.decode(response.content, type=DnsResponse).names)


async def test_names_resolve_to_ready_and_permitted_regions(http: httpx.AsyncClient) -> None:
    (eu,) = await resolved(http, name="eu.api.example.com")
    assert eu.permitted == ("eu-de", "eu-es")
    assert eu.shares == {"eu-de": 1.0}
    assert [rejection.what for rejection in eu.rejected] == ["eu-es"]
    assert [(each.kind, each.values) for each in eu.record_sets] == [("A", ("192.0.2.1",))]
    assert [name.name for name in await resolved(http)] == ["eu.api.example.com", "open.api.example.com"]


async def test_a_client_subnet_is_nearest_to_its_region(http: httpx.AsyncClient) -> None:
    (found,) = await resolved(http, name="open.api.example.com", ip=NEW_YORK)
    assert found.shares == {"us-east": 1.0}


async def test_unknown_names_and_places_are_problems(http: httpx.AsyncClient) -> None:
    assert is_problem(await http.get("/v1/dns", params={"name": "nothing.example.com"}), 404)
    assert is_problem(await http.get("/v1/dns", params={"country": "XX"}), 422)


async def test_a_new_leader_answers_once_regions_have_had_time_to_report(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records of those that have not reported yet would be removed from other DNS servers."""
    monkeypatch.setattr(PlanningLoop, "has_full_snapshot", False)
    assert is_problem(await http.get("/v1/dns"), 503)
