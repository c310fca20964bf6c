"""Budgets of a tenant, by requests over real sockets to one agent."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import datetime
from itertools import pairwise
from math import inf
from pathlib import Path

import pytest
from msgspec.structs import replace

from penstock.answers.token_counts import Usage
from penstock.cost.cost_estimate import ANSWER_TOKENS
from penstock.cost.request_properties import CostInputs
from penstock.policy.kinds.billing import ModelPrice, Prices
from penstock.policy.kinds.budgets import Budget, BudgetScope, BudgetUnit
from penstock.policy.kinds.models import Cost, CostUnit
from penstock.routes.presets.preset_registry import preset_routes
from penstock.tenancy.budget_lease import BudgetKey, BudgetLease
from penstock.tenancy.budget_meter import MAX_WAIT_S, BudgetMeter
from penstock.tenancy.budget_reservations import FIRST_TOKENS
from regional_agent.http.limits import Limits
from regional_agent.upstream.address import Address
from tests.support.agents import Agent, running_agent
from tests.support.chats import BODY, SSE_HEAD, answers, answers_after, ask, chunk, never_responds
from tests.support.picker_streams import CHAT, PickerStream, body, head, parts_of
from tests.support.planet import MODEL
from tests.support.sockets import Answer, RawClient, ReceivedRequest, ScriptedEngine, engine, post
from tests.support.wait import until

USED = {"prompt_tokens": 30, "completion_tokens": 20, "prompt_tokens_details": {"cached_tokens": 10}}
WHOLE = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 40}).encode()
LARGE = json.dumps({"model": MODEL, "messages": [], "padding": "x" * 200_000}).encode()
STEADY = 0.001
"""A limit per minute that adds nothing within a test."""


def limited(agent: Agent, *budgets: Budget, tokens: bool = True) -> None:
    """The anonymous tenant has these budgets; the model's requests cost tokens."""
    policy = agent.config.policy
    tenant = replace(policy.tenants["open"], own_budgets=budgets)
    cost = Cost(CostUnit.TOKEN, 0.001, 0.01) if tokens else Cost()
    agent.config.policy = replace(
        policy,
        tenants=policy.tenants | {"open": tenant},
        models={MODEL: replace(policy.models[MODEL], cost=cost)},
        routes=(*preset_routes("openai"), *preset_routes("anthropic")),
    )


def meter(agent: Agent, unit: BudgetUnit) -> BudgetMeter:
    (found,) = (meter for meter in agent.budgets._meters.values() if meter.key.unit is unit)
    return found


