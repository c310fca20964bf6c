"""One connection of the endpoint picker without a socket: large messages, and clients that do not read."""

from __future__ import annotations

import time
from random import Random
from typing import Any, cast

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    DataReceived,
    Event,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.settings import SettingCodes, Settings
from hypothesis import given, settings
from hypothesis import strategies as st

from regional_agent.picker import http2_frames as http2
from regional_agent.picker.grpc_connection import GrpcConnection
from regional_agent.picker.grpc_stream import RESOURCE_EXHAUSTED, GrpcStream
from regional_agent.picker.header_blocks import HeaderBlocks

MIB = 2**20


class Client:
    """A client and its transport; it grants the server `window_bytes` on each stream."""

    def __init__(self, window_bytes: int) -> None:
        self.http = H2Connection(H2Configuration(client_side=True, header_encoding=None))
        self.http.local_settings = Settings(
            client=True, initial_values={SettingCodes.INITIAL_WINDOW_SIZE: window_bytes}
        )
        self.http.initiate_connection()
        self.http.increment_flow_control_window(256 * MIB)
        self.service = Service()
        self.server = GrpcConnection(self.service)
        self.events: list[Event] = []
        self.aborted = False
        self.pending = self.written = b""
        self.is_raw = False
        """Whether the test writes frames without h2, which then cannot read the answers."""
        self.server.connection_made(cast(Any, self))
        self.flush()

    def get_extra_info(self, name: str) -> None:
        """Return nothing: the transport has no peer."""

    def write(self, data: bytes) -> None:
        """Receive what the server sends."""
        self.written += data
        if not self.is_raw:
            self.events += self.http.receive_data(data)

    def abort(self) -> None:
        """Close the connection."""
        self.aborted = True

    def flush(self) -> None:
        """Send what is due."""
        self.server.data_received(self.http.data_to_send())

    def call(self, messages: int = 1, *, ends: bool = False, path: str = "/") -> int:
        """Begin a call with empty messages; returns the number of its stream."""
        number = self.http.get_next_available_stream_id()
        self.http.send_headers(number, [(":method", "POST"), (":scheme", "http"), (":authority", "a"), (":path", path)])
        for _ in range(messages):
            self.http.send_data(number, bytes(5))
        if ends:
            self.http.end_stream(number)
        self.flush()
        return number

    def received_bytes(self) -> int:
        """Size of the data of the server."""
        return sum(len(event.data) for event in self.events if isinstance(event, DataReceived) and event.data)


class Service:
    """Answers each message with `answer_bytes`."""

    max_message_bytes = MIB
    max_streams = 100
    answer_bytes = MIB

    def __init__(self) -> None:
        self.stream: GrpcStream | None = None
        self.calls = self.closed = 0
        self.buffered_bytes = self.most_buffered_bytes = 0
        self.messages: list[bytes] = []
        self.paths: list[bytes] = []

    def connected(self, connection: GrpcConnection) -> bool:
        return True

    def disconnected(self, connection: GrpcConnection) -> None:
        pass

    def buffered(self, grown_bytes: int) -> None:
        self.buffered_bytes += grown_bytes
        self.most_buffered_bytes = max(self.most_buffered_bytes, self.buffered_bytes)

    def call(self, path: bytes, stream: GrpcStream) -> Service:
        self.stream = stream
        self.calls += 1
        self.paths.append(path)
        return self

    def on_message(self, message: bytes) -> None:
        assert self.stream is not None
        self.messages.append(message)
        self.stream.send(bytes(self.answer_bytes))

    def on_oversized(self, problem: str) -> None:
        assert self.stream is not None
        self.stream.end(RESOURCE_EXHAUSTED, problem)

    def before_write(self) -> None:
        pass

    def on_sent(self) -> None:
        pass

    def on_closed(self) -> None:
        self.closed += 1


def test_the_time_to_write_a_message_does_not_grow_with_the_square_of_its_size() -> None:
    client = Client(64 * MIB)
    client.service.answer_bytes = 40 * MIB
    began = time.process_time()
    client.call()
    assert client.received_bytes() == 5 + 40 * MIB
    assert time.process_time() - began < 4.0  # 20 s if the rest of the message is copied for each frame


