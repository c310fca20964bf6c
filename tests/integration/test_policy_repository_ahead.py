"""The process for the next poll of a repository is started in advance, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from control_plane.policy.source import checkout
from control_plane.policy.source.repository import RepositoryReader
from tests.support.git_repositories import PolicyRepository, bundle_files
from tests.support.paths import PLANET
from tests.support.wait import until


@pytest.fixture
def repository(tmp_path: Path) -> PolicyRepository:
    origin = PolicyRepository(tmp_path / "policy.git")
    origin.commit(bundle_files(PLANET))
    return origin


@pytest.fixture
async def reader(repository: PolicyRepository) -> AsyncIterator[RepositoryReader]:
    reading_ahead = RepositoryReader(str(repository.path), "main", "", poll_s=10.0, timeout_s=30.0, ahead=True)
    yield reading_ahead
    await reading_ahead.close()
    assert waiting() == []


def waiting() -> list[int]:
    """Child processes that read repositories."""
    pids = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            command = (stat.parent / "cmdline").read_bytes()
        except OSError:
            # The process has ended since.
            continue
        if parent == os.getpid() and checkout.__name__.encode() in command:
            pids.append(int(stat.parent.name))
    return pids


async def one_waits() -> int:
    await until(lambda: len(waiting()) == 1)
    return waiting()[0]


async def test_the_next_poll_needs_no_new_process(
    repository: PolicyRepository, reader: RepositoryReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await reader.read()
    first = await one_waits()
    commit = repository.commit({**bundle_files(PLANET), "README.md": b"New."})
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    after = await reader.read()
    assert after is not before
    assert after.provenance is not None
    assert after.provenance.commit == commit
    await until(lambda: first not in waiting())


async def test_a_reader_process_that_exited_while_idle_is_replaced(reader: RepositoryReader) -> None:
    before = await reader.read()
    pid = await one_waits()
    os.kill(pid, signal.SIGKILL)
    # Polls at once: the end of the process may not have been detected yet.
    assert await reader.read() is before


async def test_a_reader_process_known_to_have_exited_is_replaced(reader: RepositoryReader) -> None:
    before = await reader.read()
    pid = await one_waits()
    os.kill(pid, signal.SIGKILL)
    await until(lambda: not Path(f"/proc/{pid}").exists())
    assert await reader.read() is before


async def test_without_a_process_in_advance_the_poll_starts_one(
    reader: RepositoryReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await reader.read()
    await one_waits()
    with monkeypatch.context() as broken:
        broken.setattr(sys, "executable", "/nowhere/python")
        assert await reader.read() is before
        await until(lambda: waiting() == [])
    assert await reader.read() is before


def test_an_idle_reader_process_exits_silently() -> None:
    done = subprocess.run(
        [sys.executable, "-m", checkout.__name__], stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=True
    )
    assert (done.stdout, done.stderr) == (b"", b"")
