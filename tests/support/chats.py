"""A chat request, a client that sends the request, and engine scripts with one behaviour each."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from penstock.policy.policy import Policy
from regional_agent.upstream.address import Address
from tests.support.agents import Agent, running_agent
from tests.support.planet import MODEL
from tests.support.sockets import Answer, RawClient, ReceivedRequest, Script, ScriptedEngine, post
from tests.support.wait import until

USAGE_ASKED = {"include_usage": True}
BODY = json.dumps({"model": MODEL, "stream": True, "stream_options": USAGE_ASKED, "messages": []}).encode()
CHAT = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n"
"""The start of a request head."""
SSE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
ANSWER = b'{"choices": [], "content": [], "data": {}, "text": ""}'
"""The body of an answer to chats, Anthropic's messages, embeddings and transcriptions. A list of data would be one of
models."""
JSON_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 54\r\n\r\n" + ANSWER
NOBODY = Address("127.0.0.1", 1)
"""An address that refuses connections: no process listens on port 1."""


async def ask(agent: Agent, *headers: str, body: bytes = BODY, path: str = "/v1/chat/completions") -> Answer:
    """Send one chat on a new connection and return the response."""
    client = await RawClient.connect(agent.traffic)
    client.send(post(body, *headers, path=path))
    answer = await client.answer()
    client.close()
    return answer


def as_own(agent: Agent) -> None:
    """Make the routes of the presets routes of the policy, whose answers may have any form."""
    own = tuple(replace(route, source="routes.yaml:1") for route in agent.config.policy.routes)
    agent.config.policy = replace(agent.config.policy, routes=own)


def limit_queue(agent: Agent, **limits: Any) -> None:
    """Change the limits of the queues of all models."""
    policy = agent.config.policy
    models = {name: replace(model, queueing=replace(model.queueing, **limits)) for name, model in policy.models.items()}
    agent.config.policy = replace(policy, models=models)


def expect_service(agent: Agent, service_s: float) -> None:
    """State how long a request of any model takes, so that a request may be refused for its expected wait."""
    for pool in agent.endpoints.pools.values():
        pool.prior_s = service_s
        pool.recount()


def code(body: bytes) -> str:
    """The machine-readable code of an error response."""
    return str(json.loads(body)["error"]["code"])


def chunk(data: bytes) -> bytes:
    """`data` as one chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


async def answers(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    writer.write(JSON_ANSWER)


def answers_after(release: asyncio.Event, script: Script = answers) -> Script:
    """The script of an engine that responds by `script` once `release` is set."""

    async def answers_later(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        await release.wait()
        await script(e, received, writer)

    return answers_later


async def streams_forever(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    writer.write(SSE_HEAD + chunk(b"data: 1\n\n"))
    await asyncio.Event().wait()


async def never_responds(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def is_busy(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nbusy")


@asynccontextmanager
async def full(
    directory: Path, address: Address, *headers: str, policy: Policy | None = None, **fields: object
) -> AsyncIterator[tuple[Agent, RawClient]]:
    """An agent whose only slot is occupied, and the client that occupies it; the agent expects short requests.

    Args:
        headers: of the request that occupies the slot.
        policy: None for the test fleet's policy.
    """
    async with running_agent(directory, [address], slots=1, queue=0, **fields) as agent:  # type: ignore[arg-type]
        if policy is not None:
            agent.config.policy = policy
        pool = agent.endpoints.pools[MODEL]
        pool.prior_s = 0.1
        pool.recount()
        first = await RawClient.connect(agent.traffic)
        first.send(post(BODY, *headers))
        await first.head()
        yield agent, first
        first.close()
        await until(lambda: agent.held() == agent.waiting() == 0)
