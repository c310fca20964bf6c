"""Files of the spool reach the store once each, whatever dies and however often they are put."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from adapters.object_store.folder_store import FolderStore
from adapters.object_store.object_store import StoreUnavailable
from penstock.ledger.ledger_record import RecordKind
from regional_agent.config.start_epoch import AgentInstance
from regional_agent.ledger.segment_parquet import encode_segment
from regional_agent.ledger.segment_uploader import SegmentUploader
from regional_agent.ledger.spool import Spool
from tests.support.wait import until
from tests.unit.regional_agent.ledger.test_spool import SIZE, encoded, has_next

EPOCH = 5


def write(folder: Path, *records: bytes, epoch: int = EPOCH) -> None:
    """A sealed file with `records`."""
    spool = Spool(folder, AgentInstance("eu-de", "eu-de-1", epoch), 1 << 30, list, size_bytes=SIZE)
    spool.open()
    for record in records:
        spool.append(record)
    spool.close()


def uploader(spool: Path, store: Path, epoch: int = EPOCH + 1) -> SegmentUploader:
    return SegmentUploader(spool, FolderStore(store), epoch, encode_segment)


def stored(store: Path) -> dict[str, list[tuple[int, str]]]:
    found = {}
    for path in sorted(store.rglob("*.parquet")):
        rows = pq.read_table(path, partitioning=None).to_pylist()
        found[str(path.relative_to(store))] = [(row["kind"], row["request_id"]) for row in rows]
    return found


def test_a_sealed_file_is_put_by_a_name_of_its_own_and_removed(tmp_path: Path) -> None:
    spool, store = tmp_path / "spool", tmp_path / "store"
    write(spool, encoded(RecordKind.START, "r1"), encoded(RecordKind.REQUEST, "r1"))
    copy = {path.name: path.read_bytes() for path in spool.iterdir()}
    assert uploader(spool, store).put_all() == 1
    name = "day=1970-01-01/region=eu-de/eu-de-1-5-1.parquet"
    assert stored(store) == {name: [(RecordKind.REQUEST, "r1")]}
    assert list(spool.iterdir()) == []
    before = (store / name).read_bytes()
    # As after a death between the put and the removal.
    for file, content in copy.items():
        (spool / file).write_bytes(content)
    assert uploader(spool, store).put_all() == 1
    assert (store / name).read_bytes() == before
    assert len(stored(store)) == 1


def test_an_unavailable_store_leaves_everything_in_the_spool(tmp_path: Path) -> None:
    spool, store = tmp_path / "spool", tmp_path / "store"
    write(spool, encoded(RecordKind.REQUEST, "r1"))
    store.write_text("a file")
    with pytest.raises(StoreUnavailable, match="store"):
        uploader(spool, store).put_all()
    store.unlink()
    assert uploader(spool, store).put_all() == 1


def test_open_files_of_a_dead_agent_are_put_with_the_requests_that_ran(tmp_path: Path) -> None:
    spool, store = tmp_path / "spool", tmp_path / "store"
    child = os.fork()
    if not child:
        start = encoded(RecordKind.START, "running")
        writing = Spool(spool, AgentInstance("eu-de", "eu-de-1", EPOCH), 1 << 30, lambda: [start], size_bytes=SIZE)
        writing.open()
        writing.append(encoded(RecordKind.REQUEST, "r1"))
        while not has_next(writing):
            pass
        writing.switch()
        writing.append(encoded(RecordKind.REQUEST, "r2"))
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    uploader(spool, store).put_all()
    rows = [row for rows in stored(store).values() for row in rows]
    assert rows == [(RecordKind.REQUEST, "r1"), (RecordKind.REQUEST, "r2"), (RecordKind.UNKNOWN_END, "running")]
    assert list(spool.iterdir()) == []


async def test_files_of_living_agents_are_left_alone(tmp_path: Path) -> None:
    spool, store = tmp_path / "spool", tmp_path / "store"
    writing = Spool(spool, AgentInstance("eu-de", "eu-de-1", EPOCH), 1 << 30, list, size_bytes=SIZE)
    writing.open()
    await until(lambda: has_next(writing))
    try:
        # Of its own start, and of an older process that still serves.
        for epoch in (EPOCH, EPOCH + 1):
            assert uploader(spool, store, epoch).put_all() == 0
        assert len(list(spool.iterdir())) == 2
    finally:
        writing.close()


def test_a_damaged_file_is_kept_and_does_not_hold_up_the_others(tmp_path: Path) -> None:
    spool, store = tmp_path / "spool", tmp_path / "store"
    write(spool, encoded(RecordKind.REQUEST, "r1"), epoch=4)
    (spool / "3-1.sealed").write_bytes(b"not a spool file")
    assert uploader(spool, store).put_all() == 1
    assert [path.name for path in spool.iterdir()] == ["3-1.damaged"]


async def test_a_file_that_a_policy_ended_is_put_at_once_and_counts_no_request_twice(tmp_path: Path) -> None:
    spool, store = tmp_path / "spool", tmp_path / "store"
    starts = [encoded(RecordKind.START, "running")]
    writing = Spool(spool, AgentInstance("eu-de", "eu-de-1", EPOCH), 1 << 30, lambda: starts, size_bytes=SIZE)
    writing.open()
    writing.append(encoded(RecordKind.REQUEST, "r1"))
    writing.close(seals_always=True)
    assert uploader(spool, store, EPOCH).put_all() == 1
    # On again while the request still runs.
    writing.open()
    writing.append(encoded(RecordKind.REQUEST, "running"))
    starts.clear()
    writing.close()
    for epoch in (EPOCH, EPOCH + 1):
        uploader(spool, store, epoch).put_all()
    rows = [row for rows in stored(store).values() for row in rows]
    assert rows == [(RecordKind.REQUEST, "r1"), (RecordKind.REQUEST, "running")]
    assert list(spool.iterdir()) == []
