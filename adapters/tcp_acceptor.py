"""Accepts TCP connections one by one, so that connections in their TLS handshake can be counted, refused and closed.

The server of asyncio reports a TLS connection only after its handshake.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Protocol

from adapters.free_memory import release_free_memory

MAX_PER_TURN = 16
"""Maximum number of connections accepted in one turn of the event loop, so that a flood delays open connections by a
few milliseconds."""

RETRY_S = 0.5
"""Time (s) until the next attempt to accept if accepting fails, as when the process has no free file descriptor."""


MANY_HANDSHAKES = 128
"""Number of concurrent handshakes after which the memory that they leave is released; each leaves up to 300 KiB."""

RELEASE_AFTER_S = 2.0
"""Time (s) from the end of most handshakes to the release of their memory."""


class Accepted(Protocol):
    """A connection that was accepted and may begin."""

    def make_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol of the connection, after the handshake."""

    def on_opened(self, *, connected: bool) -> None:
        """The handshake has ended; `connected`: the protocol has a transport."""


class TcpAcceptor:
    """One listening socket and the connections whose protocol is not made yet."""

    def __init__(
        self,
        listening: socket.socket,
        accept_from: Callable[[str, Callable[[], object]], Accepted | None],
        *,
        tls: Callable[[], ssl.SSLContext] | None,
        handshake_timeout_s: float,
    ) -> None:
        """Start to accept.

        Args:
            listening: a socket that listens.
            accept_from: returns the connection of an address, or None to close it. The second argument closes the
                connection until its protocol is made.
            tls: returns the context for a handshake; None: without TLS.
            handshake_timeout_s: limit for one handshake (s).
        """
        listening.setblocking(False)
        self._listening = listening
        self._accept_from = accept_from
        self._tls = tls
        self._handshake_timeout_s = handshake_timeout_s
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[bool]] = set()
        self._unstarted: set[socket.socket] = set()
        """Sockets whose task has not taken its first step, which gives the socket to a transport."""
        self._retry: asyncio.TimerHandle | None = None
        self._most_handshakes = 0
        """Largest number of concurrent handshakes since their memory was released."""
        self._release: asyncio.TimerHandle | None = None
        self._loop.add_reader(listening, self._accept)

    def close(self) -> None:
        """Stop accepting; handshakes in progress continue."""
        if self._retry is not None:
            self._retry.cancel()
        if self._release is not None:
            self._release.cancel()
        if self._listening.fileno() >= 0:
            self._loop.remove_reader(self._listening)
            self._listening.close()

    def abort(self) -> None:
        """Cancel the handshakes in progress."""
        for opening in self._opening:
            opening.cancel()

    def _accept(self) -> None:
        for _ in range(MAX_PER_TURN):
            try:
                accepted, (address, *_) = self._listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionError:
                continue
            except OSError:
                self._loop.remove_reader(self._listening)
                self._retry = self._loop.call_later(RETRY_S, self._loop.add_reader, self._listening, self._accept)
                return
            self._begin(accepted, address)

    def _begin(self, accepted: socket.socket, address: str) -> None:
        opening: asyncio.Task[bool] | None = None

        def abort() -> None:
            if opening is not None:
                opening.cancel()

        connection = self._accept_from(address, abort)
        if connection is None:
            accepted.close()
            return
        accepted.setblocking(False)
        opening = self._loop.create_task(self._open(accepted, connection))
        self._opening.add(opening)
        self._unstarted.add(accepted)
        if self._tls is not None:
            self._most_handshakes = max(self._most_handshakes, len(self._opening))
        opening.add_done_callback(partial(self._opened, accepted, connection))

    async def _open(self, accepted: socket.socket, connection: Accepted) -> bool:
        self._unstarted.discard(accepted)
        with suppress(OSError):  # the client disconnected, or does not use TLS
            if self._tls is None:
                await self._loop.connect_accepted_socket(connection.make_protocol, accepted)
            else:
                await self._loop.connect_accepted_socket(
                    connection.make_protocol,
                    accepted,
                    ssl=self._tls(),
                    ssl_handshake_timeout=self._handshake_timeout_s,
                )
            return True
        return False

    def _opened(self, accepted: socket.socket, connection: Accepted, opening: asyncio.Task[bool]) -> None:
        self._opening.discard(opening)
        if accepted in self._unstarted:
            self._unstarted.discard(accepted)
            accepted.close()
        connected = not opening.cancelled() and opening.exception() is None and opening.result()
        connection.on_opened(connected=connected)
        if self._most_handshakes >= MANY_HANDSHAKES and self._release is None and self._are_few:
            self._release = self._loop.call_later(RELEASE_AFTER_S, self._release_memory)

    @property
    def _are_few(self) -> bool:
        return len(self._opening) <= MANY_HANDSHAKES // 4

    def _release_memory(self) -> None:
        self._release = None
        if self._are_few:
            self._most_handshakes = 0
            self._loop.run_in_executor(None, release_free_memory)
