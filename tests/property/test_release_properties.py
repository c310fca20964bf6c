"""If any step after a response fails (learning, counting, logging), every reservation of the request is released."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.cost.cost_estimate import CostEstimator
from penstock.meters.ended_requests import EndedRequests
from penstock.meters.request_tally import RequestTally
from penstock.policy.kinds.budgets import Budget, BudgetUnit
from penstock.policy.kinds.tenants import Quota
from penstock.pools.speed_learning import SpeedLearner
from penstock.routing.endpoint_chooser import EndpointChooser
from regional_agent.endpoints.endpoint import Endpoint
from regional_agent.endpoints.endpoint_failures import EndpointFailures
from regional_agent.telemetry.access_log import AccessLog
from tests.support.agents import running_agent
from tests.support.chats import JSON_ANSWER, SSE_HEAD, chunk
from tests.support.examples import examples
from tests.support.planet import MODEL
from tests.support.sockets import RawClient, ReceivedRequest, ScriptedEngine, engine, post
from tests.support.wait import until

STEPS: tuple[tuple[Any, str], ...] = (
    (EndpointChooser, "learn_first_byte"),
    (EndpointChooser, "learn_response"),
    (CostEstimator, "observe"),
    (CostEstimator, "is_due"),
    (SpeedLearner, "is_due"),
    (Endpoint, "completed"),
    (EndpointFailures, "ended"),
    (RequestTally, "ended"),
    (EndedRequests, "count"),
    (AccessLog, "samples"),
    (AccessLog, "add"),
)
"""What runs after an answer has begun, or at its end."""

ENDINGS = ("whole", "stream", "cut", "left")


class Defect(Exception):
    """A fault in a step."""


async def _script(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    kind = received.header("x-request-id")
    if kind == "whole":
        writer.write(JSON_ANSWER)
        return
    writer.write(SSE_HEAD + chunk(b"data: 1\n\n"))
    if kind == "stream":
        writer.write(b"0\r\n\r\n")
    elif kind == "cut":
        writer.close()
    else:
        await asyncio.Event().wait()


async def _serve_with_faults(directory: Path, failing: frozenset[int], endings: list[str]) -> None:
    access_log = AccessLog(directory / "access.log", 1.0, Random(1))
    async with engine(_script) as gpu, running_agent(directory, [gpu.address], access_log=access_log) as agent:
        policy = agent.config.policy
        quota = Quota(None, 1, concurrent=1)
        budgets = Budget(BudgetUnit.OUTPUT_TOKENS, 1e6), Budget(BudgetUnit.GPU_SECONDS, 1e6)
        tenants = {
            name: msgspec.structs.replace(tenant, quota=quota, own_budgets=budgets)
            for name, tenant in policy.tenants.items()
        }
        agent.config.policy = msgspec.structs.replace(policy, tenants=tenants)
        with ExitStack() as faults:
            for step in failing:
                owner, name = STEPS[step]
                faults.enter_context(patch.object(owner, name, side_effect=Defect(name)))
            for ending in endings:
                stream = ending != "whole"
                body = msgspec.json.encode({"model": MODEL, "stream": stream, "messages": [], "max_tokens": 5})
                client = await RawClient.connect(agent.traffic)
                client.send(post(body, f"X-Request-Id: {ending}"))
                status, _ = await client.head()
                assert status == 200, f"the request before holds its quota: {ending}, {failing}"
                if ending == "stream":
                    assert await client.chunk() == b"data: 1\n\n"
                    assert await client.chunk() == b"", "the client gets all of the answer"
                client.close()
                await until(lambda: agent.held() == 0 and not list(agent.proxy.active))
                assert [meter.held for meter in agent.budgets.meters()] == [0.0] * len(agent.budgets)
                counters = agent.proxy.router.queue._work.of(MODEL)
                assert [level.running for level in counters.priorities.values()] == [0]
    access_log.close()


@settings(max_examples=examples(30), deadline=None)
@given(st.frozensets(st.integers(0, len(STEPS) - 1)), st.lists(st.sampled_from(ENDINGS), min_size=1, max_size=4))
def test_counters_return_to_zero_after_any_failure(failing: frozenset[int], endings: list[str]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(_serve_with_faults(Path(directory), failing, endings))
