"""A model server for attacks: it takes as long as a request says, and records what it runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from regional_agent.upstream.address import Address

TICK_S = 0.1
JSON_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
FAILED_HEAD = b"HTTP/1.1 500 Failed\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
UPGRADED = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"


class Engine:
    """Runs a request for its `seconds` (a field of the body; 0 without it), and streams if it has `stream`.

    A request with `break` ends its connection: without a response, or within the stream. One with `fail` gets 500, or
    an error as the first event of its stream.
    """

    def __init__(self) -> None:
        self.address = Address("127.0.0.1", 0)
        self.running = 0
        self.max_running = 0
        """Largest number of requests that ran at once since the last `reset`."""
        self.started: list[str] = []
        """Field `user` of each request since the last `reset`, in the order of their start."""
        self.ended_early = 0
        """Responses and tunnels whose connection the agent ended."""

        self.tunnelled = b""
        """What clients of tunnels have sent: the heads of their requests, and all bytes after them."""

    def reset(self) -> None:
        """Clear the record."""
        self.tunnelled = b""
        self.max_running, self.started, self.ended_early = self.running, [], 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers the requests of one connection."""
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                headers = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
                if "upgrade" in headers:
                    self.tunnelled += head.encode("latin-1")
                    reading = asyncio.create_task(self._read_tunnel(reader))
                    try:
                        await self._tick(writer, UPGRADED, b"tick", 600.0)
                    finally:
                        reading.cancel()
                    return
                body = await _body(reader, headers)
                if not head.startswith("POST"):
                    writer.write(JSON_HEAD % (2, b"{}"))
                    continue
                try:
                    asked = json.loads(body)
                except ValueError:
                    asked = {}
                await self._run(asked, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _read_tunnel(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(1 << 16):
            self.tunnelled += data

    async def _run(self, asked: dict[str, object], writer: asyncio.StreamWriter) -> None:
        self.running += 1
        self.max_running = max(self.max_running, self.running)
        self.started.append(str(asked.get("user", "")))
        seconds = asked.get("seconds", 0)
        seconds = float(seconds) if isinstance(seconds, int | float) else 0.0
        try:
            if asked.get("break"):
                if asked.get("stream") is True:
                    writer.write(STREAM_HEAD + b"9\r\ndata: x\n\n\r\n")
                    await writer.drain()
                raise ConnectionResetError
            if asked.get("fail"):
                error = b'{"error":{"message":"CUDA error","code":500}}'
                if asked.get("stream") is True:
                    error = b"data: %b\n\n" % error
                    writer.write(STREAM_HEAD + b"%x\r\n%b\r\n0\r\n\r\n" % (len(error), error))
                else:
                    writer.write(FAILED_HEAD % (len(error), error))
            elif asked.get("stream") is True:
                await self._tick(writer, STREAM_HEAD, b"9\r\ndata: x\n\n\r\n", seconds)
                writer.write(b"0\r\n\r\n")
            else:
                await asyncio.sleep(seconds)
                answer = b'{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}'
                writer.write(JSON_HEAD % (len(answer), answer))
            await writer.drain()
        finally:
            self.running -= 1

    async def _tick(self, writer: asyncio.StreamWriter, head: bytes, part: bytes, seconds: float) -> None:
        writer.write(head)
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while loop.time() < end:
            if writer.is_closing():
                self.ended_early += 1
                raise ConnectionResetError
            writer.write(part)
            await asyncio.sleep(TICK_S)


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if "chunked" not in headers.get("transfer-encoding", ""):
        return await reader.readexactly(int(headers.get("content-length", "0")))
    parts = []
    while size := int(await reader.readuntil(b"\r\n"), 16):
        parts.append(await reader.readexactly(size))
        await reader.readexactly(2)
    await reader.readuntil(b"\r\n")
    return b"".join(parts)


@asynccontextmanager
async def running_engine() -> AsyncIterator[Engine]:
    """An engine on a free port."""
    engine = Engine()
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0, limit=1 << 20)
    engine.address = Address(*server.sockets[0].getsockname()[:2])
    try:
        yield engine
    finally:
        server.close()
