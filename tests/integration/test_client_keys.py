"""API keys of clients that stand where engines would receive them: in the query, or in other headers."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import pytest
from msgspec.structs import replace

from regional_agent.http.limits import Limits
from tests.support.agents import Agent, running_agent
from tests.support.chats import BODY, answers
from tests.support.planet import MODEL
from tests.support.sockets import RawClient, engine, post
from tests.support.tunnels import UPGRADE
from tests.support.websockets import websocket_engine

KEY = "sk-tenant-1-secret"
KEYED = f"Authorization: Bearer {KEY}"
CHATS = "/v1/chat/completions"


def require_key(agent: Agent) -> None:
    policy = agent.config.policy
    tenant = replace(policy.tenants["open"], key_digests=(sha256(KEY.encode()).hexdigest(),))
    agent.config.policy = replace(policy, tenants=policy.tenants | {"open": tenant}, anonymous_tenant=None)


@pytest.mark.parametrize(
    ("query", "forwarded"),
    [
        (f"?key={KEY}", ""),
        (f"?a=1&key={KEY}&b=2", "?a=1&b=2"),
        (f"?{KEY}&b=2", "?b=2"),
        ("?a=%73k-tenant-1-secret;b=2", "?b=2"),
        ("?api-key=another&API_KEY=another&Access_Token=another", ""),
        (f"?model={MODEL}&x-api-key=another", f"?model={MODEL}"),
        ("?a&&b=", "?a&&b="),
        ("?", "?"),
    ],
)
async def test_no_key_in_a_query_reaches_an_engine(tmp_path: Path, query: str, forwarded: str) -> None:
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        require_key(agent)
        client = await RawClient.connect(agent.traffic)
        for _ in range(2):  # the second one by its cached head
            client.send(post(BODY, KEYED, path=CHATS + query))
            assert (await client.answer()).status == 200
            received = gpu.requests.pop()
            assert received.head.split(b" ")[1].decode() == CHATS + forwarded
            assert KEY.encode() not in received.head


async def test_no_header_that_repeats_a_key_reaches_an_engine(tmp_path: Path) -> None:
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        require_key(agent)
        client = await RawClient.connect(agent.traffic)
        for _ in range(2):
            client.send(post(BODY, KEYED, f"Cookie: a=1; k={KEY}", f"X-Auth-Token: Bearer {KEY}", "X-Other: sk-other"))
            assert (await client.answer()).status == 200
            received = gpu.requests.pop()
            assert (received.header("cookie"), received.header("x-auth-token")) == (None, None)
            assert (received.header("x-other"), json.loads(received.body)) == ("sk-other", json.loads(BODY))


async def test_a_key_removes_no_header_that_decides(tmp_path: Path) -> None:
    body = b'{"model": "%b"%b}' % (MODEL.encode(), b" " * 10_000_000)
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address], limits=Limits(), trusted=True) as agent:
        require_key(agent)
        client = await RawClient.connect(agent.traffic)
        client.send(post(body, KEYED, f"X-API-Key: {len(body)}"))
        assert (await client.answer()).status == 200
        assert gpu.requests[0].body == body, "its length is that of Content-Length"
        client.send(post(BODY, KEYED, "X-API-Key: fleet.example", "X-Forwarded-Host: fleet.example"))
        assert (await client.answer()).status == 200
        assert gpu.requests[1].header("x-forwarded-host") == "fleet.example"


async def test_no_key_of_a_websocket_reaches_an_engine(tmp_path: Path) -> None:
    async with websocket_engine() as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        require_key(agent)
        client = await RawClient.connect(agent.traffic)
        offer = UPGRADE.replace(b" HTTP/", b"&key=%b HTTP/" % KEY.encode())
        protocols = f"Sec-WebSocket-Protocol: realtime, openai-insecure-api-key.{KEY}\r\nReferer: https://a/?{KEY}\r\n"
        client.send(offer + protocols.encode() + b"\r\n")
        assert (await client.head())[0] == 101
        assert KEY.encode() not in gpu.heads[0]
        assert b"sec-websocket-protocol: realtime\r\n" in gpu.heads[0]
