"""Reads any bytes as a request of PowerDNS.

Property: a request is answered by one line of JSON or refused; a governed name has no record of a forbidden region.
"""

from __future__ import annotations

import msgspec

from penstock.dns.remote_backend import BadMessage, read_message
from tests.support.dns_names import ADDRESSES, NameServer, dns_policy

WORDS = (
    b'{"method":"lookup","parameters":{"qname":"eu.api.example.com.","qtype":"ANY","zone-id":-1}}',
    b'"real-remote":"203.0.113.0/24","remote":"192.0.2.1"',
    b'"real-remote":"2001:db8::/56"',
    b'"getAllDomains"',
    b'"getDomainInfo"',
    b'"api.example.com."',
)

_SERVER = NameServer(dns_policy())


def check(data: bytes) -> None:
    """Raises AssertionError if the property does not hold."""
    try:
        message = read_message(data)
    except BadMessage:
        return
    line = _SERVER.resolver.answer(message)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    found = msgspec.json.decode(line).get("result")
    if message.method == "lookup" and isinstance(found, list):
        governed = [record for record in found if record["qname"] == "eu.api.example.com."]
        assert all(record["content"] != ADDRESSES["us-east"] for record in governed)
