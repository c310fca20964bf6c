"""Old audit entries are exported and removed in whole blocks; all parts are provably one chain, on a real etcd.

The archive is a folder and a bucket.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from adapters.access.callers import Caller, Role
from adapters.object_store.object_store import ObjectStore
from adapters.object_store.store_opening import open_store
from adapters.store import keys
from adapters.store.config_store import ConfigStore, Delete
from control_plane.audit.audit_log import AuditedAction, AuditLog
from control_plane.audit.audit_retention import BLOCK, AuditRetention, RemovalRefused
from control_plane.cli.commands.audit_commands import REMOVED
from control_plane.cli.main import app
from lab.memory_store import MemoryStore
from penstock.log_chains.audit_log_chain import NONE_REMOVED, AuditHead, RemovedEntries, verify_chain
from tests.support.s3_server import BUCKET, NEEDS_MOTO, SECRET, s3_address, s3_server
from tests.support.stores import put

CALLER = Caller("duty", Role.OPERATOR)
DAY_S = 86_400.0

Archive = Callable[[], ObjectStore]


@pytest.fixture(params=["folder", pytest.param("bucket", marks=NEEDS_MOTO)])
async def archive(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Archive]:
    """Run the test on each kind of archive, opened by its URL as `audit_archive` is."""
    if request.param == "folder":
        yield partial(open_store, (tmp_path / "archive").as_uri())
        return
    with s3_address(monkeypatch) as port:
        async with s3_server(port):
            yield partial(open_store, f"s3://{BUCKET}/audit")


class Log:
    """A log whose clock the test sets, and its retention of one day."""

    def __init__(self, store: ConfigStore, archive: Archive | None) -> None:
        self.now = 0.0
        self.store = store
        self.log = AuditLog(store, clock=lambda: self.now)
        self.retention = AuditRetention(self.log, "north", DAY_S, archive, clock=lambda: self.now)

    async def write(self, count: int, target: str = "thing") -> None:
        for _ in range(count):
            await self.log.record(AuditedAction(CALLER, "thing.write", target, "because"))

    async def export(self) -> str:
        return "".join([msgspec.json.encode(each, order="sorted").decode() + "\n" async for each in self.log.entries()])


def archived_in(store: ObjectStore) -> list[str]:
    return [store.read(found.path).decode() for found in store.list("")]


def verified(text: str, *options: str) -> tuple[int, str]:
    found = CliRunner().invoke(app, ["audit", "verify", "-", *options], input=text)
    return found.exit_code, found.output


async def test_blocks_are_exported_and_removed_and_all_parts_are_one_chain(
    either_store: ConfigStore, archive: Archive
) -> None:
    log = Log(either_store, archive)
    await log.write(2 * BLOCK + 50)
    before = await log.export()
    assert await log.retention.remove_expired() == 0
    log.now = 2 * DAY_S
    await log.write(10)
    assert await log.retention.remove_expired() == 2 * BLOCK
    assert len((await either_store.list(keys.AUDIT)).items) == 50 + 10 + 2
    after = await log.export()
    head = await log.log.head()
    entries = [each async for each in log.log.entries()]
    assert isinstance(entries[0], RemovedEntries)
    assert verify_chain(entries, head=head) is None
    code, text = verified(after)
    assert (code, f"{head.seq}:{head.hash}" in text, f"up to {2 * BLOCK}:" in text) == (0, True, True), text
    blocks = archived_in(archive())
    archived = "".join(blocks)
    entries_of_blocks = [line for line in archived.splitlines() if not line.startswith(REMOVED)]
    assert entries_of_blocks == before.splitlines()[: 2 * BLOCK]
    kept = msgspec.json.decode(before.splitlines()[149], type=AuditHead)
    assert verified(archived + after, "--kept", f"{kept.seq}:{kept.hash}")[0] == 0
    code, text = verified(after, "--kept", f"{kept.seq}:{kept.hash}")
    assert (code, "was removed" in text) == (1, True)
    # A block that is missing between the archive and the log is found.
    assert verified(blocks[0] + after)[0] == 1
    assert [verified(block)[0] for block in blocks] == [0, 0]


async def test_a_log_whose_beginning_was_removed_by_hand_is_not_whole(either_store: ConfigStore) -> None:
    log = Log(either_store, None)
    await log.write(BLOCK + 1)
    log.now = 2 * DAY_S
    assert await log.retention.remove_expired() == BLOCK
    await either_store.commit([], [Delete(keys.AUDIT_REMOVED)])
    assert verified(await log.export())[0] == 1


async def test_a_block_with_a_new_entry_and_a_damaged_block_stay() -> None:
    log = Log(MemoryStore(), None)
    await log.write(BLOCK - 1)
    log.now = 2 * DAY_S
    await log.write(1)
    assert await log.retention.remove_expired() == 0
    log.now = 4 * DAY_S
    await put(log.store, keys.audit_entry(7), b"")
    with pytest.raises(RemovalRefused, match="audit entry 7"):
        await log.retention.remove_expired()
    assert (await log.log.removed())[0] == NONE_REMOVED


async def test_nothing_is_removed_that_was_not_exported(archive: Archive) -> None:
    log, other = Log(MemoryStore(), archive), Log(MemoryStore(), archive)
    await log.write(BLOCK)
    await other.write(BLOCK, "another fleet")
    log.now = other.now = 2 * DAY_S
    assert await log.retention.remove_expired() == BLOCK
    with pytest.raises(RemovalRefused, match="another log"):
        await other.retention.remove_expired()
    assert len((await other.store.list(keys.AUDIT)).items) == BLOCK


async def test_nothing_is_removed_while_the_bucket_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_address(monkeypatch):
        log = Log(MemoryStore(), partial(open_store, f"s3://{BUCKET}/audit"))
        await log.write(BLOCK)
        log.now = 2 * DAY_S
        with pytest.raises(RemovalRefused, match="the archive of audit entries: ") as refused:
            await log.retention.remove_expired()
    assert SECRET not in str(refused.value)
    assert len((await log.store.list(keys.AUDIT)).items) == BLOCK


async def test_a_removal_that_died_before_the_transaction_is_repeated(archive: Archive) -> None:
    log = Log(MemoryStore(), archive)
    await log.write(BLOCK)
    log.now = 2 * DAY_S
    entries = await log.log.page(1, BLOCK)
    content = b"".join(msgspec.json.encode(each, order="sorted") + b"\n" for each in entries)
    assert archive().put_new(f"audit-{1:012d}-{BLOCK:012d}.jsonl", content)
    assert await log.retention.remove_expired() == BLOCK
    (removal,) = [each async for each in log.log.entries(BLOCK + 1)]
    assert (removal.seq, getattr(removal, "action", "")) == (BLOCK + 1, "audit.remove")
