"""The records of zones and names, and the lines by which PowerDNS receives them."""

from __future__ import annotations

import json

import pytest

from penstock.dns.remote_backend import (
    MAX_LINE_BYTES,
    BadMessage,
    Message,
    Parameters,
    domain_info,
    read_message,
    records_line,
    result_line,
)
from penstock.dns.zone_records import Record, address_records, empty_names, last_resort_records, zone_of, zone_records
from penstock.policy.kinds.dns_names import DnsZone
from tests.support.dns_names import ZONE, a_name


def test_a_zone_has_its_authority_its_name_servers_and_the_addresses_of_those_in_it() -> None:
    assert zone_records(ZONE, ZONE.name) == [
        Record(
            "api.example.com",
            "SOA",
            "ns1.api.example.com. hostmaster.example.com. 1 3600 600 86400 30",
            3600,
        ),
        Record("api.example.com", "NS", "ns1.api.example.com.", 3600),
        Record("api.example.com", "NS", "ns.example.net.", 3600),
    ]
    assert zone_records(ZONE, "ns1.api.example.com") == [Record("ns1.api.example.com", "A", "192.0.2.53", 3600)]
    assert zone_records(ZONE, "other.api.example.com") == []


def test_addresses_of_both_families_and_the_last_resort() -> None:
    name = a_name("page", last_resort=("203.0.113.99", "2001:db8::9"))
    expected = [Record(name.name, "A", "203.0.113.99", 10), Record(name.name, "AAAA", "2001:db8::9", 10)]
    assert last_resort_records(name) == address_records(name.name, name.last_resort, 10) == expected
    assert last_resort_records(a_name("none")) == []


def test_the_innermost_zone_has_a_name() -> None:
    zones = {"example.com": ZONE, "api.example.com": ZONE}
    outer = dict.fromkeys(["example.com"], ZONE)
    for name in ("api.example.com", "a.b.api.example.com"):
        assert zone_of(zones, name) is ZONE
        assert zone_of(outer, name) is ZONE
    assert zone_of({}, "example.com") is None
    assert zone_of(outer, "notexample.com") is None
    assert zone_of(outer, "com") is None


def test_names_between_a_name_and_its_zone_exist() -> None:
    inner = DnsZone(f"inner.{ZONE.name}", {"a.ns.inner.api.example.com": ("192.0.2.1",)}, ZONE.contact)
    zones = {ZONE.name: ZONE, inner.name: inner}
    names = ["eu.api.example.com", "eu.v1.x.api.example.com", "b.c.inner.api.example.com", "x.elsewhere.example"]
    expected = {"v1.x", "x", "c.inner", "ns.inner"}
    assert empty_names(zones, names) == {f"{name}.api.example.com" for name in expected}


def test_lines_of_the_protocol() -> None:
    record = Record("a.example.com", "A", "192.0.2.1", 10)
    expected = {"qtype": "A", "qname": "a.example.com.", "content": "192.0.2.1", "ttl": 10}
    line = records_line([record], 0)
    assert line.endswith(b"\n")
    assert json.loads(line) == {"result": [expected]}
    assert json.loads(records_line([record], 24)) == {"result": [expected | {"scopeMask": 24}]}
    assert records_line([], 24) == b'{"result":false}\n'
    assert result_line([1]) == b'{"result":[1]}\n'
    assert domain_info("example.com") == {"id": -1, "zone": "example.com.", "kind": "NATIVE", "serial": 1}


def test_requests_of_powerdns() -> None:
    line = b'{"method":"lookup","parameters":{"qname":"a.","qtype":"A","real-remote":"192.0.2.0/24","local":"x"}}'
    assert read_message(line) == Message("lookup", Parameters("a.", "A", real_remote="192.0.2.0/24"))
    padded = line + b" " * (MAX_LINE_BYTES - len(line))
    assert read_message(padded) == read_message(line)
    with pytest.raises(BadMessage, match="a request has more than 4096 bytes"):
        read_message(padded + b" ")
    for bad in (b"", b"{}", b"[" * 4000, b'{"method":"\xff"}'):
        with pytest.raises(BadMessage):
            read_message(bad)
