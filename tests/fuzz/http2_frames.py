"""Sends any bytes to the endpoint picker as frames of HTTP/2, after the preface, in one or more reads.

Property: a connection ends by `Http2Error` alone; each call is closed exactly once; no stream remains; a message is not
larger than permitted; what is kept of the bytes is bounded.
"""

from __future__ import annotations

from typing import Any, cast

from regional_agent.picker import http2_frames as http2
from regional_agent.picker.grpc_connection import GrpcConnection
from regional_agent.picker.grpc_stream import GrpcStream

BEGIN = http2.PREFACE + http2.settings_frame({})
WORDS = (
    http2.frame(http2.HEADERS, http2.END_HEADERS, 1, b"\x04\x01/"),
    http2.frame(http2.DATA, 0, 1, b"\0\0\0\0\1a"),
    http2.frame(http2.DATA, http2.END_STREAM, 1, bytes(5)),
    http2.frame(http2.RST_STREAM, 0, 1, bytes(4)),
    http2.frame(http2.WINDOW_UPDATE, 0, 1, b"\0\0\0\1"),
    http2.settings_frame({http2.INITIAL_WINDOW_SIZE: 0}),
)
READ_BYTES = 37


class Service:
    """Answers each message with itself, and is the transport too."""

    max_message_bytes = 1000
    max_streams = 10

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.aborted = False
        self.buffered_bytes = 0

    def connected(self, connection: GrpcConnection) -> bool:
        return True

    def disconnected(self, connection: GrpcConnection) -> None:
        pass

    def buffered(self, grown_bytes: int) -> None:
        self.buffered_bytes += grown_bytes

    def call(self, path: bytes, stream: GrpcStream) -> Call:
        self.calls.append(Call(stream))
        return self.calls[-1]

    def get_extra_info(self, name: str) -> None:
        return None

    def write(self, data: bytes) -> None:
        pass

    def abort(self) -> None:
        self.aborted = True


class Call:
    """One call."""

    def __init__(self, stream: GrpcStream) -> None:
        self._stream = stream
        self.closed = 0

    def on_message(self, message: bytes) -> None:
        assert len(message) <= Service.max_message_bytes
        self._stream.send(message)

    def before_write(self) -> None:
        pass

    def on_sent(self) -> None:
        pass

    def on_closed(self) -> None:
        self.closed += 1


def check(data: bytes) -> None:
    """Check one connection."""
    for read_bytes in (len(data) or 1, READ_BYTES):
        service = Service()
        connection = GrpcConnection(service)
        connection.connection_made(cast(Any, service))
        connection.data_received(BEGIN)
        for at in range(0, len(data), read_bytes):
            connection.data_received(data[at : at + read_bytes])
            if service.aborted:
                break
            assert len(connection._rest) <= http2.MAX_FRAME_BYTES + http2.HEAD_BYTES
            assert connection.streams <= Service.max_streams
            assert 0 <= service.buffered_bytes <= Service.max_streams * 4 * Service.max_message_bytes
        connection.connection_lost(None)
        assert [call.closed for call in service.calls] == [1] * len(service.calls)
        assert connection.streams == 0
        assert service.buffered_bytes == 0
