"""gRPC over one HTTP/2 connection of Envoy, as far as ext_proc needs it: no compression of messages, no deadlines.

The state of HTTP/2 is that of the library h2. The frames of one read are processed together, and answered in one write,
which costs half of the CPU time of a request with grpcio's server for asyncio.

Source: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Any, Final, Protocol, cast

import structlog
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import ConnectionTerminated, DataReceived, RequestReceived, StreamEnded, StreamReset, WindowUpdated
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings
from hyperframe.frame import GoAwayFrame

OK: Final = 0
INVALID_ARGUMENT: Final = 3
NOT_FOUND: Final = 5
RESOURCE_EXHAUSTED: Final = 8
FAILED_PRECONDITION: Final = 9
UNIMPLEMENTED: Final = 12
INTERNAL: Final = 13
UNAVAILABLE: Final = 14
"""Status codes of gRPC."""

CONNECTION_WINDOW_BYTES: Final = 16 * 1024 * 1024
"""Bytes that Envoy may send on all streams of a connection before the picker has read them; 64 KiB on each stream."""

MAX_HEADER_LIST_BYTES: Final = 16 * 1024

MAX_UNDECIDED_BYTES: Final = 64 * 1024

_PREFIX_BYTES: Final = 5
_MAX_STREAM: Final = 2**31 - 1
_HEAD: Final = [(b":status", b"200"), (b"content-type", b"application/grpc")]

log = structlog.get_logger()


class GrpcCall(Protocol):
    """One call of a method."""

    def on_message(self, message: bytes) -> None:
        """Process a message of the client."""

    def on_sent(self) -> None:
        """All messages have been written to the connection."""

    def on_closed(self) -> None:
        """The client has ended its side, or the connection has closed. Called exactly once."""


class GrpcService(Protocol):
    """Creates the calls of a connection, and counts connections."""

    max_message_bytes: int
    max_streams: int

    def connected(self, connection: GrpcConnection) -> bool:
        """Count a connection; returns whether it is accepted."""

    def disconnected(self, connection: GrpcConnection) -> None:
        """Count the end of a connection."""

    def call(self, path: bytes, stream: GrpcStream) -> GrpcCall | None:
        """Return the call of a method, by its path; None if it has ended the stream."""


class GrpcStream:
    """The stream of one call."""

    __slots__ = ("_connection", "_ended", "_has_head", "_out", "_out_bytes", "_received", "_status", "call", "number")

    def __init__(self, connection: GrpcConnection, number: int) -> None:
        self._connection = connection
        self.number = number
        self.call: GrpcCall | None = None
        self._received = bytearray()
        self._out: deque[memoryview] = deque()
        """What flow control has not permitted to send; views, since a part of a message is cut off for each frame."""
        self._out_bytes = 0
        self._has_head = False
        self._status: tuple[int, str] | None = None
        """The status with which the call ends, after its messages."""
        self._ended = False

    @property
    def peer_ip(self) -> str:
        """The address of the client."""
        return self._connection.peer_ip

    def send(self, message: bytes) -> None:
        """Send a message after those before it. Ends the call of a client that does not read its messages."""
        if self._status is None:
            if self._out_bytes > self._connection.max_unread_bytes:
                self._clear()
                self.end(RESOURCE_EXHAUSTED, "the client does not read the messages of the call")
                return
            self._out.append(memoryview(b"\0" + len(message).to_bytes(4, "big") + message))
            self._out_bytes += _PREFIX_BYTES + len(message)
            self._connection.write_soon(self)

    def end(self, status: int, detail: str = "") -> None:
        """End the call with a status of gRPC, after its messages. Only the first call counts."""
        if self._status is None:
            self._status = status, detail
            self._connection.write_soon(self)

    def receive(self, data: bytes, max_bytes: int) -> None:
        """Process a part of the client's messages."""
        received = self._received
        received += data
        while len(received) >= _PREFIX_BYTES and self._status is None and self.call is not None:
            size_bytes = int.from_bytes(received[1:_PREFIX_BYTES], "big")
            if received[0]:
                self.end(UNIMPLEMENTED, "messages may not be compressed")
            elif size_bytes > max_bytes:
                self.end(RESOURCE_EXHAUSTED, f"a message is larger than {max_bytes} bytes")
            elif len(received) < _PREFIX_BYTES + size_bytes:
                return
            else:
                message = bytes(received[_PREFIX_BYTES : _PREFIX_BYTES + size_bytes])
                del received[: _PREFIX_BYTES + size_bytes]
                self.call.on_message(message)
        if self._status is not None:
            received.clear()

    def write(self, http: H2Connection) -> bool:
        """Write what the flow control of HTTP/2 permits; returns whether the call has ended."""
        if self._ended:
            return True
        number, out, status = self.number, self._out, self._status
        if not self._has_head and out:
            http.send_headers(number, _HEAD)
            self._has_head = True
        while out:
            data = out[0]
            room = min(http.local_flow_control_window(number), http.max_outbound_frame_size)
            if room <= 0:
                return False
            http.send_data(number, data[:room])
            self._out_bytes -= min(room, len(data))
            if len(data) > room:
                out[0] = data[room:]
            else:
                out.popleft()
        if status is None:
            if self.call is not None:
                self.call.on_sent()
            return False
        trailers = [(b"grpc-status", b"%d" % status[0])]
        if status[1]:
            trailers.append((b"grpc-message", _percent_encoded(status[1])))
        http.send_headers(number, trailers if self._has_head else [*_HEAD, *trailers], end_stream=True)
        self._ended = True
        return True

    def close(self) -> None:
        """The stream has ended."""
        call, self.call = self.call, None
        self._ended = True
        self._status = self._status or (OK, "")
        self._clear()
        if call is not None:
            call.on_closed()

    def _clear(self) -> None:
        self._out.clear()
        self._out_bytes = 0


