"""TLS contexts for listeners and for upstream connections, from files that are reloaded when they change.

A new certificate is used from the next handshake on; open connections keep the old one. If the new files are unusable,
the last good ones stay in force, and the problem is logged once.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from stat import S_ISREG
from typing import Protocol

import structlog

from adapters.file_stamp import Stamp, file_stamp

POLL_S = 2.0
"""Interval (s) of the check for changed files."""

ALPN_PROTOCOLS = ["http/1.1"]

log = structlog.get_logger()


class BadTlsFiles(Exception):
    """Unusable certificates or keys. The message names the file and the remedy."""


class ReloadedFiles(Protocol):
    """Files that are read again when they change; unusable content does not replace the last good one."""

    @property
    def problem(self) -> str | None:
        """The problem of the current files; empty or None while their content is in use."""


class Reloadable(ReloadedFiles, Protocol):
    """Reloads its files when they change."""

    def reload_if_changed(self) -> None: ...


class _ContextFiles:
    """A TLS context, rebuilt when one of its files changes."""

    def __init__(self, make: Callable[[], ssl.SSLContext], files: Iterable[Path | None]) -> None:
        self._make = make
        self._files = [file for file in files if file is not None]
        self._stamps = self._stat()
        self.problem = ""
        """The problem of the current files; empty while their content is in use."""
        self.context = make()

    def reload_if_changed(self) -> None:
        """Rebuild the context if a file has changed; keep the last good one, and try again, while that fails."""
        stamps = self._stat()
        if stamps == self._stamps and not self.problem:
            return
        self._stamps = stamps
        try:
            self.context = self._make()
        except BadTlsFiles as error:
            if str(error) != self.problem:
                self.problem = str(error)
                log.error("TLS files are unusable; the last good ones stay in force", problem=str(error))
        else:
            self.problem = ""
            log.info("TLS files reloaded", files=[str(file) for file in self._files])

    def _stat(self) -> list[Stamp | None]:
        return [file_stamp(file) for file in self._files]


class ServerTls:
    """The certificate of a listener, and the authorities that must have signed client certificates."""

    def __init__(
        self, certificate: Path, key: Path, client_ca: Path | None = None, *, require_client: bool = True
    ) -> None:
        """Read the files.

        Args:
            client_ca: certificates of the authorities that sign client certificates; None requests none.
            require_client: whether clients without a certificate are rejected. A certificate that no authority in
                `client_ca` signed is always rejected.

        Raises:
            BadTlsFiles: a file is unusable.
        """
        verify_mode = ssl.CERT_REQUIRED if require_client else ssl.CERT_OPTIONAL
        make = partial(_server_context, certificate, key, client_ca, verify_mode)
        self._files = _ContextFiles(make, (certificate, key, client_ca))

    def __call__(self) -> ssl.SSLContext:
        """Return the context of the next handshake.

        Changed files create a new context without the TLS sessions of the old one, because the resumption of a session
        does not verify the client's certificate against the new authorities.
        """
        return self._files.context

    @property
    def problem(self) -> str:
        """The problem of the current files; empty while their content is in use."""
        return self._files.problem

    def reload_if_changed(self) -> None:
        """Use changed files from the next handshake on."""
        self._files.reload_if_changed()


class ClientTls:
    """The authorities by which servers are verified, and the client certificate."""

    def __init__(
        self,
        ca: Path | None,
        certificate: Path | None = None,
        key: Path | None = None,
        *,
        further_ca: Path | None = None,
        check_hostname: bool = True,
        alpn: Sequence[str] = ALPN_PROTOCOLS,
    ) -> None:
        """Read the files.

        Args:
            ca: authorities that sign server certificates; None uses the system's authorities.
            certificate: client certificate for servers that request one; requires `key`.
            further_ca: authorities that are trusted in addition.
            check_hostname: whether the certificate must be valid for the server's host. If not, the caller verifies
                the SPIFFE ID in the certificate.
            alpn: protocols to offer (RFC 7301); empty offers none.

        Raises:
            BadTlsFiles: a file is unusable.
        """

        def make() -> ssl.SSLContext:
            context = _client_context(ca, certificate, key)
            if alpn:
                context.set_alpn_protocols(list(alpn))
            if further_ca is not None:
                _load_authorities(context, further_ca)
            context.check_hostname = check_hostname
            return context

        self._files = _ContextFiles(make, (ca, certificate, key, further_ca))

    def __call__(self) -> ssl.SSLContext:
        """Return the context of the next connection."""
        return self._files.context

    @property
    def problem(self) -> str:
        """The problem of the current files; empty while their content is in use."""
        return self._files.problem

    def reload_if_changed(self) -> None:
        """Use changed files from the next connection on."""
        self._files.reload_if_changed()


async def keep_reloading(parts: Iterable[Reloadable]) -> None:
    """Check for changed files until cancelled."""
    while True:
        await asyncio.sleep(POLL_S)
        for part in parts:
            part.reload_if_changed()


def _server_context(
    certificate: Path, key: Path, client_ca: Path | None, verify_mode: ssl.VerifyMode
) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(ALPN_PROTOCOLS)
    _load_pair(context, certificate, key)
    if client_ca is not None:
        context.verify_mode = verify_mode
        _load_authorities(context, client_ca)
    return context


def _client_context(ca: Path | None, certificate: Path | None, key: Path | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    if ca is None:
        context.load_default_certs()
    else:
        _load_authorities(context, ca)
    if certificate is not None and key is not None:
        _load_pair(context, certificate, key)
    return context


def _load_pair(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    _check_readable(certificate)
    _check_readable(key)
    try:
        context.load_cert_chain(certificate, key, password="")
    except (OSError, ValueError) as error:
        raise BadTlsFiles(
            f"{certificate}: no PEM certificate to which the unencrypted key in {key} belongs ({error}); "
            "replace both files"
        ) from None


def _load_authorities(context: ssl.SSLContext, ca: Path) -> None:
    _check_readable(ca)
    try:
        context.load_verify_locations(ca)
    except (OSError, ValueError) as error:
        raise BadTlsFiles(f"{ca}: no PEM certificates of authorities ({error}); replace the file") from None


def _check_readable(file: Path) -> None:
    try:
        if not S_ISREG(file.stat().st_mode):
            raise BadTlsFiles(f"{file}: cannot be read: not a regular file; replace it")
        with file.open("rb"):
            pass
    except OSError as error:
        raise BadTlsFiles(f"{file}: cannot be read: {error.strerror}; provide the file") from None
