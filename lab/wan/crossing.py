"""One client connection through a link: two TCP ends, connected by one delay line per direction.

Connection setup takes as long as a TCP handshake: the link connects to the target half a round trip after the client
connects, a refusal reaches the client after one round trip, and data of the client leaves after one round trip.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from time import monotonic
from typing import Protocol, cast

from lab.wan.delay_line import DelayLine, Signal

MAX_WAITING_BYTES = 4 * 1024 * 1024
"""Reading from an end pauses above this number of its bytes in transit, which emulates a large TCP receive window."""

FEW_WAITING_BYTES = MAX_WAITING_BYTES // 2
"""Reading from an end resumes below this number of its bytes in transit."""

CONNECT_TIMEOUT_S = 10.0

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Distance(Protocol):
    """Properties of a link, which a crossing reads at every step because faults change them at run time."""

    @property
    def target(self) -> tuple[str, int]:
        """Host and port of the server."""

    @property
    def one_way_s(self) -> float:
        """Half the current round trip (s), without jitter."""

    @property
    def drops_data(self) -> bool:
        """Whether data sent now is dropped."""

    def delay_s(self) -> float:
        """Delay (s) of data sent now, jitter included."""


class _End(asyncio.Protocol):
    """One TCP connection of a crossing: reports events of its socket and applies delayed events of the far end."""

    def __init__(self, crossing: Crossing) -> None:
        self._crossing = crossing
        self._transport: asyncio.Transport | None = None
        self._reading_paused = False
        self.line: DelayLine
        self.other: _End
        self.fin_received = False
        self.fin_sent = False
        self.gone = False

    @property
    def connected(self) -> bool:
        return self._transport is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._crossing.opened(self)

    def data_received(self, data: bytes) -> None:
        self._crossing.sent(self, data)
        if self.line.waiting_bytes > MAX_WAITING_BYTES and self._transport is not None:
            self._transport.pause_reading()
            self._reading_paused = True

    def eof_received(self) -> bool:
        self.fin_received = True
        self._crossing.sent(self, Signal.END)
        self._close_if_both_ended()
        return True

    def pause_writing(self) -> None:
        self.other.line.hold()

    def resume_writing(self) -> None:
        self.other.line.release()

    def connection_lost(self, error: Exception | None) -> None:
        self.gone = True
        self._transport = None
        if not (self.fin_received and self.fin_sent):
            self._crossing.sent(self, Signal.RESET)
        self._crossing.ended()

    def deliver(self, item: bytes | Signal) -> None:
        """Apply data, a close or a reset of the far end after the link's delay."""
        if self._crossing.drops_data():
            return
        self.other.resume_reading_if_room()
        if self._transport is None or self._transport.is_closing():
            return
        if isinstance(item, bytes):
            self._transport.write(item)
        elif item is Signal.RESET:
            self.reset()
        else:
            self.fin_sent = True
            self._transport.write_eof()
            self._close_if_both_ended()

    def resume_reading_if_room(self) -> None:
        """Resume reading when few enough bytes of this end are in transit."""
        if self._reading_paused and self.line.waiting_bytes < FEW_WAITING_BYTES and self._transport is not None:
            self._reading_paused = False
            self._transport.resume_reading()

    def reset(self) -> None:
        """Close the connection with a TCP RST."""
        if self._transport is None:
            return
        raw = self._transport.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self._transport.abort()

    def _close_if_both_ended(self) -> None:
        if self.fin_received and self.fin_sent and self._transport is not None:
            self._transport.close()


class Crossing:
    """One client connection, from accept until both ends are closed."""

    def __init__(self, distance: Distance, on_gone: Callable[[Crossing], None]) -> None:
        """Args: `on_gone` is called once, when both ends are closed."""
        self._loop = asyncio.get_running_loop()
        self._distance = distance
        self._on_gone = on_gone
        self._connecting: asyncio.Task[None] | None = None
        self.lost_bytes = False
        """Whether bytes were dropped. As in TCP, no bytes after a gap are delivered."""
        handshake_s = 3 * distance.one_way_s
        self.client, self.target = _End(self), _End(self)
        self.client.other, self.target.other = self.target, self.client
        self.client.line = DelayLine(self._loop, self.target.deliver, monotonic() + handshake_s)
        self.target.line = DelayLine(self._loop, self.client.deliver, 0.0)

    def opened(self, end: _End) -> None:
        """Start delivery to an end that has connected, and connect to the target if the end is the client."""
        end.other.line.open()
        if end is self.client and not self.drops_data():
            self._connecting = self._loop.create_task(self._connect())

    def sent(self, end: _End, item: bytes | Signal) -> None:
        """Queue data or a signal from the socket of `end` for the far end."""
        if not self.drops_data():
            end.line.put(item, self._distance.delay_s())

    def drops_data(self) -> bool:
        """Whether the crossing drops all data in both directions from now on."""
        if self._distance.drops_data:
            self.lost_bytes = True
        return self.lost_bytes

    def reset(self) -> None:
        """Reset both ends and discard all data in transit."""
        if self._connecting is not None:
            self._connecting.cancel()
        for end in (self.client, self.target):
            end.line.clear()
            end.reset()
        self.ended()

    def ended(self) -> None:
        """Call `on_gone` if the client is closed and the target is closed or was never connected."""
        if self.client.gone and (self.target.gone or not (self._connecting or self.target.connected)):
            self.client.line.clear()
            self.target.line.clear()
            self._on_gone(self)

    async def _connect(self) -> None:
        try:
            await asyncio.sleep(self._distance.one_way_s)
            if not self.drops_data():
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    await self._loop.create_connection(lambda: self.target, *self._distance.target)
        except (OSError, TimeoutError):
            self.target.gone = True
            self.sent(self.target, Signal.RESET)
        finally:
            self._connecting = None
            self.ended()
