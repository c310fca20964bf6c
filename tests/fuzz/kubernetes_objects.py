"""Reads any EndpointSlice, Pod or InferencePool, as a Kubernetes API server may send it.

Property: the object is refused with KubernetesError; or each endpoint that follows from it has an address that an
engine can have, a valid name, and fields as the endpoints file accepts them.
"""

from __future__ import annotations

from ipaddress import ip_address

import msgspec

from penstock.wire.reserved_addresses import is_reserved
from regional_agent.endpoints.discovery.discovered_server import MAX_NAME, MAX_PROBLEMS, expanded
from regional_agent.endpoints.discovery.kubernetes_api import KubernetesError, decoded
from regional_agent.endpoints.discovery.kubernetes_entry import LABELS
from regional_agent.endpoints.discovery.kubernetes_objects import (
    EndpointSlice,
    InferencePool,
    Listed,
    Pod,
    servers_of_pods,
    servers_of_slices,
)
from regional_agent.endpoints.endpoint_fields import CHECKS, EndpointSpec
from regional_agent.upstream.address import Address, is_host

WORDS = (
    *(b'"metadata":{', b'"labels":{', b'"annotations":{', b'"addressType":"IPv6"', b'"endpoints":[', b'"addresses":['),
    *(b'"ports":[{"port":', b'"conditions":', b'"terminating":true', b'"podIP":"', b'"targetPorts":[{"number":'),
    *(b"::ffff:169.254.169.254", b"fd00::1%eth0", b"penstock/models", b"penstock/slots", b"auto"),
)

_TEMPLATE = EndpointSpec("x" * MAX_NAME, Address("", 0), ("m",), 4)


def check(data: bytes) -> None:
    """Raises AssertionError if the property does not hold."""
    for listed in _listings(data):
        assert len(listed.problems) <= MAX_PROBLEMS
        specs = expanded(_TEMPLATE, listed.servers)
        assert len({spec.name for spec in specs}) == len({spec.address for spec in specs}) == len(specs)
        for spec in specs:
            assert is_host(spec.address.host)
            assert ip_address(spec.address.host)
            assert not is_reserved(spec.address.host)
            assert 0 < spec.address.port < 65536
            assert CHECKS["name"][1](spec.name) == spec.name
            assert CHECKS["models"][1](list(spec.models)) == spec.models
            assert not spec.zone or CHECKS["zone"][1](spec.zone) == spec.zone
            assert spec.slots >= 0


def _listings(data: bytes) -> list[Listed]:
    found = []
    for kind in (EndpointSlice, Pod, InferencePool):
        try:
            item = decoded(msgspec.Raw(data), kind)
        except KubernetesError:
            continue
        if isinstance(item, EndpointSlice):
            found += [servers_of_slices([item], port, LABELS) for port in (None, 8000)]
        elif isinstance(item, Pod):
            found.append(servers_of_pods([item], (8000, 8001), LABELS))
        else:
            found.append(servers_of_pods([], [port.number for port in item.spec.target_ports], LABELS))
    return found
