"""Every way to prove who calls: the admin token of the first hour, API keys, and an identity provider's tokens."""

from __future__ import annotations

from control_plane.auth.admin_token import AdminToken
from control_plane.auth.api_keys import ApiKeys
from control_plane.auth.callers import Caller, Role
from control_plane.auth.login_failures import LoginFailures
from control_plane.auth.oidc import BadToken, Oidc

ADMIN_TOKEN_CALLER = Caller("admin-token", Role.ADMIN)
"""Who the holder of the admin token is in the audit log."""

MAX_CREDENTIAL = 16 * 1024
"""Characters; one that is longer is refused unread."""


class Unidentified(Exception):
    """A credential that is nobody's; the message says why, and nothing of the credential."""


class Access:
    """Tells callers by what they send as `Authorization: Bearer <credential>`; nobody else is let in.

    Args:
        token: the admin token.
        keys: API keys, where there are any.
        oidc: an identity provider, where there is one.
    """

    def __init__(self, token: AdminToken, keys: ApiKeys | None = None, oidc: Oidc | None = None) -> None:
        self._token = token
        self._keys = keys
        self._oidc = oidc
        self.failures = LoginFailures()

    async def caller(self, credential: str) -> Caller:
        """Whose credential it is.

        Raises:
            Unidentified: nobody's.
        """
        if len(credential) > MAX_CREDENTIAL:
            raise Unidentified("what is sent is too long for a key or a token")
        if self._token.is_token(credential):
            return ADMIN_TOKEN_CALLER
        found = self._keys.caller(credential) if self._keys is not None else None
        if found is not None:
            return found
        if self._oidc is None or credential.count(".") != 2:
            raise Unidentified("this is no key that is known here")
        try:
            return await self._oidc.caller(credential)
        except BadToken as error:
            raise Unidentified(str(error)) from None

    async def identify(self, authorization: str, address: str) -> Caller | None:
        """Who calls, for what stands before the routes; None for whoever a route refuses, which tells and counts it.

        Args:
            authorization: the header of that name; empty without one.
            address: of the client. One that failed too often is nobody, whatever it sends now, or what stands before
                the routes would tell a right credential from a wrong one.
        """
        scheme, _, credential = authorization.partition(" ")
        if scheme.lower() != "bearer" or self.failures.wait_s(address):
            return None
        try:
            return await self.caller(credential.strip())
        except Unidentified:
            return None
