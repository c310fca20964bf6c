"""Clients and engines can use bounded memory and time of an agent; a request beyond a bound gets a clear error."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from regional_agent.http.client_connection import ClientConnection
from regional_agent.http.limits import Limits
from regional_agent.http.listener_state import ListenerState
from tests.support.agents import MAX_BODY_BYTES, Agent, running_agent
from tests.support.chats import (
    ANSWER,
    BODY,
    CHAT,
    SSE_HEAD,
    answers,
    answers_after,
    as_own,
    ask,
    chunk,
    code,
    never_responds,
    streams_forever,
)
from tests.support.planet import MODEL
from tests.support.sockets import RawClient, ReceivedRequest, ScriptedEngine, engine, post
from tests.support.uploads import upload_head
from tests.support.wait import PATIENCE_S, until


def limits(**changed: float | None) -> Limits:
    return Limits(**{"max_body_bytes": MAX_BODY_BYTES, "idle_linger_s": 0.0, **changed})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("said", "bound"),
    [
        (b"POST /v1/chat/comp", {"head_timeout_s": 0.2}),
        (CHAT + b"Content-Le", {"head_timeout_s": 0.2}),
        (CHAT + b"Content-Length: 50\r\n\r\n{", {"body_timeout_s": 0.2}),
    ],
)
async def test_an_incomplete_request_times_out(tmp_path: Path, said: bytes, bound: dict[str, float]) -> None:
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address], limits=limits(**bound)) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(said)
        status, _, body = await client.answer()
        assert (status, code(body)) == (408, "request_timeout")
        assert await client.closed()


async def only(connections: set[ClientConnection]) -> ClientConnection:
    """Wait for the only connection of a listener."""
    await until(lambda: len(connections) == 1)
    return next(iter(connections))


async def comes(connection: ClientConnection, body_bytes: int) -> None:
    """Wait until `body_bytes` of a body have arrived."""

    def received() -> bool:
        request = connection.sequencer.receiving
        return request is not None and request.received_bytes == body_bytes

    await until(received)


class LaterClock:
    """The clock of a listener, which a test advances."""

    def __init__(self, state: ListenerState) -> None:
        self._loop, self.later_s = asyncio.get_running_loop(), 0.0
        state.clock = self

    def __call__(self) -> float:
        return self._loop.time() + self.later_s


async def test_a_slow_body_is_accepted_above_the_minimum_rate(tmp_path: Path) -> None:
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address], limits=limits()) as agent:
        clock = LaterClock(agent.listener.state)
        client = await RawClient.connect(agent.traffic)
        body = json.dumps({"model": json.loads(BODY)["model"], "messages": ["x" * 60_000]}).encode()
        head, _, _ = post(body).partition(body)
        client.send(head)
        for at in range(0, len(body), 16_000):
            client.send(body[at : at + 16_000])
            if at + 16_000 < len(body):
                connection = await only(agent.listener.connections)
                await comes(connection, at + 16_000)
                clock.later_s += 15.0
                connection.check_timeouts(clock())
        assert (await client.answer()).status == 200


@pytest.mark.parametrize("media", ["Content-Type: audio/wav", "Content-Type: application/json"])
async def test_an_upload_that_stops_times_out(tmp_path: Path, media: str) -> None:
    async with (
        engine(answers) as gpu,
        running_agent(tmp_path, [gpu.address], limits=Limits(idle_linger_s=0.0)) as agent,
    ):
        clock = LaterClock(agent.listener.state)
        client = await RawClient.connect(agent.traffic)
        client.send(upload_head(900_000, media, f"X-Model: {MODEL}") + b"x" * 800_000)
        connection = await only(agent.listener.connections)
        await comes(connection, 800_000)
        connection.check_timeouts(clock())
        clock.later_s = 19.0
        connection.check_timeouts(clock())
        client.send(b"x")
        await comes(connection, 800_001)
        connection.check_timeouts(clock())
        assert agent.held() == ("audio" in media), "it goes on, and the engine of an upload has begun"
        clock.later_s = 21.0
        connection.check_timeouts(clock())
        assert (await client.answer()).status == 408
        assert await client.closed()
        await until(lambda: agent.held() == 0 and agent.listener.state.bodies.bytes_kept == 0)


async def test_a_slow_upload_does_not_hold_body_memory(tmp_path: Path) -> None:
    async with (
        engine(answers) as gpu,
        running_agent(tmp_path, [gpu.address], limits=Limits(idle_linger_s=0.0)) as agent,
    ):
        clock = LaterClock(agent.listener.state)
        client = await RawClient.connect(agent.traffic)
        client.send(upload_head(2_000_000, path="/v1/chat/completions"))
        connection = await only(agent.listener.connections)
        said = 0
        while clock.later_s < 585.0:
            clock.later_s += 15.0
            client.send(b" " * 20_000)
            said += 20_000
            await comes(connection, said)
            connection.check_timeouts(clock())
        clock.later_s += 15.0
        connection.check_timeouts(clock())
        assert (await client.answer()).status == 408
        await until(lambda: agent.listener.state.bodies.bytes_kept == 0)


async def test_an_idle_connection_is_closed(tmp_path: Path) -> None:
    async with (
        engine(answers) as gpu,
        running_agent(tmp_path, [gpu.address], limits=limits(idle_timeout_s=1.0)) as agent,
    ):
        assert await (await RawClient.connect(agent.traffic)).closed()
        client = await RawClient.connect(agent.traffic)
        client.send(post(BODY))
        assert (await client.answer()).status == 200
        assert await client.closed()
        await until(lambda: not agent.listener.connections)


async def test_a_client_that_stops_reading_is_disconnected(tmp_path: Path) -> None:
    async def floods(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD)
        while True:
            writer.write(chunk(b"x" * 65536))
            await writer.drain()

    async with (
        engine(floods) as gpu,
        running_agent(tmp_path, [gpu.address], limits=limits(write_stall_timeout_s=0.3)) as agent,
    ):
        client = await RawClient.connect(agent.traffic)
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.send(post(BODY))
        await until(lambda: agent.held() == 1)
        await until(lambda: agent.held() == 0)
        assert agent.counted() == {"client_left": 1}
        assert not agent.listener.connections


async def test_connections_are_limited_by_address_and_in_total(tmp_path: Path) -> None:
    few = limits(max_connections_per_address=2)
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address], limits=few) as agent:
        allowed = [await RawClient.connect(agent.traffic) for _ in range(2)]
        await until(lambda: len(agent.listener.connections) == 2)
        third = await RawClient.connect(agent.traffic)
        status, headers, body = await third.answer()
        assert (status, code(body)) == (429, "too_many_connections")
        assert "retry-after" in headers
        assert await third.closed()
        allowed[0].close()
        await until(lambda: len(agent.listener.connections) == 1)
        fourth = await RawClient.connect(agent.traffic)
        fourth.send(post(BODY))
        assert (await fourth.answer()).status == 200
    total = limits(max_connections=1, max_connections_per_address=1)
    async with (
        engine(answers) as gpu,
        running_agent(tmp_path / "b", [gpu.address], limits=total, trusted=True) as agent,
    ):
        first = await RawClient.connect(agent.traffic)
        await until(lambda: len(agent.listener.connections) == 1)
        assert (await (await RawClient.connect(agent.traffic)).answer()).status == 429, (
            "a trusted proxy counts here too"
        )
        first.close()


async def test_an_address_that_sends_too_many_requests_is_cut_and_others_are_served(tmp_path: Path) -> None:
    few = limits(max_request_rate_per_address=1.0)
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address], limits=few) as agent:
        flood, idle = await RawClient.connect(agent.traffic), await RawClient.connect(agent.traffic)
        flood.send(b"GET /livez HTTP/1.1\r\nhost: a\r\n\r\n" * 20)
        for _ in range(20):
            assert (await flood.answer()).status == 200
        for client in (flood, idle):
            status, headers, body = await client.answer()
            assert (status, code(body)) == (429, "too_many_requests")
            assert "retry-after" in headers
            assert await client.closed()
        assert await (await RawClient.connect(agent.traffic)).closed(), "until the rate permits a request"
        host, port, *_ = agent.traffic
        elsewhere = RawClient(*await asyncio.open_connection(host, port, local_addr=("127.0.0.2", 0)))
        elsewhere.send(post(BODY))
        assert (await elsewhere.answer()).status == 200
        assert agent.listener.counts.refused["request_rate"] == 3
    async with (
        engine(answers) as gpu,
        running_agent(tmp_path / "b", [gpu.address], limits=few, trusted=True) as agent,
    ):
        proxy = await RawClient.connect(agent.traffic)
        proxy.send(b"GET /livez HTTP/1.1\r\nhost: a\r\n\r\n" * 20)
        for _ in range(20):
            assert (await proxy.answer()).status == 200
        agent.listener.limit_requests(agent.listener.state.clock())
        proxy.send(post(BODY))
        assert (await proxy.answer()).status == 200, "a trusted proxy has the requests of many clients"


async def test_connections_are_limited_by_rate_and_by_prefix(tmp_path: Path) -> None:
    few = limits(max_connection_rate_per_address=0.2, max_connections_per_prefix=4, max_connections_per_address=4)
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address], limits=few) as agent:
        host, port, *_ = agent.traffic

        async def connect(source: str) -> RawClient:
            return RawClient(*await asyncio.open_connection(host, port, local_addr=(source, 0)))

        accepted = [await connect("127.0.0.1") for _ in range(2)]
        assert await (await connect("127.0.0.1")).closed(), "above the rate of its address"
        accepted += [await connect(f"127.0.0.{number}") for number in (2, 3)]
        await until(lambda: len(agent.listener.connections) == 4)
        assert (await (await connect("127.0.0.4")).answer()).status == 429, "its prefix has too many connections"
        other = await connect("127.0.1.1")
        other.send(post(BODY))
        assert (await other.answer()).status == 200
        refused = agent.listener.counts.refused
        assert (refused["connection_rate"], refused["prefix"]) == (1, 1)


async def test_one_address_cannot_use_all_connections(tmp_path: Path) -> None:
    async with (
        engine(answers) as gpu,
        running_agent(tmp_path, [gpu.address], limits=limits(max_connections=8)) as agent,
    ):
        clients = [await RawClient.connect(agent.traffic) for _ in range(3)]
        assert (await clients[2].answer()).status == 429
        clients[0].send(post(BODY))
        assert (await clients[0].answer()).status == 200


async def test_pipelining_is_bounded_and_still_answered_in_order(tmp_path: Path) -> None:
    async def numbers(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        name = received.header("x-request-id") or ""
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(name), name.encode()))

    async with engine(numbers) as gpu, running_agent(tmp_path, [gpu.address], limits=limits(max_pipelined=2)) as agent:
        client = await RawClient.connect(agent.traffic)
        as_own(agent)
        client.send(b"".join(post(BODY, f"X-Request-Id: r{n}") for n in range(60)))
        assert [(await client.answer()).body for _ in range(60)] == [f"r{n}".encode() for n in range(60)]


async def test_pipelining_is_bounded_within_one_read(tmp_path: Path) -> None:
    release = asyncio.Event()
    async with engine(answers_after(release)) as gpu, running_agent(tmp_path, [gpu.address], limits=limits()) as agent:
        client = await RawClient.connect(agent.traffic)
        small = b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n"
        client.send(post(BODY) + small * 2000 + post(BODY) * 200 + small * 2000)
        await until(lambda: bool(gpu.requests))
        (connection,) = agent.listener.connections
        await until(lambda: connection.sequencer.parser.has_more)
        assert len(connection.sequencer.waiting) <= Limits().max_pipelined
        release.set()
        assert (await client.answer()).status == 200
        for count, answer in ((2000, b"ok\n"), (200, ANSWER), (2000, b"ok\n")):
            for _ in range(count):
                assert (await client.answer()).body == answer
        client.send(small)
        assert (await client.answer()).body == b"ok\n"


async def test_large_pipelined_bodies_of_every_kind_are_answered_in_order(tmp_path: Path) -> None:
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        client = await RawClient.connect(agent.traffic)
        offer = b"GET /livez HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n"
        whole = BODY[:-1] + b" " * 50_000 + b"}"
        parts = [whole[at : at + 7_000] for at in range(0, len(whole), 7_000)]
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
        length = b"Content-Length: %d" % len(BODY)
        chunked = post(BODY)[: -len(BODY)].replace(length, b"Transfer-Encoding: chunked") + chunks
        for _ in range(3):
            client.send((offer + post(whole) + offer * 40 + chunked) * 3)
        for _ in range(9):
            bodies = [(await client.answer()).body for _ in range(43)]
            assert bodies == [b"ok\n", ANSWER, *[b"ok\n"] * 40, ANSWER]


async def deaf_client(agent: Agent) -> tuple[RawClient, ClientConnection]:
    """A client that reads nothing, and the agent's side of the connection."""
    client = await RawClient.connect(agent.traffic)
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await until(lambda: bool(agent.listener.connections))
    connection = next(iter(agent.listener.connections))
    return client, connection


