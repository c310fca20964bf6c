"""Resources, recent plans and events of a reporting fleet over the API, on a real HTTP server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec
import pytest
import uvicorn
import yaml
from starlette.types import Message

from adapters.access.callers import Caller, Role
from adapters.servers.free_ports import LOOPBACK
from control_plane.api.responses import Problem
from control_plane.api.routes import events_routes as events_module
from control_plane.api.routes.events_routes import EventStream, OpenStreams
from control_plane.audit.audit_log import AuditedAction
from control_plane.auth.admin_token import AdminToken
from control_plane.auth.authentication import Access
from control_plane.daemon import ControlPlane
from control_plane.events.event_log import EventKind
from control_plane.planning import planning_loop
from control_plane.status.query_responses import ExplainResponse
from lab.memory_store import MemoryStore
from penstock.fleet.endpoint_report import EndpointCondition, EndpointReport
from penstock.fleet.report import TenantReport
from penstock.health.engines.engine_facts import ServedModel
from tests.support.api_app import leading, new_control_plane, served
from tests.support.control_planes import OPERATOR, REGIONS, TOKEN
from tests.support.paths import ROOT
from tests.support.reports import MODEL, endpoint, offered, packed, report
from tests.support.wait import PATIENCE_S, until, until_async


class Api:
    """A control plane that serves, and agents that send it one report on request."""

    def __init__(self, control_plane: ControlPlane, http: httpx.AsyncClient) -> None:
        self.control_plane = control_plane
        self.http = http
        self._seq = 0
        self.requests_per_s = 50.0
        """What clients ask each region for."""

    async def get(self, path: str, **params: Any) -> Any:
        response = await self.http.get(path, params=params)
        assert response.status_code == 200, response.text
        return response.json()

    async def report(self) -> None:
        self._seq += 1
        for region in REGIONS:
            body, headers = packed(report(region, offered(self.requests_per_s, "eu-de", "eu-es"), seq=self._seq))
            assert (await self.http.post("/v1/reports", content=body, headers=headers)).status_code == 202

    async def until(self, holds: Callable[[], Awaitable[Any]]) -> Any:
        """Send reports until `holds` returns a result."""
        async with asyncio.timeout(PATIENCE_S):
            while not (result := await holds()):
                await self.report()
                await asyncio.sleep(0.05)
        return result


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    store = MemoryStore()
    control_plane = new_control_plane(store)
    app = served(control_plane, Access(AdminToken(TOKEN)))
    server = uvicorn.Server(uvicorn.Config(app, host=LOOPBACK, port=0, lifespan="off", log_config=None))
    await control_plane.start()
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    await leading(control_plane)
    port = server.servers[0].sockets[0].getsockname()[1]
    async with httpx.AsyncClient(base_url=f"http://{LOOPBACK}:{port}", headers=OPERATOR, timeout=PATIENCE_S) as http:
        yield Api(control_plane, http)
    await control_plane.stop()
    server.should_exit = True
    await serving
    await store.close()


async def test_each_resource_of_the_fleet_is_served(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning_loop, "RECOMMEND_EVERY_S", 0.0)

    async def reported() -> bool:
        return bool((await api.get("/v1/regions/eu-de"))["pools"])

    await api.until(reported)
    regions = await api.get("/v1/regions", limit=2)
    assert [region["name"] for region in regions["items"]] == ["eu-de", "eu-es"]
    assert regions["seen_by"]["name"] == "north"
    rest = await api.get("/v1/regions", cursor=regions["next_cursor"])
    assert [region["name"] for region in rest["items"]] == ["eu-gb", "jp-tok", "us-east"]
    assert rest["next_cursor"] is None
    region = await api.get("/v1/regions/eu-de")
    assert region["city"] == "Frankfurt"
    assert [(pool["model"], pool["slots"]) for pool in region["pools"]] == [(MODEL, 100)]
    assert (await api.http.get("/v1/regions/atlantis")).status_code == 404

    assert [agent["name"] for agent in (await api.get("/v1/agents", region="jp-tok"))["items"]] == ["one"]

    async def recommended() -> bool:
        return bool((await api.get("/v1/capacity/recommendations"))["items"])

    await api.until(recommended)
    (advice,) = (await api.get("/v1/capacity/recommendations", region="eu-de", model=MODEL))["items"]
    assert (advice["region"], advice["model"], advice["horizon_s"]) == ("eu-de", MODEL, 360.0)
    assert advice["desired_endpoints"] >= advice["endpoints"] > 0, "a new leader recommends nothing lower"
    scaled = next(yaml.safe_load_all((ROOT / "deploy" / "autoscaling" / "keda-from-zero.yaml").read_text()))
    trigger = scaled["spec"]["triggers"][0]["metadata"]
    url = urlsplit(trigger["url"].replace("llama-3-8b", MODEL))
    found = (await api.http.get(f"{url.path}?{url.query}")).json()
    for part in trigger["valueLocation"].split("."):  # as GJSON, which KEDA uses, reads a path
        found = found[int(part)] if part.isdigit() else found[part]
    assert found == advice["desired_endpoints"]
    for wrong in ("region=eu-dee", f"region=eu-de&model={MODEL}b"):
        refused = await api.http.get(f"/v1/capacity/recommendations?{wrong}")
        assert (refused.status_code, "did you mean" in refused.text) == (404, True), "an autoscaler shows why"
    assert await api.get("/v1/capacity/takeover") == {"takeover": None}
    gauges = (await api.http.get("/metrics")).text
    assert f'penstock_desired_endpoints{{model="{MODEL}",region="eu-de"}}' in gauges


SKEW = "the region serves v2, and other regions v1"


async def test_endpoints_are_paged_and_filtered(api: Api) -> None:
    async def post_report(region: str, *endpoints: EndpointReport | None, agent: str = "one", seq: int = 1) -> None:
        rows = None if endpoints == (None,) else tuple(row for row in endpoints if row is not None)
        tenants = (TenantReport("acme", 3, 1),)
        sent = report(region, seq=seq, agent=agent)
        sent = msgspec.structs.replace(sent, endpoints=rows, endpoints_omitted=3, tenants=tenants)
        body, headers = packed(sent)
        assert (await api.http.post("/v1/reports", content=body, headers=headers)).status_code == 202

    async def named(**wanted: Any) -> list[str]:
        return [f"{row['region']}/{row['name']}" for row in (await api.get("/v1/endpoints", **wanted))["items"]]

    async def leads() -> bool:
        return (await api.http.get("/v1/endpoints")).status_code == 200

    await until_async(leads)
    new, old = (
        msgspec.structs.replace(each, served=(ServedModel(MODEL, revision),))
        for each, revision in ((endpoint("gpu-1", EndpointCondition.EJECTED), "v2"), (endpoint("gpu-0"), "v1"))
    )
    await post_report("eu-de", new, endpoint("gpu-0", in_flight=7))
    await post_report("eu-es", old, endpoint("gpu-2", EndpointCondition.WARMING, model="other"))
    # A report is valid until the next one; of two agents, the first by name is authoritative.
    await post_report("eu-de", None, seq=2)
    await post_report("eu-de", endpoint("gpu-1"), endpoint("gpu-9", EndpointCondition.DRAINING), agent="two")
    page = await api.get("/v1/endpoints")
    first = page["items"][0]
    assert 0.0 <= first.pop("age_s") < PATIENCE_S
    assert first == {
        "region": "eu-de",
        "name": "gpu-0",
        "address": "gpu-0.internal:8000",
        "models": [MODEL],
        "zone": "zone-a",
        "accelerator": "h100",
        "state": "ready",
        "slots": 25,
        "in_flight": 7,
        "agent": "one",
        "reason": "",
        "engine_version": "",
        "served": [],
        "skew": f"{MODEL}: {SKEW}",
        "gpu": None,
        "is_burst": False,
    }
    asked = {"origin": "eu-de", "model": MODEL, "tenant": "open"}
    why = (await api.http.post("/v1/explain", json=asked)).json()["explanation"]
    assert {each["region"]: each["skew"] for each in why["regions"]}["eu-de"] == SKEW
    assert (page["seen_by"]["name"], page["left_out"], page["next_cursor"]) == ("north", 6, None)
    region = await api.get("/v1/regions/eu-de")
    assert [(row["name"], row["state"]) for row in region["unready"]] == [("gpu-1", "ejected"), ("gpu-9", "draining")]
    assert region["unready_count"] == 2
    assert region["tenants"] == [{"tenant": "acme", "in_flight": 6, "waiting": 2}], "of both agents"
    assert (await api.get("/v1/regions/eu-es"))["unready"] == [], "a warming endpoint receives requests"
    every = ["eu-de/gpu-0", "eu-de/gpu-1", "eu-de/gpu-9", "eu-es/gpu-0", "eu-es/gpu-2"]
    assert await named() == every
    assert await named(region="eu-es") == every[3:]
    assert await named(model="other") == ["eu-es/gpu-2"]
    assert await named(state="ejected") == ["eu-de/gpu-1"]
    assert await named(state="ready", region="eu-es", model=MODEL) == ["eu-es/gpu-0"]
    assert (await api.http.get("/v1/endpoints", params={"region": "atlantis"})).status_code == 404
    assert (await api.http.get("/v1/endpoints", params={"state": "tired"})).status_code == 422
    paged, cursor = [], None
    while True:
        page = await api.get("/v1/endpoints", limit=2, **({"cursor": cursor} if cursor else {}))
        paged += [f"{row['region']}/{row['name']}" for row in page["items"]]
        if (cursor := page["next_cursor"]) is None:
            break
    assert paged == every


async def test_tenants_are_shown_without_secrets(api: Api) -> None:
    policy = api.control_plane.policies.current
    assert policy is not None
    response = await api.http.get("/v1/tenants")
    assert {tenant["name"]: tenant["keys"] for tenant in response.json()["items"]} == {
        name: len(tenant.key_digests) for name, tenant in policy.tenants.items()
    }
    digests = [digest for tenant in policy.tenants.values() for digest in tenant.key_digests]
    assert digests
    assert not any(digest in response.text for digest in digests)
    name = next(iter(policy.tenants))
    assert (await api.get(f"/v1/tenants/{name}"))["name"] == name
    assert (await api.http.get("/v1/tenants/nobody")).status_code == 404


async def test_recent_plans_and_their_differences_are_served(api: Api) -> None:
    async def any_arcs() -> bool:
        return any(region_plan["classes"] for region_plan in (await api.get("/v1/plans/current")).values())

    async def changed() -> Any:
        items = (await api.get("/v1/plans"))["items"]
        return items if len(items) >= 2 and items[0]["changes"] else None

    api.requests_per_s = 5.0
    await api.until(any_arcs)
    # The demand of three of five regions exceeds Frankfurt, their home; Madrid has free slots.
    api.requests_per_s = 30.0
    newest, *older = await api.until(changed)
    assert newest["generation"] > older[-1]["generation"]
    diff = await api.get("/v1/plans/diff", before=older[-1]["generation"], after=newest["generation"])
    assert diff["changes"]
    assert {"origin", "server", "before", "after", "why"} <= diff["changes"][0].keys()
    assert (await api.get("/v1/plans/diff", before=older[-1]["generation"]))["before"] == older[-1]
    plan = await api.get(f"/v1/plans/{newest['generation']}")
    assert set(plan["slices"]) == set(REGIONS)
    assert (await api.http.get("/v1/plans/999999999")).status_code == 404


async def test_a_logged_request_is_explained_by_the_plan_and_policy_of_its_moment(api: Api) -> None:
    async def served_by(region: str) -> Any:
        """The newest kept plan, if the region serves all of its own demand or all of eu-de's by it."""
        for summary in (await api.get("/v1/plans", limit=1))["items"]:
            # A plan that precedes the first report of the region has no slice for the region.
            slices = (await api.get(f"/v1/plans/{summary['generation']}"))["slices"]
            classes = slices.get("eu-de", {"classes": []})["classes"]
            if [[arc["server"] for arc in each["arcs"]] for each in classes] == [[region]]:
                return summary
        return None

    before = await api.until(lambda: served_by("eu-de"))
    empty = {"kind": "fail_over", "region": "eu-de", "reason": "a fire", "expires_in_s": "none"}
    assert (await api.http.post("/v1/overrides", json=empty)).status_code == 201
    await api.until(lambda: served_by("eu-es"))
    assert api.control_plane.policies.current is not None
    then = {
        "at": before["made_at"],
        "plan_generation": before["generation"],
        "policy_digest": api.control_plane.policies.current.digest(),
        "server": "eu-de",
    }
    request = {"origin": "eu-de", "model": MODEL, "tenant": "eu-personal", "country": "DE"}

    async def explained_as_failed_over() -> ExplainResponse | None:
        response = await api.http.post("/v1/explain", json=request | {"then": then})
        assert response.status_code == 200, response.text
        found = msgspec.json.decode(response.content, type=ExplainResponse)
        present = None if found.present is None else found.present.chosen
        return found if present is not None and present.region == "eu-es" else None

    explained = await api.until(explained_as_failed_over)
    assert explained.explanation.chosen.region == "eu-de"
    assert f"by plan {before['generation']} of that moment" in explained.notes
    forgotten = {"at": 1.0, "plan_generation": 0, "policy_digest": "ab" * 32}
    notes = (await api.http.post("/v1/explain", json=request | {"then": forgotten})).json()["notes"]
    assert "plan 0 is not kept, so the plan of now is used" in notes
    assert any(note.startswith("policy abababababab of that moment is not available") for note in notes)


