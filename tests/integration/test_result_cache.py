"""Responses that are kept: sent again without an engine run, to the tenants and for the time that policy permits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
import redis
from msgspec import UNSET
from msgspec.structs import replace

from adapters.servers.redis import RedisServer
from penstock.accounts.outcome_rules import Outcome
from penstock.ledger.ledger_record import RecordKind
from penstock.policy.kinds.billing import ModelPrice, Prices
from penstock.policy.kinds.budgets import Budget, BudgetUnit
from penstock.policy.kinds.coalescing import Coalescing
from penstock.policy.kinds.models import Cost, CostUnit, ModelVersions, Version
from penstock.policy.kinds.result_cache import CacheScope, ResultCache
from penstock.result_cache.cache_purges import EVERY_MODEL, CachePurge, CachePurges
from regional_agent.coalescing.run_memory import PIECE_BYTES
from regional_agent.http.client_transport import ClientTransport
from regional_agent.result_cache.result_cache import AgentResultCache
from regional_agent.result_cache.shared_results import SharedResults, results_keys
from regional_agent.result_cache.stored_bodies import StoredBodies
from regional_agent.shared_load import shared_entries
from regional_agent.shared_load.redis_script import RedisAddress, RegionRedis
from regional_agent.telemetry.access_log import AccessLog
from tests.integration.test_batches import with_tenants
from tests.integration.test_budgets_on_the_wire import STEADY, limited, meter
from tests.integration.test_ledger_records import ledger_in, records_in
from tests.support.agents import Agent, running_agent
from tests.support.chats import NOBODY, answers_after, ask, code
from tests.support.clocks import SetClock
from tests.support.jobs import EMBEDDINGS, embeds
from tests.support.planet import MODEL
from tests.support.shared_loads import region_keys
from tests.support.sockets import Answer, RawClient, ReceivedRequest, Script, ScriptedEngine, engine, post
from tests.support.wait import PATIENCE_S, until

BODY = json.dumps({"model": MODEL, "input": "same"}).encode()
MISSED = "penstock; fwd=miss"
ALL = ResultCache("all", ("openai-*",), ("*",))


class Kept:
    """An agent that keeps responses, and its engine."""

    def __init__(self, agent: Agent, gpu: ScriptedEngine, clock: SetClock) -> None:
        self.agent, self.gpu, self.clock = agent, gpu, clock
        self.purges: CachePurges | None = CachePurges()
        self.bodies: StoredBodies

    async def ask(self, *headers: str, body: bytes = BODY, path: str = EMBEDDINGS) -> Answer:
        return await ask(self.agent, *headers, body=body, path=path)

    def counted(self, result: str) -> float:
        return self.value("requests", result=result)

    def value(self, name: str, **labels: str) -> float:
        found = self.agent.metrics.registry.get_sample_value(f"penstock_agent_result_cache_{name}_total", labels)
        assert found is not None
        return found

    @property
    def runs(self) -> int:
        return len(self.gpu.requests)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no stall of a busy machine count as a Redis that does not answer."""
    monkeypatch.setattr(shared_entries, "TIMEOUT_S", PATIENCE_S)


@asynccontextmanager
async def keeping(
    tmp_path: Path, *caches: ResultCache, script: Script = embeds, redis_url: str | None = None, **fields: Any
) -> AsyncIterator[Kept]:
    """An agent whose policy keeps responses."""
    async with engine(script) as gpu, running_agent(tmp_path, [gpu.address], queue=0, **fields) as agent:
        agent.config.policy = replace(agent.config.policy, result_caches=caches or (ALL,))
        kept = Kept(agent, gpu, SetClock(1_800_000_000.0))
        shared = None
        if redis_url is not None:
            shared = SharedResults(in_region(redis_url), agent.metrics.result_cache, Random(1), PATIENCE_S)
            shared.start()
        kept.bodies = StoredBodies(agent.jobs.stores, Random(1), kept.clock)
        agent.service.keep_results(
            AgentResultCache(agent.router.requests, agent.proxy, shared, lambda: kept.purges, kept.bodies, kept.clock)
        )
        yield kept
        if shared is not None:
            await shared.stop()


