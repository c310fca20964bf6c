"""One direction of a connection: order, pauses, and which bytes a reset may overtake."""

from __future__ import annotations

import asyncio
from time import monotonic

from lab.wan.delay_line import INSTANT_S, ITEM_OVERHEAD_BYTES, DelayLine, Signal


class Receiver:
    """Receives delivered items; `until` waits for a number of them."""

    def __init__(self, not_before_s: float = 0.0) -> None:
        self.got: list[bytes | Signal] = []
        self.changed = asyncio.Event()
        self.line = DelayLine(asyncio.get_running_loop(), self.take, not_before_s)

    def take(self, item: bytes | Signal) -> None:
        self.got.append(item)
        self.changed.set()

    async def until(self, count: int) -> list[bytes | Signal]:
        async with asyncio.timeout(60):
            while len(self.got) < count:
                self.changed.clear()
                await self.changed.wait()
        return self.got


async def test_delivers_in_order_even_if_a_later_piece_is_faster() -> None:
    receiver = Receiver()
    receiver.line.open()
    began_s = monotonic()
    receiver.line.put(b"slow", 0.05)
    receiver.line.put(b"fast", 0.0)
    receiver.line.put(Signal.END, 0.0)
    assert await receiver.until(3) == [b"slow", b"fast", Signal.END]
    assert monotonic() - began_s >= 0.049


async def test_immediate_delivery_needs_no_timer() -> None:
    receiver = Receiver()
    receiver.line.open()
    receiver.line.put(b"now", 0.0)
    assert receiver.got == [b"now"]


async def test_delivers_nothing_before_it_is_open_nor_before_its_time() -> None:
    not_before_s = monotonic() + 0.03
    receiver = Receiver(not_before_s)
    receiver.line.put(b"early", 0.0)
    assert receiver.got == []
    receiver.line.open()
    assert await receiver.until(1) == [b"early"]
    assert monotonic() >= not_before_s - INSTANT_S


async def test_holds_back_for_a_full_receiver() -> None:
    receiver = Receiver()
    receiver.line.open()
    receiver.line.hold()
    receiver.line.put(b"12345", 0.0)
    receiver.line.put(Signal.END, 0.0)
    await asyncio.sleep(0.01)
    assert receiver.got == []
    assert receiver.line.waiting_bytes == 5 + 2 * ITEM_OVERHEAD_BYTES
    receiver.line.release()
    assert receiver.got == [b"12345", Signal.END]
    assert receiver.line.waiting_bytes == 0


async def test_a_reset_reaches_a_receiver_that_is_full() -> None:
    receiver = Receiver()
    receiver.line.open()
    receiver.line.hold()
    receiver.line.put(b"stuck", 0.0)
    receiver.line.put(Signal.RESET, 0.01)
    assert await receiver.until(2) == [b"stuck", Signal.RESET]


class OneAtATime(Receiver):
    """A receiver whose buffer is full after every piece."""

    def take(self, item: bytes | Signal) -> None:
        super().take(item)
        self.line.hold()


async def test_holding_in_the_middle_of_a_delivery_stops_it() -> None:
    receiver = OneAtATime()
    receiver.line.open()
    for number in range(3):
        receiver.line.put(b"%d" % number, 0.005)
    assert await receiver.until(1) == [b"0"]
    await asyncio.sleep(0.02)
    receiver.line.release()
    assert receiver.got == [b"0", b"1"]


async def test_a_discarded_line_delivers_nothing() -> None:
    receiver = Receiver()
    receiver.line.open()
    receiver.line.put(b"gone", 0.001)
    receiver.line.clear()
    await asyncio.sleep(0.02)
    assert receiver.got == []
    assert receiver.line.waiting_bytes == 0
