"""The byte level of a client connection: writing, pausing and resuming reads, and the ways to close."""

from __future__ import annotations

import asyncio

from regional_agent.http.listener_state import ListenerState


class ClientTransport:
    """Bytes to and from one client, without any HTTP.

    Subclasses implement `asyncio.Protocol` without inheriting from it: mypyc does not compile classes with interpreted
    bases.
    """

    __slots__ = (
        "_limits",
        "_linger_until",
        "_paused_at",
        "_reading",
        "_since",
        "_transport",
        "_watched",
        "_write_stalled_since",
        "listener",
        "peer_ip",
        "scheme",
    )

    def __init__(self, listener: ListenerState) -> None:
        """Create a connection without a transport."""
        self.listener = listener
        self._limits = listener.limits
        self._transport: asyncio.Transport | None = None
        self._reading = True
        self._paused_at = 0.0
        self._watched = -1
        """The socket's descriptor while reading is paused, else -1."""
        self._since = listener.clock()
        """Start of the current wait: for a head, for a body, or for the next request."""
        self._write_stalled_since: float | None = None
        """Time (s) since which the write buffer is above its high-water mark; None while it is not."""
        self._linger_until: float | None = None
        self.peer_ip = ""
        self.scheme = b"http"

    def write(self, data: bytes) -> None:
        """Send bytes to the client, if it is still connected."""
        if self._transport is not None:
            self.listener.batcher.write(self._transport, data)

    @property
    def transport(self) -> asyncio.Transport:
        """The transport of an established connection."""
        assert self._transport is not None
        return self._transport

    def client_certificate(self) -> bytes | None:
        """Return the client's certificate (DER), which TLS has verified; None without TLS or a certificate."""
        tls = None if self._transport is None else self._transport.get_extra_info("ssl_object")
        certificate: bytes | None = None if tls is None else tls.getpeercert(binary_form=True)
        return certificate

    def write_eof(self) -> None:
        """Half-close the connection; close it if the transport has no half-close (TLS)."""
        if self._transport is not None:
            self.listener.batcher.write_eof(self._transport)

    def abort(self) -> None:
        """Close the connection at once, so that the client detects that the response is truncated."""
        if self._transport is not None:
            self._transport.abort()

    @property
    def trusted(self) -> bool:
        """Whether the client is a trusted proxy, whose X-Forwarded headers are used."""
        return self.listener.trusts(self.peer_ip)

    def pause_reading(self) -> None:
        """Stop reading, and watch for a disconnect meanwhile."""
        if self._reading and self._transport is not None:
            self._transport.pause_reading()
            self._reading, self._paused_at = False, self.listener.clock()
            socket = self._transport.get_extra_info("socket")
            if socket is not None:
                self._watched = socket.fileno()
                self.listener.disconnects.watch(self, self._watched)

    def resume_reading(self) -> None:
        """Continue after `pause_reading`. The pause does not count towards the client's timeouts."""
        if not self._reading and self._transport is not None:
            self._transport.resume_reading()
            self._reading = True
            self._since += self.listener.clock() - self._paused_at
            self._unwatch()

    def on_disconnect(self, *, fully: bool) -> None:
        """Abort the connection, because the client disconnected while reading was paused."""
        self.abort()

    def _unwatch(self) -> None:
        if self._watched >= 0:
            self.listener.disconnects.unwatch(self, self._watched)
            self._watched = -1

    def _close(self) -> None:
        """Close after all data has been sent, but no later than after `Limits.write_stall_timeout_s`."""
        if self._transport is not None:
            self._linger_until = self.listener.clock() + self._limits.write_stall_timeout_s
            self.listener.batcher.flush()
            self._transport.close()

    def _linger(self, linger_s: float) -> None:
        """Half-close, and read for `linger_s` (s), so that the client can read the response before a reset."""
        if self._transport is not None:
            self._linger_until = self.listener.clock() + linger_s
            self.resume_reading()
            self.listener.batcher.flush()
            if self._transport.can_write_eof():
                self._transport.write_eof()
