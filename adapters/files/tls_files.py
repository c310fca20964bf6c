"""Loads certificates, keys and authorities into TLS contexts, from regular files only."""

from __future__ import annotations

import os
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from cryptography import x509

from adapters.files.plain_file import UnusableFile, open_plain_file, read_plain_file

MAX_FILE_BYTES = 4 * 1024 * 1024
"""Maximum size (bytes) of a PEM file; the authorities of a system have about 0.3 MB."""


class BadTlsFiles(UnusableFile):
    """Unusable certificates or keys. The message names the file and the remedy."""


def load_pair(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    """Load a certificate and its private key.

    Raises:
        BadTlsFiles: a file is unusable.
    """
    with _opened(certificate) as opened_certificate, _opened(key) as opened_key:
        try:
            context.load_cert_chain(_path(opened_certificate), _path(opened_key), password="")
        except (OSError, ValueError) as error:
            raise BadTlsFiles(
                f"{certificate}: no PEM certificate to which the unencrypted key in {key} belongs ({error}); "
                "replace both files"
            ) from None


def require_valid(certificate: Path, now: float) -> None:
    """Check that a certificate is valid at `now` (Unix time, s).

    Raises:
        BadTlsFiles: it has expired, or is not valid yet.
    """
    try:
        leaf = x509.load_pem_x509_certificates(read_plain_file(certificate, MAX_FILE_BYTES).content)[0]
    except (OSError, ValueError):
        return  # OpenSSL has read it.
    start, end = leaf.not_valid_before_utc, leaf.not_valid_after_utc
    if not start <= datetime.fromtimestamp(now, UTC) <= end:
        valid = f"is valid from {start.isoformat()} to {end.isoformat()} only"
        raise BadTlsFiles(
            f"{certificate}: {valid}; replace it with a certificate that is valid now, and check the clock"
        )


def load_authorities(context: ssl.SSLContext, ca: Path) -> None:
    """Load the certificates of trusted authorities.

    Raises:
        BadTlsFiles: the file is unusable.
    """
    with _opened(ca) as opened:
        try:
            context.load_verify_locations(_path(opened))
        except (OSError, ValueError) as error:
            raise BadTlsFiles(f"{ca}: no PEM certificates of authorities ({error}); replace the file") from None


def load_system_authorities(context: ssl.SSLContext) -> None:
    """Load the trust store of the system, or the one that SSL_CERT_FILE names.

    Raises:
        BadTlsFiles: the file is unusable.
    """
    paths = ssl.get_default_verify_paths()
    file = Path(os.environ.get(paths.openssl_cafile_env) or paths.openssl_cafile)
    if file.exists():
        _opened(file).close()
    context.load_default_certs()


def _opened(file: Path) -> BinaryIO:
    try:
        opened = open_plain_file(file)
    except OSError as error:
        raise BadTlsFiles(f"{file}: cannot be read: {error.strerror}; provide the file") from None
    if os.fstat(opened.fileno()).st_size > MAX_FILE_BYTES:
        opened.close()
        raise BadTlsFiles(f"{file}: larger than {MAX_FILE_BYTES} bytes; replace the file")
    return opened


def _path(opened: BinaryIO) -> str:
    """Return a path to an open file, for OpenSSL, which opens files itself: whatever has replaced the file since."""
    return f"/proc/self/fd/{opened.fileno()}"
