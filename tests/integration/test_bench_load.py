"""The benchmark's load and backends on real sockets: right responses count, wrong ones are errors, streams flow."""

from __future__ import annotations

import asyncio
import http.client
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from random import Random

import msgspec
import pytest

from adapters.servers.free_ports import LOOPBACK, free_ports
from adapters.servers.process import ServerProcess
from adapters.servers.readiness import http_ok
from lab.bench.process_cost import cpu_s, resident_bytes
from lab.bench.router.backends import PACE_PATH, Pace
from lab.bench.router.chat import ANSWER_BYTES, CHUNK, REQUEST_BODY_BYTES, Client, answer, chat_request
from lab.bench.router.load import Load
from lab.bench.router.streams import Streams
from lab.server_starting import start_server
from tests.support.wait import PATIENCE_S

CLIENT = Client("198.18.1.1", "demo-open")
ASK = chat_request(CLIENT, stream=False)
ASK_STREAM = chat_request(CLIENT, stream=True)


class Backend:
    """The process and its port."""

    def __init__(self, process: ServerProcess, port: int) -> None:
        self.process = process
        self.port = port

    def set_pace(self, pace: Pace) -> None:
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=10)
        connection.request("POST", PACE_PATH.decode(), msgspec.json.encode(pace))
        assert connection.getresponse().status == 200
        connection.close()


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    ports: list[int] = []

    def make() -> ServerProcess:
        ports[:] = free_ports(1)
        return ServerProcess(
            "backends",
            [sys.executable, "-m", "lab.bench.router.backends", str(ports[0])],
            log_path=tmp_path_factory.mktemp("backends") / "log",
            ready=http_ok(f"http://{LOOPBACK}:{ports[0]}/health"),
            ports=ports,
        )

    process = start_server(make, tries=3, timeout_s=20.0)
    yield Backend(process, ports[0])
    process.kill()


def test_request_and_response_have_the_stated_sizes() -> None:
    assert len(ASK.partition(b"\r\n\r\n")[2]) == REQUEST_BODY_BYTES
    assert len(answer()) == ANSWER_BYTES
    for body in (ASK.partition(b"\r\n\r\n")[2], answer(), CHUNK.removeprefix(b"data: ")):
        msgspec.json.decode(body)


def test_a_closed_loop_counts_correct_responses(backend: Backend) -> None:
    load = Load(backend.port, [ASK] * 4, answer())
    run = load.closed_loop(30.0, max_answers=200)
    load.close()
    assert run.answers >= 200
    assert run.errors == 0
    assert cpu_s(backend.process.pid) > 0.0
    assert resident_bytes(backend.process.pid) > 1_000_000


def test_a_fixed_rate_times_every_response(backend: Backend) -> None:
    load = Load(backend.port, [ASK] * 8, answer())
    run = load.fixed_rate(200.0, 1.0, Random(1))
    load.close()
    assert run.errors == 0
    assert run.answers == len(run.latencies_s) == pytest.approx(200, rel=0.4)
    assert min(run.latencies_s) > 0.0


@asynccontextmanager
async def server(response: bytes) -> AsyncIterator[int]:
    """Sends `response` to every client that sends bytes, and closes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65_536)
        writer.write(response)
        writer.close()

    listening = await asyncio.start_server(serve, LOOPBACK, 0)
    async with listening:
        yield listening.sockets[0].getsockname()[1]


@pytest.mark.parametrize(
    "response",
    [
        b"",
        b"HTTP/1.1 200 OK\r\ncontent-le",
        b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 500 Oops\r\ncontent-length: 512\r\n\r\n" + answer(),
        b"HTTP/1.1 200 OK\r\ncontent-length: 512\r\n\r\n" + answer()[:-1] + b"]",
    ],
    ids=["closed", "cut", "refused", "right body, wrong status", "wrong body"],
)
async def test_any_other_response_is_an_error(response: bytes) -> None:
    def load_it(port: int) -> tuple[int, int]:
        load = Load(port, [ASK], answer())
        run = load.closed_loop(0.2)
        load.close()
        return run.answers, run.errors

    async with server(response) as port:
        answers, errors = await asyncio.to_thread(load_it, port)
    assert answers == 0
    assert errors > 0


def test_streams_flow_at_the_requested_pace(backend: Backend) -> None:
    pace = Pace(interval_s=0.05, chunks=100_000)
    backend.set_pace(pace)
    streams = Streams(backend.port, [ASK_STREAM])
    opened_at = time.monotonic()
    assert streams.open(20, PATIENCE_S) == 20
    chunks = elapsed_s = 0.0
    while chunks < 20 * 20 and elapsed_s < PATIENCE_S:
        run = streams.run(0.1)
        assert run.broken == 0
        chunks += run.chunks
        elapsed_s = time.monotonic() - opened_at
    streams.close()
    assert 20 * 20 <= chunks <= 20 * (elapsed_s / pace.interval_s + 1)


def test_a_stream_has_the_requested_number_of_chunks(backend: Backend) -> None:
    backend.set_pace(Pace(interval_s=0.01, chunks=3))
    streams = Streams(backend.port, [ASK_STREAM])
    assert streams.open(2, 30.0) == 2
    run = streams.run(0.5)
    streams.close()
    assert run.chunks <= 4, "the first of each had come before"
    assert run.broken == 0, "the connections are kept"


async def test_a_stream_that_is_closed_is_broken() -> None:
    def stream_it(port: int) -> int:
        streams = Streams(port, [ASK_STREAM])
        streams.open(3, PATIENCE_S)
        deadline = time.monotonic() + PATIENCE_S
        while streams.broken < 3 and time.monotonic() < deadline:
            streams.run(0.1)
        streams.close()
        return streams.broken

    async with server(b"HTTP/1.1 200 OK\r\n\r\n" + CHUNK) as port:
        assert await asyncio.to_thread(stream_it, port) == 3
