"""A control plane's first secret, whose holder is admin; and the file that the CLI keeps a caller's own secret in."""

from __future__ import annotations

import hmac
from pathlib import Path

from adapters.secret_file import REMEDY, BadSecret, read_secret

MIN_TOKEN_BYTES = 16
"""128 bits of hexadecimal would be 32 characters; fewer than half of that can be guessed."""


class AdminToken:
    """One secret that operators send as `Authorization: Bearer <token>`."""

    __slots__ = ("_token",)

    def __init__(self, token: str) -> None:
        self._token = token.encode()

    def __repr__(self) -> str:
        return "AdminToken(...)"

    def is_token(self, credential: str) -> bool:
        """Whether it is the token; takes as long for a wrong one as for the right one."""
        return hmac.compare_digest(credential.encode("utf-8", "replace"), self._token)

    def header(self) -> str:
        """The Authorization header to send."""
        return f"Bearer {self._token.decode()}"


def load_admin_token(path: Path) -> AdminToken:
    """Read the token: one line of printable characters without spaces.

    Raises:
        BadSecret: the file cannot be used, or what it holds is no token.
    """
    token = read_secret(path, "admin token", min_bytes=MIN_TOKEN_BYTES)
    if not token.isascii() or not token.decode("ascii").isprintable() or b" " in token:
        raise BadSecret(f"{path}: holds no admin token, which is one line of letters and digits; {REMEDY}")
    return AdminToken(token.decode("ascii"))
