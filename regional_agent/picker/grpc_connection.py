"""gRPC over one HTTP/2 connection of Envoy, as far as ext_proc needs it: no compression of messages, no deadlines.

The frames of one read are processed together and answered in one write. A complete implementation of HTTP/2, such as
the library h2, has checks for each kind of header and stream that took a third of the CPU time of a request.

Source: https://www.rfc-editor.org/rfc/rfc9113
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, Protocol, cast

import structlog

from regional_agent.picker import http2_frames as http2
from regional_agent.picker.flood_limits import FloodLimits
from regional_agent.picker.grpc_stream import OK, GrpcCall, GrpcStream
from regional_agent.picker.header_blocks import MAX_HEADER_LIST_BYTES, HeaderBlocks
from regional_agent.picker.http2_frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEAD_BYTES,
    HEADERS,
    MAX_FRAME_BYTES,
    MAX_STREAM,
    PROTOCOL_ERROR,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Http2Error,
)

CONNECTION_WINDOW_BYTES: Final = 16 * 1024 * 1024
"""Bytes that Envoy may send on all streams of a connection before the picker has read them; 64 KiB on each stream."""

_PING_BYTES: Final = 8
_SHRINK_TABLE: Final = b"\x20"
"""The change of a dynamic table to size 0, which a client can require before the next header block."""

log = structlog.get_logger()


class GrpcService(Protocol):
    """Creates the calls of a connection, and counts connections."""

    max_message_bytes: int
    max_streams: int

    def connected(self, connection: GrpcConnection) -> bool:
        """Count a connection; returns whether it is accepted."""

    def disconnected(self, connection: GrpcConnection) -> None:
        """Count the end of a connection."""

    def buffered(self, grown_bytes: int) -> None:
        """Count what connections hold of messages that have not arrived whole or cannot be sent yet.

        Args:
            grown_bytes: by how much (bytes) it has grown; negative for less.
        """

    def call(self, path: bytes, stream: GrpcStream) -> GrpcCall | None:
        """Return the call of a method, by its path; None if it has ended the stream."""


class GrpcConnection:
    """One connection of a client: an `asyncio.Protocol`, without that base, so that mypyc can compile it."""

    def __init__(self, service: GrpcService) -> None:
        """Start without a transport."""
        self._service = service
        self._max_message_bytes = service.max_message_bytes
        self._blocks = HeaderBlocks()
        self._transport: asyncio.Transport | None = None
        self._streams: dict[int, GrpcStream] = {}
        self._last_stream = 0
        self._rest = b""
        """The part of a frame that has arrived, or of the preface."""
        self._has_preface = False
        self._has_settings = False
        self._block: list[bytes] = []
        """The parts of a header block whose end has not arrived, for the stream `_block_of`."""
        self._block_bytes = 0
        self._block_of = 0
        self._block_ends_stream = False
        self._send_window = http2.DEFAULT_WINDOW_BYTES
        self._stream_window = http2.DEFAULT_WINDOW_BYTES
        """What the client permits to send on a new stream."""
        self._block_prefix = b""
        self._receive_window = CONNECTION_WINDOW_BYTES
        self._frames: list[bytes | memoryview] = []
        """What is due to be written."""
        self._to_write: dict[int, GrpcStream] = {}
        self._blocked: dict[int, GrpcStream] = {}
        """The streams whose messages wait for the permission of the client."""
        self._unblocks = False
        """Whether the client has permitted more on all streams since the last write."""
        self._closed = False
        self._floods = FloodLimits()
        self.buffered_bytes = 0
        """What its streams hold of messages that have not arrived whole or cannot be sent yet."""
        self._in_read = False
        self._scheduled = False
        self._paused = False
        self.peer_ip = ""
        self.certificate: bytes | None = None
        """The client's certificate (DER), which TLS has verified; None without one."""

    @property
    def streams(self) -> int:
        """Number of open streams."""
        return len(self._streams)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.peer_ip = peer[0] if peer else ""
        tls: Any = transport.get_extra_info("ssl_object")
        self.certificate = tls.getpeercert(binary_form=True) if tls is not None else None
        if not self._service.connected(self):
            self.abort()
            return
        stated = {
            http2.MAX_CONCURRENT_STREAMS: self._service.max_streams,
            http2.MAX_HEADER_LIST_SIZE: MAX_HEADER_LIST_BYTES,
        }
        window = http2.window_update_frame(0, CONNECTION_WINDOW_BYTES - http2.DEFAULT_WINDOW_BYTES)
        self._transport.write(http2.settings_frame(stated) + window)

    def data_received(self, data: bytes) -> None:
        # TLS may have decrypted data before the connection was refused.
        if self._closed:
            return
        self._in_read = True
        try:
            self._read(self._rest + data if self._rest else data)
        except Http2Error as error:
            self.end(error)
        finally:
            self._in_read = False
        self._write()

    def eof_received(self) -> bool | None:
        """Close the connection, since its client cannot end its streams any more."""
        return None

    def pause_writing(self) -> None:
        self._paused = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._paused = False
        if self._transport is not None:
            self._transport.resume_reading()
        self._write()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._close_all()
        self._service.disconnected(self)

    def go_away(self) -> None:
        """Ask the client to open its next streams on another connection; open ones continue."""
        if self._transport is not None:
            self._transport.write(http2.goaway_frame(MAX_STREAM, http2.NO_ERROR))

    def abort(self) -> None:
        """Close the connection at once."""
        self._closed = True
        if self._transport is not None:
            self._transport.abort()

    def end(self, error: Http2Error) -> None:
        """Close the connection and its streams, with the reason for the client."""
        if self._closed:
            return
        log.info("closed a connection to the endpoint picker", address=self.peer_ip, reason=str(error)[:200])
        if self._transport is not None:
            self._frames.append(http2.goaway_frame(self._last_stream, error.code))
            self._transport.write(b"".join(self._frames))
        self._frames.clear()
        self.abort()
        self._close_all()

    def sweep(self) -> None:
        """Close what has waited for its client for too long. Called at regular intervals."""
        error = self._floods.sweep(has_preface=self._has_settings)
        if error is not None:
            self.end(error)
        for stream in list(self._streams.values()):
            if self._floods.has_waited(stream):
                self._frames.append(http2.reset_frame(stream.number, http2.CANCEL))
                self._close(stream)
        self._write()

    # frames

    def _read(self, data: bytes) -> None:
        """Process all frames in `data`, and keep the rest."""
        at, end = 0, len(data)
        if not self._has_preface:
            if data[: len(http2.PREFACE)] != http2.PREFACE[:end]:
                raise Http2Error(PROTOCOL_ERROR, "the connection does not begin with the preface of HTTP/2")
            if end < len(http2.PREFACE):
                self._rest = data
                return
            self._has_preface, at = True, len(http2.PREFACE)
        while end - at >= HEAD_BYTES and not self._closed:
            size = (data[at] << 16) | (data[at + 1] << 8) | data[at + 2]
            if size > MAX_FRAME_BYTES:
                raise Http2Error(http2.FRAME_SIZE_ERROR, "a frame is too large")
            begin = at + HEAD_BYTES
            if end - begin < size:
                break
            kind, flags = data[at + 3], data[at + 4]
            number = (data[at + 5] << 24 | data[at + 6] << 16 | data[at + 7] << 8 | data[at + 8]) & MAX_STREAM
            at = begin + size
            self._process(kind, flags, number, data[begin:at])
        self._rest = data[at:]

    def _process(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if not self._has_settings:
            if kind != SETTINGS or flags & http2.ACK:
                raise Http2Error(PROTOCOL_ERROR, "the first frame is not SETTINGS")
            self._has_settings = True
        if (kind == CONTINUATION) != bool(self._block) or (self._block and number != self._block_of):
            raise Http2Error(PROTOCOL_ERROR, "a header block is interrupted, or continued without a beginning")
        if kind != HEADERS and (kind != DATA or not payload):
            self._floods.idle_frame()
        if kind == DATA:
            self._on_data(flags, self._stream(number, "DATA"), number, payload)
        elif kind == HEADERS:
            self._on_headers(flags, number, payload)
        elif kind == CONTINUATION:
            self._add_to_block(flags, payload)
        elif kind == WINDOW_UPDATE:
            self._on_window_update(number, payload)
        elif kind == RST_STREAM:
            stream = self._stream(number, "RST_STREAM")
            http2.number_of(payload, "RST_STREAM")
            if stream is not None:
                self._close(stream)
        elif kind == SETTINGS:
            self._on_settings(flags, number, payload)
        elif kind == http2.PING:
            if number or len(payload) != _PING_BYTES:
                raise Http2Error(PROTOCOL_ERROR, "PING has another size, or a stream")
            if not flags & http2.ACK:
                self._frames.append(http2.frame(http2.PING, http2.ACK, 0, payload))
        elif kind == http2.PUSH_PROMISE:
            raise Http2Error(PROTOCOL_ERROR, "a client may not push")
        # PRIORITY has no effect, after GOAWAY the client closes the connection, and unknown types are extensions.

    def _stream(self, number: int, frame_name: str) -> GrpcStream | None:
        """Return an open stream, None if it has ended; raises Http2Error if it was never opened."""
        stream = self._streams.get(number)
        if stream is None and (number > self._last_stream or not number & 1):
            raise Http2Error(PROTOCOL_ERROR, f"{frame_name} for a stream that is not open")
        return stream

    def _on_data(self, flags: int, stream: GrpcStream | None, number: int, payload: bytes) -> None:
        size = len(payload)
        self._receive_window -= size
        if self._receive_window < 0:
            raise Http2Error(http2.FLOW_CONTROL_ERROR, "the client sends more than the connection permits")
        if self._receive_window < CONNECTION_WINDOW_BYTES // 2:
            self._frames.append(http2.window_update_frame(0, CONNECTION_WINDOW_BYTES - self._receive_window))
            self._receive_window = CONNECTION_WINDOW_BYTES
        payload = http2.unpadded(payload, flags)
        if stream is None:
            return
        stream.receive_window -= size
        if stream.receive_window < 0:
            raise Http2Error(http2.FLOW_CONTROL_ERROR, "the client sends more than a stream permits")
        if not flags & END_STREAM:
            self._grant(stream)
        stream.receive(payload, self._max_message_bytes)
        if stream.is_partial or stream.counted_bytes:
            self._count(stream)
        if flags & END_STREAM:
            self._end_of(stream)

    def _grant(self, stream: GrpcStream) -> None:
        """Let the client send more on a stream of which it has used half of the window."""
        if stream.receive_window < http2.DEFAULT_WINDOW_BYTES // 2 and not stream.is_held:
            grown = http2.DEFAULT_WINDOW_BYTES - stream.receive_window
            self._frames.append(http2.window_update_frame(stream.number, grown))
            stream.receive_window = http2.DEFAULT_WINDOW_BYTES

    def _on_headers(self, flags: int, number: int, payload: bytes) -> None:
        if not number & 1:
            raise Http2Error(PROTOCOL_ERROR, "HEADERS for a stream that a client cannot open")
        block = http2.header_block(payload, flags)
        if flags & END_HEADERS:
            self._on_block(number, block, ends=bool(flags & END_STREAM))
        else:
            self._block, self._block_of, self._block_ends_stream = [block], number, bool(flags & END_STREAM)
            self._block_bytes = len(block)

    def _add_to_block(self, flags: int, payload: bytes) -> None:
        self._block.append(payload)
        # Each part counts with the size of its frame's head, so that parts without bytes are limited too.
        self._block_bytes += len(payload) + HEAD_BYTES
        if self._block_bytes > MAX_HEADER_LIST_BYTES:
            raise Http2Error(http2.ENHANCE_YOUR_CALM, "a header block is too large")
        if flags & END_HEADERS:
            block, self._block = b"".join(self._block), []
            self._on_block(self._block_of, block, ends=self._block_ends_stream)

    def _on_block(self, number: int, block: bytes, *, ends: bool) -> None:
        """Process a whole header block: it opens a stream, or ends one as trailers."""
        # Blocks of streams that have ended are decoded too, since they may change the table.
        path = self._blocks.path_of(block)
        if number <= self._last_stream:
            known = self._streams.get(number)
            if known is not None and ends:
                self._end_of(known)
            elif known is not None:
                raise Http2Error(PROTOCOL_ERROR, "a second head of a stream")
            return
        self._last_stream = number
        if len(self._streams) >= self._service.max_streams:
            self._frames.append(http2.reset_frame(number, http2.REFUSED_STREAM))
            return
        self._floods.call_began()
        stream = GrpcStream(number, self.peer_ip, 2 * self._max_message_bytes, self.write_soon)
        self._streams[number] = stream
        stream.call = self._service.call(path, stream)
        if ends:
            self._end_of(stream)

    def _on_window_update(self, number: int, payload: bytes) -> None:
        grown = http2.number_of(payload, "WINDOW_UPDATE")
        if not grown:
            raise Http2Error(PROTOCOL_ERROR, "WINDOW_UPDATE by 0")
        if number:
            stream = self._stream(number, "WINDOW_UPDATE")
            if stream is not None:
                stream.granted_bytes += grown
                if self._stream_window + stream.granted_bytes > http2.MAX_WINDOW_BYTES:
                    raise Http2Error(http2.FLOW_CONTROL_ERROR, "the window of a stream is too large")
                self._to_write[number] = stream
        else:
            self._send_window += grown
            if self._send_window > http2.MAX_WINDOW_BYTES:
                raise Http2Error(http2.FLOW_CONTROL_ERROR, "the window of the connection is too large")
            self._unblocks = True

    def _on_settings(self, flags: int, number: int, payload: bytes) -> None:
        if number or (flags & http2.ACK and payload):
            raise Http2Error(PROTOCOL_ERROR, "SETTINGS has a stream, or acknowledges with a payload")
        if flags & http2.ACK:
            return
        settings = http2.settings_of(payload)
        window = dict(settings).get(http2.INITIAL_WINDOW_SIZE, self._stream_window)
        if window > self._stream_window:
            # The setting applies to open streams too (RFC 9113, section 6.9.2).
            most_granted = max((stream.granted_bytes for stream in self._streams.values()), default=0)
            if window + most_granted > http2.MAX_WINDOW_BYTES:
                raise Http2Error(http2.FLOW_CONTROL_ERROR, "the window of a stream is too large")
        self._stream_window, self._unblocks = window, True
        if any(name == http2.HEADER_TABLE_SIZE and value < http2.DEFAULT_TABLE_BYTES for name, value in settings):
            # Responses have no entries of the table, but its size 0 has to be stated.
            self._block_prefix = _SHRINK_TABLE
        self._frames.append(http2.frame(SETTINGS, http2.ACK, 0, b""))

    # streams

    def _end_of(self, stream: GrpcStream) -> None:
        """The client has ended its side of a stream: its call ends now, since no further message can arrive."""
        stream.end(OK)
        self._write_stream(stream)
        if not stream.ended:
            # What flow control does not permit now is not sent later: the stream would stay open.
            self._frames.append(http2.reset_frame(stream.number, http2.CANCEL))
        self._close(stream)

    def _close(self, stream: GrpcStream) -> None:
        self._streams.pop(stream.number, None)
        self._to_write.pop(stream.number, None)
        self._blocked.pop(stream.number, None)
        error = self._floods.call_ends(stream)
        self._finish(stream)
        if error is not None:
            self.end(error)

    def _close_all(self) -> None:
        self._closed = True
        streams, self._streams = self._streams, {}
        self._to_write.clear()
        self._blocked.clear()
        for stream in streams.values():
            self._finish(stream)

    def _finish(self, stream: GrpcStream) -> None:
        stream.close()
        self._count(stream)

    def _count(self, stream: GrpcStream) -> None:
        """Count what a stream holds."""
        grown = stream.buffered_bytes - stream.counted_bytes
        if grown:
            stream.counted_bytes += grown
            self.buffered_bytes += grown
            self._service.buffered(grown)

    def write_soon(self, stream: GrpcStream) -> None:
        """Write what a stream has to send: after the current read, or in the next turn of the event loop."""
        self._to_write[stream.number] = stream
        if not self._in_read and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._write)

    def _write(self) -> None:
        self._scheduled = False
        transport = self._transport
        if transport is None or self._paused or self._closed:
            return
        if self._unblocks:
            self._unblocks = False
            self._to_write.update(self._blocked)
        while self._to_write:
            waiting, self._to_write = self._to_write, {}
            for stream in waiting.values():
                self._write_stream(stream)
                if stream.ended:
                    # Its client may wait for the permission to send more (RFC 9113, section 8.1).
                    self._frames.append(http2.reset_frame(stream.number, http2.NO_ERROR))
                    self._close(stream)
        if self._frames and not self._closed:
            frames, self._frames = self._frames, []
            transport.write(b"".join(frames))

    def _write_stream(self, stream: GrpcStream) -> None:
        if not stream.ended:
            self._grant(stream)
        window = self._stream_window
        self._send_window -= stream.write(self._frames, window, self._send_window, self._block_prefix)
        if stream.is_blocked:
            self._blocked[stream.number] = stream
            self._count(stream)
        elif stream.counted_bytes:
            self._blocked.pop(stream.number, None)
            self._count(stream)
