"""Clients that hold streams open, to measure the cost of a relayed token and of an open stream."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Sequence

import msgspec

TOKEN = b'data: {"id"'
"""Start of every chunk that the backends stream."""

CONNECT_AT_ONCE = 200
"""Number of streams opened between two reads, so that no listener's accept queue overflows."""


class StreamRun(msgspec.Struct):
    """Results of one period of streaming."""

    seconds: float = 0.0
    chunks: int = 0
    broken: int = 0


class Streams:
    """Streams from one port, one connection each.

    Args:
        port: loopback port of the router.
        requests: requests of the streams, in rotation.
    """

    def __init__(self, port: int, requests: Sequence[bytes]) -> None:
        self._port = port
        self._requests = requests
        self._epoll = select.epoll()
        self._open: dict[int, socket.socket] = {}
        self._begun: set[int] = set()
        self._chunks = 0
        self.broken = 0
        """Streams that were rejected or ended unexpectedly."""

    def open(self, count: int, timeout_s: float) -> int:
        """Open `count` streams and wait for the first token of each. Returns the number of streams with a token."""
        for number in range(count):
            sock = socket.create_connection(("127.0.0.1", self._port), timeout=timeout_s)
            sock.sendall(self._requests[number % len(self._requests)])
            sock.setblocking(False)
            self._open[sock.fileno()] = sock
            self._epoll.register(sock.fileno(), select.EPOLLIN)
            if number % CONNECT_AT_ONCE == 0:
                self._take(0.0)
        deadline = time.monotonic() + timeout_s
        while len(self._begun) + self.broken < count and time.monotonic() < deadline:
            self._take(0.1)
        return len(self._begun)

    def run(self, seconds: float) -> StreamRun:
        """Read tokens for `seconds`."""
        began = time.perf_counter()
        chunks, broken = self._chunks, self.broken
        while (left := began + seconds - time.perf_counter()) > 0:
            self._take(min(0.1, left))
        return StreamRun(time.perf_counter() - began, self._chunks - chunks, self.broken - broken)

    def close(self) -> None:
        """Close every connection in the middle of its stream."""
        for sock in self._open.values():
            sock.close()
        self._open.clear()
        self._epoll.close()

    def _take(self, wait_s: float) -> None:
        for fd, _ in self._epoll.poll(wait_s):
            sock = self._open[fd]
            try:
                data = sock.recv(65_536)
            except BlockingIOError:
                continue
            except OSError:
                data = b""
            if not data:
                self.broken += 1
                self._begun.discard(fd)
                del self._open[fd]
                sock.close()
                continue
            tokens = data.count(TOKEN)
            if tokens:
                self._chunks += tokens
                self._begun.add(fd)
