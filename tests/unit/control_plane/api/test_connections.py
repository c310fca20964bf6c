"""Connections to the HTTP API are bounded in number, memory and time before authentication."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from control_plane.api.client_connections import MAX_HEAD_BYTES, BoundedConnection
from control_plane.serve import Server
from tests.support.wait import PATIENCE_S

REQUEST = b"GET / HTTP/1.1\r\nhost: north\r\n\r\n"
CHUNKED = b"POST /headers HTTP/1.1\r\nhost: north\r\nexpect: 100-continue\r\ntransfer-encoding: chunked\r\n\r\n"


class Hasty(BoundedConnection):
    """A server with short timeouts."""

    io_timeout_s = 0.2
    max_connections = 4


class Served:
    """A server, and the state of a response without an end."""

    def __init__(self) -> None:
        self.port = 0
        self.left = asyncio.Event()

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/headers":
            while (await receive()).get("more_body", False):
                pass
            await send({"type": "http.response.start", "status": 200, "headers": []})
            names = b", ".join(name for name, _ in scope["headers"])
            await send({"type": "http.response.body", "body": names, "more_body": False})
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if scope["path"] == "/endless":
            leaving = asyncio.create_task(self._left(receive))
            while not leaving.done():
                await send({"type": "http.response.body", "body": b"x" * 2**20, "more_body": True})
        await send({"type": "http.response.body", "body": b"here", "more_body": False})

    async def _left(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.left.set()

    async def connect(self, sent: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(sent)
        return reader, writer


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    served = Served()
    listener = socket.create_server(("127.0.0.1", 0))
    served.port = listener.getsockname()[1]
    config = uvicorn.Config(
        served.app,
        http=Hasty,
        ws="none",
        lifespan="off",
        log_config=None,
        interface="asgi3",
        proxy_headers=False,
        timeout_graceful_shutdown=1,
    )
    server = Server(config)
    serving = asyncio.create_task(server.serve([listener]))
    yield served
    server.should_exit = True
    await serving


async def ended(reader: asyncio.StreamReader) -> bytes:
    """Return the bytes received until the server closed the connection."""
    came = bytearray()
    try:
        async with asyncio.timeout(PATIENCE_S):
            while some := await reader.read(2**16):
                came += some
    except ConnectionResetError:
        pass
    return bytes(came)


async def test_a_request_is_answered(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hasty, "io_timeout_s", PATIENCE_S)
    reader, writer = await served.connect(REQUEST)
    assert (await reader.readuntil(b"0\r\n\r\n")).startswith(b"HTTP/1.1 200 OK\r\n")
    writer.write(REQUEST)
    assert b"here" in await reader.readuntil(b"0\r\n\r\n")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET / HTTP/1.1\r\nx: " + b"a" * MAX_HEAD_BYTES, 431),
        (b"GET /" + b"a" * MAX_HEAD_BYTES, 431),
        (b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * (MAX_HEAD_BYTES // 6), 431),
        (b"GET / HTTP/1.1\r\nx: " + b"a" * MAX_HEAD_BYTES + b"\r\n\r\n", 431),
        (b"not a method / HTTP/1.1\r\n\r\n", 400),
    ],
)
async def test_invalid_http_is_refused_with_a_problem_response(
    served: Served, sent: bytes, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Hasty, "io_timeout_s", PATIENCE_S)
    reader, _ = await served.connect(sent)
    head, _, body = (await ended(reader)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert b"content-type: application/problem+json" in head
    assert json.loads(body)["status"] == status


async def test_trailers_are_no_headers(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hasty, "io_timeout_s", PATIENCE_S)
    reader, writer = await served.connect(CHUNKED + b"1\r\na\r\n0\r\nx-forwarded-for: 192.0.2.1\r\n\r\n")
    assert b"host, expect, transfer-encoding\r\n" in await reader.readuntil(b"\r\n0\r\n\r\n")
    writer.write(REQUEST)
    assert b"here" in await reader.readuntil(b"\r\n0\r\n\r\n")


async def test_trailers_that_are_too_large_are_refused(served: Served) -> None:
    reader, writer = await served.connect(CHUNKED + b"1\r\na\r\n0\r\nx: ")
    # The server has read the start of the trailers.
    await reader.readuntil(b"100 Continue\r\n\r\n")
    writer.write(b"a" * (MAX_HEAD_BYTES + 1))
    assert (await ended(reader)).startswith(b"HTTP/1.1 431 ")


async def test_chunks_of_a_body_are_not_counted_as_trailers(served: Served) -> None:
    reader, writer = await served.connect(CHUNKED + b"%x\r\n" % (2 * MAX_HEAD_BYTES))
    await reader.readuntil(b"100 Continue\r\n\r\n")
    writer.write(b"a" * (2 * MAX_HEAD_BYTES) + b"\r\n0\r\n\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET / HT", REQUEST[:-2], REQUEST + b"\r\n", b"POST / HTTP/1.1\r\nhost: n\r\ncontent-length: 9\r\n\r\na"],
)
async def test_a_slow_request_head_is_closed(served: Served, sent: bytes) -> None:
    reader, _ = await served.connect(sent)
    await ended(reader)


async def test_a_client_that_never_reads_is_disconnected(served: Served) -> None:
    _, writer = await served.connect(b"GET /endless HTTP/1.1\r\nhost: north\r\n\r\n")
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    async with asyncio.timeout(PATIENCE_S):
        await served.left.wait()


async def test_idle_connections_make_room_for_new_ones(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hasty, "io_timeout_s", PATIENCE_S)
    idle = [await served.connect() for _ in range(Hasty.max_connections)]
    for _ in range(2):
        reader, _ = await served.connect(REQUEST)
        assert b"here" in await reader.readuntil(b"0\r\n\r\n")
    for reader, _ in idle[:2]:
        assert await ended(reader) == b""
