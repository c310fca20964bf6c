"""Connections to the HTTP API are bounded in number, memory and time before authentication."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from adapters.files.identity_files import CERTIFICATE, PRIVATE_KEY
from adapters.tls_contexts import ServerTls
from control_plane.api.serving.client_connections import MAX_HEAD_BYTES, MAX_PIPELINED, PARSED_BYTES, BoundedConnection
from control_plane.api.serving.http_server import HttpServer
from control_plane.api.serving.open_connections import STATE_KEY, OpenConnections
from penstock.admission.connection_limits import Standing, StandingLimits
from tests.support.identities import control_plane_id, write_identity
from tests.support.wait import PATIENCE_S

REQUEST = b"GET / HTTP/1.1\r\nhost: north\r\n\r\n"
CHUNKED = b"POST /headers HTTP/1.1\r\nhost: north\r\nexpect: 100-continue\r\ntransfer-encoding: chunked\r\n\r\n"


IO_TIMEOUT_S = 0.2
MAX_CONNECTIONS = 4
LIMITS = {standing: StandingLimits(MAX_CONNECTIONS, MAX_CONNECTIONS) for standing in Standing}


class Served:
    """A server, and the state of a response without an end."""

    def __init__(self) -> None:
        self.port = 0
        self.left = asyncio.Event()
        self.most_waiting = 0
        """Largest number of pipelined requests of a connection that were parsed and not begun."""
        self.protocols: Collection[object] = ()
        self.connections = OpenConnections(LIMITS, asyncio.get_running_loop().time)

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        for protocol in self.protocols:
            assert isinstance(protocol, BoundedConnection)
            self.most_waiting = max(self.most_waiting, len(protocol.pipeline))
        if scope["path"] == "/headers":
            while (await receive()).get("more_body", False):
                pass
            await send({"type": "http.response.start", "status": 200, "headers": []})
            names = b", ".join(name for name, _ in scope["headers"])
            await send({"type": "http.response.body", "body": names, "more_body": False})
            return
        if scope["path"] == "/slow":
            while (await receive()).get("more_body", False):
                pass
        if scope["path"] == "/agent":
            scope["state"][STATE_KEY].authenticate(Standing.PROCESS, "agent")
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if scope["path"] == "/endless":
            leaving = asyncio.create_task(self._left(receive))
            while not leaving.done():
                await send({"type": "http.response.body", "body": b"x" * 2**20, "more_body": True})
        number = scope["path"].lstrip("/").encode()
        await send({"type": "http.response.body", "body": b"here" + number, "more_body": False})

    async def _left(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.left.set()

    async def connect(self, sent: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(sent)
        return reader, writer


@asynccontextmanager
async def serving(io_timeout_s: float, tls: ServerTls | None = None) -> AsyncIterator[Served]:
    served = Served()
    bound = socket.create_server(("127.0.0.1", 0))
    served.port = bound.getsockname()[1]
    config = uvicorn.Config(
        served.app,
        ws="none",
        lifespan="off",
        log_config=None,
        interface="asgi3",
        proxy_headers=False,
        timeout_graceful_shutdown=1,
    )
    server = HttpServer(config, served.connections, tls=tls, io_timeout_s=io_timeout_s)
    served.protocols = server.protocols
    task = asyncio.create_task(server.serve(bound))
    yield served
    server.stop()
    await task


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    """A server without timeouts that a test reaches."""
    async with serving(PATIENCE_S) as made:
        yield made


@pytest.fixture
async def hasty() -> AsyncIterator[Served]:
    """A server with short timeouts."""
    async with serving(IO_TIMEOUT_S) as made:
        yield made


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


async def test_a_request_is_answered(served: Served) -> None:
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
async def test_invalid_http_is_refused_with_a_problem_response(served: Served, sent: bytes, status: int) -> None:
    reader, _ = await served.connect(sent)
    head, _, body = (await ended(reader)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert b"content-type: application/problem+json" in head
    assert json.loads(body)["status"] == status


async def test_trailers_are_no_headers(served: Served) -> None:
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
async def test_a_slow_request_head_is_closed(hasty: Served, sent: bytes) -> None:
    reader, _ = await hasty.connect(sent)
    await ended(reader)


async def test_a_client_that_never_reads_is_disconnected(hasty: Served) -> None:
    _, writer = await hasty.connect(b"GET /endless HTTP/1.1\r\nhost: north\r\n\r\n")
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    async with asyncio.timeout(PATIENCE_S):
        await hasty.left.wait()


async def test_idle_connections_make_room_for_new_ones(served: Served) -> None:
    idle = [await served.connect() for _ in range(MAX_CONNECTIONS)]
    for _ in range(2):
        reader, _ = await served.connect(REQUEST)
        assert b"here" in await reader.readuntil(b"0\r\n\r\n")
    for reader, _ in idle[:2]:
        assert await ended(reader) == b""


ENDLESS = b"GET /endless HTTP/1.1\r\nhost: north\r\n\r\n"
SLOW = b"POST /slow HTTP/1.1\r\nhost: north\r\ncontent-length: 9\r\n\r\na"


@pytest.mark.parametrize("sent", [SLOW, SLOW.replace(b"/slow", b"/early"), b"", b"GET / HT", ENDLESS])
async def test_slow_clients_make_room_for_new_ones(served: Served, sent: bytes) -> None:
    slow = [await served.connect(sent) for _ in range(5 * MAX_CONNECTIONS)]
    reader, _ = await served.connect(REQUEST)
    assert b"here" in await reader.readuntil(b"0\r\n\r\n")
    await ended(slow[0][0])
    assert served.connections.limited.count(Standing.STRANGER) <= MAX_CONNECTIONS


async def test_an_authenticated_connection_stays_while_strangers_come(served: Served) -> None:
    reader, writer = await served.connect(REQUEST.replace(b"GET /", b"GET /agent"))
    assert b"here" in await reader.readuntil(b"0\r\n\r\n")
    strangers = [await served.connect(SLOW) for _ in range(5 * MAX_CONNECTIONS)]
    await ended(strangers[0][0])
    writer.write(REQUEST)
    assert b"here" in await reader.readuntil(b"0\r\n\r\n")
    assert served.connections.limited.count(Standing.PROCESS) == 1


async def test_slow_handshakes_make_room_for_new_ones(tmp_path: Path) -> None:
    directory = write_identity(tmp_path, control_plane_id())
    async with serving(PATIENCE_S, ServerTls(directory / CERTIFICATE, directory / PRIVATE_KEY)) as served:
        slow = [await served.connect(b"\x16\x03\x01") for _ in range(5 * MAX_CONNECTIONS)]
        trust = ssl.create_default_context()
        trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port, ssl=trust)
        writer.write(REQUEST)
        assert b"here" in await reader.readuntil(b"0\r\n\r\n")
        assert await ended(slow[0][0]) == b""
        writer.close()


async def test_any_number_of_pipelined_requests_is_answered_in_order(served: Served) -> None:
    body = b"POST /%d HTTP/1.1\r\nhost: north\r\ncontent-length: 700\r\n\r\n" + b"a" * 700
    reader, writer = await served.connect()
    writer.write(b"".join(REQUEST.replace(b"/", b"/%d" % n, 1) + body % n for n in range(500)))
    for number in range(500):
        for _ in range(2):
            assert b"here%d\r\n" % number in await reader.readuntil(b"\r\n0\r\n\r\n")
    assert served.most_waiting <= MAX_PIPELINED + PARSED_BYTES // len(REQUEST) + 1


async def test_a_request_that_offers_an_upgrade_is_the_last_one(served: Served) -> None:
    offer = REQUEST[:-2] + b"connection: upgrade\r\nupgrade: h2c\r\n\r\n"
    reader, _ = await served.connect(offer + REQUEST)
    assert (await ended(reader)).count(b"HTTP/1.1 200 ") == 1


async def test_a_request_before_pipelined_ones_ends_with_its_connection(served: Served) -> None:
    reader, writer = await served.connect(ENDLESS + 20 * REQUEST)
    await reader.readuntil(b"\r\n\r\n")
    writer.transport.abort()
    async with asyncio.timeout(PATIENCE_S):
        await served.left.wait()
