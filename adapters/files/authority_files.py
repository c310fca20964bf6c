"""The fleet's certificate authority as files (ca.key, ca.crt), and the directories of the identities that it issues."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509

from adapters.files.identity_files import AUTHORITIES, CERTIFICATE, PRIVATE_KEY, REGION_KEY
from adapters.files.secret_file import BadSecret, read_file
from penstock.wire.authority import Authority, make_authority
from penstock.wire.identity import BadIdentity, ProcessRole, SpiffeId

AUTHORITY_KEY = "ca.key"

AUTHORITY_LIFETIME_S = 10 * 365 * 86_400.0
IDENTITY_LIFETIME_S = 90 * 86_400.0

REMEDY = "make an authority with `penstock certs init`"


def create_authority(directory: Path, fleet: str, lifetime_s: float = AUTHORITY_LIFETIME_S) -> Authority:
    """Makes an authority and writes its files; only the owner may read its key.

    Args:
        directory: created if missing.
        fleet: name of the fleet.
        lifetime_s: validity period of the authority, in seconds.

    Raises:
        BadSecret: the directory has an authority already, or cannot be written.
        BadIdentity: the name of the fleet is not valid.
    """
    key, certificate = make_authority(fleet, time.time(), lifetime_s)
    path = directory / AUTHORITY_KEY
    if path.exists():
        raise BadSecret(f"{path}: there is an authority already; name another directory, or keep using this one")
    # The key last: while it is missing, an authority that was not written completely can be made again.
    _write(directory, {AUTHORITIES: certificate, AUTHORITY_KEY: key})
    return Authority(key, certificate)


def load_authority(directory: Path) -> Authority:
    """Returns the authority of a directory.

    Raises:
        BadSecret: the files of the authority cannot be used.
    """
    key = read_file(directory / AUTHORITY_KEY, "authority's private key", REMEDY)
    certificate = read_file(directory / AUTHORITIES, "authority's certificate", REMEDY, public=True)
    try:
        return Authority(key, certificate)
    except BadIdentity as error:
        raise BadSecret(f"{directory}: {error}; {REMEDY}") from None


def issue_identity(
    authority: Authority,
    id_: SpiffeId,
    hosts: Sequence[str],
    directory: Path,
    lifetime_s: float = IDENTITY_LIFETIME_S,
) -> Path:
    """Issues a certificate and writes the directory of the identity; replaces an earlier certificate in the directory.

    The directory of an agent also has the key that the agents of its region share.

    Args:
        hosts: DNS names and IP addresses at which TLS clients reach the process.
        directory: created if missing; returned.
        lifetime_s: validity period of the certificate, in seconds.

    Raises:
        BadSecret: the directory cannot be written.
        BadIdentity: a name or host is not valid.
    """
    key, certificate = authority.issue(id_, hosts, time.time(), lifetime_s)
    files = {PRIVATE_KEY: key, CERTIFICATE: certificate, AUTHORITIES: authority.pem}
    if id_.role is ProcessRole.AGENT:
        files[REGION_KEY] = authority.region_key(id_.region, id_.trust_domain).hex().encode() + b"\n"
    _write(directory, files)
    return directory


def _write(directory: Path, files: dict[str, bytes]) -> None:
    """Writes each file atomically: readers get either its old or its new content."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            path = directory / name
            draft = directory / f".{name}.new"
            draft.unlink(missing_ok=True)
            mode = 0o600 if name.endswith(".key") else 0o644
            with os.fdopen(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode), "wb") as file:
                file.write(content)
            draft.replace(path)
    except OSError as error:
        raise BadSecret(f"{directory}: cannot be written: {error.strerror}; check owner, mode and space") from None


def renew_identity(
    authority: Authority, directory: Path, lifetime_s: float = IDENTITY_LIFETIME_S, fleet: str = ""
) -> SpiffeId:
    """Replaces the key and the certificate in a directory by new ones for the same process and hosts; returns the ID.

    Other files, such as a rotated `region.key`, are not changed, except that `authority` is appended to the trusted
    authorities (ca.crt) if it is missing there.

    Args:
        fleet: new name of the fleet in the certificate; empty to keep the name.

    Raises:
        BadSecret: the directory has no certificate, or cannot be read or written.
        BadIdentity: the certificate does not identify a process of a fleet, or it is of a fleet that `authority` was
            not made for, and the directory does not trust `authority`.
    """
    content = _certificate_in(directory)
    try:
        names = x509.load_pem_x509_certificate(content).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (ValueError, x509.ExtensionNotFound) as error:
        raise BadSecret(f"{directory / CERTIFICATE}: not a certificate of a process: {error}") from None
    uris = names.value.get_values_for_type(x509.UniformResourceIdentifier)
    if len(uris) != 1:
        raise BadSecret(f"{directory / CERTIFICATE}: has {len(uris)} SPIFFE IDs instead of one")
    id_ = SpiffeId.parse(uris[0])
    authorities = _trusting(authority, directory)
    if authorities and id_.trust_domain != authority.fleet:
        raise BadIdentity(f"this is the authority of fleet {authority.fleet!r}, not of {id_.trust_domain!r}")
    if fleet:
        id_ = SpiffeId(fleet, id_.role, id_.name, id_.region)
    hosts = names.value.get_values_for_type(x509.DNSName)
    addresses = [str(address) for address in names.value.get_values_for_type(x509.IPAddress)]
    key, certificate = authority.issue(id_, [*hosts, *addresses], time.time(), lifetime_s)
    _write(directory, authorities | {PRIVATE_KEY: key, CERTIFICATE: certificate})
    return id_


def trusts(directory: Path, authority: Authority) -> bool:
    """Whether a directory has an identity whose ca.crt has an authority. Raises BadSecret if a file cannot be read."""
    _certificate_in(directory)
    return not _trusting(authority, directory)


def _certificate_in(directory: Path) -> bytes:
    return read_file(directory / CERTIFICATE, "certificate", "issue one with `penstock certs issue`", public=True)


def _trusting(authority: Authority, directory: Path) -> dict[str, bytes]:
    """Returns the new content of ca.crt, with the authority appended; no file if the authority is trusted already."""
    path = directory / AUTHORITIES
    trusted = read_file(path, "authority's certificate", REMEDY, public=True)
    try:
        is_trusted = authority.certificate in x509.load_pem_x509_certificates(trusted)
    except ValueError as error:
        raise BadSecret(f"{path}: not PEM certificates: {error}; {REMEDY}") from None
    return {} if is_trusted else {AUTHORITIES: trusted.rstrip() + b"\n" + authority.pem}
