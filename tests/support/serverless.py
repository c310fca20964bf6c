"""A serverless endpoint: a real server that starts when a request arrives, and stops when none has come for a while."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from math import inf

from tests.support.loopback_server import LoopbackServer


class ServerlessEndpoint(LoopbackServer):
    """Answers each request after its cold start and its service time. Every request wakes it, except for `/status`."""

    def __init__(self, cold_start_s: float = 0.0, service_s: float = 0.0, idle_s: float = inf) -> None:
        super().__init__()
        self.cold_start_s, self.service_s, self.idle_s = cold_start_s, service_s, idle_s
        self.status = 200
        self.connections = 0
        self.targets: list[str] = []
        """Target of each request, probes included."""
        self.cold_starts = 0
        self.running = 0
        self.release = asyncio.Event()
        """While cleared, requests run and are not answered."""
        self.release.set()
        self._warm_until = -inf

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                first, *lines = head[:-4].split(b"\r\n")
                sizes = [int(line.partition(b":")[2]) for line in lines if line.lower().startswith(b"content-length:")]
                await reader.readexactly(sum(sizes))
                target = first.split(b" ")[1].decode()
                self.targets.append(target)
                if target != "/status":
                    await self._run()
                writer.write(b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\n" % self.status)
                writer.write(b'Content-Length: 27\r\n\r\n{"choices": [], "data": []}')
                await writer.drain()

    async def _run(self) -> None:
        clock = asyncio.get_running_loop().time
        if clock() >= self._warm_until and not self.running:
            self.cold_starts += 1
            await asyncio.sleep(self.cold_start_s)
        self.running += 1
        await asyncio.sleep(self.service_s)
        await self.release.wait()
        self.running -= 1
        self._warm_until = clock() + self.idle_s