class Stream:
    """A stream of events, read one by one."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._lines = response.aiter_lines()

    async def next(self) -> tuple[str, dict[str, Any]]:
        """Return name and data of the next event."""
        name, data = "", ""
        async with asyncio.timeout(PATIENCE_S):
            async for line in self._lines:
                if line.startswith("event: "):
                    name = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    data = line.removeprefix("data: ")
                elif not line and name:
                    return name, json.loads(data)
        raise EOFError

    async def of(self, kind: str) -> dict[str, Any]:
        """Return the next event of a kind, skipping others."""
        while True:
            name, data = await self.next()
            if name == kind:
                return data


@asynccontextmanager
async def listening(api: Api, last_id: str | None = None, **params: Any) -> AsyncIterator[Stream]:
    headers = {} if last_id is None else {"last-event-id": last_id}
    async with api.http.stream("GET", "/v1/events", params=params, headers=headers) as response:
        assert (response.status_code, response.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        yield Stream(response)


async def test_events_are_streamed_as_they_happen(api: Api) -> None:
    async with listening(api, last_id="another-run-1") as stream:
        assert (await stream.next())[0] == "missed"
        led = await stream.of(EventKind.LEADERSHIP)
        assert led["data"]["leader"] == {"name": "north", "url": "http://north"}
        assert led["data"]["epoch"] > 0
        assert api.control_plane.policies.current is not None
        digest = api.control_plane.policies.current.digest()
        accepted = (await stream.of(EventKind.POLICY))["data"]
        assert (accepted["accepted"], accepted["refused"]) == (digest, [])
        while accepted["in_force"] != digest:
            accepted = (await stream.of(EventKind.POLICY))["data"]
        await api.report()
        region = await stream.of(EventKind.REGION)
        assert (region["data"]["before"], region["data"]["after"]) == ("unknown", "healthy")

        async def planned() -> bool:
            return bool((await api.get("/v1/plans"))["items"])

        await api.until(planned)
        assert (await stream.of(EventKind.PLAN))["data"]["generation"] > 0
        await api.control_plane.audit.record(
            AuditedAction(Caller("duty", Role.OPERATOR), "thing.do", "eu-de", "because")
        )
        entry = (await stream.of(EventKind.AUDIT))["data"]
        assert (entry["caller"], entry["action"], entry["reason"]) == ("duty", "thing.do", "because")
    assert {event["kind"] for event in (led, region)} == {"leadership", "region"}


async def test_a_status_stream_sends_all_then_changes_and_ends(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening(api, status=True) as stream:
        first = await stream.of("status")
        assert (first["parts"]["name"], first["parts"]["agents"]) == ("north", [])
        assert "regions/eu-de" in first["parts"]
        await api.report()
        while not (await stream.of("status"))["parts"].get("regions/eu-de", {}).get("pools"):
            pass
    monkeypatch.setattr(events_module, "MAX_STATUS_S", 0.0)
    async with listening(api, status=True) as stream:
        with pytest.raises(EOFError):
            await stream.of("status")
    monkeypatch.setattr(events_module, "MAX_STREAM_S", 0.0)
    async with listening(api) as stream:
        with pytest.raises(EOFError):
            await stream.of("audit")


async def test_a_disconnected_reader_resumes_without_a_gap(api: Api) -> None:
    duty = Caller("duty", Role.OPERATOR)

    async def do(what: str) -> None:
        await api.control_plane.audit.record(AuditedAction(duty, "thing.do", what, "because"))

    async with listening(api, kind="audit") as stream:
        await do("one")
        first = await stream.of(EventKind.AUDIT)
    await do("two")
    api.control_plane.events.add_local(EventKind.REGION, "not asked for")
    async with listening(api, last_id=first["id"], kind="audit") as stream:
        assert (await stream.next())[1]["data"]["target"] == "two"
        await do("three")
        assert (await stream.next())[1]["data"]["target"] == "three"


@pytest.mark.parametrize(("bound", "status"), [("MAX_STREAMS", 503), ("MAX_STREAMS_PER_CALLER", 429)])
async def test_the_number_of_readers_is_bounded_and_released(
    api: Api, monkeypatch: pytest.MonkeyPatch, bound: str, status: int
) -> None:
    monkeypatch.setattr(events_module, bound, 1)
    async with listening(api):
        refused = await api.http.get("/v1/events")
        assert (refused.status_code, refused.headers["retry-after"]) == (status, "5")
    await api.until(lambda: takes_a_reader(api))


async def test_two_callers_cannot_use_all_streams(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_module, "MAX_STREAMS", 4)
    monkeypatch.setattr(events_module, "MAX_STREAMS_PER_CALLER", 2)
    streams = OpenStreams()

    def opened(caller: str) -> EventStream:
        streams.make_room(caller)
        stream = EventStream(api.control_plane.events, None, frozenset(), on_close=streams.remove)
        streams.add(stream, caller)
        return stream

    held = [opened(caller) for caller in ("a", "a", "b", "b")]
    with pytest.raises(Problem, match="a has 2"):
        opened("a")
    opened("c")
    ended = [stream._ended.is_set() for stream in held]
    assert ended == [True, False, False, False], "the oldest stream of the caller with most"
    opened("d")
    assert [stream._ended.is_set() for stream in held] == [True, False, True, False]
    with pytest.raises(Problem, match="4 event streams are open"):
        opened("e")


async def test_a_displaced_stream_ends(api: Api) -> None:
    closed: list[EventStream] = []
    sent: list[Message] = []
    begun = asyncio.Event()

    async def send(message: Message) -> None:
        sent.append(message)
        begun.set()

    stream = EventStream(api.control_plane.events, None, frozenset(EventKind), on_close=closed.append)
    streaming = asyncio.create_task(stream({"type": "http"}, asyncio.Event().wait, send))  # type: ignore[arg-type]
    await asyncio.wait_for(begun.wait(), PATIENCE_S)
    stream.end()
    await asyncio.wait_for(streaming, PATIENCE_S)
    assert closed == [stream]
    assert sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}


async def test_a_slow_reader_is_disconnected(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_module, "SEND_TIMEOUT_S", 0.2)
    monkeypatch.setattr(events_module, "MAX_STREAMS", 1)
    async with listening(api) as stream:
        # More than the sockets' buffers hold, while no client reads.
        for _ in range(64):
            api.control_plane.events.add_local(EventKind.AUDIT, "x" * 1_000_000)
        await api.until(lambda: takes_a_reader(api))
        with pytest.raises((EOFError, httpx.RemoteProtocolError)):
            await read_to_the_end(stream)


async def test_streams_end_with_the_process(api: Api) -> None:
    async with listening(api) as stream:
        api.control_plane.events.close()
        with pytest.raises(EOFError):
            await read_to_the_end(stream)


async def takes_a_reader(api: Api) -> bool:
    async with api.http.stream("GET", "/v1/events") as response:
        return response.status_code == 200


async def read_to_the_end(stream: Stream) -> None:
    while True:
        await stream.next()
