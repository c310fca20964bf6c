"""A real PowerDNS with the shipped configuration on a free port of loopback, and queries by dnspython and dig."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import dns.asyncquery
import dns.edns
import dns.exception
import dns.message
import dns.rcode
import pytest

from adapters.servers.free_ports import LOOPBACK, free_ports
from lab import debian_packages
from lab.front_door.name_servers import power_dns as power_dns_process
from tests.support.wait import until_async

PROBES = "127.0.0.2"
"""Address of queries that wait for a server."""

QUERY_TIMEOUT_S = 5.0

TRIES = 3
"""Tries of a query over UDP, as resolvers have them: the kernel drops datagrams that a busy server does not read."""

needs_powerdns = pytest.mark.skipif(
    debian_packages.program("pdns_server") is None,
    reason="there is no pdns_server: run `make test-dns`, or install Debian's pdns-server and pdns-backend-remote",
)


needs_dig = pytest.mark.skipif(
    debian_packages.program("dig") is None, reason="there is no dig: run `make test-dns`, or install bind9-dnsutils"
)


class PowerDns:
    """A running server."""

    def __init__(self, port: int, pid: int) -> None:
        self.port = port
        self.pid = pid

    async def ask(
        self, name: str, kind: str = "A", subnet: str = "", *, tcp: bool = False, of_class: str = "IN"
    ) -> dns.message.Message:
        """Return the response to a query; with a client subnet (RFC 7871) if one is given."""
        query = dns.message.make_query(name, kind, of_class)
        if subnet:
            address, _, bits = subnet.partition("/")
            query.use_edns(0, options=[dns.edns.ECSOption(address, int(bits))])
        send = dns.asyncquery.tcp if tcp else dns.asyncquery.udp
        for _ in range(TRIES - 1):
            with suppress(dns.exception.Timeout):
                return await send(query, LOOPBACK, timeout=QUERY_TIMEOUT_S, port=self.port)
        return await send(query, LOOPBACK, timeout=QUERY_TIMEOUT_S, port=self.port)

    async def dig(self, *arguments: str) -> str:
        """Return what `dig` prints for a query, with an answer or without one."""
        at = ("@" + LOOPBACK, "-p", str(self.port), f"+time={QUERY_TIMEOUT_S:g}", f"+tries={TRIES}")
        process = await asyncio.create_subprocess_exec(
            debian_packages.program("dig") or "dig", *at, *arguments,
            env=debian_packages.environment(), stdin=DEVNULL, stdout=PIPE, stderr=STDOUT,
        )  # fmt: skip
        printed, _ = await process.communicate()
        return printed.decode()

    async def addresses(self, name: str, kind: str = "A", subnet: str = "") -> list[str]:
        """Return the contents of the answer, sorted; the name of the response code without an answer."""
        response = await self.ask(name, kind, subnet)
        if response.rcode() != dns.rcode.NOERROR:
            return [dns.rcode.to_text(response.rcode())]
        return sorted(item.to_text() for answer in response.answer for item in answer)


@asynccontextmanager
async def power_dns(socket_path: Path, directory: Path, **changes: str) -> AsyncIterator[PowerDns]:
    """A PowerDNS that asks the agent at `socket_path`.

    Args:
        directory: for its own files.
        changes: settings in place of those of the shipped configuration, with _ for -.
    """
    (port,) = free_ports(1)
    settings = {name.replace("_", "-"): value for name, value in changes.items()}
    server = power_dns_process(socket_path, directory, LOOPBACK, port, settings)
    server.start()
    running = PowerDns(port, server.pid)
    try:
        await until_async(lambda: is_answering(port, "penstock.invalid", "A"))
        yield running
    finally:
        server.stop()


async def is_answering(port: int, name: str, kind: str) -> bool:
    """Whether a DNS server answers a query at a port of LOOPBACK, which it may not have bound yet."""
    try:
        # From another address: the kernel may give a socket at LOOPBACK the server's port, and with it its own query.
        await dns.asyncquery.udp(dns.message.make_query(name, kind), LOOPBACK, timeout=0.3, port=port, source=PROBES)
    except (dns.exception.Timeout, OSError):
        return False
    return True
