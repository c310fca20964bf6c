"""Files are loaded again off the event loop; whatever becomes of them, the last good content stays in force."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from adapters.files import watched_files
from adapters.files.plain_file import FileStalled, ThreadedRead, UnusableFile, read_plain_file
from adapters.files.watched_files import WatchedFiles, keep_checking
from tests.support.wait import until

STALL_S = 0.01


class Number:
    """A file with a number, on a file system that may stop to respond."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.responds = threading.Event()
        self.responds.set()
        self.loads = 0

    def load(self) -> int:
        self.loads += 1
        self.responds.wait()
        try:
            return int(read_plain_file(self.path, 100).content)
        except OSError as error:
            raise UnusableFile(f"{self.path}: {error.strerror}") from None
        except ValueError:
            raise UnusableFile(f"{self.path}: no number") from None


@pytest.fixture
def number(tmp_path: Path) -> Iterator[Number]:
    (tmp_path / "number").write_text("1")
    made = Number(tmp_path / "number")
    yield made
    made.responds.set()


def test_a_bad_file_changes_nothing_and_is_logged_once(number: Number) -> None:
    changes: list[int] = []
    files = WatchedFiles((number.path, None), number.load, changes.append)
    assert not files.reload_if_changed()
    with capture_logs() as logged:
        for damage in ("x", "y"):
            number.path.write_text(damage)
            assert not files.reload_if_changed()
            assert not files.reload_if_changed()
    assert [entry["log_level"] for entry in logged] == ["error"]
    assert (files.content, changes, files.problem) == (1, [], f"{number.path}: no number")
    number.path.unlink()
    os.mkfifo(number.path)
    assert not files.reload_if_changed()
    assert files.problem == f"{number.path}: a FIFO, not a regular file"
    number.path.unlink()
    number.path.write_text("2")
    assert files.reload_if_changed()
    assert (files.content, changes, files.problem) == (2, [2], "")


def test_the_first_load_must_succeed_unless_there_is_a_fallback(number: Number) -> None:
    number.path.write_text("x")
    with pytest.raises(UnusableFile, match="no number"):
        WatchedFiles((number.path,), number.load)
    files: WatchedFiles[int | None] = WatchedFiles((number.path,), number.load, fallback=None)
    assert (files.content, files.problem) == (None, f"{number.path}: no number")
    number.path.write_text("3")
    assert files.reload_if_changed()
    assert files.content == 3


def test_a_file_that_is_costly_to_reject_is_not_loaded_all_the_time(
    number: Number, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, cpu_s = WatchedFiles((number.path,), number.load), iter(range(100))
    monkeypatch.setattr(watched_files.time, "thread_time", lambda: float(next(cpu_s)))
    number.path.write_text("x")
    for _ in range(5):
        files.reload_if_changed()
    assert number.loads == 2
    number.path.write_text("xx")
    files.reload_if_changed()
    assert number.loads == 3


async def test_a_file_system_that_does_not_respond_delays_nothing_else(
    number: Number, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched_files, "CHECK_S", 0.001)
    stalled, other = WatchedFiles((number.path,), number.load), Number(tmp_path / "other")
    other.path.write_text("1")
    served = WatchedFiles((other.path,), other.load)
    stalled._in_thread._stall_s = STALL_S
    number.responds.clear()
    number.path.write_text("2")
    with capture_logs() as logged:
        checking = asyncio.create_task(keep_checking((stalled, served)))
        await until(lambda: stalled.problem != "")
        # On a busy machine the thread may begin to read only after the limit.
        await until(lambda: number.loads == 2)
        threads = threading.active_count()
        for content in range(2, 10):
            other.path.write_text(str(content))
            await until(lambda content=content: served.content == content)  # type: ignore[misc]
        assert threading.active_count() <= threads + 1, "a read that stalls occupies one thread"
        assert number.loads == 2
        assert stalled.content == 1
        assert "not read within" in stalled.problem
        stalled._in_thread._stall_s = 60.0  # no busy machine makes it stall again
        number.responds.set()
        await until(lambda: stalled.content == 2)
    checking.cancel()
    assert stalled.problem == ""
    assert [entry["reason"] for entry in logged if entry["log_level"] == "error"] == [
        f"{number.path}: not read within {STALL_S:g} s; check the file system"
    ]


async def test_a_read_that_stalled_is_awaited_and_not_begun_again(number: Number) -> None:
    read = ThreadedRead(number.load, "number", STALL_S)
    number.responds.clear()
    for _ in range(3):
        with pytest.raises(FileStalled, match=r"number: not read within 0\.01 s"):
            await read()
    number.responds.set()
    assert await ThreadedRead(lambda: 7, "other")() == 7
    read._stall_s = 60.0
    assert (await read(), number.loads) == (1, 1)
    number.path.write_text("x")
    with pytest.raises(UnusableFile, match="no number"):
        await read()


async def test_a_defect_does_not_end_the_checks(number: Number, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_files, "CHECK_S", 0.001)
    failures = iter((MemoryError(), RecursionError()))

    def use(content: int) -> None:
        for failure in failures:
            raise failure

    files = WatchedFiles((number.path,), number.load, use)
    checking = asyncio.create_task(keep_checking((files,)))
    for content in (2, 3, 4):
        number.path.write_text(str(content))
        await until(lambda content=content: files.content == content)  # type: ignore[misc]
    assert not checking.done()
    checking.cancel()
