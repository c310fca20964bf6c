"""/v1/explain and /v1/steer: their responses, the source of their data, and their errors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from adapters.geoip_lookup import GeoIpLookup
from adapters.store import keys
from adapters.store.codec import encode
from control_plane.auth.authentication import Access
from control_plane.daemon import ControlPlane
from control_plane.policy.folder import read_folder
from control_plane.status.fleet_view import FleetView
from control_plane.status.query_responses import ExplainResponse, WhatIfResponse
from lab.geoip import SITES, write_geoip
from penstock.fleet import snapshot
from penstock.overrides.override_check import RejectedBy
from penstock.policy.provenance import Provenance
from penstock.routing.explain import RegionVerdict
from penstock.routing.reasons import Reason
from penstock.routing.steering import SteeringAdvice
from tests.support.api_app import OPERATOR, REGIONS, TOKEN, client_of, is_problem, leading, served
from tests.support.paths import PLANET
from tests.support.reports import MODEL, offered, packed, report
from tests.support.stores import put
from tests.support.wait import until

HAMBURG, NEW_YORK = "198.18.1.7", "198.18.13.7"
DEMO_KEY_DIGEST = "309bfdb52679b076df35c4a018577f538db9de8bfc0b6e4a0a2164262123be0a"


@pytest.fixture
async def http(control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    write_geoip(tmp_path / "geo.mmdb")
    async with client_of(
        served(control_plane, Access(TOKEN), GeoIpLookup(tmp_path / "geo.mmdb")), **OPERATOR
    ) as client:
        yield client


async def fill(control_plane: ControlPlane, http: httpx.AsyncClient, *failed: str) -> None:
    """Let every region report, and plan."""
    await leading(control_plane)
    for region in REGIONS:
        ready = 0 if region in failed else 4
        body, headers = packed(report(region, offered(50.0, "eu-de", "eu-es"), ready=ready))
        assert (await http.post("/v1/reports", content=body, headers=headers)).status_code == 202
    await until(lambda: all(plan.classes for plan in control_plane.view.plans.values()))


async def explained(http: httpx.AsyncClient, **body: Any) -> ExplainResponse:
    response = await http.post("/v1/explain", json={"model": MODEL} | body)
    assert response.status_code == 200, response.text
    return msgspec.json.decode(response.content, type=ExplainResponse)


async def test_a_request_of_the_fleet(control_plane: ControlPlane, http: httpx.AsyncClient) -> None:
    await fill(control_plane, http)
    reported = await explained(http, origin="eu-de", tenant="personal", country="DE")
    assert (reported.seen_by, reported.leading) == ("north", True)
    assert reported.provenance is None
    assert control_plane.view.policy is not None
    assert reported.explanation.policy_digest == control_plane.view.policy.digest()
    assert reported.explanation.residency == "eu-de+eu-es"
    assert reported.explanation.planned
    by_name = {region.region: region for region in reported.explanation.regions}
    assert by_name["eu-de"].verdict is RegionVerdict.SERVES
    assert by_name["us-east"].verdict is RegionVerdict.FORBIDDEN
    assert by_name["us-east"].reasons[0].detail.startswith("eea-clients-stay-in-eu (residency.yaml:")
    assert reported.explanation.chosen is not None


async def test_a_region_without_a_ready_endpoint(control_plane: ControlPlane, http: httpx.AsyncClient) -> None:
    await fill(control_plane, http, "eu-de")
    reported = await explained(http, origin="eu-de", tenant="eu-personal")
    by_name = {region.region: region for region in reported.explanation.regions}
    assert [reason.reason for reason in by_name["eu-de"].reasons] == [Reason.MODEL_NOT_READY]
    assert reported.explanation.chosen is not None
    assert reported.explanation.chosen.region == "eu-es"


async def test_a_region_with_a_candidate_policy_is_explained_under_that_policy(
    control_plane: ControlPlane, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(control_plane, http)
    assert control_plane.view.policy is not None
    other = msgspec.structs.replace(control_plane.view.policy, residency=())
    commit = Provenance("repo", "main", "ab" * 20, "operator", 1.0, "No rules")
    plans = control_plane.view.plans | {
        name: msgspec.structs.replace(control_plane.view.plans["eu-de"], policy_digest=digest, provenance=commit)
        for name, digest in [("eu-es", other.digest()), ("eu-gb", "0" * 64)]
    }
    monkeypatch.setattr(FleetView, "plans", plans)
    await put(control_plane._store, keys.policy(other.digest()), encode(other))
    canary = await explained(http, origin="eu-es", tenant="personal", country="DE")
    assert (canary.explanation.policy_digest, canary.explanation.rules) == (other.digest(), ())
    assert canary.provenance == commit
    forgotten = await explained(http, origin="eu-gb", tenant="personal", country="DE")
    assert forgotten.explanation.policy_digest == control_plane.view.policy.digest()
    assert forgotten.provenance is None


async def test_a_request_is_explained_by_address_and_key(http: httpx.AsyncClient) -> None:
    reported = await explained(http, origin="us-east", ip=HAMBURG, key_digest=DEMO_KEY_DIGEST)
    assert reported.explanation.query.tenant == "personal"
    assert reported.explanation.query.location.country == "DE"
    assert reported.explanation.refusal is not None
    assert reported.explanation.refusal.reason is Reason.MISDIRECTED
    assert reported.explanation.refusal.try_regions == ("eu-es", "eu-de")


async def test_invalid_queries_are_refused(http: httpx.AsyncClient) -> None:
    bodies: list[tuple[dict[str, Any], str]] = [
        ({"origin": "us-est"}, "did you mean us-east?"),
        ({"origin": "us-east", "tried": {"eu-d": "saturated"}}, "tried: there is no region 'eu-d'"),
        ({"origin": "us-east", "tried": {"eu-de": "tired"}}, "body.tried.eu-de"),
        ({"origin": "us-east", "ip": "1.2.3"}, "not an IP address"),
        ({"origin": "us-east", "ip": "1.2.3.4", "country": "DE"}, "cannot be combined"),
        ({"origin": "us-east", "subdivision": "CA"}, "requires country"),
        ({"origin": "us-east", "country": "de"}, "body.country: 'de' is no country of ISO 3166-1"),
        ({"origin": "us-east", "country": "XX"}, "leave it out where it is unknown"),
        ({"origin": "us-east", "country": "{x}"}, "'{x}' is no country"),
        ({"origin": "us-east", "overflow": "yes"}, "body.overflow"),
        ({"origin": "us-east", "key_digest": "0" * 64}, "no tenant has this key"),
        ({"origin": "us-east", "key_digest": "0" * 64, "tenant": "open"}, "cannot be combined"),
        ({"origin": "us-east", "key": "secret"}, "body.key"),
        ({}, "body.origin"),
    ]
    for body, message in bodies:
        response = await http.post("/v1/explain", json={"model": MODEL} | body)
        assert is_problem(response, 422), body
        assert message in response.json()["detail"]


async def test_an_address_without_a_database(control_plane: ControlPlane) -> None:
    async with client_of(served(control_plane, Access(TOKEN)), **OPERATOR) as http:
        await leading(control_plane)
        response = await http.post("/v1/explain", json={"model": MODEL, "origin": "eu-de", "ip": HAMBURG})
        assert is_problem(response, 422)
        steered = await http.get("/v1/steer", params={"ip": HAMBURG, "tenant": "personal"})
    advice = msgspec.json.decode(steered.content, type=SteeringAdvice)
    assert advice.refusal is not None
    assert advice.refusal.reason is Reason.LOCATION_UNKNOWN


async def test_steering_returns_entry_regions(control_plane: ControlPlane, http: httpx.AsyncClient) -> None:
    await fill(control_plane, http)
    response = await http.get("/v1/steer", params={"ip": HAMBURG, "tenant": "personal", "model": MODEL})
    advice = msgspec.json.decode(response.content, type=SteeringAdvice)
    assert [entry.region for entry in advice.entries] == ["eu-de", "eu-es"]
    assert response.headers["cache-control"] == f"private, max-age={int(advice.ttl_s)}"
    nobody = await http.get("/v1/steer", params={"ip": "192.0.2.1", "tenant": "personal"})
    assert nobody.json()["entries"] == []
    assert nobody.json()["refusal"]["reason"] == "location_unknown"


async def test_clients_enter_at_the_nearest_region(control_plane: ControlPlane, http: httpx.AsyncClient) -> None:
    await fill(control_plane, http)
    nearest = {}
    for site in SITES:
        client = {"ip": site.network.removesuffix("0/24") + "9", "tenant": "open"}
        nearest[site.city] = (await http.get("/v1/steer", params=client)).json()["entries"][0]["region"]
    assert (nearest["Hamburg"], nearest["New York"], nearest["Osaka"]) == ("eu-de", "us-east", "jp-tok")


async def test_a_location_given_twice_is_refused(http: httpx.AsyncClient) -> None:
    assert is_problem(await http.get("/v1/steer", params={"ip": HAMBURG, "country": "DE"}), 422)
    assert is_problem(await http.get("/v1/steer?country=DE&country=US"), 422)


async def test_no_body_is_read_from_an_unknown_caller(http: httpx.AsyncClient) -> None:
    nobody = {"authorization": "Bearer nobody", "content-type": "application/json"}
    for path in ("/v1/explain", "/v1/what-if", "/v1/policies/validate", "/v1/regions/eu-de/drain"):
        assert is_problem(await http.post(path, content=b"{", headers=nobody), 401)


async def test_a_client_in_an_unknown_country_is_refused(http: httpx.AsyncClient) -> None:
    for code in ("XX", "ZZ", "EU", "UK"):
        refused = await http.get("/v1/steer", params={"country": code})
        assert is_problem(refused, 422)
        assert f"query.country: '{code}' is no country" in refused.json()["detail"]
    assert is_problem(await http.get("/v1/steer", params={"ip": "nonsense"}), 422)
    assert is_problem(await http.get("/v1/steer", params={"region": "eu-de"}), 422)


async def what_if(http: httpx.AsyncClient, **body: Any) -> WhatIfResponse:
    response = await http.post("/v1/what-if", json=body)
    assert response.status_code == 200, response.text
    return msgspec.json.decode(response.content, type=WhatIfResponse)


async def test_what_if_a_region_is_lost(control_plane: ControlPlane, http: httpx.AsyncClient) -> None:
    await fill(control_plane, http)
    row = {"origin": "eu-de", "tenant": "eu-personal", "model": MODEL, "requests_per_s": 30.0, "country": "DE"}
    reported = await what_if(http, lost=["eu-de"], demand=[row])
    assert (reported.demand, reported.fleet) == ("as given", "as reported")
    assert reported.before.load["eu-de"] > 0.0
    assert reported.after.load.get("eu-de", 0.0) == 0.0
    assert reported.moved_per_s == pytest.approx(30.0)
    assert {(move.source, move.target) for move in reported.moves} == {("eu-de", "eu-es")}
    assert reported.policy_before == reported.policy_after
    grown = await what_if(http, growth=[{"factor": 2.0, "model": MODEL, "origin": "eu-de"}], demand=[row])
    assert (grown.before.requests_per_s, grown.after.requests_per_s) == (30.0, 60.0)


EMPTY = {"kind": "fail_over", "expires_in_s": "none"}


async def test_what_if_has_the_overrides_in_force_and_the_guard_rails(
    control_plane: ControlPlane, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without reports, which would fade during the evaluations, every region counts as having the same capacity.
    monkeypatch.setattr(snapshot, "SETTLE_S", 0.0)
    await leading(control_plane)
    row = {"origin": "eu-de", "tenant": "eu-personal", "model": MODEL, "requests_per_s": 30.0, "country": "DE"}
    roomy = [{"region": region, "model": MODEL, "slots": 100, "service_s": 1.0} for region in REGIONS]
    fixed: dict[str, Any] = {"demand": [row], "fleet": roomy}
    free = await what_if(http, overrides=[{"kind": "drain", "region": "eu-de"}], **fixed)
    assert (free.rejections, free.conditions_before) == ((), ())
    assert {(move.source, move.target) for move in free.moves} == {("eu-de", "eu-es")}
    set_ = await http.post("/v1/overrides", json=EMPTY | {"region": "eu-es", "reason": "a fire"})
    assert set_.status_code == 201, set_.text
    await until(lambda: bool(control_plane.overrides.seen.overrides))

    reported = await what_if(http, overrides=[{"kind": "drain", "region": "eu-de"}], **fixed)
    (condition,) = reported.conditions_before
    assert condition.startswith("fail over ")
    assert condition.endswith(" of eu-es: a fire")
    assert reported.before.load["eu-es"] == 0.0
    (rejection,) = reported.rejections
    assert rejection.by is RejectedBy.GUARD_RAIL
    assert rejection.objection is not None
    assert {emptied.residency for emptied in rejection.objection.classes} == {"eu-de+eu-es"}
    refused = await http.post("/v1/overrides", json=EMPTY | {"kind": "drain", "region": "eu-de", "reason": "x"})
    assert refused.status_code == 409
    assert refused.json()["detail"].startswith(rejection.detail), "the preview and the change have one rule"

    again = await what_if(http, overrides=[{"kind": "fail_over", "region": "eu-es"}], **fixed)
    assert [each.by for each in again.rejections] == [RejectedBy.DUPLICATE]
    id_ = set_.json()["override"]["id"]
    lifted = await what_if(http, lift=[id_], overrides=[{"kind": "drain", "region": "eu-de"}], **fixed)
    assert lifted.rejections == ()
    assert len(lifted.conditions_after) == 1
    both = [{"kind": "drain", "region": region} for region in ("eu-de", "eu-es")]
    twice = await what_if(http, lift=[id_], overrides=both, **fixed)
    assert [each.by for each in twice.rejections] == [RejectedBy.GUARD_RAIL], "each is checked after the previous one"
    unknown = await http.post("/v1/what-if", json={"lift": ["no-override"], **fixed})
    assert (unknown.status_code, "'no-override'" in unknown.json()["detail"]) == (422, True)


async def test_what_if_compares_given_bundles_and_capacity(
    control_plane: ControlPlane, http: httpx.AsyncClient
) -> None:
    await fill(control_plane, http)
    files = read_folder(PLANET)
    row = {"origin": "eu-de", "tenant": "eu-personal", "model": MODEL, "requests_per_s": 30.0, "country": "DE"}
    fleet = [{"region": region, "model": MODEL, "slots": 100, "service_s": 1.0} for region in REGIONS]
    reported = await what_if(
        http, files_before=files, files=files, fleet=fleet, demand=[row], lost_before=["eu-de"], lost=["us-east"]
    )
    assert (reported.fleet, reported.moved_per_s) == ("as given", 0.0)
    assert reported.before.load.keys() == {"eu-es", "eu-gb", "us-east", "jp-tok"}
    assert reported.conditions_after == ("eu-de has failed", "us-east has failed")


async def test_what_if_the_policy_were_another(control_plane: ControlPlane, http: httpx.AsyncClient) -> None:
    await until(lambda: not control_plane.reporter.not_ready())
    files = read_folder(PLANET)
    files["residency.yaml"] = files["residency.yaml"].replace("jurisdictions: [EU]", "regions: [eu-es]")
    reported = await what_if(http, files=files)
    assert reported.policy_before != reported.policy_after
    assert reported.fleet.startswith("generated")
    assert reported.demand == "generated, 100.0 requests per second, because regions report none"
    assert any(move.residency_after == "eu-es" for move in reported.moves)


async def test_an_empty_query_is_refused(http: httpx.AsyncClient) -> None:
    for demand in ([], [{"tenant": "open", "model": MODEL, "requests_per_s": 0}]):
        reported = await what_if(http, demand=demand, lost=["eu-de"])
        assert (reported.moved_per_s, reported.before.served_per_s) == (0.0, 0.0)


async def test_demand_of_unknown_clients_is_refused_and_counted(http: httpx.AsyncClient) -> None:
    rows = [{"tenant": "nobody", "model": MODEL}, {"tenant": "open", "model": "gpt-9", "origin": "eu-de"}]
    reported = await what_if(http, demand=[row | {"requests_per_s": 2.0} for row in rows])
    assert sum(reported.after.refused_per_s.values()) == pytest.approx(4.0)


async def test_what_if_refuses_invalid_input(http: httpx.AsyncClient) -> None:
    bodies: list[tuple[dict[str, Any], str]] = [
        ({"lost": ["eu-d"]}, "did you mean eu-de?"),
        ({"files": {"one.yaml": "kind: Nonsense"}}, "the bundle is invalid"),
        ({"demand": [{"tenant": "open", "model": MODEL, "requests_per_s": -1}]}, "body.demand[0].requests_per_s"),
        ({"policy": "other"}, "body.policy"),
        ({"growth": [{"factor": -1.0}]}, "body.growth[0].factor"),
        ({"growth": [{"factor": 2.0, "model": MODEL[:-1]}]}, f"growth[0]: matches no demand; did you mean {MODEL}?"),
        ({"lost_before": ["eu-d"]}, "lost_before: there is no region"),
        ({"overrides": [{"kind": "drain", "region": "mars"}]}, "overrides[0].region: the policy has no region mars"),
        ({"overrides": [{"kind": "drain", "region": "eu-de", "expires_in_s": -1}]}, "overrides[0].expires_in_s"),
        ({"fleet": [{"region": "mars", "model": "m", "slots": 1, "service_s": 1.0}]}, "fleet[0].region"),
    ]
    for body, message in bodies:
        response = await http.post("/v1/what-if", json=body)
        assert is_problem(response, 422), body
        assert message in response.json()["detail"]


async def test_what_if_refuses_demand_at_an_unknown_region(http: httpx.AsyncClient) -> None:
    row = {"tenant": "open", "model": MODEL, "country": "DE", "requests_per_s": 1.0}
    response = await http.post("/v1/what-if", json={"lost": [], "demand": [row, row | {"origin": "eu-dee"}]})
    assert response.status_code == 422
    assert response.json()["detail"] == "demand[1].origin: there is no region 'eu-dee'; did you mean eu-de?"