def test_the_call_of_a_client_that_does_not_read_ends() -> None:
    client = Client(0)
    client.call(messages=10)
    heads = [event.headers or () for event in client.events if isinstance(event, (ResponseReceived, TrailersReceived))]
    assert [dict(head).get(b"grpc-status") for head in heads] == [b"%d" % RESOURCE_EXHAUSTED]
    assert client.received_bytes() == 0
    assert client.service.closed == 1


def test_the_call_of_a_client_that_reads_slowly_continues() -> None:
    client = Client(MIB)
    number = client.call()
    for _ in range(8):
        # Five bytes of each answer, those of its prefix, wait for the next permission.
        client.http.send_data(number, bytes(5))
        client.http.increment_flow_control_window(MIB, number)
        client.flush()
    assert client.received_bytes() == 9 * MIB
    assert client.service.closed == 0


def test_a_client_that_has_not_ended_its_side_need_not_send_the_rest() -> None:
    client = Client(MIB)
    number = client.call(messages=0)
    assert client.service.stream is not None
    client.http.send_data(number, b"\1" + bytes(16_000))
    client.flush()
    assert [type(event) for event in client.events[-2:]] == [StreamEnded, StreamReset]
    assert client.service.closed == 1


def test_a_call_whose_client_ends_it_unread_leaves_no_open_stream() -> None:
    client = Client(0)
    numbers = [client.call(ends=True) for _ in range(client.service.max_streams + 5)]
    assert [event.stream_id for event in client.events if isinstance(event, StreamReset)] == numbers
    assert client.service.closed == len(numbers)


def test_messages_that_are_ready_share_a_frame() -> None:
    client = Client(MIB)
    client.service.answer_bytes = 10
    client.call(messages=3)
    assert [len(event.data or b"") for event in client.events if isinstance(event, DataReceived)] == [3 * 15]


@given(st.lists(st.binary(max_size=40_000), min_size=1, max_size=5), st.integers(1, 70_000), st.randoms())
@settings(deadline=None, max_examples=20)
def test_messages_arrive_however_frames_and_reads_are_cut(messages: list[bytes], most: int, rng: Random) -> None:
    client = Client(MIB)
    client.service.answer_bytes = 0
    number = client.call(messages=0)
    for data in messages:
        client.pending += b"\0" + len(data).to_bytes(4, "big") + data
    while client.pending:
        room = min(client.http.local_flow_control_window(number), client.http.max_outbound_frame_size)
        part, client.pending = client.pending[:room], client.pending[room:]
        padding = rng.choice([None, 0, 255]) if len(part) + 256 < room else None
        client.http.send_data(number, part, pad_length=padding)
        data = client.http.data_to_send()
        while data:
            size = rng.randint(1, most)
            client.server.data_received(data[:size])
            data = data[size:]
    assert client.service.messages == messages


def test_a_path_is_read_by_the_table_in_force() -> None:
    """A block that refers to the dynamic table has another path once the table has changed."""
    client = Client(MIB)
    paths = ["/a", "/a", "/a", "/b", "/b", "/a", "/c" * 1000, "/a", "/a"]
    for path in paths:
        client.call(path=path)
    assert client.service.paths == [path.encode() for path in paths]
    # 0xbe is the newest entry of the table, whichever that is.
    blocks = HeaderBlocks()
    found = []
    for entry in (b"/x", b"/y"):
        found.append(blocks.path_of(b"\x44" + bytes([len(entry)]) + entry))
        found += [blocks.path_of(b"\xbe"), blocks.path_of(b"\xbe")]
        assert blocks.kept == 1
    assert found == [b"/x"] * 3 + [b"/y"] * 3


def raw(kind: int, payload: bytes = b"", *, flags: int = 0, stream: int = 1) -> bytes:
    return http2.frame(kind, flags, stream, payload)


