"""Models on demand that share the memory of an endpoint: the least recently used one leaves for another."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from msgspec import UNSET
from msgspec.structs import replace

from adapters.servers.redis import RedisServer
from penstock.planning.plan import RegionPlan, VersionShare
from penstock.policy.kinds.model_rollouts import ModelRollout
from penstock.policy.kinds.models import Model, ModelVersions, Scaling, Version
from penstock.policy.kinds.on_demand import OnDemand, WakeMethod
from regional_agent.endpoints.endpoint_status import endpoint_status
from regional_agent.on_demand import on_demand_models, wake_attempts
from regional_agent.on_demand.on_demand_models import OnDemandModels
from regional_agent.on_demand.wake_attempts import Leaving
from regional_agent.on_demand.wake_claims import EVERY_ENDPOINT, WakeClaims
from regional_agent.on_demand.wake_hooks import Action
from regional_agent.shared_load.redis_script import RedisAddress, RegionRedis
from regional_agent.upstream.address import Address
from tests.support.agents import Agent, running_agent
from tests.support.chats import ask, code
from tests.support.on_demand_agents import deciding
from tests.support.planet import MODEL
from tests.support.shared_loads import region_keys
from tests.support.small_http import Headers, SmallHttp
from tests.support.sockets import RawClient, post
from tests.support.wait import until, until_async

OTHER = "qwen2.5-32b"
GB = 10**9


class OllamaHost(SmallHttp):
    """Ollama with 24 GB, which reports the sizes of its models as it likes."""

    def __init__(self) -> None:
        super().__init__(self._answer)
        self.loaded: list[str] = []
        self.size_gb: dict[str, float] = {MODEL: 16.0, OTHER: 20.0}
        self.orders: list[tuple[str, str]] = []
        self.may_load = asyncio.Event()
        self.may_load.set()
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.may_list = asyncio.Event()
        self.may_list.set()
        self.lists = 0
        self.has_list = True
        """Whether it has the list of OpenAI's API, which names what sleeps too."""

    async def _answer(self, method: bytes, target: bytes, headers: Headers, body: bytes) -> tuple[int, bytes]:
        path = target.decode()
        if path == "/v1/models":
            self.lists += 1
            await self.may_list.wait()
            body = json.dumps({"data": [{"id": name} for name in (MODEL, OTHER)]}).encode()
            return (200, body) if self.has_list else (404, b"")
        if path == "/api/ps":
            await self.may_list.wait()
            sizes = [{"name": f"{name}:latest", "size": int(self.size_gb[name] * GB)} for name in self.loaded]
            return 200, json.dumps({"models": sizes}).encode()
        if path == "/api/generate":
            asked = json.loads(body)
            name = asked["model"]
            self.orders.append(("unload" if asked["keep_alive"] == 0 else "load", name))
            await self.may_load.wait()
            self.loaded = [each for each in self.loaded if each != name] + [name] * (asked["keep_alive"] != 0)
            return 200, b"{}"
        if path == "/v1/chat/completions":
            await self.may_answer.wait()
            return 200, b'{"choices":[]}'
        return (404, b"") if path == "/metrics" else (200, b"{}")


def chat(model: str) -> bytes:
    return json.dumps({"model": model, "messages": []}).encode()


@asynccontextmanager
async def two_models(
    directory: Path, host: OllamaHost, *, redis: RedisServer | None = None, name: str = "agent-1", **fields: object
) -> AsyncIterator[tuple[Agent, OnDemandModels]]:
    """Run an agent with both models on demand on one host, with its memory in the entry."""
    options = {"engine": "ollama", "memory_gb": 24}
    url = None if redis is None else redis.url
    addresses = [Address.parse(host.url)]
    on_demand = OnDemand(WakeMethod.OLLAMA, idle_s=0.0, **{"evict_after_s": 0.3, "memory_gb": 18.0, **fields})
    known = [Model(each, scaling=Scaling(2.0), on_demand=on_demand) for each in (MODEL, OTHER)]
    async with (
        running_agent(directory, addresses, models=(MODEL, OTHER), options=options, redis_url=url, name=name) as agent,
        deciding(agent, known, name=name, redis_url=url) as models,
    ):
        yield agent, models


