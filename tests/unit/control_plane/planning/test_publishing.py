"""Plans are written with fencing, after their policy, and only if they differ."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest

from adapters.store import keys
from adapters.store.codec import decode, encode
from adapters.store.config_store import Delete, Put, StoreUnavailable
from adapters.store.members import Member
from control_plane.metrics import PublishOutcome
from control_plane.planning.plan_publisher import MAX_UNUSED_POLICIES, REFRESH_S, Fenced, PlanPublisher
from lab.memory_store import MemoryStore
from penstock.planning.plan import Arc, ArcReason, ClassPlan, RegionPlan
from penstock.policy.policy import Policy
from tests.support import planet
from tests.support.faulty_store import FaultyStore

POLICY = planet.policy()


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    store = MemoryStore()
    yield store
    await store.close()


async def elect(store: MemoryStore, name: str = "a") -> int:
    """Write a new leader key and return its epoch."""
    await store.commit([], [Delete(keys.LEADER)])
    return (await store.commit([], [Put(keys.LEADER, encode(Member(name, "http://a")))])).revision


async def office(store: MemoryStore | FaultyStore, epoch: int) -> PlanPublisher:
    publisher = PlanPublisher(store)
    await publisher.adopt(epoch)
    return publisher


def plans(epoch: int, generation: int = 1, policy: Policy = POLICY, server: str = "eu-de") -> dict[str, RegionPlan]:
    entry = ClassPlan(planet.MODEL, "eu-de+eu-es", (Arc(server, 1.0, ArcReason.HOME),), ())
    return {
        region: RegionPlan(region, generation, epoch, policy.digest(), generation * 10.0, (entry,))
        for region in ("eu-de", "eu-es")
    }


async def stored(store: MemoryStore, region: str = "eu-de") -> RegionPlan | None:
    item = await store.get(keys.plan(region))
    return decode(item.value, RegionPlan) if item is not None else None


async def policies(store: MemoryStore) -> list[str]:
    return [item.key.removeprefix(keys.POLICIES) for item in (await store.list(keys.POLICIES)).items]


async def test_a_plan_is_written_region_by_region_after_its_policy(store: MemoryStore) -> None:
    epoch = await elect(store)
    publisher = await office(store, epoch)
    assert await publisher.publish(plans(epoch), POLICY, 0.0) is PublishOutcome.PUBLISHED
    items = {item.key: item for prefix in (keys.PLANS, keys.POLICIES) for item in (await store.list(prefix)).items}
    assert items.keys() == {keys.plan("eu-de"), keys.plan("eu-es"), keys.policy(POLICY.digest())}
    assert decode(items[keys.policy(POLICY.digest())].value, Policy) == POLICY
    first = min(items.values(), key=lambda item: item.create_revision)
    assert first.key == keys.policy(POLICY.digest())


async def test_an_unchanged_plan_is_not_written_again_until_it_is_due(store: MemoryStore) -> None:
    epoch = await elect(store)
    publisher = await office(store, epoch)
    await publisher.publish(plans(epoch), POLICY, 0.0)
    assert await publisher.publish(plans(epoch, 2), POLICY, REFRESH_S - 0.1) is PublishOutcome.UNCHANGED
    assert (await stored(store)) == plans(epoch)["eu-de"]
    assert await publisher.publish(plans(epoch, 3), POLICY, REFRESH_S) is PublishOutcome.PUBLISHED
    assert (await stored(store)) == plans(epoch, 3)["eu-de"]


async def test_only_the_region_that_changed_is_written(store: MemoryStore) -> None:
    epoch = await elect(store)
    publisher = await office(store, epoch)
    await publisher.publish(plans(epoch), POLICY, 0.0)
    mixed = plans(epoch, 2) | {"eu-es": plans(epoch, 2, server="eu-es")["eu-es"]}
    assert await publisher.publish(mixed, POLICY, 0.1) is PublishOutcome.PUBLISHED
    assert [(await stored(store, region)).generation for region in ("eu-de", "eu-es")] == [1, 2]  # type: ignore[union-attr]


async def test_generations_continue_from_the_largest_in_the_store(store: MemoryStore) -> None:
    epoch = await elect(store)
    await (await office(store, epoch)).publish(plans(epoch, 41), POLICY, 0.0)
    successor = await office(store, await elect(store))
    assert successor.generation == 41
    assert successor.in_force == plans(epoch, 41)


async def test_a_former_leader_changes_nothing(store: MemoryStore) -> None:
    old_epoch = await elect(store)
    former = await office(store, old_epoch)
    await former.publish(plans(old_epoch), POLICY, 0.0)
    epoch = await elect(store)
    await (await office(store, epoch)).publish(plans(epoch, 2), POLICY, 0.0)
    before = (await store.list(keys.ROOT)).items
    other = msgspec.structs.replace(POLICY, anonymous_tenant="open")
    with pytest.raises(Fenced):
        await former.publish(plans(old_epoch, 3, server="eu-es"), POLICY, 1.0)
    with pytest.raises(Fenced):
        await former.publish(plans(old_epoch, 4, other), other, 2.0)
    assert (await store.list(keys.ROOT)).items == before


async def test_a_leader_without_its_leader_key_changes_nothing(store: MemoryStore) -> None:
    epoch = await elect(store)
    publisher = await office(store, epoch)
    await store.commit([], [Delete(keys.LEADER)])
    with pytest.raises(Fenced):
        await publisher.publish(plans(epoch), POLICY, 0.0)
    assert await stored(store) is None


async def test_a_key_that_another_writer_changed_is_read_again(store: MemoryStore) -> None:
    epoch = await elect(store)
    publisher = await office(store, epoch)
    await publisher.publish(plans(epoch), POLICY, 0.0)
    await store.commit([], [Put(keys.plan("eu-de"), b"an operator's slip")])
    changed = plans(epoch, 2, server="eu-es")
    assert await publisher.publish(changed, POLICY, 1.0) is PublishOutcome.CONFLICT
    assert publisher.uncertain
    await publisher.adopt(epoch)
    assert "eu-de" not in publisher.in_force
    assert await publisher.publish(changed, POLICY, 2.0) is PublishOutcome.PUBLISHED
    assert await stored(store) == changed["eu-de"]


async def test_a_write_with_a_lost_response_is_verified(store: MemoryStore) -> None:
    epoch = await elect(store)
    way = FaultyStore(store)
    publisher = await office(way, epoch)
    way.commits_in_doubt = True
    with pytest.raises(StoreUnavailable):
        await publisher.publish(plans(epoch), POLICY, 0.0)
    assert publisher.uncertain
    way.commits_in_doubt = False
    await publisher.adopt(epoch)
    assert await publisher.publish(plans(epoch, 2), POLICY, 1.0) is PublishOutcome.PUBLISHED
    assert await policies(store) == [POLICY.digest()]


async def test_the_slice_of_a_removed_region_is_deleted(store: MemoryStore) -> None:
    epoch = await elect(store)
    publisher = await office(store, epoch)
    await publisher.publish(plans(epoch), POLICY, 0.0)
    fewer = {"eu-de": plans(epoch)["eu-de"]}
    assert await publisher.publish(fewer, POLICY, 0.1) is PublishOutcome.PUBLISHED
    assert await stored(store, "eu-es") is None


async def test_a_damaged_policy_is_written_again(store: MemoryStore) -> None:
    epoch = await elect(store)
    await store.commit([], [Put(keys.policy(POLICY.digest()), b"torn")])
    await (await office(store, epoch)).publish(plans(epoch), POLICY, 0.0)
    item = await store.get(keys.policy(POLICY.digest()))
    assert item is not None
    assert decode(item.value, Policy) == POLICY


async def test_old_policies_are_deleted_except_recent_ones_and_those_in_use(store: MemoryStore) -> None:
    epoch = await elect(store)
    publisher = await office(store, epoch)
    versions = [msgspec.structs.replace(POLICY, anonymous_tenant=str(i)) for i in range(MAX_UNUSED_POLICIES + 4)]
    for generation, version in enumerate(versions, start=1):
        await publisher.publish(plans(epoch, generation, version), version, generation * 10.0)
    kept = await policies(store)
    assert versions[-1].digest() in kept
    assert set(kept) == {version.digest() for version in versions[-MAX_UNUSED_POLICIES - 2 :]}
