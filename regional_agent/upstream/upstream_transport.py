"""The byte level of an upstream connection: writing request bodies and tunnel bytes, and pausing reads."""

from __future__ import annotations

import asyncio
from typing import cast

from regional_agent.http.write_batcher import WriteBatcher
from regional_agent.upstream.address import Address


class UpstreamTransport:
    """Bytes to and from one server, without parsing.

    Subclasses implement `asyncio.Protocol` without inheriting from it: mypyc does not compile classes with interpreted
    bases.
    """

    def __init__(self, batcher: WriteBatcher, address: Address) -> None:
        """Create a connection to `address` without a transport; `batcher` collects its writes."""
        self._batcher = batcher
        self._transport: asyncio.Transport | None = None
        self.address = address
        self._request_whole = True
        """The current request has been written completely."""
        self._chunked = False
        """The body of the current request is sent in chunks."""
        self.writable = True
        """False while the write buffer is above its high-water mark."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def usable(self) -> bool:
        """Whether another request can be written."""
        return self._transport is not None and not self._transport.is_closing()

    def send_body(self, body: bytes) -> None:
        """Write a further part of the request's body."""
        if body:
            self.write_bytes(b"%x\r\n%b\r\n" % (len(body), body) if self._chunked else body)

    def end_request(self) -> None:
        """End the request's body."""
        if self._chunked:
            self.write_bytes(b"0\r\n\r\n")
        self._request_whole, self._chunked = True, False

    def write_bytes(self, data: bytes) -> None:
        """Write bytes, of a request or into a tunnel, if the server is still connected."""
        if self._transport is not None:
            self._batcher.write(self._transport, data)

    def write_eof(self) -> None:
        """Half-close the tunnel; close the tunnel if the transport has no half-close (TLS)."""
        if self._transport is not None:
            self._batcher.write_eof(self._transport)

    def pause_reading(self) -> None:
        """Stop reading: the receiver of the response is slow."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Continue reading after `pause_reading`."""
        if self._transport is not None:
            self._transport.resume_reading()
