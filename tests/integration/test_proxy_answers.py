"""What every answer of an agent has, and what no answer has."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from regional_agent.http.limits import Limits
from regional_agent.http.listener import Listener
from regional_agent.upstream.address import Address
from tests.support.agents import admin_service, running_agent
from tests.support.chats import BODY, CHAT, JSON_ANSWER, SSE_HEAD, answers, as_own, ask, chunk
from tests.support.planet import plan
from tests.support.sockets import RawClient, ReceivedRequest, ScriptedEngine, engine, post
from tests.support.tunnels import UPGRADE, echoing

GET = b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n"

ANSWERED = [
    (post(BODY), 200),
    (post(BODY, path="/v1/nothing"), 404),
    (post(BODY, path="/v1/files"), 501),
    (post(b"{"), 400),
    (post(BODY, "Authorization: Bearer nobody"), 401),
    (GET % b"/v1/chat/completions", 405),
    (GET % b"/v1/realtime", 426),
    (GET % b"/v1/models", 200),
    (GET % b"/v1/models/none", 404),
    (GET % b"/livez", 200),
    (GET % b"/readyz", 200),
    (CHAT + b"Content-Length: 9999999999\r\n\r\n", 413),
    (CHAT + b"Content-Length: 50000\r\nExpect: other\r\n\r\n", 400),
    (CHAT + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
    (b"OPTIONS /v1/models HTTP/1.1\r\nHost: a\r\n\r\n", 404),
    (b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    (b"HEAD /livez HTTP/1.0\r\n\r\n", 200),
    (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
    (b"nonsense\r\n\r\n", 400),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
]


@pytest.mark.parametrize(("request_bytes", "status"), ANSWERED)
async def test_every_answer_has_a_request_id(tmp_path: Path, request_bytes: bytes, status: int) -> None:
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(request_bytes)
        found, headers = await client.head()
        assert found == status
        assert len(headers["x-request-id"]) == 32


@pytest.mark.parametrize("request_bytes", [request for request, _ in ANSWERED if b" HTTP/1." in request])
async def test_an_answer_has_the_request_id_of_its_request(tmp_path: Path, request_bytes: bytes) -> None:
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        client = await RawClient.connect(agent.traffic)
        line, _, rest = request_bytes.partition(b"\r\n")
        client.send(line + b"\r\nX-Request-Id: mine-1\r\n" + rest)
        assert (await client.head())[1]["x-request-id"] == "mine-1"


async def test_tunnels_and_connections_over_the_limit_have_request_ids(tmp_path: Path) -> None:
    limits = Limits(max_connections=1)
    async with echoing() as (address, _), running_agent(tmp_path, [address], limits=limits) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(UPGRADE + b"X-Request-Id: mine-1\r\n\r\n")
        assert (await client.head())[1]["x-request-id"] == "mine-1"
        second = await RawClient.connect(agent.traffic)
        status, headers = await second.head()
        assert (status, len(headers["x-request-id"])) == (429, 32)


async def test_a_forwarded_request_keeps_its_request_id(tmp_path: Path) -> None:
    away = plan("eu-de", "eu-de+eu-es+us-east", eu_es=1.0)
    async with (
        engine(answers) as gpu,
        running_agent(tmp_path / "es", [gpu.address], region="eu-es") as server,
        running_agent(tmp_path / "de", [], plan=away, peers={"eu-es": server.peer}) as agent,
    ):
        client = await RawClient.connect(agent.traffic)
        client.send(post(BODY, "X-Request-Id: mine-1"))
        assert (await client.answer()).headers["x-request-id"] == "mine-1"
        assert gpu.requests[0].header("x-request-id") == "mine-1"
        stranger = await RawClient.connect(server.peer)
        stranger.send(GET % b"/v1/probe")
        assert len((await stranger.answer()).headers["x-request-id"]) == 32


async def test_a_retry_after_the_loss_of_its_agent_learns_that_its_answer_is_new(tmp_path: Path) -> None:
    """The agent that the client was connected to is killed within the answer; the client repeats the request."""
    started = asyncio.Event()

    async def one_after_the_other(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        if e.requests[0] is received:
            writer.write(SSE_HEAD + chunk(b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'))
            started.set()
            return
        # An engine's own claim is not about the fleet.
        writer.write(JSON_ANSWER.replace(b"\r\n", b"\r\nIdempotent-Replayed: true\r\n", 1))

    away = plan("eu-de", "eu-de+eu-es+us-east", eu_es=1.0)
    async with (
        engine(one_after_the_other) as gpu,
        running_agent(tmp_path / "es", [gpu.address], region="eu-es") as server,
        running_agent(tmp_path / "two", [], plan=away, peers={"eu-es": server.peer}) as left,
    ):
        key = "Idempotency-Key: turn-7"
        async with running_agent(tmp_path / "one", [], plan=away, peers={"eu-es": server.peer}) as lost:
            client = await RawClient.connect(lost.traffic)
            client.send(post(BODY, key))
            await started.wait()
            assert (await client.head())[1]["idempotent-replayed"] == "false"
        client.close()
        retry = await RawClient.connect(left.traffic)
        retry.send(post(BODY, key))
        head = (await retry.reader.readuntil(b"\r\n\r\n")).lower()
        assert head.startswith(b"http/1.1 200 ")
        assert re.findall(b"idempotent-replayed: (.*)\r", head) == [b"false"]
        retry.close()
        assert "idempotent-replayed" not in (await ask(left)).headers


@pytest.mark.parametrize("path", [b"/livez", b"/readyz", b"/metrics", b"/status", b"/explain?model=none", b"/none"])
async def test_the_admin_listener_has_request_ids(tmp_path: Path, path: bytes) -> None:
    async with running_agent(tmp_path, []) as agent:
        listener = Listener(admin_service(agent), Limits(idle_linger_s=0.0))
        address = Address(*await listener.start("127.0.0.1", 0))
        client = await RawClient.connect(address)
        client.send(GET.replace(b"Host", b"X-Request-Id: mine-1\r\nHost") % path)
        assert (await client.answer()).headers["x-request-id"] == "mine-1"
        client.send(GET % path)
        assert len((await client.answer()).headers["x-request-id"]) == 32
        client.close()
        listener.stop_accepting()
        await listener.drain(0.0)


async def test_no_answer_has_the_address_of_an_engine(tmp_path: Path) -> None:
    async def redirects(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        path = received.head.split()[1].decode()
        own = f"http://{e.address}{path}/"
        writer.write(
            f"HTTP/1.1 307 Temporary Redirect\r\nLocation: {own}\r\nContent-Location: {own}\r\n"
            f'Link: <{own}>; rel="next"\r\nAlt-Svc: h3=":{e.address.port}"\r\nContent-Length: 0\r\n\r\n'.encode()
        )

    away = plan("eu-de", "eu-de+eu-es+us-east", eu_es=1.0)
    async with (
        engine(redirects) as gpu,
        running_agent(tmp_path / "es", [gpu.address], region="eu-es") as server,
        running_agent(tmp_path / "de", [], plan=away, peers={"eu-es": server.peer}) as agent,
    ):
        for each in (server, agent):
            as_own(each)
        for address in (server.traffic, agent.traffic):
            client = await RawClient.connect(address)
            for _ in range(3):
                client.send(post(BODY))
                status, headers = await client.head()
                assert (status, headers["location"]) == (307, "/v1/chat/completions/")
                assert headers["content-location"] == "/v1/chat/completions/"
                assert str(gpu.address.port) not in str(headers)


async def test_an_upgrade_has_no_address_of_an_engine(tmp_path: Path) -> None:
    async def switches(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(
            f"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            f"Location: http://{e.address}/a\r\n\r\n".encode()
        )

    async with engine(switches) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(UPGRADE + b"\r\n")
        status, headers = await client.head()
        assert (status, headers["location"]) == (101, "/a")


@pytest.mark.parametrize(
    "request_bytes",
    [
        post(BODY, path="/v1/files"),
        post(BODY, path="/v1/nothing"),
        post(b'{"model": "none"}'),
        post(b"{"),
        post(BODY, "Via: 1.1 agent-1.eu-de.test"),
        b"nonsense\r\n\r\n",
    ],
)
async def test_a_request_that_cannot_succeed_is_not_retried(tmp_path: Path, request_bytes: bytes) -> None:
    async with running_agent(tmp_path, []) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(request_bytes)
        answer = await client.answer()
        assert answer.headers["x-should-retry"] == "false"
        assert "retry-after" not in answer.headers


async def test_a_request_that_can_succeed_later_is_retried(tmp_path: Path) -> None:
    async with running_agent(tmp_path, []) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(post(BODY))
        answer = await client.answer()
        assert (answer.status, answer.headers["x-should-retry"]) == (503, "true")
        assert 0 < int(answer.headers["retry-after"]) <= 60
