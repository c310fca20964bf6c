"""Tenants in a real etcd: time and bytes of a change, memory of a control plane, size of etcd.

Run by `make bench-tenants`. The tenants are written as whole shards, then some are created and changed one by one at
one control plane, while a second one follows.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from statistics import quantiles

import structlog
from msgspec.structs import replace

from adapters.access.callers import Caller, Role
from adapters.etcd.etcd_store import EtcdStore
from adapters.files.authority_files import create_authority, issue_identity
from adapters.files.identity_files import IdentityFiles
from adapters.store import keys
from adapters.store.codec import encode
from adapters.store.config_store import ConfigStore, Put
from adapters.store.signed_store import SignedStore
from control_plane.api.pagination import paginate
from control_plane.audit.audit_log import AuditLog
from control_plane.tenants.tenant_store import TenantAction, TenantStore
from lab.bench.process_cost import resident_bytes
from lab.server_starting import start_etcd
from penstock.policy.kinds.budgets import BudgetUnit
from penstock.tenancy.created_tenants.tenant_changes import created, existing, with_key, with_revoked_key
from penstock.tenancy.tenant_record import (
    ID_BYTES,
    SECRET_BYTES,
    SHARDS,
    RecordBudget,
    TenantKey,
    TenantRecord,
    TenantShard,
    key_digest,
    new_key,
    shard_of,
)
from penstock.wire.identity import ProcessRole, SpiffeId
from penstock.wire.peer_keys import Keyring

BENCH = Caller("bench", Role.OPERATOR)
MIB = 1024 * 1024


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tenants", type=int, default=50_000, help="tenants (default: %(default)s)")
    parser.add_argument("--keys", type=int, default=2, help="keys of each tenant (default: %(default)s)")
    parser.add_argument("--changes", type=int, default=300, help="tenants created one by one (default: %(default)s)")
    given = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(_bench(Path(directory), given.tenants, given.keys, given.changes))


async def _bench(directory: Path, tenants: int, keys_each: int, changes: int) -> None:
    keyring = _keyring(directory)
    with start_etcd(directory / "etcd", quota_bytes=8 * 1024 * MIB) as etcd:
        store = SignedStore(EtcdStore([etcd.endpoint]), keyring)
        seconds, sizes = await _fill(store, tenants, keys_each)
        print(f"{tenants} tenants with {tenants * keys_each} keys: written in {SHARDS} shards in {seconds:.1f} s")
        print(f"shard: mean {sum(sizes) / len(sizes) / 1000:.1f} kB, largest {max(sizes) / 1000:.1f} kB")
        print(f"etcd: {_etcd_bytes(directory) / MIB:.0f} MiB")
        gc.collect()
        before = resident_bytes(os.getpid())
        leader, follower = (_tenant_store(store, name) for name in "ab")
        leader.informer.start()
        began = time.perf_counter()
        await leader.informer.wait_synced()
        print(f"control plane: reads all tenants in {time.perf_counter() - began:.1f} s", end="")
        gc.collect()
        print(f", {(resident_bytes(os.getpid()) - before) / MIB:.0f} MiB for {leader.count} tenants")
        follower.informer.start()
        await follower.informer.wait_synced()
        began = time.perf_counter()
        page = paginate(leader.tenants(), lambda record: record.name, None, 500)
        print(f"a page of {len(page.items)} tenants: {(time.perf_counter() - began) * 1000:.0f} ms")
        began = time.perf_counter()
        leader.owner_of(b"none")
        print(f"a key is searched by its digest in {(time.perf_counter() - began) * 1000:.0f} ms")
        await _change(leader, follower, changes)
        print(f"etcd after {3 * changes} changes, without compaction: {_etcd_bytes(directory) / MIB:.0f} MiB")
        for each in (leader, follower):
            await each.informer.stop()
        await store.close()


async def _fill(store: ConfigStore, tenants: int, keys_each: int) -> tuple[float, list[int]]:
    """Write the shards. Returns the duration (s) and the sizes (bytes)."""
    records: dict[int, list[TenantRecord]] = defaultdict(list)
    for number in range(tenants):
        name = f"tenant-{number:06d}"
        budgets = (RecordBudget(BudgetUnit.TOKENS, 1e6),) if number % 2 else ()
        of_tenant = tuple(_key(1.0) for _ in range(keys_each))
        record = TenantRecord(name, "gold", 1.0, of_tenant, budgets=budgets, note="a team", changed_at=1.0)
        records[shard_of(name)].append(record)
    values = [
        Put(keys.tenant_shard(number), encode(TenantShard(tuple(sorted(found, key=lambda each: each.name)))))
        for number, found in sorted(records.items())
    ]
    began = time.perf_counter()
    for put in values:
        await store.commit([], [put])
    return time.perf_counter() - began, [len(put.value) for put in values]


async def _change(leader: TenantStore, follower: TenantStore, count: int) -> None:
    creating, keying, revoking = [], [], []
    for number in range(count):
        new = _NewTenant(leader, follower, f"new-{number:06d}")
        creating.append(await _timed(new.create))
        keying.append(await _timed(new.add_key))
        revoking.append(await _timed(new.revoke_key))
    for what, taken in (
        ("create a tenant", creating),
        ("create a key", keying),
        ("revoke a key, until another control plane has it", revoking),
    ):
        cuts = quantiles(taken, n=100)
        print(f"{what}: median {cuts[49] * 1000:.1f} ms, p99 {cuts[98] * 1000:.1f} ms")


class _NewTenant:
    """A tenant that one control plane creates and changes, and another one follows."""

    def __init__(self, leader: TenantStore, follower: TenantStore, name: str) -> None:
        self._leader = leader
        self._follower = follower
        self._name = name
        self._key = _key(time.time())

    async def create(self) -> None:
        wanted = TenantRecord(self._name, "gold", time.time())
        action = TenantAction(BENCH, "tenant.create", self._name, "")
        await self._leader.change(action, lambda before, now: created(before, wanted))

    async def add_key(self) -> None:
        action = TenantAction(BENCH, "key.create", self._name, "", self._key.id)
        await self._leader.change(action, lambda before, now: with_key(existing(before, self._name), self._key, now))

    async def revoke_key(self) -> None:
        def edit(before: TenantRecord | None, now: float) -> TenantRecord:
            return with_revoked_key(existing(before, self._name), self._key.id, now)

        await self._leader.change(TenantAction(BENCH, "key.revoke", self._name, "", self._key.id), edit)
        while not self._is_revoked():  # noqa: ASYNC110 - the follower has no event for a change
            await asyncio.sleep(0.001)

    def _is_revoked(self) -> bool:
        record = self._follower.find(self._name)
        return record is not None and any(key.revoked_at is not None for key in record.keys)


async def _timed(work: Callable[[], Awaitable[None]]) -> float:
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began


def _key(at: float) -> TenantKey:
    id, secret = new_key(os.urandom(ID_BYTES + SECRET_BYTES))
    return replace(TenantKey(id, key_digest(secret), at), note="app")


def _tenant_store(store: ConfigStore, name: str) -> TenantStore:
    return TenantStore(store, AuditLog(store), name, rng=Random(), clock=time.time)


def _keyring(directory: Path) -> Keyring:
    authority = create_authority(directory / "authority", "bench")
    identity = directory / "identity"
    issue_identity(authority, SpiffeId("bench", ProcessRole.CONTROL_PLANE, "bench"), ("127.0.0.1",), identity)
    return IdentityFiles(identity, ProcessRole.CONTROL_PLANE, "bench").keyring


def _etcd_bytes(directory: Path) -> int:
    """Size (bytes) of etcd's database file."""
    return (directory / "etcd" / "data" / "member" / "snap" / "db").stat().st_size


if __name__ == "__main__":
    main()
