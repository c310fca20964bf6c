"""The client of gRPC of tests and attacks waits for no permission to send that the server does not give any more."""

from __future__ import annotations

import asyncio

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived

from regional_agent.upstream.address import Address
from tests.support.grpc_client import grpc_client
from tests.support.loopback_server import LoopbackServer

WINDOW_BYTES = 65_535
LONG = b"x" * (WINDOW_BYTES + 1)
EXHAUSTED = 8


class Refusing(LoopbackServer):
    """Reads the whole window of a call, permits no more, and ends the call or the connection."""

    closes = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        http = H2Connection(H2Configuration(client_side=False))
        http.initiate_connection()
        received = 0
        while data := await reader.read(WINDOW_BYTES):
            for event in http.receive_data(data):
                if isinstance(event, DataReceived):
                    received += event.flow_controlled_length
                if received == WINDOW_BYTES and isinstance(event, DataReceived):
                    if self.closes:
                        return
                    http.send_headers(event.stream_id, [(":status", "200"), ("grpc-status", "8")], end_stream=True)
                    http.reset_stream(event.stream_id)
            writer.write(http.data_to_send())


@pytest.mark.parametrize("closes", [False, True], ids=["a call that was refused", "a closed connection"])
async def test_a_client_does_not_wait_to_send_on(closes: bool) -> None:
    async with Refusing() as server, grpc_client(Address("127.0.0.1", server.port)) as client:
        server.closes = closes
        call = client.call("/refused")
        call.write(LONG)
        await client.drain()
        assert await call.ended() == (None if closes else EXHAUSTED)
