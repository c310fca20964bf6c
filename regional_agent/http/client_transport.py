"""The wire to a client: bytes out, reading paused and resumed, and the ways to close."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from regional_agent.upstream.chunk_relay import Relay

if TYPE_CHECKING:
    from regional_agent.http.listener import Listener


class ClientWire:
    """What a connection from a client is before anything is known of what it says.

    What is built on it is an `asyncio.Protocol`, but inherits from nothing: with a base that
    is not compiled, neither would it be.
    """

    __slots__ = (
        "_limits",
        "_linger_until",
        "_reading",
        "_since",
        "_stopped_reading_at",
        "_stuck_since",
        "_transport",
        "_watched",
        "listener",
        "peer_ip",
        "scheme",
    )

    def __init__(self, listener: Listener) -> None:
        """Not connected yet."""
        self.listener = listener
        self._limits = listener.limits
        self._transport: asyncio.Transport | None = None
        self._reading = True
        self._stopped_reading_at = 0.0
        self._watched = -1
        """The socket's descriptor while nothing is read from it."""
        self._since = listener.clock()
        """When what is being waited for began: a head, a body, or nothing at all."""
        self._stuck_since: float | None = None
        """Since when the client has taken nothing of what is written."""
        self._linger_until: float | None = None
        self.peer_ip = ""
        self.scheme = b"http"

    def write(self, data: bytes) -> None:
        """Send bytes to the client, if it is still there."""
        if self._transport is not None:
            self.listener.outgoing.write(self._transport, data)

    def relay(self) -> Relay:
        """A shorter way for a stream of many small writes."""
        assert self._transport is not None
        return Relay(self.listener.outgoing, self._transport)

    def write_eof(self) -> None:
        """Say that nothing more will be written; where the transport cannot (TLS), close."""
        if self._transport is not None:
            self.listener.outgoing.flush()
            if self._transport.can_write_eof():
                self._transport.write_eof()
            else:
                self._transport.close()

    def abort(self) -> None:
        """Close at once: the client sees a broken response, not a short one that looks whole."""
        if self._transport is not None:
            self._transport.abort()

    @property
    def trusted(self) -> bool:
        """Whether the other side is a proxy of ours, believed about who asked."""
        return self.listener.trusts(self.peer_ip)

    def pause_reading(self) -> None:
        """Take no more bytes in."""
        if self._reading and self._transport is not None:
            self._transport.pause_reading()
            self._reading, self._stopped_reading_at = False, self.listener.clock()
            socket = self._transport.get_extra_info("socket")
            if socket is not None:
                self._watched = socket.fileno()
                self.listener.departures.watch(self, self._watched)

    def resume_reading(self) -> None:
        """Go on after `pause_reading`; the pause is not counted as the client's time."""
        if not self._reading and self._transport is not None:
            self._transport.resume_reading()
            self._reading = True
            self._since += self.listener.clock() - self._stopped_reading_at
            self._watch_no_more()

    def departed(self, *, wholly: bool) -> None:
        """The client has gone while reading was paused."""
        self.abort()

    def _watch_no_more(self) -> None:
        if self._watched >= 0:
            self.listener.departures.forget(self, self._watched)
            self._watched = -1

    def _close(self) -> None:
        """Close when everything is written, which a client that does not read cannot put off for ever."""
        if self._transport is not None:
            self._linger_until = self.listener.clock() + self._limits.write_stall_timeout_s
            self.listener.outgoing.flush()
            self._transport.close()

    def _linger(self, seconds: float) -> None:
        """Say that no more will be written, and read on for so long (s), so that the client gets to read it."""
        if self._transport is not None:
            self._linger_until = self.listener.clock() + seconds
            self.resume_reading()
            self.listener.outgoing.flush()
            if self._transport.can_write_eof():
                self._transport.write_eof()
