"""Forwarding of API requests to the leader: with the caller's own credential, over one hop, within a bounded time.

Agents report to the leader, so requests that need reports are answered by the leader, whichever control plane receives
them (ADR 9).
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping

import httpx
import msgspec
import structlog

from adapters.store.members import Member
from control_plane.cli.api_client import may_follow
from penstock.wire.signing import BadSignature, FleetKey, Purpose

HOP_HEADER = "x-penstock-hop"

CONNECT_S = 1.0
"""Timeout (s) for the leader to accept a connection, and for a free connection while `MAX_AT_ONCE` are in use."""

MAX_AT_ONCE = 64
"""Concurrent requests to the leader."""

MAX_ANSWER_BYTES = 32 * 1024 * 1024
"""The status of a thousand regions has some MiB; a larger response is treated as a failure."""

HOP_LIVES_S = 60.0
"""A hop older than this (s) is rejected; the bound allows for clock skew between control planes."""

_log = structlog.get_logger(__name__)


class Hop(msgspec.Struct, frozen=True):
    """Signed metadata of a request that one control plane forwards to another."""

    by: str
    """Name of the forwarding control plane."""
    client: str
    """Address of the client; failed logins count against it."""
    at: float
    """Unix time (s)."""


class LeaderResponse(msgspec.Struct, frozen=True):
    """The leader's response."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class LeaderUnavailable(Exception):
    """The leader did not respond; the message states whether the request may have been executed."""


class LeaderClient:
    """Forwards requests to the leader.

    Args:
        member: this control plane.
        key: the fleet's secret.
        trust: certificate authorities to trust; None: the system's.
        clock: Unix time, in seconds.
    """

    def __init__(
        self,
        member: Member,
        key: FleetKey,
        *,
        trust: ssl.SSLContext | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._member = member
        self._key = key
        self._clock = clock
        self._heard = True
        self._http = httpx.AsyncClient(
            verify=trust if trust is not None else ssl.create_default_context(),
            # Control planes connect to one another directly; proxy variables of the environment do not apply.
            trust_env=False,
            timeout=httpx.Timeout(None, connect=CONNECT_S, pool=CONNECT_S),
            limits=httpx.Limits(max_connections=MAX_AT_ONCE, max_keepalive_connections=MAX_AT_ONCE),
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def ask(
        self,
        leader: Member,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes = b"",
        *,
        client: str,
        within_s: float,
    ) -> LeaderResponse:
        """Forward a client's request to the leader and return the response.

        Args:
            target: path and query.
            headers: as the client sent them, its credential included.
            client: address of the client.
            within_s: timeout of the whole exchange, in seconds.

        Raises:
            LeaderUnavailable: there is no response.
        """
        if not may_follow(self._member.url, leader.url):
            raise LeaderUnavailable("its address is plain http, where a credential that came over TLS is not sent")
        hop = Hop(self._member.name, client, self._clock())
        sent = {**headers, HOP_HEADER: self._key.seal(Purpose.HOP, msgspec.json.encode(hop))}
        try:
            async with asyncio.timeout(within_s):
                reply = await self._exchange(method, leader.url + target, sent, body)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            why = str(error) or type(error).__name__
            raise self._away(leader, f"it cannot be reached ({why}), so nothing was done") from None
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
            undone = "" if method == "GET" else "; whether it did what was asked is unknown: look before you try again"
            raise self._away(leader, f"it did not answer in time or in full ({type(error).__name__}){undone}") from None
        self._heard = True
        return reply

    async def _exchange(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> LeaderResponse:
        answer = bytearray()
        async with self._http.stream(method, url, headers=dict(headers), content=body) as response:
            async for chunk in response.aiter_bytes():
                answer += chunk
                if len(answer) > MAX_ANSWER_BYTES:
                    raise httpx.ReadError(f"more than {MAX_ANSWER_BYTES} bytes")
            return LeaderResponse(response.status_code, dict(response.headers), bytes(answer))

    def opened(self, sealed: str | None) -> Hop | None:
        """The hop of a forwarded request; None where there is none, or it is expired or not signed by the fleet."""
        if sealed is None:
            return None
        try:
            hop = msgspec.json.decode(self._key.open(Purpose.HOP, sealed), type=Hop)
        except (BadSignature, msgspec.DecodeError):
            return None
        return hop if abs(self._clock() - hop.at) <= HOP_LIVES_S else None

    def _away(self, leader: Member, why: str) -> LeaderUnavailable:
        if self._heard:
            _log.warning("the leader does not answer", leader=leader.name, url=leader.url, reason=why)
        self._heard = False
        return LeaderUnavailable(why)
