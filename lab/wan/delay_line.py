"""One direction of one connection: delivers data and signals in order after a delay, with at most one timer."""

from __future__ import annotations

from asyncio import AbstractEventLoop, TimerHandle
from collections import deque
from collections.abc import Callable
from enum import Enum
from time import monotonic

INSTANT_S = 0.0005
"""Items due within this time (s) are delivered immediately: the resolution of event loop timers is 1 ms."""


ITEM_OVERHEAD_BYTES = 128
"""Memory overhead (bytes) of one item, counted in `waiting_bytes` so that many small items also fill a line."""


class Signal(Enum):
    """A TCP event that is delivered in order with the bytes."""

    END = "end"
    """End of the bytes in this direction (FIN)."""
    RESET = "reset"
    """Reset of the connection (RST)."""


class DelayLine:
    """Queue of data and signals in transit. Delivery pauses while the receiver's buffer is full."""

    __slots__ = (
        "_deliver",
        "_last_due_s",
        "_loop",
        "_open",
        "_queue",
        "_receiver_full",
        "_reset_queued",
        "_timer",
        "waiting_bytes",
    )

    def __init__(self, loop: AbstractEventLoop, deliver: Callable[[bytes | Signal], None], not_before_s: float) -> None:
        """Args: `not_before_s` (monotonic clock) is the earliest delivery time; delivery starts after `open`."""
        self._loop = loop
        self._deliver = deliver
        self._last_due_s = not_before_s
        self._queue: deque[tuple[float, bytes | Signal]] = deque()
        self._timer: TimerHandle | None = None
        self._open = False
        self._receiver_full = False
        self._reset_queued = False
        self.waiting_bytes = 0

    def open(self) -> None:
        """Start delivery: the receiver is connected."""
        self._open = True
        self._deliver_due()

    def hold(self) -> None:
        """Pause delivery until `release`: the receiver's buffer is full."""
        self._receiver_full = True
        if not self._flows():
            self._disarm()

    def release(self) -> None:
        """Resume delivery, overdue items first."""
        self._receiver_full = False
        self._deliver_due()

    def put(self, item: bytes | Signal, delay_s: float) -> None:
        """Deliver `item` after `delay_s`, and never before an earlier item."""
        now_s = monotonic()
        due_s = self._last_due_s = max(now_s + delay_s, self._last_due_s)
        # A reset is delivered even if the receiver's buffer is full; this line bounds the bytes before the reset.
        self._reset_queued = self._reset_queued or item is Signal.RESET
        if not self._queue and self._flows() and due_s <= now_s + INSTANT_S:
            self._deliver(item)
            return
        self._queue.append((due_s, item))
        self.waiting_bytes += _cost(item)
        self._arm()

    def clear(self) -> None:
        """Discard all items in transit."""
        self._queue.clear()
        self.waiting_bytes = 0
        self._disarm()

    def _flows(self) -> bool:
        return self._open and (self._reset_queued or not self._receiver_full)

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
        # Delivery may hold or clear this line.
        while self._queue and self._flows() and self._queue[0][0] <= horizon_s:
            _, item = self._queue.popleft()
            self.waiting_bytes -= _cost(item)
            self._deliver(item)
        self._arm()


def _cost(item: bytes | Signal) -> int:
    return ITEM_OVERHEAD_BYTES + (len(item) if isinstance(item, bytes) else 0)
