"""The fields of Kubernetes objects from which endpoints are created, and the servers that the objects list.

Sources: EndpointSlice (discovery.k8s.io/v1), Pod (v1), https://kubernetes.io/docs/reference/kubernetes-api/;
InferencePool (inference.networking.k8s.io/v1), https://gateway-api-inference-extension.sigs.k8s.io/reference/spec/.

A server receives new requests while it is ready and not terminating. Any other server is omitted from the result, so
that its endpoint drains: the server completes its running requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from typing import Final, NamedTuple

import msgspec

from regional_agent.endpoints.discovery.discovered_server import (
    MAX_PROBLEMS,
    Attributes,
    DiscoveredServer,
    of_one_family,
    read_attributes,
)

ADDRESS_TYPES: Final = ("IPv4", "IPv6")
ZONE_LABEL: Final = "topology.kubernetes.io/zone"


class Metadata(msgspec.Struct, frozen=True, rename="camel"):
    """Metadata of an object."""

    name: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    deletion_timestamp: str | None = None


class KubernetesObject(msgspec.Struct, frozen=True, rename="camel"):
    """The fields that all objects have."""

    metadata: Metadata


class EndpointConditions(msgspec.Struct, frozen=True):
    """Conditions of an endpoint of a slice; None is unknown, which the API counts as ready and as not terminating."""

    ready: bool | None = None
    terminating: bool | None = None


class SliceEndpoint(msgspec.Struct, frozen=True):
    """One endpoint of a slice."""

    addresses: list[str]
    conditions: EndpointConditions = EndpointConditions()
    zone: str | None = None


class SlicePort(msgspec.Struct, frozen=True):
    """One port of a slice."""

    name: str | None = None
    port: int | None = None


class EndpointSlice(KubernetesObject, frozen=True, rename="camel"):
    """A part of the endpoints of a Service."""

    address_type: str
    endpoints: list[SliceEndpoint] | None = None
    ports: list[SlicePort] | None = None


class PodCondition(msgspec.Struct, frozen=True):
    """A condition of a pod."""

    type: str
    status: str


class PodStatus(msgspec.Struct, frozen=True):
    """The status of a pod."""

    pod_ip: str | None = msgspec.field(name="podIP", default=None)
    conditions: list[PodCondition] | None = None


class Pod(KubernetesObject, frozen=True, rename="camel"):
    """A pod."""

    status: PodStatus = PodStatus()


class PoolSelector(msgspec.Struct, frozen=True, rename="camel"):
    """Labels of the pods of a pool."""

    match_labels: dict[str, str]


class PoolPort(msgspec.Struct, frozen=True):
    """A port that each pod of a pool listens on."""

    number: int


class PoolSpec(msgspec.Struct, frozen=True, rename="camel"):
    """The pods of a pool and their ports."""

    selector: PoolSelector
    target_ports: list[PoolPort]


class InferencePool(KubernetesObject, frozen=True, rename="camel"):
    """A pool of model servers."""

    spec: PoolSpec


class Listed(NamedTuple):
    """The servers of a collection of objects, and the problems of these objects."""

    servers: tuple[DiscoveredServer, ...]
    problems: tuple[str, ...]


def servers_of_slices(slices: Iterable[EndpointSlice], port: str | int | None, labels: Mapping[str, str]) -> Listed:
    """Return the servers of a Service that accept new requests.

    Args:
        slices: all slices of the Service. Slices have the labels of the Service, and two slices may contain the same
            endpoint.
        port: name or number of the port; None for the only port.
        labels: by field of the endpoints file, the label or annotation that contains the field.
    """
    servers: list[DiscoveredServer] = []
    problems: list[str] = []
    for part in slices:
        where = f"EndpointSlice {part.metadata.name}"
        if part.address_type not in ADDRESS_TYPES or not part.endpoints:
            continue
        number = _port_number(part.ports or [], port)
        if number is None:
            names = ", ".join(each.name or str(each.port) for each in part.ports or []) or "none"
            problems.append(f"{where}: has the ports {names}; name one of them in `port`")
            continue
        attributes = read_attributes(_values(part.metadata, labels), where, problems)
        for endpoint in part.endpoints:
            if endpoint.conditions.ready is False or endpoint.conditions.terminating:
                continue
            zone = attributes.zone or _zone(endpoint.zone or "", where, problems)
            servers += [_server(address, number, attributes, zone) for address in endpoint.addresses]
    return _listed(servers, problems)


def servers_of_pods(pods: Iterable[Pod], ports: Iterable[int], labels: Mapping[str, str]) -> Listed:
    """Return the servers of an InferencePool that accept new requests: each port of each ready pod.

    Args:
        pods: the pods that the selector of the pool matches.
        ports: the target ports of the pool.
        labels: labels or annotations of the pods; see `servers_of_slices`.
    """
    servers: list[DiscoveredServer] = []
    problems: list[str] = []
    ports = tuple(ports)
    for pod in pods:
        if not pod.status.pod_ip or pod.metadata.deletion_timestamp is not None or not _is_ready(pod):
            continue
        where = f"Pod {pod.metadata.name}"
        attributes = read_attributes(_values(pod.metadata, labels), where, problems)
        zone = attributes.zone or _zone((pod.metadata.labels or {}).get(ZONE_LABEL, ""), where, problems)
        servers += [_server(pod.status.pod_ip, port, attributes, zone) for port in ports]
    return _listed(servers, problems)


def _is_ready(pod: Pod) -> bool:
    return any(each.type == "Ready" and each.status == "True" for each in pod.status.conditions or ())


def _port_number(ports: list[SlicePort], port: str | int | None) -> int | None:
    if isinstance(port, int):
        return port
    matching = [each.port for each in ports if port is None or each.name == port]
    return matching[0] if len(matching) == 1 else None


def _values(metadata: Metadata, labels: Mapping[str, str]) -> dict[str, str]:
    """Return the texts of an object by field. Annotations override labels, since labels cannot contain every name."""
    there = {**(metadata.labels or {}), **(metadata.annotations or {})}
    return {field: there[label] for field, label in labels.items() if label in there}


def _zone(value: str, where: str, problems: list[str]) -> str:
    return read_attributes({"zone": value}, where, problems).zone if value else ""


def _server(address: str, port: int, attributes: Attributes, zone: str) -> DiscoveredServer:
    return DiscoveredServer(address, port, **{**msgspec.structs.asdict(attributes), "zone": zone})


def _listed(servers: list[DiscoveredServer], problems: list[str]) -> Listed:
    """Return the servers with a valid address and port, each address and port once, and the problems."""
    unique: dict[tuple[str, int], DiscoveredServer] = {}
    invalid = 0
    for server in servers:
        address = _canonical(server.address)
        if address and 0 < server.port < 65536:
            unique[address, server.port] = msgspec.structs.replace(server, address=address)
        else:
            invalid += 1
    if invalid:
        problems.append(f"{invalid} addresses or ports are invalid and not used")
    usable = of_one_family([unique[key] for key in sorted(unique)])
    return Listed(tuple(usable), tuple(dict.fromkeys(problems))[:MAX_PROBLEMS])


def _canonical(text: str) -> str:
    """Return an address in its shortest form, so that all agents name its endpoint alike; empty if it is invalid."""
    try:
        return "" if "%" in text else str(ip_address(text))
    except ValueError:
        return ""
