"""For any order of publications the store holds only values of the current leader, and never an older plan."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.store import keys
from adapters.store.codec import decode, encode
from adapters.store.config_store import Delete, Put, StoreUnavailable
from adapters.store.members import Member
from control_plane.planning.plan_publisher import Fenced, PlanPublisher
from lab.memory_store import MemoryStore
from penstock.planning.plan import Arc, ArcReason, ClassPlan, RegionPlan
from tests.support import planet
from tests.support.examples import examples
from tests.support.faulty_store import FaultyStore

POLICY = planet.policy()
REGIONS = ("eu-de", "eu-es")

elections = st.tuples(st.just("elect"), st.integers(0, 2), st.booleans())
publications = st.tuples(st.just("publish"), st.integers(0, 2), st.booleans())
steps = st.lists(elections | publications, max_size=30)


class Seat:
    """One control plane: its connection to the store, and the epoch of its leadership in its own view."""

    def __init__(self, store: MemoryStore) -> None:
        self.way = FaultyStore(store)
        self.publisher = PlanPublisher(self.way)
        self.epoch = 0


async def elect(store: MemoryStore, seat: Seat) -> None:
    await store.commit([], [Delete(keys.LEADER)])
    seat.epoch = (await store.commit([], [Put(keys.LEADER, encode(Member("x", "http://x")))])).revision
    seat.publisher.uncertain = True


async def publish(seat: Seat, number: int, now: float) -> None:
    """Publish as one tick does. With `seat.way.commits_in_doubt` the response of every write is lost."""
    try:
        if seat.publisher.uncertain:
            await seat.publisher.adopt(seat.epoch)
        generation = seat.publisher.generation + 1
        entry = ClassPlan(planet.MODEL, "eu-de", (Arc("eu-de", 1.0, ArcReason.HOME),), (str(number),))
        plans = {
            region: RegionPlan(region, generation, seat.epoch, POLICY.digest(), now, (entry,)) for region in REGIONS
        }
        await seat.publisher.publish(plans, POLICY, now)
    except (Fenced, StoreUnavailable):
        pass


async def play(script: list[tuple[str, int, bool]]) -> None:
    store = MemoryStore()
    seats = [Seat(store) for _ in range(3)]
    newest: dict[str, RegionPlan] = {}
    for number, (action, who, in_doubt) in enumerate(script):
        seat = seats[who]
        seat.way.commits_in_doubt = in_doubt
        if action == "elect":
            await elect(store, seat)
        elif seat.epoch:
            await publish(seat, number, float(number))
        leader = await store.get(keys.LEADER)
        for item in (await store.list(keys.PLANS)).items:
            plan = decode(item.value, RegionPlan)
            before = newest.get(plan.region)
            if plan != before:
                assert leader is not None
                assert plan.epoch == leader.create_revision
                assert plan.supersedes(before)
                newest[plan.region] = plan
            assert await store.get(keys.policy(plan.policy_digest)) is not None
    await store.close()


@given(steps)
@settings(max_examples=examples(150), deadline=None)
def test_only_the_leader_writes_plans_and_never_older_ones(script: list[tuple[str, int, bool]]) -> None:
    asyncio.run(play(script))
