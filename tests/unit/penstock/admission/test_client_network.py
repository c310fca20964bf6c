"""Client addresses are counted by network."""

from __future__ import annotations

from penstock.admission.client_network import client_network, client_prefix


def test_ipv6_addresses_are_counted_by_network() -> None:
    assert client_network("192.0.2.1") == client_network("::ffff:192.0.2.1") != client_network("::ffff:192.0.2.2")
    assert client_network("2001:db8:1:2::1") == client_network("2001:db8:1:2:ffff::")
    assert client_network("2001:db8:1:2::1") != client_network("2001:db8:1:3::1")
    assert client_network("fe80::1%eth0") == client_network("fe80::2")
    assert client_network("") == ""


def test_the_networks_around_addresses() -> None:
    assert client_prefix("192.0.2.1") == client_prefix("::ffff:192.0.2.9") != client_prefix("192.0.3.1")
    assert client_prefix("2001:db8:1:2::1") == client_prefix("2001:db8:1:3::1")
    assert client_prefix("2001:db8:2::1") != client_prefix("2001:db8:3::1")
    assert client_prefix("no address") == "no address"
    assert client_prefix("") == ""
