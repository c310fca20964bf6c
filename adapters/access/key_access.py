"""Authentication of a request by an API key, or by a client certificate of the fleet."""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

from adapters.access.api_keys import ApiKeys
from adapters.access.callers import Caller, Role
from adapters.access.login_failures import LoginFailures
from penstock.wire.identity import BadIdentity, ProcessRole
from penstock.wire.peer_keys import Keyring

MAX_KEY_CHARS = 1024
"""Maximum length (bytes) of a key; longer keys are rejected without further checks."""

CERTIFICATE_ROLES = {ProcessRole.MONITOR: Role.MONITOR}
"""Role of the holder of a client certificate, by process role. Agents, control planes, etcd and Redis have no role."""

_log = structlog.get_logger(__name__)


class Denied(Exception):
    """The request is not permitted; the message has the reason and the remedy, and no part of a credential."""

    def __init__(self, status: int, code: str, message: str, retry_after_s: int = 0) -> None:
        super().__init__(message)
        self.status = status
        """HTTP status: 401, 403 or 429."""
        self.code = code
        self.retry_after_s = retry_after_s
        """Time (s) until the address may log in again; 0 unless the address is limited."""


def caller_of_certificate(keyring: Keyring, certificate: bytes | None, now: float) -> Caller | None:
    """Return the caller that a client certificate (DER) identifies; None if its holder has no role.

    Args:
        keyring: the keys of this process, with the authorities of the fleet and the revoked certificates.
        certificate: None if the client sent none.
        now: Unix time, in seconds.
    """
    if certificate is None:
        return None
    try:
        id_ = keyring.identity.trust.verify(certificate, now, CERTIFICATE_ROLES.keys()).id
    except BadIdentity:
        return None
    return Caller(str(id_), CERTIFICATE_ROLES[id_.role])


class KeyAccess:
    """Authenticates callers, and rejects requests that their role does not permit.

    Args:
        keys: the accepted API keys; None accepts none.
        keyring: the keys of this process, with the authorities of the fleet and the revoked certificates.
        key_setting: name of the setting that names the file of keys, for messages.
        clock: Unix time, in seconds.
        failures: limit of failed logins by address; None creates a new one.
    """

    def __init__(
        self,
        keys: ApiKeys | None,
        keyring: Keyring,
        *,
        key_setting: str,
        clock: Callable[[], float] = time.time,
        failures: LoginFailures | None = None,
    ) -> None:
        self._keys = keys
        self._keyring = keyring
        self._remedy = f"send a key of the file {key_setting} as `Authorization: Bearer <key>`"
        self._clock = clock
        self._failures = LoginFailures() if failures is None else failures

    @property
    def problem(self) -> str:
        """The problem of the file of keys; empty while its content is in force."""
        return self._keys.files.problem if self._keys is not None else ""

    def require(self, role: Role, authorization: bytes | None, certificate: bytes | None, address: str) -> Caller:
        """Return the caller of a request.

        Args:
            role: the role that the request requires.
            authorization: the Authorization header.
            certificate: the client certificate of the connection (DER), which TLS has verified.
            address: address of the client, for the limit of failed logins.

        Raises:
            Denied: the credential is missing or invalid, the address is limited, or the role of the caller does not
                include `role`.
        """
        if authorization is None:
            caller = caller_of_certificate(self._keyring, certificate, self._clock())
            if caller is None:
                raise Denied(401, "credential_missing", f"the credential is missing; {self._remedy}")
        else:
            caller = self._key_caller(authorization, address)
        if not caller.role.covers(role):
            message = f"{caller.name} has the role {caller.role.value}; this requires {role.value}"
            raise Denied(403, "role_too_low", message)
        return caller

    def _key_caller(self, authorization: bytes, address: str) -> Caller:
        wait_s = self._failures.wait_s(address)
        if wait_s:
            raise Denied(429, "too_many_failed_logins", f"too many failed logins from {address}", wait_s)
        scheme, _, key = authorization.partition(b" ")
        caller = None
        if self._keys is not None and scheme.lower() == b"bearer" and len(key) <= MAX_KEY_CHARS:
            caller = self._keys.caller(key.strip().decode("utf-8", "replace"))
        if caller is None:
            self._failures.note(address)
            _log.warning("login failed", address=address)
            raise Denied(401, "invalid_credential", f"the credential is not a valid key; {self._remedy}")
        return caller
