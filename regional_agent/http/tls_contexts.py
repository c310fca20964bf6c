"""TLS for listeners and for connections to engines and peers, from files that are read again when they change.

A new certificate is used from the next handshake on; connections that stand are not touched. Files that cannot be used
leave the last good ones in force, and are told of once.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable
from pathlib import Path
from stat import S_ISREG
from typing import Protocol

import structlog

from adapters.file_stamp import Stamp, file_stamp

LOOK_S = 2.0
"""Time (s) between two looks at whether files have changed."""

PROTOCOLS = ["http/1.1"]

log = structlog.get_logger()


class BadTlsFiles(Exception):
    """Certificates or keys that cannot be used; the message names the file and the remedy."""


class Reloadable(Protocol):
    """Something made of files."""

    def reload_if_changed(self) -> None: ...


class _Files:
    """A context made of files, made anew when one of them changes."""

    def __init__(self, make: Callable[[], ssl.SSLContext], files: Iterable[Path | None]) -> None:
        self._make = make
        self._files = [file for file in files if file is not None]
        self._stamps = self._look()
        self.context = make()

    def reload_if_changed(self) -> None:
        """Make the context anew if a file has changed, or keep the last good one and say why."""
        stamps = self._look()
        if stamps == self._stamps:
            return
        self._stamps = stamps
        try:
            self.context = self._make()
        except BadTlsFiles as error:
            log.error("TLS files refused; the last good ones stay in force", problem=str(error))
        else:
            log.info("TLS files read", files=[str(file) for file in self._files])

    def _look(self) -> list[Stamp | None]:
        return [file_stamp(file) for file in self._files]


class ServerTls:
    """What a listener shows to whoever connects, and whom it lets in."""

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None = None) -> None:
        """Read the files.

        Args:
            client_ca: clients must have a certificate signed by one of these; None asks for none.

        Raises:
            BadTlsFiles: one of them cannot be used.
        """
        self._files = _Files(lambda: _server_context(certificate, key, client_ca), (certificate, key, client_ca))

    def __call__(self) -> ssl.SSLContext:
        """The context of the next handshake. Changed files make a new one, which knows no session of the one before: a
        client that resumed one would not have to show its certificate to the authorities that are trusted now."""
        return self._files.context

    def reload_if_changed(self) -> None:
        """Take changed files for the handshakes to come."""
        self._files.reload_if_changed()


class ClientTls:
    """The files that servers are verified by, and those that are shown to them."""

    def __init__(self, ca: Path | None, certificate: Path | None = None, key: Path | None = None) -> None:
        """Read the files.

        Args:
            ca: None takes those that the system trusts.
            certificate: what is shown to servers that ask for one; with `key`.

        Raises:
            BadTlsFiles: one of them cannot be used.
        """
        self._files = _Files(lambda: _client_context(ca, certificate, key), (ca, certificate, key))

    def __call__(self) -> ssl.SSLContext:
        """The context of the next connection."""
        return self._files.context

    def reload_if_changed(self) -> None:
        """Take changed files for the connections to come."""
        self._files.reload_if_changed()


async def keep_reloading(parts: Iterable[Reloadable]) -> None:
    """Look after files until cancelled."""
    while True:
        await asyncio.sleep(LOOK_S)
        for part in parts:
            part.reload_if_changed()


def _server_context(certificate: Path, key: Path, client_ca: Path | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(PROTOCOLS)
    _load_pair(context, certificate, key)
    if client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        _load_authorities(context, client_ca)
    return context


def _client_context(ca: Path | None, certificate: Path | None, key: Path | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(PROTOCOLS)
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
            "write the pair anew"
        ) from None


def _load_authorities(context: ssl.SSLContext, ca: Path) -> None:
    _check_readable(ca)
    try:
        context.load_verify_locations(ca)
    except (OSError, ValueError) as error:
        raise BadTlsFiles(f"{ca}: no PEM certificates of authorities ({error}); write them anew") from None


def _check_readable(file: Path) -> None:
    try:
        if not S_ISREG(file.stat().st_mode):
            raise BadTlsFiles(f"{file}: cannot be read: not a plain file; put one there")
        with file.open("rb"):
            pass
    except OSError as error:
        raise BadTlsFiles(f"{file}: cannot be read: {error.strerror}; put the file there") from None
