"""Public keys of identity providers: read from a JSON Web Key Set (RFC 7517), and published to agents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from itertools import chain
from types import MappingProxyType
from typing import Any, Final

import msgspec

MAX_KEYS: Final = 100
MAX_TRIED: Final = 4
"""Maximum number of keys by which one token is verified."""

MIN_RSA_BITS: Final = 2048
"""Minimum size (bits) of an RSA key (RFC 7518, 3.3)."""

ALGORITHMS: Final[Mapping[tuple[str, str | None], frozenset[str]]] = MappingProxyType(
    {
        ("RSA", None): frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}),
        ("EC", "P-256"): frozenset({"ES256"}),
        ("EC", "P-384"): frozenset({"ES384"}),
        ("EC", "P-521"): frozenset({"ES512"}),
        ("OKP", "Ed25519"): frozenset({"EdDSA"}),
    }
)
"""Signature algorithms by key type and curve. Symmetric algorithms are excluded."""

_PUBLIC_MEMBERS: Final = ("kty", "kid", "alg", "use", "crv", "n", "e", "x", "y")


class PublicKey(msgspec.Struct, frozen=True):
    """A public key of the issuer."""

    key: Any
    """A public key of `cryptography`."""
    algorithms: frozenset[str]
    """Algorithms that the key may verify."""
    kid: str
    """Identifier of the key; empty without one."""


class UsableKeys:
    """The usable keys of a set. Several may have one identifier: keys of different types, and those of a provider that
    rotates keys without identifiers (RFC 7517, 4.5)."""

    def __init__(self, keys: Iterable[PublicKey]) -> None:
        """Index keys by identifier."""
        self.by_kid: dict[str, list[PublicKey]] = {}
        for key in keys:
            self.by_kid.setdefault(key.kid, []).append(key)

    def find(self, kid: str | None) -> tuple[PublicKey, ...]:
        """Return the keys that a token with an identifier may have; all keys for a token without one."""
        return tuple(chain(*self.by_kid.values()) if kid is None else self.by_kid.get(kid, ()))


def keys_for(keys: Iterable[PublicKey], algorithm: object) -> list[PublicKey]:
    """Return the keys by which a token with an algorithm is verified: at most MAX_TRIED.

    The key decides which algorithms it may verify, so that no public key is used as the secret of an HMAC.
    """
    return [key for key in keys if algorithm in key.algorithms][:MAX_TRIED]


def verified_claims(token: str, keys: Sequence[PublicKey], **checks: Any) -> tuple[dict[str, Any], PublicKey]:
    """Return the claims of a token, and the one of some keys that signed it.

    Args:
        checks: arguments of `jwt.decode`.

    Raises:
        jwt.PyJWTError: the token is invalid, or none of the keys signed it.
    """
    from jwt import InvalidSignatureError, decode

    failed = InvalidSignatureError("no key")
    for key in keys:
        try:
            return decode(token, key.key, **checks), key
        except InvalidSignatureError as error:
            failed = error
    raise failed


class IssuerKeySet(msgspec.Struct, frozen=True):
    """The usable keys of one issuer, as the control plane publishes them."""

    issuer: str
    """Name of the issuer in the policy."""
    jwks_url: str
    """URL from which the keys were fetched: those of another URL are not used."""
    keys: tuple[dict[str, str], ...]
    """Public members of each JSON Web Key."""
    changed_at: float
    """Unix time (s) at which the keys were published."""


def other_name(issuer: str, jwks_url: str) -> str:
    """Return the name under which the keys of an issuer are published that the policy in force has with another URL.

    While a policy with another URL is rolled out, agents with either need the keys.
    """
    return f"{issuer}@{sha256(jwks_url.encode()).hexdigest()[:16]}"


def read_keys(body: bytes) -> UsableKeys:
    """Return the usable keys of a JSON Web Key Set; other key types and uses are left out.

    Raises:
        ValueError: `body` is not a key set, or has no usable key.
    """
    return usable_keys(_members(body))


def usable_keys(listed: list[Any]) -> UsableKeys:
    """Return the usable keys among JSON Web Keys.

    Raises:
        ValueError: no key is usable.
    """
    keys = [_usable_key(jwk) for jwk in listed if isinstance(jwk, dict)]
    usable = UsableKeys([key for key in keys if key is not None])
    if not usable.by_kid:
        raise ValueError("the key set has no key for signatures")
    return usable


def publishable_keys(body: bytes) -> tuple[dict[str, str], ...]:
    """Return the public members of the usable keys of a JSON Web Key Set, by id.

    Raises:
        ValueError: `body` is not a key set, or has no usable key.
    """
    usable = [jwk for jwk in _members(body) if isinstance(jwk, dict) and _usable_key(jwk) is not None]
    if not usable:
        raise ValueError("the key set has no key for signatures")
    public = {tuple((name, jwk[name]) for name in _PUBLIC_MEMBERS if isinstance(jwk.get(name), str)) for jwk in usable}
    return tuple(sorted(map(dict, public), key=lambda jwk: (_kid(jwk), msgspec.json.encode(jwk))))


def _members(body: bytes) -> list[Any]:
    try:
        found = msgspec.json.decode(body, type=dict[str, Any])["keys"]
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, RecursionError):
        raise ValueError("the response is not a JSON Web Key Set") from None
    if not isinstance(found, list) or len(found) > MAX_KEYS:
        raise ValueError(f"the response is not a JSON Web Key Set of at most {MAX_KEYS} keys")
    return found


def _kid(jwk: dict[str, Any]) -> str:
    """The identifier of a usable key; empty without one."""
    kid: str | None = jwk.get("kid")
    return kid or ""


def _usable_key(jwk: dict[str, Any]) -> PublicKey | None:
    # Imported here, since agents whose policy has no issuer do not need the library.
    from jwt import PyJWK, PyJWTError

    curve = jwk.get("crv")
    algorithms = ALGORITHMS.get((str(jwk.get("kty")), curve if isinstance(curve, str) else None), frozenset())
    if jwk.get("alg") is not None:
        algorithms &= {str(jwk["alg"])}
    if not algorithms or jwk.get("use", "sig") != "sig" or "d" in jwk or not isinstance(jwk.get("kid"), str | None):
        return None
    try:
        key = PyJWK.from_dict(jwk, algorithm=min(algorithms)).key
    except PyJWTError:
        return None
    if getattr(key, "key_size", MIN_RSA_BITS) < MIN_RSA_BITS and jwk["kty"] == "RSA":
        return None
    return PublicKey(key, algorithms, _kid(jwk))
