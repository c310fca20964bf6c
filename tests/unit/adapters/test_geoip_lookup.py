"""A GeoIP database that is replaced in a running process: the last valid one is used until the new one is valid."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from io import BytesIO
from ipaddress import ip_address
from pathlib import Path
from random import Random
from typing import Any

import pytest
from mmdb_writer import MMDBWriter
from netaddr import IPSet
from structlog.testing import capture_logs

from adapters import geoip, geoip_lookup
from adapters.files import plain_file
from adapters.geoip import TRIAL_ADDRESSES, BadGeoDatabase, DamagedRecord, GeoDatabase
from adapters.geoip_lookup import GeoIpLookup
from regional_agent.requests.client_location import Locator

CLIENT = ip_address("203.0.113.9")


def write_database(file: Path, country: object, kind: str = "GeoLite2-City") -> Path:
    """Write a database in place, as `cp` does, with the client's network in `country`."""
    writer = MMDBWriter(ip_version=4, database_type=kind)
    for first in range(1, 224):
        record = {"country": {"iso_code": country}, "location": {"latitude": first / 3, "longitude": 1.5}}
        writer.insert_network(IPSet([f"{first}.0.0.0/8"]), record)
    writer.to_db_file(str(file))
    return file


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_database(tmp_path / "geo.mmdb", "DE")


def country(lookup: GeoIpLookup) -> str | None:
    return lookup.find(CLIENT)[0].country


async def polled(lookup: GeoIpLookup, times: int = 2) -> list[str]:
    """Poll the file and return the lines logged."""
    with capture_logs() as logs:
        for _ in range(times):
            await lookup.poll()
    return [f"{entry['event']}: {entry.get('problem', entry.get('file'))}" for entry in logs]


def cut(file: Path, length: Callable[[int], int]) -> None:
    os.truncate(file, length(file.stat().st_size))


