"""Takes TLS connections in, and counts those whose handshake is not over yet: asyncio's own server tells of none.

A handshake costs more than most of what a client can ask for with a few bytes, so there is none for a connection that
would be one too many: it is closed unanswered.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from regional_agent.http.client_addresses import counted_as

MAX_AT_ONCE = 64
"""Connections taken in one turn of the event loop; the kernel keeps the others."""

TRY_AGAIN_S = 0.5
"""When to look again (s) where the process has no descriptor left for a connection."""


class Doorway:
    """One listening socket, and who is shaking hands there."""

    def __init__(
        self,
        listening: socket.socket,
        tls: Callable[[], ssl.SSLContext],
        make: Callable[[], asyncio.Protocol],
        *,
        admits: Callable[[str], bool],
        on_ended: Callable[[], None],
        timeout_s: float,
    ) -> None:
        """Starts to take connections in.

        Args:
            tls: gives the context for a handshake.
            make: the protocol of a connection, which hears of it once the handshake is over.
            admits: whether there may be one more connection from an address.
            on_ended: hears of the end of every handshake, however it ended.
            timeout_s: how long (s) a handshake may take.
        """
        self.of_address: Counter[str | bytes] = Counter()
        """How many are shaking hands."""
        self._listening = listening
        self._tls = tls
        self._make = make
        self._admits = admits
        self._on_ended = on_ended
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._greeting: set[asyncio.Task[None]] = set()
        self._later: asyncio.TimerHandle | None = None
        self._loop.add_reader(listening, self._take)

    def __len__(self) -> int:
        return len(self._greeting)

    def close(self) -> None:
        """Take no more in; handshakes that have begun go on."""
        if self._later is not None:
            self._later.cancel()
        if self._listening.fileno() >= 0:
            self._loop.remove_reader(self._listening)
            self._listening.close()

    def cut(self) -> None:
        """End the handshakes too."""
        for greeting in self._greeting:
            greeting.cancel()

    def _take(self) -> None:
        for _ in range(MAX_AT_ONCE):
            try:
                accepted, (address, *_) = self._listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionError:
                continue
            except OSError:
                self._loop.remove_reader(self._listening)
                self._later = self._loop.call_later(TRY_AGAIN_S, self._loop.add_reader, self._listening, self._take)
                return
            if self._admits(address):
                accepted.setblocking(False)
                counted = counted_as(address)
                greeting = self._loop.create_task(self._greet(accepted, counted))
                self._greeting.add(greeting)
                self.of_address[counted] += 1
                greeting.add_done_callback(self._ended)
            else:
                accepted.close()

    async def _greet(self, accepted: socket.socket, counted: str | bytes) -> None:
        try:
            with suppress(OSError):  # who leaves in the middle of it, or speaks no TLS, has no answer
                await self._loop.connect_accepted_socket(
                    self._make, accepted, ssl=self._tls(), ssl_handshake_timeout=self._timeout_s
                )
        finally:
            self.of_address[counted] -= 1
            if not self.of_address[counted]:
                del self.of_address[counted]

    def _ended(self, greeting: asyncio.Task[None]) -> None:
        self._greeting.discard(greeting)
        self._on_ended()