OPENED = raw(http2.HEADERS, b"\x04\x01/", flags=http2.END_HEADERS)
FLOOD = raw(http2.HEADERS, b"\x04") + raw(http2.CONTINUATION) * 2000


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        (raw(http2.DATA), http2.PROTOCOL_ERROR),
        (raw(http2.DATA, stream=0), http2.PROTOCOL_ERROR),
        (OPENED + raw(http2.DATA, b"\x05abc", flags=http2.PADDED), http2.PROTOCOL_ERROR),
        (OPENED + raw(http2.DATA, bytes(16_384)) * 5, None),
        (OPENED + OPENED, http2.PROTOCOL_ERROR),
        (raw(http2.HEADERS, b"\x04\x01/", flags=http2.END_HEADERS, stream=2), http2.PROTOCOL_ERROR),
        (raw(http2.HEADERS, b"\x80", flags=http2.END_HEADERS), http2.COMPRESSION_ERROR),
        (raw(http2.HEADERS, b"", flags=http2.END_HEADERS | http2.PRIORITIZED), http2.FRAME_SIZE_ERROR),
        (raw(http2.HEADERS, b"\x04") + raw(http2.PING, bytes(8), stream=0), http2.PROTOCOL_ERROR),
        (raw(http2.CONTINUATION), http2.PROTOCOL_ERROR),
        (FLOOD, http2.ENHANCE_YOUR_CALM),
        (raw(http2.RST_STREAM, bytes(4)), http2.PROTOCOL_ERROR),
        (OPENED + raw(http2.RST_STREAM, bytes(3)), http2.FRAME_SIZE_ERROR),
        (OPENED + raw(http2.RST_STREAM, bytes(4)) * 2, None),
        (raw(http2.WINDOW_UPDATE, bytes(4), stream=0), http2.PROTOCOL_ERROR),
        (raw(http2.WINDOW_UPDATE, b"\x7f\xff\xff\xff", stream=0), http2.FLOW_CONTROL_ERROR),
        (OPENED + raw(http2.WINDOW_UPDATE, b"\x7f\xff\xff\xff"), http2.FLOW_CONTROL_ERROR),
        (raw(http2.SETTINGS, b"\0\4\xff\xff\xff\xff", stream=0), http2.FLOW_CONTROL_ERROR),
        (
            OPENED + raw(http2.WINDOW_UPDATE, b"\x7f\0\0\0") + raw(http2.SETTINGS, b"\0\4\x7f\xff\xff\xff", stream=0),
            http2.FLOW_CONTROL_ERROR,
        ),
        (raw(http2.SETTINGS, b"\0\5\0\0\0\1", stream=0), http2.PROTOCOL_ERROR),
        (raw(http2.SETTINGS, b"\0\5\0", stream=0), http2.FRAME_SIZE_ERROR),
        (raw(http2.PING, bytes(7), stream=0), http2.PROTOCOL_ERROR),
        (raw(http2.PUSH_PROMISE), http2.PROTOCOL_ERROR),
        (raw(http2.GOAWAY, bytes(8), stream=0) + raw(99) + raw(http2.PRIORITY, bytes(5)), None),
        (b"\x00\x40\x01", None),
        (b"\x00\x40\x01\0\0\0\0\0\1", http2.FRAME_SIZE_ERROR),
    ],
)
def test_a_violation_of_http2_ends_the_connection(frames: bytes, code: int | None) -> None:
    client = Client(MIB)
    client.service.answer_bytes = 0
    client.is_raw = True
    client.server.data_received(frames)
    if code is not None:
        assert client.written.endswith(http2.goaway_frame(0, code)) or client.written.endswith(
            http2.goaway_frame(1, code)
        )
    assert client.aborted == (code is not None)
    client.server.connection_lost(None)
    assert client.service.closed == client.service.calls


def test_streams_above_the_limit_are_refused() -> None:
    client = Client(MIB)
    client.is_raw = True
    client.service.answer_bytes = 0
    for number in range(1, 2 * client.service.max_streams + 4, 2):
        client.server.data_received(raw(http2.HEADERS, b"\x04\x01/", flags=http2.END_HEADERS, stream=number))
    assert client.server.streams == client.service.calls == client.service.max_streams


def test_a_client_that_keeps_no_table_can_read_heads() -> None:
    client = Client(MIB)
    client.service.answer_bytes = 10
    client.http.update_settings({SettingCodes.HEADER_TABLE_SIZE: 0})
    client.flush()
    client.call(ends=True)
    assert any(isinstance(event, TrailersReceived) for event in client.events)
