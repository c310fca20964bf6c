"""Addresses that no server has are recognised in every form in which they reach a socket."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.reserved_addresses import is_reserved, without_reserved

RESERVED_V4 = (
    *("255.255.255.255", "240.0.0.1", "224.0.0.1", "239.255.255.255", "169.254.0.1"),
    *("169.254.169.254", "169.254.170.2", "168.63.129.16", "100.100.100.200", "192.0.0.192"),
)
ORDINARY_V4 = ("10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1", "198.18.0.1", "203.0.113.7", "127.0.0.1")
ORDINARY_V6 = ("::1", "fd00::1", "2001:db8::1", "2a00:1450::1", "fd00:ec3::254")


def embeddings(address: str) -> list[IPv6Address]:
    """IPv6 addresses that embed an IPv4 address."""
    number = int(IPv4Address(address))
    high, low = number >> 16, number & 0xFFFF
    return [
        IPv6Address(f"::ffff:{address}"),
        IPv6Address(f"::ffff:0:{address}"),
        IPv6Address(f"64:ff9b::{address}"),
        IPv6Address(f"64:ff9b:1::{address}"),
        IPv6Address(f"64:ff9b:1:{high:x}:{low >> 8:x}:{(low & 0xFF) << 8:x}::"),
        IPv6Address(f"64:ff9b:1:7:{number >> 24:x}:{number >> 8 & 0xFFFF:x}:{(number & 0xFF) << 8:x}:0"),
        IPv6Address(f"2002:{high:x}:{low:x}::1"),
        IPv6Address(f"2001:0:{high:x}:{low:x}:0:0:f5ff:fff8"),
        IPv6Address(f"2001:0:a00:1:0:0:{high ^ 0xFFFF:x}:{low ^ 0xFFFF:x}"),
        IPv6Address(f"2001:db8::5efe:{address}"),
        IPv6Address(f"2001:db8::200:5efe:{address}"),
    ]


@pytest.mark.parametrize("address", RESERVED_V4)
def test_reserved_ipv4_addresses_are_recognised_in_ipv6_too(address: str) -> None:
    assert is_reserved(address)
    for embedded in embeddings(address):
        assert is_reserved(str(embedded)), embedded
        assert is_reserved(embedded.exploded)
        assert is_reserved(f"{embedded}%eth0")


@pytest.mark.parametrize("address", ["0.0.0.0", "0.1.2.3", "::ffff:0.0.0.0", "64:ff9b::", "2002::1"])
def test_addresses_of_this_host_are_recognised(address: str) -> None:
    assert is_reserved(address)


@pytest.mark.parametrize("address", ["169.254.169.254", "168.63.129.16", "255.255.255.255"])
def test_ipv4_compatible_addresses_are_recognised(address: str) -> None:
    assert is_reserved(f"::{address}")


@pytest.mark.parametrize(
    "address",
    [
        *("::", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1", "ff0e::1", "100::1", "::2"),
        *("fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254", "fd00:42::42", "fd00:a9fe:a9fe::1", "fd00:c1::a9fe:a9fe"),
    ],
)
def test_reserved_ipv6_addresses_are_recognised(address: str) -> None:
    assert is_reserved(address)


@pytest.mark.parametrize("address", [*ORDINARY_V4, *ORDINARY_V6])
def test_addresses_of_servers_are_not_reserved(address: str) -> None:
    assert not is_reserved(address)


@pytest.mark.parametrize("address", ORDINARY_V4)
def test_an_embedded_address_of_a_server_is_not_reserved(address: str) -> None:
    assert [str(embedded) for embedded in embeddings(address) if is_reserved(str(embedded))] == []


@given(st.integers(0, 2**32 - 1))
def test_an_ipv4_address_and_its_mapped_form_agree(number: int) -> None:
    address = IPv4Address(number)
    assert is_reserved(str(address)) == is_reserved(f"::ffff:{address}")


@pytest.mark.parametrize(
    "notation",
    ["2852039166", "0xa9fea9fe", "0XA9FEA9FE", "169.254.43518", "0251.0376.0251.0376", "169.254.169.254.", "0"],
)
def test_other_notations_of_ipv4_addresses_are_reserved(notation: str) -> None:
    """Resolvers accept them (inet_aton(3)), and no server needs them."""
    assert is_reserved(notation)


def test_a_name_is_no_reserved_address() -> None:
    assert not is_reserved("metadata.google.internal")
    assert not is_reserved("")


def test_reserved_addresses_of_a_name_are_left_out() -> None:
    assert without_reserved("a", ["168.63.129.16", "10.0.0.1"]) == ["10.0.0.1"]
    assert without_reserved("a", []) == []
    with pytest.raises(OSError, match="metadata"):
        without_reserved("a", ["64:ff9b::a9fe:a9fe"])
