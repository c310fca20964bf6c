"""Places of regions by country or time zone, from the tables of the IANA time zone database."""

from __future__ import annotations

import os
import re
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from adapters.error_text import suggest

_COORDINATES = re.compile(r"([+-])(\d{2})(\d{2})(\d{2})?([+-])(\d{3})(\d{2})(\d{2})?")
"""Latitude and longitude (ISO 6709), each as sign, degrees, minutes, and seconds or nothing."""

LOCAL_ZONE = Path("/etc/localtime")


class UnknownPlace(Exception):
    """No place has this name; the message states the remedy."""


class Place(NamedTuple):
    """The location of a region."""

    country: str
    """ISO 3166-1 alpha-2 code."""
    latitude_deg: float
    longitude_deg: float


FALLBACK = Place("US", 38.9, -77.04)
"""The place of a machine whose time zone names none, such as UTC."""


def place_named(name: str) -> Place:
    """Return the place of a country (`DE`: the first of its time zones) or of a time zone (`Europe/Berlin`).

    Raises:
        UnknownPlace: there is no such country or time zone.
    """
    known = zones()
    if name in known:
        return known[name]
    found = next((place for place in known.values() if place.country == name), None)
    if found is None:
        otherwise = "write an ISO 3166-1 country code such as DE, or a time zone such as Europe/Berlin"
        raise UnknownPlace(f"{name} is no country and no time zone; {suggest(name, known, otherwise)}")
    return found


def place_of_machine() -> Place:
    """Return the place of the machine's time zone, or FALLBACK."""
    zone = os.environ.get("TZ", "").removeprefix(":")
    if not zone and LOCAL_ZONE.is_symlink():
        zone = str(LOCAL_ZONE.readlink()).partition("zoneinfo/")[2]
    return zones().get(zone, FALLBACK)


def zones() -> dict[str, Place]:
    """Return the place of each time zone by name, in the order of the table: of a country, its largest place first."""
    table = files("tzdata").joinpath("zoneinfo", "zone.tab").read_text(encoding="utf-8")
    rows = [line.split("\t") for line in table.splitlines() if line and not line.startswith("#")]
    return {zone: Place(country, *_degrees(coordinates)) for country, coordinates, zone, *_ in rows}


def _degrees(coordinates: str) -> tuple[float, float]:
    found = _COORDINATES.fullmatch(coordinates)
    assert found is not None, coordinates
    return _degree(*found.groups()[:4]), _degree(*found.groups()[4:])


def _degree(sign: str, degrees: str, minutes: str, seconds: str | None) -> float:
    value = int(degrees) + int(minutes) / 60 + int(seconds or 0) / 3600
    return round(-value if sign == "-" else value, 2)
