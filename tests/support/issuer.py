"""An identity provider: a real HTTP server with public keys, and tokens signed by the private keys."""

from __future__ import annotations

import json
import time
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from tests.support.small_http import Headers, SmallHttp

AUDIENCE = "penstock"

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


def rsa_key(bits: int = 2048) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=bits)


def jwk(kid: str | None, key: PrivateKey, **members: Any) -> dict[str, Any]:
    """The public key in the format of a key set."""
    public = key.public_key()
    if isinstance(public, rsa.RSAPublicKey):
        public_jwk = RSAAlgorithm.to_jwk(public, as_dict=True)
    elif isinstance(public, ec.EllipticCurvePublicKey):
        public_jwk = ECAlgorithm.to_jwk(public, as_dict=True)
    else:
        public_jwk = OKPAlgorithm.to_jwk(public, as_dict=True)
    return {**public_jwk, **({} if kid is None else {"kid": kid}), "use": "sig", **members}


class Issuer:
    """Serves a key set at `jwks_url`. Tests change `keys` to rotate keys."""

    def __init__(self, **keys: PrivateKey) -> None:
        self.private = keys
        self.keys = [jwk(kid, key) for kid, key in keys.items()]
        self.answer: tuple[int, bytes] | None = None
        """Response that replaces the key set."""
        self.http = SmallHttp(self._answer)

    @property
    def url(self) -> str:
        return self.http.url

    @property
    def jwks_url(self) -> str:
        return f"{self.url}/keys"

    def token(self, kid: str, algorithm: str = "RS256", *, key: Any = None, header: Any = None, **claims: Any) -> str:
        """A valid token, except for the given arguments; None removes a claim."""
        now = time.time()
        whole = {
            "iss": self.url,
            "aud": AUDIENCE,
            "sub": "ada",
            "iat": now,
            "exp": now + 300,
            "groups": ["everybody", "sre"],
        } | claims
        payload = {name: value for name, value in whole.items() if value is not None}
        signing = key if key is not None else self.private[kid]
        return jwt.encode(payload, signing, algorithm, headers={"kid": kid} if header is None else header)

    def _answer(self, method: bytes, target: bytes, headers: Headers, body: bytes) -> tuple[int, bytes]:
        if self.answer is not None:
            return self.answer
        return 200, json.dumps({"keys": self.keys}).encode()
