"""Connections to etcd: one endpoint is in use at a time, and a failure selects the next one."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import grpc
import msgspec

from adapters.etcd.etcd_stubs import Etcd3Client
from adapters.files.identity_files import AUTHORITIES, CERTIFICATE, PRIVATE_KEY
from adapters.files.plain_file import read_plain_file
from adapters.files.tls_files import MAX_FILE_BYTES, BadTlsFiles
from adapters.files.watched_files import WatchedFiles
from adapters.loopback import is_loopback
from adapters.store.config_store import StoreUnavailable
from adapters.tls_contexts import PresentedCertificate, client_context

MAX_RESPONSE_BYTES = 64 * 1024 * 1024

CHANNEL_OPTIONS = (
    # Detects a peer that vanished without closing the connection. etcd rejects more than one ping per 5 s
    # (--grpc-keepalive-min-time, https://etcd.io/docs/v3.5/op-guide/configuration/).
    # grpcio applies the ping timeout; the keepalive timeout is the documented name of the same bound.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.ping_timeout_ms", 3_000),
    # Without this option, a new channel to an endpoint would share the hung connection of the channel that it
    # replaces.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", MAX_RESPONSE_BYTES),
    # etcd is never behind a web proxy, so proxy settings in environment variables are ignored.
    ("grpc.enable_http_proxy", 0),
)


class Tls(msgspec.Struct, frozen=True):
    """TLS files for connections to etcd. After the files change, calls use a new connection."""

    ca_path: Path
    """PEM file of the authorities that sign etcd's certificates."""
    cert_path: Path | None = None
    """PEM file of the client certificate; None sends none."""
    key_path: Path | None = None
    """PEM file of the private key of the client certificate."""

    def watched(self) -> WatchedFiles[grpc.ChannelCredentials | None]:
        """Return the credentials in these files; None as long as the files are unusable.

        Raises:
            ValueError: there is a certificate without a key, or a key without a certificate.
        """
        if (self.cert_path is None) != (self.key_path is None):
            raise ValueError("a client certificate for etcd needs both cert_path and key_path")
        paths = self.ca_path, self.key_path, self.cert_path
        presented = PresentedCertificate(self.cert_path)

        def load() -> grpc.ChannelCredentials:
            # gRPC accepts any content, and cannot connect then.
            presented.load(partial(client_context, self.ca_path, self.cert_path, self.key_path))
            return grpc.ssl_channel_credentials(*map(_content, paths))

        return WatchedFiles(paths, load, fallback=None)


def _content(path: Path | None) -> bytes | None:
    try:
        return None if path is None else read_plain_file(path, MAX_FILE_BYTES).content
    except OSError as error:
        raise BadTlsFiles(f"{path}: cannot be read: {error.strerror}; provide the file") from None


class _Client(Etcd3Client):  # type: ignore[misc]
    """A client that receives credentials as `ca_cert`, where its base class opens files."""

    def _get_secure_creds(self, ca_cert: object, cert_key: object = None, cert_cert: object = None) -> object:
        return ca_cert


def tls_to(
    endpoints: Sequence[str],
    *,
    ca: Path | None,
    certificate: Path | None,
    key: Path | None,
    identity_dir: Path,
    allow_plaintext: bool,
) -> Tls | None:
    """Return the TLS files for a daemon's connections to etcd; None: connect without TLS.

    By default, the daemon uses the certificate of its process and trusts the fleet's authority. Without `ca`, TLS is
    not used if all endpoints are on loopback addresses, or if plain text is allowed.

    Args:
        endpoints: `host:port` of the members.
        ca: authorities that sign etcd's certificates; None uses the fleet's authority.
        certificate: client certificate; None uses the certificate of the process.
        key: private key of `certificate`.
        identity_dir: directory of the certificate of the process.
        allow_plaintext: whether the connection may be unencrypted.
    """
    is_local = all(is_loopback(Endpoint.parse(endpoint).host.strip("[]")) for endpoint in endpoints)
    if ca is None and (is_local or allow_plaintext):
        return None
    own = identity_dir / CERTIFICATE, identity_dir / PRIVATE_KEY
    return Tls(ca or identity_dir / AUTHORITIES, *(own if certificate is None else (certificate, key)))


class Endpoint(msgspec.Struct, frozen=True):
    """Address at which an etcd member accepts client connections."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """Parse `host:port`; an IPv6 address is in brackets.

        Raises:
            ValueError: the text is not of that form.
        """
        host, _, port = text.rpartition(":")
        if not host or "/" in text or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ValueError(f"etcd endpoint {text!r}: expected host:port, such as 127.0.0.1:2379")
        return cls(host, int(port))


class Connection:
    """An etcd3 client and the number of calls that use it."""

    def __init__(self, client: Etcd3Client, endpoint: Endpoint, credentials: grpc.ChannelCredentials | None) -> None:
        self.client = client
        self.endpoint = endpoint
        self.credentials = credentials
        """The credentials that the client uses; None without TLS."""
        self.users = 0
        self.retired = False


class Connections:
    """Provides the connection in use; thread-safe.

    Args:
        endpoints: the endpoints to connect to, tried in turn.
        tls: credentials for TLS; None connects without TLS.

    Raises:
        ValueError: `endpoints` is empty.
    """

    def __init__(self, endpoints: Sequence[Endpoint], tls: WatchedFiles[grpc.ChannelCredentials | None] | None) -> None:
        if not endpoints:
            raise ValueError("no etcd endpoint is given")
        self._endpoints = tuple(endpoints)
        self._tls = tls
        self._lock = threading.Lock()
        self._turn = 0
        self._current: Connection | None = None
        self._open: set[Connection] = set()
        self._closed = False

    @contextmanager
    def use(self) -> Iterator[Connection]:
        """Provide the connection in use, which stays open at least until the block ends, unless `close` is called.

        Raises:
            StoreUnavailable: the connections are closed, or a certificate file cannot be read.
        """
        self._retire_if_files_changed()
        connection = self._enter()
        try:
            yield connection
        finally:
            with self._lock:
                connection.users -= 1
            self._close_if_unused(connection)

    def retire(self, connection: Connection) -> None:
        """Replace a connection by a new one to the next endpoint; calls in progress on the connection may finish."""
        self._retire(connection, turns=1)

    def _retire(self, connection: Connection, turns: int) -> None:
        with self._lock:
            connection.retired = True
            if self._current is connection:
                self._current = None
                self._turn += turns
        self._close_if_unused(connection)

    def _retire_if_files_changed(self) -> None:
        """Replace the connection by a new one to the same endpoint if certificate files have changed.

        A later reconnection of the client would use the old certificate and fail.
        """
        current = self._current
        if self._tls is not None and current is not None and current.credentials is not self._tls.content:
            self._retire(current, turns=0)

    def close(self) -> None:
        """Close every connection immediately; calls in progress fail."""
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
        credentials = None
        if self._tls is not None:
            credentials = self._tls.content
            if credentials is None:
                raise StoreUnavailable(f"etcd certificate file: {self._tls.problem}")
        client = _Client(endpoint.host, endpoint.port, grpc_options=CHANNEL_OPTIONS, ca_cert=credentials)
        return Connection(client, endpoint, credentials)

    def _close_if_unused(self, connection: Connection) -> None:
        with self._lock:
            if connection.users or not connection.retired or connection not in self._open:
                return
            self._open.discard(connection)
        connection.client.close()
