"""An entry of the endpoints file for a Service or an InferencePool of Kubernetes.

- name: llama
  kubernetes: {namespace: inference, service: llama, port: http}
  models: [llama-3-8b]
  slots: 16
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from regional_agent.endpoints.discovery.discovered_server import DiscoveredServer, expanded
from regional_agent.endpoints.endpoint_fields import EndpointSpec
from regional_agent.endpoints.endpoint_options import FILE_CHECKS, InvalidField, Pairs, text
from regional_agent.upstream.address import Address

ACCOUNT_DIR: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Directory in which the kubelet mounts the token and the authorities of a pod's service account."""

API_SERVER: Final = Address("kubernetes.default.svc", 443, tls=True)
"""The API server of the cluster that the agent runs in."""

LABELS: Final[Mapping[str, str]] = {
    field: f"penstock/{field}" for field in ("models", "slots", "engine", "zone", "accelerator", "pool")
}
"""By field of the endpoints file, the label or annotation that contains its value, unless the entry names another."""

_DNS_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_SUBDOMAIN: Final = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_PORT_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_LABEL_NAME: Final = re.compile(r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


class KubernetesSource(msgspec.Struct, frozen=True):
    """A Service or InferencePool to watch, and the API server and the service account to use."""

    namespace: str
    service: str = ""
    inference_pool: str = ""
    """Name of the InferencePool; either `inference_pool` or `service` is set."""
    port: str | int | None = None
    """Name or number of the Service's port; None for its only port."""
    scheme: str = "http"
    """Scheme of requests to the servers: `http` or `https`."""
    api_server: Address = API_SERVER
    token_file: str = f"{ACCOUNT_DIR}/token"
    ca_file: str = f"{ACCOUNT_DIR}/ca.crt"
    labels: Pairs = tuple(LABELS.items())
    """The label or annotation of each field; see LABELS."""

    @property
    def key(self) -> str:
        """The key of this source in the status and in the stored answers."""
        what = f"services/{self.service}" if self.service else f"inferencepools/{self.inference_pool}"
        port = "" if self.port is None else f":{self.port}"
        return f"https://{self.api_server}/{self.namespace}/{what}{port}"


class KubernetesEntry(msgspec.Struct, frozen=True):
    """One endpoint for each server of a Service or an InferencePool."""

    template: EndpointSpec
    """Template of the endpoints, with the fields that the objects do not contain; its address has no host."""
    source: KubernetesSource

    def expanded(self, servers: tuple[DiscoveredServer, ...]) -> tuple[EndpointSpec, ...]:
        """Return the endpoints of the servers."""
        return expanded(self.template, servers)


def read_source(value: Any) -> KubernetesSource:
    """Parse the field `kubernetes` of an entry; raises InvalidField."""
    if not isinstance(value, dict):
        raise InvalidField("not a mapping; write {namespace: ..., service: ..., port: ...}")
    parsed: dict[str, Any] = {}
    labels = dict(LABELS)
    for field, given in value.items():
        if field in _LABEL_FIELDS:
            labels[_LABEL_FIELDS[field]] = _matching(_LABEL_NAME, "a label, such as example.com/models", field, given)
        elif field in _CHECKS:
            try:
                parsed[field] = _CHECKS[field](given)
            except InvalidField as error:
                raise InvalidField(f"{field}: {error}") from None
        else:
            raise InvalidField(f"{field}: no such field; use one of {', '.join((*_CHECKS, *_LABEL_FIELDS))}")
    if "namespace" not in parsed:
        raise InvalidField("namespace: missing; add it")
    if ("service" in parsed) is ("inference_pool" in parsed):
        raise InvalidField("name either a service or an inference_pool")
    if "inference_pool" in parsed and "port" in parsed:
        raise InvalidField("port: the InferencePool contains its ports; remove this one")
    return KubernetesSource(**parsed, labels=tuple(labels.items()))


def default_server_name(source: KubernetesSource) -> str:
    """Return the name in the certificates of a Service's servers; empty for an InferencePool."""
    return f"{source.service}.{source.namespace}.svc" if source.service else ""


def _matching(pattern: re.Pattern[str], what: str, field: str, value: Any) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise InvalidField(f"{field}: {str(value)[:80]!r} is not {what}")
    return value


def _named(pattern: re.Pattern[str], what: str) -> Callable[[Any], str]:

    def check(value: Any) -> str:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise InvalidField(f"{str(value)[:80]!r} is not the name of {what}; write it as in the cluster")
        return value

    return check


def _port(value: Any) -> str | int:
    if isinstance(value, int) and 0 < value < 65536:
        return value
    if isinstance(value, str) and _PORT_NAME.fullmatch(value):
        return value
    raise InvalidField("not a port; write the name or the number of a port of the Service")


def _scheme(value: Any) -> str:
    if value not in ("http", "https"):
        raise InvalidField("not http or https")
    return str(value)


def _api_server(value: Any) -> Address:
    try:
        address = Address.parse(text(value))
    except ValueError:
        address = None
    if address is None or not address.tls or urlsplit(value).path not in ("", "/"):
        raise InvalidField("not of the form https://host:port, such as https://kubernetes.default.svc:443")
    return address


_CHECKS: Final[dict[str, Callable[[Any], Any]]] = {
    "namespace": _named(_DNS_LABEL, "a namespace"),
    "service": _named(_DNS_LABEL, "a Service"),
    "inference_pool": _named(_SUBDOMAIN, "an InferencePool"),
    "port": _port,
    "scheme": _scheme,
    "api_server": _api_server,
    "token_file": FILE_CHECKS["credential_file"][1],
    "ca_file": FILE_CHECKS["ca_file"][1],
}
_LABEL_FIELDS: Final = {f"{field}_label": field for field in LABELS}
