"""Connections of clients stay in order whatever ends their responses: engines, a serving region, or revocation."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from random import Random

import pytest

from penstock.routing.reasons import Reason, Refusal
from tests.support.agents import Agent, running_agent
from tests.support.planet import plan
from tests.support.sockets import RawClient, ReceivedRequest, Script, ScriptedEngine, engine, post
from tests.support.streamed_chats import CHAT, dies, ends, finishes_with, reports_an_error, streams_chat

CLIENTS, CONNECTIONS, REQUESTS = 8, 40, 6
REASONS = (Reason.STREAM_STALLED, Reason.ENGINE_FAILED, Reason.INVALID_API_KEY)
FAILURES = (dies, ends, reports_an_error, finishes_with("abort"))


def unreliable(rng: Random) -> Script:
    """The script of an engine whose streams end in any way, in writes of any size."""

    async def script(e: ScriptedEngine, request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        stream = streams_chat(rng.randrange(1, 9), rng.choice((None, None, 3, 10, 29)), rng.choice(FAILURES))
        # The engine goes on when its client has left.
        with suppress(ConnectionError):
            await stream(e, request, writer)

    return script


@asynccontextmanager
async def two_regions(directory: Path, rng: Random, *, continues: bool) -> AsyncIterator[tuple[Agent, Agent]]:
    """An origin that sends half of its requests to another region, each with two engines."""
    halves = plan("eu-de", "eu-de+eu-es+us-east", eu_es=0.5)
    async with AsyncExitStack() as stack:
        gpus = [(await stack.enter_async_context(engine(unreliable(rng)))).address for _ in range(4)]
        server = await stack.enter_async_context(
            running_agent(directory / "server", gpus[:2], region="eu-es", anonymous=None, slots=64)
        )
        origin = await stack.enter_async_context(
            running_agent(directory / "origin", gpus[2:], plan=halves, peers={"eu-es": server.peer}, slots=64)
        )
        for agent in (server, origin) if continues else ():
            agent.continue_streams()
        yield origin, server


async def end_at_random(agents: tuple[Agent, Agent], rng: Random) -> None:
    """End requests in progress, until cancelled."""
    while True:
        await asyncio.sleep(0.004 * rng.random())
        active = list(rng.choice(agents).proxy.active)
        if active:
            rng.choice(active).end(Refusal(rng.choice(REASONS), "a test"))


async def read_responses(agent: Agent, rng: Random) -> int:
    """Send chats over kept connections, and read the responses strictly; returns their number."""
    number = 0
    for _ in range(CONNECTIONS):
        client = await RawClient.connect(agent.traffic)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            for _ in range(REQUESTS):
                chat = {**CHAT} if rng.random() < 0.8 else {**CHAT, "stream": False, "stream_options": None}
                client.send(post(json.dumps(chat).encode()))
                _, headers = await client.head()
                if "content-length" in headers:
                    await client.reader.readexactly(int(headers["content-length"]))
                else:
                    while await client.chunk():
                        pass
                number += 1
                if headers.get("connection") == "close":
                    break
        client.close()
    return number


@pytest.mark.long
@pytest.mark.parametrize("continues", [False, True])
@pytest.mark.parametrize("seed", range(4))
async def test_nothing_precedes_the_next_response(tmp_path: Path, seed: int, continues: bool) -> None:
    rng = Random(seed)
    async with two_regions(tmp_path, rng, continues=continues) as (origin, server):
        ending = asyncio.create_task(end_at_random((origin, server), rng))
        try:
            numbers = await asyncio.gather(*(read_responses(origin, rng) for _ in range(CLIENTS)))
        finally:
            ending.cancel()
        assert sum(numbers) > CLIENTS
