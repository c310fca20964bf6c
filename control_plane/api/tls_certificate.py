"""The certificate of the HTTP API: reloaded when its files change, without closing connections."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import structlog

from adapters.file_stamp import Stamp, file_stamp

POLL_S = 5.0
"""Time (s) between two checks for changed files."""

_log = structlog.get_logger(__name__)


class BadCertificate(Exception):
    """The certificate or key is unusable; the message names the files and the error."""


class Certificate:
    """A certificate and its private key.

    Args:
        certificate: PEM file with the certificate chain.
        key: PEM file with the private key.

    Raises:
        BadCertificate: the files are unusable at startup. Later errors are only logged.
    """

    def __init__(self, certificate: Path, key: Path) -> None:
        self._files = (certificate, key)
        self._stamps = self._current_stamps()
        self._validate()

    async def keep_reloading(self, context: ssl.SSLContext) -> None:
        """Load the files into `context` whenever they change; new connections use them. Runs until cancelled."""
        while True:
            await asyncio.sleep(POLL_S)
            self.reload_if_changed(context)

    def reload_if_changed(self, context: ssl.SSLContext) -> bool:
        """Load changed files into `context`; return whether changed and valid files were loaded."""
        stamps = self._current_stamps()
        if stamps == self._stamps:
            return False
        try:
            # In a separate context first: half-replaced files do not match and would leave `context` unusable.
            self._validate()
            context.load_cert_chain(*self._files)
        except (BadCertificate, OSError) as error:
            _log.error("certificate not reloaded; the previous one stays in use", reason=str(error))
            return False
        self._stamps = stamps
        _log.info("certificate reloaded", file=str(self._files[0]))
        return True

    def _validate(self) -> None:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*self._files)
        except OSError as error:
            certificate, key = self._files
            raise BadCertificate(f"{certificate}, {key}: not a usable certificate and key: {error}") from None

    def _current_stamps(self) -> tuple[Stamp | None, ...]:
        return tuple(file_stamp(path) for path in self._files)


def trust_context(ca_file: Path) -> ssl.SSLContext:
    """Return a client context that trusts the authorities of a PEM file.

    Raises:
        BadCertificate: the file is unusable.
    """
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise BadCertificate(f"{ca_file}: not a usable file of CA certificates: {error}") from None
