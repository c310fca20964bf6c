"""Dynamic updates of a DNS server (RFC 2136), signed with TSIG (RFC 8945), as BIND, Knot and PowerDNS accept them."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import dns.exception
import dns.message
import dns.name
import dns.query
import dns.rcode
import dns.rdatatype
import dns.tsig
import dns.tsigkeyring
import dns.update

from adapters.files.secret_file import BadSecret, read_file
from penstock.dns.record_sets import NameRecords, RecordSet

KINDS = ("A", "AAAA", "CNAME")
"""Types of records that names of the policy have; an update replaces all of them."""

TIMEOUT_S = 5.0

_REMEDY = "write one with `tsig-keygen`, as BIND reads it"

_KEY = re.compile(
    r'key\s+"?(?P<name>[^"\s{]+)"?\s*\{\s*algorithm\s+"?(?P<algorithm>[\w.-]+)"?\s*;\s*secret\s+"?(?P<secret>[\w+/=]+)"?\s*;\s*\}\s*;?'
)


class UpdateFailed(Exception):
    """The server could not be reached, or refused the update; the message names the server and the reason."""


class TsigKey(NamedTuple):
    """A key that the DNS server and this process share."""

    keyring: dict[dns.name.Name, dns.tsig.Key]
    algorithm: dns.name.Name


def read_key(file: Path) -> TsigKey:
    """Read a key file in the format of BIND.

    Raises:
        BadSecret: the file is missing, accessible to all users, or has no key.
    """
    found = _KEY.search(read_file(file, "TSIG key", _REMEDY).decode("utf-8", "replace"))
    if found is None:
        raise BadSecret(f"{file}: has no TSIG key; {_REMEDY}")
    algorithm = dns.name.from_text(found["algorithm"])
    try:
        keyring = dns.tsigkeyring.from_text({found["name"]: (algorithm, found["secret"])})
    except (ValueError, dns.exception.DNSException):
        raise BadSecret(f"{file}: the secret of the TSIG key is not base64; {_REMEDY}") from None
    if algorithm not in dns.tsig.mac_sizes:
        raise BadSecret(f"{file}: the algorithm of the TSIG key is not known; {_REMEDY}")
    return TsigKey(keyring, algorithm)


class DynamicUpdates:
    """One DNS server that accepts updates of zones."""

    def __init__(self, address: str, port: int, key: TsigKey) -> None:
        """`address` is an IP address, or a host name that is looked up for each message."""
        self._address = address
        self._port = port
        self._key = key

    def read(self, names: Iterable[str]) -> dict[str, tuple[RecordSet, ...]]:
        """Return the records that the server has of some names; raises UpdateFailed."""
        found = {name: [self._record_set(name, kind) for kind in KINDS] for name in names}
        return {name: tuple(each for each in sets if each.values) for name, sets in found.items()}

    def send(self, zone: str, changed: Mapping[str, tuple[RecordSet, ...]]) -> None:
        """Replace the records of some names of one zone. The server applies each message whole or not at all.

        Several messages are sent if one would be larger than DNS permits (64 KiB).

        Raises:
            UpdateFailed: a message was refused, or its response was lost; none after it was sent.
        """
        update = self._update(zone, changed)
        try:
            update.to_wire()
        except dns.exception.TooBig:
            if len(changed) > 1:
                names = list(changed)
                for part in (names[: len(names) // 2], names[len(names) // 2 :]):
                    self.send(zone, {name: changed[name] for name in part})
                return
        response = self._ask(update)
        if response.rcode() != dns.rcode.NOERROR:
            raise UpdateFailed(f"{self._address}: zone {zone}: {dns.rcode.to_text(response.rcode())}")

    def _update(self, zone: str, changed: Mapping[str, tuple[RecordSet, ...]]) -> dns.update.UpdateMessage:
        update = dns.update.UpdateMessage(zone, keyring=self._key.keyring, keyalgorithm=self._key.algorithm)
        for name, record_sets in changed.items():
            if not record_sets:
                raise ValueError(f"{name} would become empty")
            owner = dns.name.from_text(name)
            for kind in KINDS:
                update.delete(owner, kind)
            for record_set in record_sets:
                for value in record_set.values:
                    update.add(owner, record_set.ttl_s, record_set.kind, value)
        return update

    def _record_set(self, name: str, kind: str) -> RecordSet:
        response = self._ask(dns.message.make_query(name, kind))
        if response.rcode() not in (dns.rcode.NOERROR, dns.rcode.NXDOMAIN):
            raise UpdateFailed(f"{self._address}: {name}: {dns.rcode.to_text(response.rcode())}")
        owner, rdtype = dns.name.from_text(name), dns.rdatatype.from_text(kind)
        answer = response.get_rrset(response.answer, owner, dns.rdataclass.IN, rdtype)
        return RecordSet(kind, tuple(sorted(item.to_text() for item in answer or ())), answer.ttl if answer else 0)

    def _ask(self, message: dns.message.Message) -> dns.message.Message:
        try:
            with socket.create_connection((self._address, self._port), TIMEOUT_S) as connected:
                connected.setblocking(False)
                return dns.query.tcp(message, self._address, TIMEOUT_S, sock=connected)
        except (OSError, EOFError, UnicodeError, dns.exception.DNSException) as error:
            raise UpdateFailed(f"{self._address}: {error or type(error).__name__}") from None


def zones_of(names: Iterable[NameRecords]) -> dict[str, list[str]]:
    """Return the names by zone."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(name.zone, []).append(name.name)
    return found
