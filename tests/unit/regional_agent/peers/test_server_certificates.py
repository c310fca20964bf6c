"""The certificates that are accepted at addresses of control planes; test_peer_tls covers agents."""

from __future__ import annotations

import pytest

from penstock.wire.identity import BadIdentity, Identity, ProcessRole, SpiffeId
from regional_agent.peers.server_certificates import ControlPlaneCertificateCheck
from regional_agent.upstream.address import Address
from tests.support.identities import FLEET, agent_id, agent_keyring, control_plane_id, identity

CONTROL_PLANE = Address("cp.example", 443, tls=True)


@pytest.fixture
def check() -> ControlPlaneCertificateCheck:
    return ControlPlaneCertificateCheck(agent_keyring())


def test_a_control_plane_is_accepted(check: ControlPlaneCertificateCheck) -> None:
    check(CONTROL_PLANE, identity(control_plane_id()).peer.certificate)


@pytest.mark.parametrize(
    "other",
    [
        identity(agent_id("us-east")),
        identity(SpiffeId(FLEET, ProcessRole.SERVER, "etcd-1")),
        identity(SpiffeId(FLEET, ProcessRole.MONITOR, "prometheus")),
        identity(control_plane_id(), fleet=1),
    ],
    ids=repr,
)
def test_other_processes_are_not(check: ControlPlaneCertificateCheck, other: Identity) -> None:
    with pytest.raises(BadIdentity):
        check(CONTROL_PLANE, other.peer.certificate)
