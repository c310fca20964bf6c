"""For any order of events of two attempts: the client gets one response, and every reservation is released."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.admission.hedging import HedgeDelays
from penstock.health.endpoint_health import ProbeOutcome
from regional_agent.http.limits import Limits
from regional_agent.proxy.hedge import OVER, PLANNED, TRANSITIONS, WON
from tests.support.agents import running_agent
from tests.support.examples import examples
from tests.support.planet import MODEL
from tests.support.sockets import RawClient, ReceivedRequest, ScriptedEngine, engine, post
from tests.support.wait import until

STEP_S = 0.01
BODY = json.dumps({"model": MODEL, "input": "hello"}).encode()
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n"
ACTIONS = {
    "whole": (HEAD + b"body",),
    "parts": (HEAD, b"bo", b"dy"),
    "empty": (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",),
    "error": (b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 3\r\n\r\nbad",),
    "busy": (b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 3\r\n\r\n", b"bad"),
    "malformed": (b"nonsense\r\n\r\n",),
    "cut head": (b"HTTP/1.1 200 OK\r\n", b""),
    "cut body": (HEAD, b"bo", b""),
    "closed": (b"",),
    "silent": (),
}
"""What an engine writes, part by part; an empty part closes the connection."""

attempts = st.lists(st.tuples(st.integers(0, 4), st.sampled_from(sorted(ACTIONS))), min_size=2, max_size=8)
requests = st.lists(st.tuples(attempts, st.one_of(st.none(), st.integers(0, 8))), min_size=1, max_size=3)


async def _run(directory: Path, scripts: list[tuple[list[tuple[int, str]], int | None]]) -> None:
    script: list[tuple[int, str]] = []

    async def act(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        steps, action = script.pop(0) if script else (0, "whole")
        for part in ACTIONS[action]:
            await asyncio.sleep(steps * STEP_S)
            if not part:
                writer.close()
                return
            writer.write(part)
        if action == "silent":
            await asyncio.Event().wait()

    limits = Limits(idle_linger_s=0.0, first_byte_timeout_s=0.3, request_timeout_s=0.5)
    async with (
        engine(act) as first_engine,
        engine(act) as second_engine,
        running_agent(directory, [first_engine.address, second_engine.address], limits=limits) as running,
    ):
        for attempts, leaves_after in scripts:
            for endpoint in running.endpoints.every():
                endpoint.probed(ProbeOutcome.GOOD)
                endpoint.probed(ProbeOutcome.GOOD)
            for _ in range(100):
                running.proxy._services.hedging.budget.request()
            script[:] = attempts
            client = await RawClient.connect(running.traffic)
            client.send(post(BODY, "Connection: close", path="/v1/embeddings"))
            if leaves_after is None:
                received = await client.until_cut()
                assert received.count(b"HTTP/1.1 ") == 1
                head, _, body = received.partition(b"\r\n\r\n")
                if head.startswith(b"HTTP/1.1 200"):
                    assert body in (b"body", b"", b"bo"), "no mixture of two responses"
            else:
                await asyncio.sleep(leaves_after * STEP_S)
            client.close()
            await until(lambda: running.held() == 0 and not list(running.proxy.active))
            assert running.router.admission._quotas.running("open") == 0


@settings(max_examples=examples(25), deadline=None)
@given(requests)
def test_any_order_of_events_ends_in_one_response(scripts: list[tuple[list[tuple[int, str]], int | None]]) -> None:
    with (
        tempfile.TemporaryDirectory() as directory,
        patch.object(HedgeDelays, "delay_s", lambda self, route, model: 2 * STEP_S),
    ):
        asyncio.run(_run(Path(directory), scripts))


def test_every_state_can_be_reached_and_can_end() -> None:
    found = {PLANNED}
    while new := {to for state in found for to in TRANSITIONS[state]} - found:
        found |= new
    assert found == set(TRANSITIONS)
    assert {state for state, successors in TRANSITIONS.items() if not successors} == {WON, OVER}
