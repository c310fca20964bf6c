"""One direction of one connection: what goes in comes out in order, later. One timer, however much is inside."""

from __future__ import annotations

from asyncio import AbstractEventLoop, TimerHandle
from collections import deque
from collections.abc import Callable
from enum import Enum
from time import monotonic

INSTANT_S = 0.0005
"""What is due within this time (s) is delivered at once: event loop timers are no finer than a millisecond."""


ITEM_OVERHEAD_BYTES = 128
"""What it costs to remember one piece of data, besides its bytes; so a thousand tiny pieces fill a line too."""


class Signal(Enum):
    """What crosses a connection besides bytes."""

    END = "end"
    """No more bytes in this direction (FIN)."""
    RESET = "reset"
    """The connection is void (RST)."""


class DelayLine:
    """Bytes and signals on their way. Holds back while the receiver cannot take more; knows how full it is."""

    __slots__ = (
        "_deliver",
        "_last_due_s",
        "_loop",
        "_open",
        "_queue",
        "_receiver_full",
        "_timer",
        "_void",
        "waiting_bytes",
    )

    def __init__(self, loop: AbstractEventLoop, deliver: Callable[[bytes | Signal], None], not_before_s: float) -> None:
        """Args: nothing is due before `not_before_s` (monotonic clock), nor delivered before `open`."""
        self._loop = loop
        self._deliver = deliver
        self._last_due_s = not_before_s
        self._queue: deque[tuple[float, bytes | Signal]] = deque()
        self._timer: TimerHandle | None = None
        self._open = False
        self._receiver_full = False
        self._void = False
        self.waiting_bytes = 0

    def open(self) -> None:
        """The receiver is connected: begin to deliver."""
        self._open = True
        self._deliver_due()

    def hold(self) -> None:
        """Deliver nothing until `release`: the receiver's buffer is full."""
        self._receiver_full = True
        if not self._flows():
            self._disarm()

    def release(self) -> None:
        """Go on delivering, first what is overdue."""
        self._receiver_full = False
        self._deliver_due()

    def put(self, item: bytes | Signal, delay_s: float) -> None:
        """Deliver `item` after `delay_s`, and never before what was put earlier."""
        now_s = monotonic()
        due_s = self._last_due_s = max(now_s + delay_s, self._last_due_s)
        # A reset gets through to a receiver that does not read; what precedes it is no more than this line holds.
        self._void = self._void or item is Signal.RESET
        if not self._queue and self._flows() and due_s <= now_s + INSTANT_S:
            self._deliver(item)
            return
        self._queue.append((due_s, item))
        self.waiting_bytes += _cost(item)
        self._arm()

    def clear(self) -> None:
        """Forget everything inside."""
        self._queue.clear()
        self.waiting_bytes = 0
        self._disarm()

    def _flows(self) -> bool:
        return self._open and (self._void or not self._receiver_full)

    def _arm(self) -> None:
        if self._timer is None and self._queue and self._flows():
            delay_s = max(0.0, self._queue[0][0] - monotonic())
            self._timer = self._loop.call_later(delay_s, self._deliver_due)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _deliver_due(self) -> None:
        self._disarm()
        horizon_s = monotonic() + INSTANT_S
        # Delivering may hold or clear this very line.
        while self._queue and self._flows() and self._queue[0][0] <= horizon_s:
            _, item = self._queue.popleft()
            self.waiting_bytes -= _cost(item)
            self._deliver(item)
        self._arm()


def _cost(item: bytes | Signal) -> int:
    return ITEM_OVERHEAD_BYTES + (len(item) if isinstance(item, bytes) else 0)
