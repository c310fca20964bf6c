"""Where addresses are, for advice and explanations; the database is opened anew when its file changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import structlog

from control_plane.client.file_stamp import file_stamp
from control_plane.client.geoip import BadGeoDatabase, DamagedThere, GeoDatabase, IpAddress
from penstock.geography import NOWHERE, Location

LOOK_S = 10.0
"""Time (s) between two looks whether the file has changed."""

_log = structlog.get_logger(__name__)


class Places:
    """Looks addresses up; without a database they are all nowhere."""

    def __init__(self, file: Path | None, clock: Callable[[], float]) -> None:
        """Open the database.

        Args:
            file: MaxMind City or Country database, or None.
            clock: seconds, monotonic.

        Raises:
            BadGeoDatabase: the file cannot be used.
        """
        self._file = file
        self._clock = clock
        self._stamp = file_stamp(file) if file is not None else None
        self._looked_at = clock()
        self._database = GeoDatabase(file) if file is not None else None

    @property
    def known(self) -> bool:
        """Whether there is a database."""
        return self._database is not None

    def locate(self, address: IpAddress) -> Location:
        """Where an address is; nowhere where the database does not know."""
        if self._database is None:
            return NOWHERE
        self._reopen_if_changed()
        try:
            return self._database.find(address)[0]
        except DamagedThere as error:
            _log.error("GeoIP database is damaged in places; clients there are nowhere", error=str(error))
            return NOWHERE

    def _reopen_if_changed(self) -> None:
        now = self._clock()
        if self._file is None or now - self._looked_at < LOOK_S:
            return
        self._looked_at = now
        stamp = file_stamp(self._file)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            fresh = GeoDatabase(self._file)
        except BadGeoDatabase as error:
            _log.error("the new GeoIP database is not taken; the one before stays", error=str(error))
            return
        before, self._database = self._database, fresh
        if before is not None:
            before.close()