async def test_the_idle_model_leaves_when_another_needs_its_memory(tmp_path: Path) -> None:
    host = OllamaHost()
    async with host, two_models(tmp_path, host, scale_to_zero=True) as (agent, _):
        assert (await ask(agent, body=chat(MODEL))).status == 200
        assert (await ask(agent, body=chat(OTHER))).status == 200
        assert host.orders == [("load", MODEL), ("unload", MODEL), ("load", OTHER)]
        assert 'penstock_agent_evictions_total{model="llama-3.1-8b"} 1.0' in agent.metrics.render().decode()
        (endpoint,) = agent.endpoints.every()
        assert endpoint.reported.size_bytes[MODEL] == 16.0 * GB, "as the engine reports, not as policy states"


@asynccontextmanager
async def before_policy(directory: Path, host: OllamaHost) -> AsyncIterator[Agent]:
    """Run an agent that probes a host which has loaded MODEL, before policy names a model."""
    host.loaded = [MODEL]
    host.may_list.clear()
    options = {"engine": "ollama", "memory_gb": 24}
    async with host:
        addresses = [Address.parse(host.url)]
        async with running_agent(
            directory, addresses, models=(MODEL, OTHER), options=options, redis_url=None, name="agent-1"
        ) as agent:
            agent.config.policy = replace(agent.config.policy, models={})
            agent.endpoints.use_policy(agent.config.policy)
            agent.endpoints.start()
            await until(lambda: host.lists > 0)
            yield agent


def on_demand_models_of_both() -> list[Model]:
    on_demand = OnDemand(WakeMethod.OLLAMA, idle_s=3600.0, evict_after_s=0.1, memory_gb=18.0, scale_to_zero=True)
    return [Model(name, scaling=Scaling(2.0), on_demand=on_demand) for name in (MODEL, OTHER)]


async def test_a_policy_that_comes_during_the_first_probe_decides_what_the_probe_reads(tmp_path: Path) -> None:
    host = OllamaHost()
    async with before_policy(tmp_path, host) as agent:
        agent.endpoints.use_policy(replace(agent.config.policy, models={m.name: m for m in on_demand_models_of_both()}))
        (endpoint,) = agent.endpoints.every()
        host.may_list.set()
        await until(lambda: endpoint.models != ())
        assert endpoint.models == (MODEL,)


async def test_no_model_wakes_before_a_probe_has_read_what_sleeps(tmp_path: Path) -> None:
    host = OllamaHost()
    async with before_policy(tmp_path, host) as agent:
        host.may_list.set()
        (endpoint,) = agent.endpoints.every()
        await until(lambda: endpoint.models == (MODEL, OTHER))
        host.may_list.clear()
        async with deciding(agent, on_demand_models_of_both(), name="agent-1"):
            asked = asyncio.create_task(ask(agent, body=chat(OTHER)))
            await asyncio.sleep(2.0 * on_demand_models.DECIDE_EVERY_S)
            assert not asked.done()
            assert host.orders == [], "the engine may have loaded the model, or another that has to leave"
            host.may_list.set()
            assert (await asked).status == 200
    assert host.orders == [("unload", MODEL), ("load", OTHER)]


async def add_model(directory: Path, agent: Agent) -> None:
    file = directory / "endpoints.yaml"
    entries = msgspec.yaml.decode(file.read_bytes())
    entries[0]["models"] = [MODEL, OTHER]
    file.write_bytes(msgspec.yaml.encode(entries))
    await agent.endpoints.sources.reload_file()


async def test_an_entry_that_changes_during_a_probe_decides_what_the_probe_reads(tmp_path: Path) -> None:
    host, options = OllamaHost(), {"engine": "vllm"}
    host.may_list.clear()
    async with host, running_agent(tmp_path, [Address.parse(host.url)], options=options, redis_url=None) as agent:
        agent.endpoints.start()
        await until(lambda: host.lists > 0)
        await add_model(tmp_path, agent)
        host.may_list.set()
        (endpoint,) = agent.endpoints.every()
        await until(lambda: endpoint.reported.loaded is not None)
        assert endpoint.models == (MODEL, OTHER)


