"""Every way to prove who calls: the admin token of the first hour, and API keys."""

from __future__ import annotations

from control_plane.access.api_keys import ApiKeys
from control_plane.access.callers import Caller, Role
from control_plane.admin_token import AdminToken

ADMIN_TOKEN_CALLER = Caller("admin-token", Role.ADMIN)
"""Who the holder of the admin token is in the audit log."""

LONGEST_CREDENTIAL = 16 * 1024
"""Characters; one that is longer is refused unread."""


class Access:
    """Tells callers by what they send as `Authorization: Bearer <credential>`; nobody else is let in.

    Args:
        token: the admin token.
        keys: API keys, where there are any.
    """

    def __init__(self, token: AdminToken, keys: ApiKeys | None = None) -> None:
        self._token = token
        self._keys = keys

    async def caller(self, credential: str) -> Caller | None:
        """Whose credential it is; None where it is nobody's."""
        if len(credential) > LONGEST_CREDENTIAL:
            return None
        if self._token.is_token(credential):
            return ADMIN_TOKEN_CALLER
        return self._keys.caller(credential) if self._keys is not None else None
