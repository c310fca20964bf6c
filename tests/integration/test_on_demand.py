"""Models that are loaded on demand: engines that wake when a request needs them, and sleep again."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from math import inf
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from adapters.servers.redis import RedisServer
from penstock.dns.name_answer import EntryState
from penstock.fleet.report import DemandReport
from penstock.health.endpoint_health import EndpointHealth, EndpointState
from penstock.health.progress import Stall, StallReason
from penstock.health.region_health import RegionState
from penstock.on_demand import wake_history
from penstock.planning.plan import RegionPlan, VersionShare
from penstock.policy.kinds.model_rollouts import ModelRollout
from penstock.policy.kinds.models import Model, ModelVersions, Scaling, Version
from penstock.policy.kinds.on_demand import OnDemand, WakeMethod
from penstock.policy.kinds.warm_up import WarmUp
from regional_agent.config.start_epoch import AgentInstance
from regional_agent.dns.dns_service import EntryStates
from regional_agent.endpoints.endpoint_status import endpoint_status
from regional_agent.endpoints.probing import warm_ups
from regional_agent.on_demand import wake_attempts, wake_claims
from regional_agent.on_demand.on_demand_models import OtherParts
from regional_agent.on_demand.wake_attempts import WakeAttempts
from regional_agent.on_demand.wake_claims import WakeClaims
from regional_agent.on_demand.wake_hooks import Action, HookFailed, WakeHooks
from regional_agent.readiness import Readiness
from regional_agent.shared_load.redis_script import RedisAddress, RegionRedis
from regional_agent.telemetry.by_endpoint.endpoint_reports import endpoint_report
from regional_agent.telemetry.report_builder import ReportBuilder, ReportSender
from regional_agent.upstream.address import Address
from regional_agent.upstream.upstream_pool import UpstreamPool
from tests.support.agents import Agent, running_agent
from tests.support.chats import BODY, ask, code
from tests.support.on_demand_agents import deciding
from tests.support.planet import MODEL
from tests.support.shared_loads import region_keys
from tests.support.small_http import Headers, SmallHttp
from tests.support.sockets import RawClient, post
from tests.support.wait import PATIENCE_S, until


@pytest.fixture(autouse=True)
def _patient_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    # An agent that Redis does not answer in time proceeds without a claim, or gives none back.
    for module in (wake_claims, wake_attempts):
        monkeypatch.setattr(module, "TIMEOUT_S", PATIENCE_S)


class SleepingEngine(SmallHttp):
    """An engine with the sleep mode of vLLM, the API of Ollama, and a model repository as of Triton."""

    def __init__(self) -> None:
        super().__init__(self._answer)
        self.asleep = True
        self.root = MODEL
        """The revision of the model."""
        self.context_tokens = 0
        """The context length of the model; 0 reports none."""
        self.orders: list[tuple[str, Any]] = []
        """Requests to wake or to sleep, with their bodies."""
        self.may_wake = asyncio.Event()
        self.may_wake.set()
        self.hook_status = 200
        self.starts_later = False
        """Whether the engine still sleeps when it has answered the request to wake."""
        self.warmed: list[Any] = []
        """Bodies of synthetic requests."""
        self.fails: tuple[int, ...] = ()
        """Numbers of the synthetic requests that fail, from 1."""
        self.may_warm = asyncio.Event()
        self.may_warm.set()
        self.warm_at_first: list[int] = []
        """Number of synthetic requests before each request of a client."""

    @property
    def address(self) -> Address:
        return Address.parse(self.url)

    async def _answer(self, method: bytes, target: bytes, headers: Headers, body: bytes) -> tuple[int, bytes]:
        path = target.decode()
        if path == "/v1/models":
            length = {"max_model_len": self.context_tokens} if self.context_tokens else {}
            return 200, json.dumps({"data": [{"id": MODEL, "root": self.root, **length}]}).encode()
        if path == "/is_sleeping":
            return 200, json.dumps({"is_sleeping": self.asleep}).encode()
        if path == "/api/ps":
            return 200, json.dumps({"models": [] if self.asleep else [{"name": f"{MODEL}:latest"}]}).encode()
        if path == f"/v2/models/{MODEL}/ready":
            return (400 if self.asleep else 200), b""
        if method == b"POST" and not path.startswith("/v1/"):
            self.orders.append((path, json.loads(body or b"{}")))
            await self.may_wake.wait()
            if self.hook_status == 200:
                sleeps = "sleep" in path or "unload" in path or '"keep_alive":0' in body.decode()
                self.asleep = sleeps or self.starts_later
            return self.hook_status, b"no memory" if self.hook_status != 200 else b"{}"
        if path == "/v1/completions":
            self.warmed.append(json.loads(body))
            await self.may_warm.wait()
            return (500, b"") if len(self.warmed) in self.fails else (200, b"{}")
        if path == "/v1/chat/completions":
            self.warm_at_first.append(len(self.warmed))
            return (500, b"asleep") if self.asleep else (200, b'{"choices":[]}')
        return (404, b"") if path == "/metrics" else (200, b"{}")


@asynccontextmanager
async def on_demand_agent(
    directory: Path,
    engines: list[SleepingEngine],
    *,
    wake: WakeMethod = WakeMethod.VLLM,
    cold_start_s: float = 10.0,
    options: Mapping[str, Any] | None = None,
    redis_url: str | None = None,
    name: str = "agent-1",
    token_file: Path | None = None,
    warm_up: WarmUp | UnsetType = UNSET,
    with_model: Sequence[str] = (),
    others: OtherParts | None = None,
    **fields: Any,
) -> AsyncIterator[Agent]:
    """Run an agent whose model is loaded on demand."""
    addresses = [engine.address for engine in engines]
    async with running_agent(directory, addresses, options=options, redis_url=redis_url, name=name) as agent:
        policy = agent.config.policy
        on_demand = OnDemand(wake, **fields)
        model = replace(policy.models[MODEL], scaling=Scaling(cold_start_s), on_demand=on_demand, warm_up=warm_up)
        models = {**policy.models, MODEL: model}.values()
        async with deciding(
            agent, models, name=name, redis_url=redis_url, token_file=token_file, with_model=with_model, others=others
        ):
            yield agent


def reported_endpoints(agent: Agent) -> int:
    """The number of endpoints of the model that reports of the agent state."""
    state: Any = SimpleNamespace(endpoints=agent.endpoints, queues=agent.queue.queues, demand=None)
    sender, unused = ReportSender("eu-de", "agent-1", 1), cast(Any, None)
    builder = ReportBuilder(sender, state, unused, certificate_expires_at=lambda: 0.0, clock=lambda: 0.0)
    return next(pool.endpoints for pool in builder.pools() if pool.model == MODEL)


def as_entry(agent: Agent) -> EntryState:
    """The region of an agent as its answers to DNS queries see it."""
    can_wake = agent.metrics.on_demand.models.can_wake_any
    readiness = Readiness(agent.config, agent.endpoints, lambda: False, can_wake=can_wake)
    others: Any = SimpleNamespace(entry_states=dict)
    return EntryStates("eu-de", readiness, agent.endpoints, others).read()["eu-de"]


ENGINES = {
    WakeMethod.VLLM: ("vllm", ["/wake_up"], ["/sleep?level=1&mode=wait"]),
    WakeMethod.OLLAMA: ("ollama", ["/api/generate"], ["/api/generate"]),
    WakeMethod.TRITON: (
        "triton",
        [f"/v2/repository/models/{MODEL}/load"],
        [f"/v2/repository/models/{MODEL}/unload"],
    ),
}


@pytest.mark.parametrize("wake", ENGINES)
async def test_requests_wait_for_one_wake_and_the_engine_sleeps_again(tmp_path: Path, wake: WakeMethod) -> None:
    kind, wakes, sleeps = ENGINES[wake]
    engine = SleepingEngine()
    engine.may_wake.clear()
    options = {"engine": kind}
    async with (
        engine,
        on_demand_agent(tmp_path, [engine], wake=wake, options=options, scale_to_zero=True) as agent,
    ):
        (endpoint,) = agent.endpoints.every()
        assert endpoint_report(endpoint).reason == "sleeps until requests need it"
        assert reported_endpoints(agent) == 0, "what sleeps is not missing"
        assert agent.metrics.on_demand.models.can_wake_any()
        here = as_entry(agent)
        assert (here.state, here.ready, here.asleep) == (RegionState.HEALTHY, frozenset(), {MODEL}), "may be an answer"
        clients = [await RawClient.connect(agent.traffic) for _ in range(4)]
        for client in clients:
            client.send(post(BODY))
        await until(lambda: agent.waiting() == 4 and len(engine.orders) == 1)
        engine.may_wake.set()
        assert [(await client.answer()).status for client in clients] == [200] * 4
        assert reported_endpoints(agent) == 1
        models = agent.metrics.on_demand.models
        idle = replace(agent.config.policy.models[MODEL], on_demand=OnDemand(wake, idle_s=0.001, scale_to_zero=True))
        models.use_policy(replace(agent.config.policy, models={MODEL: idle}))
        await until(lambda: engine.asleep)
        await until(lambda: not agent.endpoints.pools[MODEL].endpoints)
        assert [path for path, _ in engine.orders] == wakes + sleeps
        await until(lambda: reported_endpoints(agent) == 0)
        counts = agent.metrics.on_demand.models.attempts.counts
        await until(lambda: sum(counts.values()) == 2)
        took_s = agent.metrics.on_demand.models.cold_starts_s()[MODEL]
        assert took_s < 10.0, "measured"
        assert agent.metrics.on_demand.models.attempts.load_s == {MODEL: took_s}, "of the one wake"
        assert f'penstock_agent_model_load_seconds_total{{model="{MODEL}"}}' in agent.metrics.render().decode()


async def test_requests_of_a_region_without_endpoints_wake_the_nearest_region_that_has_some(tmp_path: Path) -> None:
    engine, has_own, nearer = SleepingEngine(), ["us-east"], ["eu-es"]
    async with engine, on_demand_agent(tmp_path, [engine], with_model=has_own) as agent:
        models = agent.metrics.on_demand.models
        models.wanted_by("us-east", MODEL)
        has_own[:] = nearer
        models.wanted_by("eu-es", MODEL)
        models.decide(agent.config.policy.models[MODEL])
        assert not models.attempts.waking_since(MODEL)
        has_own.clear()
        models.wanted_by("us-east", MODEL)
        await until(lambda: agent.endpoints.pools[MODEL].ready > 0)


async def test_an_endpoint_wakes_while_the_requests_of_its_region_wait_in_others(tmp_path: Path) -> None:
    engine, waits_s, demand = SleepingEngine(), {"eu-es": 0.0}, list[DemandReport]()
    others = OtherParts("eu-de", lambda model: waits_s, lambda model: frozenset(waits_s), lambda: True, lambda: demand)
    async with engine, on_demand_agent(tmp_path, [engine], others=others, idle_s=0.1, scale_to_zero=True) as agent:
        models, model = agent.metrics.on_demand.models, agent.config.policy.models[MODEL]

        def wakes() -> bool:
            models.decide(model)
            return bool(models.attempts.waking_since(MODEL))

        assert not wakes(), "no request"
        both, elsewhere = ("eu-de", "eu-es"), ("eu-es",)
        demand[:] = [DemandReport(MODEL, "both", both, 2.0), DemandReport("other", "both", both, 2.0)]
        assert not wakes(), "the other region has a free slot"
        waits_s["eu-es"] = 3.0
        demand[:] = [DemandReport(MODEL, "elsewhere", elsewhere, 2.0), DemandReport(MODEL, "both", both, 0.0, 2.0)]
        assert not wakes(), "requests that must not be served here, and batch work"
        ready, demand[:] = dict(waits_s), [DemandReport(MODEL, "both", both, 0.1)]
        waits_s.clear()
        assert not wakes(), "requests that find no ready endpoint at all are seen as they wait"
        waits_s |= ready
        assert wakes()
        await until(lambda: agent.endpoints.pools[MODEL].ready > 0)
        demand.clear()
        await until(lambda: engine.asleep)


async def test_requests_that_residency_keeps_here_wake_an_endpoint_although_a_nearer_region_has_one(
    tmp_path: Path,
) -> None:
    engine = SleepingEngine()
    async with engine, on_demand_agent(tmp_path, [engine], with_model=["us-east"]) as agent:
        models, policy = agent.metrics.on_demand.models, agent.config.policy
        near = replace(policy.regions["us-east"], latitude_deg=40.0, longitude_deg=-4.0)
        models.use_policy(replace(policy, regions={**policy.regions, "us-east": near}))
        assert models._policy.nearest_first("eu-es", frozenset(("us-east", "eu-de"))) == ("us-east", "eu-de")
        models.wanted_by("eu-es", MODEL)
        await until(lambda: agent.endpoints.pools[MODEL].ready > 0)


async def test_endpoints_wake_when_a_policy_removes_on_demand_and_not_when_it_removes_the_model(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(SleepingEngine()) for _ in range(2)]
        agent = await stack.enter_async_context(on_demand_agent(tmp_path, engines))
        policy, models = agent.config.policy, agent.metrics.on_demand.models
        always = replace(policy.models[MODEL], on_demand=UNSET)

        def use(*kept: Model) -> None:
            agent.config.policy = replace(policy, models={model.name: model for model in kept})
            agent.endpoints.use_policy(agent.config.policy)
            models.use_policy(agent.config.policy)

        use()
        assert not models.can_wake_any()
        use(policy.models[MODEL])
        for engine in engines:
            engine.may_wake.clear()
        use(always)
        client = await RawClient.connect(agent.traffic)
        client.send(post(BODY))
        await until(lambda: agent.waiting() == 1 and all(engine.orders for engine in engines))
        use(always)
        engines[0].may_wake.set()
        assert (await client.answer()).status == 200
        # An agent that no longer knew how the second one sleeps would take it for loaded.
        assert agent.endpoints.pools[MODEL].ready == 1
        engines[1].may_wake.set()
        await until(lambda: not any(each.reported.wake_methods for each in agent.endpoints.every()))
        assert agent.endpoints.pools[MODEL].ready == 2
        assert [path for engine in engines for path, _ in engine.orders] == ["/wake_up"] * 2
        assert not models.cold_starts_s(), "forgotten"


async def test_of_the_agents_of_a_region_one_wakes_an_endpoint(tmp_path: Path, own_redis: RedisServer) -> None:
    engine, url = SleepingEngine(), own_redis.url
    engine.may_wake.clear()
    async with (
        engine,
        on_demand_agent(tmp_path / "1", [engine], redis_url=url, name="agent-1") as one,
        on_demand_agent(tmp_path / "2", [engine], redis_url=url, name="agent-2") as other,
    ):
        clients = [await RawClient.connect(agent.traffic) for agent in (one, other)]
        for client in clients:
            client.send(post(BODY))
        attempts = [agent.metrics.on_demand.models.attempts for agent in (one, other)]
        await until(lambda: all(each.waking_since(MODEL) for each in attempts))
        await until(lambda: len(engine.orders) == 1)
        engine.may_wake.set()
        assert [(await client.answer()).status for client in clients] == [200, 200]
        assert [path for path, _ in engine.orders] == ["/wake_up"]


async def test_of_the_agents_of_a_region_one_repeats_an_attempt_that_failed(
    tmp_path: Path, own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wake_history, "FIRST_RETRY_S", 0.2)
    monkeypatch.setattr(wake_attempts, "CLAIMED_ELSEWHERE_S", 0.1)
    asked: Counter[str] = Counter()
    claim_one = WakeClaims.claim_one

    async def counted(self: WakeClaims, *args: Any) -> int:
        asked[self._agent] += 1
        return await claim_one(self, *args)

    monkeypatch.setattr(WakeClaims, "claim_one", counted)
    engine, url = SleepingEngine(), own_redis.url
    engine.hook_status = 500
    async with (
        engine,
        on_demand_agent(tmp_path / "1", [engine], redis_url=url, name="agent-1", timeout_s=2.0) as one,
        on_demand_agent(tmp_path / "2", [engine], redis_url=url, name="agent-2", timeout_s=2.0) as other,
    ):
        clients = [await RawClient.connect(agent.traffic) for agent in (one, other)]
        for client in clients:
            client.send(post(BODY))
        counts = [agent.metrics.on_demand.models.attempts.counts for agent in (one, other)]
        # One that could claim it would have failed before it asks again.
        await until(lambda: min(asked["agent-1"], asked["agent-2"]) >= 3)
        assert min(each[MODEL, Action.WAKE, "failed"] for each in counts) == 0
        engine.hook_status = 200
        assert [(await client.answer()).status for client in clients] == [200, 200]


async def test_an_agent_that_stops_gives_back_what_it_would_try_again_and_holds_it_in_short_terms_before(
    tmp_path: Path, own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wake_history, "FIRST_RETRY_S", 300.0)
    monkeypatch.setattr(wake_attempts, "CLAIM_S", PATIENCE_S)
    terms: list[float] = []
    claim, sleep = WakeClaims.claim, asyncio.sleep

    async def renews_soon(delay_s: float, result: Any = None) -> Any:
        return await sleep(0.05 if delay_s == PATIENCE_S / 3.0 else delay_s, result)

    async def noted(self: WakeClaims, endpoint: str, model: str, for_s: float, **options: bool) -> bool:
        found = await claim(self, endpoint, model, for_s, **options)
        terms.extend([for_s] * options.get("waits", False))
        return found

    monkeypatch.setattr(WakeClaims, "claim", noted)
    monkeypatch.setattr(asyncio, "sleep", renews_soon)
    other = WakeClaims("another", RegionRedis(RedisAddress(own_redis.url), region_keys("eu-de"), "eu-de"))
    engine = SleepingEngine()
    engine.hook_status = 500
    async with engine, on_demand_agent(tmp_path, [engine], redis_url=own_redis.url, timeout_s=300.0) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(post(BODY))
        await until(lambda: bool(terms))
        assert not await other.claim("gpu-0", MODEL, 300.0)
        await until(lambda: len(terms) >= 3)
        assert set(terms) == {PATIENCE_S}, "so that an agent that dies holds it no longer"
    assert await other.claim("gpu-0", MODEL, 300.0, without_redis=False)
    await other.close()


async def test_a_cold_start_longer_than_the_timeout_of_the_hook_causes_one_order(
    tmp_path: Path, own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, url = SleepingEngine(), own_redis.url
    engine.starts_later = True
    claims: Counter[str] = Counter()
    claim = WakeClaims.claim

    async def counted(self: WakeClaims, *args: Any, **options: Any) -> bool:
        claims[self._agent] += 1
        return await claim(self, *args, **options)

    monkeypatch.setattr(WakeClaims, "claim", counted)
    async with (
        engine,
        on_demand_agent(tmp_path / "1", [engine], redis_url=url, name="agent-1", timeout_s=2.0) as one,
        on_demand_agent(tmp_path / "2", [engine], redis_url=url, name="agent-2", timeout_s=2.0) as other,
    ):
        clients = [await RawClient.connect(agent.traffic) for agent in (one, other)]
        for client in clients:
            client.send(post(BODY))
        await until(lambda: claims.total() >= 6 or len(engine.orders) > 1)
        assert [path for path, _ in engine.orders] == ["/wake_up"]
        engine.asleep = False
        assert [(await client.answer()).status for client in clients] == [200, 200]
        assert [path for path, _ in engine.orders] == ["/wake_up"]


async def test_agents_that_prefer_different_endpoints_wake_one_for_a_cold_pool(
    tmp_path: Path, own_redis: RedisServer
) -> None:
    url = own_redis.url
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(SleepingEngine()) for _ in range(2)]
        for engine in engines:
            engine.may_wake.clear()
        agents = [
            await stack.enter_async_context(
                on_demand_agent(tmp_path / name, engines, redis_url=url, name=name, options={"slots": 16})
            )
            for name in ("agent-1", "agent-2")
        ]
        # Directories may list a pool in any order.
        file = tmp_path / "agent-2" / "endpoints.yaml"
        file.write_bytes(msgspec.yaml.encode(msgspec.yaml.decode(file.read_bytes())[::-1]))
        await agents[1].endpoints.sources.reload_file()
        assert [each.name for each in agents[1].endpoints.every()] == ["gpu-1", "gpu-0"]
        attempts = [agent.metrics.on_demand.models.attempts for agent in agents]
        clients = [await RawClient.connect(agent.traffic) for agent in agents]
        for client in clients:
            client.send(post(BODY))
        await until(lambda: all(each.waking_since(MODEL) for each in attempts))
        await asyncio.sleep(0)
        for each in attempts:
            # An agent asks for one claim at a time, so that its first one has been answered.
            await each._hooks.claims.claim("another", each._hooks.claims._agent, 1.0)
        await until(lambda: any(engine.orders for engine in engines))
        for engine in engines:
            engine.may_wake.set()
        assert [(await client.answer()).status for client in clients] == [200, 200]
        await until(lambda: not any(each.waking_since(MODEL) for each in attempts))
        assert sum(len(engine.orders) for engine in engines) == 1


@pytest.mark.parametrize(("fails", "wakes"), [(0, 1), (1, 0)])
async def test_an_endpoint_that_another_agent_cannot_wake_holds_up_no_other(
    tmp_path: Path, own_redis: RedisServer, fails: int, wakes: int
) -> None:
    url = own_redis.url
    other = WakeClaims("another", RegionRedis(RedisAddress(url), region_keys("eu-de"), "eu-de"))
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(SleepingEngine()) for _ in range(2)]
        agent = await stack.enter_async_context(
            on_demand_agent(tmp_path, engines, redis_url=url, cold_start_s=300.0, timeout_s=300.0)
        )
        assert await other.claim(f"gpu-{fails}", MODEL, 300.0, waits=True)
        assert (await ask(agent)).status == 503
        await until(lambda: bool(engines[wakes].orders))
        assert not engines[fails].orders
    await other.close()


def roll_out(agent: Agent, percent: float, following: float) -> None:
    """Give the agent a policy and a plan in which MODEL replaces another version."""
    models = agent.metrics.on_demand.models
    versions = ModelVersions("chat", (Version("old", 100.0), Version(MODEL, 0.0)))
    rollouts = {"chat": ModelRollout("chat", MODEL)}
    models.use_policy(replace(agent.config.policy, versions={"chat": versions}, model_rollouts=rollouts))
    share = VersionShare("chat", MODEL, percent, next_percent=following)
    models.plan = RegionPlan("eu-de", 1, 1, "", 0.0, (), version_shares=(share,))


async def test_a_new_version_wakes_for_the_next_step_of_its_rollout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(SleepingEngine()) for _ in range(3)]
        agent = await stack.enter_async_context(on_demand_agent(tmp_path, engines, idle_s=0.2, scale_to_zero=True))
        roll_out(agent, 0.0, 5.0)
        await until(lambda: agent.endpoints.pools[MODEL].ready == 1)
        slots = agent.endpoints.pools[MODEL].slots
        monkeypatch.setattr(agent.queue.queues, "waiting", lambda model: 8 * slots if model == "old" else 0)
        roll_out(agent, 5.0, 25.0)
        await until(lambda: agent.endpoints.pools[MODEL].ready == 3)
        roll_out(agent, 100.0, 0.0)
        await until(lambda: all(engine.asleep for engine in engines))


async def test_a_new_version_wakes_for_the_requests_of_the_regions_that_lack_it(tmp_path: Path) -> None:
    engines, in_use, with_model = [SleepingEngine() for _ in range(3)], dict[str, int](), ["eu-es"]
    others = OtherParts(
        "eu-de",
        lambda model: {},
        lambda model: frozenset(with_model),
        lambda: True,
        in_use=lambda model: in_use if model == "old" else {},
    )
    async with AsyncExitStack() as stack:
        for engine in engines:
            await stack.enter_async_context(engine)
        agent = await stack.enter_async_context(on_demand_agent(tmp_path, engines, others=others))
        roll_out(agent, 5.0, 25.0)
        models = agent.metrics.on_demand.models
        await until(lambda: agent.endpoints.pools[MODEL].ready == 1 and not models.attempts.waking_since(MODEL))
        in_use["eu-es"] = in_use["us-east"] = 8 * agent.endpoints.pools[MODEL].slots
        models.decide(agent.config.policy.models[MODEL])
        assert not models.attempts.waking_since(MODEL), "the one has it, and is the nearest of the other"
        with_model.clear()
        await until(lambda: agent.endpoints.pools[MODEL].ready == 3)


async def test_no_request_is_sent_to_an_endpoint_that_another_agent_lets_sleep(
    tmp_path: Path, own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wake_attempts, "FRESH_S", 2 * PATIENCE_S)
    engine, url = SleepingEngine(), own_redis.url
    engine.asleep = False
    args: dict[str, Any] = {"options": {"engine": "vllm"}, "redis_url": url, "scale_to_zero": True}
    async with (
        engine,
        on_demand_agent(tmp_path / "1", [engine], name="agent-1", **args) as one,
        on_demand_agent(tmp_path / "2", [engine], name="agent-2", **args) as other,
    ):
        await until(lambda: one.endpoints.pools[MODEL].ready + other.endpoints.pools[MODEL].ready == 2)
        (endpoint,), on_demand = one.endpoints.every(), one.config.policy.models[MODEL].on_demand
        assert on_demand
        engine.may_wake.clear()
        attempts, (elsewhere,) = one.metrics.on_demand.models.attempts, other.endpoints.every()
        attempts.let_sleep(endpoint, MODEL, on_demand)
        await until(lambda: MODEL in elsewhere.reported.going)
        assert not engine.orders, "the other agent may have a request on the way"
        monkeypatch.setattr(attempts, "_clock", lambda: time.monotonic() + 2 * PATIENCE_S)
        await until(lambda: bool(engine.orders))
        # No probe of the other agent can have read yet that the engine sleeps.
        client = await RawClient.connect(other.traffic)
        client.send(post(BODY))
        await until(lambda: other.waiting() == 1 or bool(engine.warm_at_first))
        assert engine.warm_at_first == []
        engine.may_wake.set()
        assert (await client.answer()).status == 200
        assert [path for path, _ in engine.orders] == ["/sleep?level=1&mode=wait", "/wake_up"]


async def test_one_endpoint_of_a_region_falls_asleep_at_a_time_so_that_the_last_stays_awake(
    tmp_path: Path, own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(SleepingEngine()) for _ in range(2)]
        for engine in engines:
            engine.asleep = False
        url = own_redis.url
        agent = await stack.enter_async_context(on_demand_agent(tmp_path, engines, redis_url=url, idle_s=0.0))
        models, first, second = agent.metrics.on_demand.models, *agent.endpoints.every()
        await until(lambda: agent.endpoints.pools[MODEL].ready == 2)

        def busy(attempts: WakeAttempts) -> int:
            return sum(attempts.is_busy(each, MODEL) for each in (first, second))

        # A slow Redis: the first attempt has no claim yet, and its endpoint is still in the pool.
        answers = asyncio.Event()

        async def refused(*_: object, **__: object) -> bool:
            return not await answers.wait()

        idle = replace(agent.config.policy.models[MODEL], on_demand=OnDemand(WakeMethod.VLLM, idle_s=0.001))
        with monkeypatch.context() as patch:
            patch.setattr(models.attempts._hooks.claims, "claim", refused)
            models.use_policy(replace(agent.config.policy, models={MODEL: idle}))
            await until(lambda: models.decide(idle) or busy(models.attempts) > 0)
            models.decide(idle)
            assert busy(models.attempts) == 1
            # Without `on_demand`, nothing would wake the endpoint again.
            models.use_policy(replace(agent.config.policy, models={}))
            await until(lambda: not busy(models.attempts))

        redis = RegionRedis(RedisAddress(url), region_keys("eu-de"), "eu-de")
        hooks = WakeHooks(AgentInstance("eu-de", "agent-2", 1), agent.endpoints._connections, None, redis)
        other, on_demand = (
            WakeAttempts(agent.endpoints, agent.queue.queues, hooks, Random(2)),
            OnDemand(WakeMethod.VLLM),
        )
        models.attempts.let_sleep(first, MODEL, on_demand)
        other.let_sleep(second, MODEL, on_demand)
        await until(lambda: not busy(models.attempts) and not busy(other))
        assert [engine.asleep for engine in engines].count(True) == 1
        await other.stop()


async def test_an_endpoint_stays_awake_that_became_the_last_copy_while_its_requests_ended(tmp_path: Path) -> None:
    engine, ready = SleepingEngine(), {"eu-de": 0.0}
    engine.asleep = False
    others = OtherParts("eu-es", lambda model: dict(ready), lambda model: frozenset(), lambda: True)
    async with engine, on_demand_agent(tmp_path, [engine], others=others, idle_s=3600.0) as agent:
        await until(lambda: agent.endpoints.pools[MODEL].ready == 1)
        (endpoint,), models = agent.endpoints.every(), agent.metrics.on_demand.models
        on_demand = agent.config.policy.models[MODEL].on_demand
        for other_serves in (False, True):
            ready["eu-de"] = 0.0
            endpoint.take()
            falls_asleep = models.attempts.let_sleep(endpoint, MODEL, on_demand)
            await until(lambda: MODEL in endpoint.reported.falls_asleep)
            if not other_serves:
                del ready["eu-de"]
            endpoint.give_back()
            await falls_asleep
            assert engine.asleep is other_serves


async def test_a_hook_that_fails_or_hangs_is_bounded_and_seen(tmp_path: Path) -> None:
    engine = SleepingEngine()
    engine.hook_status = 500
    async with engine, on_demand_agent(tmp_path, [engine], timeout_s=1.0, cold_start_s=0.5) as agent:
        (endpoint,) = agent.endpoints.every()
        client = await RawClient.connect(agent.traffic)
        client.send(post(BODY))
        await until(lambda: endpoint.reported.wake_problem != "")
        engine.may_wake.clear()
        assert "answers 500: no memory" in endpoint_report(endpoint).reason
        assert "failed 1 times" in endpoint_status(endpoint, None)["wake_problem"]
        await until(lambda: "no answer within 1 s" in endpoint.reported.wake_problem)
        engine.may_wake.set()
        engine.hook_status = 200
        assert (await client.answer()).status == 200
        await until(lambda: not endpoint.reported.wake_problem)
        text = agent.metrics.render().decode()
        assert f'wake_attempts_total{{action="wake",model="{MODEL}",result="failed"}} 2.0' in text


async def test_another_endpoint_wakes_in_place_of_one_whose_hook_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wake_history, "MIN_OVERDUE_S", 0.0)
    engines = [SleepingEngine(), SleepingEngine()]
    async with engines[0], engines[1], on_demand_agent(tmp_path, engines, cold_start_s=0.01) as agent:
        for engine in engines:
            engine.may_wake.clear()
        client = await RawClient.connect(agent.traffic)
        client.send(post(BODY))
        await until(lambda: any(engine.orders for engine in engines))
        hanging, other = sorted(engines, key=lambda engine: not engine.orders)
        other.may_wake.set()
        assert (await client.answer()).status == 200
        assert (len(hanging.orders), len(other.orders), other.asleep) == (1, 1, False)


async def test_another_endpoint_wakes_while_the_awake_one_makes_no_progress_and_that_one_sleeps_first(
    tmp_path: Path,
) -> None:
    engines = [SleepingEngine(), SleepingEngine()]
    engines[0].asleep = False
    options = {"slots": 16}
    async with (
        engines[0],
        engines[1],
        on_demand_agent(tmp_path, engines, options=options, idle_s=1.0) as agent,
    ):
        pool = agent.endpoints.pools[MODEL]
        await until(lambda: pool.ready == 1)
        (suspect,) = pool.endpoints
        assert suspect.make_suspect(Stall(StallReason.IDLE, "no byte for 10 s"))
        assert pool.ready == 0
        assert (await ask(agent)).status == 200, "of the other one; its load alone fits into the 16 slots"
        assert [engine.warm_at_first for engine in engines] == [[], [0]]
        # Once both count again, the one that serves stays.
        await until(lambda: [engine.asleep for engine in engines] == [True, False])


async def test_a_prompt_that_fits_only_where_the_model_sleeps_waits_for_its_wake(tmp_path: Path) -> None:
    short, long = engines = [SleepingEngine(), SleepingEngine()]
    short.context_tokens, long.context_tokens = 4096, 32768
    short.asleep = False
    async with short, long, on_demand_agent(tmp_path, engines, options={"slots": 16}, idle_s=3600.0) as agent:
        pool = agent.endpoints.pools[MODEL]
        await until(lambda: pool.ready == 1 and pool.largest_context == 32768)
        assert (await ask(agent, body=long_chat(30_000, 100))).status == 200
        assert ([path for path, _ in long.orders], short.warm_at_first) == (["/wake_up"], [])
        assert (await ask(agent)).status == 200
        assert (short.warm_at_first, long.warm_at_first) == ([0], [0]), "the large one stays free"
        too_long = await ask(agent, body=long_chat(30_000, 32_000))
        assert (too_long.status, code(too_long.body)) == (400, "context_length_exceeded")
        models = agent.metrics.on_demand.models
        await until(lambda: not models.attempts.waking_since(MODEL))
        models.decide(agent.config.policy.models[MODEL])
        assert not models.attempts.waking_since(MODEL)


async def test_the_endpoint_with_the_longest_context_wakes_first_and_sleeps_last(tmp_path: Path) -> None:
    short, long = engines = [SleepingEngine(), SleepingEngine()]
    short.context_tokens, long.context_tokens = 4096, 32768
    async with short, long, on_demand_agent(tmp_path, engines, options={"slots": 16}, idle_s=1.0) as agent:
        assert (await ask(agent)).status == 200
        assert (short.orders, len(long.orders)) == ([], 1)
        short.asleep = False
        await until(lambda: agent.endpoints.pools[MODEL].ready == 2)
        await until(lambda: short.asleep)
        assert not long.asleep


async def test_an_endpoint_with_a_revision_that_policy_refuses_does_not_wake(tmp_path: Path) -> None:
    refused, other = engines = [SleepingEngine(), SleepingEngine()]
    refused.root = "of-last-week"
    async with refused, other, on_demand_agent(tmp_path, engines) as agent:
        models, policy = agent.metrics.on_demand.models, agent.config.policy
        expecting = replace(policy.models[MODEL], expected_revision=MODEL, refuse_skewed=True)
        policy = agent.config.policy = replace(policy, models={**policy.models, MODEL: expecting})
        agent.endpoints.use_policy(policy)
        models.use_policy(policy)
        assert (await ask(agent)).status == 200
        assert (refused.orders, len(other.orders)) == ([], 1)
        assert [each.name for each in agent.endpoints.refused(MODEL)] == ["gpu-0"], "seen before it would wake"


def long_chat(prompt_bytes: int, max_tokens: int) -> bytes:
    message = {"role": "user", "content": "word " * (prompt_bytes // 5)}
    return json.dumps({"model": MODEL, "max_tokens": max_tokens, "messages": [message]}).encode()


async def test_no_endpoint_wakes_in_place_of_one_that_no_probe_has_read_yet(tmp_path: Path) -> None:
    engines, orders = [SleepingEngine(), SleepingEngine()], list[bytes]()
    async with AsyncExitStack() as stack:
        for engine in engines:
            await stack.enter_async_context(engine)
        hook = await stack.enter_async_context(SmallHttp(lambda *order: orders.append(order[-1]) or (200, b"")))
        url = f"{hook.url}/wake"
        agent = await stack.enter_async_context(
            on_demand_agent(tmp_path, engines, wake=WakeMethod.WEBHOOK, webhook=url, idle_s=3600.0)
        )
        models, model = agent.metrics.on_demand.models, agent.config.policy.models[MODEL]
        model = replace(model, scaling=Scaling(10.0, min_endpoints=1))
        unread, away = agent.endpoints.every()
        unread.health, away.health = EndpointHealth(), EndpointHealth(EndpointState.DOWN)
        unread.out_since = unread.now()
        models.decide(model)
        assert not models.attempts.waking_since(MODEL), "it may serve"
        unread.out_since = -inf
        models.decide(model)
        assert len(models.attempts.waking_since(MODEL)) == 1, "a server that is busy for long may never be read"


async def test_a_cold_start_longer_than_the_wait_is_refused_at_once_and_still_wakes(tmp_path: Path) -> None:
    engine = SleepingEngine()
    async with engine, on_demand_agent(tmp_path, [engine], cold_start_s=3000.0) as agent:
        refused = await ask(agent)
        assert (refused.status, code(refused.body)) == (503, "none_ready")
        await until(lambda: agent.endpoints.pools[MODEL].ready > 0)
        assert (await ask(agent)).status == 200
        assert [path for path, _ in engine.orders] == ["/wake_up"]


async def test_a_webhook_at_an_impossible_host_fails_as_an_attempt() -> None:
    hooks = WakeHooks(AgentInstance("eu-de", "agent-1", 1), UpstreamPool(), None, None)
    nowhere = OnDemand(WakeMethod.WEBHOOK, webhook="https://-no-host-:443/wake")
    with pytest.raises(HookFailed, match="is not of the form"):
        await hooks.run(Action.WAKE, MODEL, None, nowhere)


async def test_a_webhook_receives_the_order_with_its_token(tmp_path: Path) -> None:
    orders: list[Any] = []
    token = tmp_path / "token"
    token.write_text("of-the-hook\n")
    token.chmod(0o600)

    def receive(method: bytes, target: bytes, headers: Headers, body: bytes) -> tuple[int, bytes]:
        orders.append((target, dict(headers)[b"authorization"], json.loads(body)))
        return 200, b""

    async with AsyncExitStack() as stack:
        hook = await stack.enter_async_context(SmallHttp(receive))
        agent = await stack.enter_async_context(
            on_demand_agent(
                tmp_path / "agent", [], wake=WakeMethod.WEBHOOK, webhook=f"{hook.url}/wake", token_file=token
            )
        )
        client = await RawClient.connect(agent.traffic)
        client.send(post(BODY))
        await until(lambda: bool(orders))
        order = {"action": "wake", "region": "eu-de", "model": MODEL, "endpoint": None}
        assert orders == [(b"/wake", b"Bearer of-the-hook", order)]
        assert agent.waiting() == 1
        client.close()


async def test_a_region_asks_no_webhook_while_it_or_another_one_may_have_an_endpoint_for_the_same_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders: list[Any] = []

    def receive(method: bytes, target: bytes, headers: Headers, body: bytes) -> tuple[int, bytes]:
        orders.append(json.loads(body))
        return 200, b""

    async with AsyncExitStack() as stack:
        hook, with_model = await stack.enter_async_context(SmallHttp(receive)), ["eu-es"]
        agent = await stack.enter_async_context(
            on_demand_agent(
                tmp_path, [], wake=WakeMethod.WEBHOOK, webhook=f"{hook.url}/wake", with_model=with_model, cold_start_s=1
            )
        )
        client = await RawClient.connect(agent.traffic)
        client.send(post(BODY))
        await until(lambda: agent.waiting() == 1)
        models = agent.metrics.on_demand.models
        for _ in range(3):
            models.decide(agent.config.policy.models[MODEL])
        assert not models.attempts.waking_since(MODEL)
        # Requests that residency keeps in the EU may not use an endpoint in us-east.
        with monkeypatch.context() as patched:
            patched.setattr(agent.endpoints.sources.discovery, "has_answered", lambda: False)
            with_model[:] = ["us-east"]
            models.decide(agent.config.policy.models[MODEL])
            assert not models.attempts.waking_since(MODEL), "a directory of the region may list one"
        await until(lambda: bool(orders))
        client.close()


async def test_an_endpoint_that_wakes_answers_synthetic_requests_before_those_of_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_ups, "RETRY_S", 0.01)
    # The request may wake the engine before the agent has seen it without the model.
    monkeypatch.setattr(warm_ups, "START_S", 0.0)
    engine = SleepingEngine()
    engine.fails = (2,)
    warm_up = WarmUp(requests=5, concurrent=2)
    async with engine, on_demand_agent(tmp_path, [engine], warm_up=warm_up) as agent:
        assert (await ask(agent)).status == 200
        assert engine.warm_at_first == [6]
        assert engine.warmed[0] == {"model": MODEL, "prompt": "Write one sentence.", "max_tokens": 16}
        (endpoint,) = agent.endpoints.every()
        assert endpoint_status(endpoint, None)["warm_problem"] is None


async def test_requests_wait_while_an_endpoint_warms_up_that_another_agent_woke_and_wake_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_ups, "START_S", 0.0)
    woken, asleep = engines = [SleepingEngine(), SleepingEngine()]
    woken.may_warm.clear()
    warm_up = WarmUp(requests=1)
    async with woken, asleep, on_demand_agent(tmp_path, engines, warm_up=warm_up, cold_start_s=3000.0) as agent:
        await until(lambda: not any(each.reported.warm for each in agent.endpoints.every()))
        woken.asleep = False
        await until(lambda: bool(woken.warmed))
        client = await RawClient.connect(agent.traffic)
        client.send(post(BODY))
        await until(lambda: agent.waiting() == 1)
        models = agent.metrics.on_demand.models
        models.decide(agent.config.policy.models[MODEL])
        assert not models.attempts.waking_since(MODEL)
        woken.may_warm.set()
        assert (await client.answer()).status == 200
        assert (woken.warm_at_first, asleep.orders) == ([1], [])


async def test_a_warm_up_that_fails_ends_and_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_ups, "START_S", 0.0)
    engine = SleepingEngine()
    engine.fails = tuple(range(100))
    async with engine, on_demand_agent(tmp_path, [engine], warm_up=WarmUp(requests=3, timeout_s=1.0)) as agent:
        assert (await ask(agent)).status == 200
        (endpoint,) = agent.endpoints.every()
        assert "0 of 3 requests answered; POST /v1/completions answers 500" in endpoint.reported.warm_problem


async def test_an_agent_that_starts_counts_loaded_models_as_warm_and_so_does_a_new_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = SleepingEngine()
    engine.asleep = False
    async with engine, on_demand_agent(tmp_path, [engine], warm_up=WarmUp()) as agent:
        await until(lambda: agent.endpoints.pools[MODEL].ready == 1)
        assert not engine.warmed
        monkeypatch.setattr(warm_ups, "START_S", 0.0)
        policy, (endpoint,) = agent.config.policy, agent.endpoints.every()
        agent.endpoints.use_policy(
            replace(policy, models={**policy.models, MODEL: replace(policy.models[MODEL], warm_up=UNSET)})
        )
        endpoint.reported.warm = frozenset()
        agent.endpoints.use_policy(policy)
        assert agent.endpoints.pools[MODEL].ready == 1, "a policy that adds a warm-up takes no endpoint away"


async def test_an_engine_whose_clients_left_during_its_cold_start_sleeps_again_and_serves_later_ones(
    tmp_path: Path,
) -> None:
    engine = SleepingEngine()
    engine.may_wake.clear()
    options = {"engine": "vllm"}
    async with engine, on_demand_agent(tmp_path, [engine], options=options, idle_s=0.2, scale_to_zero=True) as agent:
        left = await RawClient.connect(agent.traffic)
        left.send(post(BODY))
        await until(lambda: agent.waiting() == 1 and len(engine.orders) == 1)
        left.close()
        await until(lambda: agent.waiting() == 0)
        engine.may_wake.set()
        await until(lambda: [path for path, _ in engine.orders] == ["/wake_up", "/sleep?level=1&mode=wait"])
        assert agent.held() == 0
        assert not engine.warm_at_first, "no request was sent for the client that left"
        assert (await ask(agent)).status == 200
        assert [path for path, _ in engine.orders][2:3] == ["/wake_up"]


async def test_a_request_that_arrives_while_the_engine_falls_asleep_waits_for_its_next_wake(tmp_path: Path) -> None:
    engine = SleepingEngine()
    options = {"engine": "vllm"}
    async with engine, on_demand_agent(tmp_path, [engine], options=options, idle_s=0.2, scale_to_zero=True) as agent:
        assert (await ask(agent)).status == 200
        engine.may_wake.clear()
        await until(lambda: len(engine.orders) == 2)
        assert "sleep" in engine.orders[1][0]
        client = await RawClient.connect(agent.traffic)
        client.send(post(BODY))
        await until(lambda: agent.waiting() == 1)
        engine.may_wake.set()
        assert (await client.answer()).status == 200
        client.close()
        assert [path for path, _ in engine.orders][2:3] == ["/wake_up"]
