"""Identities for tests: the certificate authority of a fleet, and certificates of processes."""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path
from threading import Lock

import msgspec

from adapters.files.authority_files import issue_identity
from adapters.files.identity_files import AUTHORITIES, CERTIFICATE, PRIVATE_KEY, REGION_KEY
from penstock.wire.authority import Authority, make_authority
from penstock.wire.fleet_prefix import DEFAULT_PREFIX
from penstock.wire.identity import Identity, ProcessRole, SpiffeId, TrustBundle
from penstock.wire.peer_keys import Keyring, PeerKeys

FLEET = "test"
CONTROL_PLANE = "cp-1"
"""Name of the control plane in tests with one control plane."""
YEAR_S = 365 * 86_400.0
START = time.time() - 86_400.0
"""Unix time (s) from which certificates are valid, earlier than any time that a test module reads at import."""
HOSTS = ("localhost", "127.0.0.1", "::1")

_making = Lock()
"""Ensures that concurrent threads use the same authority."""


def authority(fleet: int = 0) -> Authority:
    """The authority of a fleet; all fleets have the name `test`."""
    with _making:
        return _authority_and_trust(fleet)[0]


def trust(fleet: int = 0) -> TrustBundle:
    with _making:
        return _authority_and_trust(fleet)[1]


@cache
def _authority_and_trust(fleet: int) -> tuple[Authority, TrustBundle]:
    made = Authority(*make_authority(FLEET, START, 10 * YEAR_S))
    return made, TrustBundle([made.certificate])


def agent_id(region: str = "eu", name: str = "agent-1") -> SpiffeId:
    return SpiffeId(FLEET, ProcessRole.AGENT, name, region)


def control_plane_id(name: str = CONTROL_PLANE) -> SpiffeId:
    return SpiffeId(FLEET, ProcessRole.CONTROL_PLANE, name)


@cache
def _issued(id_: SpiffeId, fleet: int) -> tuple[bytes, bytes]:
    return authority(fleet).issue(id_, HOSTS, START, YEAR_S)


def identity(id_: SpiffeId, fleet: int = 0) -> Identity:
    """The identity of a process, the same as in the files that `write_identity` writes."""
    return Identity(*_issued(id_, fleet), trust(fleet), time.time())


def keyring(id_: SpiffeId, fleet: int = 0) -> Keyring:
    return Keyring(identity(id_, fleet))


def agent_keyring(region: str = "eu", name: str = "agent-1", fleet: int = 0) -> Keyring:
    return keyring(agent_id(region, name), fleet)


def control_plane_keyring(name: str = CONTROL_PLANE, fleet: int = 0) -> Keyring:
    return keyring(control_plane_id(name), fleet)


def keyring_of_fleet(id_: SpiffeId, prefix: str = DEFAULT_PREFIX, name: str = FLEET) -> Keyring:
    """The keys of a process of another fleet of the same authority: with another prefix, or another name."""
    id_ = msgspec.structs.replace(id_, trust_domain=name)
    return Keyring(Identity(*_issued(id_, 0), trust(), time.time(), prefix))


def introduce(sender: Keyring, receiver: Keyring) -> PeerKeys:
    """The keys that `sender` shares with `receiver`, after both have received the other's certificate."""
    receiver.keys_with(sender.identity.peer.certificate, time.time())
    return sender.keys_with(receiver.identity.peer.certificate, time.time())


@cache
def region_keyring(region: str) -> Keyring:
    """The keys of the only agent of a region, for tests whose agents share a process."""
    return agent_keyring(region)


def keys_between(sender: str, receiver: str) -> PeerKeys:
    """The keys shared by the only agent of a region with the only agent of another region."""
    return introduce(region_keyring(sender), region_keyring(receiver))


def write_identity(directory: Path, id_: SpiffeId, fleet: int = 0) -> Path:
    """Write the files of an identity into `directory`, as `penstock certs issue` does."""
    key, certificate = _issued(id_, fleet)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / PRIVATE_KEY).touch(mode=0o600)
    (directory / PRIVATE_KEY).write_bytes(key)
    if id_.role is ProcessRole.AGENT:
        (directory / REGION_KEY).touch(mode=0o600)
        (directory / REGION_KEY).write_text(authority(fleet).region_key(id_.region).hex())
    (directory / CERTIFICATE).write_bytes(certificate)
    (directory / AUTHORITIES).write_bytes(authority(fleet).pem)
    return directory


def renew_identity(directory: Path, id_: SpiffeId) -> None:
    """Replace the key and the certificate in `directory`."""
    issue_identity(authority(), id_, HOSTS, directory, YEAR_S)
