"""Forwarding of API requests to the leader: with a signed statement of the caller, over one hop, within a bounded time.

Agents report only to the leader, so other control planes forward the requests that need reports (ADR 9).
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from types import MappingProxyType

import httpx
import msgspec
import structlog

from adapters.access.callers import Caller
from adapters.store.members import Member
from control_plane.auth.admin_token import may_resend_credential
from control_plane.leadership import forwarded_caller
from control_plane.leadership.forwarded_caller import request_digest, seal_caller
from penstock.wire import identity
from penstock.wire.identity import BadIdentity, ProcessRole, decode_certificate, encode_certificate
from penstock.wire.peer_keys import Keyring, PeerKeys

CONNECT_TIMEOUT_S = 1.0
"""Timeout (s) to connect to the leader, and to wait for a free connection while all are in use."""

MAX_CONNECTIONS = 64
"""Maximum number of connections to the leader, and so of concurrent requests."""

MAX_RESPONSE_BYTES = 32 * 1024 * 1024
"""Maximum size (bytes) of a response; the status of a thousand regions has a few MiB."""

_log = structlog.get_logger(__name__)


class LeaderResponse(msgspec.Struct, frozen=True):
    """The leader's response."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class ForwardedRequest(msgspec.Struct, frozen=True):
    """A client's request that this control plane forwards."""

    method: str
    target: str
    """Path and query."""
    caller: Caller
    """The caller that this control plane authenticated."""
    client: str
    """Address of the client."""
    headers: Mapping[str, str] = MappingProxyType({})
    """Headers of the client's request, without its credential."""
    body: bytes = b""


class LeaderUnavailable(Exception):
    """The leader did not respond; the message states whether the request may have been executed."""


class LeaderClient:
    """Forwards requests to the leader.

    Args:
        member: this control plane.
        keyring: of this control plane.
        tls: returns the context for a new connection; None: the system's trust store.
        clock: Unix time, in seconds.
    """

    def __init__(
        self,
        member: Member,
        keyring: Keyring,
        *,
        tls: Callable[[], ssl.SSLContext] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._member = member
        self._keyring = keyring
        self._keys_by_url: dict[str, PeerKeys] = {}
        """The keys shared with the last leader, by its URL."""
        self._clock = clock
        self._reachable = True
        system_trust = ssl.create_default_context()
        self._tls = tls if tls is not None else lambda: system_trust
        self._context = self._tls()
        self._http = _make_client(self._context)
        self._earlier: httpx.AsyncClient | None = None
        """The HTTP client before the last change of the TLS files, with requests in progress; None: no change."""

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()
        if self._earlier is not None:
            await self._earlier.aclose()

    async def _renew_client(self) -> None:
        """Open further connections with the current TLS files. The previous client completes its requests."""
        self._context = self._tls()
        earlier, self._earlier, self._http = self._earlier, self._http, _make_client(self._context)
        if earlier is not None:
            await earlier.aclose()

    async def forward(self, leader: Member, request: ForwardedRequest, within_s: float) -> LeaderResponse:
        """Forward a client's request to the leader and return the response.

        Args:
            within_s: timeout (s) of the whole exchange.

        Raises:
            LeaderUnavailable: there is no response.
        """
        if not may_resend_credential(self._member.url, leader.url):
            raise LeaderUnavailable("its URL is plain http, and a request received over TLS is not sent without TLS")
        try:
            async with asyncio.timeout(within_s):
                reply = await self._signed(leader, request)
                if reply.status == 401:
                    # The leader's certificate may have been renewed, so the keys are derived again.
                    self._keys_by_url.clear()
                    reply = await self._signed(leader, request)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            reason = str(error) or type(error).__name__
            raise self._unavailable(leader, f"it cannot be reached ({reason}); the request was not executed") from None
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
            unknown = (
                ""
                if request.method == "GET"
                else "; the change may have been made: read the state before you try again"
            )
            reason = f"it did not respond completely in time ({type(error).__name__}){unknown}"
            raise self._unavailable(leader, reason) from None
        self._reachable = True
        return reply

    async def clock_difference_s(self, leader: Member) -> float:
        """Return the time (s) by which this process's clock is ahead of the leader's, or behind (negative).

        By the header `Date` of a response, to about a second; 0 if the leader does not respond.
        """
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                response = await self._exchange("GET", leader.url + identity.PATH, {}, b"")
            return self._clock() - parsedate_to_datetime(response.headers["date"]).timestamp()
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, LookupError, ValueError):
            return 0.0

    async def _exchange(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> LeaderResponse:
        if self._tls() is not self._context:
            await self._renew_client()
        received = bytearray()
        # httpx would encode text as ASCII; values of the client's headers are bytes, decoded as Latin-1.
        encoded = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        async with self._http.stream(method, url, headers=encoded, content=body) as response:
            async for chunk in response.aiter_bytes():
                received += chunk
                if len(received) > MAX_RESPONSE_BYTES:
                    raise httpx.ReadError(f"more than {MAX_RESPONSE_BYTES} bytes")
            return LeaderResponse(response.status_code, dict(response.headers), bytes(received))

    async def _peer_keys(self, leader: Member) -> PeerKeys:
        """Return the keys shared with the leader; raises LeaderUnavailable if another process has its address."""
        known = self._keys_by_url.get(leader.url)
        if known is not None:
            with suppress(BadIdentity):
                return self._keyring.keys_with(known.peer.certificate, self._clock())
        reply = await self._exchange("GET", leader.url + identity.PATH, {}, b"")
        try:
            peer_keys = self._keyring.keys_with(decode_certificate(reply.body), self._clock())
        except BadIdentity as error:
            raise self._unavailable(leader, f"its certificate is not valid, so nothing was sent: {error}") from None
        if (peer_keys.peer.id.role, peer_keys.peer.id.name) != (ProcessRole.CONTROL_PLANE, leader.name):
            raise self._unavailable(leader, f"{peer_keys.peer.id} has its address, so nothing was sent")
        self._keys_by_url = {leader.url: peer_keys}
        return peer_keys

    async def _signed(self, leader: Member, request: ForwardedRequest) -> LeaderResponse:
        peer_keys = await self._peer_keys(leader)
        # httpx percent-encodes some characters; the signature covers the target that the leader receives.
        target = httpx.URL(request.target).raw_path.decode()
        digest = request_digest(request.method, target, request.body)
        signed = {
            **request.headers,
            forwarded_caller.HEADER: seal_caller(request.caller, request.client, digest, peer_keys, self._clock()),
            identity.HEADER: encode_certificate(self._keyring.identity.peer.certificate),
        }
        return await self._exchange(request.method, leader.url + target, signed, request.body)

    def _unavailable(self, leader: Member, reason: str) -> LeaderUnavailable:
        if self._reachable:
            _log.warning("leader unavailable", leader=leader.name, url=leader.url, reason=reason)
        self._reachable = False
        return LeaderUnavailable(reason)


def _make_client(context: ssl.SSLContext) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        verify=context,
        # Control planes connect to one another directly; proxy variables of the environment do not apply.
        trust_env=False,
        timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S, pool=CONNECT_TIMEOUT_S),
        limits=httpx.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_CONNECTIONS),
    )
