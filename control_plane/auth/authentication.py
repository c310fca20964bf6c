"""Authentication of callers: by the admin token, API keys, tokens of an identity provider, or client certificates."""

from __future__ import annotations

import time

from adapters.access.api_keys import ApiKeys
from adapters.access.callers import Caller, Role
from adapters.access.key_access import caller_of_certificate
from adapters.access.login_failures import LoginFailures
from control_plane.auth.admin_token import AdminToken
from control_plane.auth.oidc import BadToken, Oidc
from penstock.wire.peer_keys import Keyring

ADMIN_TOKEN_CALLER = Caller("admin-token", Role.ADMIN)
"""The caller that the admin token authenticates."""

MAX_CREDENTIAL_CHARS = 16 * 1024
"""Maximum length of a credential; longer ones are rejected without further checks."""


class Unidentified(Exception):
    """The credential is invalid; the message has the reason, and nothing of the credential."""


class Access:
    """Authenticates callers by their credential, sent as `Authorization: Bearer <credential>`.

    Args:
        token: the admin token.
        keys: the API keys; None: there are none.
        oidc: the identity provider; None: there is none.
        keyring: of this control plane, to verify client certificates; None: a certificate identifies no caller.
    """

    def __init__(
        self,
        token: AdminToken,
        keys: ApiKeys | None = None,
        oidc: Oidc | None = None,
        keyring: Keyring | None = None,
    ) -> None:
        self._token = token
        self._keys = keys
        self._oidc = oidc
        self._keyring = keyring
        self.failures = LoginFailures()

    async def caller(self, credential: str) -> Caller:
        """Return the caller that a credential authenticates.

        Raises:
            Unidentified: the credential is invalid.
        """
        if len(credential) > MAX_CREDENTIAL_CHARS:
            raise Unidentified("the credential is too long")
        if self._token.is_token(credential):
            return ADMIN_TOKEN_CALLER
        found = self._keys.caller(credential) if self._keys is not None else None
        if found is not None:
            return found
        if self._oidc is None or credential.count(".") != 2:
            raise Unidentified("the credential is not a valid key")
        try:
            return await self._oidc.caller(credential)
        except BadToken as error:
            raise Unidentified(str(error)) from None

    def certificate_caller(self, certificate: bytes | None) -> Caller | None:
        """Return the caller that a client certificate (DER) identifies; None if its holder has no role."""
        if self._keyring is None:
            return None
        return caller_of_certificate(self._keyring, certificate, time.time())
