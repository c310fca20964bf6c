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
from control_plane.auth.admin_token import may_resend_credential
from penstock.wire.signing import BadSignature, FleetKey, Purpose

HOP_HEADER = "x-penstock-hop"

CONNECT_TIMEOUT_S = 1.0
"""Timeout (s) to connect to the leader, and to wait for a free connection while all are in use."""

MAX_CONNECTIONS = 64
"""Concurrent requests to the leader."""

MAX_RESPONSE_BYTES = 32 * 1024 * 1024
"""Maximum size of a response; the status of a thousand regions has a few MiB."""

MAX_HOP_AGE_S = 60.0
"""Maximum age (s) of a hop; allows for clock skew between control planes."""

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
        self._reachable = True
        self._http = httpx.AsyncClient(
            verify=trust if trust is not None else ssl.create_default_context(),
            # Control planes connect to one another directly; proxy variables of the environment do not apply.
            trust_env=False,
            timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S, pool=CONNECT_TIMEOUT_S),
            limits=httpx.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_CONNECTIONS),
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def forward(
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
            within_s: timeout (s) of the whole exchange.

        Raises:
            LeaderUnavailable: there is no response.
        """
        if not may_resend_credential(self._member.url, leader.url):
            raise LeaderUnavailable("its URL is plain http, and a credential received over TLS is not sent without TLS")
        hop = Hop(self._member.name, client, self._clock())
        sent = {**headers, HOP_HEADER: self._key.seal(Purpose.HOP, msgspec.json.encode(hop))}
        try:
            async with asyncio.timeout(within_s):
                reply = await self._exchange(method, leader.url + target, sent, body)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            reason = str(error) or type(error).__name__
            raise self._unavailable(leader, f"it cannot be reached ({reason}); the request was not executed") from None
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
            unknown = "" if method == "GET" else "; the change may have been made: read the state before you try again"
            reason = f"it did not respond completely in time ({type(error).__name__}){unknown}"
            raise self._unavailable(leader, reason) from None
        self._reachable = True
        return reply

    async def _exchange(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> LeaderResponse:
        received = bytearray()
        async with self._http.stream(method, url, headers=dict(headers), content=body) as response:
            async for chunk in response.aiter_bytes():
                received += chunk
                if len(received) > MAX_RESPONSE_BYTES:
                    raise httpx.ReadError(f"more than {MAX_RESPONSE_BYTES} bytes")
            return LeaderResponse(response.status_code, dict(response.headers), bytes(received))

    def verify_hop(self, sealed: str | None) -> Hop | None:
        """Return the hop of a forwarded request; None if it is missing, expired or not signed with the fleet key."""
        if sealed is None:
            return None
        try:
            hop = msgspec.json.decode(self._key.open(Purpose.HOP, sealed), type=Hop)
        except (BadSignature, msgspec.DecodeError):
            return None
        return hop if abs(self._clock() - hop.at) <= MAX_HOP_AGE_S else None

    def _unavailable(self, leader: Member, reason: str) -> LeaderUnavailable:
        if self._reachable:
            _log.warning("leader unavailable", leader=leader.name, url=leader.url, reason=reason)
        self._reachable = False
        return LeaderUnavailable(reason)
