"""Where an address is by a MaxMind database. Here, since agents and control planes both look up, and neither imports
the other.

Nothing is guessed: what the database does not know is nowhere.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from pathlib import Path

import geoip2.database
import geoip2.errors
import geoip2.models
from maxminddb import InvalidDatabaseError

from penstock.geography import NOWHERE, Location

TRIED_OUT = ("1.1.1.1", "81.2.69.142", "2001:218::1")
"""Looked up at the start, so that a damaged database is found then."""

IpAddress = IPv4Address | IPv6Address
IpNetwork = IPv4Network | IPv6Network


class BadGeoDatabase(Exception):
    """The database cannot be used; the message names the file and the remedy."""


class DamagedThere(Exception):
    """The database is damaged at what was looked up."""


class GeoDatabase:
    """An open database; one look-up costs about 15 µs."""

    def __init__(self, file: Path) -> None:
        """Open it, and look something up so that a broken one is found now.

        Args:
            file: MaxMind City or Country database.

        Raises:
            BadGeoDatabase: the file is missing, damaged, or of another kind.
        """
        self._reader = _open(file)
        self._has_cities = "City" in self._reader.metadata().database_type
        try:
            for address in TRIED_OUT:
                self.find(ip_address(address))
        except DamagedThere:
            self._reader.close()
            raise BadGeoDatabase(f"{file}: the GeoIP database is damaged; fetch it again") from None

    def close(self) -> None:
        """Let go of the file."""
        self._reader.close()

    def find(self, address: IpAddress) -> tuple[Location, IpNetwork | None]:
        """What the database says, and the network of which it says so. IPv4 databases say nothing of IPv6.

        Raises:
            DamagedThere: it says nothing that makes sense.
        """
        try:
            if address.version > self._reader.metadata().ip_version:
                return NOWHERE, None
            found = self._reader.city(address) if self._has_cities else self._reader.country(address)
        except geoip2.errors.AddressNotFoundError as unknown:
            return NOWHERE, unknown.network
        except (InvalidDatabaseError, ValueError) as error:
            raise DamagedThere(str(error)) from None
        return _place(found), found.traits.network


def parse_address(text: str) -> IpAddress | None:
    """An address as proxies write them: bare, in brackets, or with a port; IPv4 in IPv6 clothes is IPv4."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


def _open(file: Path) -> geoip2.database.Reader:
    try:
        reader = geoip2.database.Reader(file)
    except OSError as error:
        raise BadGeoDatabase(f"{file}: cannot read the GeoIP database: {error.strerror or error}") from None
    except (InvalidDatabaseError, ValueError) as error:
        raise BadGeoDatabase(f"{file}: not a MaxMind database ({error}); fetch a GeoLite2 or GeoIP2 file") from None
    kind = reader.metadata().database_type
    if "City" not in kind and "Country" not in kind:
        reader.close()
        raise BadGeoDatabase(f"{file}: a {kind} database has no countries; use a City or Country one")
    return reader


def _place(found: geoip2.models.City | geoip2.models.Country) -> Location:
    country = found.country.iso_code
    if not isinstance(found, geoip2.models.City):
        return Location(country)
    subdivision = found.subdivisions[0].iso_code if found.subdivisions else None
    return Location(country, subdivision, found.location.latitude, found.location.longitude)
