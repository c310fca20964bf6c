"""A follower's metrics name the policy that the leader has in force, and not the one that the source offers."""

from __future__ import annotations

from adapters.store import keys
from adapters.store.codec import encode
from adapters.store.config_store import Put
from adapters.store.members import Member
from lab.memory_store import MemoryStore
from penstock.rollout.policy_rollout import Phase, Rollout
from tests.support.api_app import new_control_plane
from tests.support.wait import until

STABLE, CANDIDATE = "cd" * 32, "ef" * 32


async def test_the_policy_in_force_is_that_of_the_rollout() -> None:
    store = MemoryStore()
    rollout = Rollout(2, CANDIDATE, STABLE, Phase.ROLLED_BACK, 0.0, 0.0, "it fails")
    leader = Put(keys.LEADER, encode(Member("south", "http://south")))
    await store.commit([], [leader, Put(keys.ROLLOUT, encode(rollout))])
    north = new_control_plane(store)
    await north.start()
    try:

        def shows(digest: str) -> bool:
            return f'penstock_policy_info{{digest="{digest}"}} 1.0' in north.metrics.render().decode()

        await until(lambda: shows(STABLE))
        assert not shows(CANDIDATE)
        watched = Rollout(3, CANDIDATE, STABLE, Phase.WATCH, 0.0, 0.0, "it is tried again")
        await store.commit([], [Put(keys.ROLLOUT, encode(watched))])
        await until(lambda: shows(CANDIDATE))
        assert not shows(STABLE)
    finally:
        await north.stop()
        await store.close()
