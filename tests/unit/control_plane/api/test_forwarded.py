"""The client address is the nearest one that is not a trusted proxy, over any number of header lines."""

from __future__ import annotations

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from control_plane.api.serving.forwarded_for import behind_proxies

TRUSTED = ["10.0.0.0/8"]


async def client_of(scope: Scope, receive: Receive, send: Send) -> None:
    client = Request(scope).client
    await PlainTextResponse(client.host if client is not None else "nobody")(scope, receive, send)


async def seen(peer: str, *lines: str, trusted: list[str] = TRUSTED) -> str:
    transport = httpx.ASGITransport(behind_proxies(client_of, trusted), client=(peer, 1234))
    async with httpx.AsyncClient(transport=transport, base_url="http://north") as http:
        response = await http.get("/", headers=[("x-forwarded-for", line) for line in lines])
    return response.text


@pytest.mark.parametrize(
    "lines",
    [
        ["192.0.2.7"],
        ["192.0.2.7, 10.0.0.2"],
        ["192.0.2.7", "10.0.0.2"],
        ["198.51.100.1, 192.0.2.7", "10.0.0.2"],
        ["198.51.100.1", "192.0.2.7", "10.0.0.2, 10.0.0.3"],
    ],
)
async def test_the_last_untrusted_address_is_the_client(lines: list[str]) -> None:
    assert await seen("10.0.0.1", *lines) == "192.0.2.7"


async def test_headers_of_other_senders_are_ignored() -> None:
    assert await seen("192.0.2.9", "198.51.100.1", "198.51.100.2") == "192.0.2.9"
    assert await seen("10.0.0.1", "192.0.2.7", trusted=[]) == "10.0.0.1"
    assert await seen("10.0.0.1") == "10.0.0.1"
