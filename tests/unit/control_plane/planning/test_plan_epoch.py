"""Plans of a new leader have a larger epoch than any plan that an agent applies."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest

from adapters.store import keys
from adapters.store.codec import encode
from adapters.store.config_store import Delete, Put, StoreError
from adapters.store.members import Member
from control_plane.planning.plan_epoch import MAX_RAISING_EPOCH, PlanEpoch
from lab.memory_store import MemoryStore
from penstock.fleet.snapshot import MAX_PLAN_NUMBER, HeldReport, ReportVerdict, Snapshot, add_report
from tests.support import planet
from tests.support.reports import report


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    store = MemoryStore()
    yield store
    await store.close()


async def elect(store: MemoryStore) -> int:
    await store.commit([], [Delete(keys.LEADER)])
    return (await store.commit([], [Put(keys.LEADER, encode(Member("a", "http://a")))])).revision


async def office(store: MemoryStore, fencing_epoch: int) -> PlanEpoch:
    plan_epoch = PlanEpoch(store)
    await plan_epoch.adopt(fencing_epoch)
    return plan_epoch


def applying(epoch: int, generation: int) -> list[HeldReport]:
    said = msgspec.structs.replace(report("eu-de"), plan_epoch=epoch, plan_generation=generation)
    return [HeldReport(report("eu-es"), 0.0), HeldReport(said, 0.0)]


async def test_without_newer_plans_at_agents_it_is_the_fencing_epoch(store: MemoryStore) -> None:
    fencing = await elect(store)
    plan_epoch = await office(store, fencing)
    for epoch, generation in ((0, 0), (fencing - 1, 900), (fencing, 7)):
        await plan_epoch.raise_above(applying(epoch, generation), generation=7)
    assert plan_epoch.value == fencing
    assert await store.get(keys.EPOCH_BASE) is None
    await plan_epoch.raise_above([], generation=0)


@pytest.mark.parametrize("applied", [(5000, 41), (2**40, 1)])
async def test_in_a_wiped_store_it_continues_from_the_agents_epochs(
    store: MemoryStore, applied: tuple[int, int]
) -> None:
    plan_epoch = await office(store, await elect(store))
    await plan_epoch.raise_above(applying(*applied), generation=3)
    assert plan_epoch.value == applied[0] + 1
    await plan_epoch.raise_above(applying(*applied), generation=4)
    assert plan_epoch.value == applied[0] + 1, "once is enough"


async def test_an_equal_epoch_is_distinguished_by_its_generation(store: MemoryStore) -> None:
    fencing = await elect(store)
    plan_epoch = await office(store, fencing)
    await plan_epoch.raise_above(applying(fencing, 900), generation=3)
    assert plan_epoch.value == fencing + 1


async def test_later_leaders_use_larger_epochs(store: MemoryStore) -> None:
    values = []
    for _ in range(3):
        plan_epoch = await office(store, await elect(store))
        await plan_epoch.raise_above(applying(5000, 41), generation=3)
        values.append(plan_epoch.value)
    assert values == sorted(set(values))
    assert values[0] > 5000


@pytest.mark.parametrize("applied", [(MAX_PLAN_NUMBER, MAX_PLAN_NUMBER), (MAX_RAISING_EPOCH, MAX_PLAN_NUMBER)])
async def test_reports_of_one_agent_leave_room_for_the_epochs_of_later_leaders(
    store: MemoryStore, applied: tuple[int, int]
) -> None:
    epochs = []
    for _ in range(3):
        plan_epoch = await office(store, await elect(store))
        await plan_epoch.raise_above([*applying(*applied), *applying(5000, 41)], generation=3)
        # The hostile agent learns the epoch from the plan of its region.
        await plan_epoch.raise_above(applying(plan_epoch.value + 1, MAX_PLAN_NUMBER), generation=3)
        epochs.append(plan_epoch.value)
    assert epochs == sorted(set(epochs))
    assert epochs[0] > 5000
    assert epochs[-1] < MAX_PLAN_NUMBER - 2**51
    (_, held) = applying(epochs[-1], 4)
    assert add_report(Snapshot(), held.report, 0.0, planet.policy())[1] is ReportVerdict.ACCEPTED


async def test_a_former_leader_does_not_raise_the_base(store: MemoryStore) -> None:
    former = await office(store, await elect(store))
    await elect(store)
    with pytest.raises(StoreError):
        await former.raise_above(applying(5000, 41), generation=3)
    assert await store.get(keys.EPOCH_BASE) is None


async def test_an_unreadable_base_is_not_treated_as_absent(store: MemoryStore) -> None:
    fencing = await elect(store)
    await store.commit([], [Put(keys.EPOCH_BASE, b"garbage")])
    with pytest.raises(StoreError, match="epoch-base"):
        await office(store, fencing)
