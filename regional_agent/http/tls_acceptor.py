"""Accepts TLS connections, with a limit on handshakes, which the server of asyncio does not report.

A handshake costs more than most requests. A connection over the limits is therefore closed before its handshake.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from regional_agent.http.connection_counts import ConnectionCounts

MAX_PER_TURN = 64
"""Maximum number of connections accepted in one turn of the event loop."""

RETRY_S = 0.5
"""Time (s) until the next attempt to accept if accepting fails, as when the process has no free file descriptor."""


class TlsAcceptor:
    """One listening socket and its handshakes in progress."""

    def __init__(
        self,
        listening: socket.socket,
        tls: Callable[[], ssl.SSLContext],
        make_protocol: Callable[[], asyncio.Protocol],
        *,
        counts: ConnectionCounts,
        on_handshake_end: Callable[[], None],
        timeout_s: float,
    ) -> None:
        """Start to accept.

        Args:
            tls: returns the context for a handshake.
            make_protocol: returns the protocol of a connection, attached after the handshake.
            counts: decides whether a handshake may begin.
            on_handshake_end: called after every handshake, whether it succeeded or failed.
            timeout_s: limit for one handshake (s).
        """
        self._listening = listening
        self._tls = tls
        self._make_protocol = make_protocol
        self._counts = counts
        self._on_handshake_end = on_handshake_end
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._handshakes: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._loop.add_reader(listening, self._accept)

    def close(self) -> None:
        """Stop accepting; handshakes in progress continue."""
        if self._retry is not None:
            self._retry.cancel()
        if self._listening.fileno() >= 0:
            self._loop.remove_reader(self._listening)
            self._listening.close()

    def abort(self) -> None:
        """Cancel the handshakes in progress."""
        for handshake in self._handshakes:
            handshake.cancel()

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
            if self._counts.admits_handshake(address):
                accepted.setblocking(False)
                handshake = self._loop.create_task(self._shake_hands(accepted))
                self._handshakes.add(handshake)
                self._counts.add_handshake(address)
                handshake.add_done_callback(partial(self._ended, address))
            else:
                accepted.close()

    async def _shake_hands(self, accepted: socket.socket) -> None:
        with suppress(OSError):  # the client disconnected, or does not use TLS
            await self._loop.connect_accepted_socket(
                self._make_protocol, accepted, ssl=self._tls(), ssl_handshake_timeout=self._timeout_s
            )

    def _ended(self, address: str, handshake: asyncio.Task[None]) -> None:
        self._counts.remove_handshake(address)
        self._handshakes.discard(handshake)
        self._on_handshake_end()
