"""Attacks by a client without any credential, which opens many connections to the leader.

An attack succeeds if an authenticated request to the leader fails, or an agent's report is lost, or another control
plane takes over.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from itertools import cycle
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from penstock.wire import identity
from tests.attacks.fleet import Fleet
from tests.attacks.suite import attack, expect
from tests.support.control_planes import OPERATOR

CONNECTIONS = 1_100
"""More than a listener admits of strangers."""

ATTACK_S = 12.0
REOPENED_AFTER_S = 1.0
"""Time (s) after which a connection that the server closed is opened again."""

TRICKLE_S = 1.0
"""Interval (s) of the bytes of a slow client."""

REQUEST_TIMEOUT_S = 5.0

HANDSHAKES = 4_000
"""More than the listener of an agent for other regions admits connections."""

MAX_GROWTH_KIB = 200 * 1024
"""Maximum growth (KiB) of an agent's memory by handshakes."""

Addresses = Callable[[int], str]


def one_address(number: int) -> str:
    """The address of every connection."""
    return "127.0.0.9"


def many_addresses(number: int) -> str:
    """An address for each connection."""
    return f"127.9.{number // 250}.{1 + number % 250}"


class SlowClient:
    """Keeps one connection open: sends some bytes at once, and one each second; reads nothing."""

    def __init__(self, url: str, source: str, first: bytes, further: bytes, tls: ssl.SSLContext | None = None) -> None:
        self._host, self._port = urlsplit(url).hostname or "", urlsplit(url).port or 0
        self._source = source
        self._first = first
        self._further = cycle(further) if further else None
        self._tls = tls

    async def run(self) -> None:
        """Open the connection, again and again, until cancelled."""
        while True:
            with suppress(OSError):
                await self._hold()
            await asyncio.sleep(REOPENED_AFTER_S)

    async def _hold(self) -> None:
        reader, writer = await asyncio.open_connection(
            self._host, self._port, local_addr=(self._source, 0), limit=1, ssl=self._tls
        )
        try:
            writer.write(self._first)
            while not reader.at_eof() and not writer.is_closing():
                await asyncio.sleep(TRICKLE_S)
                if self._further is not None:
                    writer.write(bytes([next(self._further)]))
        finally:
            writer.transport.abort()


@asynccontextmanager
async def slow_clients(
    url: str, first: bytes, further: bytes = b"", addresses: Addresses = one_address, count: int = CONNECTIONS
) -> AsyncIterator[None]:
    """Hold `count` connections that send `first`, then the bytes of `further` again and again."""
    clients = [SlowClient(url, addresses(number), first, further) for number in range(count)]
    tasks = [asyncio.create_task(client.run()) for client in clients]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def undelivered(fleet: Fleet) -> list[str]:
    """Return the log lines of agents that state the loss of a report."""
    logs = (process.log_path.read_text().splitlines() for process in fleet.agents.values())
    return [line for log in logs for line in log if "report not delivered" in line]


async def serves_others(fleet: Fleet, first: bytes, further: bytes = b"", addresses: Addresses = one_address) -> None:
    """Attack the leader; raises Broken if others notice."""
    leader = await fleet.leader()
    assert leader is not None
    lost_before, failed, asked = set(undelivered(fleet)), [], 0
    unkept = httpx.Limits(max_keepalive_connections=0)
    async with (
        slow_clients(leader.url, first, further, addresses),
        httpx.AsyncClient(timeout=REQUEST_TIMEOUT_S, limits=unkept) as http,
        asyncio.timeout(10 * ATTACK_S),
    ):
        until = asyncio.get_running_loop().time() + ATTACK_S
        while asyncio.get_running_loop().time() < until:
            asked += 1
            try:
                response = await http.get(f"{leader.url}/v1/whoami", headers=OPERATOR)
                if response.status_code != 200:
                    failed.append(str(response.status_code))
            except httpx.HTTPError as error:
                failed.append(type(error).__name__)
            await asyncio.sleep(0.05)
    lost = [line for line in undelivered(fleet) if line not in lost_before]
    expect(not failed, f"{len(failed)} of {asked} requests of an operator failed: {', '.join(sorted(set(failed)))}")
    expect(not lost, f"agents lost {len(lost)} reports, first: {lost[:1]}")
    expect(await fleet.leader() is leader, "the leader changed")