def unsent_bytes(connection: ClientConnection) -> int:
    return connection.transport.connected.get_write_buffer_size()


async def answers_at_length(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n" + b"x" * 60_000)


async def test_responses_to_a_client_that_does_not_read_are_bounded(tmp_path: Path) -> None:
    patience_s = 2.0
    bounds = limits(first_byte_timeout_s=patience_s)
    async with engine(answers_at_length) as gpu, running_agent(tmp_path, [gpu.address], limits=bounds) as agent:
        as_own(agent)
        client, connection = await deaf_client(agent)
        client.send(post(BODY) * 120)
        await until(lambda: connection.transport.write_stalled_since is not None)
        await asyncio.sleep(2 * patience_s)
        assert unsent_bytes(connection) < 400_000
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        for _ in range(120):
            answer = await client.answer()
            assert (answer.status, len(answer.body)) == (200, 60_000), "what its client does not take is no fault of it"


async def test_refusals_to_a_client_that_does_not_read_are_bounded(tmp_path: Path) -> None:
    async with running_agent(tmp_path, []) as agent:
        client, connection = await deaf_client(agent)
        client.send(b"GET /nope HTTP/1.1\r\nHost: a\r\n\r\n" * 20_000)
        await until(lambda: connection.transport.write_stalled_since is not None)
        assert unsent_bytes(connection) < 200_000
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        for _ in range(20_000):
            assert (await client.answer()).status == 404


async def test_the_body_timeout_starts_after_an_earlier_response(tmp_path: Path) -> None:
    release = asyncio.Event()
    async with engine(answers_after(release)) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        loop, later_s = asyncio.get_running_loop(), 0.0
        agent.listener.state.clock = lambda: loop.time() + later_s
        client = await RawClient.connect(agent.traffic)
        client.send(post(BODY))
        await until(lambda: bool(gpu.requests))
        later_s = 100.0
        client.send(post(BODY)[:-5])
        connection = next(iter(agent.listener.connections))
        await until(lambda: connection.sequencer.receiving is not None)
        connection.check_timeouts(agent.listener.state.clock())
        release.set()
        assert (await client.answer()).status == 200
        client.send(BODY[-5:])
        assert (await client.answer()).status == 200


async def test_a_stalled_stream_ends_with_an_event_and_counts_against_its_engine(tmp_path: Path) -> None:
    bounds = limits(stall_timeout_s=1.0)
    async with engine(streams_forever) as gpu, running_agent(tmp_path, [gpu.address], limits=bounds) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(post(BODY))
        _, _, body = await client.answer()
        event = json.loads(body.partition(b"data: {")[2].join([b"{", b""]))
        assert event["error"]["code"] == "stream_stalled"
        async with asyncio.timeout(PATIENCE_S):
            await gpu.closed_by_client.wait()
        (endpoint,) = agent.endpoints.every()
        assert endpoint.ejection.failures == 1
        assert (agent.held(), agent.counted()) == (0, {"stalled": 1})


async def test_an_engine_that_never_begins_times_out(tmp_path: Path) -> None:
    bounds = limits(first_byte_timeout_s=0.2)
    async with (
        engine(never_responds) as gpu,
        engine(never_responds) as other,
        running_agent(tmp_path, [gpu.address, other.address], limits=bounds) as agent,
    ):
        client = await RawClient.connect(agent.traffic)
        client.send(post(BODY))
        status, _, body = await client.answer()
        assert (status, code(body)) == (504, "engine_timeout")
        assert len(gpu.requests) + len(other.requests) == 1, "it may have started, so it is not sent again"
        assert (agent.held(), agent.counted()) == (0, {"stalled": 1})


@pytest.mark.parametrize(
    ("bounds", "whole_s", "stream_s", "with_tools_s"),
    [
        ({}, 540.0, 300.0, 300.0),
        ({"request_timeout_s": 1000.0, "stall_timeout_s": 400.0}, 900.0, 300.0, 400.0),
        ({"first_byte_timeout_s": 90.0}, 90.0, 90.0, 90.0),
        ({"first_byte_timeout_s": 20.0}, 20.0, 20.0, 60.0),
    ],
)
async def test_a_whole_answer_may_take_most_of_the_time_of_its_request(
    tmp_path: Path, bounds: dict[str, float], whole_s: float, stream_s: float, with_tools_s: float
) -> None:
    """It ends before the deadline, for which no engine is charged."""
    async with running_agent(tmp_path, [], limits=limits(**bounds)) as agent:
        found, tools = agent.proxy.time_limits, agent.proxy.time_limits_with_tools
        assert found.first_byte_limit_s(streaming=False) == pytest.approx(whole_s)
        assert found.first_byte_limit_s(streaming=True) == stream_s
        assert (found.idle_s, tools.idle_s) == (bounds.get("stall_timeout_s", 60.0), with_tools_s)


async def test_a_clients_deadline_is_enforced_and_forwarded(tmp_path: Path) -> None:
    async with engine(never_responds) as gpu, running_agent(tmp_path, [gpu.address], limits=limits()) as agent:
        status, _, body = await ask(agent, "X-Request-Timeout-Ms: 1500")
        assert (status, code(body)) == (504, "deadline_passed")
        assert 0 < int(gpu.requests[0].header("x-request-timeout-ms") or "") <= 1500
        for bad in ("0", "-1", "soon", "1.5", "9999999999"):
            assert (await ask(agent, f"X-Request-Timeout-Ms: {bad}"))[0] == 400
    async with (
        engine(answers) as gpu,
        running_agent(tmp_path / "b", [gpu.address], limits=limits(request_timeout_s=5.0)) as agent,
    ):
        await ask(agent, "X-Request-Timeout-Ms: 999999999")
        assert int(gpu.requests[0].header("x-request-timeout-ms") or "") <= 5000, "within what is allowed here"


async def test_a_stream_past_its_deadline_ends_with_an_event(tmp_path: Path) -> None:
    async with engine(streams_forever) as gpu, running_agent(tmp_path, [gpu.address], limits=limits()) as agent:
        _, _, body = await ask(agent, "X-Request-Timeout-Ms: 1500")
        assert b'"code":"deadline_passed"' in body


async def test_retries_are_a_share_of_requests(tmp_path: Path) -> None:
    async def dies(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with engine(dies) as gpu, running_agent(tmp_path, [gpu.address], limits=limits()) as agent:
        while agent.proxy.retry_budget.withdraw(agent.proxy.clock()):
            pass
        status, _, body = await ask(agent)
        assert (status, code(body)) == (502, "engine_failed")
        assert b"the retry budget is used up" in body
        assert len(gpu.requests) == 1


@pytest.mark.parametrize("before", [b"", b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n"])
async def test_the_head_limit_applies_at_any_position(tmp_path: Path, before: bytes) -> None:
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address], limits=limits()) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(before + post(BODY, "X-Big: " + "x" * 70_000))
        if before:
            assert (await client.answer()).body == b"ok\n"
        assert (await client.answer()).status == 431
        assert not gpu.requests


async def test_a_number_of_any_length_in_a_body_leaks_no_reservation(tmp_path: Path) -> None:
    usage = b'{"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 9}}'

    async def script(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(usage), usage))

    async with engine(script) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        for digits, status in ((1, 200), (300, 200), (400, 400), (4000, 400)):
            body = b'{"model": "%b", "messages": [], "max_tokens": %b}' % (MODEL.encode(), b"9" * digits)
            assert (await ask(agent, body=body)).status == status
            assert agent.held() == 0
            assert not list(agent.proxy.active)