class GrpcConnection(asyncio.Protocol):
    """One connection of a client."""

    def __init__(self, service: GrpcService) -> None:
        """Start without a transport."""
        self._service = service
        # Of the headers only the path is read, so that checks of the others would cost time without effect.
        config = H2Configuration(
            client_side=False,
            header_encoding=None,
            validate_inbound_headers=False,
            normalize_inbound_headers=False,
            validate_outbound_headers=False,
            normalize_outbound_headers=False,
        )
        self._http = H2Connection(config)
        self._transport: asyncio.Transport | None = None
        self._streams: dict[int, GrpcStream] = {}
        self._to_write: set[GrpcStream] = set()
        self._in_read = False
        self._scheduled = False
        self._paused = False
        self._undecided_bytes = 0
        """Bytes received since the last event: a frame that is longer than announced would be kept until its end."""
        self.peer_ip = ""
        self.certificate: bytes | None = None
        """The client's certificate (DER), which TLS has verified; None without one."""

    @property
    def max_unread_bytes(self) -> int:
        """Size (bytes) of the messages of one call that may wait for the client, before the next one."""
        return 2 * self._service.max_message_bytes

    @property
    def streams(self) -> int:
        """Number of open streams."""
        return len(self._streams)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.peer_ip = peer[0] if peer else ""
        tls: Any = transport.get_extra_info("ssl_object")
        self.certificate = tls.getpeercert(binary_form=True) if tls is not None else None
        if not self._service.connected(self):
            self.abort()
            return
        http = self._http
        stated = {
            SettingCodes.MAX_CONCURRENT_STREAMS: self._service.max_streams,
            SettingCodes.MAX_HEADER_LIST_SIZE: MAX_HEADER_LIST_BYTES,
        }
        http.local_settings = Settings(client=False, initial_values=stated)
        http.initiate_connection()
        http.increment_flow_control_window(CONNECTION_WINDOW_BYTES)
        self._transport.write(http.data_to_send())

    def data_received(self, data: bytes) -> None:
        self._in_read = True
        try:
            events = self._http.receive_data(data)
            self._undecided_bytes = 0 if events else self._undecided_bytes + len(data)
            if self._undecided_bytes > MAX_UNDECIDED_BYTES:
                raise ProtocolError("a frame is too large")
            for event in events:
                self._process(event)
        except ProtocolError as error:
            log.info(
                "a connection to the endpoint picker was not HTTP/2", address=self.peer_ip, reason=str(error)[:200]
            )
            self._write()
            self.abort()
            return
        finally:
            self._in_read = False
        self._write()

    def _process(self, event: object) -> None:
        if isinstance(event, DataReceived):
            stream = self._streams.get(event.stream_id)
            if event.flow_controlled_length:
                self._http.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            if stream is not None:
                stream.receive(event.data, self._service.max_message_bytes)
        elif isinstance(event, RequestReceived):
            self._open(event.stream_id, event.headers)
        elif isinstance(event, (StreamEnded, StreamReset)):
            stream = self._streams.pop(event.stream_id, None)
            if stream is not None:
                self._end_of(stream, was_reset=isinstance(event, StreamReset))
        elif isinstance(event, WindowUpdated):
            if event.stream_id:
                stream = self._streams.get(event.stream_id)
                if stream is not None:
                    self._to_write.add(stream)
            else:
                self._to_write.update(self._streams.values())
        elif isinstance(event, ConnectionTerminated):
            self.abort()

    def _open(self, number: int, headers: Any) -> None:
        stream = self._streams[number] = GrpcStream(self, number)
        path = next((value for name, value in headers if name == b":path"), b"")
        stream.call = self._service.call(path, stream)

    def _end_of(self, stream: GrpcStream, *, was_reset: bool) -> None:
        """The client has ended its side of a stream, or has reset it."""
        if not was_reset:
            # A call without a status ends now, since no further message can arrive.
            stream.end(OK)
            with suppress(ProtocolError):
                if not stream.write(self._http):
                    # What flow control does not permit now is not sent later: the stream would stay open.
                    self._http.reset_stream(stream.number, ErrorCodes.CANCEL)
        self._to_write.discard(stream)
        stream.close()

    def write_soon(self, stream: GrpcStream) -> None:
        """Write what a stream has to send: after the current read, or in the next turn of the event loop."""
        self._to_write.add(stream)
        if not self._in_read and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._write)

    def _write(self) -> None:
        self._scheduled = False
        transport = self._transport
        if transport is None or self._paused:
            return
        waiting, self._to_write = self._to_write, set()
        for stream in waiting:
            try:
                if stream.write(self._http):
                    self._streams.pop(stream.number, None)
                    stream.close()
            except ProtocolError:
                # The client has reset the stream; the event follows.
                continue
        data = self._http.data_to_send()
        if data:
            transport.write(data)

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
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.close()
        self._service.disconnected(self)

    def go_away(self) -> None:
        """Ask the client to open its next streams on another connection; open ones continue."""
        if self._transport is not None:
            frame = GoAwayFrame(0, last_stream_id=_MAX_STREAM, error_code=ErrorCodes.NO_ERROR)
            self._transport.write(frame.serialize())

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()


def _percent_encoded(text: str) -> bytes:
    """Encode the message of a status, as gRPC requires."""
    kept = [char if " " <= char <= "~" and char != "%" else "?" for char in text]
    return "".join(kept).encode()
