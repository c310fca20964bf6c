"""Expiry times of the certificates that a process uses, for its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cryptography import x509

from adapters.file_stamp import Stamp, file_stamp

EXPIRY_HELP = (
    "Unix time in seconds at which the first of the certificates in a file expires, by use: `identity` (of this"
    " process), `authority` (those that the fleet trusts), and those that settings name."
)
"""Help text of the certificate expiry metric of both daemons."""


class CertificateExpiry:
    """Reads the expiry times of certificates from their files, and reads a file again when it changes.

    Args:
        files: PEM files by the name of their use, such as `identity`; None is a file that is not configured.
    """

    def __init__(self, files: Mapping[str, Path | None]) -> None:
        self._files = {name: path for name, path in files.items() if path is not None}
        self._stamps: dict[str, Stamp | None] = {}
        self._expires_at: dict[str, float] = {}

    def by_use(self) -> Mapping[str, float]:
        """Return the Unix time (s) at which the first of the certificates in each file expires, by use.

        A file that cannot be read keeps its last value, because the certificates that were read from it remain in use.
        """
        for name, path in self._files.items():
            stamp = file_stamp(path)
            if stamp is None or stamp == self._stamps.get(name):
                continue
            try:
                found = x509.load_pem_x509_certificates(path.read_bytes())
            except (OSError, ValueError):
                continue
            self._stamps[name] = stamp
            self._expires_at[name] = min(certificate.not_valid_after_utc.timestamp() for certificate in found)
        return self._expires_at
