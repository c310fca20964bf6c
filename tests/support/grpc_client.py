"""A client of gRPC over HTTP/2 without threads, which would not survive the fork of a test process."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, ResponseReceived, StreamEnded, StreamReset, TrailersReceived
from h2.exceptions import ProtocolError

from regional_agent.upstream.address import Address
from tests.support.wait import PATIENCE_S


class Disconnected(Exception):
    """The server has closed the connection."""


class GrpcCall:
    """One call."""

    def __init__(self, client: GrpcClient, number: int) -> None:
        self._client = client
        self._number = number
        self._received = b""
        self.messages: asyncio.Queue[bytes | None] = asyncio.Queue()
        """The messages of the server; None at the end."""
        self.status: int | None = None
        self.detail = ""
        self.is_over = False
        """Whether a side has ended or reset the call: the server permits to send no more on it."""

    def write(self, message: Any, *, compressed: bool = False) -> None:
        """Send a message, of protobuf or bytes, as soon as the server permits it."""
        data = message if isinstance(message, bytes) else message.SerializeToString()
        self._client.pending.append((self._number, bytes([compressed]) + len(data).to_bytes(4, "big") + data))
        self._client.flush()

    async def read(self) -> bytes | None:
        """The next message of the server; None after the last one."""
        async with asyncio.timeout(PATIENCE_S):
            message = await self.messages.get()
            if message is None:
                self.messages.put_nowait(None)
            return message

    async def ended(self) -> int | None:
        """Read all further messages; returns the status, None if the server has reset the call."""
        while await self.read() is not None:
            pass
        return self.status

    def done_writing(self) -> None:
        """End the client's side."""
        self._client.http.end_stream(self._number)
        self._client.flush()

    def cancel(self) -> None:
        """Reset the call, if it has not ended."""
        self.is_over = True
        with suppress(ProtocolError):
            self._client.http.reset_stream(self._number, 8)
        self._client.flush()

    def process(self, event: object) -> None:
        """Process an event of the call."""
        if isinstance(event, DataReceived):
            self._received += event.data
            while len(self._received) >= 5:
                end = 5 + int.from_bytes(self._received[1:5], "big")
                if len(self._received) < end:
                    break
                self.messages.put_nowait(self._received[5:end])
                self._received = self._received[end:]
        elif isinstance(event, (ResponseReceived, TrailersReceived)):
            headers = dict(event.headers or ())
            if b"grpc-status" in headers:
                self.status = int(headers[b"grpc-status"])
                self.detail = headers.get(b"grpc-message", b"").decode()
        elif isinstance(event, (StreamEnded, StreamReset)):
            self.is_over = True
            self.messages.put_nowait(None)


class GrpcClient:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, authority: str) -> None:
        self._reader = reader
        self._writer = writer
        self._authority = authority
        self._calls: dict[int, GrpcCall] = {}
        self.pending: deque[tuple[int, bytes]] = deque()
        """Stream and rest of each message that has not been sent, in order."""
        self.http = H2Connection(H2Configuration(client_side=True, header_encoding=None))
        self.http.initiate_connection()
        self.flush()

    def flush(self) -> None:
        """Send what is due and what the flow control of the server permits."""
        while self.pending:
            number, data = self.pending[0]
            if self._calls[number].is_over:
                self.pending.popleft()
                continue
            try:
                room = min(self.http.local_flow_control_window(number), self.http.max_outbound_frame_size, len(data))
                if room <= 0:
                    break
                self.http.send_data(number, data[:room])
            except ProtocolError:  # the server has ended the call
                room = len(data)
            self.pending.popleft()
            if room < len(data):
                self.pending.appendleft((number, data[room:]))
        self._writer.write(self.http.data_to_send())

    async def drain(self) -> None:
        """Wait until the server has permitted to send all that is pending."""
        async with asyncio.timeout(PATIENCE_S):
            while self.pending:  # noqa: ASYNC110 (several events end the wait)
                await asyncio.sleep(0.001)

    def close(self) -> None:
        """Reset the connection."""
        self._writer.transport.abort()

    def call(self, path: str, *metadata: tuple[str, str]) -> GrpcCall:
        """Begin a call of a method."""
        number = self.http.get_next_available_stream_id()
        headers = [(":method", "POST"), (":scheme", "http"), (":authority", self._authority), (":path", path)]
        self.http.send_headers(number, [*headers, ("te", "trailers"), ("content-type", "application/grpc"), *metadata])
        call = self._calls[number] = GrpcCall(self, number)
        self.flush()
        return call

    async def run(self) -> None:
        """Process what the server sends."""
        while data := await self._reader.read(65_536):
            for event in self.http.receive_data(data):
                if isinstance(event, DataReceived) and event.flow_controlled_length:
                    self.http.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                call = self._calls.get(getattr(event, "stream_id", 0) or 0)
                if call is not None:
                    call.process(event)
            self.flush()
        self.pending.clear()
        for call in self._calls.values():
            call.messages.put_nowait(None)


@asynccontextmanager
async def grpc_client(address: Address, tls: ssl.SSLContext | None = None) -> AsyncIterator[GrpcClient]:
    """Connect to a server of gRPC."""
    reader, writer = await asyncio.open_connection(address.host, address.port, ssl=tls)
    client = GrpcClient(reader, writer, str(address))
    running = asyncio.create_task(client.run())
    try:
        yield client
    finally:
        running.cancel()
        writer.close()
