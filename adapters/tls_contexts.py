"""TLS contexts for listeners and for upstream connections, from files that are reloaded when they change.

A new certificate is used from the next handshake on; open connections keep the old one. If the new files are unusable,
the last good ones stay in force, and the problem is logged once. So they do if the new certificate has expired, or is
not valid yet: it is used once it is. In place of the identity of a process, only another identity of the process is
used: other processes would reject the certificate.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from adapters.files.identity_files import CERTIFICATE, IdentityFiles
from adapters.files.tls_files import load_authorities, load_pair, load_system_authorities, require_valid
from adapters.files.watched_files import WatchedFiles

ALPN_PROTOCOLS = ["http/1.1"]


class PresentedCertificate:
    """The certificate that TLS presents, and what another one must be to replace it."""

    def __init__(self, file: Path | None) -> None:
        """Start with any certificate; None presents none."""
        self._file = file
        self._is_in_force = False
        self._identity: IdentityFiles | None = None

    def load(self, make: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
        """Return a new context.

        The first certificate may have expired, later ones may not.

        Raises:
            UnusableFile: a file is unusable, or the certificate may not replace the one in force.
        """
        context = make()
        if self._is_in_force and self._file is not None:
            require_valid(self._file, time.time())
        if self._identity is not None:
            self._identity.require_usable()
        self._is_in_force = True
        return context

    def follow(self, identity: IdentityFiles) -> None:
        """Present no other certificate than identities of this process, if the certificate is its identity."""
        if self._file == identity.directory / CERTIFICATE:
            self._identity = identity


class ServerTls:
    """The certificate of a listener, and the authorities that must have signed client certificates."""

    def __init__(
        self,
        certificate: Path,
        key: Path,
        client_ca: Path | None = None,
        *,
        require_client: bool = True,
        alpn: Sequence[str] = ALPN_PROTOCOLS,
    ) -> None:
        """Read the files.

        Args:
            client_ca: certificates of the authorities that sign client certificates; None requests none.
            require_client: whether clients without a certificate are rejected. A certificate that no authority in
                `client_ca` signed is always rejected.
            alpn: protocols to accept (RFC 7301).

        Raises:
            BadTlsFiles: a file is unusable.
        """
        verify_mode = ssl.CERT_REQUIRED if require_client else ssl.CERT_OPTIONAL
        make = partial(_server_context, certificate, key, client_ca, verify_mode, alpn)
        self.presented = PresentedCertificate(certificate)
        self.files = WatchedFiles((certificate, key, client_ca), partial(self.presented.load, make))

    def __call__(self) -> ssl.SSLContext:
        """Return the context of the next handshake.

        Changed files create a new context without the TLS sessions of the old one, because the resumption of a session
        does not verify the client's certificate against the new authorities.
        """
        return self.files.content


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
            context = client_context(ca, certificate, key)
            if alpn:
                context.set_alpn_protocols(list(alpn))
            if further_ca is not None:
                load_authorities(context, further_ca)
            context.check_hostname = check_hostname
            return context

        self.presented = PresentedCertificate(certificate)
        self.files = WatchedFiles((ca, certificate, key, further_ca), partial(self.presented.load, make))

    def __call__(self) -> ssl.SSLContext:
        """Return the context of the next connection."""
        return self.files.content


def _server_context(
    certificate: Path, key: Path, client_ca: Path | None, verify_mode: ssl.VerifyMode, alpn: Sequence[str]
) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(list(alpn))
    load_pair(context, certificate, key)
    if client_ca is not None:
        context.verify_mode = verify_mode
        load_authorities(context, client_ca)
    return context


def client_context(ca: Path | None, certificate: Path | None, key: Path | None) -> ssl.SSLContext:
    """Return a context of connections to servers. Raises BadTlsFiles if a file is unusable."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    if ca is None:
        load_system_authorities(context)
    else:
        load_authorities(context, ca)
    if certificate is not None and key is not None:
        load_pair(context, certificate, key)
    return context
