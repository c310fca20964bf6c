"""Anycast announcements: hold, withdrawal, and damping."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from penstock.health.anycast_announcement import (
    TRANSITIONS,
    Announcement,
    AnnouncementEvent,
    AnnouncementState,
    DampingRules,
    check,
)

RULES = DampingRules(hold_s=2.0, max_hold_s=30.0, forget_s=60.0, max_misses=3)


def checked(before: Announcement, *found: bool | None, at: float, every_s: float = 1.0) -> Announcement:
    for number, ready in enumerate(found):
        before = check(before, ready, at + number * every_s, RULES)
    return before


ANNOUNCED = checked(Announcement(), True, True, True, at=0.0)


def test_the_table_is_complete() -> None:
    assert TRANSITIONS.keys() == set(product(AnnouncementState, AnnouncementEvent))


def test_an_agent_is_announced_after_the_hold_time() -> None:
    assert checked(Announcement(), True, True, at=0.0).state is AnnouncementState.HELD
    assert ANNOUNCED.is_announced


def test_a_stated_end_withdraws_at_once() -> None:
    assert not checked(ANNOUNCED, False, at=3.0).is_announced


def test_silence_withdraws_after_three_checks() -> None:
    assert checked(ANNOUNCED, None, None, at=3.0).is_announced
    assert not checked(ANNOUNCED, None, None, None, at=3.0).is_announced
    assert checked(ANNOUNCED, None, None, True, None, None, at=3.0).is_announced


def test_each_withdrawal_doubles_the_hold_time_and_quiet_halves_it() -> None:
    once = checked(ANNOUNCED, False, at=3.0)
    assert once.hold_s(RULES) == 4.0
    again = checked(once, True, True, True, True, at=4.0)
    assert not again.is_announced
    twice = checked(checked(again, True, at=8.0), False, at=9.0)
    assert twice.hold_s(RULES) == 8.0
    assert checked(twice, True, at=9.0 + RULES.forget_s - 0.1).hold_s(RULES) == 8.0
    quiet = checked(twice, True, at=9.0 + RULES.forget_s)
    assert quiet.hold_s(RULES) == 4.0
    assert checked(quiet, True, at=9.0 + 2 * RULES.forget_s).hold_s(RULES) == 2.0


@given(st.lists(st.sampled_from([True, False, None]), max_size=400))
def test_a_flapping_agent_changes_ever_more_rarely(found: list[bool | None]) -> None:
    now, before, changes = 0.0, Announcement(), 0
    for ready in found:
        now += 0.2
        after = check(before, ready, now, RULES)
        if ready is False:
            assert not after.is_announced
        changes += after.is_announced is not before.is_announced
        before = after
        assert RULES.hold_s <= after.hold_s(RULES) <= RULES.max_hold_s
    # The n-th announcement needs 2 s * 2^n of readiness, but for one forgotten withdrawal a minute.
    assert changes <= 2 * (1 + len(found) * 0.2 / RULES.hold_s)
    assert changes <= 14
