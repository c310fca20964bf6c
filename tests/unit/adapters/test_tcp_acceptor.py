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


class Admitted:
    """A connection that was admitted."""

    def __init__(self, abort: Callable[[], object]) -> None:
        self.abort = abort
        self.connected: bool | None = None

    def make_protocol(self) -> asyncio.BaseProtocol:
        return asyncio.Protocol()

    def on_opened(self, *, connected: bool) -> None:
        self.connected = connected


class Accepting:
    """An acceptor, and the connections that it admitted."""

    def __init__(self, tls: Callable[[], ssl.SSLContext] | None, *, closes_at_once: bool = False) -> None:
        self.admitted: list[Admitted] = []
        self._writers: list[asyncio.StreamWriter] = []
        self.closes_at_once = closes_at_once
        listening = socket.create_server((LOOPBACK, 0))
        self.port = listening.getsockname()[1]
        self.acceptor = TcpAcceptor(listening, self._admit, tls=tls, handshake_timeout_s=PATIENCE_S)

    def _admit(self, address: str, abort: Callable[[], object]) -> Admitted | None:
        assert address == LOOPBACK
        self.admitted.append(Admitted(abort))
        if self.closes_at_once:
            asyncio.get_running_loop().call_soon(abort)
        return self.admitted[-1]

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
    await until(lambda: len(accepting.admitted) == 2)
    accepting.admitted[0].abort()
    assert await closed(first)
    await until(lambda: accepting.admitted[0].connected is False)
    assert accepting.admitted[1].connected is None
    accepting.acceptor.abort()
    assert await closed(second)


@on_uvloop
async def test_handshakes_can_be_closed_on_uvloop(tls: ServerTls) -> None:
    made = Accepting(tls)
    readers = [await made.connect() for _ in range(3)]
    await until(lambda: len(made.admitted) == 3)
    for admitted in made.admitted:
        admitted.abort()
    assert all([await closed(reader) for reader in readers])
    made.acceptor.close()


@pytest.mark.parametrize("is_plain", [True, False])
async def test_a_connection_that_is_closed_before_it_begins_is_closed(tls: ServerTls, is_plain: bool) -> None:
    made = Accepting(None if is_plain else tls, closes_at_once=True)
    assert await closed(await made.connect())
    await until(lambda: made.admitted[0].connected is not None)
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
    await until(lambda: len(accepting.admitted) == 8)
    for admitted in accepting.admitted[:5]:
        admitted.abort()
    await until(lambda: all(admitted.connected is False for admitted in accepting.admitted[:5]))
    assert not released
    for admitted in accepting.admitted[5:]:
        admitted.abort()
    await until(lambda: released == [1])
