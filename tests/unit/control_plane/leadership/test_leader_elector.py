"""Elections on the store in memory: one leads, the next takes over, a leader without a proven lease steps down."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random

import pytest

from adapters.store import keys
from adapters.store.codec import encode
from adapters.store.config_store import Delete, Put, SameKey, StoreUnavailable
from adapters.store.members import Member
from control_plane.leadership import leader_elector
from control_plane.leadership.leader_elector import Candidate, LeaderElector
from lab.memory_store import MemoryStore
from penstock.leadership.leadership_states import MIN_LEASE_TTL_S, Leadership, LeadershipRole
from tests.support.api_app import STEADY_LEASE_S
from tests.support.faulty_store import FaultyStore
from tests.support.running import running
from tests.support.unsteady_store import NoWait
from tests.support.wait import until


@pytest.fixture
async def shared() -> AsyncIterator[MemoryStore]:
    store = MemoryStore()
    yield store
    await store.close()


@asynccontextmanager
async def standing(
    shared: MemoryStore,
    name: str,
    *,
    eligible: Callable[[], bool] = lambda: True,
    lease_ttl_s: int = MIN_LEASE_TTL_S,
    on_change: Callable[[Leadership], None] = lambda _: None,
) -> AsyncIterator[LeaderElector]:
    """The elector of one control plane, with a separate connection to the store: `elector._store`."""
    elector = LeaderElector(
        FaultyStore(shared),
        Candidate(Member(name, f"http://{name}"), eligible),
        rng=Random(name),
        lease_ttl_s=lease_ttl_s,
        on_change=on_change,
    )
    elector.start()
    try:
        yield elector
    finally:
        await elector.stop()


def way(elector: LeaderElector) -> FaultyStore:
    store = elector._store
    assert isinstance(store, FaultyStore)
    return store


def leading(*electors: LeaderElector) -> list[LeaderElector]:
    return [elector for elector in electors if elector.epoch is not None]


async def test_one_of_three_leads_and_the_others_name_it(shared: MemoryStore) -> None:
    async with AsyncExitStack() as stack:
        all_ = [await stack.enter_async_context(standing(shared, name)) for name in "abc"]
        await until(lambda: len(leading(*all_)) == 1 and all(elector.leader for elector in all_))
        (leader,) = leading(*all_)
        seen = {(elector.leader.value.name, elector.leader.create_revision) for elector in all_ if elector.leader}
        assert seen == {(leader.member.name, leader.epoch)}


async def test_a_successor_leads_under_a_larger_epoch(shared: MemoryStore) -> None:
    async with standing(shared, "a") as first:
        await until(lambda: first.epoch is not None)
        before = first.epoch
        async with standing(shared, "b") as second:
            await first.stop()
            await until(lambda: second.epoch is not None)
            assert before is not None
            assert second.epoch is not None
            assert second.epoch > before


async def test_a_control_plane_without_a_policy_is_no_candidate(shared: MemoryStore) -> None:
    asked, roles = 0, list[LeadershipRole]()

    def not_eligible() -> bool:
        nonlocal asked
        asked += 1
        return False

    ineligible = standing(shared, "a", eligible=not_eligible, on_change=lambda change: roles.append(change.role))
    async with ineligible as idle, standing(shared, "b") as able:
        await until(lambda: able.epoch is not None)
        await able.stop()
        await until(lambda: not idle.mirror.has_key)
        before = asked
        # The second read proves that the elector wrote nothing after the first.
        await until(lambda: asked >= before + 2)
    assert roles == []


async def test_a_disconnected_leader_steps_down_before_another_leads(shared: MemoryStore) -> None:
    epochs_of_the_first: list[int | None] = []

    def on_change(change: Leadership) -> None:
        if change.role is LeadershipRole.LEADER:
            epochs_of_the_first.append(first.epoch)

    async with standing(shared, "a") as first:
        await until(lambda: first.epoch is not None)
        async with standing(shared, "b", on_change=on_change) as second:
            await until(lambda: second.mirror.informer.synced)
            way(first).away = True
            await until(lambda: bool(epochs_of_the_first))
            assert epochs_of_the_first == [None]
            await until(lambda: first.leadership.role is LeadershipRole.FOLLOWER)


async def test_a_short_outage_of_the_store_keeps_the_leader(shared: MemoryStore) -> None:
    async with standing(shared, "a", lease_ttl_s=STEADY_LEASE_S) as leader:
        await until(lambda: leader.epoch is not None)
        epoch, proven = leader.epoch, leader.leadership.proven_until
        way(leader).away = True
        await until(lambda: way(leader).failures > 0)
        way(leader).away = False
        await until(lambda: leader.leadership.proven_until > proven)
        assert leader.epoch == epoch


async def test_an_expired_lease_ends_the_leadership(shared: MemoryStore) -> None:
    async with standing(shared, "a") as leader:
        await until(lambda: leader.epoch is not None)
        epoch = leader.epoch
        await shared.revoke_lease(leader._lease_id)
        await until(lambda: leader.epoch not in (None, epoch))


async def test_a_fenced_leader_steps_down_and_releases_its_lease(shared: MemoryStore) -> None:
    async with standing(shared, "a") as leader:
        await until(lambda: leader.epoch is not None)
        epoch = leader.epoch
        assert epoch is not None
        usurper = Put(keys.LEADER, encode(Member("usurper", "http://usurper")))
        await shared.commit([SameKey(keys.LEADER, epoch)], [Delete(keys.LEADER)])
        await shared.commit([], [usurper])
        leader.fenced(epoch)
        assert leader.epoch is None
        await until(lambda: leader.leader is not None and leader.leader.value.name == "usurper")
        await until(lambda: leader._lease_id == 0)
        assert leader.leadership.role is LeadershipRole.FOLLOWER


async def test_a_leader_that_steps_down_as_a_renewal_is_due_releases_its_lease(
    shared: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_elector, "RENEW_S", 0.05)
    roles: list[LeadershipRole] = []

    def on_change(change: Leadership) -> None:
        roles.append(change.role)
        if roles == [LeadershipRole.CANDIDATE, LeadershipRole.LEADER]:
            loop = asyncio.get_running_loop()
            # The event loop is blocked until both timers are due, so the leader steps down in the same iteration.
            loop.call_later(0.02, time.sleep, 0.1)
            loop.call_later(0.08, first.step_down)

    async with standing(shared, "a", lease_ttl_s=STEADY_LEASE_S, on_change=on_change) as first:
        await until(lambda: LeadershipRole.LEADER in roles)
        async with standing(shared, "b") as second:
            await until(lambda: second.epoch is not None)
    assert roles == [LeadershipRole.CANDIDATE, LeadershipRole.LEADER, LeadershipRole.FOLLOWER]


async def test_a_late_fencing_report_does_not_end_a_new_leadership(shared: MemoryStore) -> None:
    async with standing(shared, "a") as leader:
        await until(lambda: leader.epoch is not None)
        epoch = leader.epoch
        assert epoch is not None
        leader.fenced(epoch - 1)
        assert leader.epoch == epoch


async def test_an_election_in_doubt_is_not_won_and_blocks_no_candidate(shared: MemoryStore) -> None:
    async with standing(shared, "a") as doubtful:
        way(doubtful).commits_in_doubt = True
        await until(lambda: doubtful.leadership.why == "the store did not answer the election")
        assert doubtful.epoch is None
        async with standing(shared, "b") as successor:
            await until(lambda: successor.epoch is not None)


class FailingLeases(FaultyStore):
    fails = True

    async def grant_lease(self, ttl_s: int) -> int:
        if self.fails:
            raise StoreUnavailable("the test makes it fail")
        return await super().grant_lease(ttl_s)


async def test_failed_campaigns_are_retried_with_backoff(shared: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    campaigns, pauses = 0, list[tuple[int, int]]()

    def on_change(change: Leadership) -> None:
        nonlocal campaigns
        campaigns += change.role is LeadershipRole.CANDIDATE

    def pause_s(attempt: int, **_: object) -> float:
        pauses.append((campaigns, attempt))
        return 0.0

    monkeypatch.setattr(leader_elector, "full_jitter_s", pause_s)
    store = FailingLeases(shared)
    elector = LeaderElector(store, Candidate(Member("a", "http://a")), rng=NoWait(), on_change=on_change)
    async with running(elector):
        await until(lambda: len(pauses) >= 6)
        assert pauses[:6] == [(attempt + 1, attempt) for attempt in range(6)]
        store.fails = False
        await until(lambda: elector.epoch is not None)


async def test_a_leader_that_lost_its_store_leads_again_and_resigns_at_the_end(shared: MemoryStore) -> None:
    store = FaultyStore(shared)
    elector = LeaderElector(store, Candidate(Member("a", "http://a")), rng=Random(1))
    elector.start()
    await until(lambda: elector.epoch is not None)
    store.away = True
    await until(lambda: elector.epoch is None)
    store.away = False
    await until(lambda: elector.epoch is not None)
    await elector.stop()
    assert await shared.get(keys.LEADER) is None
    assert elector.leadership.why == "resigned"


async def test_a_leader_that_cannot_plan_resigns(shared: MemoryStore) -> None:
    async with standing(shared, "a") as a:
        await until(lambda: a.epoch is not None)
        async with standing(shared, "b") as b:
            a._eligible = lambda: False
            await until(lambda: leading(a, b) == [b])
