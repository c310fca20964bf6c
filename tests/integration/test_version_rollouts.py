"""The rollout of a version through a real agent: its requests, the leader's judgement, and the shares that follow."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from adapters.store import keys
from adapters.store.codec import encode
from adapters.store.config_store import Put
from control_plane.audit.audit_log import AuditLog
from control_plane.rollout.model_rollouts import ModelRollouts
from lab.memory_store import MemoryStore
from penstock.fleet.counts.version_counts import VersionCounts
from penstock.fleet.report import PoolReport
from penstock.fleet.snapshot import Snapshot, add_report
from penstock.ledger.ledger_record import RecordKind
from penstock.meters.usage_meter import OTHER_TENANTS
from penstock.planning.plan import RegionPlan
from penstock.policy.kinds.model_rollouts import ModelRollout, QualityHook, ShadowRequests
from penstock.policy.kinds.models import Model, ModelVersions, Queueing, Version
from penstock.policy.kinds.regions import BurstPool
from penstock.policy.kinds.residency_rules import ResidencyRule
from regional_agent.versions import answer_pairs
from regional_agent.versions.shadow_requests import RequestCopies
from tests.integration.test_ledger_records import ledger_in, records_in
from tests.support.agents import Agent, running_agent
from tests.support.chats import SSE_HEAD, ask, chunk
from tests.support.planet import EU_ONLY
from tests.support.reports import report
from tests.support.serverless import ServerlessEndpoint
from tests.support.small_http import Headers, SmallHttp
from tests.support.sockets import ReceivedRequest, ScriptedEngine, engine
from tests.support.wait import until

VERSIONS = {"chat": ModelVersions("chat", (Version("v1", 100.0), Version("v2", 0.0)))}
USAGE = {"prompt_tokens": 1, "completion_tokens": 20}
ROLLOUT = ModelRollout("chat", "v2", (40.0, 100.0), prepare_s=1, step_s=0, watch_s=5, min_requests=10)


class Fleet:
    """An agent with engines of both versions, and the leader that plans for it."""

    def __init__(self, agent: Agent, rollout: ModelRollout = ROLLOUT) -> None:
        self.agent, self.store = agent, MemoryStore()
        self.rollouts = ModelRollouts(self.store, AuditLog(self.store), "cp-1")
        self.now, self.snapshot = 0.0, Snapshot()
        self.use(rollout)

    def use(self, rollout: ModelRollout, *rules: ResidencyRule) -> None:
        """Put a policy with the rollout in force."""
        self.policy = self.agent.config.policy = msgspec.structs.replace(
            self.agent.config.policy,
            residency=rules or (EU_ONLY,),
            models={name: Model(name) for name in ("v1", "v2")},
            versions=VERSIONS,
            model_rollouts={"chat": rollout},
        )
        self.agent.versions.use(self.policy)

    def counts(self, model: str) -> VersionCounts:
        return next(each.counts for each in self.agent.versions.report() if each.model == model)

    async def tick(self, seconds: float = 1.0) -> float | None:
        """Report, advance the rollout, and put its share in force; returns the share."""
        self.now += seconds
        pools = tuple(PoolReport(model, 1, 1, 8, 0, 1.0) for model in ("v1", "v2"))
        sent = report("eu-de", seq=round(self.now * 10))
        sent = msgspec.structs.replace(sent, versions=self.agent.versions.report(), pools=pools)
        self.snapshot, _ = add_report(self.snapshot, sent, self.now, self.policy)
        epoch = (await self.store.get(keys.LEADER)) or None
        if epoch is None:
            await self.store.commit([], [Put(keys.LEADER, encode("cp-1"))])
            epoch = await self.store.get(keys.LEADER)
        assert epoch is not None
        await self.rollouts.step(epoch.create_revision, self.now, self.snapshot, self.policy, may_forget=True)
        shares = self.rollouts.shares(self.policy)
        self.agent.router.requests.plan = RegionPlan("eu-de", 1, 1, "", 0.0, (), version_shares=shares)
        return shares[0].percent if shares else None

    async def ask(self, number: int, *headers: str) -> str:
        body = json.dumps({"model": "chat", "messages": [str(number)]}).encode()
        answer = await ask(self.agent, f"x-session-id: session-{number}", *headers, body=body)
        return answer.headers["x-penstock-model"] if answer.status == 200 else str(answer.status)

    async def ask_many(self, count: int) -> Counter[str]:
        return Counter(await asyncio.gather(*(self.ask(number) for number in range(count))))


async def serves(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    body = json.loads(received.body)
    assert body["model"] in ("v1", "v2")
    answer = json.dumps({"choices": [], "usage": USAGE}).encode()
    writer.write(
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(answer) + answer
    )


async def fails_v2(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    if json.loads(received.body)["model"] == "v2":
        writer.write(b"HTTP/1.1 500 Oh\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")
    else:
        await serves(e, received, writer)


async def test_requests_prove_a_version_and_sessions_keep_theirs(tmp_path: Path) -> None:
    async with engine(serves) as gpu, running_agent(tmp_path, [gpu.address], models=["v1", "v2"], slots=64) as agent:
        fleet = Fleet(agent)
        assert await fleet.tick() == 0.0
        assert await fleet.ask_many(20) == {"v1": 20}
        assert await fleet.tick() == 40.0
        await fleet.tick()
        served = {number: await fleet.ask(number) for number in range(40)}
        assert 5 < Counter(served.values())["v2"] < 30
        assert served == {number: await fleet.ask(number) for number in range(40)}
        assert await fleet.ask(1, "x-preview: new") == served[1], "the rollout has no header"
        assert await fleet.tick() == 100.0
        await fleet.tick()
        assert await fleet.ask_many(20) == {"v2": 20}
        # Without a control plane, the last share remains.
        await fleet.tick(5.0)
        (state,) = (await fleet.rollouts.stored()).values()
        assert state.state is not None
        assert state.state.phase == "done"


async def test_failures_roll_a_version_back_and_chosen_requests_are_no_evidence(tmp_path: Path) -> None:
    async with engine(fails_v2) as gpu, running_agent(tmp_path, [gpu.address], models=["v1", "v2"], slots=64) as agent:
        fleet = Fleet(agent, msgspec.structs.replace(ROLLOUT, header="x-preview", excluded_tenants=("personal",)))
        await fleet.tick()
        await fleet.ask_many(20)
        assert await fleet.tick() == 40.0
        await fleet.tick()
        assert [await fleet.ask(number, "x-preview: old") for number in range(15)] == ["v1"] * 15
        assert [await fleet.ask(number, "x-preview: new") for number in range(4)] == ["500"] * 4
        assert await fleet.tick() == 40.0, "clients chose the version"
        assert (await fleet.ask_many(100))["500"] > 5
        assert await fleet.tick() is None
        assert await fleet.ask_many(20) == {"v1": 20}
        assert await fleet.ask(1, "x-preview: new") == "v1", "a version that was rolled back cannot be chosen"


SHADOW = msgspec.structs.replace(ROLLOUT, prepare_s=99, shadow=ShadowRequests(percent=100.0, max_concurrent=1))


async def test_copies_are_evidence_and_overhead_and_nothing_of_the_tenant(tmp_path: Path) -> None:
    async with (
        engine(serves) as gpu,
        running_agent(tmp_path, [gpu.address], models=["v1", "v2"], slots=64, ledger=ledger_in(tmp_path)) as agent,
    ):
        fleet = Fleet(agent, SHADOW)
        assert await fleet.tick() == 0.0
        before = agent.budgets.running("open")
        agent.metrics.usage.use_names(["open"], {"v1": 1.0, "v2": 1.0})
        for number in range(5):
            assert await fleet.ask(number) == "v1"
            await until(lambda number=number: fleet.counts("v2").requests.ended == number + 1)
        assert fleet.counts("v1").requests.ended == 5
        assert (fleet.counts("v2").requests.failed, fleet.counts("v2").mean_length) == (0, 20.0)
        assert Counter(json.loads(request.body)["model"] for request in gpu.requests) == {"v1": 5, "v2": 5}
        assert {kind[0] for kind in agent.demand._rates} == {"v1"}, "copies are no demand"
        assert agent.budgets.running("open") == before
        assert {(tenant, model) for tenant, model, _ in agent.metrics.usage.series()} == {
            ("open", "v1"),
            (OTHER_TENANTS, "v2"),
        }
        # The version of a tier is no choice of the share.
        policy = agent.config.policy
        agent.config.policy = msgspec.structs.replace(
            policy,
            tenants={name: msgspec.structs.replace(each, tier="gold") for name, each in policy.tenants.items()},
            versions={"chat": msgspec.structs.replace(VERSIONS["chat"], for_tiers={"gold": "v1"})},
        )
        assert [await fleet.ask(number) for number in range(3)] == ["v1"] * 3
        await until(lambda: agent.held() == 0)
        assert len(gpu.requests) == 13
        assert fleet.counts("v1").requests.ended == 5
    found = records_in(tmp_path)
    assert [each.model for each in found if each.kind == RecordKind.REQUEST] == ["v1"] * 8
    copies = [each for each in found if each.kind == RecordKind.COPY]
    assert len(copies) == 5
    for copy in copies:
        assert (copy.tenant, copy.key, copy.model, copy.region) == ("", "", "v2", "eu-de")
        assert (copy.outcome, copy.price, copy.is_overhead, copy.output_tokens) == ("ok", 0.0, True, 20)
        assert copy.gpu_s > 0.0
    kinds = (RecordKind.REQUEST, RecordKind.COPY, RecordKind.START, RecordKind.CAPACITY)
    assert not [each for each in found if each.kind not in kinds]


async def test_copies_take_spare_slots_only_and_stay_where_residency_permits(tmp_path: Path) -> None:
    release = asyncio.Event()

    async def holds_v2(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        if json.loads(received.body)["model"] == "v2":
            await release.wait()
        await serves(e, received, writer)

    async with engine(holds_v2) as gpu, running_agent(tmp_path, [gpu.address], models=["v1", "v2"], slots=4) as agent:

        def sent(model: str) -> int:
            return sum(json.loads(request.body)["model"] == model for request in gpu.requests)

        fleet = Fleet(agent, SHADOW)
        await fleet.tick()
        await fleet.ask(0)
        await until(lambda: sent("v2") == 1)
        assert [await fleet.ask(number) for number in range(5)] == ["v1"] * 5
        assert sent("v2") == 1, "one copy at a time"
        copies = ShadowRequests(percent=100.0, max_concurrent=9, max_use_percent=60.0)
        fleet.use(msgspec.structs.replace(SHADOW, shadow=copies))
        await fleet.ask(1)
        await until(lambda: sent("v2") == 2)
        assert [await fleet.ask(number) for number in range(5)] == ["v1"] * 5
        assert sent("v2") == 2, "two of the four slots, and that of the request itself, are in use"
        release.set()
        await until(lambda: agent.held() == 0)
        elsewhere = ResidencyRule("elsewhere", allow=frozenset({"us-east"}))
        fleet.use(SHADOW, elsewhere)
        before = sent("v2")
        assert await fleet.ask(2) != "v1"
        fleet.use(SHADOW)
        assert await fleet.ask(2) == "v1"
        await until(lambda: sent("v2") == before + 1)


async def streams(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    events = ({"choices": [{"delta": {"content": "a"}}]}, {"choices": [], "usage": USAGE})
    data = b"".join(chunk(b"data: " + json.dumps(event).encode() + b"\n\n") for event in events)
    writer.write(SSE_HEAD + data + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")


async def test_the_times_of_copies_are_evidence_about_a_version(tmp_path: Path) -> None:
    async with engine(streams) as gpu, running_agent(tmp_path, [gpu.address], models=["v1", "v2"], slots=64) as agent:
        copies = ShadowRequests(percent=100.0, max_concurrent=9)
        fleet = Fleet(agent, msgspec.structs.replace(SHADOW, shadow=copies))
        await fleet.tick()
        asked = {"model": "chat", "stream": True, "stream_options": {"include_usage": True}, "messages": []}
        for number in range(3):
            assert (await ask(agent, body=json.dumps(asked).encode())).status == 200
            for version in ("v1", "v2"):
                await until(lambda at=number + 1, version=version: fleet.counts(version).requests.ended == at)
        for version in ("v1", "v2"):
            counts = fleet.counts(version)
            assert (counts.requests.begun, counts.timed, counts.answers) == (3, 3, 3), version
            assert counts.requests.first_byte_s > 0.0


async def test_a_copy_without_a_slot_uses_no_burst_endpoint(tmp_path: Path) -> None:
    release = asyncio.Event()

    async def holds(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        await release.wait()
        await serves(e, received, writer)

    async with (
        ServerlessEndpoint() as burst,
        engine(holds) as gpu,
        running_agent(
            tmp_path, [gpu.address], models=["v1", "v2"], slots=1, queue=0, burst=[{"url": burst.url, "slots": 4}]
        ) as agent,
    ):
        fleet, policy = Fleet(agent, SHADOW), agent.config.policy
        price = BurstPool(("v1", "v2"), cost_per_second=0.0, cold_start_s=0.0, for_batches=True)
        here = msgspec.structs.replace(policy.regions["eu-de"], burst=(price,))
        agent.config.policy = msgspec.structs.replace(agent.config.policy, regions={**policy.regions, "eu-de": here})
        copies: Any = agent.service.copies
        copies._has_room = lambda model, rules: True
        await fleet.tick()
        client = asyncio.create_task(fleet.ask(0))
        await until(lambda: agent.held() == 1 and "v2" in copies._running and not copies._running["v2"])
        release.set()
        assert await client == "v1"
        assert burst.connections == 0
        assert fleet.counts("v2").requests.ended == 0, "no evidence"


async def test_a_copy_ends_for_a_request_that_needs_its_slot_where_batch_work_does(tmp_path: Path) -> None:
    release, sent = asyncio.Event(), Counter[str]()

    async def holds_later_ones(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        sent[json.loads(received.body)["model"]] += 1
        if sent.total() > 1:
            await release.wait()
        await serves(e, received, writer)

    async with (
        engine(holds_later_ones) as gpu,
        running_agent(tmp_path, [gpu.address], models=["v1", "v2"], slots=2, queue=0) as agent,
    ):
        fleet = Fleet(agent, msgspec.structs.replace(SHADOW, shadow=ShadowRequests(100.0, max_use_percent=95.0)))
        preempted = {name: Model(name, queueing=Queueing(preempt_batch=True)) for name in ("v1", "v2")}
        agent.config.policy = msgspec.structs.replace(agent.config.policy, models=preempted)
        await fleet.tick()
        assert await fleet.ask(0) == "v1"
        await until(lambda: sent == {"v1": 1, "v2": 1})
        clients = [asyncio.create_task(fleet.ask(1))]
        await until(lambda: sent["v1"] == 2)
        clients.append(asyncio.create_task(fleet.ask(2)))
        await until(lambda: sent["v1"] == 3)
        copies: Any = agent.service.copies
        await until(lambda: not copies._running["v2"])
        release.set()
        assert await asyncio.gather(*clients) == ["v1", "v1"]
        assert (sent["v2"], fleet.counts("v2").requests.ended) == (1, 0), "no evidence"


class Scorer(SmallHttp):
    """A quality hook, which keeps what it receives."""

    def __init__(self, answer: bytes = b'{"score": -0.5}') -> None:
        super().__init__(self._score)
        self.pairs: list[dict[str, Any]] = []
        self.authorization: bytes | None = None
        self.status, self.answer_body = 200, answer

    def _score(self, method: bytes, target: bytes, headers: Headers, body: bytes) -> tuple[int, bytes]:
        self.pairs.append(json.loads(body))
        self.authorization = dict(headers).get(b"authorization")
        return self.status, self.answer_body


def scored_by(hook: Scorer, region: str = "eu-de") -> ModelRollout:
    quality = QualityHook(f"{hook.url}/pairs", region, percent=100.0, timeout_s=0.5, min_pairs=10)
    return msgspec.structs.replace(
        ROLLOUT, prepare_s=99, shadow=ShadowRequests(percent=100.0, max_concurrent=1, min_requests=0, quality=quality)
    )


async def test_a_hook_scores_pairs_of_answers_and_learns_nothing_about_the_tenant(tmp_path: Path) -> None:
    async with (
        Scorer() as hook,
        engine(serves) as gpu,
        running_agent(tmp_path, [gpu.address], models=["v1", "v2"], slots=64) as agent,
    ):
        token = tmp_path / "token"
        token.write_text("of-the-scorer\n")
        token.chmod(0o600)
        agent.service.copies = RequestCopies(agent.proxy, agent.config, Random(1), token)
        fleet = Fleet(agent, scored_by(hook))
        await fleet.tick()
        for number in range(10):
            body = json.dumps({"model": "chat", "messages": [str(number)], "user": "jane@example.com"}).encode()
            assert (await ask(agent, "x-session-id: secret", body=body)).status == 200
            await until(lambda number=number: fleet.counts("v2").scored == number + 1)
        pair = hook.pairs[0]
        assert (pair["name"], pair["old"], pair["new"]) == ("chat", "v1", "v2")
        assert pair["request"] == {"model": "v1", "messages": ["0"]}
        assert json.loads(pair["answers"]["old"]["body"])["usage"]["completion_tokens"] == 20
        assert pair["answers"]["new"]["content_type"] == "application/json"
        assert "secret" not in json.dumps(hook.pairs)
        assert hook.authorization == b"Bearer of-the-scorer"
        asked = Counter(json.loads(request.body)["model"] for request in gpu.requests)
        assert asked == {"v1": 20, "v2": 10}, "the old version answers each request of a pair again"
        assert (fleet.counts("v1").requests.ended, fleet.counts("v2").requests.ended) == (10, 10)
        assert await fleet.tick() is None, "rolled back"
        (stored,) = (await fleet.rollouts.stored()).values()
        assert stored.state is not None
        assert stored.state.why.startswith("mean score of 10 pairs of answers is -0.500")
        await agent.service.copies.stop()


async def test_a_hook_that_fails_is_counted_and_one_where_residency_forbids_it_receives_nothing(tmp_path: Path) -> None:
    async with (
        Scorer() as hook,
        engine(serves) as gpu,
        running_agent(tmp_path, [gpu.address], models=["v1", "v2"], slots=64, anonymous="personal") as agent,
    ):
        fleet = Fleet(agent, scored_by(hook, "us-east"))
        await fleet.tick()
        assert await fleet.ask(0) == "v1"
        await until(lambda: fleet.counts("v2").requests.ended == 1)
        fleet.use(scored_by(hook))
        for number, (status, body) in enumerate([(500, b""), (200, b"{}"), (200, b'{"score": 7}'), (307, b"")], 1):
            hook.status, hook.answer_body = status, body
            assert await fleet.ask(number) == "v1"
            await until(lambda number=number: fleet.counts("v2").unscored == number)
        assert len(hook.pairs) == 4, "none of the request that residency keeps in the EU"
        hook.silent = True
        assert await fleet.ask(9) == "v1"
        await until(lambda: fleet.counts("v2").unscored == 5)
        assert fleet.counts("v2").scored == 0
        text = agent.metrics.render().decode()
        assert 'penstock_agent_quality_pairs_total{model="v2",result="failed"} 5.0' in text
        assert await fleet.tick() == 0.0, "still prepared"


async def test_pairs_that_wait_for_a_slow_hook_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_pairs, "MAX_WAITING", 1)
    async with (
        Scorer() as hook,
        engine(serves) as gpu,
        running_agent(tmp_path, [gpu.address], models=["v1", "v2"], slots=64) as agent,
    ):
        hook.silent = True
        rollout = scored_by(hook)
        assert rollout.shadow
        assert rollout.shadow.quality
        slow = msgspec.structs.replace(rollout.shadow.quality, timeout_s=60.0)
        fleet = Fleet(
            agent, msgspec.structs.replace(rollout, shadow=msgspec.structs.replace(rollout.shadow, quality=slow))
        )
        await fleet.tick()
        for number in range(3):
            assert await fleet.ask(number) == "v1"
            await until(lambda number=number: fleet.counts("v2").requests.ended == number + 1)
            await until(lambda: agent.held() == 0)
        dropped = 'penstock_agent_quality_pairs_total{model="v2",result="dropped"} 2.0'
        await until(lambda: dropped in agent.metrics.render().decode())
