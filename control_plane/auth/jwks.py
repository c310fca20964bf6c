"""Public keys of an OIDC issuer (RFC 7517), cached, with a limit on the rate of fetches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import httpx
import msgspec
import structlog
from jwt import PyJWK, PyJWTError

from control_plane.auth.bounded_fetch import fetch

FRESH_S = 600.0
"""Age (s) at which keys are fetched again before they are used."""

STALE_S = 24 * 3600.0
"""Age (s) at which keys are no longer used, even if the issuer is unavailable."""

MIN_INTERVAL_S = 10.0
"""Minimum time (s) between two fetches."""

MAX_KEYS = 100
MIN_RSA_BITS = 2048
"""Minimum size (bits) of an RSA key (RFC 7518, 3.3)."""

ALGORITHMS: Mapping[tuple[str, str | None], frozenset[str]] = MappingProxyType(
    {
        ("RSA", None): frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}),
        ("EC", "P-256"): frozenset({"ES256"}),
        ("EC", "P-384"): frozenset({"ES384"}),
        ("EC", "P-521"): frozenset({"ES512"}),
        ("OKP", "Ed25519"): frozenset({"EdDSA"}),
    }
)
"""Signature algorithms by key type and curve. Symmetric algorithms are excluded."""

_log = structlog.get_logger(__name__)


class PublicKey(msgspec.Struct, frozen=True):
    """A public key of the issuer."""

    key: Any
    """A public key of `cryptography`."""
    algorithms: frozenset[str]
    """Algorithms that the key may verify."""


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
        self._keys: dict[str, PublicKey] = {}
        self._fetched_at = float("-inf")
        self._tried_at = float("-inf")
        self._fetching = asyncio.Lock()

    async def key(self, kid: str | None) -> PublicKey | None:
        """Return the key with this id, or None. A token without a key id selects the only key of the set."""
        due = self._clock() - self._fetched_at >= FRESH_S
        # A request whose key is cached does not wait for a fetch that another request has started.
        if self._find(kid) is None or (due and not self._fetching.locked()):
            await self._fetch()
        return self._find(kid) if self._clock() - self._fetched_at < STALE_S else None

    def _find(self, kid: str | None) -> PublicKey | None:
        if kid is None:
            return next(iter(self._keys.values())) if len(self._keys) == 1 else None
        return self._keys.get(kid)

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
            if keys.keys() != self._keys.keys():
                _log.info("OIDC keys fetched", url=self._url, kids=sorted(keys))
            self._keys, self._fetched_at = keys, self._clock()


def read_keys(body: bytes) -> dict[str, PublicKey]:
    """Return the usable keys of a JSON Web Key Set, by id; other key types and uses are left out.

    Raises:
        ValueError: `body` is not a key set, or has no usable key.
    """
    try:
        found = msgspec.json.decode(body, type=dict[str, Any])["keys"]
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, RecursionError):
        raise ValueError("the response is not a JSON Web Key Set") from None
    if not isinstance(found, list) or len(found) > MAX_KEYS:
        raise ValueError(f"the response is not a JSON Web Key Set of at most {MAX_KEYS} keys")
    keys = {}
    for jwk in found:
        key = _usable_key(jwk) if isinstance(jwk, dict) else None
        if key is not None:
            keys[str(jwk.get("kid", ""))] = key
    if not keys:
        raise ValueError("the key set has no key for signatures")
    return keys


def _usable_key(jwk: dict[str, Any]) -> PublicKey | None:
    curve = jwk.get("crv")
    algorithms = ALGORITHMS.get((str(jwk.get("kty")), curve if isinstance(curve, str) else None), frozenset())
    if jwk.get("alg") is not None:
        algorithms &= {str(jwk["alg"])}
    if not algorithms or jwk.get("use", "sig") != "sig" or "d" in jwk:
        return None
    try:
        key = PyJWK.from_dict(jwk, algorithm=min(algorithms)).key
    except PyJWTError:
        return None
    if getattr(key, "key_size", MIN_RSA_BITS) < MIN_RSA_BITS and jwk["kty"] == "RSA":
        return None
    return PublicKey(key, algorithms)
