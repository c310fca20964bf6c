"""Requests for LoRA adapters: planned as their base model, and served where the adapter is loaded."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.fleet.snapshot import MAX_COUNT
from penstock.health.engines.engine_kinds import EngineKind
from penstock.health.outlier_ejection import EjectionRules, EjectionState
from penstock.policy.kinds.models import Model
from penstock.routes.presets.preset_registry import preset_routes
from regional_agent.endpoints.endpoint import OutlierDetection
from regional_agent.endpoints.endpoint_status import endpoint_status
from regional_agent.telemetry.by_endpoint.endpoint_reports import endpoint_report
from tests.support.agents import Agent, running_agent
from tests.support.chats import ask, code
from tests.support.clocks import AdvancingClock
from tests.support.planet import MODEL, plan, policy
from tests.support.small_http import Headers, SmallHttp
from tests.support.sockets import Answer, RawClient
from tests.support.wait import until

NO_PEERS: Mapping[str, Any] = {}


class LoraEngine(SmallHttp):
    """An engine like vLLM: lists its base model, and its adapters with their parent."""

    def __init__(self, *adapters: str, base: str = MODEL, folder: str = "/adapters") -> None:
        self.base, self.adapters, self.folder = base, adapters, folder
        self.asked_for: list[str] = []
        self.broken: set[str] = set()
        """Names whose requests fail."""
        super().__init__(self._page)

    def _page(self, method: bytes, target: bytes, headers: Headers, body: bytes) -> tuple[int, bytes]:
        if target == b"/v1/models":
            listed: list[dict[str, Any]] = [{"id": self.base, "parent": None}]
            listed += [{"id": name, "root": f"{self.folder}/{name}", "parent": self.base} for name in self.adapters]
            return 200, json.dumps({"data": [*listed, {"id": "stray", "parent": "another"}]}).encode()
        if method == b"GET":
            return 200, b""
        name = json.loads(body)["model"]
        self.asked_for.append(name)
        if name in self.broken:
            return 500, b'{"error": "out of range"}'
        return (
            (200, b'{"choices": []}') if name in (self.base, *self.adapters) else (404, b'{"error": "no such model"}')
        )


@asynccontextmanager
async def serving(
    directory: Path, engines: Sequence[LoraEngine], fleet: Mapping[str, Any] = NO_PEERS, **entry: Any
) -> AsyncIterator[Agent]:
    """An agent in front of engines, with a policy that admits adapters of the model by a pattern."""
    async with AsyncExitStack() as stack:
        agent = await stack.enter_async_context(running_agent(directory, [], **fleet))
        agent.config.policy = msgspec.structs.replace(  # type: ignore[misc]
            policy(), anonymous_tenant="open", models={MODEL: Model(MODEL, adapters=("lora-*",))}
        )
        for engine in engines:
            await stack.enter_async_context(engine)
        common = {"models": [MODEL], "slots": 4, "engine": EngineKind.VLLM.value, **entry}
        specs = [{"name": f"gpu-{at}", "url": engine.url, **common} for at, engine in enumerate(engines)]
        (directory / "endpoints.yaml").write_text(json.dumps(specs))
        await agent.endpoints.sources.reload_file()
        agent.endpoints.start()
        stack.push_async_callback(agent.endpoints.stop)
        await until(lambda: agent.endpoints.pools[MODEL].ready == len(engines))
        yield agent


def chat(model: str) -> bytes:
    return json.dumps({"model": model, "messages": []}).encode()


async def test_an_adapter_is_served_where_it_is_loaded_and_counts_as_its_base_model(tmp_path: Path) -> None:
    sql, plain = LoraEngine("lora-sql"), LoraEngine()
    async with serving(tmp_path, [plain, sql]) as agent:
        for _ in range(6):
            answer = await ask(agent, body=chat("lora-sql"))
            assert answer.status == 200
        assert (sql.asked_for, plain.asked_for) == (["lora-sql"] * 6, [])
        assert {model for model, _ in agent.offered} == {MODEL}
        assert agent.endpoints.pools["lora-sql"].ready == 0
        assert b"lora-sql" not in agent.metrics.render()
        assert [sorted(endpoint.reported.adapters) for endpoint in agent.endpoints.pools[MODEL].endpoints] == [
            [],
            ["lora-sql"],
        ]
        for _ in range(6):
            assert (await ask(agent, body=chat(MODEL))).status == 200
        assert plain.asked_for


async def test_an_adapter_that_is_not_loaded_or_not_admitted_is_refused(tmp_path: Path) -> None:
    engine = LoraEngine("lora-sql", "other-sql")
    async with serving(tmp_path, [engine]) as agent:
        not_loaded, not_admitted = await ask(agent, body=chat("lora-x")), await ask(agent, body=chat("other-sql"))
        assert (not_loaded.status, not_admitted.status) == (503, 404)
        assert code(not_admitted.body) == "model_not_found"
        assert engine.asked_for == []


async def test_an_adapter_keeps_its_name_where_the_engine_has_another_one_for_the_model(tmp_path: Path) -> None:
    engine = LoraEngine("lora-sql", base="org/llama")
    async with serving(tmp_path, [engine], engine_names={MODEL: "org/llama"}) as agent:
        assert (await ask(agent, body=chat("lora-sql"))).status == 200
        assert (await ask(agent, body=chat(MODEL))).status == 200
        assert engine.asked_for == ["lora-sql", "org/llama"]


async def test_an_entry_names_adapters_that_its_engine_does_not_list(tmp_path: Path) -> None:
    engine = LoraEngine()
    async with serving(tmp_path, [engine], adapters=["lora-dynamic-*"]) as agent:
        engine.adapters = ("lora-dynamic-7",)
        assert (await ask(agent, body=chat("lora-dynamic-7"))).status == 200
        assert (await ask(agent, body=chat("lora-static"))).status == 503


async def test_another_region_serves_an_adapter_only_if_it_is_loaded_there(tmp_path: Path) -> None:
    near, far = LoraEngine("lora-both"), LoraEngine("lora-both", "lora-far")
    away = plan("eu-de", "eu-de+eu-es+us-east", eu_es=1.0)
    async with (
        serving(tmp_path / "es", [far], {"region": "eu-es"}) as server,
        serving(tmp_path / "de", [near], {"plan": away, "peers": {"eu-es": server.peer}}) as origin,
    ):
        for name in ("lora-both", "lora-far"):
            answer = await ask(origin, body=chat(name))
            assert (answer.status, answer.headers["x-penstock-region"]) == (200, "eu-es")
        assert far.asked_for == ["lora-both", "lora-far"]
        for endpoint in server.endpoints.every():
            endpoint.reported.adapters = frozenset()
        assert (await ask(origin, body=chat("lora-both"))).headers["x-penstock-region"] == "eu-de"
        assert (await ask(origin, body=chat("lora-far"))).status == 503
        assert (near.asked_for, far.asked_for) == (["lora-both"], ["lora-both", "lora-far"])


async def test_the_list_of_models_has_the_loaded_adapters(tmp_path: Path) -> None:
    engines = LoraEngine("lora-sql", "other-sql"), LoraEngine("lora-sql", "lora-a", folder="/of-last-week")
    async with serving(tmp_path, engines) as agent:
        assert {each.reported.skew for each in agent.endpoints.every()} == {
            "lora-sql: serves /adapters/lora-sql, and its siblings /of-last-week/lora-sql",
            "lora-sql: serves /of-last-week/lora-sql, and its siblings /adapters/lora-sql",
        }
        listed = json.loads((await get(agent, "/v1/models")).body)["data"]
        assert [(card["id"], card["root"], card["parent"]) for card in listed] == [
            (MODEL, MODEL, None),
            ("lora-a", "lora-a", MODEL),
            ("lora-sql", "lora-sql", MODEL),
        ]
        assert json.loads((await get(agent, "/v1/models/lora-sql")).body) == listed[2]
        assert [(await get(agent, f"/v1/models/{name}")).status for name in ("lora-x", "other-sql")] == [404, 404]


async def test_an_adapter_with_a_name_that_no_request_can_have_is_ignored(tmp_path: Path) -> None:
    too_long = "lora-" + "x" * 600
    async with serving(tmp_path, [LoraEngine("lora-sql", too_long)]) as agent:
        (endpoint,) = agent.endpoints.every()
        assert endpoint.reported.adapters == {"lora-sql"}
        assert endpoint_report(endpoint).is_possible(MAX_COUNT)


async def test_clients_of_anthropics_api_receive_its_list_of_models(tmp_path: Path) -> None:
    version = "anthropic-version: 2023-06-01"
    async with serving(tmp_path, [LoraEngine("lora-sql")]) as agent:
        assert json.loads((await get(agent, "/v1/models", version)).body)["object"] == "list", "without the preset"
        routes = (*preset_routes("openai"), *preset_routes("anthropic"))
        closed = msgspec.structs.replace(agent.config.policy.tenants["open"], key_digests=(sha256(b"key").hexdigest(),))
        agent.config.policy = msgspec.structs.replace(  # type: ignore[misc]
            agent.config.policy, routes=routes, tenants={"open": closed}, anonymous_tenant=None
        )
        page = json.loads((await get(agent, "/v1/models", version, "x-api-key: key")).body)
        assert (page["first_id"], page["last_id"], page["has_more"]) == (MODEL, "lora-sql", False)
        assert page["data"][1] == json.loads((await get(agent, "/v1/models/lora-sql", version, "x-api-key: key")).body)
        assert page["data"][1]["type"] == "model"
        refused = await get(agent, "/v1/models", version, "x-api-key: wrong")
        assert (refused.status, json.loads(refused.body)["error"]["type"]) == (401, "authentication_error")
        missing = await get(agent, "/v1/models/nothing", version, "x-api-key: key")
        assert (missing.status, json.loads(missing.body)["error"]["type"]) == (404, "not_found_error")
        assert json.loads((await get(agent, "/v1/models", "authorization: Bearer key")).body)["object"] == "list"


async def get(agent: Agent, path: str, *headers: str) -> Answer:
    client = await RawClient.connect(agent.traffic)
    lines = "".join(f"{header}\r\n" for header in headers)
    client.send(f"GET {path} HTTP/1.1\r\nHost: a\r\n{lines}\r\n".encode())
    answer = await client.answer()
    client.close()
    return answer


async def test_an_adapter_that_fails_at_one_endpoint_leaves_that_endpoint_and_not_its_base_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = AdvancingClock()
    rules = EjectionRules(base_s=60.0)
    monkeypatch.setattr(
        "regional_agent.endpoints.endpoint_set.OutlierDetection", lambda rng: OutlierDetection(rules, 0.0, clock, rng)
    )
    sick, well = LoraEngine("lora-sql", "lora-js"), LoraEngine("lora-sql")
    sick.broken = {"lora-sql", "lora-js"}
    async with serving(tmp_path, [sick, well]) as agent:
        first = agent.endpoints.pools[MODEL].endpoints[0]
        for _ in range(40):
            assert (await ask(agent, body=chat("lora-sql"))).status == 200, "the other endpoint serves it"
            if first.adapter_ejections.out(clock()):
                break
        assert endpoint_status(first, None)["ejected_adapters"] == ["lora-sql"]
        assert (first.ejection.state, first.view.ready) == (EjectionState.NONE, True)
        failed = len(sick.asked_for)
        for _ in range(4):
            assert (await ask(agent, body=chat("lora-sql"))).status == 200
        assert len(sick.asked_for) == failed
        for _ in range(6):
            assert (await ask(agent, body=chat("lora-js"))).status == 500, "at its only endpoint, it is not ejected"
            assert (await ask(agent, body=chat(MODEL))).status == 200
        assert MODEL in sick.asked_for
        assert (first.ejection.state, first.adapter_ejections.out(clock())) == (EjectionState.NONE, ["lora-sql"])
        sick.broken = set()
        clock.skipped_s = 61.0
        assert first.adapter_ejections.out(clock()) == []
        # The other one has been faster, and would be chosen.
        agent.endpoints.pools[MODEL].endpoints[1].use_drain("the first serves")
        assert (await ask(agent, body=chat("lora-sql"))).status == 200
        assert sick.asked_for[-1] == "lora-sql"
        assert first.adapter_ejections.out(clock()) == []
