"""The GeoIP database of a running process: reloaded when its file changes; the last good one stays in use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import structlog

from adapters.file_stamp import Stamp, file_stamp
from adapters.geoip import BadGeoDatabase, DamagedRecord, GeoDatabase, IpAddress, IpNetwork, UnreadableGeoDatabase
from penstock.policy.geography import NOWHERE, Location

POLL_S = 5.0
"""Time (s) between two checks of whether the file has changed. A changed file is read once it is the same at two."""

_log = structlog.get_logger(__name__)


class GeoIpLookup:
    """Locates addresses; without a database every address is nowhere."""

    def __init__(self, file: Path | None, on_reload: Callable[[], None] = lambda: None) -> None:
        """Read the database.

        Args:
            file: MaxMind City or Country database, or None.
            on_reload: called when another database has come into use, to drop what was cached of the one before.

        Raises:
            BadGeoDatabase: the file cannot be used.
        """
        self._file = file
        self._on_reload = on_reload
        self._database = GeoDatabase(file) if file is not None else None
        self._polled: Stamp | None = self._database.stamp if self._database is not None else None
        self._rejected: Stamp | None = None
        self._logged_damage = False
        self.problem: str | None = None
        """Why the file as it is now is not in use; None where it is."""

    @property
    def available(self) -> bool:
        """Whether there is a database."""
        return self._database is not None

    def find(self, address: IpAddress) -> tuple[Location, IpNetwork | None]:
        """The location of an address, and the network that has it; NOWHERE where the database does not have it."""
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
        """Use the file anew whenever it changes, until cancelled."""
        while self._file is not None:
            await asyncio.sleep(POLL_S)
            await self.poll()

    async def poll(self) -> None:
        """Read the file, in a thread, if it has changed and no longer changes; keep the last good database if it
        cannot be used."""
        file, database = self._file, self._database
        if file is None or database is None:
            return
        stamp = file_stamp(file)
        is_settled, self._polled = stamp == self._polled, stamp
        if stamp == database.stamp:
            self.problem = self._rejected = None
            return
        if not is_settled or (stamp is not None and stamp == self._rejected):
            return
        try:
            self._database = await asyncio.to_thread(GeoDatabase, file)
        except BadGeoDatabase as error:
            self._rejected = None if isinstance(error, UnreadableGeoDatabase) else stamp
            if str(error) != self.problem:
                self.problem = str(error)
                _log.error("GeoIP database rejected; the last good one stays in use", problem=self.problem)
            return
        self.problem = self._rejected = None
        self._logged_damage = False
        self._on_reload()
        _log.info("GeoIP database reloaded", file=str(file))
