"""One client connection through a link: two TCP ends and a delay line each way between them.

Set-up costs what TCP's handshake would: the target is connected to half a round trip after the client, a refusal is
seen by the client a round trip after it knocked, and what the client sends leaves only after its round trip.
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
"""Reading from an end stops while this much of what it sent is still on its way: a large TCP receive window."""

FEW_WAITING_BYTES = MAX_WAITING_BYTES // 2
"""Reading goes on below this."""

CONNECT_TIMEOUT_S = 10.0

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Distance(Protocol):
    """What a crossing asks of its link at every step, because faults change the answer at run time."""

    @property
    def target(self) -> tuple[str, int]:
        """Host and port of the server."""

    @property
    def one_way_s(self) -> float:
        """Half the round trip (s) as it is now, without jitter."""

    @property
    def swallows(self) -> bool:
        """Whether what crosses now vanishes."""

    def delay_s(self) -> float:
        """How long (s) a piece of data sent now takes, jitter included."""


class _End(asyncio.Protocol):
    """The TCP connection on one side. Reports what its socket does; does what the other side says, later."""

    def __init__(self, crossing: Crossing) -> None:
        self._crossing = crossing
        self._transport: asyncio.Transport | None = None
        self._reading_paused = False
        self.line: DelayLine
        self.other: _End
        self.said_end = False
        self.heard_end = False
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
        self.said_end = True
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
        if not (self.said_end and self.heard_end):
            self._crossing.sent(self, Signal.RESET)
        self._crossing.ended()

    def deliver(self, item: bytes | Signal) -> None:
        """Do to this end what the other end did, a while ago."""
        if self._crossing.swallows():
            return
        self.other.resume_reading_if_room()
        if self._transport is None or self._transport.is_closing():
            return
        if isinstance(item, bytes):
            self._transport.write(item)
        elif item is Signal.RESET:
            self.reset()
        else:
            self.heard_end = True
            self._transport.write_eof()
            self._close_if_both_ended()

    def resume_reading_if_room(self) -> None:
        """Read on, once enough of what this end sent has arrived."""
        if self._reading_paused and self.line.waiting_bytes < FEW_WAITING_BYTES and self._transport is not None:
            self._reading_paused = False
            self._transport.resume_reading()

    def reset(self) -> None:
        """Drop the connection with a RST."""
        if self._transport is None:
            return
        raw = self._transport.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self._transport.abort()

    def _close_if_both_ended(self) -> None:
        if self.said_end and self.heard_end and self._transport is not None:
            self._transport.close()


class Crossing:
    """A client's connection, from accept until both ends are gone."""

    def __init__(self, distance: Distance, on_gone: Callable[[Crossing], None]) -> None:
        """Args: `on_gone` is called once, when nothing of the crossing is left."""
        self._loop = asyncio.get_running_loop()
        self._distance = distance
        self._on_gone = on_gone
        self._connecting: asyncio.Task[None] | None = None
        self.lost_bytes = False
        """Whether anything vanished; after a gap TCP delivers nothing more, so neither does this."""
        handshake_s = 3 * distance.one_way_s
        self.client, self.target = _End(self), _End(self)
        self.client.other, self.target.other = self.target, self.client
        self.client.line = DelayLine(self._loop, self.target.deliver, monotonic() + handshake_s)
        self.target.line = DelayLine(self._loop, self.client.deliver, 0.0)

    def opened(self, end: _End) -> None:
        """An end is connected, so what travels towards it can be delivered."""
        end.other.line.open()
        if end is self.client and not self.swallows():
            self._connecting = self._loop.create_task(self._connect())

    def sent(self, end: _End, item: bytes | Signal) -> None:
        """Put on the way what the socket of `end` said."""
        if not self.swallows():
            end.line.put(item, self._distance.delay_s())

    def swallows(self) -> bool:
        """Whether the crossing is, from now on, silent in both directions."""
        if self._distance.swallows:
            self.lost_bytes = True
        return self.lost_bytes

    def reset(self) -> None:
        """Reset both ends now, and forget what is on its way."""
        if self._connecting is not None:
            self._connecting.cancel()
        for end in (self.client, self.target):
            end.line.clear()
            end.reset()
        self.ended()

    def ended(self) -> None:
        """Leave, if nothing is left: the client is gone and the target is gone or was never reached."""
        if self.client.gone and (self.target.gone or not (self._connecting or self.target.connected)):
            self.client.line.clear()
            self.target.line.clear()
            self._on_gone(self)

    async def _connect(self) -> None:
        try:
            await asyncio.sleep(self._distance.one_way_s)
            if not self.swallows():
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    await self._loop.create_connection(lambda: self.target, *self._distance.target)
        except (OSError, TimeoutError):
            self.target.gone = True
            self.sent(self.target, Signal.RESET)
        finally:
            self._connecting = None
            self.ended()