async def reports_usage(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    body = json.dumps({"choices": [], "usage": USED}).encode()
    lines = b"x-ratelimit-remaining-requests: 7\r\nanthropic-ratelimit-tokens-limit: 7\r\nx-engine: 1\r\n"
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n" % (lines, len(body))
    writer.write(head + body)


async def test_a_burst_admits_the_budget(tmp_path: Path) -> None:
    release = asyncio.Event()

    async with (
        engine(answers_after(release)) as gpu,
        running_agent(tmp_path, [gpu.address], slots=1000, queue=1000) as agent,
    ):
        limited(agent, Budget(BudgetUnit.REQUESTS, STEADY, burst=10.0), Budget(BudgetUnit.CONCURRENT_REQUESTS, 20.0))
        clients = await asyncio.gather(*(RawClient.connect(agent.traffic) for _ in range(300)))
        for client in clients:
            client.send(post(BODY))
        answered = [asyncio.ensure_future(client.answer()) for client in clients]
        await until(lambda: sum(task.done() for task in answered) == 290)
        release.set()
        statuses = [(await task).status for task in answered]
        assert (statuses.count(200), statuses.count(429)) == (10, 290)
        assert len(gpu.requests) == 10
        assert agent.budgets.running("open") == 0
        for client in clients:
            client.close()


class LateLeases:
    """Leases of a leader that grants one request to an agent that has asked twice."""

    def __init__(self, agent: Agent, *, answers: bool) -> None:
        self.agent, self.answers, self.asked, self.agents = agent, answers, 0, 2
        if answers:
            # However slow the machine is.
            agent.budgets.max_wait_s = inf

    def opening(self, key: BudgetKey, budget: Budget, now: float) -> BudgetLease:
        return BudgetLease(key, 0, 0.0, 0.0, 0.0)

    def ended_s(self, now: float) -> float | None:
        return None

    def wake(self) -> None:
        self.asked += 1
        if self.answers:
            asyncio.get_running_loop().call_later(0.01, self._answer, self.asked)

    def _answer(self, number: int) -> None:
        found = meter(self.agent, BudgetUnit.CONCURRENT_REQUESTS)
        if number == 2:
            self.agent.budgets.apply([BudgetLease(found.key, 1, 1.0, 1.0, 0.0)], time.monotonic())
        self.agent.budgets.answered([])


@pytest.mark.parametrize("sent", [BODY, LARGE], ids=["whole", "by its head"])
@pytest.mark.parametrize("answers_in_time", [True, False])
async def test_a_request_waits_for_a_place_a_moment(tmp_path: Path, answers_in_time: bool, sent: bytes) -> None:
    release = asyncio.Event()
    async with (
        engine(answers_after(release)) as gpu,
        running_agent(tmp_path, [gpu.address], limits=Limits(idle_linger_s=0.0)) as agent,
    ):
        limited(agent, Budget(BudgetUnit.CONCURRENT_REQUESTS, 1.0))
        agent.budgets._leases = leases = LateLeases(agent, answers=answers_in_time)
        waiting = asyncio.ensure_future(ask(agent, body=sent))
        if answers_in_time:
            await until(lambda: len(gpu.requests) == 1)
            assert (await ask(agent)).status == 429, "its place is taken"
        release.set()
        assert (await waiting).status == (200 if answers_in_time else 429)
        assert agent.budgets.refused[BudgetUnit.CONCURRENT_REQUESTS] == 1
        assert leases.asked >= 1
        assert agent.budgets._waiting == 0


async def test_a_request_of_envoy_waits_for_a_place(tmp_path: Path) -> None:
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        limited(agent, Budget(BudgetUnit.CONCURRENT_REQUESTS, 1.0))
        agent.budgets._leases = LateLeases(agent, answers=True)
        stream = PickerStream(parts_of(agent))
        stream.receive(head(), body(CHAT))
        await until(lambda: bool(stream.kinds()))
        assert stream.kinds()[0] == "request_headers"
        stream.stream.close()
        await until(lambda: agent.budgets.running("open") == 0)


async def test_remaining_falls_and_reset_is_true(tmp_path: Path) -> None:
    async with engine(reports_usage) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        limited(agent, Budget(BudgetUnit.REQUESTS, STEADY, burst=5.0), Budget(BudgetUnit.TOKENS, STEADY, burst=9000.0))
        seen = [await ask(agent, body=WHOLE) for _ in range(5)]
        refused = await ask(agent, body=WHOLE)
    assert [answer.status for answer in (*seen, refused)] == [200] * 5 + [429]
    assert [answer.headers["x-ratelimit-remaining-requests"] for answer in (*seen, refused)] == list("432100")
    assert {answer.headers["x-ratelimit-limit-requests"] for answer in (*seen, refused)} == {"5"}
    left = [int(answer.headers["x-ratelimit-remaining-tokens"]) for answer in seen]
    assert all(after < before for before, after in pairwise(left))
    assert seen[0].headers["x-ratelimit-reset-requests"].startswith("16h"), "one request at 0.001 a minute"
    assert {answer.headers["x-engine"] for answer in seen} == {"1"}
    assert not [name for name in seen[0].headers if name.startswith("anthropic-ratelimit")], "an engine's own"


async def test_a_refusal_names_the_budget_in_openais_words(tmp_path: Path) -> None:
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        limited(agent, Budget(BudgetUnit.REQUESTS, 2.0, burst=1.0), tokens=False)
        assert (await ask(agent)).status == 200
        refused = await ask(agent)
    error = json.loads(refused.body)["error"]
    assert (error["type"], error["code"]) == ("requests", "rate_limit_exceeded")
    assert "tenant open has used up the budget of 2 requests per minute for the fleet" in error["message"]
    assert refused.headers["x-should-retry"] == "true"
    assert 29 <= int(refused.headers["retry-after"]) <= 46
    assert 29_000 <= int(refused.headers["retry-after-ms"]) <= 45_000
    assert refused.headers["x-penstock-refusal"] == "quota_exceeded"


async def test_anthropics_clients_read_its_headers_and_its_error(tmp_path: Path) -> None:
    path, version = "/v1/messages", "anthropic-version: 2023-06-01"
    body = json.dumps({"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}).encode()
    budgets = Budget(BudgetUnit.REQUESTS, 1.0), Budget(BudgetUnit.OUTPUT_TOKENS, 6000.0)
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        limited(agent, *budgets)
        served = await ask(agent, version, body=body, path=path)
        refused = await ask(agent, version, body=body, path=path)
    assert (served.status, refused.status) == (200, 429)
    error = json.loads(refused.body)["error"]
    assert (error["type"], error["details"]["error_code"]) == ("rate_limit_error", "quota_exceeded")
    for answer in (served, refused):
        assert answer.headers["anthropic-ratelimit-requests-limit"] == "1"
        assert answer.headers["anthropic-ratelimit-requests-remaining"] == "0"
        reset = datetime.fromisoformat(answer.headers["anthropic-ratelimit-requests-reset"]).timestamp()
        assert 0.0 <= reset - time.time() <= 62.0
        assert 5000 <= int(answer.headers["anthropic-ratelimit-output-tokens-remaining"]) < 6000
        assert "x-ratelimit-limit-requests" not in answer.headers


async def test_what_was_used_replaces_the_estimate(tmp_path: Path) -> None:
    async with engine(reports_usage) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        limited(
            agent,
            Budget(BudgetUnit.TOKENS, STEADY, burst=9000.0, cached_weight=0.5),
            Budget(BudgetUnit.GPU_SECONDS, STEADY, burst=1000.0),
            Budget(BudgetUnit.MONEY_PER_DAY, 100.0),
        )
        prices = Prices("list", 0.0, "EUR", (ModelPrice("*", 1e5, 0.0, 2e5, per_request=1.0),))
        agent.config.policy = replace(agent.config.policy, prices=(prices,))
        assert (await ask(agent, body=WHOLE)).status == 200
        await until(lambda: meter(agent, BudgetUnit.TOKENS).held == 0.0)
        assert meter(agent, BudgetUnit.TOKENS).spent == 30 - 10 * 0.5 + 20
        assert meter(agent, BudgetUnit.MONEY_PER_DAY).spent == pytest.approx(20 * 0.1 + 20 * 0.2 + 1.0)
        assert 0.0 < meter(agent, BudgetUnit.GPU_SECONDS).spent < 30.0


FREE = json.dumps({"model": MODEL, "stream": True, "messages": [{"role": "user", "content": "hello"}]}).encode()
"""A chat without `max_tokens`."""
WORD = b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n'


async def test_a_first_burst_of_long_answers_passes_a_budget_of_tokens_by_one_answer(tmp_path: Path) -> None:
    release = asyncio.Event()
    end = b'data: {"choices": [], "usage": {"prompt_tokens": 20, "completion_tokens": 1100}}\n\ndata: [DONE]\n\n'

    async def answers_at_length(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + chunk(WORD))
        await release.wait()
        writer.write(chunk(end) + b"0\r\n\r\n")

    async with (
        engine(answers_at_length) as gpu,
        running_agent(tmp_path, [gpu.address], slots=1000, queue=1000) as agent,
    ):
        limited(agent, Budget(BudgetUnit.TOKENS, STEADY, burst=10_000.0))
        clients = await asyncio.gather(*(RawClient.connect(agent.traffic) for _ in range(300)))
        for client in clients:
            client.send(post(FREE))
        answered = [asyncio.ensure_future(client.answer()) for client in clients]
        await until(lambda: sum(task.done() for task in answered) + len(gpu.requests) == 300)
        release.set()
        statuses = [(await task).status for task in answered]
        assert 4 < statuses.count(200) <= 10
        assert statuses.count(200) + statuses.count(429) == 300
        await until(lambda: meter(agent, BudgetUnit.TOKENS).held == 0.0)
        assert meter(agent, BudgetUnit.TOKENS).used <= 11_120
        for client in clients:
            client.close()


async def test_a_long_stream_takes_from_a_budget_while_it_runs(tmp_path: Path) -> None:
    release = asyncio.Event()

    async def answers_at_length(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD)
        while not release.is_set():
            writer.write(chunk(WORD) * 20)
            await asyncio.sleep(0.01)
        writer.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    async with engine(answers_at_length) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        limited(agent, Budget(BudgetUnit.TOKENS, STEADY, burst=1_000.0))
        sender = agent.budgets.of(agent.config.policy.tenants["open"])
        assert sender is not None
        sender.usual_tokens = ANSWER_TOKENS
        running = asyncio.ensure_future(ask(agent, body=FREE))
        await until(lambda: len(gpu.requests) == 1)
        found = meter(agent, BudgetUnit.TOKENS)
        await until(lambda: found.held > 2_400.0)
        refused = await ask(agent, body=FREE)
        assert refused.status == 429
        assert refused.headers["x-ratelimit-remaining-tokens"] == "0"
        release.set()
        assert (await running).status == 200
        await until(lambda: found.held == 0.0)
        assert found.used > 1_000.0


@pytest.mark.parametrize("through_envoy", [False, True])
async def test_a_long_answer_that_is_not_streamed_takes_from_a_budget_by_its_time(
    tmp_path: Path, through_envoy: bool
) -> None:
    async with engine(never_responds) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        limited(agent, Budget(BudgetUnit.TOKENS, STEADY, burst=10_000.0))
        (endpoint,) = agent.router.local.endpoints.every()
        for _ in range(100):
            # A token takes a millisecond.
            endpoint.learner.saw_end(1.0, 0.1, 1.0, time.monotonic())
        chat = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "hello"}]}).encode()
        if through_envoy:
            stream = PickerStream(parts_of(agent))
            stream.receive(head(), body(chat))
        else:
            client = await RawClient.connect(agent.traffic)
            client.send(post(chat))
        await until(lambda: len(agent.budgets) == 1 and meter(agent, BudgetUnit.TOKENS).held > 4_000.0)
        sender = agent.budgets.of(agent.config.policy.tenants["open"])
        assert sender is not None
        assert sender.usual_tokens == FIRST_TOKENS, "an engine that hangs teaches no length"


