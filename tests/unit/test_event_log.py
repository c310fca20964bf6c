"""Events in order, resumed by id while they are kept, and the loss told when they are not."""

from __future__ import annotations

import asyncio

import pytest

from control_plane.events import MOST_EVENTS, EventLog, Kind
from tests.stores import SetClock


@pytest.fixture
def events() -> EventLog:
    return EventLog("run", SetClock())


def test_a_reader_resumes_after_what_it_saw(events: EventLog) -> None:
    assert events.after(None) == 0
    for number in range(3):
        events.publish(Kind.PLAN, number)
    happened = events.read(0)
    assert happened is not None
    assert [(one.id, one.data, one.at) for one in happened] == [
        ("run-0", 0, 100.0),
        ("run-1", 1, 100.0),
        ("run-2", 2, 100.0),
    ]
    assert [events.after(one) for one in (None, "run-0", "run-2")] == [3, 1, 3]
    assert events.read(3) == []


@pytest.mark.parametrize(
    "unknown", ["run-3", "other-0", "run", "", "run-", "run-x", "run--1", "run-\u0661", "run-" + "9" * 40]
)
def test_an_unknown_id_is_told(events: EventLog, unknown: str) -> None:
    for number in range(3):
        events.publish(Kind.PLAN, number)
    assert events.after(unknown) is None


def test_what_is_forgotten_is_told(events: EventLog) -> None:
    for number in range(MOST_EVENTS + 5):
        events.publish(Kind.PLAN, number)
    assert (events.oldest, events.end) == (5, MOST_EVENTS + 5)
    assert (events.read(4), events.after("run-3")) == (None, None)
    assert events.after("run-4") == 5
    kept = events.read(5)
    assert kept is not None
    assert [one.data for one in kept] == list(range(5, MOST_EVENTS + 5))


async def test_readers_wait_for_news_and_end_with_the_log(events: EventLog) -> None:
    waiting = [asyncio.create_task(events.wait(position)) for position in (0, 1)]
    await asyncio.sleep(0)
    events.publish(Kind.REGION, None)
    await waiting[0]
    assert not waiting[1].done()
    events.close()
    await waiting[1]
    assert events.closed
