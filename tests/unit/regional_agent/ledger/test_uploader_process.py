"""The process that puts segments ends with a reason, and the status page has it until a process works."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from penstock.ledger.ledger_record import RecordKind
from regional_agent.ledger import uploader_process
from regional_agent.ledger.uploader_process import UploaderProcess
from tests.support.wait import until
from tests.unit.regional_agent.ledger.test_segment_uploader import EPOCH, stored, write
from tests.unit.regional_agent.ledger.test_spool import encoded


class Child:
    """A process that ends when the test says so."""

    pid = 7
    stdin = None

    def __init__(self) -> None:
        self.code: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    @property
    def returncode(self) -> int | None:
        return self.code.result() if self.code.done() else None

    async def wait(self) -> int:
        return await asyncio.shield(self.code)


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[Child]:
    """The processes that were started, each a Child."""
    started: list[Child] = []

    async def start(*arguments: str, **options: object) -> Child:
        started.append(Child())
        return started[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    monkeypatch.setattr(uploader_process, "BACKOFF_CAP_S", 0.0)
    monkeypatch.setattr(uploader_process, "CHECK_S", 0.01)
    return started


async def test_the_reason_of_an_end_is_shown_until_a_process_has_run_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, children: list[Child]
) -> None:
    url = "file:///store"
    process = UploaderProcess(tmp_path, EPOCH, lambda: url, Random(1))
    running = asyncio.create_task(process.run())
    try:
        for number, (code, text) in enumerate(((1, "code 1"), (-9, "code -9"), (3, "penstock[usage]"), (1, "code 1"))):
            await until(lambda number=number: len(children) > number)  # type: ignore[misc]
            children[number].code.set_result(code)
            await until(lambda number=number: len(children) > number + 1)  # type: ignore[misc]
            # The next process has only begun.
            assert text in process.status()["uploader_problem"]
        monkeypatch.setattr(uploader_process, "SETTLED_S", 0.0)
        children[-1].code.set_result(1)
        await until(lambda: process.status()["uploader_problem"] is None)
        assert process.status()["uploader_pid"] == Child.pid
    finally:
        running.cancel()


async def test_the_file_that_a_policy_ended_is_put_by_the_process_that_ends_with_it(tmp_path: Path) -> None:
    spool, store = tmp_path / "spool", tmp_path / "store"
    url = f"file://{store}"
    write(spool, encoded(RecordKind.REQUEST, "r1"))
    process = UploaderProcess(spool, EPOCH, lambda: url, Random(1))
    running = asyncio.create_task(process.run())
    try:
        await until(lambda: bool(stored(store)))
        # In this order, as of a policy without the store.
        write(spool, encoded(RecordKind.REQUEST, "r2"), epoch=EPOCH + 1)
        url = ""
        await until(lambda: process.pid is None)
    finally:
        running.cancel()
        await process.stop()
    assert len(stored(store)) == 2
    assert list(spool.iterdir()) == []


def test_a_store_that_cannot_be_opened_is_a_line_of_the_log(tmp_path: Path) -> None:
    arguments = ("-m", "regional_agent.ledger.segment_uploader", str(tmp_path), "unknown://store", str(EPOCH))
    ended = subprocess.run(
        [sys.executable, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    output = ended.stdout + ended.stderr
    assert ended.returncode == 1
    assert "Traceback" not in output
    assert "the usage store cannot be opened" in output
