"""The load: keep-alive connections that ask for the same thing again and again, in a closed loop or at a fixed rate.

A plain loop over epoll, for the reason given in `lab.bench.router.backends`: one core has to make more load than the
fastest proxy can take, beside the backends. An answer counts only if it is the right one to the last byte.
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
"""A connection without an answer for this long has failed."""

_OK = b"HTTP/1.1 200"
_LAST_CHUNK = b"\r\n0\r\n\r\n"
_CONTENT_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class Run(msgspec.Struct):
    """Results of one period of load."""

    seconds: float = 0.0
    answers: int = 0
    errors: int = 0
    latencies_s: list[float] = []
    """Of every answer at a fixed rate; empty for a closed loop, whose latencies suffer from coordinated omission."""


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
        requests: what to ask, in turn; one connection each.
        answer: the body of the right answer.
    """

    def __init__(self, port: int, requests: Sequence[bytes], answer: bytes) -> None:
        self._port = port
        self._whole = (answer, answer + _LAST_CHUNK)
        self._epoll = select.epoll()
        self._all = [_Connection(request) for request in requests]
        self._by_fd: dict[int, _Connection] = {}
        self._run = Run()
        for connection in self._all:
            self._connect(connection)

    def close(self) -> None:
        """Drop every connection."""
        for connection in self._all:
            if connection.sock is not None:
                connection.sock.close()
        self._epoll.close()

    def closed_loop(self, seconds: float, max_answers: float = float("inf")) -> Run:
        """Every connection asks again as soon as it has its answer, for `seconds` or until there are enough."""
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
        """Requests at random moments, `per_s` of them a second on average, whatever becomes of the earlier ones.

        A latency counts from when its request was due; only where a connection was free and this process itself came
        late does it count from when it was sent.
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
            # poll() counts in milliseconds; select() on the epoll itself waits as short as it is asked to.
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
            # Closed, or talking out of turn.
            was_busy = connection.busy
            self._fail(connection)
            return was_busy
        if connection.received:
            data = connection.received + data
        if not data.endswith(self._whole):
            connection.received = data
            return _is_error(data) and self._fail(connection)
        if not data.startswith(_OK):
            return self._fail(connection)
        connection.busy = False
        self._run.answers += 1
        return True

    def _fail(self, connection: _Connection) -> bool:
        """Count an error and begin anew on a fresh connection."""
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


def _is_error(data: bytes) -> bool:
    """Whether the received part differs from the expected response."""
    head, found, body = data.partition(b"\r\n\r\n")
    if not found:
        return False
    if not head.startswith(_OK):
        return True
    framing = _CONTENT_LENGTH.search(head)
    return len(body) >= int(framing[1]) if framing else body.endswith(_LAST_CHUNK)
