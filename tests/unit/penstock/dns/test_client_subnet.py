"""Where a query comes from: a client subnet that states a place, else the resolver."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from penstock.dns.client_subnet import Subnet, is_same_place, subnet_of
from penstock.policy.geography import Location

RESOLVER = "203.0.113.9"


@pytest.mark.parametrize(
    ("real_remote", "network"),
    [
        ("198.51.100.0/24", "198.51.100.0/24"),
        ("198.51.100.77/24", "198.51.100.0/24"),
        ("198.51.0.0/16", "198.51.0.0/16"),
        ("2001:db8:1::/56", "2001:db8:1::/56"),
        ("2001:db8::/32", "2001:db8::/32"),
        # Of one client that is not the resolver.
        ("198.51.100.7/32", "198.51.100.7/32"),
        # A network of the resolver's address is that of a client.
        (f"{RESOLVER}/24", "203.0.113.0/24"),
    ],
)
def test_a_client_subnet_is_the_place(real_remote: str, network: str) -> None:
    assert subnet_of(RESOLVER, real_remote) == Subnet(ip_network(network), is_client=True)


@pytest.mark.parametrize(
    "real_remote",
    [RESOLVER, f"{RESOLVER}/32", "198.50.0.0/15", "0.0.0.0/0", "2001:da0::/31", "::/0", "", "no address", "1.2.3.4/33"],
)
def test_what_states_no_place_is_the_resolvers(real_remote: str) -> None:
    assert subnet_of(RESOLVER, real_remote) == Subnet(ip_network(RESOLVER), is_client=False)


def test_zones_of_addresses_are_left_out_and_a_resolver_that_cannot_be_read_is_no_place() -> None:
    assert subnet_of("fe80::1%eth0", "fe80::1%eth0") == Subnet(ip_network("fe80::1"), is_client=False)
    assert subnet_of("2001:db8::1%2", "") == Subnet(ip_network("2001:db8::1"), is_client=False)
    assert subnet_of("nobody", "") == Subnet(None, is_client=False)
    assert subnet_of("nobody", "198.51.100.0/24") == Subnet(ip_network("198.51.100.0/24"), is_client=True)


@pytest.mark.parametrize(
    ("last", "is_same"),
    [
        (Location("US", "CA", 34.0, -118.2), True),
        (Location("US", "NY", 37.8, -122.4), False),
        (Location("CA", "CA", 37.8, -122.4), False),
        (Location("US", None, 37.8, -122.4), False),
    ],
)
def test_a_place_is_a_country_and_a_subdivision(last: Location, is_same: bool) -> None:
    assert is_same_place(Location("US", "CA", 37.8, -122.4), last) is is_same
