"""Load generator: keep-alive connections that repeat one request each, in a closed loop or at a fixed rate.

Implemented as a plain epoll loop, because one core must run the backends and generate more load than the fastest proxy
can serve. A response counts only if it ends with the expected body.
"""

from __future__ import annotations

import re
import select
import socket
import time
from collections import deque
from collections.abc import Sequence
from random import Random

import msgspec

ANSWER_TIMEOUT_S = 10.0
"""Time (s) without a response after which a connection has failed."""

_LAST_CHUNK = b"\r\n0\r\n\r\n"
_CONTENT_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class Run(msgspec.Struct):
    """Results of one period of load."""

    seconds: float = 0.0
    answers: int = 0
    errors: int = 0
    latencies_s: list[float] = []
    """Latency of every response at a fixed rate; empty for a closed loop, which has coordinated omission."""


class _Connection:
    __slots__ = ("asked_at", "busy", "received", "request", "sock")

    def __init__(self, request: bytes) -> None:
        self.request = request
        self.received = b""
        self.busy = False
        self.asked_at = 0.0
        self.sock: socket.socket | None = None


class Load:
    """Connections to one port.

    Args:
        port: loopback port of the router, or of a backend.
        requests: requests, with one connection each.
        answer: expected end of the body of a response.
        status: expected status.
    """

    def __init__(self, port: int, requests: Sequence[bytes], answer: bytes, status: int = 200) -> None:
        self._port = port
        self._begin = b"HTTP/1.1 %d" % status
        self._whole = (answer, answer + _LAST_CHUNK)
        self._epoll = select.epoll()
        self._all = [_Connection(request) for request in requests]
        self._by_fd: dict[int, _Connection] = {}
        self._run = Run()
        for connection in self._all:
            self._connect(connection)

    def close(self) -> None:
        """Close every connection."""
        for connection in self._all:
            if connection.sock is not None:
                connection.sock.close()
        self._epoll.close()

    def closed_loop(self, seconds: float, max_answers: float = float("inf")) -> Run:
        """Send the next request of each connection after its response, for `seconds` or up to `max_answers`."""
        run = self._run = Run()
        began = time.perf_counter()
        ends = began + seconds
        for connection in self._all:
            self._ask(connection)
        last_answers, last_progress = 0, began
        while (now := time.perf_counter()) < ends and run.answers < max_answers:
            for fd, _ in self._epoll.poll(0.1):
                connection = self._by_fd[fd]
                if self._hear(connection):
                    self._ask(connection)
            if run.answers + run.errors != last_answers:
                last_answers, last_progress = run.answers + run.errors, now
            elif now - last_progress > ANSWER_TIMEOUT_S:
                break
        run.seconds = time.perf_counter() - began
        self._settle()
        return run

    def fixed_rate(self, per_s: float, seconds: float, rng: Random) -> Run:
        """Send requests as a Poisson process of `per_s` requests per second, regardless of earlier responses.

        A latency is measured from the due time of the request, or from the send time if a connection was free but this
        process was late.
        """
        run = self._run = Run()
        free = deque(self._all)
        waiting: deque[float] = deque()
        began = time.perf_counter()
        ends = began + seconds
        due = began + rng.expovariate(per_s)
        while True:
            now = time.perf_counter()
            while due <= now and due < ends:
                if free:
                    self._ask(free.popleft())
                else:
                    waiting.append(due)
                due += rng.expovariate(per_s)
            busy = len(free) < len(self._all)
            if now > ends and (not busy or now > ends + ANSWER_TIMEOUT_S):
                break
            # The timeout of poll() is in whole milliseconds; select() on the epoll has a finer timeout.
            select.select([self._epoll], [], [], max(0.0, due - now) if due < ends else 0.01)
            for fd, _ in self._epoll.poll(0):
                connection = self._by_fd[fd]
                if not self._hear(connection):
                    continue
                run.latencies_s.append(time.perf_counter() - connection.asked_at)
                if waiting:
                    self._ask(connection)
                    connection.asked_at = waiting.popleft()
                else:
                    free.append(connection)
        run.seconds = time.perf_counter() - began
        run.errors += len(waiting)
        self._settle()
        return run

    def _ask(self, connection: _Connection) -> None:
        connection.busy, connection.received = True, b""
        connection.asked_at = time.perf_counter()
        assert connection.sock is not None
        try:
            connection.sock.send(connection.request)
        except OSError:
            self._fail(connection)
            connection.sock.send(connection.request)

    def _hear(self, connection: _Connection) -> bool:
        """Process received data; returns whether the connection is free again, after a response or an error."""
        assert connection.sock is not None
        try:
            data = connection.sock.recv(65_536)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data or not connection.busy:
            # The connection was closed, or the response has no request.
            was_busy = connection.busy
            self._fail(connection)
            return was_busy
        if connection.received:
            data = connection.received + data
        if not data.endswith(self._whole):
            connection.received = data
            return _is_error(data, self._begin) and self._fail(connection)
        if not data.startswith(self._begin):
            return self._fail(connection)
        connection.busy = False
        self._run.answers += 1
        return True

    def _fail(self, connection: _Connection) -> bool:
        """Count an error and replace the connection."""
        self._run.errors += 1
        assert connection.sock is not None
        self._by_fd.pop(connection.sock.fileno(), None)
        connection.sock.close()
        self._connect(connection)
        return True

    def _settle(self) -> None:
        """Wait for requests in flight without counting them, so that the next run starts with free connections."""
        run, self._run = self._run, Run()
        ends = time.perf_counter() + ANSWER_TIMEOUT_S
        while any(connection.busy for connection in self._all) and time.perf_counter() < ends:
            for fd, _ in self._epoll.poll(0.1):
                self._hear(self._by_fd[fd])
        for connection in self._all:
            if connection.busy:
                self._fail(connection)
        run.errors += self._run.errors
        self._run = run

    def _connect(self, connection: _Connection) -> None:
        connection.sock = socket.create_connection(("127.0.0.1", self._port), timeout=ANSWER_TIMEOUT_S)
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sock.setblocking(False)
        connection.busy, connection.received = False, b""
        self._by_fd[connection.sock.fileno()] = connection
        self._epoll.register(connection.sock.fileno(), select.EPOLLIN)


def _is_error(data: bytes, begin: bytes) -> bool:
    """Whether the received part differs from the expected response."""
    head, found, body = data.partition(b"\r\n\r\n")
    if not found:
        return False
    if not head.startswith(begin):
        return True
    framing = _CONTENT_LENGTH.search(head)
    return len(body) >= int(framing[1]) if framing else body.endswith(_LAST_CHUNK)
