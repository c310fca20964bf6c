"""The identity of a process as files: a directory with tls.key, tls.crt and ca.crt, as in a Kubernetes TLS secret.

`penstock certs issue` writes such a directory. The optional file `revoked` has serial numbers of certificates that are
no longer accepted, one a line. These files are read again when they change, so that certificates rotate without
restart. Agents that share load through Redis also have `region.key`, which is read again too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import structlog
from cryptography import x509

from adapters.files.secret_file import BadSecret, read_file
from adapters.files.watched_files import WatchedFiles
from penstock.wire.fleet_prefix import DEFAULT_PREFIX
from penstock.wire.identity import BadIdentity, Identity, NotValidNow, ProcessRole, TrustBundle
from penstock.wire.peer_keys import Keyring
from penstock.wire.region_key import KEY_BYTES, RegionKeys

PRIVATE_KEY = "tls.key"
CERTIFICATE = "tls.crt"
AUTHORITIES = "ca.crt"
REVOKED = "revoked"
REGION_KEY = "region.key"

MAX_REGION_KEYS = 3
"""Maximum number of keys of a region, during a rotation."""

REMEDY = "make the directory with `penstock certs issue`"

_log = structlog.get_logger(__name__)


class IdentityFiles:
    """Loads the identity of this process, and loads it again when its files change.

    Args:
        directory: directory of the files.
        role: the role that the certificate must have.
        name: the name that the certificate must have.
        region: the region that the certificate of an agent must have; empty for a control plane.
        prefix: of the keys of the fleet in etcd.
        clock: Unix time, in seconds.

    Raises:
        BadSecret: a file is missing or unreadable, or its content is not usable; the message names the file and the
            remedy.
    """

    def __init__(
        self,
        directory: Path,
        role: ProcessRole,
        name: str,
        region: str = "",
        *,
        prefix: str = DEFAULT_PREFIX,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.directory = directory
        self._expected = (role, name, region)
        self._prefix = prefix
        self._clock = clock
        names = (PRIVATE_KEY, CERTIFICATE, AUTHORITIES, REVOKED)
        self._files = WatchedFiles([directory / name for name in names], self._load, self._use)
        self.keyring = Keyring(self._files.content)

    @property
    def problem(self) -> str:
        """Why the present files are not in force; empty if they are."""
        return self._files.problem

    @property
    def expires_at(self) -> float:
        """Unix time (s) at which the certificate of this process expires."""
        return self.keyring.identity.peer.not_after

    async def check(self) -> bool:
        """Does what `reload` does, but reads the files in a thread."""
        return await self._files.check()

    def reload(self) -> bool:
        """Reloads the files if they have changed, or could not be used. Returns whether a new identity is in use."""
        return self._files.reload_if_changed()

    def require_usable(self) -> None:
        """Raise BadSecret unless the present files are an identity of this process."""
        self._load()

    def _use(self, identity: Identity) -> None:
        self.keyring.use(identity)
        _log.info("identity reloaded", id=str(identity.id), serial=identity.peer.serial)

    def _load(self) -> Identity:
        identity = load_identity(self.directory, self._clock(), self._prefix)
        found = (identity.id.role, identity.id.name, identity.id.region)
        if found != self._expected:
            raise BadSecret(
                f"{self.directory / CERTIFICATE}: identifies {identity.id}, but this process is the "
                f"{' '.join(filter(None, self._expected))}; {REMEDY}"
            )
        return identity


def load_identity(directory: Path, now: float, prefix: str = DEFAULT_PREFIX) -> Identity:
    """Returns the identity in a directory.

    Args:
        now: Unix time, in seconds.
        prefix: see `Identity`.

    Raises:
        BadSecret: a file cannot be used; the message names the file and the remedy.
    """
    key = read_file(directory / PRIVATE_KEY, "private key", REMEDY)
    certificate = read_file(directory / CERTIFICATE, "certificate", REMEDY, public=True)
    trust = load_trust(directory)
    try:
        return Identity(key, certificate, trust, now, prefix)
    except NotValidNow as error:
        raise BadSecret(f"{directory}: {error}; renew it with `penstock certs rotate`, or set the clock") from None
    except BadIdentity as error:
        raise BadSecret(f"{directory}: {error}; {REMEDY}") from None


def load_region_keys(path: Path, prefix: str = DEFAULT_PREFIX) -> RegionKeys:
    """Returns the keys that the agents of a region share (see `RegionKeys`), from a file with one key a line.

    Args:
        prefix: see `RegionKeys`.

    Raises:
        BadSecret: the file cannot be used; the message names the file and the remedy.
    """
    remedy = f"{REMEDY}, or copy the file from another agent of the region"
    lines = read_file(path, "key of the region", remedy).split()
    try:
        keys = tuple(bytes.fromhex(line.decode()) for line in lines)
    except ValueError:
        keys = ()
    if not 1 <= len(keys) <= MAX_REGION_KEYS or any(len(key) != KEY_BYTES for key in keys):
        count = f"1 to {MAX_REGION_KEYS} lines of {2 * KEY_BYTES} hexadecimal characters"
        raise BadSecret(f"{path}: not {count}; {remedy}")
    return RegionKeys(*keys, prefix=prefix)


def load_trust(directory: Path) -> TrustBundle:
    """Returns the authorities and revoked certificates of a directory.

    Raises:
        BadSecret: a file cannot be used.
    """
    path = directory / AUTHORITIES
    try:
        authorities = x509.load_pem_x509_certificates(read_file(path, "authority's certificate", REMEDY, public=True))
    except ValueError as error:
        raise BadSecret(f"{path}: not PEM certificates: {error}; {REMEDY}") from None
    return TrustBundle(authorities, _revoked(directory / REVOKED))


def _revoked(path: Path) -> frozenset[str]:
    if not path.exists():
        return frozenset()
    lines = read_file(path, "revocation list", "remove the file, or list serial numbers", public=True).decode("latin-1")
    serials = {line.partition("#")[0].strip().lower().removeprefix("0x") for line in lines.splitlines()} - {""}
    for serial in serials:
        if not all(digit in "0123456789abcdef" for digit in serial):
            raise BadSecret(f"{path}: {serial[:80]!r} is no serial number; write one hexadecimal number a line")
    if not serials:
        # A crash or a full disk truncates files, which must not accept revoked certificates again.
        raise BadSecret(f"{path}: lists no serial number; restore its content, or remove the file if none is revoked")
    return frozenset(serial.lstrip("0") for serial in serials)
