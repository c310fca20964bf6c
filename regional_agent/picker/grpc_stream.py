"""The stream of one call of gRPC: messages in both directions, the status at its end, and its flow control.

Source: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from regional_agent.picker.header_blocks import head_block, trailers_block
from regional_agent.picker.http2_frames import (
    DATA,
    DEFAULT_WINDOW_BYTES,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    MAX_FRAME_BYTES,
    frame,
    frame_head,
)

OK: Final = 0
INVALID_ARGUMENT: Final = 3
NOT_FOUND: Final = 5
RESOURCE_EXHAUSTED: Final = 8
FAILED_PRECONDITION: Final = 9
UNIMPLEMENTED: Final = 12
INTERNAL: Final = 13
UNAVAILABLE: Final = 14
"""Status codes of gRPC."""

_PREFIX_BYTES: Final = 5
_UNCOMPRESSED: Final = b"\0"
_HEAD: Final = head_block()
_OK_TRAILERS: Final = trailers_block(OK, "")


class GrpcCall(Protocol):
    """One call of a method."""

    def on_message(self, message: bytes) -> None:
        """Process a message of the client."""

    def on_oversized(self, problem: str) -> None:
        """End the call, because a message of the client is too large."""

    def before_write(self) -> None:
        """Send what has waited for further messages of the client, and end the call if it is complete."""

    def on_sent(self) -> None:
        """All messages have been written to the connection."""

    def on_closed(self) -> None:
        """The client has ended its side, or the connection has closed. Called exactly once."""


class GrpcStream:
    """The stream of one call."""

    def __init__(
        self,
        number: int,
        peer_ip: str,
        max_unread_bytes: int,
        write_soon: Callable[[GrpcStream], None],
    ) -> None:
        """Start without a call.

        Args:
            peer_ip: the address of the client.
            max_unread_bytes: size (bytes) of the messages that may wait for the client, before the next one.
            write_soon: receives this stream when it has something to write.
        """
        self.number = number
        self.peer_ip = peer_ip
        self.granted_bytes = 0
        """What the client permits to send beside the window of every stream, less what was sent; may be negative."""
        self.receive_window = DEFAULT_WINDOW_BYTES
        """Bytes that the client may send."""
        self.call: GrpcCall | None = None
        self.has_message = False
        """Whether a whole message has arrived."""
        self.counted_bytes = 0
        """The part of `buffered_bytes` that the connection has counted."""
        self.waited_sweeps = 0
        """Number of the connection's sweeps for which this stream has waited for its client."""
        self._max_unread_bytes = max_unread_bytes
        self._write_soon = write_soon
        self._received = bytearray()
        """The part of a message that has arrived."""
        self._needed_bytes = 0
        """Minimum size of the whole message, or of its prefix."""
        self._out: deque[bytes | memoryview] = deque()
        """What has not been sent; views of large messages, of which a part is cut off for each frame."""
        self._out_bytes = 0
        """Size of what has not been sent."""
        self.is_held = False
        """Whether the messages of the client wait; it may send no more than the present window."""
        self._max_bytes = 0
        self._has_head = False
        self._status: tuple[int, str] | None = None
        """The status with which the call ends, after its messages."""
        self._ended = False

    # messages of the client

    def receive(self, data: bytes, max_bytes: int) -> None:
        """Process a part of the client's messages, of at most `max_bytes` each."""
        self._max_bytes = max_bytes
        if self._received:
            self._received += data
            if len(self._received) < self._needed_bytes:
                return
            data, self._received = bytes(self._received), bytearray()
        at = 0
        while self._status is None and self.call is not None:
            if self.is_held:
                self._keep(data, at, 0)
                return
            left = len(data) - at - _PREFIX_BYTES
            if left < 0:
                self._keep(data, at, _PREFIX_BYTES)
                return
            begin = at + _PREFIX_BYTES
            size_bytes = int.from_bytes(data[at + 1 : begin], "big")
            if data[at]:
                self.end(UNIMPLEMENTED, "messages may not be compressed")
            elif size_bytes > max_bytes:
                self.call.on_oversized(f"a message is larger than {max_bytes} bytes")
                self.end(OK)
            elif left < size_bytes:
                self._keep(data, at, _PREFIX_BYTES + size_bytes)
                return
            else:
                at = begin + size_bytes
                self.has_message = True
                self.call.on_message(data[begin:at])

    def _keep(self, data: bytes, at: int, needed_bytes: int) -> None:
        if at < len(data):
            self._received += memoryview(data)[at:]
            self._needed_bytes = needed_bytes

    def hold(self, held: bool) -> None:
        """Let the further messages of the client wait, or process them."""
        self.is_held = held
        if not held:
            self.receive(b"", self._max_bytes)
            self._write_soon(self)

    @property
    def buffered_bytes(self) -> int:
        """Size of what has arrived of a message, and of the messages that wait for the client."""
        return len(self._received) + self._out_bytes

    @property
    def awaits_client(self) -> bool:
        """Whether no message has arrived, or the call has ended and its messages wait for the client."""
        return not self.has_message or (self._status is not None and not self._ended)

    # messages for the client

    def send(self, message: bytes) -> None:
        """Send a message after those before it. Ends the call of a client that does not read its messages."""
        if self._status is not None:
            return
        if self._out_bytes > self._max_unread_bytes:
            self.end(RESOURCE_EXHAUSTED, "the client does not read the messages of the call")
            return
        size = len(message)
        prefix = _UNCOMPRESSED + size.to_bytes(4, "big")
        if size <= MAX_FRAME_BYTES:
            self._out.append(prefix + message)
        else:
            self._out.append(prefix)
            self._out.append(memoryview(message))
        self._out_bytes += _PREFIX_BYTES + size
        self._write_soon(self)

    def write_soon(self) -> None:
        """Let the connection write: `before_write` of the call has something to send."""
        self._write_soon(self)

    def end(self, status: int, detail: str = "") -> None:
        """End the call with a status of gRPC, after its messages. Only the first call counts.

        An error is not sent after the messages but instead of them: a client that does not read would delay it.
        """
        if self._status is None:
            self._status = status, detail
            self._received = bytearray()
            if status != OK:
                self._drop_out()
            self._write_soon(self)

    def _drop_out(self) -> None:
        self._out.clear()
        self._out_bytes = 0

    def write(
        self, frames: list[bytes | memoryview], stream_window: int, connection_window: int, block_prefix: bytes
    ) -> int:
        """Append the frames that flow control permits, several messages in one if they are ready.

        Args:
            stream_window: size (bytes) of what the client permits to send on every stream.
            connection_window: size (bytes) of what the client permits to send on all streams.
            block_prefix: what header blocks begin with.

        Returns:
            The size (bytes) of the messages in the frames.
        """
        if self._ended:
            return 0
        if self.call is not None and self._status is None:
            self.call.before_write()
        out, sent = self._out, 0
        if out and not self._has_head:
            frames.append(frame(HEADERS, END_HEADERS, self.number, block_prefix + _HEAD))
            self._has_head = True
        while out:
            room = min(stream_window + self.granted_bytes, connection_window - sent, MAX_FRAME_BYTES)
            if room <= 0:
                return sent
            at = len(frames)
            frames.append(b"")
            size = 0
            while out and size < room:
                part = out[0]
                if len(part) <= room - size:
                    out.popleft()
                else:
                    rest = room - size
                    out[0] = part[rest:]
                    part = part[:rest]
                frames.append(part)
                size += len(part)
            frames[at] = frame_head(size, DATA, 0, self.number)
            self.granted_bytes -= size
            self._out_bytes -= size
            sent += size
        if self._status is not None:
            self._write_status(frames, self._status, block_prefix)
        elif self.call is not None:
            self.call.on_sent()
        return sent

    def _write_status(self, frames: list[bytes | memoryview], status: tuple[int, str], block_prefix: bytes) -> None:
        code, detail = status
        block = _OK_TRAILERS if code == OK and not detail else trailers_block(code, detail)
        if not self._has_head:
            block = _HEAD + block
        frames.append(frame(HEADERS, END_HEADERS | END_STREAM, self.number, block_prefix + block))
        self._ended = True

    @property
    def is_partial(self) -> bool:
        """Whether a message has arrived in part."""
        return bool(self._received)

    @property
    def is_blocked(self) -> bool:
        """Whether messages wait for the permission of the client."""
        return self._out_bytes > 0

    @property
    def ended(self) -> bool:
        """Whether the status of the call has been written."""
        return self._ended

    def close(self) -> None:
        """The stream has ended."""
        call, self.call = self.call, None
        self._ended = True
        self._status = self._status or (OK, "")
        self._received = bytearray()
        self._drop_out()
        if call is not None:
            call.on_closed()
