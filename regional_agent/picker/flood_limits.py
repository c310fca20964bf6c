"""Limits of what a client of the endpoint picker may make a connection do without sending a request.

Each frame and each call costs CPU time. Envoy sends the first message of a call at once, and few other frames.
"""

from __future__ import annotations

from typing import Final

from regional_agent.picker.grpc_stream import GrpcStream
from regional_agent.picker.http2_frames import ENHANCE_YOUR_CALM, PROTOCOL_ERROR, Http2Error

MAX_EMPTY_CALLS: Final = 100
"""Number of calls of a connection that may end before a whole message; above, at most half of its calls may."""

MAX_IDLE_FRAMES: Final = 10_000
"""Maximum number of frames between two sweeps that neither open a stream nor have data."""

IDLE_FRAMES_OF_CALL: Final = 8
"""Number of such frames that belong to a call and are not counted: permissions to send, and its end."""

MAX_WAITED_SWEEPS: Final = 60
"""Number of sweeps for which a connection may wait for its preface, and a stream for its first message or for the
permission to send its last one."""


class FloodLimits:
    """The counts of one connection."""

    def __init__(self) -> None:
        self._calls = self._empty_calls = self._idle_frames = self._waited_sweeps = 0

    def idle_frame(self) -> None:
        """Count a frame that neither opens a stream nor has data; raises Http2Error above the limit."""
        self._idle_frames += 1
        if self._idle_frames > MAX_IDLE_FRAMES:
            raise Http2Error(ENHANCE_YOUR_CALM, "too many frames without data")

    def call_began(self) -> None:
        """Count a call."""
        self._calls += 1
        self._idle_frames = max(0, self._idle_frames - IDLE_FRAMES_OF_CALL)

    def call_ends(self, stream: GrpcStream) -> Http2Error | None:
        """Count the end of a call before its stream is closed; returns why the connection ends, if it does."""
        if stream.call is not None and not stream.has_message:
            self._empty_calls += 1
            if self._empty_calls > MAX_EMPTY_CALLS and 2 * self._empty_calls > self._calls:
                return Http2Error(ENHANCE_YOUR_CALM, "too many calls without a message")
        return None

    def sweep(self, *, has_preface: bool) -> Http2Error | None:
        """Begin the next interval; returns why the connection ends, if it does."""
        self._idle_frames = 0
        if not has_preface:
            self._waited_sweeps += 1
            if self._waited_sweeps > MAX_WAITED_SWEEPS:
                return Http2Error(PROTOCOL_ERROR, "the preface of HTTP/2 has not arrived")
        return None

    @staticmethod
    def has_waited(stream: GrpcStream) -> bool:
        """Count an interval of a stream; returns whether the stream has waited for its client for too long."""
        if not stream.awaits_client:
            return False
        stream.waited_sweeps += 1
        return stream.waited_sweeps > MAX_WAITED_SWEEPS
