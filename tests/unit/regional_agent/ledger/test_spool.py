"""The spool keeps every record, whatever ends the process, and says what it cannot keep."""

from __future__ import annotations

import os
import resource
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from penstock.ledger.ledger_record import LedgerRecord, RecordKind
from penstock.ledger.spool_format import SpoolFile, read_spool, records_of
from regional_agent.config.start_epoch import AgentInstance
from regional_agent.ledger.spool import Spool
from regional_agent.ledger.spool_file import boot_id
from tests.support.wait import until

AGENT = AgentInstance("eu-de", "eu-de-1", 5)
SIZE = 64 * 1024


def encoded(kind: RecordKind, request_id: str) -> bytes:
    return msgspec.msgpack.encode(
        LedgerRecord(int(kind), 1, request_id, "acme", "", "llama", "chat", "eu-de", "eu-de-1")
    )


def files(folder: Path) -> list[SpoolFile]:
    paths = sorted(folder.iterdir(), key=lambda path: int(path.stem.partition("-")[2]))
    found = []
    for path in paths:
        content = path.read_bytes()
        if any(content[64:66]):
            found.append(read_spool(content, boot_id()))
    return found


def suffixes(folder: Path) -> list[str]:
    return sorted(path.suffix for path in folder.iterdir())


def ids(folder: Path) -> list[str]:
    return [record.request_id for file in files(folder) for record in records_of(file, is_last=False)]


def has_next(spool: Spool) -> bool:
    return spool._next is not None


@contextmanager
def opened(folder: Path, max_bytes: int = 1 << 30, starts: list[bytes] | None = None) -> Iterator[Spool]:
    spool = Spool(folder, AGENT, max_bytes, lambda: starts or [], size_bytes=SIZE)
    spool.open()
    try:
        yield spool
    finally:
        spool.close()


async def test_records_are_in_sealed_files_after_the_end(tmp_path: Path) -> None:
    with opened(tmp_path) as spool:
        for number in range(3000):
            if number % 100 == 0:
                await until(lambda: has_next(spool))
            spool.append(encoded(RecordKind.REQUEST, f"r{number}"))
    assert ids(tmp_path) == [f"r{number}" for number in range(3000)]
    assert set(suffixes(tmp_path)) == {".sealed"}
    assert len(suffixes(tmp_path)) > 2
    assert spool.lost_records == 0


async def test_a_new_file_begins_with_the_starts_of_open_requests(tmp_path: Path) -> None:
    starts = [encoded(RecordKind.START, "open")]
    with opened(tmp_path, starts=starts) as spool:
        await until(lambda: has_next(spool))
        spool.switch()
    # With a request in progress, the last file is left as after a crash.
    assert suffixes(tmp_path) == [".open", ".sealed"]
    assert [record.request_id for record in records_of(files(tmp_path)[-1], is_last=True)] == ["open"]


async def test_the_end_waits_until_the_thread_has_left_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, leave = threading.Event(), threading.Event()
    overlaps: list[str] = []
    sync = os.fdatasync

    def slow(descriptor: int) -> None:
        if threading.current_thread() is worker and not leave.is_set():
            inside.set()
            leave.wait()
        elif not leave.is_set():
            overlaps.append(threading.current_thread().name)
        sync(descriptor)

    starts = [encoded(RecordKind.START, "open")]
    spool = Spool(tmp_path, AGENT, 1 << 30, lambda: starts, size_bytes=SIZE)
    spool.open()
    worker = spool._worker
    await until(lambda: has_next(spool))
    monkeypatch.setattr(os, "fdatasync", slow)
    spool.append(encoded(RecordKind.REQUEST, "r1"))
    await until(inside.is_set)
    # For the sync at the end.
    spool.append(encoded(RecordKind.REQUEST, "r2"))
    end = threading.Thread(target=spool.close)
    end.start()
    await until(lambda: spool._stopping)
    leave.set()
    end.join()
    assert overlaps == []
    assert [record.request_id for record in records_of(files(tmp_path)[-1], is_last=True)] == ["r1", "r2", "open"]


async def test_a_full_spool_keeps_what_it_has_and_counts_the_rest(tmp_path: Path) -> None:
    with opened(tmp_path, max_bytes=SIZE) as spool:
        await until(lambda: bool(spool.problem))
        assert "ledger_spool_bytes" in spool.problem
        assert not spool.is_full
        for number in range(3000):
            spool.append(encoded(RecordKind.REQUEST, f"r{number}"))
        assert spool.is_full
    kept = ids(tmp_path)
    assert kept == [f"r{number}" for number in range(len(kept))]
    assert len(kept) + spool.lost_records == 3000
    assert kept


def test_a_file_that_cannot_be_allocated_is_an_error_and_not_a_signal(tmp_path: Path) -> None:
    """As on a full disk: without the allocation, the write through the map would raise SIGBUS."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SIZE // 2, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            Spool(tmp_path, AGENT, 1 << 30, list, size_bytes=SIZE).open()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_a_killed_process_loses_no_record(tmp_path: Path) -> None:
    child = os.fork()
    if not child:
        spool = Spool(tmp_path, AGENT, 1 << 30, list, size_bytes=SIZE)
        spool.open()
        spool.append(encoded(RecordKind.START, "running"))
        for number in range(100):
            spool.append(encoded(RecordKind.REQUEST, f"r{number}"))
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    (file, *_) = files(tmp_path)
    found = records_of(file, is_last=True)
    assert [record.request_id for record in found] == [*(f"r{number}" for number in range(100)), "running"]
    assert found[-1].kind == RecordKind.UNKNOWN_END
