"""Limits of requests whose response is streamed, so that it begins while the body is read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import pytest
from starlette.responses import StreamingResponse
from starlette.types import Message, Scope

from control_plane.api.authorisation import RouteRules
from control_plane.api.request_limits import RequestLimits


class NoBodies:
    """Rules by which no route takes a body."""

    def of(self, scope: Scope) -> None:
        return None


@pytest.mark.parametrize(("turns", "status", "response"), [(0, 413, b"the body is larger"), (3, 200, b"onetwo")])
async def test_a_body_beyond_the_limit_is_refused_or_ignored_and_cuts_no_response(
    turns: int, status: int, response: bytes
) -> None:
    """The body arrives after some turns of the event loop: before or after the response has begun."""
    sent: list[Message] = []

    async def receive() -> Message:
        for _ in range(turns):
            await asyncio.sleep(0)
        return {"type": "http.request", "body": b"x" * 1000, "more_body": True}

    async def send(message: Message) -> None:
        sent.append(message)
        await asyncio.sleep(0)

    async def parts() -> AsyncIterator[bytes]:
        yield b"one"
        yield b"two"

    scope: Scope = {"type": "http", "query_string": b"", "asgi": {"spec_version": "2.3"}, "method": "GET"}
    await RequestLimits(StreamingResponse(parts()), cast(RouteRules, NoBodies()))(scope, receive, send)
    assert [message["status"] for message in sent if "status" in message] == [status]
    assert response in b"".join(message.get("body", b"") for message in sent)
