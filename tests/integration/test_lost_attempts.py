"""What an attempt used that a retry replaced is overhead of the fleet, in meters, budgets and the ledger."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from penstock.accounts.outcome_rules import Outcome
from penstock.ledger.ledger_record import LedgerRecord, RecordKind
from penstock.policy.kinds.billing import ModelPrice, Prices
from penstock.policy.kinds.budgets import Budget, BudgetUnit
from tests.integration.test_budgets_on_the_wire import STEADY, limited, meter
from tests.integration.test_ledger_records import ledger_in, records_in
from tests.support.agents import Agent, running_agent
from tests.support.chats import SSE_HEAD, ask, chunk
from tests.support.planet import MODEL
from tests.support.sockets import ReceivedRequest, Script, ScriptedEngine, engine
from tests.support.wait import until

LOST = b'{"choices":[],"usage":{"prompt_tokens":7000,"completion_tokens":900},"error":{"code":500,"message":"x"}}'
USED = b'data: {"choices":[],"usage":{"prompt_tokens":30,"completion_tokens":20}}\n\n'
WORD = b'data: {"choices":[{"index":0,"delta":{"content":"word"},"finish_reason":null}]}\n\n'
ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}],"usage":{"prompt_tokens":7000}}\n\n'
STREAM = json.dumps({"model": MODEL, "messages": [], "max_tokens": 40, "stream": True}).encode()

LOSSES = {
    "status 500 with usage": b"HTTP/1.1 500 Failed\r\nContent-Length: %d\r\n\r\n%b" % (len(LOST), LOST),
    "an error as a whole": b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
    % (len(LOST), LOST),
    "an error after the announcement": SSE_HEAD + chunk(ROLE) + chunk(b"data: %b\n\n" % LOST) + b"0\r\n\r\n",
    "a cut after the announcement": SSE_HEAD + chunk(ROLE),
    "a close": b"",
}


def loses(lost: bytes) -> Script:
    """An engine that sends `lost` and closes the connection."""

    async def script(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(lost)
        writer.close()

    return script


async def serves(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    writer.write(SSE_HEAD + chunk(WORD) + chunk(USED) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")


def measure(agent: Agent) -> None:
    """Count the tokens, the GPU time and the money of the tenant."""
    units = (BudgetUnit.TOKENS, BudgetUnit.GPU_SECONDS)
    limited(agent, *(Budget(unit, STEADY, burst=90_000.0) for unit in units), Budget(BudgetUnit.MONEY_PER_DAY, 1e9))
    prices = Prices("list", 0.0, "EUR", (ModelPrice("*", 1e6, 0.0, 1e6),))
    agent.config.policy = replace(agent.config.policy, prices=(prices,))
    agent.metrics.usage.use_names(["open"], {MODEL: 1.0})


def tokens(records: list[LedgerRecord], *, is_overhead: bool) -> int:
    return sum(each.input_tokens + each.output_tokens for each in records if each.is_overhead == is_overhead)


async def lose(agent: Agent, loser: ScriptedEngine) -> int:
    """Send requests until the loser has received one; returns their number."""
    asked = 0
    while not loser.requests:
        answer = await ask(agent, f"X-Request-Id: r{asked}", body=STREAM)
        asked += 1
        assert (answer.status, answer.body.count(WORD)) == (200, 1)
        assert asked <= 50
    await until(lambda: not any(each.held for each in agent.budgets._meters.values()))
    assert agent.counted() == {Outcome.OK: asked}
    assert meter(agent, BudgetUnit.TOKENS).spent == 50.0 * asked
    assert meter(agent, BudgetUnit.MONEY_PER_DAY).spent == pytest.approx(50.0 * asked)
    return asked


@pytest.mark.parametrize("lost", LOSSES.values(), ids=LOSSES)
async def test_the_attempt_that_a_retry_replaced_costs_its_tenant_nothing(tmp_path: Path, lost: bytes) -> None:
    async with (
        engine(loses(lost)) as loser,
        engine(serves) as winner,
        running_agent(tmp_path, [loser.address, winner.address], ledger=ledger_in(tmp_path)) as agent,
    ):
        measure(agent)
        asked = await lose(agent, loser)
        (series,) = [each for _, _, each in agent.metrics.usage.series() if each.gpu_s]
        assert (series.input_tokens, series.output_tokens) == (30 * asked, 20 * asked)
        gpu_s = meter(agent, BudgetUnit.GPU_SECONDS).spent
        assert gpu_s == pytest.approx(series.gpu_s), "without that of the lost attempt"
    found = records_in(tmp_path)
    assert (tokens(found, is_overhead=False), tokens(found, is_overhead=True)) == (50 * asked, 0)
    ends = [each for each in found if each.kind == RecordKind.REQUEST]
    lost_s = [each.gpu_s for each in found if each.kind == RecordKind.LOST_ATTEMPT and each.is_overhead]
    assert (len(ends), len(lost_s), len(found)) == (asked, len(loser.requests), asked + len(lost_s))
    assert sum(each.gpu_s for each in ends) == pytest.approx(gpu_s, abs=1e-4)
    assert sum(lost_s) == pytest.approx(series.overhead_gpu_s, abs=1e-4)
    assert series.overhead_gpu_s > 0.0


@pytest.mark.parametrize("lost", LOSSES.values(), ids=LOSSES)
async def test_the_region_that_another_one_replaced_costs_the_tenant_nothing(tmp_path: Path, lost: bytes) -> None:
    here, there, away = (tmp_path / name for name in ("here", "there", "away"))
    async with (
        engine(loses(lost)) as loser,
        engine(serves) as winner,
        running_agent(there, [loser.address], ledger=ledger_in(there)) as losing,
        running_agent(away, [winner.address], region="us-east", ledger=ledger_in(away, "us-east")) as winning,
        running_agent(
            here,
            [],
            region="eu-es",
            peers={"eu-de": losing.peer, "us-east": winning.peer},
            ledger=ledger_in(here, "eu-es"),
        ) as agent,
    ):
        for each in (losing, winning, agent):
            measure(each)
        asked = await lose(agent, loser)
        assert sum(each.output_tokens for _, _, each in losing.metrics.usage.series()) == 0
        assert sum(each.gpu_s for _, _, each in losing.metrics.usage.series()) == 0.0
        assert losing.budgets._meters == winning.budgets._meters == {}
    assert tokens(records_in(here), is_overhead=False) == 50 * asked
    elsewhere = records_in(there)
    assert elsewhere
    assert all(each.is_overhead and not (each.input_tokens or each.price) for each in elsewhere)
