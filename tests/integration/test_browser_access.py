"""Cross-origin requests of browsers: the policy names the origins, whose pages may read every response."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.support.agents import Agent, running_agent
from tests.support.chats import BODY, SSE_HEAD, answers, chunk, code
from tests.support.planet import plan
from tests.support.sockets import Answer, RawClient, ReceivedRequest, ScriptedEngine, engine, post
from tests.support.tunnels import UPGRADE, echoing

PAGE = "https://app.example"
ORIGIN = f"Origin: {PAGE}"
PREFLIGHT = (
    f"OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: a\r\n{ORIGIN}\r\nAccess-Control-Request-Method: POST\r\n"
    "Access-Control-Request-Headers: authorization,content-type,x-stainless-lang\r\n\r\n"
).encode()


def permit(agent: Agent, *origins: str) -> None:
    agent.config.policy = replace(agent.config.policy, cors_origins=frozenset(origins))


async def send(agent: Agent, request: bytes) -> Answer:
    client = await RawClient.connect(agent.traffic)
    client.send(request)
    answer = await client.answer()
    client.close()
    return answer


def permissions(answer: Answer) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name.startswith("access-control-")}


async def engine_with_its_own(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    """Permits every origin, as vLLM does by default."""
    writer.write(
        b"HTTP/1.1 200 OK\r\nAccess-Control-Allow-Origin: *\r\nAccess-Control-Allow-Credentials: true\r\n"
        b"Access-Control-Expose-Headers: x\r\nContent-Length: 15\r\n\r\n"
        b'{"choices": []}'
    )


async def test_no_page_may_read_by_default(tmp_path: Path) -> None:
    async with engine(engine_with_its_own) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        answer = await send(agent, post(BODY, ORIGIN))
        assert (answer.status, permissions(answer)) == (200, {})
        assert gpu.requests[0].header("origin") == PAGE
        answer = await send(agent, PREFLIGHT)
        assert (answer.status, permissions(answer)) == (405, {})


async def test_a_preflight_request_is_answered_by_the_agent(tmp_path: Path) -> None:
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address], anonymous=None) as agent:
        permit(agent, "https://other.example", PAGE)
        answer = await send(agent, PREFLIGHT)
        assert (answer.status, answer.body) == (200, b"")
        assert permissions(answer) == {
            "access-control-allow-origin": PAGE,
            "access-control-allow-methods": "POST",
            "access-control-allow-headers": "authorization,content-type,x-stainless-lang",
            "access-control-expose-headers": "*",
            "access-control-max-age": "600",
        }
        assert answer.headers["vary"] == "origin"
        assert len(answer.headers["x-request-id"]) == 32
        assert not gpu.requests
        for changed in (
            PREFLIGHT.replace(b"app.example", b"evil.example"),
            PREFLIGHT.replace(b"https", b"http"),
            PREFLIGHT.replace(b"app.example", b"app.example:8443"),
            PREFLIGHT.replace(b"app.example", b"app.example.evil"),
            PREFLIGHT.replace(ORIGIN.encode(), b"Origin: null"),
            PREFLIGHT.replace(b"Host: a", b"Host: a\r\n" + ORIGIN.encode()),
        ):
            answer = await send(agent, changed)
            assert (answer.status, permissions(answer), answer.headers["vary"]) == (405, {}, "origin")
        answer = await send(agent, PREFLIGHT.replace(b"authorization,", b"bad header\x01,"))
        assert "access-control-allow-headers" not in answer.headers
        answer = await send(agent, PREFLIGHT.replace(b"Access-Control-Request-Method: POST", b"X-None: 1"))
        assert answer.status == 405, "no preflight request"


READABLE = [
    (post(BODY, ORIGIN), 200),
    (post(BODY, ORIGIN, "Authorization: Bearer nobody"), 401),
    (post(b"{", ORIGIN), 400),
    (post(b'{"model": "none"}', ORIGIN), 404),
    (post(BODY, ORIGIN, path="/v1/nothing"), 404),
    (post(BODY, ORIGIN, path="/v1/files"), 501),
    (f"GET /v1/models HTTP/1.1\r\nHost: a\r\n{ORIGIN}\r\n\r\n".encode(), 200),
    (f"POST / HTTP/1.1\r\nHost: a\r\n{ORIGIN}\r\nContent-Length: 9999999999\r\n\r\n".encode(), 413),
    (f"POST / HTTP/1.1\r\nHost: a\r\n{ORIGIN}\r\nHost: b\r\n\r\n".encode(), 400),
]


@pytest.mark.parametrize(("request_bytes", "status"), READABLE)
async def test_a_permitted_page_may_read_every_response(tmp_path: Path, request_bytes: bytes, status: int) -> None:
    async with engine(engine_with_its_own) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        permit(agent, PAGE)
        answer = await send(agent, request_bytes)
        assert answer.status == status
        allowed = {"access-control-allow-origin": PAGE, "access-control-expose-headers": "*"}
        assert (permissions(answer), answer.headers["vary"]) == (allowed, "origin")
        if gpu.requests:
            assert gpu.requests[0].header("origin") is None
        for origins in ((), ("https://other.example",)):
            permit(agent, *origins)
            answer = await send(agent, request_bytes)
            assert (answer.status, permissions(answer)) == (status, {})
            assert answer.headers.get("vary") == ("origin" if origins else None)
            if gpu.requests:
                assert gpu.requests[-1].header("origin") == PAGE


async def test_every_page_may_read_with_a_wildcard(tmp_path: Path) -> None:
    async with engine(engine_with_its_own) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        permit(agent, "*")
        answer = await send(agent, post(BODY, "Origin: null"))
        assert permissions(answer) == {"access-control-allow-origin": "*", "access-control-expose-headers": "*"}
        assert "vary" not in answer.headers
        answer = await send(agent, post(BODY))
        assert permissions(answer) == {}, "no origin, no cross-origin request"


async def test_a_permitted_page_may_read_streams_and_refusals_of_other_regions(tmp_path: Path) -> None:
    async def streams(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + chunk(b"data: 1\n\n") + b"0\r\n\r\n")

    away = plan("eu-de", "eu-de+eu-es+us-east", eu_es=1.0)
    async with (
        engine(streams) as gpu,
        running_agent(tmp_path / "es", [gpu.address], region="eu-es") as server,
        running_agent(tmp_path / "de", [], plan=away, peers={"eu-es": server.peer}) as agent,
    ):
        permit(agent, PAGE)
        permit(server, PAGE)
        client = await RawClient.connect(agent.traffic)
        client.send(post(BODY, ORIGIN))
        status, headers = await client.head()
        assert (status, headers["access-control-allow-origin"]) == (200, PAGE)
        assert await client.chunk() == b"data: 1\n\n"
        agent.peers.addresses.clear()
        answer = await send(agent, post(BODY, ORIGIN))
        assert (answer.status, code(answer.body)) == (503, "none_ready")
        assert answer.headers["access-control-allow-origin"] == PAGE
        client.close()


async def test_a_websocket_of_a_permitted_page_has_no_origin_for_the_engine(tmp_path: Path) -> None:
    async with echoing() as (address, heads), running_agent(tmp_path, [address]) as agent:
        for origins, seen in (((), True), ((PAGE,), False)):
            permit(agent, *origins)
            client = await RawClient.connect(agent.traffic)
            client.send(UPGRADE + f"{ORIGIN}\r\n\r\n".encode())
            assert (await client.head())[0] == 101
            assert (PAGE.encode() in heads[-1]) is seen
            client.close()