def memory_kib(pid: int) -> int:
    """Memory of a process (KiB) that is not swapped out."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])


def slow_post(path: str, headers: bytes = b"") -> bytes:
    return b"POST %b HTTP/1.1\r\nhost: x\r\n%bcontent-length: 100000\r\n\r\n" % (path.encode(), headers)


@attack("20.1")
async def slow_bodies_of_reports(fleet: Fleet) -> None:
    """One address opens 1,100 connections with slow bodies of reports.

    Requests of operators are answered, and no report is lost.
    """
    await serves_others(fleet, slow_post("/v1/reports", b"x-penstock-signature: 00\r\ncontent-digest: x\r\n"), b"x")


@attack("20.2")
async def slow_bodies_of_other_requests(fleet: Fleet) -> None:
    """The same with bodies of other requests: webhooks, which have no caller, and explanations."""
    await serves_others(fleet, slow_post("/v1/policies/webhook", b"x-hub-signature-256: sha256=00\r\n"), b"x")
    await serves_others(fleet, slow_post("/v1/explain", b"authorization: Bearer wrong\r\n"), b"x", many_addresses)


@attack("20.3")
async def slow_heads(fleet: Fleet) -> None:
    """The same with unfinished heads, from one address and from 1,100, and with connections that send nothing."""
    await serves_others(fleet, b"GET /livez HTTP/1.1\r\n", b"a: b\r\n")
    await serves_others(fleet, b"GET /livez HTTP/1.1\r\n", b"a: b\r\n", many_addresses)
    await serves_others(fleet, b"", b"", many_addresses)


@attack("20.4")
async def slow_readers(fleet: Fleet) -> None:
    """The same with pipelined requests whose responses are not read."""
    await serves_others(fleet, b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n" * 2_000, b"", many_addresses)


@attack("20.5")
async def half_open_handshakes(fleet: Fleet) -> None:
    """One address, then 4,000 addresses, hold TLS handshakes open at an agent's listener for other regions.

    Connections of agents that have connected before are accepted meanwhile: their handshakes have places of their own.
    The memory of the agent stays bounded.
    """
    url = await fleet.peer_url("eu-de/a")
    (await fleet.peers.get(url + identity.PATH, headers={"connection": "close"})).raise_for_status()
    begun_kib = memory_kib(fleet.agents["eu-de/a"].pid)
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100)
    for addresses in (one_address, many_addresses):
        async with slow_clients(url, hello, b"\x00", addresses, HANDSHAKES):
            until, failed = asyncio.get_running_loop().time() + ATTACK_S / 2, 0
            while asyncio.get_running_loop().time() < until:
                try:
                    response = await fleet.peers.get(url + identity.PATH, headers={"connection": "close"})
                except httpx.HTTPError as error:
                    # On a busy machine one handshake may exceed its time limit. Agents connect again.
                    failed += 1
                    expect(failed < 2, f"two requests of an agent in a row failed: {error!r}")
                    continue
                failed = 0
                expect(response.status_code == 200, f"an agent's request got {response.status_code}")
                await asyncio.sleep(0.05)
    grown_kib = memory_kib(fleet.agents["eu-de/a"].pid) - begun_kib
    expect(grown_kib < MAX_GROWTH_KIB, f"the agent uses {grown_kib // 1024} MiB more")


@attack("20.6")
async def pipelined_requests(fleet: Fleet) -> None:
    """A client sends 5,000 requests at once, and request lines with more than one space.

    Each request is answered, in order; each such line is refused with 400.
    """
    address = fleet.address("eu-de/a")
    request = b"GET /livez HTTP/1.1\r\nhost: a\r\n\r\n"
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(request * 5_000 + request.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
    answers = (await reader.read(-1)).count(b"HTTP/1.1 200 OK\r\n")
    writer.close()
    expect(answers == 5_001, f"{answers} of 5,001 requests were answered")
    for line in (request.replace(b"GET ", b"GET  "), request.replace(b" HTTP", b"  HTTP")):
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(request + line)
        answer = await reader.read(-1)
        writer.close()
        expect(answer.count(b"HTTP/1.1 400 ") == 1, f"a line with two spaces was accepted: {line!r}")
