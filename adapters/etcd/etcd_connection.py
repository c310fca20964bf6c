"""Connections to one of several etcd endpoints: one is in use, and a failed one gives way to the next."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from adapters.etcd.etcd_stubs import Etcd3Client
from adapters.store.config_store import StoreUnavailable

MAX_RESPONSE_BYTES = 64 * 1024 * 1024

CHANNEL_OPTIONS = (
    # Detects a peer that vanished without closing the connection. etcd rejects more than one ping per 5 s
    # (--grpc-keepalive-min-time, https://etcd.io/docs/v3.5/op-guide/configuration/).
    # grpcio applies the ping timeout; the keepalive timeout is the documented name of the same bound.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.ping_timeout_ms", 3_000),
    # Else a new channel to the same place would share the hung connection of the one that it replaces.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", MAX_RESPONSE_BYTES),
    # The configuration store is never behind a web proxy, whatever the environment variables.
    ("grpc.enable_http_proxy", 0),
)


class Tls(msgspec.Struct, frozen=True):
    """TLS files for connections to etcd. They are read again for each connection, so they may be rotated."""

    ca_path: Path
    """PEM of the authorities that etcd's certificate must come from."""
    cert_path: Path | None = None
    """PEM of the client certificate, if etcd requires one."""
    key_path: Path | None = None
    """PEM of its private key."""


class Endpoint(msgspec.Struct, frozen=True):
    """Where an etcd member answers clients."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """From `host:port`, an IPv6 address in brackets.

        Raises:
            ValueError: it is not of that form.
        """
        host, _, port = text.rpartition(":")
        if not host or "/" in text or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ValueError(f"etcd endpoint {text!r}: expected host:port, such as 127.0.0.1:2379")
        return cls(host, int(port))


class Connection:
    """An etcd3 client and the number of calls that use it."""

    def __init__(self, client: Etcd3Client, endpoint: Endpoint) -> None:
        self.client = client
        self.endpoint = endpoint
        self.users = 0
        self.retired = False


class Connections:
    """Gives out the connection in use; thread-safe.

    Args:
        endpoints: where to connect, tried in turn.
        tls: None connects without.

    Raises:
        ValueError: a certificate without its key, or the other way round.
    """

    def __init__(self, endpoints: Sequence[Endpoint], tls: Tls | None) -> None:
        if not endpoints:
            raise ValueError("no etcd endpoint is given")
        if tls is not None and (tls.cert_path is None) != (tls.key_path is None):
            raise ValueError("a client certificate for etcd needs both cert_path and key_path")
        self._endpoints = tuple(endpoints)
        self._tls = tls
        self._lock = threading.Lock()
        self._turn = 0
        self._current: Connection | None = None
        self._open: set[Connection] = set()
        self._closed = False

    @contextmanager
    def use(self) -> Iterator[Connection]:
        """The connection in use, which stays open at least until the block ends, unless everything is closed.

        Raises:
            StoreUnavailable: closed, or a certificate file cannot be read.
        """
        connection = self._enter()
        try:
            yield connection
        finally:
            with self._lock:
                connection.users -= 1
            self._close_if_unused(connection)

    def retire(self, connection: Connection) -> None:
        """Use the next endpoint from now on, over a new connection; calls on this one may finish."""
        with self._lock:
            connection.retired = True
            if self._current is connection:
                self._current = None
                self._turn += 1
        self._close_if_unused(connection)

    def close(self) -> None:
        """Close every connection at once; calls under way fail."""
        with self._lock:
            self._closed = True
            connections, self._open = self._open, set()
        for connection in connections:
            connection.client.close()

    def _enter(self) -> Connection:
        with self._lock:
            if self._closed:
                raise StoreUnavailable("the store is closed")
            if self._current is None:
                self._current = self._connect(self._endpoints[self._turn % len(self._endpoints)])
                self._open.add(self._current)
            self._current.users += 1
            return self._current

    def _connect(self, endpoint: Endpoint) -> Connection:
        files: dict[str, str] = {}
        if self._tls is not None:
            paths = {
                "ca_cert": self._tls.ca_path,
                "cert_cert": self._tls.cert_path,
                "cert_key": self._tls.key_path,
            }
            files = {name: str(path) for name, path in paths.items() if path is not None}
        try:
            client = Etcd3Client(endpoint.host, endpoint.port, grpc_options=CHANNEL_OPTIONS, **files)
        except OSError as error:
            raise StoreUnavailable(f"etcd certificate file: {error}") from error
        return Connection(client, endpoint)

    def _close_if_unused(self, connection: Connection) -> None:
        with self._lock:
            if connection.users or not connection.retired or connection not in self._open:
                return
            self._open.discard(connection)
        connection.client.close()
