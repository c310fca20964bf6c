"""The byte level of a client connection: writing, pausing and resuming reads, timers, and the ways to close."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress
from typing import Final

from regional_agent.http.listener_state import ListenerState

LINGER_S: Final = 2.0
"""Time (s) without data after which a connection is closed whose client is still sending when the final response is
written. The data is dropped. Closing at once would reset the connection, and the client might not read the response."""

_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)
_ORDERLY_CLOSE: Final = struct.pack("ii", 0, 0)
"""Values of SO_LINGER: `struct linger` of socket(7)."""


class ClientTransport:
    """Bytes to and from one client, without any HTTP."""

    def __init__(self, listener: ListenerState) -> None:
        """Start without a connection."""
        self._listener = listener
        self._limits = listener.limits
        self.connected: asyncio.Transport | None = None
        """The transport of asyncio while the client is connected, else None."""
        self.half_closes = False
        """Whether the client may close its sending side and still read. Otherwise a half-close is a disconnect."""
        self._ends_at_close = False
        """Whether the close of the connection is the end of a response."""
        self.is_cut = False
        """Whether the response before the close is incomplete, so that such a close is a reset."""
        self.reading = True
        self._paused_at = 0.0
        self._watched = -1
        """The socket's descriptor while reading is paused, else -1."""
        self.waits_since = listener.clock()
        """Start of the current wait (s): for a head, for a body, or for the next request."""
        self.write_stalled_since: float | None = None
        """Time (s) since which the write buffer is above its high-water mark; None while it is not."""
        self._linger_until: float | None = None
        """Time (s) at which the connection is closed at the latest; None while it does not end."""
        self._lingers_since = 0.0
        """Time (s) since which what the client sends is read and dropped; 0 where nothing is read."""

    # the connection

    def connect(self, transport: asyncio.Transport) -> None:
        """Use an established connection."""
        self.connected = transport

    def disconnect(self) -> None:
        """The connection is lost."""
        self.connected = None
        self._unwatch()

    def client_certificate(self) -> bytes | None:
        """Return the client's certificate (DER), which TLS has verified; None without TLS or a certificate."""
        tls = None if self.connected is None else self.connected.get_extra_info("ssl_object")
        certificate: bytes | None = None if tls is None else tls.getpeercert(binary_form=True)
        return certificate

    # writing

    def write(self, data: bytes) -> None:
        """Send bytes to the client, if it is still connected."""
        if self.connected is not None:
            self._listener.batcher.write(self.connected, data)

    def flush(self) -> None:
        """Send all that was written, so that a full write buffer is noticed."""
        self._listener.batcher.flush()

    def write_eof(self) -> None:
        """Half-close the connection; close it if the transport has no half-close (TLS)."""
        if self.connected is not None:
            self._listener.batcher.write_eof(self.connected)

    # reading

    def pause_reading(self) -> None:
        """Stop reading, and watch for a disconnect meanwhile."""
        if self.reading and self.connected is not None:
            self.connected.pause_reading()
            self.reading, self._paused_at = False, self._listener.clock()
            connected = self.connected.get_extra_info("socket")
            if connected is not None:
                self._watched = connected.fileno()
                self._listener.disconnects.watch(self, self._watched)

    def resume_reading(self) -> None:
        """Continue after `pause_reading`. The pause does not count towards the client's timeouts."""
        if not self.reading and self.connected is not None:
            self.connected.resume_reading()
            self.reading = True
            self.waits_since += self._listener.clock() - self._paused_at
            self._unwatch()

    def on_disconnect(self, *, fully: bool) -> None:
        """Abort the connection, because the client disconnected, or half-closed, while reading was paused."""
        if fully or not self.half_closes:
            self.abort()

    def _unwatch(self) -> None:
        if self._watched >= 0:
            self._listener.disconnects.unwatch(self, self._watched)
            self._watched = -1

    # closing

    def check_timeouts(self, now: float) -> bool:
        """Close a connection whose client reads too slowly, or has not closed a connection that ends. `now` in s.

        Returns:
            Whether the connection was closed.
        """
        stalled_since = self.write_stalled_since
        if stalled_since is not None and now - stalled_since > self._limits.write_stall_timeout_s:
            self.abort()
            return True
        if self._linger_until is not None and now > self._linger_until and self.connected is not None:
            if self.connected.is_closing():
                self.abort()
            else:
                self.close()
            return True
        return False

    def abort(self) -> None:
        """Close the connection at once, so that the client detects that the response is truncated.

        The connection is reset only after `end_at_close`: a reset may destroy data that the client has not read yet,
        and clients of HTTP/1.1 see that the last chunk, or the rest of the length, is missing.
        """
        if self.connected is not None:
            if self._ends_at_close:
                self._set_linger(_RESET_ON_CLOSE)
            self.connected.abort()

    def end_at_close(self) -> None:
        """Reset the connection whenever it ends without `close`, because its close may be the end of a response.

        An orderly close would be a valid end, with and without close_notify of TLS. The kernel also resets the
        connection if this process is killed.
        """
        self._ends_at_close, self.is_cut = True, False
        self._set_linger(_RESET_ON_CLOSE)

    def end_in_order(self) -> None:
        """Undo `end_at_close`: the response is complete, and the connection stays open."""
        self._ends_at_close = False
        self._set_linger(_ORDERLY_CLOSE)

    def close(self) -> None:
        """Close after all data has been sent, but no later than after `Limits.write_stall_timeout_s`."""
        if self.connected is not None:
            self._linger_until = self._listener.clock() + self._limits.write_stall_timeout_s
            self._lingers_since = 0.0
            if self._ends_at_close and not self.is_cut:
                self._set_linger(_ORDERLY_CLOSE)
            self._listener.batcher.flush()
            if self._ends_at_close and self.is_cut and self._listener.secure:
                self.connected.abort()  # without close_notify
            else:
                self.connected.close()

    def linger(self) -> None:
        """Half-close, and read until nothing has arrived for LINGER_S, so that the client can read the response before
        a reset: many clients read only when they have sent all of their request."""
        if self.connected is not None:
            self._lingers_since = self._listener.clock()
            self._linger_until = self._lingers_since + LINGER_S
            self.resume_reading()
            self._listener.batcher.flush()
            if self.connected.can_write_eof():
                self.connected.write_eof()

    def linger_on(self) -> None:
        """Postpone the end of `linger` after data has arrived, but not beyond `Limits.body_timeout_s` in all."""
        if self._lingers_since:
            end = self._lingers_since + max(LINGER_S, self._limits.body_timeout_s)
            self._linger_until = min(self._listener.clock() + LINGER_S, end)

    def _set_linger(self, linger: bytes) -> None:
        transport = self.connected
        # A transport that has nothing left to send may have closed its descriptor.
        if transport is not None and (not transport.is_closing() or transport.get_write_buffer_size()):
            connected = transport.get_extra_info("socket")
            if connected is not None:
                with suppress(OSError):  # the socket is closed already
                    connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
