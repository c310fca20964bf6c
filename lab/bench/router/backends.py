"""Model servers that respond immediately: a separate process that is cheap enough not to limit the router under test.

Implemented as a plain epoll loop instead of asyncio, which serves about twice as many requests per second: the backends
share a core with the load generator. Run as a module: `python -m lab.bench.router.backends PORT [PORT ...]`.
"""

from __future__ import annotations

import gc
import heapq
import select
import socket
import sys
import time
from random import Random

import msgspec

from lab.bench.router.chat import CHUNK, END_OF_STREAM, MODEL, answer, embedding
from lab.open_files import allow_many_open_files

PACE_PATH = b"/lab/pace"
"""Path that accepts a Pace by POST, on any port."""

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\n"
_CHUNKED = b"%x\r\n%b\r\n"
_STREAM_HEAD = _HEAD % b"text/event-stream; charset=utf-8" + b"transfer-encoding: chunked\r\n\r\n"
_STREAM_CHUNK = _CHUNKED % (len(CHUNK), CHUNK)
_STREAM_END = _CHUNKED % (len(END_OF_STREAM), END_OF_STREAM) + b"0\r\n\r\n"

_METRICS = (
    b"# TYPE vllm:num_requests_running gauge\n"
    b'vllm:num_requests_running{engine="0",model_name="%b"} 0.0\n'
    b"# TYPE vllm:num_requests_waiting gauge\n"
    b'vllm:num_requests_waiting{engine="0",model_name="%b"} 0.0\n'
    b"# TYPE vllm:kv_cache_usage_perc gauge\n"
    b'vllm:kv_cache_usage_perc{engine="0",model_name="%b"} 0.0\n'
) % ((MODEL.encode(),) * 3)
_MODELS = b'{"object":"list","data":[{"id":"%b","object":"model","created":0,"owned_by":"vllm"}]}' % MODEL.encode()


class Pace(msgspec.Struct, frozen=True):
    """Pace of streams."""

    interval_s: float = 0.0
    """Time (s) between two chunks of a stream; 0 sends all chunks at once."""
    chunks: int = 8
    """Number of chunks of one stream."""


class _Connection:
    __slots__ = ("chunks_left", "fd", "pending", "sock")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.pending = b""
        self.chunks_left = 0


class Backends:
    """All listeners, connections and streams."""

    def __init__(self, ports: list[int]) -> None:
        """Listen on `ports`."""
        self._epoll = select.epoll()
        self._listeners = {sock.fileno(): sock for sock in map(_listen, ports)}
        for fd in self._listeners:
            self._epoll.register(fd, select.EPOLLIN)
        self._connections: dict[int, _Connection] = {}
        self._due: list[tuple[float, int, _Connection]] = []
        self._number = 0
        self._pace = Pace()
        self._rng = Random(1)
        self._answer = _whole(b"application/json", answer())
        self._embedding = _whole(b"application/json", embedding())

    def serve_for_ever(self) -> None:
        """Serve until the process is killed."""
        while True:
            if self._due:
                # The timeout of poll() is in whole milliseconds; select() on the epoll has a finer timeout.
                select.select([self._epoll], [], [], max(0.0, self._due[0][0] - time.monotonic()))
                events = self._epoll.poll(0)
            else:
                events = self._epoll.poll()
            for fd, _ in events:
                if fd in self._listeners:
                    self._accept(self._listeners[fd])
                elif fd in self._connections:
                    self._read(self._connections[fd])
            if self._due:
                self._send_due(time.monotonic())

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except BlockingIOError:
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._connections[sock.fileno()] = _Connection(sock)
            self._epoll.register(sock.fileno(), select.EPOLLIN)

    def _read(self, connection: _Connection) -> None:
        try:
            data = connection.sock.recv(262_144)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(connection)
            return
        data = connection.pending + data
        head_bytes = data.find(b"\r\n\r\n") + 4
        if head_bytes < 4 or not _is_whole(data, head_bytes):
            connection.pending = data
            return
        connection.pending = b""
        self._answer_request(connection, data, head_bytes)

    def _answer_request(self, connection: _Connection, data: bytes, head_bytes: int) -> None:
        if data.startswith(b"POST /v1/"):
            body = data[head_bytes:]
            if b'"stream":true' in body or b'"stream": true' in body:
                self._begin_stream(connection)
            elif data.startswith(b"POST /v1/embeddings"):
                self._send(connection, self._embedding)
            else:
                self._send(connection, self._answer)
        elif data.startswith(b"POST " + PACE_PATH):
            self._pace = msgspec.json.decode(data[head_bytes:], type=Pace)
            self._send(connection, _whole(b"application/json", b"{}"))
        elif data.startswith(b"GET /metrics"):
            self._send(connection, _whole(b"text/plain; version=0.0.4", _METRICS))
        else:
            self._send(connection, _whole(b"application/json", _MODELS))

    def _begin_stream(self, connection: _Connection) -> None:
        pace = self._pace
        if pace.interval_s == 0:
            self._send(connection, _STREAM_HEAD + _STREAM_CHUNK * pace.chunks + _STREAM_END)
            return
        connection.chunks_left = pace.chunks - 1
        if self._send(connection, _STREAM_HEAD + _STREAM_CHUNK):
            # Streams have a random phase, because a router would read chunks of synchronous streams together.
            self._schedule(connection, time.monotonic() + self._rng.random() * pace.interval_s)

    def _schedule(self, connection: _Connection, at: float) -> None:
        self._number += 1
        heapq.heappush(self._due, (at, self._number, connection))

    def _send_due(self, now: float) -> None:
        while self._due and self._due[0][0] <= now:
            at, _, connection = heapq.heappop(self._due)
            if self._connections.get(connection.fd) is not connection:
                continue
            connection.chunks_left -= 1
            if connection.chunks_left < 0:
                self._send(connection, _STREAM_END)
            elif self._send(connection, _STREAM_CHUNK):
                self._schedule(connection, at + self._pace.interval_s)

    def _send(self, connection: _Connection, data: bytes) -> bool:
        """Send data; False, with the connection closed, if the socket buffer is full: the router reads too slowly."""
        try:
            sent = connection.sock.send(data)
        except OSError:
            sent = -1
        if sent != len(data):
            self._drop(connection)
            return False
        return True

    def _drop(self, connection: _Connection) -> None:
        if self._connections.pop(connection.fd, None) is not None:
            connection.sock.close()


def _listen(port: int) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", port))
    sock.listen(8192)
    sock.setblocking(False)
    return sock


def _whole(content_type: bytes, body: bytes) -> bytes:
    return _HEAD % content_type + b"content-length: %d\r\n\r\n%b" % (len(body), body)


def _is_whole(data: bytes, head_bytes: int) -> bool:
    head = data[:head_bytes].lower()
    at = head.find(b"\r\ncontent-length:")
    if at >= 0:
        return len(data) >= head_bytes + int(head[at + 17 : head.index(b"\r\n", at + 17)])
    return b"\r\ntransfer-encoding: chunked" not in head or data.endswith(b"0\r\n\r\n")


def main() -> None:
    """Serve on the ports of the command line."""
    allow_many_open_files()
    backends = Backends([int(port) for port in sys.argv[1:]])
    # The code creates no reference cycles, and a collection would be measured as latency of the router.
    gc.disable()
    backends.serve_for_ever()


if __name__ == "__main__":
    main()