async def test_a_model_new_to_an_entry_is_not_served_before_a_probe_has_read_whether_it_sleeps(tmp_path: Path) -> None:
    host, options = OllamaHost(), {"engine": "ollama"}
    host.loaded, host.has_list = [MODEL], False
    async with (
        host,
        running_agent(tmp_path, [Address.parse(host.url)], options=options, redis_url=None) as agent,
        deciding(agent, on_demand_models_of_both(), name="agent-1"),
    ):
        (endpoint,) = agent.endpoints.every()
        await until(lambda: endpoint.models == (MODEL,) and endpoint.health.ready)
        await add_model(tmp_path, agent)
        assert endpoint.models == (MODEL,)
        host.loaded.append(OTHER)
        await until(lambda: endpoint.models == (MODEL, OTHER))


async def test_a_rarely_used_model_leaves_once_for_a_step_of_a_rollout(tmp_path: Path) -> None:
    host = OllamaHost()
    async with host, two_models(tmp_path, host, scale_to_zero=True) as (agent, models):
        (endpoint,) = agent.endpoints.every()
        versions = ModelVersions("chat", (Version(OTHER, 100.0), Version(MODEL, 0.0)))
        rollouts = {"chat": ModelRollout("chat", MODEL)}
        models.use_policy(replace(agent.config.policy, versions={"chat": versions}, model_rollouts=rollouts))

        def use_plan(percent: float, following: float) -> None:
            share = VersionShare("chat", MODEL, percent, next_percent=following)
            models.plan = RegionPlan("eu-de", 1, 1, "", 0.0, (), version_shares=(share,))

        assert (await ask(agent, body=chat(OTHER))).status == 200
        use_plan(0.0, 5.0)
        await until(lambda: host.loaded == [MODEL])
        assert (await ask(agent, body=chat(OTHER))).status == 200
        await until(lambda: on_demand_models.HAD_TURN in endpoint.reported.wake_problem)
        assert host.loaded == [OTHER], "which clients use, and the version is not used yet"
        assert MODEL not in models.without_room_s, "no request lacks it"
        assert (await ask(agent, body=chat(MODEL))).status == 200, "requests wake it as any model"
        assert (await ask(agent, body=chat(OTHER))).status == 200
        use_plan(5.0, 25.0)
        await until(lambda: host.loaded == [MODEL])


async def test_both_stay_loaded_where_the_engine_reports_that_both_fit(tmp_path: Path) -> None:
    host = OllamaHost()
    host.size_gb = {MODEL: 5.0, OTHER: 6.0}
    async with host, two_models(tmp_path, host, scale_to_zero=True) as (agent, _):
        for model in (MODEL, OTHER):
            assert (await ask(agent, body=chat(model))).status == 200
        assert sorted(host.loaded) == sorted([MODEL, OTHER])


async def test_a_model_that_policy_begins_to_load_on_demand_is_counted_once(tmp_path: Path) -> None:
    host = OllamaHost()
    host.size_gb[OTHER] = 6.0
    async with before_policy(tmp_path, host) as agent:
        (endpoint,), (model, other) = agent.endpoints.every(), on_demand_models_of_both()
        host.may_list.set()
        plain = replace(model, on_demand=UNSET)
        async with deciding(agent, [plain, other], name="agent-1") as models:
            await until(lambda: endpoint.reported.other_bytes == 16.0 * GB)
            endpoint.reported.size_bytes[OTHER] = 6.0 * GB
            await until(lambda: models.memory.room(endpoint, OTHER).problem == "")
            host.may_list.clear()
            policy = replace(agent.config.policy, models={MODEL: model, OTHER: other})
            agent.endpoints.use_policy(policy)
            models.use_policy(policy)
            assert MODEL in endpoint.models, "it goes on serving"
            assert "has not answered yet" in models.memory.room(endpoint, OTHER).problem
            host.may_list.set()
            await until(lambda: not endpoint.reported.other_bytes)
            await until(lambda: models.memory.room(endpoint, OTHER).problem == "")


