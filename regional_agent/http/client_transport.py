"""The byte level of a client connection: writing, pausing and resuming reads, and the ways to close."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress
from typing import Final

from regional_agent.http.listener_state import ListenerState

_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)
_ORDERLY_CLOSE: Final = struct.pack("ii", 0, 0)
"""Values of SO_LINGER: `struct linger` of socket(7)."""


class ClientTransport:
    """Bytes to and from one client, without any HTTP.

    Subclasses implement `asyncio.Protocol` without inheriting from it: mypyc does not compile classes with interpreted
    bases.
    """

    __slots__ = (
        "_ends_at_close",
        "_limits",
        "_linger_s",
        "_linger_until",
        "_lingers_since",
        "_paused_at",
        "_reading",
        "_since",
        "_transport",
        "_watched",
        "_write_stalled_since",
        "is_cut",
        "listener",
        "peer_ip",
        "scheme",
    )

    def __init__(self, listener: ListenerState) -> None:
        """Create a connection without a transport."""
        self.listener = listener
        self._limits = listener.limits
        self._transport: asyncio.Transport | None = None
        self._ends_at_close = False
        """Whether the close of the connection is the end of a response."""
        self.is_cut = False
        """Whether the response before the close is incomplete, so that such a close is a reset."""
        self._reading = True
        self._paused_at = 0.0
        self._watched = -1
        """The socket's descriptor while reading is paused, else -1."""
        self._since = listener.clock()
        """Start of the current wait: for a head, for a body, or for the next request."""
        self._write_stalled_since: float | None = None
        """Time (s) since which the write buffer is above its high-water mark; None while it is not."""
        self._linger_until: float | None = None
        self._linger_s = 0.0
        """Time (s) after data that is dropped until the connection is closed; 0 where none is read."""
        self._lingers_since = 0.0
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
        """Close the connection at once, so that the client detects that the response is truncated.

        The connection is reset only after `end_at_close`: a reset may destroy data that the client has not read yet,
        and other responses are incomplete without their last chunk, or the rest of their length.
        """
        if self._transport is not None:
            if self._ends_at_close:
                self._set_linger(_RESET_ON_CLOSE)
            self._transport.abort()

    def end_at_close(self) -> None:
        """Reset the connection whenever it ends without `_close`, because its close is the end of a response.

        An orderly close would be a valid end, with and without close_notify of TLS. The kernel also resets the
        connection if this process is killed.
        """
        self._ends_at_close, self.is_cut = True, False
        self._set_linger(_RESET_ON_CLOSE)

    @property
    def trusted(self) -> bool:
        """Whether the client is a trusted proxy, whose X-Forwarded headers are used."""
        return self.listener.trusts(self.peer_ip)

    def pause_reading(self) -> None:
        """Stop reading, and watch for a disconnect meanwhile."""
        if self._reading and self._transport is not None:
            self._transport.pause_reading()
            self._reading, self._paused_at = False, self.listener.clock()
            connected = self._transport.get_extra_info("socket")
            if connected is not None:
                self._watched = connected.fileno()
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
            self._linger_s = 0.0
            if self._ends_at_close and not self.is_cut:
                self._set_linger(_ORDERLY_CLOSE)
            self.listener.batcher.flush()
            if self._ends_at_close and self.is_cut and self.listener.secure:
                self._transport.abort()  # without close_notify
            else:
                self._transport.close()

    def _linger_on(self) -> None:
        """Postpone the end of `_linger` after data has arrived, but not beyond `Limits.body_timeout_s` in all."""
        if self._linger_s:
            end = self._lingers_since + max(self._linger_s, self._limits.body_timeout_s)
            self._linger_until = min(self.listener.clock() + self._linger_s, end)

    def _set_linger(self, linger: bytes) -> None:
        transport = self._transport
        # A transport that has nothing left to send may have closed its descriptor.
        if transport is not None and (not transport.is_closing() or transport.get_write_buffer_size()):
            connected = transport.get_extra_info("socket")
            if connected is not None:
                with suppress(OSError):  # the socket is closed already
                    connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)

    def _linger(self, linger_s: float) -> None:
        """Half-close, and read until nothing has arrived for `linger_s` (s), so that the client can read the response
        before a reset: many clients read only when they have sent all of their request."""
        if self._transport is not None:
            self._linger_s, self._lingers_since = linger_s, self.listener.clock()
            self._linger_until = self._lingers_since + linger_s
            self.resume_reading()
            self.listener.batcher.flush()
            if self._transport.can_write_eof():
                self._transport.write_eof()