async def test_answers_that_are_longer_than_expected_do_not_exceed_money_together(tmp_path: Path) -> None:
    release = asyncio.Event()

    async def answers_at_length(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        await release.wait()
        body = b'{"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 40}}'
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        )

    async with (
        engine(answers_at_length) as gpu,
        running_agent(tmp_path, [gpu.address], slots=1000, queue=1000) as agent,
    ):
        limited(agent, Budget(BudgetUnit.MONEY_PER_DAY, 100.0))
        prices = Prices("list", 0.0, "EUR", (ModelPrice("*", 0.0, 0.0, 1e6),))
        agent.config.policy = replace(agent.config.policy, prices=(prices,))
        agent.budgets.wall_clock = lambda: 1_700_000_000.0
        ask_for = CostInputs(len(WHOLE), max_tokens=40)
        for second in range(100):
            used = Usage(prompt_tokens=1, answer_tokens=1)
            agent.router.local.chooser.expectations.observe("open", MODEL, ask_for, used, float(second))
        clients = await asyncio.gather(*(RawClient.connect(agent.traffic) for _ in range(100)))
        for client in clients:
            client.send(post(WHOLE))
        answered = [asyncio.ensure_future(client.answer()) for client in clients]
        await until(lambda: sum(task.done() for task in answered) >= 97)
        release.set()
        statuses = [(await task).status for task in answered]
        assert (statuses.count(200), statuses.count(429)) == (3, 97)
        await until(lambda: meter(agent, BudgetUnit.MONEY_PER_DAY).held == 0.0)
        assert meter(agent, BudgetUnit.MONEY_PER_DAY).spent == pytest.approx(120.0)
        for client in clients:
            client.close()


