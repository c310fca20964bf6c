"""The GeoIP database of a running process: reloaded when its file changes; the last good one stays in use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import structlog

from adapters.files.plain_file import Stamp, ThreadedRead, UnusableFile, file_stamp
from adapters.geoip import DamagedRecord, GeoDatabase, IpAddress, IpNetwork, UnreadableGeoDatabase
from penstock.policy.geography import NOWHERE, Location

POLL_S = 5.0
"""Interval (s) between checks for a changed file, which is read when two checks in a row find the same version."""

_log = structlog.get_logger(__name__)


class GeoIpLookup:
    """Locates addresses; without a database, the location of every address is NOWHERE."""

    def __init__(self, file: Path | None, on_reload: Callable[[], None] = lambda: None) -> None:
        """Read the database.

        Args:
            file: MaxMind City or Country database, or None.
            on_reload: called after a new database was loaded, to drop cached results of the previous one.

        Raises:
            BadGeoDatabase: the file cannot be used.
        """
        self._file = file
        self._on_reload = on_reload
        self._database = GeoDatabase(file) if file is not None else None
        self._polled: Stamp | None = self._database.stamp if self._database is not None else None
        self._rejected: Stamp | None = None
        self._newest = ThreadedRead(self._look, str(file))
        self._logged_damage = False
        self.problem: str | None = None
        """Reason why the current version of the file is not in use; None if it is in use."""

    @property
    def available(self) -> bool:
        """Whether a database is loaded."""
        return self._database is not None

    def find(self, address: IpAddress) -> tuple[Location, IpNetwork | None]:
        """Return the location of an address, and its network; NOWHERE if the database has no record of the address."""
        if self._database is None:
            return NOWHERE, None
        try:
            return self._database.find(address)
        except DamagedRecord as error:
            if not self._logged_damage:
                self._logged_damage = True
                _log.error(
                    "GeoIP database has damaged records, whose addresses have no location; fetch it again",
                    file=str(self._file),
                    error=str(error),
                )
            return NOWHERE, None

    async def keep_reloading(self) -> None:
        """Reload the file when it changes, until cancelled."""
        while self._file is not None:
            await asyncio.sleep(POLL_S)
            await self.poll()

    async def poll(self) -> None:
        """Reload the file, in a thread, if it has changed, and is unchanged since the previous call.

        The last good database stays in use if the file cannot be used.
        """
        if self._file is None:
            return
        try:
            database = await self._newest()
        except UnusableFile as error:
            if str(error) != self.problem:
                self.problem = str(error)
                _log.error("GeoIP database rejected; the last good one stays in use", problem=self.problem)
            return
        if database is None:
            return
        self.problem = None
        if database is not self._database:
            self._database = database
            self._logged_damage = False
            self._on_reload()
            _log.info("GeoIP database reloaded", file=str(self._file))

    def _look(self) -> GeoDatabase | None:
        """Return the database of the file's present version; None if that version may not be read now or again.

        Raises:
            BadGeoDatabase: the file cannot be used.
        """
        file, database = self._file, self._database
        assert file is not None
        assert database is not None
        stamp = file_stamp(file)
        is_settled, self._polled = stamp == self._polled, stamp
        if stamp == database.stamp:
            self._rejected = None
            return database
        if not is_settled or (stamp is not None and stamp == self._rejected):
            return None
        self._rejected = stamp
        try:
            return GeoDatabase(file)
        except UnreadableGeoDatabase:
            self._rejected = None
            raise
