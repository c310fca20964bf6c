"""Prompts and the context lengths that engines report, through a real agent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from penstock.policy.kinds.models import Cost, CostUnit, Model
from tests.support.agents import Agent, running_agent
from tests.support.chats import ask, code, expect_service, limit_queue
from tests.support.planet import MODEL, plan, policy
from tests.support.small_http import Headers, SmallHttp
from tests.support.wait import until

NO_FIELDS: Mapping[str, Any] = {}


class LimitedEngine(SmallHttp):
    """An engine like vLLM, with a context length."""

    def __init__(self, max_model_len: int, kv_tokens: int = 1_000_000) -> None:
        self.max_model_len = max_model_len
        self.kv_tokens = kv_tokens
        self.served = 0
        super().__init__(self._page)

    def _page(self, method: bytes, target: bytes, headers: Headers, body: bytes) -> tuple[int, bytes]:
        if target == b"/v1/models":
            return 200, json.dumps({"data": [{"id": MODEL, "max_model_len": self.max_model_len}]}).encode()
        if target == b"/metrics":
            return 200, b'vllm:cache_config_info{kv_cache_size_tokens="%d"} 1.0\n' % self.kv_tokens
        if method == b"GET":
            return 200, b""
        self.served += 1
        return 200, b'{"data": [{"embedding": [0.1]}]}' if target == b"/v1/embeddings" else b'{"choices": []}'


@asynccontextmanager
async def serving(
    directory: Path, engines: Sequence[LimitedEngine], fleet: Mapping[str, Any] = NO_FIELDS
) -> AsyncIterator[Agent]:
    async with AsyncExitStack() as stack:
        agent = await stack.enter_async_context(running_agent(directory, [], **fleet))
        agent.config.policy = msgspec.structs.replace(  # type: ignore[misc]
            policy(), anonymous_tenant="open", models={MODEL: Model(MODEL, cost=Cost(CostUnit.TOKEN, 0.0, 0.001))}
        )
        for engine in engines:
            await stack.enter_async_context(engine)
        common = {"models": [MODEL], "slots": 4, "engine": "vllm"}
        specs = [{"name": f"gpu-{at}", "url": engine.url, **common} for at, engine in enumerate(engines)]
        (directory / "endpoints.yaml").write_text(json.dumps(specs))
        await agent.endpoints.sources.reload_file()
        agent.endpoints.start()
        stack.push_async_callback(agent.endpoints.stop)
        await until(lambda: agent.endpoints.pools[MODEL].ready == len(engines))
        await until(lambda: agent.endpoints.pools[MODEL].contexts is not None)
        yield agent


def chat(prompt_bytes: int, max_tokens: int) -> bytes:
    messages = [{"role": "user", "content": "x" * prompt_bytes}]
    return json.dumps({"model": MODEL, "max_tokens": max_tokens, "messages": messages}).encode()


async def test_long_prompts_go_to_the_large_endpoint_and_short_ones_leave_it_free(tmp_path: Path) -> None:
    small, large = LimitedEngine(32_768, kv_tokens=4_096), LimitedEngine(32_768)
    async with serving(tmp_path, [small, large]) as agent:
        details = {each.name: each.detail for each in agent.router.local.consider(Model(MODEL), "open", "", 0.0)}
        assert details["gpu-0"] == "context 4096, KV cache 4096 tokens"
        for _ in range(6):
            assert (await ask(agent, body=chat(1_000, 100))).status == 200
        assert (small.served, large.served) == (6, 0)
        for body in (chat(40_000, 100), chat(1_000, 8_000)):
            assert (await ask(agent, body=body)).status == 200
        assert (small.served, large.served) == (6, 2)


async def test_a_request_that_is_too_long_for_all_is_refused_at_once_in_the_format_of_its_api(tmp_path: Path) -> None:
    engine = LimitedEngine(4_096)
    async with serving(tmp_path, [engine]) as agent:
        for body in (chat(100, 5_000), chat(50_000, 1)):
            refused = await ask(agent, body=body)
            assert (refused.status, code(refused.body)) == (400, "context_length_exceeded")
            error = json.loads(refused.body)["error"]
            assert error["type"] == "invalid_request_error"
            assert "maximum context length is 4096 tokens" in error["message"]
            assert refused.headers["x-should-retry"] == "false"
        assert engine.served == 0
        doubtful = await ask(agent, body=chat(18_000, 1))
        assert (doubtful.status, engine.served) == (200, 1), "the engine decides"


async def test_a_batch_of_texts_that_fit_one_by_one_is_served(tmp_path: Path) -> None:
    engine = LimitedEngine(512)
    async with serving(tmp_path, [engine]) as agent:
        for count, length, status in ((50, 1_000, 200), (2, 9_000, 400)):
            body = json.dumps({"model": MODEL, "input": ["x" * length] * count}).encode()
            assert (await ask(agent, body=body, path="/v1/embeddings")).status == status
        assert engine.served == 1


async def test_another_region_serves_what_is_too_long_here(tmp_path: Path) -> None:
    near, far = LimitedEngine(4_096), LimitedEngine(32_768)
    home = plan("eu-de", "eu-de+eu-es+us-east", eu_de=1.0)
    async with (
        serving(tmp_path / "es", [far], {"region": "eu-es"}) as server,
        serving(tmp_path / "de", [near], {"plan": home, "peers": {"eu-es": server.peer}}) as origin,
    ):
        served = await ask(origin, body=chat(100, 8_000))
        assert (served.status, served.headers["x-penstock-region"]) == (200, "eu-es")
        assert (await ask(origin, body=chat(100, 100))).headers["x-penstock-region"] == "eu-de"
        refused = await ask(origin, body=chat(100, 90_000))
        assert (refused.status, code(refused.body)) == (400, "context_length_exceeded")
        assert (near.served, far.served) == (1, 1)


@asynccontextmanager
async def occupied(agent: Agent, name: str) -> AsyncIterator[None]:
    """Occupy all slots of an endpoint."""
    (endpoint,) = [each for each in agent.endpoints.every() if each.name == name]
    for _ in range(endpoint.view.slots):
        endpoint.take()
    yield
    for _ in range(endpoint.view.slots):
        endpoint.give_back()
    agent.queue.room_appeared()


async def test_a_long_prompt_is_refused_at_once_if_the_long_endpoints_are_busy_for_too_long(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, [LimitedEngine(4_096), LimitedEngine(32_768)]) as agent,
        occupied(agent, "gpu-1"),
    ):
        limit_queue(agent, max_wait_s=1.0)
        expect_service(agent, 5.5)
        refused = await ask(agent, body=chat(100, 8_000))
        assert (refused.status, code(refused.body)) == (429, "saturated")
        assert float(refused.headers["retry-after"]) >= 1.0
        assert agent.waited() == {}


async def test_a_short_prompt_does_not_count_long_ones_that_leave_its_endpoints_free(tmp_path: Path) -> None:
    small, large = LimitedEngine(4_096), LimitedEngine(32_768)
    async with serving(tmp_path, [small, large]) as agent:
        async with occupied(agent, "gpu-1"):
            long_ones = [asyncio.create_task(ask(agent, body=chat(100, 8_000))) for _ in range(6)]
            await until(lambda: agent.waiting() == 6)
            limit_queue(agent, max_wait_s=0.5)
            # All of them precede it.
            assert (await ask(agent, "x-penstock-priority: -1", body=chat(100, 100))).status == 200
            assert (small.served, large.served) == (1, 0)
        assert [answer.status for answer in await asyncio.gather(*long_ones)] == [200] * 6
        assert agent.waiting() == 0
        assert not any(agent.queue.queues.restricted.values())
