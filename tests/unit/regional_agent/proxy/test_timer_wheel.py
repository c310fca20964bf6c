from __future__ import annotations

from regional_agent.proxy.timer_wheel import SLOT_S, TimerWheel


class Stream:
    def __init__(self, wheel: TimerWheel[Stream], every_s: float, ends_at: float = float("inf")) -> None:
        self.slot = wheel.next
        self.looked_at: list[float] = []
        self._every_s, self._ends_at = every_s, ends_at
        self.slot.add(self)

    def check(self, now: float) -> float:
        self.looked_at.append(now)
        if now >= self._ends_at:
            self.slot.discard(self)
        return now + self._every_s


def turn_for(wheel: TimerWheel[Stream], seconds: float, began: float = 1_000.0) -> None:
    for number in range(round(seconds / SLOT_S)):
        wheel.turn(began + number * SLOT_S)


def test_each_exchange_is_checked_as_often_as_it_requests() -> None:
    wheel = TimerWheel[Stream]()
    always, seldom = Stream(wheel, 0.0), Stream(wheel, 3.0)

    turn_for(wheel, 12.0)

    assert len(always.looked_at) == 120
    gaps = [later - sooner for sooner, later in zip(seldom.looked_at, seldom.looked_at[1:], strict=False)]
    assert len(gaps) >= 3
    assert all(abs(gap - 3.0) <= 1.5 * SLOT_S for gap in gaps)


def test_what_is_due_long_ago_is_looked_at_once() -> None:
    wheel = TimerWheel[Stream]()
    seldom = Stream(wheel, 3.0)
    wheel.turn(1_000.0)

    wheel.turn(2_000.0)

    assert seldom.looked_at == [1_000.0, 2_000.0]


def test_who_leaves_is_looked_at_no_more_wherever_it_was() -> None:
    wheel = TimerWheel[Stream]()
    fresh, waiting, leaving = Stream(wheel, 0.0), Stream(wheel, 3.0), Stream(wheel, 3.0, ends_at=0.0)
    wheel.turn(1_000.0)
    assert set(wheel) == {fresh, waiting}

    for stream in (fresh, waiting):
        stream.slot.discard(stream)
    turn_for(wheel, 12.0, began=1_001.0)

    assert list(wheel) == []
    assert [len(stream.looked_at) for stream in (fresh, waiting, leaving)] == [1, 1, 1]


class Failing(Stream):
    def check(self, now: float) -> float:
        super().check(now)
        raise RuntimeError("a defect")


def test_a_failed_check_does_not_prevent_the_others() -> None:
    wheel = TimerWheel[Stream]()
    streams = [Failing(wheel, 0.0) if number % 2 else Stream(wheel, 0.0) for number in range(8)]

    turn_for(wheel, 2.0)

    assert [len(stream.looked_at) for stream in streams] == [20, 2] * 4, "a failed check is repeated each second"
