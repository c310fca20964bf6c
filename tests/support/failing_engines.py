"""Engines that respond with an error status, and the chats for them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

from tests.support.agents import Agent
from tests.support.chats import JSON_ANSWER, SSE_HEAD, chunk
from tests.support.planet import MODEL
from tests.support.sockets import ReceivedRequest, Script, ScriptedEngine

FAILED = b'{"error": {"message": "CUDA error: an illegal memory access was encountered"}}'


def request(text: str = "hello", *, streamed: bool = False) -> bytes:
    """The body of a chat."""
    return json.dumps({"model": MODEL, "stream": streamed, "messages": [{"role": "user", "content": text}]}).encode()


def fails(status: int, *, chunked: bool = False, when: Callable[[bytes], bool] = lambda body: True) -> Script:
    """An engine that responds with `status` to the requests that `when` selects, and serves the others."""

    async def script(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        if when(received.body):
            head = b"HTTP/1.1 %d Failed\r\nContent-Type: application/json\r\nX-Engine: a\r\n" % status
            head += b"X-Penstock-Engine-Failed: 1\r\n"
            if chunked:
                writer.write(head + b"Transfer-Encoding: chunked\r\n\r\n" + chunk(FAILED) + b"0\r\n\r\n")
            else:
                writer.write(head + b"Content-Length: %d\r\n\r\n%b" % (len(FAILED), FAILED))
        elif b'"stream": true' in received.body:
            writer.write(SSE_HEAD + chunk(b"data: x\n\n") + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        else:
            writer.write(JSON_ANSWER)

    return script


SERVES = fails(500, when=lambda body: False)


def ejected(agent: Agent) -> int:
    """The number of ejected endpoints."""
    return sum(endpoint.ejection.is_ejected for endpoint in agent.endpoints.every())
