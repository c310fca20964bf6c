"""A publisher of records: what it sends and reports, and what it does after a failure."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

import dns.message
import dns.tsig
import dns.tsigkeyring
import msgspec
import pytest

from adapters.files.secret_file import BadSecret
from adapters.servers.free_ports import LOOPBACK
from control_plane.dns.dynamic_update import DynamicUpdates, TsigKey, UpdateFailed, read_key
from control_plane.dns.publisher import READ_EVERY_S, RecordPublisher
from penstock.dns.record_sets import NameRecords, RecordSet

NAME = "eu.api.example.com"
KEYRING = dns.tsigkeyring.from_text({"penstock": "aGVsbG8="})


def name(*addresses: str, ttl_s: int = 10) -> NameRecords:
    sets = (RecordSet("A", addresses, ttl_s),) if addresses else ()
    return NameRecords(NAME, "api.example.com", ttl_s, {}, (), (), sets)


class Target:
    def __init__(self) -> None:
        self.records: dict[str, tuple[RecordSet, ...]] = {NAME: (RecordSet("A", ("192.0.2.1",), 10),)}
        self.sent: list[dict[str, tuple[RecordSet, ...]]] = []
        self.reads = 0
        self.fails = False

    def read(self, names: Iterable[str]) -> dict[str, tuple[RecordSet, ...]]:
        self.reads += 1
        return {each: self.records.get(each, ()) for each in names}

    def send(self, zone: str, changed: dict[str, tuple[RecordSet, ...]]) -> None:
        if self.fails:
            raise UpdateFailed("192.0.2.53: REFUSED")
        assert zone == "api.example.com"
        self.sent.append(changed)
        self.records |= changed


def test_what_the_server_has_is_not_sent_again() -> None:
    target = Target()
    publisher = RecordPublisher(target, 5.0, lambda line: None)
    assert publisher.step([name("192.0.2.1")])
    assert target.sent == []
    assert publisher.step([name("192.0.2.2")])
    assert target.sent == [{NAME: (RecordSet("A", ("192.0.2.2",), 10),)}]


def test_another_time_in_caches_is_a_change() -> None:
    target = Target()
    publisher = RecordPublisher(target, 0.0, lambda line: None)
    assert publisher.step([name("192.0.2.1", ttl_s=60)])
    assert publisher.step([name("192.0.2.1", ttl_s=5)])
    assert [sent[NAME][0].ttl_s for sent in target.sent] == [60, 5]


def test_a_name_without_a_live_region_is_reported_once() -> None:
    target, lines = Target(), list[str]()
    publisher = RecordPublisher(target, 0.0, lines.append)
    assert not publisher.step([name()])
    assert not publisher.step([name()])
    assert lines == [f"{NAME}: no permitted region is live; its records stay"]
    assert publisher.step([name("192.0.2.1")])
    publisher.step([name()])
    assert len(lines) == 2, "another time"
    assert target.sent == []


def test_after_a_failure_the_server_is_read_again() -> None:
    target, lines = Target(), list[str]()
    publisher = RecordPublisher(target, 60.0, lines.append)
    target.fails = True
    assert not publisher.step([name("192.0.2.2")])
    assert not publisher.step([name("192.0.2.2")])
    assert lines == ["not updated: 192.0.2.53: REFUSED"]
    target.fails = False
    assert publisher.step([name("192.0.2.2")])
    assert (target.reads, len(target.sent)) == (3, 1)


def test_records_that_the_server_lost_are_sent_again() -> None:
    target, now = Target(), [100.0]
    publisher = RecordPublisher(target, 5.0, lambda line: None, lambda: now[0])
    assert publisher.step([name("192.0.2.2")])
    target.records.clear()
    now[0] += READ_EVERY_S
    assert publisher.step([name("192.0.2.2")])
    assert target.records == {NAME: (RecordSet("A", ("192.0.2.2",), 10),)}


class AcceptedUpdates(socketserver.StreamRequestHandler):
    """A DNS server that accepts every update."""

    added: ClassVar[list[str]] = []
    messages: ClassVar[list[int]] = []

    def handle(self) -> None:
        wire = self.rfile.read(int.from_bytes(self.rfile.read(2), "big"))
        message = dns.message.from_wire(wire, keyring=KEYRING)
        self.messages.append(len(wire))
        self.added += [str(rrset.name) for rrset in message.sections[2] if rrset.deleting is None]
        response = dns.message.make_response(message).to_wire()
        self.wfile.write(len(response).to_bytes(2, "big") + response)


class UnsignedUpdates(socketserver.StreamRequestHandler):
    """Anyone who answers in place of the DNS server, without its key."""

    def handle(self) -> None:
        wire = self.rfile.read(int.from_bytes(self.rfile.read(2), "big"))
        response = dns.message.make_response(dns.message.from_wire(wire, keyring=KEYRING))
        response.tsig = None
        content = response.to_wire()
        self.wfile.write(len(content).to_bytes(2, "big") + content)


def test_the_server_may_have_a_host_name() -> None:
    """Of which no address, or only the second, may answer."""

    class Accepts(AcceptedUpdates):
        added: ClassVar[list[str]] = []
        messages: ClassVar[list[int]] = []

    with socketserver.TCPServer((LOOPBACK, 0), Accepts) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        key = TsigKey(KEYRING, dns.tsig.HMAC_SHA256)
        target = DynamicUpdates("localhost", server.server_address[1], key)
        target.send("api.example.com", {NAME: name("192.0.2.1").record_sets})
        assert Accepts.added == [f"{NAME}."]
        server.shutdown()
        for unknown in ("a..b", "x" * 64):
            with pytest.raises(UpdateFailed, match=unknown):
                DynamicUpdates(unknown, 53, key).send("api.example.com", {NAME: name("192.0.2.1").record_sets})


def test_a_response_without_a_signature_accepts_nothing() -> None:
    with socketserver.TCPServer((LOOPBACK, 0), UnsignedUpdates) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        target = DynamicUpdates(LOOPBACK, server.server_address[1], TsigKey(KEYRING, dns.tsig.HMAC_SHA256))
        with pytest.raises(UpdateFailed, match="TSIG"):
            target.send("api.example.com", {NAME: name("192.0.2.1").record_sets})
        server.shutdown()


def test_more_names_than_one_message_holds_are_sent_in_several() -> None:
    changed = {f"t{number}.api.example.com": name("192.0.2.1").record_sets for number in range(1500)}
    with socketserver.TCPServer((LOOPBACK, 0), AcceptedUpdates) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        key = TsigKey(KEYRING, dns.tsig.HMAC_SHA256)
        DynamicUpdates(LOOPBACK, server.server_address[1], key).send("api.example.com", changed)
        server.shutdown()
    assert len(AcceptedUpdates.messages) > 1
    assert AcceptedUpdates.added == [f"{each}." for each in changed]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "has no TSIG key"),
        ('key "k" { algorithm hmac-sha256; secret "%%"; };', "has no TSIG key"),
        ('key "k" { algorithm hmac-sha256; secret "abc"; };', "is not base64"),
        ('key "k" { algorithm rot13; secret "aGVsbG8="; };', "is not known"),
    ],
)
def test_a_bad_key_file_is_an_error_without_the_secret(tmp_path: Path, content: str, problem: str) -> None:
    file = tmp_path / "key"
    file.write_text(content)
    file.chmod(0o600)
    with pytest.raises(BadSecret, match=problem) as refused:
        read_key(file)
    assert "aGVsbG8" not in str(refused.value)


def test_a_dry_run_reports_the_change_and_sends_nothing() -> None:
    target, lines = Target(), list[str]()
    publisher = RecordPublisher(target, 5.0, lines.append, is_dry_run=True)
    assert publisher.step([name("192.0.2.2")])
    assert (target.sent, lines) == ([], [f"{NAME}: would be 192.0.2.2"])


class TwoZones(Target):
    """The zone `broken` refuses updates, or queries too."""

    refuses_queries = False

    def read(self, names: Iterable[str]) -> dict[str, tuple[RecordSet, ...]]:
        if self.refuses_queries and any("broken" in each for each in names):
            raise UpdateFailed("192.0.2.53: eu.broken: SERVFAIL")
        return super().read(names)

    def send(self, zone: str, changed: dict[str, tuple[RecordSet, ...]]) -> None:
        if zone == "broken":
            raise UpdateFailed("192.0.2.53: zone broken: REFUSED")
        super().send(zone, changed)


@pytest.mark.parametrize("refuses_queries", [False, True])
def test_a_zone_that_refuses_updates_stops_no_other_zone_and_no_limit(refuses_queries: bool) -> None:
    target, now, lines = TwoZones(), [100.0], list[str]()
    target.refuses_queries = refuses_queries
    publisher = RecordPublisher(target, 5.0, lines.append, lambda: now[0])
    broken = msgspec.structs.replace(name("192.0.2.9"), name="eu.broken", zone="broken")
    assert not publisher.step([broken, name("192.0.2.2")])
    assert target.records[NAME][0].values == ("192.0.2.2",)
    assert not publisher.step([broken, name("192.0.2.3")])
    assert len(target.sent) == 1, "within the interval"
    now[0] = 106.0
    assert not publisher.step([broken, name("192.0.2.3")])
    assert target.records[NAME][0].values == ("192.0.2.3",)
    assert len([line for line in lines if "broken" in line]) >= 1
