"""A control plane's first secret, whose holder is admin; and the file that the CLI keeps a caller's own secret in."""

from __future__ import annotations

import hmac
from pathlib import Path

SHORTEST_TOKEN_BYTES = 16
"""128 bits of hexadecimal would be 32 characters; fewer than half of that can be guessed."""

LARGEST_FILE_BYTES = 4096

_REMEDY = "make one with `openssl rand -hex 32`"


class BadAdminToken(Exception):
    """The token file cannot be used; the message names the file and the remedy, never its content."""


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
        BadAdminToken: the file is missing, unreadable, too large, or what it holds is no token or too short a one.
    """
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE_BYTES + 1)
    except OSError as error:
        raise BadAdminToken(f"{path}: cannot read the admin token: {error.strerror}; {_REMEDY}") from None
    token = content.strip()
    if (
        len(content) > LARGEST_FILE_BYTES
        or not token.isascii()
        or not token.decode("ascii").isprintable()
        or b" " in token
    ):
        raise BadAdminToken(f"{path}: holds no token, which is one line of letters and digits; {_REMEDY}")
    if len(token) < SHORTEST_TOKEN_BYTES:
        raise BadAdminToken(f"{path}: the token has {len(token)} bytes, fewer than {SHORTEST_TOKEN_BYTES}; {_REMEDY}")
    return AdminToken(token.decode("ascii"))