async def test_spent_money_is_no_reason_to_retry(tmp_path: Path) -> None:
    async with engine(reports_usage) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        limited(agent, Budget(BudgetUnit.MONEY_PER_MONTH, 3.0))
        prices = Prices("list", 0.0, "EUR", (ModelPrice("*", per_request=2.0),))
        agent.config.policy = replace(agent.config.policy, prices=(prices,))
        # In the middle of a month, whose end is later than clients wait.
        agent.budgets.wall_clock = lambda: 1_700_000_000.0
        assert (await ask(agent, body=WHOLE)).status == 200
        refused = await ask(agent, body=WHOLE)
    error = json.loads(refused.body)["error"]
    assert (error["type"], error["code"]) == ("insufficient_quota", "insufficient_quota")
    assert refused.headers["x-should-retry"] == "false"
    assert "retry-after-ms" not in refused.headers


@pytest.mark.parametrize("leaves", ["before", "during"])
async def test_a_request_that_its_client_leaves_holds_nothing(tmp_path: Path, leaves: str) -> None:
    async def begins(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + chunk(b'data: {"choices":[{"delta":{"content":"one"}}]}\n\n'))
        await asyncio.Event().wait()

    async with (
        engine(begins if leaves == "during" else never_responds) as gpu,
        running_agent(tmp_path, [gpu.address]) as agent,
    ):
        limited(
            agent,
            Budget(BudgetUnit.CONCURRENT_REQUESTS, 1.0),
            Budget(BudgetUnit.REQUESTS, STEADY, burst=9.0),
            Budget(BudgetUnit.OUTPUT_TOKENS, STEADY, burst=9000.0),
        )
        client = await RawClient.connect(agent.traffic)
        client.send(post(BODY))
        if leaves == "during":
            await client.head()
            await client.chunk()
        await until(lambda: len(gpu.requests) == 1)
        assert (await ask(agent)).status == 429
        client.close()
        await until(lambda: agent.budgets.running("open") == 0)
        assert meter(agent, BudgetUnit.REQUESTS).spent == 1.0, "a target received it"
        assert meter(agent, BudgetUnit.OUTPUT_TOKENS).spent == (1.0 if leaves == "during" else 0.0)