def in_region(url: str, region: str = "eu-de") -> RegionRedis:
    return RegionRedis(RedisAddress(url), region_keys(region), region)


def responds(body: bytes, *lines: str, status: int = 200, kind: str = "application/json") -> Script:
    """The script of an engine that sends one response."""

    async def sends(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        head = [f"HTTP/1.1 {status} Status", f"Content-Type: {kind}", f"Content-Length: {len(body)}", *lines]
        writer.write("\r\n".join([*head, "", ""]).encode() + body)

    return sends


async def test_an_identical_request_receives_the_kept_response_without_an_engine(tmp_path: Path) -> None:
    async with keeping(tmp_path) as kept:
        first = await kept.ask()
        assert (first.status, first.headers["cache-status"]) == (200, MISSED)
        demand = len(kept.agent.offered)
        kept.clock.now += 10.0
        # The order of fields and spaces make no difference.
        again = await kept.ask("X-Request-Id: again", body=b'{"input": "same",\n "model":"%b"}' % MODEL.encode())
        assert (again.status, again.body, again.headers["content-type"]) == (200, first.body, "application/json")
        assert (again.headers["age"], again.headers["etag"]) == ("10", first.headers["etag"])
        assert again.headers["cache-status"] == "penstock; hit; ttl=3590"
        assert again.headers["x-request-id"] == "again"
        assert again.headers["x-penstock-region"] == "eu-de"
        assert kept.runs == 1
        assert kept.agent.counted() == {"ok": 1.0, "cached": 1.0}
        # The planner plans for the requests that engines have to serve.
        assert len(kept.agent.offered) == demand == 1
        assert (kept.counted("hit"), kept.counted("miss")) == (1.0, 1.0)
        assert kept.value("saved_gpu_seconds") > 0.0
        assert kept.value("sent_bytes") == kept.value("stored_bytes") == len(first.body)
        assert (await kept.ask(body=BODY.replace(b"same", b"other"))).headers["cache-status"] == MISSED
        kept.clock.now += 3590.0
        assert (await kept.ask()).headers["cache-status"] == MISSED
        assert kept.runs == 3
        assert kept.agent.held() == 0


async def test_a_client_that_does_not_read_holds_a_piece_of_a_kept_response(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = json.dumps({"data": [], "text": "x" * 1_000_000}).encode()
    written, write = [0], ClientTransport.write

    def measured(transport: ClientTransport, data: bytes) -> None:
        written.append(len(data))
        write(transport, data)

    async with keeping(tmp_path, replace(ALL, max_response_bytes=1_048_576), script=responds(body)) as kept:
        assert (await kept.ask()).body == body
        monkeypatch.setattr(ClientTransport, "write", measured)
        found = await kept.ask()
        assert (found.body, found.headers["age"], kept.runs) == (body, "0", 1)
        # Pieces are written by the stream of the response.
        assert max(written) < PIECE_BYTES


async def test_a_client_chooses_with_cache_control_and_entity_tags(tmp_path: Path) -> None:
    async with keeping(tmp_path) as kept:
        assert "cache-status" not in (await kept.ask("Cache-Control: no-store")).headers
        tag = (await kept.ask()).headers["etag"]
        assert (kept.runs, kept.counted("bypassed")) == (2, 1.0)
        kept.clock.now += 10.0
        for field, runs in (
            ("Cache-Control: max-age=11", 2),
            ("Cache-Control: max-age=10", 3),
            ("Cache-Control: no-cache", 4),
            ("Pragma: no-cache", 5),
            ("Cache-Control: No-Store", 6),
            ("Cache-Control: max-age=0", 7),
            ("Cache-Control: max-age=x", 8),
            ("Cache-Control: max-stale=9, no-transform, max-age=1", 8),
            ("Cache-Control: min-fresh=3600", 8),
            ("Cache-Control: min-fresh=3601", 9),
            ("Cache-Control: min-fresh=x", 10),
        ):
            assert (await kept.ask(field)).status == 200
            assert kept.runs == runs, field
        for names in (tag, f'W/"x", W/{tag}', "*"):
            found = await kept.ask(f"If-None-Match: {names}")
            assert (found.status, found.body, found.headers["etag"]) == (304, b"", tag)
            assert not {"content-type", "content-length"} & found.headers.keys()
        assert (await kept.ask(f"If-None-Match: {tag}", 'If-None-Match: "x"')).status == 304
        assert (await kept.ask('If-None-Match: "other"')).status == 200
        assert kept.runs == 10
        await kept.ask("Cache-Control: no-store", "Cache-Control: max-age=60")
        assert kept.runs == 11
        await kept.ask("OpenAI-Beta: x")
        assert (kept.runs, kept.gpu.requests[-1].header("openai-beta")) == (12, "x")
        # An engine has run, and its response is the one that the client has.
        assert (await kept.ask(f"If-None-Match: {tag}", "Cache-Control: no-cache")).status == 304


async def test_no_engine_runs_for_a_client_that_accepts_kept_responses_alone(
    tmp_path: Path, own_redis: RedisServer
) -> None:
    only, stream = "Cache-Control: only-if-cached", BODY[:-1] + b', "stream": true}'
    async with keeping(tmp_path, redis_url=own_redis.url) as kept:
        limited(kept.agent, Budget(BudgetUnit.REQUESTS, STEADY, burst=100.0))
        refused = await kept.ask(only)
        assert (refused.status, refused.headers["x-should-retry"]) == (504, "false")
        assert code(refused.body) == "not_kept"
        await kept.ask()
        # Again with a Redis that is not asked, since a look-up has failed.
        for _ in range(2):
            assert (await kept.ask(only, "Cache-Control: max-age=60")).headers["cache-status"].split(";")[1] == " hit"
            for fields in (
                [only, "Cache-Control: max-age=0"],
                [only, "Cache-Control: no-cache"],
                [only, "Cache-Control: no-store"],
                [only, "Cache-Control: min-fresh=9999"],
                [only, "OpenAI-Beta: other"],
                [only, "X-Request-Timeout-Ms: 60000"],
            ):
                assert (await kept.ask(*fields)).status == 504, fields
            assert (await kept.ask(only, body=BODY.replace(b"same", b"other"))).status == 504
            # Responses to these are never kept.
            assert (await kept.ask(only, body=stream)).status == 504
            assert (await kept.ask(only, path="/v1/completions")).status == 504
            own_redis.stop()
        assert kept.runs == 1
        kept.purges = None
        assert (await kept.ask(only)).status == 504
        assert (await kept.ask(only, "Authorization: Bearer unknown")).status == 401
        assert kept.agent.held() == 0
        assert all(each.held == 0.0 for each in kept.agent.budgets._meters.values())
        kept.agent.config.policy = replace(
            kept.agent.config.policy, result_caches=UNSET, coalescing=Coalescing(("openai-*",))
        )
        assert [(await kept.ask(only)).status, kept.runs] == [200, 2]


async def test_what_is_no_complete_successful_small_response_is_not_kept(tmp_path: Path) -> None:
    scripts = [
        responds(b'{"error": {"message": "broken", "type": "server_error"}}'),
        responds(b'{"choices": [{"finish_reason": "abort"}]}'),
        responds(b'{"object": "list"'),
        responds(b'{"object": "list", "data": []}', "Cache-Control: no-store"),
        responds(b'{"object": "list", "data": []}', "Cache-Control: max-age=9, Private"),
        responds(b'{"object": "list", "data": []}', "Cache-Control: no-store", "Cache-Control: max-age=9"),
        responds(b'{"object": "list", "data": []}', "Set-Cookie: a=b"),
        responds(b'{"object": "list", "data": []}', "Vary: x-user"),
        responds(b'{"object": "list", "data": []}', "Expires: 0"),
        responds(b'{"object": "list", "data": []}', status=201),
        responds(b'{"object": "list", "data": []}', status=422),
        responds(b'{"data": [], "object": "%b"}' % (b"x" * 100)),
        responds(b'{"object": "list", "data": []}'),
    ]

    async def responds_in_turn(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        await scripts[json.loads(received.body)["input"]](e, received, writer)

    async with keeping(tmp_path, replace(ALL, max_response_bytes=100), script=responds_in_turn) as kept:
        for number in range(len(scripts)):
            for _ in range(2):
                await kept.ask(body=b'{"model": "%b", "input": %d}' % (MODEL.encode(), number))
            assert kept.counted("hit") == (number == len(scripts) - 1), number


@pytest.mark.parametrize("fails", [responds(b"<html>", kind="text/html"), responds(b'{"detail": 1}'), responds(b"[1")])
async def test_what_an_engine_responds_in_place_of_an_answer_is_forwarded_and_not_kept(
    tmp_path: Path, fails: Script
) -> None:
    async with keeping(tmp_path, script=fails) as kept:
        while kept.agent.proxy.retry_budget.withdraw(kept.agent.proxy.clock()):
            pass
        assert (await kept.ask()).status == 200
        kept.gpu.script = embeds
        answer = await kept.ask()
        assert (answer.status, answer.headers["cache-status"], kept.runs) == (200, MISSED, 2)
        assert json.loads(answer.body)["text"] == "same"


async def test_a_response_is_kept_no_longer_than_its_engine_permits(tmp_path: Path) -> None:
    script = responds(b'{"object": "list", "data": []}', "Cache-Control: max-age=20", "Age: 5")
    async with keeping(tmp_path, script=script) as kept:
        await kept.ask()
        for passed_s, runs in ((14.0, 1), (2.0, 2)):
            kept.clock.now += passed_s
            await kept.ask()
            assert kept.runs == runs


async def test_routes_tenants_and_bodies_without_a_document_keep_nothing(tmp_path: Path) -> None:
    cache = ResultCache("some", ("openai-embeddings",), ("open",))
    async with keeping(tmp_path, cache) as kept:
        keys = with_tenants(kept.agent, "a")
        for _ in range(2):
            assert "etag" not in (await kept.ask(f"Authorization: Bearer {keys['a']}")).headers
            assert "etag" not in (await kept.ask(path="/v1/completions")).headers
            assert "etag" not in (await kept.ask(body=BODY[:-1] + b', "stream": true}')).headers
            # Two parsers could read two values.
            assert "etag" not in (await kept.ask(body=BODY[:-1] + b', "dimensions": 1, "Dimensions": 2}')).headers
        assert kept.runs == 8
        kept.agent.config.policy = replace(kept.agent.config.policy, result_caches=())
        assert "etag" not in (await kept.ask()).headers


async def test_a_tenant_receives_the_response_of_another_only_within_a_shared_scope(tmp_path: Path) -> None:
    shared = ResultCache("b-shared", ("openai-embeddings",), ("c*",), CacheScope.SHARED)
    async with keeping(tmp_path, ResultCache("a-own", ("*",), ("a", "b")), shared) as kept:
        keys = with_tenants(kept.agent, "a", "b", "c1", "c2")

        async def status_for(tenant: str) -> str:
            return (await kept.ask(f"Authorization: Bearer {keys[tenant]}")).headers["cache-status"].split(";")[1]

        assert [await status_for(tenant) for tenant in "aab"] == [" fwd=miss", " hit", " fwd=miss"]
        assert [await status_for(tenant) for tenant in ("c1", "c2")] == [" fwd=miss", " hit"]
        assert kept.runs == 3


async def test_a_governed_tenants_response_is_kept_only_where_its_requests_may_run(tmp_path: Path) -> None:
    async with keeping(tmp_path) as kept:
        policy = kept.agent.config.policy
        keys = with_tenants(kept.agent, "a")
        await kept.ask(f"Authorization: Bearer {keys['a']}")
        # The same tenant with another data class, whose requests may run in fewer regions.
        tenants = kept.agent.config.policy.tenants
        governed = replace(tenants["a"], data_class="personal")
        kept.agent.config.policy = replace(policy, tenants=tenants | {"a": governed})
        for status in (MISSED, "penstock; hit; ttl=3600"):
            assert (await kept.ask(f"Authorization: Bearer {keys['a']}")).headers["cache-status"] == status
        assert kept.runs == 2
    async with keeping(tmp_path, region="us-east") as kept:
        keys = with_tenants(kept.agent, "a")
        tenants = kept.agent.config.policy.tenants
        kept.agent.config.policy = replace(
            kept.agent.config.policy, tenants=tenants | {"a": replace(tenants["a"], data_class="personal")}
        )
        assert (await kept.ask(f"Authorization: Bearer {keys['a']}")).status != 200
        assert kept.agent.metrics.result_cache.memory_bytes._value.get() == 0.0


async def test_a_purge_and_a_changed_model_make_earlier_responses_unreachable(tmp_path: Path) -> None:
    async with keeping(tmp_path) as kept:
        none = CachePurges()

        def purged(model: str, id: str) -> Callable[[], None]:
            def purge() -> None:
                kept.purges = (kept.purges or none).with_purge(CachePurge(model, id, kept.clock.now, "ops", "test"))

            return purge

        def changed() -> None:
            policy = kept.agent.config.policy
            model = replace(policy.models[MODEL], adapters=("other-*",))
            kept.agent.config.policy = replace(policy, models={MODEL: model})

        await kept.ask()
        for change, runs in (
            (purged("other", "1"), 1),
            (purged(MODEL, "2"), 2),
            (purged(MODEL, "3"), 3),
            (purged(EVERY_MODEL, "4"), 4),
            (changed, 5),
        ):
            change()
            await kept.ask()
            await kept.ask()
            assert kept.runs == runs
        # Before the purges have been read, nothing is found, since it may have been purged.
        kept.purges = None
        assert "cache-status" not in (await kept.ask()).headers
        assert kept.runs == 6


async def test_versions_of_a_model_have_responses_of_their_own(tmp_path: Path) -> None:
    async with keeping(tmp_path, models=(MODEL, "v2")) as kept:
        policy = kept.agent.config.policy
        models = policy.models | {"v2": replace(policy.models[MODEL], name="v2")}
        kept.agent.metrics.use_names(models, policy.regions)
        for served, runs in ((MODEL, 1), (MODEL, 1), ("v2", 2), ("v2", 2), (MODEL, 2)):
            versions = {"embed": ModelVersions("embed", (Version(served, 100.0),))}
            kept.agent.config.policy = replace(policy, models=models, versions=versions)
            found = await kept.ask(body=BODY.replace(MODEL.encode(), b"embed"))
            assert (found.status, found.headers["x-penstock-model"], kept.runs) == (200, served, runs)


async def test_a_hit_is_billed_as_the_document_says_and_uses_no_gpu_time(tmp_path: Path) -> None:
    answer = b'{"object": "list", "data": [], "usage": {"prompt_tokens": 1000, "total_tokens": 1000}}'
    free = ResultCache("free", ("*",), ("free",))
    paid = ResultCache("paid", ("*",), ("paid",), price_percent=50.0)
    log = AccessLog(tmp_path / "log", 1.0, Random(1))
    ledger = ledger_in(tmp_path)
    async with keeping(tmp_path, free, paid, script=responds(answer), ledger=ledger, access_log=log) as kept:
        keys = with_tenants(kept.agent, "free", "paid")
        policy = kept.agent.config.policy
        model = replace(policy.models[MODEL], cost=Cost(CostUnit.TOKEN))
        kept.agent.config.policy = replace(policy, models={MODEL: model})
        for tenant in ("free", "paid"):
            for number in range(2):
                await kept.ask(f"X-Request-Id: {tenant}{number}", f"Authorization: Bearer {keys[tenant]}")
    found = {record.request_id: record for record in records_in(tmp_path) if record.kind == RecordKind.REQUEST}
    runs = [record for id, record in found.items() if record.outcome == Outcome.OK]
    assert len(runs) == 2
    assert all(run.gpu_s > 0.0 for run in runs)
    full = round(1000 * 3e-6 + 0.01, 9)
    assert {round(run.price, 9) for run in runs} == {full}
    for id, tokens, price in (("free1", 0, 0.0), ("paid1", 1000, full / 2)):
        hit = found[id]
        assert (hit.outcome, hit.status, hit.gpu_s, hit.region) == ("cached", 200, 0.0, "")
        assert (hit.input_tokens, round(hit.price, 9), hit.is_overhead) == (tokens, price, False)
    log.close()
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines() if '"request_id"' in line]
    assert [line["outcome"] for line in lines if line["request_id"].endswith("1")] == ["cached", "cached"]


async def test_a_hit_counts_in_budgets_as_the_document_says(tmp_path: Path) -> None:
    answer = b'{"object": "list", "data": [], "usage": {"prompt_tokens": 1000, "total_tokens": 1000}}'
    async with keeping(tmp_path, replace(ALL, price_percent=25.0), script=responds(answer)) as kept:
        limited(
            kept.agent,
            Budget(BudgetUnit.REQUESTS, STEADY, burst=3.0),
            Budget(BudgetUnit.GPU_SECONDS, STEADY, burst=1000.0),
            Budget(BudgetUnit.MONEY_PER_DAY, 100.0),
        )
        prices = Prices("list", 0.0, "EUR", (ModelPrice("*", per_request=4.0),))
        kept.agent.config.policy = replace(kept.agent.config.policy, prices=(prices,))
        await kept.ask()
        await until(lambda: meter(kept.agent, BudgetUnit.MONEY_PER_DAY).held == 0.0)
        gpu_s = meter(kept.agent, BudgetUnit.GPU_SECONDS).spent
        assert meter(kept.agent, BudgetUnit.MONEY_PER_DAY).spent == 4.0
        hit = await kept.ask()
        assert hit.headers["x-ratelimit-remaining-requests"] == "1"
        assert meter(kept.agent, BudgetUnit.MONEY_PER_DAY).spent == 5.0
        assert meter(kept.agent, BudgetUnit.GPU_SECONDS).spent == gpu_s
        statuses = [(await kept.ask()).status for _ in range(2)]
        assert statuses == [200, 429]
        assert all(each.held == 0.0 for each in kept.agent.budgets._meters.values())


async def test_agents_of_a_region_share_responses_within_their_bound(tmp_path: Path, redis_server: RedisServer) -> None:
    large = json.dumps({"model": MODEL, "input": "x" * 40_000}).encode()
    cache = replace(ALL, name="bounded", max_bytes=200_000)
    async with (
        keeping(tmp_path / "a", cache, redis_url=redis_server.url, name="agent-1") as one,
        keeping(tmp_path / "b", cache, redis_url=redis_server.url, name="agent-2") as two,
    ):
        with redis.Redis.from_url(redis_server.url) as stored:
            results, expiry = results_keys("eu-de", "bounded")
            first = await one.ask()
            await until(lambda: stored.zcard(expiry) == 1)
            found = await two.ask()
            assert (found.body, found.headers["cache-status"].split(";")[1]) == (first.body, " hit")
            assert (two.runs, two.counted("hit")) == (0, 1.0)
            for number in range(9):
                await one.ask(body=large.replace(b"xx", b"%02d" % number, 1))
            await until(lambda: stored.zcard(expiry) == 4)
            sizes = [len(value) + 512 for field, value in stored.hgetall(results).items() if field]
            assert sum(sizes) <= 200_000
            assert sum(sizes) == int(stored.hget(results, "") or 0)
            assert 0 < stored.pttl(results) <= 3_600_000
            # Entries that no agent of the region has written are not found.
            for field in stored.hkeys(results):
                if field:
                    stored.hset(results, field, b"forged" * 20)
            assert (await two.ask(body=large.replace(b"xx", b"08", 1))).headers["cache-status"] == MISSED
            stored.delete(results, expiry)
            stored.set(results, "another kind")
            await one.ask(body=BODY.replace(b"same", b"repaired"))
            await until(lambda: stored.type(results) == b"hash")


async def test_a_lost_or_slow_redis_is_a_miss(tmp_path: Path, own_redis: RedisServer) -> None:
    async with keeping(tmp_path / "lost", redis_url=f"redis://{NOBODY}") as kept:
        assert (await kept.ask()).status == 200
        assert (await kept.ask()).headers["cache-status"].split(";")[1] == " hit"
        await until(lambda: kept.value("redis_failures") > 0.0)
    async with engine(embeds) as gpu, running_agent(tmp_path / "slow", [gpu.address]) as agent:
        agent.config.policy = replace(agent.config.policy, result_caches=(ALL,))
        shared = SharedResults(in_region(own_redis.url), agent.metrics.result_cache, Random(1))
        shared.start()
        bodies = StoredBodies(agent.jobs.stores, Random(1))
        agent.service.keep_results(AgentResultCache(agent.router.requests, agent.proxy, shared, CachePurges, bodies))
        with redis.Redis.from_url(own_redis.url) as stalled:
            stalled.execute_command("CLIENT", "PAUSE", 60_000, "ALL")
        answer = await ask(agent, body=BODY, path=EMBEDDINGS)
        assert (answer.status, answer.headers["cache-status"]) == (200, MISSED)
        # The next request does not wait.
        assert not shared.is_asked
        await shared.stop()


def look_ups() -> int:
    return sum(task.get_name() == "result lookup" for task in asyncio.all_tasks())


async def test_a_client_that_leaves_during_a_look_up_has_an_account(tmp_path: Path, own_redis: RedisServer) -> None:
    async with keeping(tmp_path, redis_url=own_redis.url) as kept:
        with redis.Redis.from_url(own_redis.url) as stalled:
            stalled.execute_command("CLIENT", "PAUSE", 60_000, "ALL")
        client = await RawClient.connect(kept.agent.traffic)
        client.send(post(BODY, path=EMBEDDINGS))
        await until(lambda: look_ups() == 1)
        client.close()
        await until(lambda: kept.agent.counted() == {"client_left": 1.0})
        assert kept.runs == 0


async def test_identical_misses_share_one_run_if_the_route_is_coalesced(tmp_path: Path) -> None:
    release = asyncio.Event()

    async with keeping(tmp_path, script=answers_after(release, embeds)) as kept:
        policy = kept.agent.config.policy
        for coalescing, runs in ((Coalescing(("openai-*",)), 1), (UNSET, 4)):
            kept.agent.config.policy = replace(policy, coalescing=coalescing)
            release.clear()
            body, misses = BODY.replace(b"same", b"%d" % runs), kept.counted("miss")
            clients = [await RawClient.connect(kept.agent.traffic) for _ in range(3)]
            for client in clients:
                client.send(post(body, path=EMBEDDINGS))
            await until(lambda: (kept.counted("miss"), kept.runs) == (misses + 3, runs))  # noqa: B023
            release.set()
            assert {(await client.answer()).headers["cache-status"] for client in clients} == {MISSED}
            assert (await kept.ask(body=body)).headers["cache-status"].split(";")[1] == " hit"
            for client in clients:
                client.close()
