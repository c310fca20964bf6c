"""A DNS server on loopback, over UDP and TCP, with records that a test sets."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Self, cast

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset
from dns.asyncresolver import Resolver

MAX_UDP_BYTES = 512
"""Maximum size of a response over UDP; longer responses are truncated, as by a server without EDNS."""


class DnsServer:
    """Serves `records` until stopped; a restart uses the same port."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], list[str]] = {}
        """Texts by name and type. A missing type of an existing name has a response without records."""
        self.ttl_s = 0
        self.rcode: dns.rcode.Rcode | None = None
        """Response code that replaces all responses."""
        self.failing: set[str] = set()
        """Names whose queries are answered with SERVFAIL."""
        self.silent = False
        """Whether queries over UDP are not answered."""
        self.queries: list[tuple[str, str, bool]] = []
        """Received queries: name, type, and whether over TCP."""
        self.port = 0
        self._tcp: asyncio.Server | None = None
        self._udp: asyncio.DatagramTransport | None = None

    def resolver(self) -> Resolver:
        """A resolver that queries only this server."""
        resolver = Resolver(configure=False)
        resolver.nameservers, resolver.port = ["127.0.0.1"], self.port
        return resolver

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(20):
            self._tcp = await asyncio.start_server(self._serve_tcp, "127.0.0.1", self.port)
            port = self._tcp.sockets[0].getsockname()[1]
            with suppress(OSError):  # another process may have the UDP port of this number
                self._udp, _ = await loop.create_datagram_endpoint(
                    lambda: _UdpAnswers(self), local_addr=("127.0.0.1", port)
                )
                self.port = port
                return
            self._tcp.close()
        raise OSError("no port that is free for both UDP and TCP")

    async def stop(self) -> None:
        if self._udp is not None:
            self._udp.close()
        if self._tcp is not None:
            self._tcp.close()
            await self._tcp.wait_closed()

    def answer(self, wire: bytes, *, tcp: bool) -> bytes:
        query = dns.message.from_wire(wire)
        question = query.question[0]
        name, kind = question.name.to_text().rstrip("."), dns.rdatatype.to_text(question.rdtype)
        self.queries.append((name, kind, tcp))
        response = dns.message.make_response(query)
        texts = self.records.get((name, kind), [])
        if self.rcode is not None:
            response.set_rcode(self.rcode)
        elif name in self.failing:
            response.set_rcode(dns.rcode.SERVFAIL)
        elif texts:
            response.answer.append(dns.rrset.from_text_list(question.name, self.ttl_s, "IN", kind, texts))
        elif not any(of == name for of, _ in self.records):
            response.set_rcode(dns.rcode.NXDOMAIN)
        content = response.to_wire()
        if not tcp and len(content) > MAX_UDP_BYTES:
            response.answer.clear()
            response.flags |= dns.flags.TC
            content = response.to_wire()
        return content

    async def _serve_tcp(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                length = int.from_bytes(await reader.readexactly(2), "big")
                content = self.answer(await reader.readexactly(length), tcp=True)
                writer.write(len(content).to_bytes(2, "big") + content)
                await writer.drain()
        writer.close()


class _UdpAnswers(asyncio.DatagramProtocol):
    def __init__(self, server: DnsServer) -> None:
        self._server = server
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, address: tuple[str, int]) -> None:
        assert self._transport is not None
        if not self._server.silent:
            self._transport.sendto(self._server.answer(data, tcp=False), address)