def replace(file: Path, country: str) -> None:
    """Replace the database with one that was written to another file, by a rename."""
    beside = write_database(file.with_suffix(".new"), country)
    if file.is_dir():
        file.rmdir()
    beside.replace(file)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (Path.unlink, "cannot read the GeoIP database: No such file or directory"),
    "empty": (lambda file: cut(file, lambda size: 0), "not a MaxMind database, or a truncated one; fetch"),
    "truncated to half": (lambda file: cut(file, lambda size: size // 2), "not a MaxMind database, or a truncated one"),
    "truncated by a byte": (lambda file: cut(file, lambda size: size - 1), "not a MaxMind database, or a truncated"),
    "text": (lambda file: file.write_text("<html>quota exceeded"), "not a MaxMind database, or a truncated one"),
    "start overwritten": (
        lambda file: file.write_bytes(b"\xff" * 900 + file.read_bytes()[900:]),
        "is damaged; fetch",
    ),
    "other kind": (
        lambda file: write_database(file, "FR", "GeoLite2-ASN"),
        "a 'GeoLite2-ASN' database has no countries",
    ),
    "codes that are numbers": (lambda file: write_database(file, 7), "is damaged; fetch"),
    "directory": (lambda file: (file.unlink(), file.mkdir()), "Is a directory; put a readable one there"),
    "FIFO": (lambda file: (file.unlink(), os.mkfifo(file)), "not a regular file"),
    "unreadable": (lambda file: (file.unlink(), file.symlink_to(file)), "Too many levels of symbolic links"),
}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_the_last_good_database_stays_in_use_until_a_good_one_is_there(file: Path, damage: str) -> None:
    reloads: list[str] = []
    lookup = GeoIpLookup(file, lambda: reloads.append("reload"))
    do_damage, message = DAMAGES[damage]
    do_damage(file)
    assert country(lookup) == "DE"
    logged = await polled(lookup, times=5)
    assert len(logged) == 1
    assert str(file) in logged[0]
    assert message in logged[0]
    assert (country(lookup), reloads) == ("DE", [])
    assert lookup.problem is not None
    with pytest.raises(BadGeoDatabase, match=message.partition(";")[0]):
        GeoDatabase(file)
    replace(file, "FR")
    assert await polled(lookup) == [f"GeoIP database reloaded: {file}"]
    assert (country(lookup), reloads, lookup.problem) == ("FR", ["reload"], None)


async def test_a_database_that_is_overwritten_in_place_is_reloaded(file: Path) -> None:
    lookup, inode = GeoIpLookup(file), os.stat(file).st_ino
    write_database(file, "FR")
    assert os.stat(file).st_ino == inode
    assert (await polled(lookup, times=1), country(lookup)) == ([], "DE"), "it may still be written"
    os.utime(file, ns=(1, 1))
    assert (await polled(lookup, times=1), country(lookup)) == ([], "DE"), "it changed again"
    assert await polled(lookup, times=3) == [f"GeoIP database reloaded: {file}"]
    assert country(lookup) == "FR"


async def test_the_restored_file_ends_the_problem_without_a_reload(file: Path) -> None:
    lookup, aside = GeoIpLookup(file), file.with_suffix(".aside")
    os.rename(file, aside)
    assert len(await polled(lookup, times=3)) == 1
    os.rename(aside, file)
    assert (await polled(lookup, times=3), lookup.problem) == ([], None)
    os.rename(file, aside)
    assert len(await polled(lookup, times=3)) == 1, "a later problem is logged again"


async def test_a_rejected_file_is_read_once(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lookup, threads = GeoIpLookup(file), []

    def read(file: Path) -> GeoDatabase:
        threads.append(threading.current_thread())
        return GeoDatabase(file)

    monkeypatch.setattr(geoip_lookup, "GeoDatabase", read)
    cut(file, lambda size: size // 2)
    await polled(lookup, times=4)
    write_database(file, "FR")
    await polled(lookup, times=4)
    assert len(threads) == 2
    assert threading.main_thread() not in threads, "the event loop goes on while the file is read"


def test_a_file_that_changes_while_it_is_read_is_not_used(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class WrittenWhileRead(BytesIO):
        def write(self, data: Any) -> int:
            os.utime(file, ns=(0, 0))
            return super().write(data)

    monkeypatch.setattr(plain_file, "BytesIO", WrittenWhileRead)
    with pytest.raises(BadGeoDatabase, match=r"changed while it was read; write the new file beside it and rename it"):
        GeoDatabase(file)


def test_a_file_above_the_bound_is_not_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(geoip, "MAX_DATABASE_BYTES", file.stat().st_size - 1)
    with pytest.raises(BadGeoDatabase, match=r"larger than \d+ bytes"):
        GeoDatabase(file)


def test_a_damaged_database_only_loses_locations(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader in C, which maxminddb prefers, ends the process on some of these."""
    monkeypatch.setattr(geoip, "TRIAL_ADDRESSES", TRIAL_ADDRESSES[:3])
    rng, sound, ends = Random(1), file.read_bytes(), set()
    for _ in range(300):
        content = bytearray(sound)
        for _ in range(rng.choice((1, 5, 50, 500))):
            content[rng.randrange(len(content))] = rng.randrange(256)
        file.write_bytes(content)
        try:
            GeoDatabase(file).find(CLIENT)
            ends.add("found")
        except (BadGeoDatabase, DamagedRecord) as error:
            ends.add(type(error).__name__)
    assert ends >= {"found", "BadGeoDatabase"}


async def test_an_agents_cached_locations_end_with_their_database(file: Path) -> None:
    locator = Locator(file, ())
    for _ in range(2):
        assert locator.locate_client(str(CLIENT), [], []).country == "DE"
    assert locator.locate(CLIENT).country == "DE"
    generation = locator.generation
    write_database(file, "FR")
    await polled(locator.geoip)
    assert locator.generation != generation
    assert locator.locate_client(str(CLIENT), [], []).country == "FR"
    assert locator.locate(CLIENT).country == "FR"
