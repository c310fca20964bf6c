"""Step 3 of a request's road: where its client is, as a trusted proxy says in a header, else from the address that the
trusted proxy chain gives.

A wrong country is a residency violation, so nothing is guessed: an address that cannot be trusted, is not in the
database, or has no country there is nowhere, and so is a client of whom a proxy says something that cannot be read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from adapters.geoip import IpAddress, IpNetwork, parse_address
from adapters.geoip_lookup import GeoIpLookup
from penstock.policy.geography import COUNTRIES, NOWHERE, Location

MAX_CACHED = 65_536
"""Prefixes and addresses remembered; the oldest goes first."""

MAX_CHAIN_BYTES = 4096
"""X-Forwarded-For of more bytes than this is hostile; the client is nowhere."""

MAX_CACHED_CHAIN_BYTES = 128
"""Chains of more bytes than this are not cached, so that no client can fill the cache with them."""

CACHED_PREFIX = {4: 24, 6: 48}
"""Bits of an address that share an entry, where the database says that all of them are in one place."""

_CODE = re.compile(r"([A-Z]{2})(?:-([A-Z0-9]{1,3}))?")
"""A country of ISO 3166-1, or a subdivision of ISO 3166-2 with it."""

_NO_SUBDIVISION = frozenset({"XX", "ZZ"})
"""What some write who do not know it, and no subdivision's code anywhere."""

K = TypeVar("K")
V = TypeVar("V")


class Locator:
    """Locates clients; one look-up costs about 130 µs, so answers are kept by network."""

    def __init__(self, database: Path | None, trusted_proxies: Sequence[IpNetwork], header: str = "") -> None:
        """Read the database.

        Args:
            database: MaxMind City or Country file; None leaves every client nowhere.
            trusted_proxies: networks whose X-Forwarded-For and `header` are believed.
            header: name of the header in which they say where the client is; empty is none.

        Raises:
            BadGeoDatabase: the file is missing, damaged, or of another kind.
        """
        self.header = header.lower().encode()
        """The header's name as requests have it; empty is none."""
        self._trusted = tuple(trusted_proxies)
        self._is_trusted: dict[str, bool] = {}
        self._clients: dict[tuple[str | bytes, ...], Location] = {}
        self._places: dict[int | IpAddress, Location] = {}
        self.geoip = GeoIpLookup(database, self._forget)
        self.generation = 0
        """Grows when another database comes into use: what was cached of locations before is outdated."""

    def locate_client(self, peer_ip: str, forwarded_for: Sequence[bytes], told: Sequence[bytes]) -> Location:
        """Where the client of a request is.

        Args:
            peer_ip: the address that it came from.
            forwarded_for: its X-Forwarded-For headers, in order.
            told: all its headers of the name `header`. From a trusted proxy they alone count, even if they say nothing
                that can be read: the proxy knows more than the database, and what it knows is not clear.
        """
        if told and self.trusts(peer_ip):
            return read_place(told[0]) if len(told) == 1 else NOWHERE
        seen: tuple[str | bytes, ...] = (peer_ip, *forwarded_for)
        place = self._clients.get(seen)
        if place is None:
            address = self.client_address(peer_ip, forwarded_for)
            place = NOWHERE if address is None else self.locate(address)
            if sum(map(len, forwarded_for)) <= MAX_CACHED_CHAIN_BYTES:
                _remember(self._clients, seen, place)
        return place

    def client_address(self, peer_ip: str, forwarded_for: Sequence[bytes]) -> IpAddress | None:
        """The last address that a proxy of ours vouches for; None where the chain has something that is no address.

        The chain is read from the right, for only what our own proxies appended is true: the first address that is not
        a trusted proxy's is the client's, whatever it claims further left.
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
        """Whether an address is a proxy's of ours."""
        known = self._is_trusted.get(ip)
        if known is None:
            address = parse_address(ip)
            known = address is not None and any(address in network for network in self._trusted)
            _remember(self._is_trusted, ip, known)
        return known

    def locate(self, address: IpAddress) -> Location:
        """Where an address is; NOWHERE where the database does not know."""
        if not self.geoip.available:
            return NOWHERE
        prefix = int(address) >> (address.max_prefixlen - CACHED_PREFIX[address.version])
        key = prefix if address.version == 4 else ~prefix
        place = self._places.get(key) or self._places.get(address)
        return place if place is not None else self._look_up(address, key)

    def _forget(self) -> None:
        self._clients.clear()
        self._places.clear()
        self.generation += 1

    def _look_up(self, address: IpAddress, key: int) -> Location:
        place, network = self.geoip.find(address)
        whole = network is not None and network.prefixlen <= CACHED_PREFIX[address.version]
        _remember(self._places, key if whole else address, place)
        return place


def read_place(value: bytes) -> Location:
    """The place that a header names, such as `DE` or `US-CA`, in capitals or not; NOWHERE where it names no single one.

    Whether a country has the subdivision is not known here, as it is not of policy's.
    """
    code = _CODE.fullmatch(value.decode("latin-1").upper()) if value.isascii() else None
    if code is None or code[1] not in COUNTRIES or code[2] in _NO_SUBDIVISION:
        return NOWHERE
    return Location(code[1], code[2])


def _remember(cache: dict[K, V], key: K, value: V) -> None:
    if len(cache) >= MAX_CACHED:
        del cache[next(iter(cache))]
    cache[key] = value
