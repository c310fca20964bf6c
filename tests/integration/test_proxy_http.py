"""HTTP/1.1 on the wire: ambiguous messages are rejected, and end-to-end and hop-by-hop fields are treated as such."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from penstock.health.endpoint_health import ProbeOutcome
from penstock.health.region_health import RegionState
from penstock.routes.route import ModelLocation, ModelSource, Route
from regional_agent.requests.client_location import Locator
from tests.support.agents import Agent, running_agent
from tests.support.chats import ANSWER, BODY, CHAT, SSE_HEAD, answers, as_own, ask, chunk, code
from tests.support.codings import gzipped
from tests.support.planet import MODEL, plan
from tests.support.sockets import RawClient, ReceivedRequest, ScriptedEngine, engine, post
from tests.support.wait import until

CHUNKED = CHAT + b"Transfer-Encoding: chunked\r\n\r\n"
WHOLE = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)


@pytest.mark.parametrize(
    "said",
    [
        post(BODY, f"Content-Length: {len(BODY)}"),
        post(BODY, "Content-Length: 1"),
        CHAT + b"Content-Length: 3, 3\r\n\r\nabc",
        CHAT + b"Content-Length: +3\r\n\r\nabc",
        CHAT + b"Content-Length: 0x3\r\n\r\nabc",
        CHAT + b"Content-Length: -1\r\n\r\n",
        CHAT + b"Content-Length: 99999999999999999999\r\n\r\n",
        CHAT + b"Content-Length:\r\n\r\n",
        post(BODY, "Transfer-Encoding: chunked"),
        CHAT + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + WHOLE,
        CHAT + b"Transfer-Encoding: chunked, chunked\r\n\r\n" + WHOLE,
        CHAT + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n" + WHOLE,
        CHAT + b"Transfer-Encoding: xchunked\r\n\r\n" + WHOLE,
        CHAT + b"Transfer-Encoding: identity\r\n\r\n",
        CHAT + b"Transfer-Encoding : chunked\r\n\r\n" + WHOLE,
        CHAT + b"Transfer-Encoding:\x0bchunked\r\n\r\n" + WHOLE,
        CHAT.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n" + WHOLE,
        CHAT + b"X: a\r\n b\r\n\r\n",
        CHAT + b" X: a\r\n\r\n",
        CHAT + b"X: a\nY: b\r\n\r\n",
        CHAT + b"X: a\rY: b\r\n\r\n",
        CHAT + b"X: a\x00b\r\n\r\n",
        CHAT + b"X\x00: a\r\n\r\n",
        CHAT + b"X Y: a\r\n\r\n",
        CHAT + b": a\r\n\r\n",
        CHAT + b"X\r\n\r\n",
        CHAT.replace(b"\r\n", b"\n"),
        CHUNKED + b"0x3\r\nabc\r\n0\r\n\r\n",
        CHUNKED + b"-1\r\nabc\r\n0\r\n\r\n",
        CHUNKED + b"3 \r\nabc\r\n0\r\n\r\n",
        CHUNKED + b"3\nabc\r\n0\r\n\r\n",
        CHUNKED + b"3\r\nabcd\r\n0\r\n\r\n",
        CHUNKED + b"ffffffffffffffff1\r\nabc\r\n0\r\n\r\n",
        CHUNKED + b"1;" + b"x" * 300_000,
        CHUNKED + WHOLE[:-2] + b"Trailer : x\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
        CHAT + b"Host: b\r\n\r\n",
        CHAT.replace(b"Host: a", b"Host: a/b") + b"\r\n",
        CHAT.replace(b"Host: a", b"Host: a b") + b"\r\n",
        CHAT.replace(b"Host: a", b"Host: u@a") + b"\r\n",
        CHAT + b"Authorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n",
        post(BODY, "Connection: content-type"),
        post(BODY, "Connection: close, Authorization"),
        post(BODY, "Connection: keep-alive", "Connection: X-FORWARDED-FOR"),
        post(BODY, "Connection: keep-alive,,\tx-api-key ,"),
        post(BODY, "Connection: content-encoding"),
        post(BODY, "Connection: x-session-id"),
        post(BODY, "Connection: x-model"),
        post(BODY, "Connection: x-penstock-route"),
        post(BODY, "Connection: content-length"),
        post(BODY, "Connection: host"),
        CHAT.replace(b"POST ", b"POST  ") + b"\r\n",
        CHAT.replace(b" HTTP", b"  HTTP") + b"\r\n",
        CHAT.replace(b"POST ", b"POST    ") + b"X: POST /v1/chat/completions HTTP/1.1\r\n\r\n",
        CHAT.replace(b"/v1", b"v1") + b"\r\n",
        CHAT.replace(b"/v1", b"ftp://a/v1") + b"\r\n",
        CHAT.replace(b"completions", b"completions#x") + b"\r\n",
        CHAT.replace(b"1.1", b"2.0") + b"\r\n",
        CHAT.replace(b"1.1", b"1.2") + b"\r\n",
        CHAT.replace(b"POST", b"FETCH") + b"\r\n",
        b"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 64,
    ],
)
async def test_ambiguous_requests_are_refused_and_never_forwarded(tmp_path: Path, said: bytes) -> None:
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(said + post(BODY))
        status, _, body = await client.answer()
        assert (status, code(body)) == (400, "bad_request")
        assert await client.closed(), "where the next request begins is unknown"
        assert not gpu.requests
        assert (agent.held(), agent.listener.state.bodies.bytes_kept) == (0, 0)


async def test_a_pipelined_invalid_request_is_refused_in_order(tmp_path: Path) -> None:
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(post(BODY) + b"nonsense\r\n\r\n")
        assert (await client.answer()).body == ANSWER
        assert (await client.answer()).status == 400
        assert await client.closed()


@pytest.mark.parametrize("before", [post(BODY), CHUNKED + WHOLE, post(b" " * 9_000 + BODY), b"\r\n\r\n" + post(BODY)])
@pytest.mark.parametrize("size", [1 << 20, 4096, 61, 3])
async def test_spaces_of_a_request_line_are_counted_wherever_it_is(tmp_path: Path, before: bytes, size: int) -> None:
    line = b"GET  /livez HTTP/1.1\r\nHost: a\r\n\r\n"
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        client = await RawClient.connect(agent.traffic)
        await until(lambda: bool(agent.listener.connections))
        (connection,) = agent.listener.connections
        sent = before + line.replace(b"  ", b" ") + line
        for at in range(0, len(sent), size):
            connection.data_received(sent[at : at + size])
        assert (await client.answer()).body == ANSWER
        assert (await client.answer()).body == b"ok\n"
        assert (await client.answer()).status == 400
        assert await client.closed()


async def test_bytes_after_the_last_request_are_not_read(tmp_path: Path) -> None:
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(post(BODY, "Connection: close") + post(BODY))
        status, headers, _ = await client.answer()
        assert (status, headers["connection"]) == (200, "close")
        assert await client.closed()
        assert len(gpu.requests) == 1


async def test_trailers_are_not_forwarded(tmp_path: Path) -> None:
    async def with_trailers(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + chunk(b"data: 1\n\n") + b"0\r\nX-Secret: 1\r\nSet-Cookie: a=b\r\n\r\n")

    async with engine(with_trailers) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        client = await RawClient.connect(agent.traffic)
        for _ in range(2):
            client.send(CHUNKED + WHOLE[:-2] + b"X-Penstock-Route: forged\r\nAuthorization: Bearer x\r\n\r\n")
            assert (await client.answer()).body == b"data: 1\n\n"
        assert gpu.requests[1].body == BODY
        assert gpu.requests[1].header("x-penstock-route") is None


async def test_a_target_in_absolute_form_is_a_path_and_a_host(tmp_path: Path) -> None:
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(post(BODY, path="http://api.test:8080/v1/chat/completions?x=1"))
        assert (await client.answer()).status == 200
        assert gpu.requests[0].head.startswith(b"POST /v1/chat/completions?x=1 HTTP/1.1\r\n")
        assert gpu.requests[0].header("host") == str(gpu.address)
        assert gpu.requests[0].header("x-forwarded-host") == "api.test:8080"


async def test_head_is_get_without_a_body(tmp_path: Path) -> None:
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        client = await RawClient.connect(agent.traffic)
        for path in ("/v1/models", "/livez", "/readyz"):
            client.send(f"HEAD {path} HTTP/1.1\r\nHost: a\r\n\r\nGET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
            head_status, head = await client.head()
            answer = await client.answer()
            assert (head_status, head["content-length"]) == (answer.status, str(len(answer.body)))


async def test_an_agent_without_endpoints_is_ready_while_another_region_serves(tmp_path: Path) -> None:
    async def readiness(agent: Agent) -> tuple[int, bytes]:
        client = await RawClient.connect(agent.traffic)
        client.send(b"GET /readyz HTTP/1.1\r\nHost: a\r\n\r\n")
        answer = await client.answer()
        return answer.status, answer.body

    async with (
        engine(answers) as gpu,
        running_agent(tmp_path / "serving", [gpu.address]) as serving,
        running_agent(tmp_path / "entry", [], region="eu-es", peers={"eu-de": serving.peer}) as entry,
    ):
        assert await readiness(entry) == (200, b"ok\n")
        assert (await ask(entry)).status == 200
        entry.peers.states["eu-de"] = RegionState.FAILED
        assert await readiness(entry) == (503, b"not ready: there is no endpoint, and no other region serves\n")
        serving.peers.states["eu-es"] = RegionState.HEALTHY
        for _ in range(9):
            next(serving.endpoints.every()).probed(ProbeOutcome.UNREACHABLE)
        assert await readiness(serving) == (503, b"not ready: no endpoint is ready\n"), "clients may go elsewhere"


async def test_http_1_0_clients_get_no_chunked_responses(tmp_path: Path) -> None:
    async def streams(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + chunk(b"data: 1\n\n") + b"0\r\n\r\n")

    async with engine(streams) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(post(BODY).replace(b"HTTP/1.1", b"HTTP/1.0").replace(b"Host: test\r\n", b""))
        _, headers = await client.head()
        assert "transfer-encoding" not in headers
        assert await client.reader.read() == b"data: 1\n\n", "delimited by the close"


async def test_http_1_0_clients_receive_connection_keep_alive(tmp_path: Path) -> None:
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        client = await RawClient.connect(agent.traffic)
        for _ in range(2):
            client.send(post(BODY, "Connection: keep-alive").replace(b"HTTP/1.1", b"HTTP/1.0"))
            assert (await client.answer()).headers["connection"] == "keep-alive"
        client.send(b"GET /livez HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        assert (await client.answer()).headers["connection"] == "keep-alive"
        client.send(b"GET /livez HTTP/1.0\r\n\r\n")
        assert (await client.answer()).headers["connection"] == "close"
        assert await client.closed()


async def test_headers_are_forwarded_by_trust(tmp_path: Path) -> None:
    claims = (
        "X-Forwarded-For: 192.0.2.1",
        "X-Forwarded-Proto: https",
        "X-Forwarded-Host: api.test",
        "Forwarded: for=x",
    )
    for trusted, proto, host in ((False, "http", "test"), (True, "https", "api.test")):
        async with (
            engine(answers) as gpu,
            running_agent(tmp_path / str(trusted), [gpu.address], trusted=trusted) as agent,
        ):
            await ask(agent, *claims, "Forwarded: for=x", "Via: 1.0 edge", "X-Real-Ip: 192.0.2.1", "Accept: */*")
            received = gpu.requests[0]
            assert received.header("x-forwarded-proto") == proto
            assert received.header("x-forwarded-host") == host
            assert received.header("via") == "1.0 edge, 1.1 agent-1.eu-de.test"
            assert received.header("accept") == "*/*"
            for gone in ("x-forwarded-for", "forwarded", "x-real-ip"):
                assert received.header(gone) is None, gone


async def test_no_decision_reads_a_header_that_the_connection_header_names(tmp_path: Path) -> None:
    route = Route("by-header", "/by-header", model=(ModelLocation(ModelSource.HEADER, "x-which"),))
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        agent.config.policy = replace(agent.config.policy, routes=(route,))
        assert (await ask(agent, f"X-Which: {MODEL}", path="/by-header")).status == 200
        assert gpu.requests[0].header("x-which") == MODEL
        status, _, body = await ask(agent, f"X-Which: {MODEL}", "Connection: close, x-which", path="/by-header")
        assert (status, code(body)) == (400, "bad_request")
        named = (f"X-Which: {MODEL}", "X-Hop: 1", "X-Kept: 2", "Connection: te, X-Hop", "Te: trailers")
        assert (await ask(agent, *named, path="/by-header")).status == 200
        received = gpu.requests[1]
        assert (received.header("x-hop"), received.header("te"), received.header("x-kept")) == (None, None, "2")
        assert len(gpu.requests) == 2


async def test_a_compressed_body_passes_unchanged_where_the_path_names_the_model(tmp_path: Path) -> None:
    route = Route("generate", "/v2/models/{model}/generate", model=(ModelLocation(ModelSource.PATH, "model"),))
    body = gzipped(b'{"text_input": "x"}')
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        agent.config.policy = replace(agent.config.policy, routes=(route,))
        path = f"/v2/models/{MODEL}/generate"
        assert (await ask(agent, "Content-Encoding: gzip", body=body, path=path)).status == 200
        assert (gpu.requests[0].body, gpu.requests[0].header("content-encoding")) == (body, "gzip")


async def test_the_configured_location_header_is_not_hop_by_hop(tmp_path: Path) -> None:
    locator = Locator(None, [], "x-client-country")
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address], locator=locator) as agent:
        assert (await ask(agent, "X-Client-Country: DE", "Connection: X-Client-Country")).status == 400
        assert not gpu.requests


async def test_a_name_with_an_underscore_does_not_stand_for_a_header_that_decides(tmp_path: Path) -> None:
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        named = ("Content_Type: text/html", "X_Model: other", "Content_Encoding: gzip", "X_Mine: 1")
        assert (await ask(agent, "Content-Type: application/json", *named)).status == 200
        received = gpu.requests[0]
        assert received.header("content-type") == "application/json"
        assert [received.header(name) for name in ("content_type", "x_model", "content_encoding")] == [None] * 3
        assert received.header("x_mine") == "1"


async def test_a_forwarding_loop_is_refused(tmp_path: Path) -> None:
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        status, _, body = await ask(agent, "Via: 1.1 edge", "Via: 1.1 agent-1.eu-de.test, 1.1 x")
        assert (status, code(body)) == (508, "loop_detected")
        assert not gpu.requests


async def test_a_trace_is_continued_or_started(tmp_path: Path) -> None:
    theirs = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        await ask(agent, f"Traceparent: {theirs}", "Tracestate: a=1")
        assert gpu.requests[0].header("traceparent") == theirs
        assert gpu.requests[0].header("tracestate") == "a=1"
        _, headers, _ = await ask(agent)
        started = gpu.requests[1].header("traceparent") or ""
        assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-01", started)
        assert headers["x-request-id"] == gpu.requests[1].header("x-request-id") == started[3:35]
        await ask(agent, "Traceparent: 00-zero-zero-00", "Tracestate: a=1")
        assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-01", gpu.requests[2].header("traceparent") or "")
        assert gpu.requests[2].header("tracestate") is None, "it belonged to another trace"


async def test_a_request_id_is_unique_and_valid(tmp_path: Path) -> None:
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        for given in ("bad id", "x" * 200, "\x80"):
            _, headers, _ = await ask(agent, f"X-Request-Id: {given}")
            assert re.fullmatch("[0-9a-f]{32}", headers["x-request-id"])
            assert gpu.requests[-1].head.lower().count(b"x-request-id") == 1
        assert (await ask(agent, "X-Request-Id: mine"))[1]["x-request-id"] == "mine"


async def test_trace_host_and_budget_cross_the_peer_hop(tmp_path: Path) -> None:
    away = plan("eu-de", "eu-de+eu-es+us-east", eu_es=1.0)
    async with (
        engine(answers) as far,
        engine(answers) as near,
        running_agent(tmp_path / "server", [far.address], region="eu-es") as server,
        running_agent(tmp_path / "origin", [near.address], plan=away, peers={"eu-es": server.peer}) as origin,
    ):
        _, headers, _ = await ask(origin, "X-Request-Timeout-Ms: 5000")
        received = far.requests[0]
        assert received.header("x-request-id") == headers["x-request-id"]
        assert (received.header("traceparent") or "")[3:35] == headers["x-request-id"]
        assert received.header("x-forwarded-host") == "test"
        assert received.header("via") == "1.1 agent-1.eu-de.test, 1.1 agent-1.eu-es.test"
        assert 0 < int(received.header("x-request-timeout-ms") or "") <= 5000


@pytest.mark.parametrize(
    "garbage",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"\x00" * 64,
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nabc",
        b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX : a\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\nContent-Length: 0\n\n",
        b"HTTP/1.1 200 OK\r\nX: a\x00\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 999 Odd\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 000 Odd\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 100,
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1000 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 10_000_000,
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
    ],
)
async def test_an_engine_with_invalid_responses_is_skipped(tmp_path: Path, garbage: bytes) -> None:
    async def garbles(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(garbage)
        await writer.drain()
        await asyncio.Event().wait()

    async with (
        engine(garbles) as bad,
        engine(answers) as gpu,
        running_agent(tmp_path, [bad.address, gpu.address]) as agent,
    ):
        for _ in range(12):
            assert (await ask(agent))[0] == 200
        assert bad.requests
        assert agent.held() == 0


async def test_a_second_response_is_not_used_for_the_next_request(tmp_path: Path) -> None:
    async def twice(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        name = received.header("x-request-id") or ""
        mine = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(name), name.encode())
        writer.write(mine + b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged")

    async with engine(twice) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        as_own(agent)
        client = await RawClient.connect(agent.traffic)
        client.send(b"".join(post(BODY, f"X-Request-Id: r{n}") for n in range(10)))
        assert [(await client.answer()).body for _ in range(10)] == [f"r{n}".encode() for n in range(10)]


async def test_responses_without_a_body_are_relayed_so(tmp_path: Path) -> None:
    async def bare(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        status = (received.header("x-status") or "").encode()
        writer.write(b"HTTP/1.1 %b X\r\n%b\r\n" % (status, b"" if status == b"204" else b"Content-Length: 7\r\n"))

    async with engine(bare) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        as_own(agent)
        client = await RawClient.connect(agent.traffic)
        for status in (204, 304, 204):
            client.send(post(BODY, f"X-Status: {status}"))
            answered, headers = await client.head()
            assert answered == status
            assert "transfer-encoding" not in headers
        client.send(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await client.answer()).body == b"ok\n"


@pytest.mark.parametrize("headers", [b"", b"X: y\r\n", b"Connection: keep-alive\r\n"])
async def test_a_response_may_end_with_its_connection(tmp_path: Path, headers: bytes) -> None:
    async def closes(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n" + headers + b"\r\nhello")
        writer.close()

    async with engine(closes) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        as_own(agent)
        status, _, body = await ask(agent)
        assert (status, body) == (200, b"hello")
        assert agent.counted() == {"ok": 1}


async def test_only_requests_without_an_idle_connection_wait_for_one(tmp_path: Path) -> None:
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        for _ in range(3):
            assert (await ask(agent)).status == 200
        (endpoint,) = agent.endpoints.every()
        assert endpoint.traffic.connects.cumulative()[-1] == 1
