"""Public keys of an OIDC issuer (RFC 7517), cached, with a limit on the rate of fetches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import httpx
import structlog

from control_plane.auth.bounded_fetch import fetch
from penstock.tenancy.tokens.issuer_keys import PublicKey, UsableKeys, read_keys

FRESH_S = 600.0
"""Age (s) at which keys are fetched again before they are used."""

STALE_S = 24 * 3600.0
"""Age (s) at which keys are no longer used, even if the issuer is unavailable."""

MIN_INTERVAL_S = 10.0
"""Minimum time (s) between two fetches."""

_log = structlog.get_logger(__name__)


class Jwks:
    """The key set at one URL.

    Args:
        url: URL of the JSON Web Key Set.
        http: the HTTP client.
        clock: monotonic time (s).
    """

    def __init__(self, url: str, http: httpx.AsyncClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._url = url
        self._http = http
        self._clock = clock
        self._keys = UsableKeys(())
        self._fetched_at = float("-inf")
        self._tried_at = float("-inf")
        self._fetching = asyncio.Lock()

    async def keys(self, kid: str | None) -> tuple[PublicKey, ...]:
        """Return the keys that a token may have, by its key id; all keys for a token without one."""
        due = self._clock() - self._fetched_at >= FRESH_S
        # A request whose key is cached does not wait for a fetch that another request has started.
        if not self._keys.find(kid) or (due and not self._fetching.locked()):
            await self._fetch()
        return self._keys.find(kid) if self._clock() - self._fetched_at < STALE_S else ()

    async def _fetch(self) -> None:
        """Fetch the keys unless they were just fetched; an error leaves the cached keys."""
        async with self._fetching:
            if self._clock() - self._tried_at < MIN_INTERVAL_S:
                return
            self._tried_at = self._clock()
            try:
                status, body = await fetch(self._http, self._url)
                if status != 200:
                    raise ValueError(f"HTTP status {status}")
                keys = read_keys(body)
            except ValueError as error:
                _log.warning("OIDC keys not fetched", url=self._url, reason=str(error))
                return
            if keys.by_kid.keys() != self._keys.by_kid.keys():
                _log.info("OIDC keys fetched", url=self._url, kids=sorted(keys.by_kid))
            self._keys, self._fetched_at = keys, self._clock()
