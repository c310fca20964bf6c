"""Permissions of tenants at an agent: models, versions, adapters, fallbacks and routes; options of requests."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from control_plane.tenants.refusals_resource import refusals_of
from penstock.fleet.report import AgentReport
from penstock.fleet.snapshot import HeldReport, Snapshot
from penstock.policy.kinds.models import Model, ModelVersions, Version
from penstock.policy.kinds.tenants import Tier
from penstock.routes.presets.preset_registry import preset_routes
from penstock.routing.reasons import Reason
from regional_agent.requests.request_context import RequestContext
from tests.support.agents import Agent, running_agent
from tests.support.chats import answers, ask, code, streams_forever
from tests.support.created_tenants import created, put
from tests.support.planet import policy
from tests.support.sockets import RawClient, Script, engine, post
from tests.support.wait import until

KEYS = {name: f"Authorization: Bearer {name}" for name in ("all", "some", "chat", "lora")}
MODELS = {
    "large": Model("large", fallback="small", adapters=("lora-*",)),
    "small": Model("small"),
    "chat-1": Model("chat-1"),
    "chat-2": Model("chat-2"),
}
VERSIONS = {"chat": ModelVersions("chat", (Version("chat-1", 100.0), Version("chat-2", 0.0)))}
TIERS = {
    "all": Tier("all", "open", priority=5),
    "some": Tier("some", "open", models=("large", "chat-1"), routes=("openai-*",)),
    "chat": Tier("chat", "open", models=("chat",)),
    "lora": Tier("lora", "open", models=("lora-a*",), routes=("openai-models", "openai-chat-completions")),
}


@asynccontextmanager
async def agent_with_tiers(
    directory: Path, script: Script = answers, models: Sequence[str] = tuple(MODELS)
) -> AsyncIterator[Agent]:
    """An agent that serves all models, and one tenant of each tier."""
    async with engine(script) as gpu, running_agent(directory, [gpu.address], models=models) as agent:
        routes = (*policy().routes, *preset_routes("anthropic"))
        agent.config.policy = replace(policy(), models=MODELS, versions=VERSIONS, tiers=TIERS, routes=routes)
        put(agent.config.tenants, *(created(name, name, tier=name) for name in TIERS))
        yield agent


async def get(agent: Agent, path: str, *headers: str) -> Any:
    client = await RawClient.connect(agent.traffic)
    client.send("\r\n".join([f"GET {path} HTTP/1.1", "Host: a", *headers, "", ""]).encode())
    answer = await client.answer()
    client.close()
    return answer


def chat(model: str) -> bytes:
    return json.dumps({"model": model, "max_tokens": 9, "messages": []}).encode()


async def test_a_tenant_sees_and_uses_the_models_of_its_tier_only(tmp_path: Path) -> None:
    expected = {
        "all": ["large", "small", "chat-1", "chat-2", "chat"],
        "some": ["large", "chat-1"],
        "chat": ["chat-1", "chat-2", "chat"],
        "lora": [],
    }
    async with agent_with_tiers(tmp_path) as agent:
        for name, models in expected.items():
            listed = json.loads((await get(agent, "/v1/models", KEYS[name])).body)["data"]
            assert [model["id"] for model in listed] == models
            for model in (*MODELS, *VERSIONS):
                served = model in models
                answer = await ask(agent, KEYS[name], body=chat(model))
                assert answer.status == (200 if served else 404), (name, model)
                assert (await get(agent, f"/v1/models/{model}", KEYS[name])).status == answer.status
        # A refused name answers as one that does not exist, in the format of the API.
        refused, unknown = [await ask(agent, KEYS["chat"], body=chat(model)) for model in ("large", "no-such")]
        assert refused.body.replace(b"large", b"no-such") == unknown.body
        assert code(refused.body) == "model_not_found"
        page = await get(agent, "/v1/models/large", KEYS["chat"])
        assert page.body == refused.body
        messages = await ask(agent, "x-api-key: chat", "anthropic-version: 1", body=chat("large"), path="/v1/messages")
        assert (messages.status, json.loads(messages.body)["error"]["type"]) == (404, "not_found_error")
        card = await get(agent, "/v1/models", "x-api-key: some", "anthropic-version: 1")
        assert [model["id"] for model in json.loads(card.body)["data"]] == ["large", "chat-1"]
        assert (await get(agent, "/api/tags", KEYS["some"])).status == 404, "policy offers no API of Ollama"
        routes = (*agent.config.policy.routes, *preset_routes("ollama"))
        agent.config.policy = replace(agent.config.policy, routes=routes)
        listed = json.loads((await get(agent, "/api/tags", KEYS["some"])).body)["models"]
        assert [(model["name"], model["model"]) for model in listed] == [("large", "large"), ("chat-1", "chat-1")]
        refused = await get(agent, "/api/tags", "Authorization: Bearer nothing")
        assert (refused.status, type(json.loads(refused.body)["error"])) == (401, str), "as Ollama's errors"


async def test_an_adapter_needs_a_permission_of_its_own(tmp_path: Path) -> None:
    # No endpoint has loaded an adapter; the fallback serves, where it is permitted.
    expected = {("all", "lora-ax"): 200, ("lora", "lora-ax"): 503, ("lora", "lora-b"): 404, ("some", "lora-ax"): 404}
    async with agent_with_tiers(tmp_path) as agent:
        for (name, model), status in expected.items():
            assert (await ask(agent, KEYS[name], body=chat(model))).status == status, (name, model)


async def test_a_route_that_the_tier_does_not_permit_is_refused(tmp_path: Path) -> None:
    async with agent_with_tiers(tmp_path) as agent:
        for path, key in (("/v1/messages", "x-api-key: some"), ("/v1/completions", KEYS["lora"])):
            answer = await ask(agent, key, body=chat("lora-a"), path=path)
            assert answer.status == 403
        assert code(answer.body) == "route_not_permitted"
        assert (await ask(agent, KEYS["some"], body=chat("large"))).status == 200


async def test_refusals_of_a_tenant_are_kept_by_reason(tmp_path: Path) -> None:
    async with agent_with_tiers(tmp_path, models=("small",)) as agent:
        for model in ("large", "no-such-model", "no-such-model"):
            await ask(agent, KEYS["some"], body=chat(model))
        await ask(agent, "x-api-key: some", body=chat("small"), path="/v1/messages")
        assert (await ask(agent, KEYS["all"], body=chat("small"))).status == 200
        kept = agent.tally.refusals.newest(time.time())
    (tenant,) = {each.tenant for each in kept}
    assert {each.reason: each.count for each in kept} == {
        "none_ready": 1,
        "model_not_found": 2,
        "route_not_permitted": 1,
    }
    held = AgentReport("eu-de", "a", 1, 1, 0.0, other_refusals=kept)
    snapshot = Snapshot(agents={("eu-de", "a"): HeldReport(held, 1.0)})
    found = refusals_of(snapshot, tenant).others
    assert [(each.agent, each.reason) for each in found] == [("a", each.reason) for each in kept]
    assert refusals_of(snapshot, "another").others == ()


async def test_a_fallback_must_be_permitted_and_wanted(tmp_path: Path) -> None:
    async with agent_with_tiers(tmp_path, models=("small",)) as agent:
        answer = await ask(agent, KEYS["all"], body=chat("large"))
        assert (answer.status, answer.headers["x-penstock-model"]) == (200, "small")
        assert (await ask(agent, KEYS["some"], body=chat("large"))).status == 503
        for value, status in (("none", 503), ("no", 400), ("", 400)):
            answer = await ask(agent, KEYS["all"], f"x-penstock-fallback: {value}", body=chat("large"))
            assert answer.status == status


async def test_a_request_may_lower_its_priority(tmp_path: Path) -> None:
    expected = {"3": 3, "-7": -7, "5": 5, "900": 5, "-0": 0}
    async with agent_with_tiers(tmp_path, streams_forever) as agent:
        for asked, priority in expected.items():
            assert (await running(agent, "all", "large", f"x-penstock-priority: {asked}")).priority == priority
        for asked in ("x", "", "1.5", "+1", "1" * 20):
            answer = await ask(agent, KEYS["all"], f"x-penstock-priority: {asked}", body=chat("large"))
            assert (answer.status, code(answer.body)) == (400, "bad_request"), asked


async def test_a_message_names_permitted_models_only(tmp_path: Path) -> None:
    names = (*MODELS, "chat", "lora-a")
    async with agent_with_tiers(tmp_path, streams_forever) as agent:
        context = await running(agent, "some", "chat-1")
        found = {name: agent.router.reauthorization.refuse_model(context, name, "eu-de") for name in names}
    refused = {name: refusal.reason for name, refusal in found.items() if refusal is not None}
    assert refused == dict.fromkeys(("small", "chat-2", "chat", "lora-a"), Reason.MODEL_NOT_FOUND)


async def running(agent: Agent, key: str, model: str, *headers: str) -> RequestContext:
    """The context of a new request, which then ends."""
    client = await RawClient.connect(agent.traffic)
    client.send(post(chat(model), KEYS[key], *headers))
    await client.head()
    (exchange,) = agent.proxy.active
    client.close()
    await until(lambda: not list(agent.proxy.active))
    return exchange.context


async def test_the_tenants_of_a_tier_have_a_pool_of_their_own(tmp_path: Path) -> None:
    pools = ("large", "large-bank")
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address], models=pools) as agent:
        models = {"large": Model("large"), "large-bank": Model("large-bank", only_tiers=("bank",))}
        named = ModelVersions("chat", (Version("large", 100.0),), for_tiers={"bank": "large-bank"})
        tiers = {name: Tier(name, "open") for name in ("bank", "free")}
        agent.config.policy = replace(policy(), models=models, versions={"chat": named}, tiers=tiers)
        put(agent.config.tenants, *(created(name, name, tier=name) for name in tiers))
        expected = {
            ("bank", "chat"): (200, "large-bank"),
            ("free", "chat"): (200, "large"),
            ("bank", "large-bank"): (200, "large-bank"),
            ("free", "large-bank"): (404, ""),
        }
        for (name, model), (status, served_by) in expected.items():
            answer = await ask(agent, f"Authorization: Bearer {name}", body=chat(model))
            assert answer.status == status, (name, model)
            if served_by:
                assert json.loads(gpu.requests[-1].body)["model"] == served_by
        listed = json.loads((await get(agent, "/v1/models", "Authorization: Bearer free")).body)["data"]
        assert [model["id"] for model in listed] == ["large", "chat"]
