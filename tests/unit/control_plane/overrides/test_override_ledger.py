"""Bounds of the ledger: the number and size of overrides, and the treatment of unreadable values."""

from __future__ import annotations

from collections.abc import AsyncIterator
from random import Random

import msgspec
import pytest

from adapters.access.callers import Caller, Role
from adapters.store import keys
from adapters.store.codec import MAX_VALUE_BYTES, decode, encode
from adapters.store.config_store import Put, StoreError
from adapters.store.signed_store import UNAUTHENTIC
from control_plane.audit.audit_log import AuditLog
from control_plane.overrides.override_store import OverrideRefused, OverrideStore
from lab.memory_store import MemoryStore
from penstock.overrides.overrides import MAX_OVERRIDES, MAX_REASON, OverrideSet
from tests.support import planet
from tests.support.override_builders import drain, weight
from tests.support.stores import leader_epoch, put
from tests.support.wait import until

DUTY = Caller("duty", Role.OPERATOR)
POLICY = planet.policy()


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    store = MemoryStore()
    yield store
    await store.close()


@pytest.fixture
def ledger(store: MemoryStore) -> OverrideStore:
    return OverrideStore(store, AuditLog(store), "north", rng=Random(1), clock=lambda: 1.0)


async def test_overrides_fit_into_one_value_of_the_store(store: MemoryStore, ledger: OverrideStore) -> None:
    largest = weight("us-east", 0.9, reason="\N{GREEK SMALL LETTER OMEGA}\N{MUSICAL SYMBOL G CLEF}" * (MAX_REASON // 2))
    full = OverrideSet(
        tuple(
            msgspec.structs.replace(largest, id=f"{at:012d}", author="a" * 255, model="m" * 128, origin="o" * 63)
            for at in range(MAX_OVERRIDES)
        )
    )
    assert len(encode(full)) < MAX_VALUE_BYTES
    await put(store, keys.OVERRIDES, encode(full))
    with pytest.raises(OverrideRefused, match="lift some"):
        await ledger.begin(DUTY, weight("eu-de", 0.9), POLICY, {})


async def test_an_unreadable_value_is_not_overwritten(store: MemoryStore, ledger: OverrideStore) -> None:
    await store.commit([], [Put(keys.OVERRIDES, b"garbage")])
    with pytest.raises(StoreError, match="none can be changed"):
        await ledger.begin(DUTY, drain("eu-de"), POLICY, {})
    there = await store.get(keys.OVERRIDES)
    assert there is not None
    assert there.value == b"garbage"


async def test_overwritten_overrides_stay_in_force_and_are_restored(store: MemoryStore, ledger: OverrideStore) -> None:
    drained = await ledger.begin(DUTY, drain("eu-de"), POLICY, {}, force=True)
    ledger.mirror.informer.start()
    await until(lambda: ledger.seen.overrides == (drained,))
    await put(store, keys.OVERRIDES, UNAUTHENTIC)
    await until(lambda: any(item.value == UNAUTHENTIC for item in ledger.mirror.informer.items.values()))
    assert ledger.known
    assert ledger.seen.overrides == (drained,)
    limited = await ledger.begin(DUTY, weight("us-east", 0.9), POLICY, {})
    assert (await ledger.read()).overrides == (drained, limited)
    await ledger.mirror.informer.stop()


async def test_a_leader_writes_overwritten_overrides_again(store: MemoryStore, ledger: OverrideStore) -> None:
    epoch = await leader_epoch(store)
    drained = await ledger.begin(DUTY, drain("eu-de"), POLICY, {}, force=True)
    ledger.mirror.informer.start()
    await until(lambda: ledger.seen.overrides == (drained,))
    await ledger.repair(epoch)
    assert (await AuditLog(store).head()).seq == 1
    await put(store, keys.OVERRIDES, UNAUTHENTIC)
    await until(lambda: any(item.value == UNAUTHENTIC for item in ledger.mirror.informer.items.values()))
    await ledger.repair(epoch)
    written = await store.get(keys.OVERRIDES)
    assert written is not None
    assert decode(written.value, OverrideSet).overrides == (drained,)
    await ledger.mirror.informer.stop()


async def test_invalid_changes_are_not_written(store: MemoryStore, ledger: OverrideStore) -> None:
    with pytest.raises(OverrideRefused, match="no region mars"):
        await ledger.begin(DUTY, drain("mars"), POLICY, {})
    assert (await store.list(keys.ROOT)).items == ()
