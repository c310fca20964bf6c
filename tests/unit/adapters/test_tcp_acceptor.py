"""Connections in their handshake can be closed, and the memory of many handshakes is released."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from adapters import tcp_acceptor
from adapters.files.identity_files import CERTIFICATE, PRIVATE_KEY
from adapters.servers.free_ports import LOOPBACK
from adapters.tcp_acceptor import TcpAcceptor
from adapters.tls_contexts import ServerTls
from tests.support.identities import control_plane_id, write_identity
from tests.support.on_uvloop import on_uvloop
from tests.support.wait import PATIENCE_S, until


class AcceptedClient:
    """A connection that was accepted."""

    def __init__(self, abort: Callable[[], object]) -> None:
        self.abort = abort
        self.connected: bool | None = None

    def make_protocol(self) -> asyncio.BaseProtocol:
        return asyncio.Protocol()

    def on_opened(self, *, connected: bool) -> None:
        self.connected = connected


class Accepting:
    """An acceptor, and the connections that it accepted."""

    def __init__(self, tls: Callable[[], ssl.SSLContext] | None, *, closes_at_once: bool = False) -> None:
        self.accepted: list[AcceptedClient] = []
        self._writers: list[asyncio.StreamWriter] = []
        self.closes_at_once = closes_at_once
        listening = socket.create_server((LOOPBACK, 0))
        self.port = listening.getsockname()[1]
        self.acceptor = TcpAcceptor(listening, self._accept_from, tls=tls, handshake_timeout_s=PATIENCE_S)

    def _accept_from(self, address: str, abort: Callable[[], object]) -> AcceptedClient | None:
        assert address == LOOPBACK
        self.accepted.append(AcceptedClient(abort))
        if self.closes_at_once:
            asyncio.get_running_loop().call_soon(abort)
        return self.accepted[-1]

    async def connect(self) -> asyncio.StreamReader:
        reader, writer = await asyncio.open_connection(LOOPBACK, self.port)
        self._writers.append(writer)
        return reader


@pytest.fixture
def tls(tmp_path: Path) -> ServerTls:
    directory = write_identity(tmp_path, control_plane_id())
    return ServerTls(directory / CERTIFICATE, directory / PRIVATE_KEY)


@pytest.fixture
async def accepting(tls: ServerTls) -> AsyncIterator[Accepting]:
    made = Accepting(tls)
    yield made
    made.acceptor.close()
    made.acceptor.abort()


async def closed(reader: asyncio.StreamReader) -> bool:
    """Whether the server closes the connection without sending anything."""
    async with asyncio.timeout(PATIENCE_S):
        try:
            return await reader.read() == b""
        except ConnectionResetError:
            return True


async def test_a_connection_in_its_handshake_can_be_closed(accepting: Accepting) -> None:
    first, second = await accepting.connect(), await accepting.connect()
    await until(lambda: len(accepting.accepted) == 2)
    accepting.accepted[0].abort()
    assert await closed(first)
    await until(lambda: accepting.accepted[0].connected is False)
    assert accepting.accepted[1].connected is None
    accepting.acceptor.abort()
    assert await closed(second)


@on_uvloop
async def test_handshakes_can_be_closed_on_uvloop(tls: ServerTls) -> None:
    made = Accepting(tls)
    readers = [await made.connect() for _ in range(3)]
    await until(lambda: len(made.accepted) == 3)
    for accepted in made.accepted:
        accepted.abort()
    assert all([await closed(reader) for reader in readers])
    made.acceptor.close()


@pytest.mark.parametrize("is_plain", [True, False])
async def test_a_connection_that_is_closed_before_it_begins_is_closed(tls: ServerTls, is_plain: bool) -> None:
    made = Accepting(None if is_plain else tls, closes_at_once=True)
    assert await closed(await made.connect())
    await until(lambda: made.accepted[0].connected is not None)
    made.acceptor.close()


async def test_memory_is_released_once_many_handshakes_have_ended(
    accepting: Accepting, monkeypatch: pytest.MonkeyPatch
) -> None:
    released: list[int] = []
    monkeypatch.setattr(tcp_acceptor, "MANY_HANDSHAKES", 8)
    monkeypatch.setattr(tcp_acceptor, "RELEASE_AFTER_S", 0.0)
    monkeypatch.setattr(tcp_acceptor, "release_free_memory", lambda: released.append(1))
    for _ in range(8):
        await accepting.connect()
    await until(lambda: len(accepting.accepted) == 8)
    for accepted in accepting.accepted[:5]:
        accepted.abort()
    await until(lambda: all(accepted.connected is False for accepted in accepting.accepted[:5]))
    assert not released
    for accepted in accepting.accepted[5:]:
        accepted.abort()
    await until(lambda: released == [1])
