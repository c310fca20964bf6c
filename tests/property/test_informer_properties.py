"""After any faults and compactions, the informer's copy equals the store, and its changes add up to the copy."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.store.config_store import Changed, Delete, KeyValue, Put
from adapters.store.informer import Informer
from tests.support.examples import examples
from tests.support.running import running
from tests.support.unsteady_store import NoWait, UnsteadyStore
from tests.support.wait import until

KEYS = st.sampled_from(["/p/a", "/p/b", "/p/c", "/other"])
PUTS = st.builds(Put, KEYS, st.binary(max_size=1))
WRITES = st.lists(PUTS | st.builds(Delete, KEYS), min_size=1, max_size=3, unique_by=lambda write: write.key)
STEPS = st.one_of(
    st.tuples(st.just("commit"), WRITES),
    st.tuples(st.just("leased"), st.lists(PUTS, min_size=1, max_size=2, unique_by=lambda write: write.key)),
    st.tuples(st.just("expire"), st.none()),
    st.tuples(st.just("compact"), st.integers(0, 3)),
    st.tuples(st.just("break"), st.none()),
    st.tuples(st.just("fail lists"), st.integers(1, 3)),
    st.tuples(st.just("let the informer run"), st.integers(1, 12)),
)


class Replay:
    """Replays changes into a state, and checks that each change is consistent with the previous ones."""

    def __init__(self) -> None:
        self.items: dict[str, KeyValue] = {}

    def on_change(self, change: Changed) -> None:
        before = self.items.get(change.key)
        if change.now is None:
            assert before is not None, "a deletion of what was not there"
            del self.items[change.key]
        else:
            assert change.now.mod_revision == change.revision
            assert before is None or before.mod_revision < change.revision, "twice, or out of order"
            self.items[change.key] = change.now
        assert before is None or before.mod_revision < change.revision


@settings(deadline=None, max_examples=examples(150))
@given(st.lists(STEPS, max_size=25))
def test_informer_ends_equal_to_the_store(steps: list[tuple[str, object]]) -> None:
    asyncio.run(follow_through(steps))


async def follow_through(steps: list[tuple[str, object]]) -> None:
    store, replay = UnsteadyStore(), Replay()
    failed: list[AssertionError] = []

    def on_change(change: Changed) -> None:
        try:
            replay.on_change(change)
        except AssertionError as error:
            failed.append(error)

    leases: list[int] = []
    async with running(Informer(store, "/p/", on_change, rng=NoWait())) as informer:
        for step, argument in steps:
            await take_step(store, leases, step, argument)
        store.lists_to_fail = 0
        expected = {item.key: item for item in (await store.list("/p/")).items}
        await until(lambda: informer.synced and dict(informer.items) == expected)
    await store.close()
    assert not failed, failed[0]
    assert replay.items == expected


async def take_step(store: UnsteadyStore, leases: list[int], step: str, argument: object) -> None:
    match step, argument:
        case "commit", list(writes):
            await store.commit((), writes)
        case "leased", list(writes):
            leases.append(await store.grant_lease(60))
            await store.commit((), [Put(write.key, write.value, leases[-1]) for write in writes])
        case "expire", _ if leases:
            await store.revoke_lease(leases.pop(0))
        case "compact", int(revisions_ago):
            store.compact((await store.commit((), ())).revision - revisions_ago)
        case "break", _:
            store.break_watches()
        case "fail lists", int(times):
            store.lists_to_fail = times
        case "let the informer run", int(turns):
            for _ in range(turns):
                await asyncio.sleep(0)
