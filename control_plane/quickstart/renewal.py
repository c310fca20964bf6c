"""Renews the certificates of a quickstart, whose directory has the authority that issues them."""

from __future__ import annotations

from cryptography import x509

from adapters.files.authority_files import AUTHORITY_KEY, load_authority, renew_identity
from adapters.files.identity_files import CERTIFICATE, PRIVATE_KEY
from adapters.files.plain_file import read_plain_file
from control_plane.quickstart.region_dir import CONTROL_PLANE, MAX_FILE_BYTES, RegionDir

RENEW_BEFORE_S = 60 * 86_400.0
"""Time (s) before its expiry from which on a certificate is renewed; they are valid for 90 days."""


def renew_identities(region_dir: RegionDir, now: float) -> list[str]:
    """Renew the certificates that expire within RENEW_BEFORE_S; running processes read them again.

    Nothing is renewed without the key of the authority, which a region that joined does not have.

    Args:
        now: Unix time, in seconds.

    Returns:
        The names of the directories with a new certificate.

    Raises:
        OSError, UnusableFile, BadIdentity, ValueError: a certificate cannot be read or written.
    """
    if not (region_dir.authority / AUTHORITY_KEY).exists():
        return []
    identities = (region_dir.path / CONTROL_PLANE, region_dir.path / "agent", region_dir.etcd_identity)
    renewed = []
    for directory in identities:
        if not (directory / PRIVATE_KEY).exists():
            continue
        certificate = read_plain_file(directory / CERTIFICATE, MAX_FILE_BYTES).content
        expires_at = x509.load_pem_x509_certificate(certificate).not_valid_after_utc.timestamp()
        if expires_at - now < RENEW_BEFORE_S:
            renew_identity(load_authority(region_dir.authority), directory)
            renewed.append(directory.name)
    return renewed