async def test_what_no_target_received_is_given_back(tmp_path: Path) -> None:
    async with running_agent(tmp_path, [Address("127.0.0.1", 1)]) as agent:
        limited(agent, Budget(BudgetUnit.REQUESTS, STEADY, burst=9.0), Budget(BudgetUnit.TOKENS, STEADY, burst=9000.0))
        refused: Answer = await ask(agent, body=WHOLE)
        assert refused.status == 503
        assert int(refused.headers["x-ratelimit-limit-requests"]) == 9, "refusals have the headers, too"
        assert [(each.held, each.spent) for each in agent.budgets._meters.values()] == [(0.0, 0.0)] * 2


async def test_forwarded_requests_count_where_they_came_in(tmp_path: Path) -> None:
    async with (
        engine(reports_usage) as gpu,
        running_agent(tmp_path / "serving", [gpu.address]) as serving,
        running_agent(tmp_path / "origin", [], region="eu-es", peers={"eu-de": serving.peer}) as origin,
    ):
        for agent in (serving, origin):
            limited(
                agent,
                Budget(BudgetUnit.TOKENS, STEADY, burst=9000.0),
                Budget(BudgetUnit.GPU_SECONDS, STEADY, burst=900.0, scope=BudgetScope.REGION),
            )
        answer = await ask(origin, body=WHOLE)
        assert answer.status == 200
        assert int(answer.headers["x-ratelimit-limit-tokens"]) == 9000
        await until(lambda: meter(origin, BudgetUnit.TOKENS).held == 0.0)
        assert meter(origin, BudgetUnit.TOKENS).spent == 50.0
        assert meter(origin, BudgetUnit.GPU_SECONDS).spent == pytest.approx(20 * 0.001 + 20 * 0.01)
        assert not serving.budgets._meters


@pytest.mark.parametrize("unit", [BudgetUnit.REQUESTS, BudgetUnit.TOKENS, BudgetUnit.MONEY_PER_DAY])
@pytest.mark.parametrize(("limit", "burst"), [(5e-324, None), (1e-300, 2.0), (1e-300, 1e15), (1e15, 5e-324)])
async def test_absurd_limits_are_answered(tmp_path: Path, unit: BudgetUnit, limit: float, burst: float | None) -> None:
    async with engine(reports_usage) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        limited(agent, Budget(unit, limit, burst=burst if unit is not BudgetUnit.MONEY_PER_DAY else None))
        for path, reset in (("/v1/chat/completions", "x-ratelimit-reset-"), ("/v1/messages", "anthropic-ratelimit-")):
            for _ in range(2):
                answer = await ask(agent, body=WHOLE, path=path)
                assert answer.status in (200, 429, 502)
                assert float(answer.headers.get("retry-after", "1")) < 2 * MAX_WAIT_S
                for name, value in answer.headers.items():
                    if name.startswith(reset) and name.endswith("reset"):
                        assert datetime.fromisoformat(value).year < datetime.now().year + 3
        await until(lambda: agent.held() == 0)
