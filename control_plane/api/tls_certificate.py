"""The API's certificate: taken up anew when its files change, without a connection lost."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import structlog

from adapters.file_stamp import Stamp, file_stamp

LOOK_S = 5.0
"""Time (s) between two looks at the files."""

_log = structlog.get_logger(__name__)


class BadCertificate(Exception):
    """The certificate and key cannot be used; the message names the files and why."""


class Certificate:
    """A certificate with its key.

    Args:
        certificate: PEM, with the chain.
        key: PEM.

    Raises:
        BadCertificate: they cannot be used now. Once they could, a bad state of them is logged and changes nothing.
    """

    def __init__(self, certificate: Path, key: Path) -> None:
        self._files = (certificate, key)
        self._stamps = self._seen()
        self._try()

    async def keep_fresh(self, context: ssl.SSLContext) -> None:
        """Put the files into `context` whenever they change: connections made from then on have them."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.refresh(context)

    def refresh(self, context: ssl.SSLContext) -> bool:
        """Put the files into `context` if they changed since the last look; whether they did and are good."""
        stamps = self._seen()
        if stamps == self._stamps:
            return False
        try:
            # First where it does no harm: files that are half replaced do not fit together.
            self._try()
            context.load_cert_chain(*self._files)
        except (BadCertificate, OSError) as error:
            _log.error("certificate not taken up; the one before stays", reason=str(error))
            return False
        self._stamps = stamps
        _log.info("certificate taken up", file=str(self._files[0]))
        return True

    def _try(self) -> None:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*self._files)
        except OSError as error:
            certificate, key = self._files
            raise BadCertificate(f"{certificate}, {key}: cannot be used as certificate and key: {error}") from None

    def _seen(self) -> tuple[Stamp | None, ...]:
        return tuple(file_stamp(path) for path in self._files)


def authorities(path: Path) -> ssl.SSLContext:
    """What believes in certificates that the authorities of a PEM file signed.

    Raises:
        BadCertificate: it cannot be used.
    """
    try:
        return ssl.create_default_context(cafile=path)
    except (OSError, ssl.SSLError) as error:
        raise BadCertificate(f"{path}: cannot be used as certificates of authorities: {error}") from None
