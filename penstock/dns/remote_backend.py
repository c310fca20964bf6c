"""The JSON protocol of PowerDNS's remote backend (https://doc.powerdns.com/authoritative/backends/remote.html).

One JSON object a line, each answered by one line. `false` states that the backend has nothing, such as no metadata of a
zone. An answer without `result` makes PowerDNS answer SERVFAIL. Records with a `scopeMask` are valid for the client
subnet of the query alone; PowerDNS then neither caches them nor gives them to others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from penstock.dns.zone_records import Record

MAX_LINE_BYTES = 4096
"""Maximum size (bytes) of a request; a name has at most 255 bytes, four times as many when escaped."""

FALSE = b'{"result":false}\n'
TRUE = b'{"result":true}\n'
SERVFAIL = b'{"log":["no region can be answered"]}\n'


class BadMessage(Exception):
    """A line is no request of the protocol; the message states why."""


class Parameters(msgspec.Struct, frozen=True, rename={"real_remote": "real-remote"}):
    """The parameters of the methods that are answered; others are ignored."""

    qname: str = ""
    qtype: str = ""
    name: str = ""
    kind: str = ""
    remote: str = ""
    """Address of the resolver that asks."""
    real_remote: str = ""
    """Client subnet of the query, such as `192.0.2.0/24`; without one, the address of the resolver."""


class Message(msgspec.Struct, frozen=True):
    """One request of PowerDNS."""

    method: str
    parameters: Parameters = Parameters()


_messages = msgspec.json.Decoder(Message)


def read_message(line: bytes | bytearray) -> Message:
    """Decode one line.

    Raises:
        BadMessage: the line is too long, or is not a request.
    """
    if len(line) > MAX_LINE_BYTES:
        raise BadMessage(f"a request has more than {MAX_LINE_BYTES} bytes")
    try:
        return _messages.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadMessage(str(error)) from None


def records_line(records: Iterable[Record], scope_bits: int) -> bytes:
    """Return the answer with some records; `false` without any.

    Args:
        scope_bits: length of the client subnet's prefix for which the records are valid; 0 for all clients.
    """
    found = [_encoded(record, scope_bits) for record in records]
    return msgspec.json.encode({"result": found}) + b"\n" if found else FALSE


def domain_info(zone: str) -> dict[str, Any]:
    """Return what PowerDNS asks about a zone: `native`, since it is not transferred."""
    return {"id": -1, "zone": f"{zone}.", "kind": "NATIVE", "serial": 1}


def result_line(result: Any) -> bytes:
    """Return the answer with a result of another method."""
    return msgspec.json.encode({"result": result}) + b"\n"


def _encoded(record: Record, scope_bits: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        "qtype": record.kind,
        "qname": f"{record.name}.",
        "content": record.content,
        "ttl": record.ttl_s,
    }
    if scope_bits:
        found["scopeMask"] = scope_bits
    return found
