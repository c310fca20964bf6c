"""Attacks on the names that an agent answers through a real PowerDNS, by strangers and by a process at its socket.

They run where PowerDNS is installed, or unpacked into the folder that `DEBIAN_PACKAGES` names.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import dns.asyncquery
import dns.edns
import dns.exception
import dns.message
import dns.opcode
import dns.rcode
import dns.rdatatype
import dns.xfr
import dns.zone

from adapters.servers.free_ports import LOOPBACK
from tests.attacks.fleet import DNS_AGENT, DNS_NAME, DNS_ZONE, EU_ENTRIES, Fleet, within
from tests.attacks.suite import attack, expect
from tests.support.powerdns import PowerDns, power_dns
from tests.support.wait import PATIENCE_S

SUBNETS = ("", "198.18.0.0/24", "0.0.0.0/0", "255.255.255.255/32", "::/0", "2001:db8::/1", "127.0.0.1/32")
FLOODED_LINES = 2_000


@asynccontextmanager
async def name_server(fleet: Fleet) -> AsyncIterator[PowerDns]:
    """A PowerDNS that asks an agent of the fleet, without a cache."""
    async with power_dns(fleet.dns_socket, fleet.directory / "pdns", cache_ttl="0") as pdns:
        expect(await within(PATIENCE_S, lambda: _is_answered(pdns)), "the name is not answered before the attack")
        yield pdns


async def _is_answered(pdns: PowerDns, subnet: str = "") -> bool:
    with suppress(dns.exception.Timeout):
        found = await pdns.addresses(DNS_NAME, subnet=subnet)
        forbidden = set(found) - EU_ENTRIES - {"SERVFAIL"}
        expect(not forbidden, f"a name of the EU resolves to {', '.join(forbidden)}")
        return set(found) <= EU_ENTRIES
    return False


def _bogus_packets() -> list[bytes]:
    """Packets that are cut, too large, or have a client subnet that is none."""
    whole = dns.message.make_query(DNS_NAME, "A", use_edns=0).to_wire()
    packets = [whole[:length] for length in range(len(whole))] + [whole + b"x" * 60_000, b"\xff" * 600]
    # A name that points at itself, and counts of records that the packet lacks.
    packets += [whole[:12] + b"\xc0\x0c\x00\x01\x00\x01", whole[:4] + b"\xff" * 8 + whole[12:]]
    for option in (
        b"\x00\x01\xff\x00" + b"\xff" * 4,
        b"\x00\x09\x18\x00abc",
        b"\x00\x01\x20\x20" + b"\x01" * 40,
        b"\x00",
    ):
        query = dns.message.make_query(DNS_NAME, "A")
        query.use_edns(0, options=[dns.edns.GenericOption(dns.edns.OptionType.ECS, option)])
        packets.append(query.to_wire())
    return packets


@attack("48.1")
async def malformed_dns_packets(fleet: Fleet) -> None:
    """A stranger sends cut and oversized packets, over UDP and TCP, and client subnets that are none or forged.

    A name of the EU is answered, and with regions of the EU only.
    """
    packets = _bogus_packets()
    async with name_server(fleet) as pdns:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for packet in packets * 10:
                sender.sendto(packet[:65_000], (LOOPBACK, pdns.port))
        for packet in packets:
            with suppress(OSError):
                _, writer = await asyncio.open_connection(LOOPBACK, pdns.port)
                writer.write((len(packet) & 0xFFFF).to_bytes(2, "big") + packet)
                writer.close()
        for subnet in SUBNETS:
            expect(
                await within(PATIENCE_S, lambda subnet=subnet: _is_answered(pdns, subnet)), f"no answer for {subnet!r}"
            )


@attack("48.2")
async def zone_transfers_and_updates(fleet: Fleet) -> None:
    """A stranger asks for transfers of the zone, and sends updates and notifications.

    They are refused, and a name that is not the policy's does not exist.
    """
    async with name_server(fleet) as pdns:
        for kind in (dns.rdatatype.AXFR, dns.rdatatype.IXFR):
            query, _ = dns.xfr.make_query(dns.zone.Zone(DNS_ZONE), serial=None if kind == dns.rdatatype.AXFR else 1)
            zone = dns.zone.Zone(DNS_ZONE)
            with suppress(dns.xfr.TransferError, dns.exception.DNSException, EOFError, OSError):
                await dns.asyncquery.inbound_xfr(LOOPBACK, zone, query, port=pdns.port, timeout=5)
            expect(not zone.nodes, "the zone was transferred")
        for opcode in ("UPDATE", "NOTIFY"):
            text = f"id 1\nopcode {opcode}\n;{'ZONE' if opcode == 'UPDATE' else 'QUESTION'}\n{DNS_ZONE}. IN SOA\n"
            response = await dns.asyncquery.udp(dns.message.from_text(text), LOOPBACK, timeout=5, port=pdns.port)
            expect(response.rcode() != dns.rcode.NOERROR, f"{opcode} was accepted")
        found = await pdns.addresses(f"secret.{DNS_ZONE}")
        expect(found == ["NXDOMAIN"], f"a name without an entry has the answer {found}")
        expect(await _is_answered(pdns), "the name is not answered any more")


@attack("48.3")
async def backend_socket_that_vanishes(fleet: Fleet) -> None:
    """The agent stops while PowerDNS asks it, and starts again.

    Meanwhile the answer is SERVFAIL and never a forbidden region; then the name is answered again.
    """
    agent = fleet.agents[DNS_AGENT]
    async with name_server(fleet) as pdns:
        await asyncio.to_thread(agent.stop)
        expect(not await _is_answered(pdns), "a name is answered without the agent")
        agent.start()
        await asyncio.to_thread(agent.wait_ready, PATIENCE_S)
        expect(await within(PATIENCE_S, lambda: _is_answered(pdns)), "the name is not answered again")


@attack("48.4")
async def strangers_at_the_backend_socket(fleet: Fleet) -> None:
    """A process that may open the socket of PowerDNS fills it with connections, cut lines and lines that never end.

    Its connections are closed, names are answered, and nothing is changed.
    """
    path = str(fleet.dns_socket)
    lines = [b"{", b"[]\n", b"\x00\xff\n", b"x" * 100_000]
    for method in (
        "list",
        "startTransaction",
        "feedRecord",
        "setDomainMetadata",
        "getDomainKeys",
        "superMasterBackend",
    ):
        lines.append(
            json.dumps({"method": method, "parameters": {"qname": DNS_NAME, "zonename": DNS_ZONE}}).encode() + b"\n"
        )
    async with name_server(fleet) as pdns:
        held = []
        for number in range(100):
            with suppress(OSError):
                _, writer = await asyncio.open_unix_connection(path)
                writer.write(lines[number % len(lines)] * (1 if number % 2 else FLOODED_LINES // 100))
                held.append(writer)
        expect(await within(PATIENCE_S, lambda: _is_answered(pdns)), "the name is not answered during the attack")
        for writer in held:
            writer.close()
        for line in lines[4:]:
            answer = await _answer_at_socket(path, line)
            expect(answer.get("result") is False, f"{line!r} was answered with {answer}")
        expect(await _is_answered(pdns), "the name is not answered after the attack")


async def _answer_at_socket(path: str, line: bytes) -> dict[str, object]:
    """Return the backend's answer to a line, as soon as the backend has noticed that the flood's connections closed."""
    found: dict[str, object] = {}

    async def is_answered() -> bool:
        with suppress(OSError):
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(line)
            found.update(json.loads(await reader.readline() or b"{}"))
            writer.close()
        return bool(found)

    await within(PATIENCE_S, is_answered)
    return found
