"""Step 3 of a request's road: where its client is, from the address that the trusted proxy chain gives.

A wrong country is a residency violation, so nothing is guessed: an address that cannot be trusted, is not in the
database, or has no country there is nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import structlog

from control_plane.client.geoip import DamagedThere, GeoDatabase, IpAddress, IpNetwork, parse_address
from penstock.geography import NOWHERE, Location

MOST_CACHED = 65_536
"""Prefixes and addresses remembered; the oldest goes first."""

LONGEST_CHAIN_BYTES = 4096
"""X-Forwarded-For of more bytes than this is hostile; the client is nowhere."""

LONGEST_CACHED_CHAIN_BYTES = 128
"""Chains of more bytes than this are read anew each time, so that nobody fills the memory with them."""

CACHED_PREFIX = {4: 24, 6: 48}
"""Bits of an address that share an entry, where the database says that all of them are in one place."""

K = TypeVar("K")
V = TypeVar("V")

log = structlog.get_logger()


class Locator:
    """Locates clients; one look-up costs about 15 µs, so answers are kept by network."""

    def __init__(self, database: Path | None, trusted_proxies: Sequence[IpNetwork]) -> None:
        """Open the database, and look something up so that a broken one is found now.

        Args:
            database: MaxMind City or Country file; None leaves every client nowhere.
            trusted_proxies: networks whose X-Forwarded-For is believed.

        Raises:
            BadGeoDatabase: the file is missing, damaged, or of another kind.
        """
        self._trusted = tuple(trusted_proxies)
        self._is_trusted: dict[str, bool] = {}
        self._clients: dict[tuple[str | bytes, ...], Location] = {}
        self._places: dict[int | IpAddress, Location] = {}
        self._database = GeoDatabase(database) if database is not None else None
        self._broken = False

    def close(self) -> None:
        """Let go of the file."""
        if self._database is not None:
            self._database.close()

    def locate_client(self, peer_ip: str, forwarded_for: Sequence[bytes]) -> Location:
        """Where the client of a request is, by the address it came from and its X-Forwarded-For headers in order."""
        seen: tuple[str | bytes, ...] = (peer_ip, *forwarded_for)
        place = self._clients.get(seen)
        if place is None:
            address = self.client_address(peer_ip, forwarded_for)
            place = NOWHERE if address is None else self.locate(address)
            if sum(map(len, forwarded_for)) <= LONGEST_CACHED_CHAIN_BYTES:
                _remember(self._clients, seen, place)
        return place

    def client_address(self, peer_ip: str, forwarded_for: Sequence[bytes]) -> IpAddress | None:
        """The last address that a proxy of ours vouches for; None where the chain has something that is no address.

        The chain is read from the right, for only what our own proxies appended is true: the first address that is not
        a trusted proxy's is the client's, whatever it claims further left.
        """
        if not forwarded_for or not self.trusts(peer_ip):
            return parse_address(peer_ip)
        if sum(map(len, forwarded_for)) > LONGEST_CHAIN_BYTES:
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
        if self._database is None:
            return NOWHERE
        prefix = int(address) >> (address.max_prefixlen - CACHED_PREFIX[address.version])
        key = prefix if address.version == 4 else ~prefix
        place = self._places.get(key) or self._places.get(address)
        return place if place is not None else self._look_up(self._database, address, key)

    def _look_up(self, database: GeoDatabase, address: IpAddress, key: int) -> Location:
        try:
            place, network = database.find(address)
        except DamagedThere as error:
            if not self._broken:
                log.error("GeoIP database is damaged in places; clients there are nowhere", error=str(error))
            self._broken = True
            return NOWHERE
        whole = network is not None and network.prefixlen <= CACHED_PREFIX[address.version]
        _remember(self._places, key if whole else address, place)
        return place


def _remember(cache: dict[K, V], key: K, value: V) -> None:
    if len(cache) >= MOST_CACHED:
        del cache[next(iter(cache))]
    cache[key] = value
