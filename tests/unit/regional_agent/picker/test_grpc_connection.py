"""One connection of the endpoint picker without a socket: large messages, and clients that do not read."""

from __future__ import annotations

import time
from typing import Any, cast

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, Event, ResponseReceived, StreamReset, TrailersReceived
from h2.settings import SettingCodes, Settings

from regional_agent.picker.grpc_connection import RESOURCE_EXHAUSTED, GrpcConnection, GrpcStream

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
        self.server.connection_made(cast(Any, self))
        self.flush()

    def get_extra_info(self, name: str) -> None:
        """Return nothing: the transport has no peer."""

    def write(self, data: bytes) -> None:
        """Receive what the server sends."""
        self.events += self.http.receive_data(data)

    def flush(self) -> None:
        """Send what is due."""
        self.server.data_received(self.http.data_to_send())

    def call(self, messages: int = 1, *, ends: bool = False) -> int:
        """Begin a call with empty messages; returns the number of its stream."""
        number = self.http.get_next_available_stream_id()
        self.http.send_headers(number, [(":method", "POST"), (":scheme", "http"), (":authority", "a"), (":path", "/")])
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
        self.closed = 0

    def connected(self, connection: GrpcConnection) -> bool:
        return True

    def disconnected(self, connection: GrpcConnection) -> None:
        pass

    def call(self, path: bytes, stream: GrpcStream) -> Service:
        self.stream = stream
        return self

    def on_message(self, message: bytes) -> None:
        assert self.stream is not None
        self.stream.send(bytes(self.answer_bytes))

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


def test_a_call_whose_client_ends_it_unread_leaves_no_open_stream() -> None:
    client = Client(0)
    numbers = [client.call(ends=True) for _ in range(client.service.max_streams + 5)]
    assert [event.stream_id for event in client.events if isinstance(event, StreamReset)] == numbers
    assert client.service.closed == len(numbers)
