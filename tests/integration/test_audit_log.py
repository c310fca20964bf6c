"""Each change has exactly one audit entry, on both stores and with several concurrent writers."""

from __future__ import annotations

import asyncio

import pytest

from adapters.access.callers import Caller, Role
from adapters.store import keys
from adapters.store.config_store import ConfigStore, Put, StoreError, StoreUnavailable, Unchanged
from control_plane.audit.audit_log import MAX_SIDE_BYTES, PAGE, AuditedAction, AuditLog, ChangeRefused
from lab.memory_store import MemoryStore
from penstock.log_chains.audit_log_chain import BEGINNING, AuditHead, ChainFault, verify_chain
from tests.support.faulty_store import FaultyStore
from tests.support.stores import put

CALLER = Caller("duty", Role.OPERATOR)


async def test_a_change_and_its_entry_are_one_transaction(either_store: ConfigStore) -> None:
    audit = AuditLog(either_store, clock=lambda: 12.5)
    assert await audit.head() == BEGINNING
    key = keys.ROOT + "thing"
    first = await audit.record(
        AuditedAction(CALLER, "thing.make", "thing", "because", after={"x": 1}),
        expect=[Unchanged(key, 0)],
        do=[Put(key, b"1")],
    )
    with pytest.raises(ChangeRefused, match="thing is not as"):
        await audit.record(
            AuditedAction(CALLER, "thing.make", "thing", "again"), expect=[Unchanged(key, 0)], do=[Put(key, b"2")]
        )
    now = await either_store.get(key)
    assert now is not None
    assert now.value == b"1"
    second = await audit.record(AuditedAction(CALLER, "thing.look", "thing", "", before={"x": 1}))
    assert [entry async for entry in audit.entries()] == [first, second]
    assert (first.seq, first.at, first.caller, first.role, second.previous) == (1, 12.5, "duty", "operator", first.hash)
    assert await audit.head() == AuditHead(2, second.hash)


async def test_concurrent_writers_extend_one_chain(either_store: ConfigStore) -> None:
    logs = [AuditLog(either_store) for _ in range(4)]
    await asyncio.gather(
        *(
            log.record(
                AuditedAction(CALLER, "thing.write", f"{writer}-{number}", ""),
                do=[Put(f"{keys.ROOT}{writer}-{number}", b"")],
            )
            for writer, log in enumerate(logs)
            for number in range(3)
        )
    )
    entries = [entry async for entry in logs[0].entries()]
    assert {entry.target for entry in entries} == {f"{writer}-{number}" for writer in range(4) for number in range(3)}
    assert verify_chain(entries, head=await logs[0].head()) is None
    for entry in entries:
        assert await either_store.get(keys.ROOT + entry.target) is not None


async def test_pages_cross_blocks() -> None:
    store = MemoryStore()
    audit = AuditLog(store)
    for number in range(2 * PAGE + 5):
        await audit.record(AuditedAction(CALLER, "thing.write", str(number), ""))
    assert [entry.seq for entry in await audit.page(PAGE - 2, PAGE + 2)] == list(range(PAGE - 2, PAGE + 3))
    assert [entry.seq async for entry in audit.entries()] == list(range(1, 2 * PAGE + 6))
    assert [entry.seq async for entry in audit.entries(PAGE, 2 * PAGE)] == list(range(PAGE, 2 * PAGE + 1))


async def test_an_unreadable_entry_is_reported_in_its_place() -> None:
    store = MemoryStore()
    audit = AuditLog(store)
    for number in range(4):
        await audit.record(AuditedAction(CALLER, "thing.write", str(number), ""))
    await put(store, keys.audit_entry(2), b"")
    await put(store, keys.AUDIT + "a key of no entry", b"")
    entries = await audit.page(1, 4)
    assert [(entry.seq, isinstance(entry, ChainFault)) for entry in entries] == [
        (1, False),
        (2, True),
        (3, False),
        (4, False),
    ]
    fault = verify_chain([entry async for entry in audit.entries()])
    assert fault is not None
    assert (fault.seq, keys.audit_entry(2) in fault.problem) == (2, True)


async def test_a_lost_response_leaves_no_partial_change() -> None:
    faulty = FaultyStore(MemoryStore())
    audit = AuditLog(faulty)
    faulty.commits_in_doubt = True
    with pytest.raises(StoreUnavailable):
        await audit.record(AuditedAction(CALLER, "thing.make", "thing", ""), do=[Put(keys.ROOT + "thing", b"1")])
    faulty.commits_in_doubt = False
    entries = [entry async for entry in audit.entries()]
    assert len(entries) == 1
    assert await faulty.get(keys.ROOT + "thing") is not None
    await audit.record(AuditedAction(CALLER, "thing.look", "thing", ""))
    assert verify_chain([entry async for entry in audit.entries()], head=await audit.head()) is None


async def test_a_change_that_is_too_large_changes_nothing() -> None:
    store = MemoryStore()
    audit = AuditLog(store)
    with pytest.raises(ValueError, match="`after` of an audit entry has"):
        await audit.record(
            AuditedAction(CALLER, "a.b", "t", "", after="x" * MAX_SIDE_BYTES), do=[Put(keys.ROOT + "thing", b"")]
        )
    await put(store, keys.audit_entry(1), b"forged")
    with pytest.raises(StoreError, match="beyond the end of the audit log"):
        await audit.record(AuditedAction(CALLER, "a.b", "t", ""), do=[Put(keys.ROOT + "thing", b"")])
    await put(store, keys.AUDIT_HEAD, b"broken")
    with pytest.raises(StoreError, match="the end of the audit log cannot be read"):
        await audit.record(AuditedAction(CALLER, "a.b", "t", ""), do=[Put(keys.ROOT + "thing", b"")])
    assert await store.get(keys.ROOT + "thing") is None
