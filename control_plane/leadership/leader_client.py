"""How a control plane asks the leader for somebody: with that caller's own credential, one hop, within a bounded time.

Agents report to the leader, so what needs reports is answered by the leader, whichever control plane is asked (ADR 9).
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
"""How long (s) the leader may take to accept a connection, or a turn to come: `MAX_AT_ONCE` are with it already."""

MAX_AT_ONCE = 64
"""Requests that are with the leader at a time."""

MAX_ANSWER_BYTES = 32 * 1024 * 1024
"""A status of a thousand regions has some; a larger answer is none."""

HOP_LIVES_S = 60.0
"""A hop older than this (s), by clocks that may be apart, is nobody's."""

_log = structlog.get_logger(__name__)


class Hop(msgspec.Struct, frozen=True):
    """What a control plane says, signed, of a request that it hands on."""

    by: str
    """Its name."""
    client: str
    """Address of who asked: failed logins are that client's."""
    at: float
    """Unix time (s)."""


class LeaderResponse(msgspec.Struct, frozen=True):
    """What the leader answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class LeaderUnavailable(Exception):
    """The leader did not answer; the message says what became of the request."""


class LeaderClient:
    """Asks leaders.

    Args:
        member: who asks.
        key: the fleet's secret.
        trust: whose certificates are believed; None: those that the system trusts.
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
            # Between control planes there is no proxy, whatever the environment has for others.
            trust_env=False,
            timeout=httpx.Timeout(None, connect=CONNECT_S, pool=CONNECT_S),
            limits=httpx.Limits(max_connections=MAX_AT_ONCE, max_keepalive_connections=MAX_AT_ONCE),
        )

    async def close(self) -> None:
        """Let go of connections."""
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
        """What the leader answers to somebody's request.

        Args:
            target: path and query.
            headers: as the client sent them, its credential among them.
            client: address of who asks.
            within_s: bound of the whole of it, in seconds.

        Raises:
            LeaderAway: there is no answer.
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
        """The hop that a request came by; None for what no control plane handed on just now."""
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
