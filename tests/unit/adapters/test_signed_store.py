"""The signed store: values that are written to etcd without a key of the fleet have no effect."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from random import Random

import pytest
import structlog

from adapters.store import keys
from adapters.store.config_store import KeyValue, Put, StoreError
from adapters.store.informer import Informer
from adapters.store.signed_store import UNAUTHENTIC, SignedStore, may_write
from lab.memory_store import MemoryStore
from penstock.wire.peer_keys import Keyring
from tests.support.identities import YEAR_S, agent_id, agent_keyring, control_plane_id, control_plane_keyring
from tests.support.stores import put
from tests.support.wait import until


@pytest.fixture
def etcd() -> MemoryStore:
    return MemoryStore()


def signed(etcd: MemoryStore, keyring: Keyring | None = None, offset_s: float = 0.0) -> SignedStore:
    return SignedStore(etcd, keyring or control_plane_keyring(), clock=lambda: time.time() + offset_s)


async def value(store: SignedStore, key: str) -> bytes:
    item = await store.get(key)
    assert item is not None
    return item.value


async def raw(etcd: MemoryStore, key: str) -> KeyValue:
    item = await etcd.get(key)
    assert item is not None
    return item


async def test_a_reader_of_the_fleet_reads_what_a_control_plane_wrote(etcd: MemoryStore) -> None:
    await put(signed(etcd), keys.OVERRIDES, b"payload\nof two lines")
    reader = signed(etcd, agent_keyring())
    assert await value(reader, keys.OVERRIDES) == b"payload\nof two lines"
    assert [item.value for item in (await reader.list(keys.ROOT)).items] == [b"payload\nof two lines"]
    async with aclosing(reader.watch(keys.ROOT, 0)) as changes:
        while not (batch := await anext(changes)):
            pass
        changed = batch[0]
    assert changed.key == keys.OVERRIDES
    assert changed.now is not None
    assert changed.now.value == b"payload\nof two lines"


async def test_a_value_in_a_newer_format_is_refused_with_the_remedy(etcd: MemoryStore) -> None:
    await put(etcd, keys.LEADER, b"penstock-signed-3 a b c d\n{}")
    with structlog.testing.capture_logs() as logs:
        assert await value(signed(etcd), keys.LEADER) == UNAUTHENTIC
    assert [line["reason"] for line in logs] == ["it is signed in format 3, this process reads 2: run the same release"]


@pytest.mark.parametrize(
    "forged",
    [
        b"",
        b"{}",
        *(b"penstock-signed-%d %b\n{}" % (form, rest) for form in (1, 2) for rest in (b"a b c", b"YQ== 1 YQ==")),
        *(b"penstock-signed-2 %b /penstock/\n{}" % rest for rest in (b"a b c", b"YQ== 1 YQ==", b"YQ== 1 YQ== ")),
    ],
)
async def test_a_value_without_a_signature_of_the_fleet_is_empty(etcd: MemoryStore, forged: bytes) -> None:
    await put(etcd, keys.LEADER, forged)
    reader = signed(etcd)
    assert await value(reader, keys.LEADER) == UNAUTHENTIC
    assert reader.rejected == 1


async def test_a_value_of_another_fleet_is_empty(etcd: MemoryStore) -> None:
    await put(signed(etcd, control_plane_keyring(fleet=1)), keys.LEADER, b"payload")
    assert await value(signed(etcd), keys.LEADER) == UNAUTHENTIC


async def test_a_changed_value_is_empty(etcd: MemoryStore) -> None:
    await put(signed(etcd), keys.LEADER, b"payload")
    await put(etcd, keys.LEADER, (await raw(etcd, keys.LEADER)).value.replace(b"payload", b"Payload"))
    assert await value(signed(etcd), keys.LEADER) == UNAUTHENTIC


async def test_a_value_that_was_copied_to_another_key_is_empty(etcd: MemoryStore) -> None:
    await put(signed(etcd), keys.plan("eu"), b"payload")
    await put(etcd, keys.plan("us"), (await raw(etcd, keys.plan("eu"))).value)
    assert await value(signed(etcd), keys.plan("us")) == UNAUTHENTIC
    assert await value(signed(etcd), keys.plan("eu")) == b"payload"


async def test_an_earlier_value_cannot_be_restored(etcd: MemoryStore) -> None:
    writer, reader = signed(etcd), signed(etcd, agent_keyring())
    await put(writer, keys.OVERRIDES, b"first")
    first = (await raw(etcd, keys.OVERRIDES)).value
    await put(signed(etcd, offset_s=1), keys.OVERRIDES, b"second")
    assert await value(reader, keys.OVERRIDES) == b"second"
    await put(etcd, keys.OVERRIDES, first)
    assert await value(reader, keys.OVERRIDES) == UNAUTHENTIC


async def test_a_read_that_is_older_than_a_received_value_is_authentic() -> None:
    class SlowReplies(MemoryStore):
        def __init__(self) -> None:
            super().__init__()
            self.may_reply = asyncio.Event()

        async def get(self, key: str) -> KeyValue | None:
            item = await super().get(key)
            await self.may_reply.wait()
            return item

    etcd = SlowReplies()
    reader = signed(etcd, agent_keyring())
    await put(signed(etcd), keys.OVERRIDES, b"first")
    reading = asyncio.create_task(value(reader, keys.OVERRIDES))
    await asyncio.sleep(0)
    await put(signed(etcd, offset_s=1), keys.OVERRIDES, b"second")
    (listed,) = (await reader.list(keys.OVERRIDES)).items
    assert listed.value == b"second"
    etcd.may_reply.set()
    assert await reading == b"first"
    assert await value(reader, keys.OVERRIDES) == b"second"
    assert reader.rejected == 0


async def test_a_writer_whose_clock_is_behind_still_replaces_a_value_it_has_read(etcd: MemoryStore) -> None:
    reader, behind = signed(etcd, agent_keyring()), signed(etcd, control_plane_keyring("cp-2"), offset_s=-100)
    await put(signed(etcd), keys.OVERRIDES, b"first")
    assert await value(reader, keys.OVERRIDES) == b"first"
    assert await value(behind, keys.OVERRIDES) == b"first"
    await put(behind, keys.OVERRIDES, b"second")
    assert await value(reader, keys.OVERRIDES) == b"second"


async def test_a_value_from_the_future_is_empty(etcd: MemoryStore) -> None:
    await put(signed(etcd, offset_s=400), keys.OVERRIDES, b"payload")
    assert await value(signed(etcd), keys.OVERRIDES) == UNAUTHENTIC


@pytest.mark.parametrize(
    ("key", "by_agent", "by_control_plane"),
    [
        (keys.agent("eu", "agent-1"), True, False),
        (keys.agent("eu", "agent-2"), False, False),
        (keys.agent("us", "agent-1"), False, False),
        (keys.LEADER, False, True),
        (keys.OVERRIDES, False, True),
        (keys.policy("0" * 64), False, True),
        (keys.plan("eu"), False, True),
        (keys.control_plane("cp-1"), False, True),
        (keys.control_plane("cp-2"), False, False),
    ],
)
def test_each_role_can_write_its_own_keys_only(key: str, by_agent: bool, by_control_plane: bool) -> None:
    assert may_write(agent_id(), key) is by_agent
    assert may_write(control_plane_id(), key) is by_control_plane


async def test_an_agent_cannot_write_a_plan(etcd: MemoryStore) -> None:
    await put(signed(etcd, agent_keyring()), keys.plan("eu"), b"payload")
    assert await value(signed(etcd), keys.plan("eu")) == UNAUTHENTIC


async def test_fleets_with_different_prefixes_share_an_etcd(etcd: MemoryStore) -> None:
    blue = SignedStore(etcd, control_plane_keyring(), prefix="/blue/")
    green = SignedStore(etcd, control_plane_keyring(fleet=1), prefix="/green/")
    for store in (blue, green):
        committed = await store.commit([], [Put(keys.LEADER, b"payload")])
        assert committed.succeeded
        listing = await store.list(keys.ROOT)
        assert [(item.key, item.value) for item in listing.items] == [(keys.LEADER, b"payload")]


async def test_nothing_is_written_with_a_certificate_that_readers_reject(etcd: MemoryStore) -> None:
    await put(signed(etcd), keys.FLEET, b"cp-1")
    with pytest.raises(StoreError, match=r"fleet is not written: the certificate .* renew the certificate"):
        await put(signed(etcd, offset_s=2 * YEAR_S), keys.FLEET, b"cp-2")
    assert await value(signed(etcd), keys.FLEET) == b"cp-1"


async def test_a_writer_whose_clock_was_ahead_is_read_again_when_it_is_right(etcd: MemoryStore) -> None:
    ahead_s = [3600.0]
    writer = SignedStore(etcd, control_plane_keyring(), clock=lambda: time.time() + ahead_s[0])
    reader = signed(etcd, agent_keyring())
    await put(writer, keys.OVERRIDES, b"ahead")
    await value(writer, keys.OVERRIDES)
    assert await value(reader, keys.OVERRIDES) == UNAUTHENTIC
    ahead_s[0] = 0.0
    await put(writer, keys.OVERRIDES, b"right")
    assert await value(reader, keys.OVERRIDES) == b"right"
    assert await value(writer, keys.OVERRIDES) == b"right"


async def test_values_from_the_future_count_once_the_clock_is_set(etcd: MemoryStore) -> None:
    ahead_s = -3600.0
    reader = SignedStore(etcd, control_plane_keyring(), clock=lambda: time.time() + ahead_s)
    informer = Informer(reader, keys.OVERRIDES, rng=Random(1))
    await put(signed(etcd), keys.OVERRIDES, b"payload")
    informer.start()
    await until(lambda: keys.OVERRIDES in informer.items)
    assert informer.items[keys.OVERRIDES].value == UNAUTHENTIC
    ahead_s = 0.0
    informer.relist()
    await until(lambda: informer.items[keys.OVERRIDES].value == b"payload")
    await informer.stop()


@pytest.mark.parametrize("key", [keys.REVOKED_KEYS, keys.tenant_shard(7)])
async def test_an_agent_whose_clock_is_behind_reads_revocations(etcd: MemoryStore, key: str) -> None:
    behind = signed(etcd, agent_keyring(), offset_s=-3600.0)
    for content in (b"first", b"second"):
        await put(signed(etcd), key, content)
        assert await value(behind, key) == content


@pytest.mark.parametrize("key", [keys.AUDIT_HEAD, keys.REVOKED_KEYS, keys.tenant_shard(7)])
async def test_what_a_writer_whose_clock_is_behind_changes_counts_for_all(etcd: MemoryStore, key: str) -> None:
    right, reader = signed(etcd), signed(etcd, agent_keyring())
    behind = signed(etcd, control_plane_keyring("cp-2"), offset_s=-3600.0)
    for writer, content in ((right, b"first"), (behind, b"second"), (right, b"third"), (behind, b"fourth")):
        await value(writer, key) if content != b"first" else None
        await put(writer, key, content)
        assert {await value(store, key) for store in (right, behind, reader)} == {content}


@pytest.mark.parametrize("ahead_s", [3600.0, YEAR_S - 3 * 86_400.0])
async def test_what_follows_a_value_from_the_future_counts_for_all(etcd: MemoryStore, ahead_s: float) -> None:
    right, reader = signed(etcd, control_plane_keyring("cp-2")), signed(etcd, agent_keyring())
    await put(signed(etcd, offset_s=ahead_s), keys.AUDIT_HEAD, b"ahead")
    for content in (b"ahead", b"second", b"third"):
        if content != b"ahead":
            await put(right, keys.AUDIT_HEAD, content)
        assert {await value(store, keys.AUDIT_HEAD) for store in (right, reader)} == {content}


async def test_a_leader_whose_clock_was_ahead_does_not_take_the_fleet_s_key_from_the_others(etcd: MemoryStore) -> None:
    await put(signed(etcd, offset_s=3600.0), keys.FLEET, b"cp-1")
    assert await value(signed(etcd), keys.FLEET) == b"cp-1"