async def test_the_last_copy_stays_and_the_reason_is_seen(tmp_path: Path) -> None:
    host = OllamaHost()
    async with host, two_models(tmp_path, host) as (agent, models):
        assert (await ask(agent, body=chat(MODEL))).status == 200
        (endpoint,) = agent.endpoints.every()
        await until(lambda: not models.attempts.loads_into(endpoint.spec.memory))
        refused = await ask(agent, body=chat(OTHER))
        assert (refused.status, code(refused.body)) == (503, "none_ready")
        await until(lambda: endpoint.reported.wake_problem != "")
        shown = endpoint_status(endpoint, None)["wake_problem"]
        assert shown == (
            f"no room for {OTHER}: it needs 18 of 24 GB: 8 are free, and the others are in use, the last copies, or do"
            " not leave"
        )
        assert host.orders == [("load", MODEL)]
        counted = agent.metrics.render().decode()
        assert f'penstock_agent_model_without_room_seconds_total{{model="{OTHER}"}}' in counted
        assert f'penstock_agent_model_without_room_seconds_total{{model="{MODEL}"}}' not in counted


async def test_a_model_in_use_stays(tmp_path: Path) -> None:
    host = OllamaHost()
    host.loaded = [MODEL]
    async with host, two_models(tmp_path, host, scale_to_zero=True) as (agent, _):
        host.may_answer.clear()
        client = await RawClient.connect(agent.traffic)
        client.send(post(chat(MODEL)))
        await until(lambda: agent.held() == 1)
        assert (await ask(agent, body=chat(OTHER))).status == 503
        host.may_answer.set()
        assert (await client.answer()).status == 200
        assert not host.orders


async def test_a_model_that_another_agent_uses_stays(tmp_path: Path, own_redis: RedisServer) -> None:
    host = OllamaHost()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(host)
        agents = [
            await stack.enter_async_context(
                two_models(tmp_path / name, host, redis=own_redis, name=name, scale_to_zero=True)
            )
            for name in ("agent-1", "agent-2")
        ]
        (first, models), (second, _) = agents
        assert (await ask(second, body=chat(MODEL))).status == 200
        host.may_answer.clear()
        client = await RawClient.connect(second.traffic)
        client.send(post(chat(MODEL)))
        (endpoint,) = first.endpoints.every()
        await until(lambda: endpoint.remote_load.requests == 1 and MODEL in endpoint.models)
        uses = endpoint.uses
        assert uses is not None
        await until(lambda: uses.runs_elsewhere(MODEL, endpoint.now()))
        assert (await ask(first, body=chat(OTHER))).status == 503
        assert host.orders == [("load", MODEL)]
        host.may_answer.set()
        assert (await client.answer()).status == 200
        await until(lambda: models.memory.room(endpoint, OTHER).in_s == 0.0)
        assert (await ask(first, body=chat(OTHER))).status == 200
        assert host.orders[1:] == [("unload", MODEL), ("load", OTHER)]


async def test_agents_that_need_different_models_at_once_load_one_after_the_other(
    tmp_path: Path, own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wake_attempts, "CLAIMED_ELSEWHERE_S", 1.0)
    host = OllamaHost()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(host)
        agents = [
            await stack.enter_async_context(
                two_models(tmp_path / name, host, redis=own_redis, name=name, scale_to_zero=True)
            )
            for name in ("agent-1", "agent-2")
        ]
        host.may_load.clear()
        for (agent, _), model in zip(agents, (MODEL, OTHER), strict=True):
            client = await RawClient.connect(agent.traffic)
            client.send(post(chat(model)))
        memory = next(iter(agents[0][0].endpoints.every())).spec.memory
        await until(lambda: all(models.attempts.loads_into(memory) for _, models in agents))
        for _, models in agents:
            # An agent asks for one claim at a time, so that the one of the memory has been answered.
            await models.attempts._hooks.claims.claim("another", "", 1.0)
        await until(lambda: bool(host.orders))
        assert len(host.orders) == 1, "the other agent waits for its turn"
        host.may_load.set()
        await until(lambda: len(host.loaded) == 1)


async def test_a_model_that_falls_asleep_already_is_not_put_to_sleep_again(tmp_path: Path) -> None:
    host = OllamaHost()
    host.loaded = [MODEL]
    async with host, two_models(tmp_path, host, scale_to_zero=True, evict_after_s=0.001) as (agent, models):
        (endpoint,) = agent.endpoints.every()
        attempts, on_demand = models.attempts, models.memory.models[MODEL].on_demand
        assert on_demand
        host.may_load.clear()
        if not attempts.is_busy(endpoint, MODEL):
            attempts.let_sleep(endpoint, MODEL, on_demand)
        await until(lambda: host.orders == [("unload", MODEL)])
        attempts.wake(endpoint, OTHER, on_demand, 2.0, (Leaving(endpoint, MODEL, on_demand),))
        await attempts._until(lambda: len(host.orders) > 1, 0.3)
        host.may_load.set()
        await until(lambda: host.loaded == [OTHER])
        assert host.orders == [("unload", MODEL), ("load", OTHER)]


