import asyncio
import errno
import os
from pathlib import Path

import msgspec
import pytest

from regional_agent.config.last_known_good import MAX_FILE_BYTES, StateFile


class Kept(msgspec.Struct, frozen=True):
    number: int
    names: tuple[str, ...] = ()


class Other(msgspec.Struct, frozen=True):
    number: int


@pytest.fixture
def kept(tmp_path: Path) -> StateFile[Kept]:
    return StateFile(tmp_path / "kept", Kept)


async def test_loads_a_saved_value_after_a_restart(kept: StateFile[Kept]) -> None:
    assert kept.load() is None
    await kept.save(Kept(1, ("a", "ü")))
    await kept.save(Kept(2))
    assert StateFile(kept.path, Kept).load() == Kept(2)
    assert os.listdir(kept.path.parent) == ["kept"]


async def test_last_of_overlapping_saves_is_on_disk(kept: StateFile[Kept]) -> None:
    await asyncio.gather(*(kept.save(Kept(number)) for number in range(50)))
    assert kept.load() == Kept(49)


class FullDisk(StateFile[Kept]):
    """A file whose first value cannot be written."""

    def write(self, value: Kept) -> None:
        if value == Kept(1):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write(value)


async def test_a_value_that_waits_is_written_after_a_failed_write(tmp_path: Path) -> None:
    kept = FullDisk(tmp_path / "kept", Kept)
    await asyncio.gather(kept.save(Kept(1)), kept.save(Kept(2)))
    assert kept.load() == Kept(2)


async def test_ignores_truncated_files(kept: StateFile[Kept]) -> None:
    await kept.save(Kept(7, ("some", "names")))
    whole = kept.path.read_bytes()
    for length in range(len(whole)):
        kept.path.write_bytes(whole[:length])
        assert kept.load() is None
    kept.path.write_bytes(whole)
    assert kept.load() == Kept(7, ("some", "names"))


async def test_detects_every_changed_byte(kept: StateFile[Kept]) -> None:
    await kept.save(Kept(7))
    whole = kept.path.read_bytes()
    for index in range(len(whole)):
        damaged = bytearray(whole)
        damaged[index] ^= 0x01
        kept.path.write_bytes(damaged)
        assert kept.load() is None


async def test_ignores_another_kind_version_or_size(kept: StateFile[Kept]) -> None:
    await kept.save(Kept(7))
    assert StateFile(kept.path, Other).load() is None
    kept.path.write_bytes(kept.path.read_bytes().replace(b"penstock 1 ", b"penstock 2 "))
    assert kept.load() is None
    kept.path.write_bytes(b"x" * (MAX_FILE_BYTES + 1))
    assert kept.load() is None


async def test_crash_before_the_rename_keeps_the_old_value(kept: StateFile[Kept]) -> None:
    await kept.save(Kept(1))
    kept.path.with_name("kept.new").write_bytes(b"half of somethi")
    assert kept.load() == Kept(1)
    await kept.save(Kept(2))
    assert kept.load() == Kept(2)


async def test_unwritable_disk_raises_nothing(tmp_path: Path) -> None:
    nowhere = StateFile(tmp_path / "missing" / "kept", Kept)
    await nowhere.save(Kept(1))
    assert nowhere.load() is None
    (tmp_path / "missing").mkdir()
    await nowhere.save(Kept(2))
    assert nowhere.load() == Kept(2)
