"""Locates clients (step 3): by a trusted proxy's location header, else by the address of the trusted proxy chain.

A wrong country is a residency violation, so the location is never guessed. It is NOWHERE if the proxy chain is invalid
or too long, if the address is not in the database or has no country there, or if a trusted proxy's location header is
invalid.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from adapters.geoip import IpAddress, IpNetwork, parse_address
from adapters.geoip_lookup import GeoIpLookup
from penstock.dns.client_subnet import is_same_place
from penstock.policy.geography import COUNTRIES, NOWHERE, Location

MAX_CACHED = 65_536
"""Maximum number of cached prefixes and addresses; the oldest entry is evicted first."""

MAX_CHAIN_BYTES = 4096
"""Maximum size (bytes) of X-Forwarded-For; a client with a longer header is located NOWHERE."""

MAX_CACHED_CHAIN_BYTES = 128
"""Chains of more bytes than this are not cached, so that no client can fill the cache with them."""

MAX_PARTS = 16
"""Maximum number of the database's networks that are looked up for one network of clients, which take 2 ms."""

CACHED_PREFIX = {4: 24, 6: 48}
"""Prefix length of a cache entry by IP version, used if the whole prefix has one location in the database."""

_CODE = re.compile(r"([A-Z]{2})(?:-([A-Z0-9]{1,3}))?")
"""A country code of ISO 3166-1, optionally with a subdivision code of ISO 3166-2."""

_NO_SUBDIVISION = frozenset({"XX", "ZZ"})
"""Placeholders for an unknown subdivision; ISO 3166-2 assigns neither of them."""

K = TypeVar("K")
V = TypeVar("V")


class Locator:
    """Locates clients; one look-up costs about 130 µs, so results are cached by network."""

    def __init__(self, database: Path | None, trusted_proxies: Sequence[IpNetwork], header: str = "") -> None:
        """Read the database.

        Args:
            database: MaxMind City or Country file; None locates every client NOWHERE.
            trusted_proxies: networks whose X-Forwarded-For and `header` are trusted.
            header: name of the location header; empty for none.

        Raises:
            BadGeoDatabase: the file is missing, damaged, or of another kind.
        """
        self.header = header.lower().encode()
        """The location header's name in lower case; empty for none."""
        self._trusted = tuple(trusted_proxies)
        self._is_trusted: dict[str, bool] = {}
        self._clients: dict[tuple[str | bytes, ...], Location] = {}
        self._locations: dict[int | IpAddress, Location] = {}
        self._networks: dict[IpNetwork, Location] = {}
        self.geoip = GeoIpLookup(database, self._forget)
        self.generation = 0
        """Incremented when a new database is loaded, which invalidates cached locations."""

    def locate_client(
        self, peer_ip: str, forwarded_for: Sequence[bytes], location_headers: Sequence[bytes]
    ) -> Location:
        """Return the location of a request's client.

        Args:
            peer_ip: the address of the TCP peer.
            forwarded_for: the X-Forwarded-For headers, in order.
            location_headers: all headers named `header`. From a trusted proxy, they take precedence over the
                database even if they are invalid.
        """
        if location_headers and self.trusts(peer_ip):
            return parse_location(location_headers[0]) if len(location_headers) == 1 else NOWHERE
        key: tuple[str | bytes, ...] = (peer_ip, *forwarded_for)
        location = self._clients.get(key)
        if location is None:
            address = self.client_address(peer_ip, forwarded_for)
            location = NOWHERE if address is None else self.locate(address)
            if sum(map(len, forwarded_for)) <= MAX_CACHED_CHAIN_BYTES:
                _cache(self._clients, key, location)
        return location

    def client_address(self, peer_ip: str, forwarded_for: Sequence[bytes]) -> IpAddress | None:
        """Return the client's address in the proxy chain; None if the chain contains an invalid address.

        The chain is read from the right, since only entries that trusted proxies appended are trustworthy: the first
        address that is not a trusted proxy's is the client's.
        """
        if not forwarded_for or not self.trusts(peer_ip):
            return parse_address(peer_ip)
        if sum(map(len, forwarded_for)) > MAX_CHAIN_BYTES:
            return None
        chain = b",".join(forwarded_for).decode("latin-1").split(",")
        client: IpAddress | None = None
        for hop in reversed(chain):
            client = parse_address(hop.strip())
            if client is None or not self.trusts(str(client)):
                return client
        return client

    def trusts(self, ip: str) -> bool:
        """Whether an address belongs to a trusted proxy."""
        trusted = self._is_trusted.get(ip)
        if trusted is None:
            address = parse_address(ip)
            trusted = address is not None and any(address in network for network in self._trusted)
            _cache(self._is_trusted, ip, trusted)
        return trusted

    def locate(self, address: IpAddress) -> Location:
        """Return the location of an address; NOWHERE if the database does not contain it."""
        if not self.geoip.available:
            return NOWHERE
        prefix = int(address) >> (address.max_prefixlen - CACHED_PREFIX[address.version])
        key = prefix if address.version == 4 else ~prefix
        location = self._locations.get(key) or self._locations.get(address)
        return location if location is not None else self._look_up(address, key)

    def locate_network(self, network: IpNetwork) -> Location:
        """Return the location of a network's first address, if all of the network is in its country and subdivision.

        NOWHERE otherwise, and for a network of which the database knows more than MAX_PARTS parts.
        """
        location = self._networks.get(network)
        if location is None:
            location = self._look_up_all(network)
            _cache(self._networks, network, location)
        return location

    def _forget(self) -> None:
        self._clients.clear()
        self._networks.clear()
        self._locations.clear()
        self.generation += 1

    def _look_up(self, address: IpAddress, key: int) -> Location:
        location, network = self.geoip.find(address)
        whole = network is not None and network.prefixlen <= CACHED_PREFIX[address.version]
        _cache(self._locations, key if whole else address, location)
        return location

    def _look_up_all(self, network: IpNetwork) -> Location:
        address, end = network.network_address, int(network.broadcast_address)
        first: Location | None = None
        for _ in range(MAX_PARTS):
            location, part = self.geoip.find(address)
            first = location if first is None else first
            if part is None or not is_same_place(first, location):
                return NOWHERE
            if int(part.broadcast_address) >= end:
                return first
            address = part.broadcast_address + 1
        return NOWHERE


def parse_location(value: bytes) -> Location:
    """Parse a location header such as `DE` or `US-CA`, in any case; NOWHERE if it is not a single location.

    The subdivision is not checked against the country.
    """
    code = _CODE.fullmatch(value.decode("latin-1").upper()) if value.isascii() else None
    if code is None or code[1] not in COUNTRIES or code[2] in _NO_SUBDIVISION:
        return NOWHERE
    return Location(code[1], code[2])


def _cache(cache: dict[K, V], key: K, value: V) -> None:
    if len(cache) >= MAX_CACHED:
        del cache[next(iter(cache))]
    cache[key] = value