async def test_a_model_that_was_used_since_it_was_chosen_to_leave_stays(tmp_path: Path) -> None:
    host = OllamaHost()
    host.loaded = [MODEL]
    async with host, two_models(tmp_path, host, evict_after_s=60.0) as (agent, models):
        (endpoint,) = agent.endpoints.every()
        on_demand = models.memory.models[MODEL].on_demand
        assert on_demand
        assert (await ask(agent, body=chat(MODEL))).status == 200
        models.attempts.wake(endpoint, OTHER, on_demand, 2.0, (Leaving(endpoint, MODEL, on_demand),))
        await until(lambda: not models.attempts.loads_into(endpoint.spec.memory))
        assert not host.orders
        assert models.attempts.not_before(Action.WAKE, endpoint, OTHER) < 0.0, "it is no failure"


async def test_a_model_that_is_needed_while_it_falls_asleep_stays_and_that_is_no_failure(tmp_path: Path) -> None:
    host = OllamaHost()
    host.loaded = [MODEL]
    async with host, two_models(tmp_path, host, evict_after_s=0.001) as (agent, models):
        (endpoint,) = agent.endpoints.every()
        on_demand = models.memory.models[MODEL].on_demand
        assert on_demand
        models.attempts.enough_without = lambda model: False
        await until(lambda: endpoint.uses is not None and endpoint.uses.idle_s(MODEL, endpoint.now()) > 0.001)
        models.attempts.wake(endpoint, OTHER, on_demand, 2.0, (Leaving(endpoint, MODEL, on_demand),))
        await until(lambda: not models.attempts.loads_into(endpoint.spec.memory))
        assert not host.orders
        assert not models.attempts.counts


async def test_an_agent_gives_its_claims_back_when_what_it_did_is_seen(
    tmp_path: Path, own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wake_attempts, "CLAIMED_ELSEWHERE_S", 0.1)
    host = OllamaHost()
    async with host, two_models(tmp_path, host, redis=own_redis, scale_to_zero=True) as (agent, models):
        (endpoint,) = agent.endpoints.every()
        other = WakeClaims("another", RegionRedis(RedisAddress(own_redis.url), region_keys("eu-de"), "eu-de"))
        for model in (MODEL, OTHER):
            assert (await ask(agent, body=chat(model))).status == 200
        await until(lambda: not models.attempts.loads_into(endpoint.spec.memory))
        # Another agent may have to wake the one again, and to let the other one sleep again.
        for name, model in ((endpoint.name, MODEL), (endpoint.name, OTHER), (EVERY_ENDPOINT, MODEL)):
            await until_async(lambda name=name, model=model: other.claim(name, model, 60.0))
        await other.close()


async def test_nothing_leaves_for_an_endpoint_that_another_agent_has_claimed(
    tmp_path: Path, own_redis: RedisServer
) -> None:
    host = OllamaHost()
    host.loaded = [MODEL]
    async with (
        host,
        two_models(tmp_path, host, redis=own_redis, evict_after_s=60.0, timeout_s=1.0) as (agent, models),
    ):
        (endpoint,) = agent.endpoints.every()
        on_demand = models.memory.models[MODEL].on_demand
        assert on_demand
        other = WakeClaims("another", RegionRedis(RedisAddress(own_redis.url), region_keys("eu-de"), "eu-de"))
        assert await other.claim(endpoint.name, OTHER, 60.0)
        leaving = Leaving(endpoint, MODEL, replace(on_demand, evict_after_s=0.0))
        models.attempts.wake(endpoint, OTHER, on_demand, 2.0, (leaving,))
        # An agent asks for one claim at a time, so that its first one has been answered.
        await asyncio.sleep(0)
        await models.attempts._hooks.claims.claim("another", "", 1.0)
        assert await other.claim(f"memory of {endpoint.spec.memory}", "", 1.0), "other models can be loaded meanwhile"
        await until(lambda: not models.attempts.loads_into(endpoint.spec.memory))
        assert not host.orders
        await other.close()
