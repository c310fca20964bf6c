"""The process of the bare relay: `python -m lab.bench.peers.relaying PORT BACKEND_PORT ...`."""

from __future__ import annotations

import asyncio
import gc
import itertools
import sys
from collections.abc import Iterator
from typing import cast

import httptools
import uvloop

from adapters.servers.free_ports import LOOPBACK
from lab.open_files import allow_many_open_files


class Relay:
    """State that all connections share: backends in rotation, idle connections, and writes of this loop iteration."""

    def __init__(self, backends: Iterator[int]) -> None:
        self._backends = backends
        self.idle: list[Upstream] = []
        self._loop = asyncio.get_running_loop()
        self._connecting: set[asyncio.Task[object]] = set()
        self._unwritten: list[tuple[asyncio.Transport, bytes]] = []

    def connect(self, client: Client) -> None:
        """Open a new connection, which starts with the request of `client`."""
        opening = self._loop.create_connection(lambda: Upstream(self, client), LOOPBACK, next(self._backends))
        task = self._loop.create_task(opening)
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    def write(self, to: asyncio.Transport, data: bytes) -> None:
        """Write at the end of this iteration of the event loop, as the agent does, because a write wakes the reader."""
        if not self._unwritten:
            self._loop.call_soon(self._flush)
        self._unwritten.append((to, data))

    def _flush(self) -> None:
        unwritten, self._unwritten = self._unwritten, []
        for to, data in unwritten:
            to.write(data)


class Client(asyncio.Protocol):
    """A client connection with one request at a time."""

    __slots__ = ("_parser", "_read", "_relay", "transport", "upstream")

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._parser = httptools.HttpRequestParser(self)
        self._read: list[bytes] = []
        self.upstream: Upstream | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._read.append(data)
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        """Forward the complete request."""
        if self._relay.idle:
            self._relay.idle.pop().ask(self)
        else:
            self._relay.connect(self)

    def asked(self) -> bytes:
        """Return the request as received, and clear the buffer."""
        whole = b"".join(self._read)
        self._read.clear()
        return whole

    def connection_lost(self, exc: Exception | None) -> None:
        if self.upstream is not None:
            self.upstream.transport.abort()


class Upstream(asyncio.Protocol):
    """A connection to a backend that serves one client at a time."""

    __slots__ = ("_client", "_parser", "_relay", "transport")

    def __init__(self, relay: Relay, client: Client) -> None:
        self._relay = relay
        self._client: Client | None = client
        self._parser = httptools.HttpResponseParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if self._client is not None:
            self.ask(self._client)

    def ask(self, client: Client) -> None:
        """Forward the request of a client."""
        self._client = client
        client.upstream = self
        self._relay.write(self.transport, client.asked())

    def data_received(self, data: bytes) -> None:
        client = self._client
        self._parser.feed_data(data)
        if client is not None:
            self._relay.write(client.transport, data)

    def on_message_complete(self) -> None:
        """Release the connection after the complete response."""
        if self._client is not None:
            self._client.upstream = None
            self._client = None
            self._relay.idle.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._client is not None:
            self._client.upstream = None
            self._client.transport.close()
        elif self in self._relay.idle:
            self._relay.idle.remove(self)


async def serve(port: int, backends: list[int]) -> None:
    """Relay until the process is stopped."""
    relay = Relay(itertools.cycle(backends))
    server = await asyncio.get_running_loop().create_server(lambda: Client(relay), LOOPBACK, port, backlog=4096)
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)
    await server.serve_forever()


if __name__ == "__main__":
    allow_many_open_files()
    uvloop.run(serve(int(sys.argv[1]), [int(backend) for backend in sys.argv[2:]]))
