"""Expiry times of the certificates that a process uses, for its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cryptography import x509

from adapters.files.plain_file import FileStalled, Stamp, ThreadedRead, file_stamp, read_plain_file
from adapters.files.tls_files import MAX_FILE_BYTES

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
        self._in_thread = ThreadedRead(self.reload_if_changed, "certificates, for their expiry times")
        self.reload_if_changed()

    def by_use(self) -> Mapping[str, float]:
        """Return the Unix time (s) at which the first of the certificates in each file expires, by use."""
        return self._expires_at

    async def check(self) -> bool:
        """Read the files that have changed, in a thread; returns whether a time has changed."""
        try:
            return await self._in_thread()
        except FileStalled:
            return False  # logged by the readers that use the certificates

    def reload_if_changed(self) -> bool:
        """Read the files that have changed; returns whether a time has changed.

        A file that cannot be read keeps its last value, because the certificates that were read from it remain in use.
        """
        before, expires_at = self._expires_at, dict(self._expires_at)
        for name, path in self._files.items():
            stamp = file_stamp(path)
            if stamp is None or stamp == self._stamps.get(name):
                continue
            try:
                found = x509.load_pem_x509_certificates(read_plain_file(path, MAX_FILE_BYTES).content)
            except (OSError, ValueError):
                continue
            self._stamps[name] = stamp
            expires_at[name] = min(certificate.not_valid_after_utc.timestamp() for certificate in found)
        self._expires_at = expires_at
        return expires_at != before
