"""Events are in order and resumed by id at any control plane; removed events are reported as a gap."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from control_plane.events.event_log import MAX_EVENTS, EventKind, EventLog, FleetEvent, event_id
from tests.support.clocks import SetClock


@pytest.fixture
def events() -> EventLog:
    return EventLog(SetClock())


def add(events: EventLog, numbers: Iterable[int], epoch: int = 7) -> None:
    for number in numbers:
        events.add(FleetEvent(event_id(epoch, number), 100.0, EventKind.PLAN, number))


def resumed(events: EventLog, last_id: str | None) -> tuple[list[object], bool]:
    position, whole = events.after(last_id)
    happened = events.read(position)
    assert happened is not None
    return [event.data for event in happened], whole


def test_a_reader_resumes_after_its_last_event(events: EventLog) -> None:
    assert events.after(None) == (0, True)
    add(events, (1, 2, 3))
    assert resumed(events, None) == ([], True)
    assert resumed(events, "7-1") == ([2, 3], True)
    assert resumed(events, "7-3") == ([], True)


def test_a_reader_resumes_at_another_control_plane(events: EventLog) -> None:
    other = EventLog(SetClock())
    add(events, range(1, 6))
    add(other, (3, 4), epoch=7)
    add(other, (5,), epoch=9)
    assert resumed(other, "7-4") == ([5], True)
    assert resumed(other, "7-1") == ([3, 4, 5], False)


def test_a_gap_of_removed_events_is_reported(events: EventLog) -> None:
    add(events, (1, 2, 4, 5))
    assert resumed(events, "7-1") == ([2, 4, 5], False)
    assert resumed(events, "7-3") == ([4, 5], False)
    assert resumed(events, "7-4") == ([5], True)


@pytest.mark.parametrize(
    "unknown", ["7-4", "8-2", "other-2", "2", "", "7-", "7-x", "7--1", "7-\u0661", "7-" + "9" * 40]
)
def test_an_unknown_id_returns_all_stored_events(events: EventLog, unknown: str) -> None:
    add(events, (1, 2, 3))
    assert resumed(events, unknown) == ([1, 2, 3], False)


def test_a_local_event_has_no_id_and_breaks_no_sequence(events: EventLog) -> None:
    add(events, (1, 2))
    events.add_local(EventKind.LEADERSHIP, "here")
    add(events, (3,), epoch=8)
    assert resumed(events, "7-1") == ([2, "here", 3], True)


def test_removed_events_are_reported(events: EventLog) -> None:
    add(events, range(1, MAX_EVENTS + 6))
    assert (events.oldest, events.end) == (5, MAX_EVENTS + 5)
    assert events.read(4) is None
    assert resumed(events, "7-3") == (list(range(6, MAX_EVENTS + 6)), False)
    assert resumed(events, "7-6") == (list(range(7, MAX_EVENTS + 6)), True)


async def test_a_reader_waits_for_events_that_another_control_plane_had(events: EventLog) -> None:
    add(events, (1,))
    waiting = asyncio.create_task(events.wait_for("7-2", 60.0))
    await asyncio.sleep(0)
    assert not waiting.done()
    add(events, (2,))
    await waiting
    await events.wait_for("7-3", 0.001)
    await events.wait_for(None, 60.0)
    events.close()
    await events.wait_for("7-3", 60.0)


async def test_readers_wait_for_events_and_end_with_the_log(events: EventLog) -> None:
    waiting = [asyncio.create_task(events.wait(position)) for position in (0, 1)]
    await asyncio.sleep(0)
    add(events, (1,))
    await waiting[0]
    assert not waiting[1].done()
    events.close()
    await waiting[1]
    assert events.closed
