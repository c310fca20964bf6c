"""Locations of IP addresses from a MaxMind database, for agents and control planes.

The file is read into memory: a memory-mapped file that is truncated in place kills the process with SIGBUS. The reader
is the Python implementation of maxminddb, since the C implementation crashes on some damaged databases. An address
without a record in the database has no location.
"""

from __future__ import annotations

from io import BytesIO
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from pathlib import Path
from types import UnionType
from typing import TypeVar

import geoip2.database
import geoip2.errors
import geoip2.models
from maxminddb import MODE_FD, InvalidDatabaseError
from maxminddb.decoder import Decoder

from adapters.files.plain_file import Stamp, UnusableFile, read_plain_file
from penstock.policy.geography import NOWHERE, Location

MAX_DATABASE_BYTES = 512 * 1024 * 1024
"""Maximum size (bytes) of a database; a larger file is rejected. MaxMind's City databases have 60-120 MB."""

TRIAL_ADDRESSES = (
    "1.1.1.1",
    "81.2.69.142",
    "2001:218::1",
    *(f"{first}.{first}.1.1" for first in range(1, 224)),
    *(f"2{group:03x}:{group:x}::1" for group in range(0, 0x1000, 0x40)),
)
"""Addresses across both address spaces that are looked up before a database is used, so that most damaged databases are
rejected when they are loaded."""

_METADATA_MARKER = b"\xab\xcd\xefMaxMind.com"
"""Start of the last section of the file (https://maxmind.github.io/MaxMind-DB/, "Database Metadata")."""

_REMEDY = "fetch the GeoIP database again"

T = TypeVar("T")

IpAddress = IPv4Address | IPv6Address
IpNetwork = IPv4Network | IPv6Network


class BadGeoDatabase(UnusableFile):
    """The database cannot be used; the message names the file and the remedy."""


class UnreadableGeoDatabase(BadGeoDatabase):
    """The file is missing, cannot be read, or is being written: the same file may be readable later."""


class DamagedRecord(Exception):
    """The database is damaged at the address that was looked up."""


class GeoDatabase:
    """A database in memory; one look-up costs about 130 µs."""

    def __init__(self, file: Path) -> None:
        """Read the file, and look up the trial addresses.

        Args:
            file: MaxMind City or Country database.

        Raises:
            BadGeoDatabase: the file is too large, damaged, or of another kind.
            UnreadableGeoDatabase: the file is missing, cannot be read, or changed while it was read.
        """
        content, self.stamp = _read(file)
        """`stamp` is the stamp of the file that was read."""
        self._reader = _open(file, content)
        self._has_cities = "City" in self._reader.metadata().database_type
        try:
            for address in TRIAL_ADDRESSES:
                self.find(ip_address(address))
        except DamagedRecord:
            raise BadGeoDatabase(f"{file}: the GeoIP database is damaged; {_REMEDY}") from None

    def find(self, address: IpAddress) -> tuple[Location, IpNetwork | None]:
        """Return the location of an address, and its network. An IPv4 database has no locations of IPv6 addresses.

        Raises:
            DamagedRecord: the database's record of the address cannot be decoded.
        """
        try:
            if address.version > self._reader.metadata().ip_version:
                return NOWHERE, None
            found = self._reader.city(address) if self._has_cities else self._reader.country(address)
            return _location(found), found.traits.network
        except geoip2.errors.AddressNotFoundError as unknown:
            return NOWHERE, unknown.network
        except Exception as error:  # the decoder and the models may raise any exception for a damaged record
            raise DamagedRecord(f"{type(error).__name__}: {error}") from None


def parse_address(text: str) -> IpAddress | None:
    """Parse an address as proxies write it: bare, in brackets, or with a port. IPv4-mapped IPv6 becomes IPv4."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


def _read(file: Path) -> tuple[bytes, Stamp]:
    """Return the content and the stamp of a file."""
    try:
        found = read_plain_file(file, MAX_DATABASE_BYTES)
    except OSError as error:
        raise UnreadableGeoDatabase(
            f"{file}: cannot read the GeoIP database: {error.strerror}; put a readable one there"
        ) from None
    return found.content, found.stamp


def _open(file: Path, content: bytes) -> geoip2.database.Reader:
    try:
        reader = geoip2.database.Reader(BytesIO(content), mode=MODE_FD)
        kind = str(reader.metadata().database_type)
        metadata_at = content.rindex(_METADATA_MARKER) + len(_METADATA_MARKER)
        # The decoder accepts a value whose end is cut off.
        if Decoder(content, metadata_at).decode(metadata_at)[1] > len(content):
            raise InvalidDatabaseError("metadata is cut off")
    except Exception:  # the decoder may raise any exception for damaged metadata
        raise BadGeoDatabase(f"{file}: not a MaxMind database, or a truncated one; {_REMEDY}") from None
    if "City" not in kind and "Country" not in kind:
        raise BadGeoDatabase(f"{file}: a {kind[:64]!r} database has no countries; use a City or Country one")
    return reader


def _location(found: geoip2.models.City | geoip2.models.Country) -> Location:
    if not isinstance(found, geoip2.models.City):
        return Location(_checked(found.country.iso_code, str))
    subdivision = found.subdivisions[0].iso_code if found.subdivisions else None
    latitude, longitude = found.location.latitude, found.location.longitude
    return Location(
        _checked(found.country.iso_code, str),
        _checked(subdivision, str),
        _checked(latitude, int | float),
        _checked(longitude, int | float),
    )


def _checked(value: T, kind: type | UnionType) -> T:
    """Return a value of a record; raises TypeError for an unexpected type, since geoip2 does not check types."""
    if value is not None and not isinstance(value, kind):
        raise TypeError(f"{value!r} in place of {kind}")
    return value
