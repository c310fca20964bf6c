"""The admin token of a control plane, and the token file of the CLI, which has the same format."""

from __future__ import annotations

import hmac
from pathlib import Path

from adapters.files.secret_file import REMEDY, BadSecret, read_secret

MIN_TOKEN_BYTES = 16
"""Minimum length (bytes) of a token: 64 bits if the token is hexadecimal."""


class AdminToken:
    """A secret sent as `Authorization: Bearer <token>`."""

    __slots__ = ("_token",)

    def __init__(self, token: str) -> None:
        self._token = token.encode()

    def __repr__(self) -> str:
        return "AdminToken(...)"

    def use(self, renewed: AdminToken) -> None:
        """Replace the accepted token by that of `renewed`."""
        self._token = renewed._token

    def is_token(self, credential: str) -> bool:
        """Compare a credential with the token in constant time."""
        return hmac.compare_digest(credential.encode("utf-8", "replace"), self._token)

    def header(self) -> str:
        """Return the value of the Authorization header."""
        return f"Bearer {self._token.decode()}"


def load_admin_token(path: Path) -> AdminToken:
    """Read a token: one line of printable ASCII characters without spaces.

    Raises:
        BadSecret: the file is unusable or does not contain a token.
    """
    token = read_secret(path, "admin token", min_bytes=MIN_TOKEN_BYTES)
    if not token.isascii() or not token.decode("ascii").isprintable() or b" " in token:
        raise BadSecret(f"{path}: not a token, which is one line of letters and digits; {REMEDY}")
    return AdminToken(token.decode("ascii"))


def may_resend_credential(from_url: str, to_url: str) -> bool:
    """Whether a credential sent to one URL may be sent to another one: never from TLS to plain HTTP."""
    return to_url.startswith("https://") or not from_url.startswith("https://")
