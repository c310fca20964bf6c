"""Who hears of a response from an engine or a peer, and how one can fail."""

from __future__ import annotations

from typing import Protocol

from regional_agent.upstream.response_head import AnswerHead


class UpstreamError(Exception):
    """The other side did not give a whole answer."""


class ConnectFailed(UpstreamError):
    """Nobody accepted the connection: the request has certainly not started."""


class Broken(UpstreamError):
    """The connection closed, was reset, or carried something that is not HTTP."""


class Stale(Broken):
    """A connection that was kept ended before it said anything more: the server was closing it as the request came."""


class TimedOut(UpstreamError):
    """No answer within the time allowed."""


class TooLarge(UpstreamError):
    """More bytes than anybody asked for."""


class Sink(Protocol):
    """Who hears of a response. After `on_end` or `on_broken` nothing more comes of it.

    `on_pause` follows whatever one read brought, so that a sink may write once for all of it.
    """

    def on_head(self, head: AnswerHead) -> None: ...
    def on_body(self, chunk: bytes) -> None: ...
    def on_end(self) -> None: ...
    def on_pause(self) -> None: ...
    def on_broken(self, error: UpstreamError) -> None: ...
    def on_writable(self, writable: bool) -> None: ...


class TunnelSink(Sink, Protocol):
    """A sink that offered to upgrade."""

    def on_upgraded(self, headers: list[tuple[bytes, bytes]]) -> BytesSink:
        """The server agreed (101): who takes what follows, which is no HTTP."""


class BytesSink(Protocol):
    """Who takes the server's bytes of a tunnel."""

    def on_bytes(self, data: bytes) -> None: ...
    def on_eof(self) -> None:
        """The server will send no more, but may still read."""
