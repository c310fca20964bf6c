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
from penstock.ledger.spool_format import JobResult, read_spool
from regional_agent.config.start_epoch import AgentInstance
from regional_agent.ledger.held_files import HeldFiles, UnsettledFiles
from regional_agent.ledger.segment_parquet import encode_segment
from regional_agent.ledger.segment_uploader import SegmentUploader
from regional_agent.ledger.spool import Spool, use_of
from regional_agent.ledger.spool_file import boot_id
from tests.support.wait import until
from tests.unit.regional_agent.ledger.test_spool import SIZE, encoded, has_next, opened

EPOCH = 5
RESULT = JobResult("eu-de", "acme", "batch_1", 1, 1)


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
    assert use_of(spool).last_put == name
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


@pytest.mark.parametrize("point", ["written", "half released", "released"])
def test_what_a_dead_agent_held_for_a_job_is_left_to_the_job_store_unless_its_spool_has_it(
    tmp_path: Path, point: str
) -> None:
    spool, store = tmp_path / "spool", tmp_path / "store"
    child = os.fork()
    if not child:
        writing = Spool(spool, AgentInstance("eu-de", "eu-de-1", EPOCH), 1 << 30, list, size_bytes=SIZE)
        writing.open()
        writing.append(encoded(RecordKind.START, "r1"))
        held = HeldFiles(writing)
        (file,) = held.divide(RESULT, [encoded(RecordKind.REQUEST, "r1")])
        held._write([file])
        if point == "half released":
            writing.append(file.records[0])
        elif point == "released":
            held.release(file)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    uploader(spool, store).put_all()
    in_spool = [(RecordKind.REQUEST, "r1")]
    assert [row for rows in stored(store).values() for row in rows] == ([] if point == "written" else in_spool)
    unsettled = UnsettledFiles(spool, b"")
    found = UnsettledFiles(spool, boot_id()).find()
    assert [[each.request_id for each in file.records] for file in found] == (
        {"written": [["r1"]], "half released": [[]], "released": []}[point]
    )
    for file in found:
        assert file.opening.result == RESULT
        unsettled.settle(file, counts=True)
    # Twice, as after a death between the put and the removal.
    copy = {path: path.read_bytes() for path in spool.iterdir()}
    for _ in range(2):
        for path, content in copy.items():
            path.write_bytes(content)
        uploader(spool, store).put_all()
    assert [row for rows in stored(store).values() for row in rows] == in_spool
    assert list(spool.iterdir()) == []


def test_a_run_whose_result_does_not_count_is_overhead(tmp_path: Path) -> None:
    with opened(tmp_path / "spool") as spool:
        held = HeldFiles(spool)
        (file,) = held.divide(RESULT, [encoded(RecordKind.REQUEST, "r1")])
        held._write([file])
        held.leave(file)
        unsettled = UnsettledFiles(tmp_path / "spool", boot_id())
        (found,) = unsettled.find()
        unsettled.settle(found, counts=False)
        (sealed,) = (tmp_path / "spool").glob("*.sealed")
        (record,) = read_spool(sealed.read_bytes(), boot_id()).records
        assert (record.request_id, record.outcome, record.is_overhead, record.price) == ("r1", "shutdown", True, 0.0)


def test_what_the_spool_has_no_room_for_is_a_file_of_its_own(tmp_path: Path) -> None:
    with opened(tmp_path / "spool", max_bytes=SIZE) as spool:
        held = HeldFiles(spool)
        files = held.divide(RESULT, [encoded(RecordKind.REQUEST, "r1")] * 50_000)
        assert len(files) > 1
        held._write(files)
        for file in files:
            held.release(file)
        assert spool.lost_records == 0
        sealed = [read_spool(path.read_bytes(), boot_id()) for path in (tmp_path / "spool").glob("*.sealed")]
        assert sum(len(file.records) for file in sealed) == 50_000
        assert not list((tmp_path / "spool").glob("*.held"))


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
