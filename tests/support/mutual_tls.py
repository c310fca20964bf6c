"""Servers that require client certificates of the fleet, with certificates as of `penstock certs issue server`."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from adapters.files.identity_files import AUTHORITIES, CERTIFICATE, PRIVATE_KEY
from penstock.wire.identity import ProcessRole, SpiffeId
from tests.support.identities import FLEET, write_identity
from tests.support.secured_etcd import etcd_with_client_cert_auth


def server_identity(directory: Path, name: str) -> Path:
    """Write the identity of an etcd member or a Redis and return its directory."""
    return write_identity(directory, SpiffeId(FLEET, ProcessRole.SERVER, name))


@contextmanager
def mutual_tls_etcd(directory: Path) -> Iterator[str]:
    """Run an etcd with client-cert-auth and yield its endpoint."""
    own = server_identity(directory / "identity", "etcd-1")
    with etcd_with_client_cert_auth(directory, own / AUTHORITIES, own / CERTIFICATE, own / PRIVATE_KEY) as endpoint:
        yield endpoint


@asynccontextmanager
async def mutual_tls_relay(directory: Path, host: str, port: int) -> AsyncIterator[int]:
    """Run a relay that terminates TLS as a Redis with tls-auth-clients does, and yield its loopback port.

    The relay is required because the Valkey of the tests is built without TLS.
    """
    own = server_identity(directory, "redis-1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own / CERTIFICATE, own / PRIVATE_KEY)
    context.load_verify_locations(own / AUTHORITIES)
    context.verify_mode = ssl.CERT_REQUIRED

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.CancelledError):
            inner_reader, inner_writer = await asyncio.open_connection(host, port)
            try:
                await asyncio.gather(_copy(reader, inner_writer), _copy(inner_reader, writer))
            finally:
                inner_writer.close()
                writer.close()

    async with await asyncio.start_server(relay, "127.0.0.1", 0, ssl=context) as server:
        yield server.sockets[0].getsockname()[1]
        server.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()
    writer.close()
