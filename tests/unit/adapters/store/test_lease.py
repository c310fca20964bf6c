"""Registration on the store in memory; on real etcd: tests/integration/test_lease_on_etcd.py."""

from __future__ import annotations

import asyncio

import pytest

from adapters.store.config_store import Committed, Delete, Put, SameKey, StoreUnavailable, Unchanged
from adapters.store.lease import RENEWALS_PER_TTL, Registration
from adapters.store.signed_store import UNAUTHENTIC
from lab.memory_store import MemoryStore
from tests.support.clocks import SetClock
from tests.support.running import running
from tests.support.unsteady_store import NoWait
from tests.support.wait import PATIENCE_S, found, until


class FailingCommits(MemoryStore):
    to_fail = 2

    async def commit(self, expect: list[Unchanged | SameKey], do: list[Put | Delete]) -> Committed:  # type: ignore[override]
        if self.to_fail:
            self.to_fail -= 1
            raise StoreUnavailable("the test makes it fail")
        return await super().commit(expect, do)


class CountedRenewals(MemoryStore):
    """A store whose clock does not advance, so that a lease does not expire, however late its renewal is."""

    def __init__(self) -> None:
        super().__init__(clock=lambda: 0.0)
        self.renewals = 0

    async def keep_alive(self, lease_id: int) -> None:
        await super().keep_alive(lease_id)
        self.renewals += 1


def registration(store: MemoryStore, value: bytes = b"me", ttl_s: int = 1) -> Registration:
    return Registration(store, "/agents/a", value, ttl_s=ttl_s, rng=NoWait())


async def registered(pending: Registration) -> None:
    await until(lambda: pending.registered)


async def test_key_exists_until_stopped() -> None:
    store = CountedRenewals()
    async with running(registration(store)) as mine:
        await registered(mine)
        found = await store.get("/agents/a")
        assert found is not None
        assert found.value == b"me"
        assert found.lease_id
    assert not mine.registered
    assert await store.get("/agents/a") is None
    await mine.stop()


async def test_is_renewed_well_within_its_time_to_live() -> None:
    assert RENEWALS_PER_TTL >= 3
    store = CountedRenewals()
    async with running(registration(store, ttl_s=1)) as mine:
        await registered(mine)
        before = await store.get("/agents/a")
        await until(lambda: store.renewals >= 2)
        assert await store.get("/agents/a") == before


async def test_a_lost_lease_is_created_again() -> None:
    store = CountedRenewals()
    async with running(registration(store)) as mine:
        await registered(mine)
        before = await store.get("/agents/a")
        assert before is not None
        await store.revoke_lease(before.lease_id)
        batches = store.watch("/agents/", (await store.list("/")).revision)
        async with asyncio.timeout(PATIENCE_S):
            while not (batch := await anext(batches)):
                pass
        assert batch[0].now is not None
        assert batch[0].now.value == b"me"
        assert batch[0].now.lease_id != before.lease_id
        await batches.aclose()


async def test_an_overwritten_key_is_restored_unless_the_new_value_is_authentic() -> None:
    store = CountedRenewals()
    async with running(registration(store)) as mine:
        await registered(mine)
        await store.commit((), (Put("/agents/a", UNAUTHENTIC),))

        async def value() -> bytes | None:
            item = await store.get("/agents/a")
            return item.value if item is not None and item.value else None

        assert await found(value) == b"me"
        await store.commit((), (Put("/agents/a", b"successor"),))
        before = store.renewals
        # When the second renewal begins, the first has completed.
        await until(lambda: store.renewals >= before + 2)
        assert await value() == b"successor"


async def test_failed_writes_are_retried_under_the_same_lease() -> None:
    store = FailingCommits(clock=lambda: 0.0)
    async with running(registration(store)) as mine:
        await registered(mine)
        assert store.to_fail == 0
        assert await store.grant_lease(1) == 2


async def test_the_key_expires_without_its_process() -> None:
    clock = SetClock()
    store = MemoryStore(clock)
    mine = registration(store, ttl_s=60)
    mine.start()
    await registered(mine)
    clock.now += 60
    assert await store.get("/agents/a") is None
    await mine.stop()


async def test_a_successor_of_the_same_name_keeps_the_key_when_the_old_one_leaves() -> None:
    store = CountedRenewals()
    async with running(registration(store, b"old")) as old:
        await registered(old)
        successor = registration(store, b"new")
        successor.start()
        await registered(successor)
    found = await store.get("/agents/a")
    assert found is not None
    assert found.value == b"new"
    await successor.stop()


async def test_a_successor_registers_again_when_the_old_one_wrote_last_and_left() -> None:
    store = CountedRenewals()
    successor = registration(store, b"new")
    successor.start()
    await registered(successor)
    async with running(registration(store, b"old")) as old:
        await registered(old)
    assert (await found(lambda: store.get("/agents/a"))).value == b"new"
    await successor.stop()


async def test_stops_while_the_store_is_unavailable() -> None:
    store = MemoryStore()
    mine = registration(store)
    mine.start()
    await registered(mine)
    await store.close()
    await mine.stop()
    assert not mine.registered
    with pytest.raises(StoreUnavailable):
        await store.get("/agents/a")
