"""A stand-in for Triton: inferences over gRPC (KServe V2), and a client's messages for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from regional_agent.picker import http2_frames as http2
from regional_agent.picker.grpc_connection import GrpcConnection
from regional_agent.picker.grpc_stream import RESOURCE_EXHAUSTED, GrpcCall, GrpcStream
from regional_agent.upstream.address import Address

INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM_INFER = "/inference.GRPCInferenceService/ModelStreamInfer"
UNAVAILABLE = 14


def _field(number: int, value: bytes) -> bytes:
    size, encoded = len(value), bytearray()
    while size >= 0x80:
        encoded.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([number << 3 | 2, *encoded, size]) + value


def infer_request(model: str, tensor: bytes = b"\x01\x02\x03\x04", version: str = "") -> bytes:
    """A `ModelInferRequest` with one input, whose contents are raw."""
    inputs = _field(1, b"x") + _field(2, b"FP32") + bytes([3 << 3, 1])
    named = _field(1, model.encode()) + (_field(2, version.encode()) if version else b"")
    return named + _field(3, b"request-1") + _field(5, inputs) + _field(7, tensor)


class Triton:
    """Serves gRPC without TLS; `statuses` are those of the next calls, in order, else OK."""

    max_message_bytes = 64 * 1024 * 1024
    max_streams = 1000

    def __init__(self) -> None:
        self.received: list[tuple[str, bytes]] = []
        """Method and message of each request."""
        self.statuses: list[int] = []
        self.cut = ""
        """How responses end after their first message, once `cut_now` is set: `abort` of the connection, `reset` of the
        stream, or `no status`; empty for their status."""
        self.cut_now = asyncio.Event()
        self.connections: list[GrpcConnection] = []
        self.address = Address("127.0.0.1", 0)

    def connected(self, connection: GrpcConnection) -> bool:
        self.connections.append(connection)
        return True

    async def end(self, number: int) -> None:
        """End a response by `cut`."""
        await self.cut_now.wait()
        (connection,) = self.connections
        if self.cut == "abort":
            connection.abort()
        elif connection._transport is not None:
            reset = http2.frame(http2.RST_STREAM, 0, number, (2).to_bytes(4, "big"))
            connection._transport.write(
                reset if self.cut == "reset" else http2.frame(http2.DATA, http2.END_STREAM, number, b"")
            )

    def disconnected(self, connection: GrpcConnection) -> None:
        pass

    def buffered(self, grown_bytes: int) -> None:
        pass

    def call(self, path: bytes, stream: GrpcStream) -> GrpcCall:
        return _Call(self, path.decode(), stream)


class _Call:
    def __init__(self, triton: Triton, method: str, stream: GrpcStream) -> None:
        self._triton, self._method, self._stream = triton, method, stream
        self._ending: asyncio.Task[None] | None = None

    def on_message(self, message: bytes) -> None:
        triton = self._triton
        triton.received.append((self._method, message))
        status = triton.statuses.pop(0) if triton.statuses else 0
        if not status:
            # A `ModelInferResponse`, in a stream as the first field of a `ModelStreamInferResponse`.
            response = _field(1, b"answered") + _field(6, message[-4:])
            self._stream.send(response if self._method == INFER else _field(2, response))
        if triton.cut:
            self._ending = asyncio.create_task(triton.end(self._stream.number))
        elif status or self._method == INFER:
            self._stream.end(status, "overloaded" if status else "")

    def on_oversized(self, problem: str) -> None:
        self._stream.end(RESOURCE_EXHAUSTED, problem)

    def before_write(self) -> None:
        pass

    def on_sent(self) -> None:
        pass

    def on_closed(self) -> None:
        pass


@asynccontextmanager
async def running_triton() -> AsyncIterator[Triton]:
    """Serve until the end of the context."""
    triton = Triton()
    server = await asyncio.get_running_loop().create_server(lambda: GrpcConnection(triton), "127.0.0.1", 0)
    triton.address = Address("127.0.0.1", server.sockets[0].getsockname()[1])
    async with server:
        yield triton
