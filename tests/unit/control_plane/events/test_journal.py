"""Each event is in the journal once and in order across leaders, and the journal is bounded."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import msgspec
import pytest

from adapters.access.callers import Caller, Role
from adapters.store import keys
from adapters.store.codec import encode
from adapters.store.config_store import Delete, Put
from adapters.store.members import Member
from control_plane.audit.audit_log import AuditedAction, AuditLog
from control_plane.events import journal as journals
from control_plane.events.change_detector import MAX_AUDITED, MAX_AUDITED_BYTES, ChangeDetector, StateSnapshot
from control_plane.events.event_log import EventKind, EventLog
from control_plane.events.journal import Journal, JournalEntry
from control_plane.status.status import PolicyStatus
from lab.memory_store import MemoryStore
from penstock.health.region_health import RegionState
from penstock.planning.plan import Arc, ArcReason, ClassPlan, RegionPlan
from penstock.planning.plan_history import PlanHistory
from tests.support.clocks import SetClock
from tests.support.faulty_store import FaultyStore
from tests.support.override_builders import drain
from tests.support.wait import until

DUTY = Caller("duty", Role.OPERATOR)


def planned(share: float, generation: int) -> dict[str, RegionPlan]:
    arcs = (Arc("a", share, ArcReason.HOME), Arc("b", 1.0 - share, ArcReason.SPILLOVER))
    return {"a": RegionPlan("a", generation, 1, "digest", 1.0, (ClassPlan("m", "all", arcs, ()),))}


class Teller:
    """The journal of a control plane; a test sets the state that it observes."""

    def __init__(self, store: MemoryStore, name: str) -> None:
        self.store = FaultyStore(store)
        self.audit = AuditLog(self.store)
        self.events = EventLog(SetClock())
        self.history = PlanHistory()
        self.history.begin({})
        self.sees = StateSnapshot(
            at=1.0,
            epoch=None,
            member=Member(name, f"http://{name}"),
            why="a test says so",
            policy=PolicyStatus("digest", None, ()),
            in_force="digest",
            rollout=None,
            regions={},
            overrides=(),
            plans={},
            audited=None,
        )
        self.detector = ChangeDetector(self.events, self.history, self.audit, lambda: self.sees)
        self.entries: list[JournalEntry] = []
        self.journal = Journal(
            self.store, rng=Random(1), on_entry=self._take_in, on_removed=self.history.forget, backoff_cap_s=0.1
        )

    def _take_in(self, entry: JournalEntry) -> None:
        self.entries.append(entry)
        self.detector.apply(entry)

    async def look(self, **sees: Any) -> None:
        self.sees = msgspec.structs.replace(self.sees, **sees)
        await self.detector.detect(self.journal)
        await self.caught_up()

    async def caught_up(self) -> None:
        there = {item.key for item in (await self.store.list(keys.JOURNAL)).items} if not self.store.away else set()
        await until(lambda: there <= set(self.journal.informer.items))

    @property
    def reported(self) -> list[tuple[str, Any]]:
        return [(entry.kind.value, entry.data) for entry in self.entries]


async def lead(store: MemoryStore) -> int:
    """Write a new leader key and return its epoch."""
    await store.commit([], [Delete(keys.LEADER)])
    return (await store.commit([], [Put(keys.LEADER, encode(Member("x", "http://x")))])).revision


@asynccontextmanager
async def tellers(store: MemoryStore, *names: str) -> AsyncIterator[list[Teller]]:
    some = [Teller(store, name) for name in names]
    for teller in some:
        teller.journal.informer.start()
        await teller.journal.informer.wait_synced()
    try:
        yield some
    finally:
        for teller in some:
            await teller.journal.informer.stop()


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    store = MemoryStore()
    yield store
    await store.close()


async def test_the_leader_records_what_differs_from_the_journal(store: MemoryStore) -> None:
    async with tellers(store, "north", "south") as (north, south):
        await north.look(epoch=await lead(store))
        assert [kind for kind, _ in north.reported] == ["leadership", "policy"]
        assert north.reported[0][1]["leader"] == {"name": "north", "url": "http://north"}
        await north.look()
        await north.look(regions={"a": RegionState.HEALTHY, "b": RegionState.SUSPECT})
        await north.look(regions={"a": RegionState.SUSPECT, "b": RegionState.HEALTHY})
        await north.look(regions={"a": RegionState.FAILED, "b": RegionState.HEALTHY})
        assert [data for kind, data in north.reported if kind == "region"] == [
            {"region": "a", "before": "unknown", "after": "healthy"},
            {"region": "b", "before": "unknown", "after": "healthy"},
            {"region": "a", "before": "healthy", "after": "failed"},
        ]
        await south.caught_up()
        assert south.entries == north.entries


async def test_the_next_leader_records_nothing_twice_and_ids_are_the_same_everywhere(store: MemoryStore) -> None:
    async with tellers(store, "north", "south") as (north, south):
        regions = {"a": RegionState.FAILED, "b": RegionState.HEALTHY}
        await north.look(epoch=await lead(store), regions=regions, plans=planned(0.5, 1))
        seen = north.events.read(0)
        assert seen is not None
        await south.caught_up()
        await north.look(epoch=None, why="lost it")
        last = north.events.read(north.events.end - 1)
        assert last is not None
        assert (last[0].id, last[0].data["leader"], last[0].data["why"]) == ("", None, "lost it")
        await south.look(epoch=await lead(store), regions=regions | {"a": RegionState.RECOVERING})
        position, whole = south.events.after(seen[-1].id)
        assert whole
        assert [(event.kind.value, event.data.get("after")) for event in south.events.read(position) or ()] == [
            ("leadership", None),
            ("region", "recovering"),
        ]


async def test_an_event_that_one_leader_could_not_write_is_recorded_by_the_next(store: MemoryStore) -> None:
    async with tellers(store, "north", "south") as (north, south):
        first = await lead(store)
        north.store.away = True
        await north.look(epoch=first, regions={"a": RegionState.FAILED})
        north.store.away = False
        second = await lead(store)
        await north.look()
        assert north.entries == [], "a former leader writes nothing"
        await south.look(epoch=second, regions={"a": RegionState.FAILED})
        assert [kind for kind, _ in south.reported] == ["leadership", "policy", "region"]


async def test_a_former_leader_overwrites_nothing(store: MemoryStore) -> None:
    async with tellers(store, "north", "south") as (north, south):
        await south.journal.informer.stop()
        await north.look(epoch=await lead(store))
        epoch = await lead(store)
        assert not await south.journal.write([(EventKind.REGION, {})], epoch, 1.0)
        assert len((await store.list(keys.JOURNAL)).items) == 2


async def test_changes_made_without_a_leader_are_recorded_once(store: MemoryStore) -> None:
    async with tellers(store, "north", "south") as (north, south):
        for number in range(MAX_AUDITED + 2):
            await south.audit.record(AuditedAction(DUTY, "thing.do", str(number), "because"))
        large = "x" * MAX_AUDITED_BYTES
        last = await south.audit.record(AuditedAction(DUTY, "thing.do", "large", "because", after=large))
        await north.look(epoch=await lead(store), audited=last)
        await north.look()
        reported = [data for kind, data in north.reported if kind == "audit"]
        assert [change["target"] for change in reported] == [*map(str, range(3, MAX_AUDITED + 2)), "large"]
        assert (reported[-1].get("after"), reported[-1]["seq"]) == (None, MAX_AUDITED + 3)


async def test_an_unreadable_audit_entry_does_not_stop_the_next_events(store: MemoryStore) -> None:
    async with tellers(store, "north") as (north,):
        made = [AuditedAction(DUTY, "thing.do", str(at), "because") for at in range(3)]
        first, _, last = [await north.audit.record(action) for action in made]
        await store.commit([], [Put(keys.audit_entry(2), b"garbage")])
        await north.look(epoch=await lead(store), audited=first)
        await north.look(audited=last)
        assert [data["seq"] for kind, data in north.reported if kind == "audit"] == [1, 3]


async def test_a_plan_event_states_its_circumstances(store: MemoryStore) -> None:
    async with tellers(store, "north", "south") as (north, south):
        regions = {"a": RegionState.HEALTHY, "b": RegionState.FAILED}
        orders = (msgspec.structs.replace(drain("a"), author="duty", reason="new racks"),)
        await north.look(epoch=await lead(store), regions=regions, overrides=orders, plans=planned(0.5, 1))
        await south.caught_up()
        (step,) = south.history.steps.values()
        assert (step.leader, step.circumstances) == ("north", ("b is failed", "drain of a by duty: new racks"))
        assert south.history.plan(max(south.history.steps)).slices["a"].classes == planned(0.5, 1)["a"].classes


async def test_the_journal_is_bounded_by_kind(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "MAX_PLANS", 2)
    monkeypatch.setattr(journals, "MAX_OTHERS", 3)
    async with tellers(store, "north") as (north,):
        epoch = await lead(store)
        await north.look(epoch=epoch, regions={"a": RegionState.FAILED})
        for at in range(1, 6):
            await north.look(plans=planned(at / 10, at))
        kinds = [north.journal._kinds[number] for number in sorted(north.journal._kinds)]
        assert kinds == [EventKind.LEADERSHIP, EventKind.POLICY, EventKind.REGION, EventKind.PLAN, EventKind.PLAN]
        assert [step.generation for step in north.history.steps.values()] == [4, 5]
        await north.look(regions={"a": RegionState.HEALTHY})
        assert len((await store.list(keys.JOURNAL)).items) == 5


async def test_an_unreadable_entry_is_omitted_and_later_ones_are_appended(store: MemoryStore) -> None:
    async with tellers(store, "north") as (north,):
        await store.commit([], [Put(keys.journal_entry(1), b"garbage")])
        await until(lambda: keys.journal_entry(1) in north.journal.informer.items)
        await north.look(epoch=await lead(store))
        assert [entry.number for entry in north.entries] == [2, 3]
