"""Hostile engines: responses are rejected or relayed, never mixed into another response, and use bounded memory."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import chain, repeat
from pathlib import Path

import pytest

from regional_agent.upstream.address import Address
from tests.support.agents import running_agent
from tests.support.chats import BODY, as_own
from tests.support.codings import gzipped
from tests.support.sockets import RawClient, post
from tests.support.wait import until

Sends = Callable[[], Iterator[bytes]]

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@asynccontextmanager
async def engine_that_sends(blocks: Sends) -> AsyncIterator[Address]:
    """Run an engine that responds to each request with these bytes until the client closes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                for block in blocks():
                    writer.write(block)
                    await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield Address(*server.sockets[0].getsockname()[:2])
    finally:
        server.close()


HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
BLOCK = b"x" * 65_536

REFUSED: dict[str, Sends] = {
    "header split by a line feed": lambda: iter([HEAD + b"X-A: a\nSet-Cookie: evil=1\r\nContent-Length: 2\r\n\r\nok"]),
    "header split by a return": lambda: iter([HEAD + b"X-A: a\rSet-Cookie: evil=1\r\nContent-Length: 2\r\n\r\nok"]),
    "NUL in a header": lambda: iter([HEAD + b"X-A: a\x00b\r\nContent-Length: 2\r\n\r\nok"]),
    "two lengths": lambda: iter([HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nok!"]),
    "length and chunks": lambda: iter(
        [HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"]
    ),
    "unknown coding": lambda: iter([HEAD + b"Transfer-Encoding: gzip, x\r\n\r\nok"]),
    "length that is no number": lambda: iter([HEAD + b"Content-Length: +2\r\n\r\nok"]),
    "length beyond 64 bits": lambda: iter([HEAD + b"Content-Length: 99999999999999999999\r\n\r\nok"]),
    "no HTTP": lambda: iter([b"\x16\x03\x01 not HTTP\r\n\r\n"]),
    "HTTP/2": lambda: iter([b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"]),
    "unexpected upgrade": lambda: iter(
        [b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"]
    ),
    "endless interim responses": lambda: repeat(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 100),
    "endless headers": lambda: chain([HEAD], (b"X-%d: " % n + b"x" * 1000 + b"\r\n" for n in range(10**9))),
    "endless header": lambda: chain([HEAD + b"X-A: "], repeat(BLOCK)),
    "endless status line": lambda: chain([b"HTTP/1.1 200 "], repeat(BLOCK)),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_a_malformed_response_is_refused(tmp_path: Path, case: str) -> None:
    async with engine_that_sends(REFUSED[case]) as address, running_agent(tmp_path, [address]) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(post(BODY))
        status, headers, _ = await client.answer()
        assert status in (502, 503), headers
        assert "x-penstock-refusal" in headers
        assert "set-cookie" not in str(headers).lower()
        await until(lambda: agent.held() == 0)


ENDLESS: dict[str, Sends] = {
    "chunk extensions": lambda: chain([HEAD + CHUNKED + b"9\r\ndata: 1\n\n\r\n2;"], repeat(BLOCK)),
    "trailers": lambda: chain([HEAD + CHUNKED + b"9\r\ndata: 1\n\n\r\n0\r\nX: "], repeat(BLOCK)),
}


@pytest.mark.parametrize("case", ENDLESS)
async def test_a_response_with_endless_framing_is_cut(tmp_path: Path, case: str) -> None:
    async with engine_that_sends(ENDLESS[case]) as address, running_agent(tmp_path, [address]) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(post(BODY))
        tracemalloc.start()
        try:
            received = await client.until_cut()
            assert received.startswith(HEAD)
            assert not received.endswith(b"0\r\n\r\n"), "the client sees that the response was cut"
            assert tracemalloc.get_traced_memory()[1] < 16_000_000
        finally:
            tracemalloc.stop()
        await until(lambda: agent.held() == 0)


async def test_a_compressed_response_is_relayed_and_not_decoded(tmp_path: Path) -> None:
    packed = gzipped(bytes(50_000_000))
    head = HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed)
    async with engine_that_sends(lambda: iter([head + packed])) as address, running_agent(tmp_path, [address]) as agent:
        client = await RawClient.connect(agent.traffic)
        tracemalloc.start()
        try:
            client.send(post(BODY))
            assert (await client.answer()).body == packed
            assert tracemalloc.get_traced_memory()[1] < 4_000_000
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("extra", [OK.replace(b"ok", b"no"), b"garbage"])
async def test_bytes_after_a_response_are_in_no_other_response(tmp_path: Path, extra: bytes) -> None:
    async with engine_that_sends(lambda: iter([OK + extra])) as address, running_agent(tmp_path, [address]) as agent:
        as_own(agent)
        client = await RawClient.connect(agent.traffic)
        for _ in range(5):
            client.send(post(BODY))
            assert (await client.answer()).body == b"ok"
