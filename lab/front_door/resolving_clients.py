"""Clients that resolve a name by DNS, as a resolver near them does, and send chats to the address."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from random import Random

import dns.asyncquery
import dns.edns
import dns.exception
import dns.message
import dns.rcode
import httpx
import msgspec

from lab.front_door.entries import EU_NAME, OPEN_NAME
from lab.geoip import SITES
from lab.planet.topology import CHAT_8B

QUERY_TIMEOUT_S = 0.5
"""Time (s) until a resolver asks the next name server."""

REQUEST_TIMEOUT_S = 10.0
REQUESTS_PER_S = 3.0
"""Rate of one client."""

RETRY_AFTER_S = (0.5, 1.0)
"""Times (s) after which a client repeats a request without a response, as OpenAI's SDK does by default."""

NOT_CONNECTED = "not connected"
NO_RESPONSE = "no response"
CUT = "response cut"
"""Why a request failed: nothing was sent, nothing has arrived, or a part of the response has arrived."""

KEYS = {EU_NAME: "demo-eu-personal", OPEN_NAME: "demo-open"}


class Answered(msgspec.Struct):
    """One request of a client."""

    name: str
    begun_at: float
    ended_at: float
    address: str
    """The address that the name resolved to; empty for none."""
    region: str
    """The region that served; empty if the request failed."""
    problem: str
    """Why the request failed; empty if it did not."""
    is_saved: bool = False
    """Whether a repetition of the failed request was served."""


class NameServers:
    """The name servers of the zone, of which a resolver asks the next one if one does not answer."""

    def __init__(self, addresses: Sequence[str], port: int) -> None:
        self._addresses = addresses
        self._port = port

    async def ask(self, name: str, subnet: str, first: int = 0) -> tuple[list[str], int]:
        """Return the addresses of a name and their TTL (s); no addresses if no server has an answer.

        Args:
            subnet: address of the client, of which the resolver sends the /24.
            first: number of the server that is asked first.
        """
        query = dns.message.make_query(name, "A")
        query.use_edns(0, options=[dns.edns.ECSOption(subnet, 24)])
        for number in range(len(self._addresses)):
            server = self._addresses[(first + number) % len(self._addresses)]
            try:
                answer = await dns.asyncquery.udp(query, server, timeout=QUERY_TIMEOUT_S, port=self._port)
            except (dns.exception.DNSException, OSError):
                continue
            if answer.rcode() == dns.rcode.NOERROR and answer.answer:
                return [item.to_text() for item in answer.answer[0]], int(answer.answer[0].ttl)
        return [], 0


class Client:
    """One client, whose resolver caches answers for their TTL."""

    def __init__(self, number: int, servers: NameServers, port: int, rng: Random) -> None:
        """Create a client; `port` is that of all entries."""
        self._name = EU_NAME if number % 2 else OPEN_NAME
        sites = [site for site in SITES if site.country in ("DE", "ES", "FR", "NL")] if number % 2 else list(SITES)
        self._address = rng.choice(sites).address(rng)
        self._number = number
        self._servers = servers
        self._port = port
        self._rng = rng
        self._cached: list[str] = []
        self._cached_until = 0.0

    async def run(self, until: float, found: list[Answered]) -> None:
        """Send requests until a monotonic time (s)."""
        async with httpx.AsyncClient(timeout=REQUEST_TIMEOUT_S, verify=False) as http:
            while time.monotonic() < until:
                found.append(await self._ask(http))
                await asyncio.sleep(self._rng.expovariate(REQUESTS_PER_S))

    async def _ask(self, http: httpx.AsyncClient) -> Answered:
        """Send a request, and repeat it as an SDK does; only the first try counts, but for `is_saved`."""
        first = await self._try(http)
        answered, tries = first, 0
        while answered.problem and answered.problem != CUT and tries < len(RETRY_AFTER_S):
            await asyncio.sleep(RETRY_AFTER_S[tries])
            answered, tries = await self._try(http), tries + 1
        first.is_saved = bool(first.problem) and not answered.problem
        return first

    async def _try(self, http: httpx.AsyncClient) -> Answered:
        begun_at = time.monotonic()
        if begun_at >= self._cached_until:
            self._cached, ttl_s = await self._servers.ask(self._name, self._address, self._number % 2)
            self._cached_until = time.monotonic() + ttl_s
        address = self._cached[0] if self._cached else ""
        region, problem = "", "" if address else "no address"
        if address:
            region, problem = await self._send(http, address)
        return Answered(self._name, begun_at, time.monotonic(), address, region, problem)

    async def _send(self, http: httpx.AsyncClient, address: str) -> tuple[str, str]:
        """Return the region that has served a request, and the problem; one of both is empty."""
        headers = {
            "host": self._name,
            "authorization": f"Bearer {KEYS[self._name]}",
            "x-forwarded-for": self._address,
        }
        chat = {"model": CHAT_8B, "max_tokens": 4, "messages": [{"role": "user", "content": "hello"}]}
        url = f"http://{address}:{self._port}/v1/chat/completions"
        problem = NO_RESPONSE
        try:
            async with http.stream("POST", url, content=json.dumps(chat), headers=headers) as response:
                problem = CUT
                await response.aread()
            if response.status_code == 200:
                return response.headers.get("x-penstock-region", "?"), ""
            return "", f"status {response.status_code}"
        except (httpx.ConnectError, httpx.ConnectTimeout):
            return "", NOT_CONNECTED
        except httpx.HTTPError:
            return "", problem
