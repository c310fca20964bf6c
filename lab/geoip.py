"""Locations and addresses of clients: a table, which can be written as a MaxMind database, or a real database.

The table's prefixes are from 198.18.0.0/15, which is reserved for benchmarks (RFC 2544).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Network, ip_network
from pathlib import Path
from random import Random
from typing import Any

import maxminddb
import msgspec
from mmdb_writer import MMDBWriter
from netaddr import IPSet

MAX_NETWORKS_READ_WHOLE = 200_000
"""Databases with more nodes than this are sampled, because reading every network of a full database takes minutes."""

SAMPLES = 20_000
"""Number of addresses that are looked up to sample a database."""


class GeoDatabaseError(Exception):
    """A GeoIP database cannot be used. The message states the path, the problem and the remedy in one line."""

    def __init__(self, path: Path, problem: str, remedy: str) -> None:
        super().__init__(f"{path}: {problem}; {remedy}")
        self.path = path


class ClientSite(msgspec.Struct, frozen=True):
    """A location of clients."""

    name: str
    """Unique among the sites of one workload."""
    country: str
    """ISO 3166-1 alpha-2."""
    subdivision: str
    """ISO 3166-2 without the country part; empty where there is none."""
    city: str
    latitude_deg: float
    longitude_deg: float
    share: float
    """Weight of the site in the traffic, relative to the weights of all sites."""
    network: str
    """Prefix of the client addresses."""

    def address(self, rng: Random) -> str:
        """Return a random client address of the site."""
        network = ip_network(self.network)
        return str(network[rng.randrange(network.num_addresses)])


_CITIES = (
    ("DE", "HH", "Hamburg", 53.55, 9.99, 1.3),
    ("SE", "AB", "Stockholm", 59.33, 18.07, 1.1),
    ("PL", "14", "Warsaw", 52.23, 21.01, 0.9),
    ("IT", "25", "Milan", 45.46, 9.19, 0.9),
    ("ES", "CT", "Barcelona", 41.39, 2.17, 1.0),
    ("PT", "11", "Lisbon", 38.72, -9.14, 0.6),
    ("FR", "IDF", "Paris", 48.86, 2.35, 0.9),
    ("IE", "L", "Dublin", 53.35, -6.26, 0.5),
    ("NL", "NH", "Amsterdam", 52.37, 4.90, 0.6),
    ("GB", "ENG", "Manchester", 53.48, -2.24, 1.3),
    ("CH", "ZH", "Zurich", 47.37, 8.54, 0.5),
    ("NO", "03", "Oslo", 59.91, 10.75, 0.4),
    ("US", "NY", "New York", 40.71, -74.01, 1.4),
    ("US", "CA", "Los Angeles", 34.05, -118.24, 0.8),
    ("CA", "ON", "Toronto", 43.65, -79.38, 0.4),
    ("BR", "SP", "Sao Paulo", -23.55, -46.63, 0.6),
    ("JP", "27", "Osaka", 34.69, 135.50, 1.3),
    ("KR", "11", "Seoul", 37.57, 126.98, 0.6),
    ("IN", "MH", "Mumbai", 19.08, 72.88, 0.7),
    ("SG", "", "Singapore", 1.35, 103.82, 0.5),
    ("AU", "NSW", "Sydney", -33.87, 151.21, 0.5),
    ("NG", "LA", "Lagos", 6.52, 3.38, 0.3),
)
"""Country, subdivision, city, latitude and longitude (degrees), and share. The shares are assumptions, because no
public trace contains client locations."""

SITES = tuple(
    ClientSite(city, country, subdivision, city, latitude_deg, longitude_deg, share, f"198.18.{number}.0/24")
    for number, (country, subdivision, city, latitude_deg, longitude_deg, share) in enumerate(_CITIES, 1)
)
"""Cities in many countries."""

SHARE_ELSEWHERE = 0.3
"""Share of a site in a country that SITES does not contain."""


def write_geoip(path: Path, sites: Sequence[ClientSite] = SITES) -> None:
    """Write a MaxMind City database that contains only the clients of `sites`."""
    writer = MMDBWriter(
        ip_version=4,
        database_type="Penstock-Lab-City",
        languages=["en"],
        description="Client sites of the lab; addresses of RFC 2544",
        int_type="u32",
    )
    for site in sites:
        subdivisions = [{"iso_code": site.subdivision}] if site.subdivision else []
        record = {
            "city": {"names": {"en": site.city}},
            "country": {"iso_code": site.country},
            "location": {"latitude": site.latitude_deg, "longitude": site.longitude_deg},
            "subdivisions": subdivisions,
        }
        writer.insert_network(IPSet([site.network]), record)
    writer.to_db_file(str(path))


def sites_from_database(path: Path, rng: Random, max_sites: int = 24) -> list[ClientSite]:
    """Return one client site per country of a City database, at a network that has a country and a location.

    Sites are sorted by share of traffic, largest first. IPv4 networks are preferred to IPv6 networks.

    Args:
        path: a MaxMind DB with countries and locations.
        rng: selects the network in each country, orders countries of equal share, and samples large databases.
        max_sites: maximum number of sites.

    Raises:
        GeoDatabaseError: the file is missing, is not a MaxMind DB, is corrupt, or contains no location.
    """
    by_country: dict[str, list[ClientSite]] = {}
    if path.exists() and not path.is_file():
        raise GeoDatabaseError(path, "not a file", "give the path of a MaxMind City database")
    try:
        # MODE_MEMORY selects the pure Python reader, which reports every defect of a file as an exception.
        with maxminddb.open_database(str(path), maxminddb.MODE_MEMORY) as reader:
            for network, record in _networks(reader, rng):
                site = _site_of(network, record)
                if site is not None:
                    by_country.setdefault(site.country, []).append(site)
    except OSError as error:
        problem = error.strerror or str(error)
        raise GeoDatabaseError(path, problem, "give the path of a MaxMind City database") from None
    except Exception as error:  # the decoder raises arbitrary exceptions for a corrupt file
        problem = f"not a sound MaxMind DB ({type(error).__name__}: {' '.join(str(error).split())[:160]})"
        raise GeoDatabaseError(path, problem, "fetch the database again") from None
    if not by_country:
        problem = "no network has both a country and a location"
        raise GeoDatabaseError(path, problem, "give a City database, not a database of countries or networks")
    chosen = [_pick(sites, rng) for _, sites in sorted(by_country.items())]
    rng.shuffle(chosen)
    return sorted(chosen, key=lambda site: -site.share)[:max_sites]


def _networks(reader: maxminddb.Reader, rng: Random) -> Iterator[tuple[IPv4Network | IPv6Network, Any]]:
    if reader.metadata().node_count <= MAX_NETWORKS_READ_WHOLE:
        yield from reader
        return
    for _ in range(SAMPLES):
        address = IPv4Address(rng.randrange(1 << 24, 224 << 24))
        record, prefix_bits = reader.get_with_prefix_len(address)
        if record is not None:
            yield IPv4Network((address, prefix_bits), strict=False), record


def _site_of(network: IPv4Network | IPv6Network, record: Any) -> ClientSite | None:
    country = _text(_at(record, "country", "iso_code"))
    latitude, longitude = _at(record, "location", "latitude"), _at(record, "location", "longitude")
    if not country or not (_within(latitude, 90.0) and _within(longitude, 180.0)):
        return None
    if network.is_loopback or network.is_link_local or network.is_multicast or network.is_unspecified:
        return None
    subdivisions = _at(record, "subdivisions")
    subdivision = _text(_at(subdivisions[0], "iso_code")) if isinstance(subdivisions, list) and subdivisions else ""
    city = _text(_at(record, "city", "names", "en"))
    name = f"{city} ({country})" if city else country
    share = _SHARES.get(country, SHARE_ELSEWHERE)
    return ClientSite(name, country, subdivision, city, latitude, longitude, share, str(network))


def _text(value: Any) -> str:
    return value if isinstance(value, str) and value.isprintable() and len(value) <= 100 else ""


def _within(value: Any, most: float) -> bool:
    return isinstance(value, (int, float)) and abs(value) <= most


def _at(record: Any, *keys: str) -> Any:
    for key in keys:
        record = record.get(key) if isinstance(record, dict) else None
    return record


def _pick(sites: list[ClientSite], rng: Random) -> ClientSite:
    of_version_4 = [site for site in sites if ip_network(site.network).version == 4]
    return rng.choice(of_version_4 or sites)


_SHARES = {
    country: sum(site.share for site in SITES if site.country == country)
    for country in {site.country for site in SITES}
}
