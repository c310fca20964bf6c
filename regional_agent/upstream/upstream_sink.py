"""The interface through which an upstream connection reports a response, and the ways in which a request can fail."""

from __future__ import annotations

from typing import Protocol

from penstock.http.header_rules import Header
from penstock.http.response_head import ResponseHead


class UpstreamError(Exception):
    """The upstream did not return a complete response."""


class ConnectFailed(UpstreamError):
    """No connection was established, so the request has not started."""


class Broken(UpstreamError):
    """The connection was closed or reset, or the upstream sent data that is not HTTP."""


class Stale(Broken):
    """A reused connection closed before any byte of a response: the server closed it while the request was sent."""


class TimedOut(UpstreamError):
    """No complete response arrived within the time allowed."""


class TooLarge(UpstreamError):
    """The response exceeds a size limit."""


class ResponseSink(Protocol):
    """Receives one response, read by read. No call follows its end or `on_broken`.

    A sink of the hot path inherits from its protocol: mypyc then calls its methods directly, and otherwise by name.
    """

    def on_read(self, head: ResponseHead | None, parts: list[bytes], ended: bool) -> None:
        """Receive what one read contains.

        Args:
            head: the head of the response; None if an earlier read contained it.
            parts: parts of the body, without framing.
            ended: whether the response is complete; its connection may then serve other requests.
        """

    def on_broken(self, error: UpstreamError) -> None: ...
    def on_writable(self, writable: bool) -> None: ...


class ChunkReceiver(Protocol):
    """Receives the reads that are exactly one chunk, in place of the sink."""

    def forward(self, chunk: bytes, begin: int) -> bool:
        """Take a chunk, framing included, whose body begins at `begin`; False if the sink must receive it parsed."""


class TunnelSink(ResponseSink, Protocol):
    """A sink whose request offered a protocol upgrade."""

    def on_upgraded(self, headers: list[Header]) -> BytesSink:
        """The server accepted the upgrade (101). Returns the receiver of the bytes that follow, which are not HTTP."""


class BytesSink(Protocol):
    """Receives the server's bytes of a tunnel."""

    def on_bytes(self, data: bytes) -> None: ...
    def on_eof(self) -> None:
        """The server sends no more bytes, but may still read."""
