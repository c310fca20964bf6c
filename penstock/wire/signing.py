"""Authentication of messages between the fleet's processes: HMAC-SHA256 under one shared key, separated by purpose.

Each purpose has its own derived key (the idea of RFC 5869, in one step), so that a signature made for one kind of
message is not valid for another.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from enum import StrEnum
from hashlib import sha256

MIN_KEY_BYTES = 32
"""The length of the hash: shorter keys weaken HMAC (RFC 2104, section 3)."""

MAX_TOKEN = 8192
"""Maximum length of a token, in characters; longer ones are rejected before they are decoded."""


class BadSignature(Exception):
    """The message was not signed with the fleet key, or was modified in transit."""


class Purpose(StrEnum):
    """The kind of message that a signature is valid for."""

    ROUTE = "route"
    PROBE = "probe"
    PROBE_ANSWER = "probe-answer"
    REPORT = "report"
    HOP = "hop"


class FleetKey:
    """The fleet's shared secret. The first key signs and every key verifies: to rotate, add a key, then remove one."""

    __slots__ = ("_derived",)

    def __init__(self, *keys: bytes) -> None:
        """Derives the keys of each purpose.

        Args:
            keys: the secrets, newest first.

        Raises:
            ValueError: no key was given, or one is shorter than MIN_KEY_BYTES.
        """
        if not keys or any(len(key) < MIN_KEY_BYTES for key in keys):
            raise ValueError(f"a fleet key has at least {MIN_KEY_BYTES} bytes")
        self._derived = {
            purpose: [hmac.digest(key, f"penstock/{purpose}".encode(), "sha256") for key in keys] for purpose in Purpose
        }

    def __repr__(self) -> str:
        return "FleetKey(...)"

    def sign(self, purpose: Purpose, message: bytes) -> str:
        """Returns the signature, in hexadecimal, of a message that is sent beside it."""
        return hmac.new(self._derived[purpose][0], message, sha256).hexdigest()

    def check(self, purpose: Purpose, message: bytes, signature: str) -> None:
        """Raises BadSignature unless `signature` is the message's; takes constant time for each key."""
        given = signature.encode("utf-8", "replace")
        matches = [
            hmac.compare_digest(hmac.new(key, message, sha256).hexdigest().encode(), given)
            for key in self._derived[purpose]
        ]
        if not any(matches):
            raise BadSignature("the signature does not match")

    def seal(self, purpose: Purpose, payload: bytes) -> str:
        """Returns a header-safe token that contains the payload and its signature."""
        return urlsafe_b64encode(payload).decode() + "." + self.sign(purpose, payload)

    def open(self, purpose: Purpose, token: str) -> bytes:
        """Returns the payload of a token made by `seal`; raises BadSignature."""
        if len(token) > MAX_TOKEN:
            raise BadSignature("the token is too long")
        encoded, _, signature = token.partition(".")
        try:
            payload = urlsafe_b64decode(encoded)
        except (Base64Error, ValueError):
            raise BadSignature("the token is not base64") from None
        self.check(purpose, payload, signature)
        return payload
