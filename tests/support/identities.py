"""Identities for tests: a certificate authority of a fleet, and processes with certificates of it."""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path

from adapters.identity_files import AUTHORITIES, CERTIFICATE, PRIVATE_KEY
from penstock.wire.authority import Authority, make_authority
from penstock.wire.identity import Identity, ProcessRole, SpiffeId, TrustBundle
from penstock.wire.session import Session, Sessions

FLEET = "test"
YEAR_S = 365 * 86_400.0
HOSTS = ("localhost", "127.0.0.1", "::1")


def authority(fleet: int = 0) -> Authority:
    """An authority of the fleet `test`; those of other numbers are of other fleets with the same name."""
    return _authority_and_trust(fleet)[0]


def trust(fleet: int = 0) -> TrustBundle:
    return _authority_and_trust(fleet)[1]


@cache
def _authority_and_trust(fleet: int) -> tuple[Authority, TrustBundle]:
    made = Authority(*make_authority(FLEET, time.time(), 10 * YEAR_S))
    return made, TrustBundle([made.certificate])


def agent_id(region: str = "eu", name: str = "agent-1") -> SpiffeId:
    return SpiffeId(FLEET, ProcessRole.AGENT, name, region)


def control_plane_id(name: str = "cp-1") -> SpiffeId:
    return SpiffeId(FLEET, ProcessRole.CONTROL_PLANE, name)


@cache
def identity(id_: SpiffeId, fleet: int = 0) -> Identity:
    key, certificate = authority(fleet).issue(id_, HOSTS, time.time(), YEAR_S)
    return Identity(key, certificate, trust(fleet), time.time())


def sessions(id_: SpiffeId, fleet: int = 0) -> Sessions:
    return Sessions(identity(id_, fleet))


def agent_sessions(region: str = "eu", name: str = "agent-1", fleet: int = 0) -> Sessions:
    return sessions(agent_id(region, name), fleet)


def control_plane_sessions(name: str = "cp-1", fleet: int = 0) -> Sessions:
    return sessions(control_plane_id(name), fleet)


def introduce(sender: Sessions, receiver: Sessions) -> Session:
    """The session of `sender` with `receiver`, each of which has received the other's certificate."""
    receiver.session_with(sender.identity.peer.certificate, time.time())
    return sender.session_with(receiver.identity.peer.certificate, time.time())


def write_identity(directory: Path, id_: SpiffeId, fleet: int = 0, lifetime_s: float = YEAR_S) -> Path:
    """Writes the files of a new certificate into `directory`, as `penstock certs issue` does."""
    directory.mkdir(parents=True, exist_ok=True)
    key, certificate = authority(fleet).issue(id_, HOSTS, time.time(), lifetime_s)
    (directory / PRIVATE_KEY).touch(mode=0o600)
    (directory / PRIVATE_KEY).write_bytes(key)
    (directory / CERTIFICATE).write_bytes(certificate)
    (directory / AUTHORITIES).write_bytes(authority(fleet).pem)
    return directory
