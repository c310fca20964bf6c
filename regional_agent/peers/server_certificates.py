"""Verifies that the server of a TLS connection is an agent of the expected region, or a control plane."""

from __future__ import annotations

import time
from collections.abc import Callable

from penstock.wire.identity import BadIdentity, ProcessRole, SpiffeId, has_spiffe_id
from penstock.wire.peer_keys import Keyring
from regional_agent.upstream.address import Address


class AgentCertificateCheck:
    """Verifies the certificates of other regions' agents by their SPIFFE ID; host names are not checked."""

    def __init__(self, keyring: Keyring, clock: Callable[[], float] = time.time) -> None:
        """Create the check.

        Args:
            keyring: contains the certificate authorities of the fleet and the revoked certificates.
            clock: Unix time, in seconds.
        """
        self._keyring = keyring
        self._clock = clock

    def __call__(self, address: Address, certificate: bytes) -> None:
        """Raise BadIdentity unless `certificate` (DER) belongs to an agent of the region of `address`."""
        found = self._keyring.identity.trust.verify(certificate, self._clock())
        require_agent_of(address.region, found.id)


class ControlPlaneCertificateCheck:
    """Verifies the servers at the addresses of control planes.

    A certificate of the fleet must belong to a control plane, so that a stolen agent certificate does not suffice to
    receive reports. A certificate of another authority has no SPIFFE ID; TLS has verified its host name.
    """

    def __init__(self, keyring: Keyring, clock: Callable[[], float] = time.time) -> None:
        """Create the check; the arguments are those of AgentCertificateCheck."""
        self._keyring = keyring
        self._clock = clock

    def __call__(self, address: Address, certificate: bytes) -> None:
        """Raise BadIdentity if `certificate` (DER) belongs to a process of the fleet that is not a control plane."""
        if has_spiffe_id(certificate):
            self._keyring.identity.trust.verify(certificate, self._clock(), (ProcessRole.CONTROL_PLANE,))


def require_agent_of(region: str, found: SpiffeId) -> None:
    """Raise BadIdentity unless `found` identifies an agent of `region`."""
    if found.role is not ProcessRole.AGENT or found.region != region:
        raise BadIdentity(f"{found} is not an agent of region {region!r}")
