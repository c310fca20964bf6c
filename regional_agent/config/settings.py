"""The settings of an agent: environment variables `PENSTOCK_AGENT_<FIELD>`, validated before the agent starts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Any

import msgspec
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    InstanceOf,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict
from redis.asyncio.connection import parse_url as parse_redis_url

from adapters.store.keys import DEFAULT_PREFIX, key_prefix
from adapters.store.members import named
from penstock.wire.route_context import MAX_DEADLINE_S
from regional_agent.http.header_rules import HOP_BY_HOP, NOT_FOR_ENGINES, OWN_PREFIX
from regional_agent.http.limits import Limits
from regional_agent.http.request_head import SINGLE_HEADERS
from regional_agent.upstream.address import Address

PREFIX = "PENSTOCK_AGENT_"

_HEADER_NAME = re.compile(r"(?=.{1,64}$)[A-Za-z0-9]+(-[A-Za-z0-9]+)*")
_RESERVED_HEADERS = NOT_FOR_ENGINES | HOP_BY_HOP | frozenset(SINGLE_HEADERS)
"""Headers that already have a meaning to the agent or to engines."""


class BadSettings(Exception):
    """Invalid settings. The message has one line per problem: the environment variable and the reason."""


def _host_port(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    host, colon, port = value.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{value!r} is not of the form host:port, such as 127.0.0.1:8080 (port 0 selects a free port)")
    return Address(host.strip("[]"), int(port))


def _list(value: Any) -> Any:
    """Parse a list in an environment variable: comma-separated, or JSON."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        return _json_object(value)
    return [part.strip() for part in value.split(",") if part.strip()]


def _json_object(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from None


def _network(value: Any) -> Any:
    return ip_network(value) if isinstance(value, str) else value


def _limits(value: Any) -> Any:
    """Parse a JSON object of the limits that differ from their defaults."""
    try:
        limits = msgspec.json.decode(value, type=Limits) if isinstance(value, str) else value
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{error}; the fields are in regional_agent/http/limits.py") from None
    if isinstance(limits, Limits):
        for name, number in msgspec.structs.asdict(limits).items():
            if number is None:
                continue
            if number < 0 or (number == 0 and name != "idle_linger_s"):
                raise ValueError(f"{name} is {number}; it must be more than 0")
            if name.endswith("_s") and number > MAX_DEADLINE_S:
                raise ValueError(f"{name} is {number}; it must be at most one day ({MAX_DEADLINE_S:g})")
    return limits


def _location_header(value: str) -> str:
    if value and not _HEADER_NAME.fullmatch(value):
        raise ValueError(f"{value!r} is not a header name of 1 to 64 letters, digits and hyphens, such as X-Country")
    name = value.lower().encode()
    if name in _RESERVED_HEADERS or name.startswith(OWN_PREFIX):
        raise ValueError(f"{value} has another meaning; configure the proxies to use a separate header")
    return value


def _http_url(value: str) -> str:
    Address.parse(value)
    return value.rstrip("/")


Listen = Annotated[Address, NoDecode, BeforeValidator(_host_port)]
Name = Annotated[str, AfterValidator(named)]
HttpUrl = Annotated[str, BeforeValidator(_http_url)]
Network = Annotated[IPv4Network | IPv6Network, BeforeValidator(_network)]


class AgentSettings(BaseSettings):
    """The settings of one agent. Whatever the agents of a fleet have in common is in the policy."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_ignore_empty=True, extra="forbid", frozen=True)

    region: Name
    """Name of the agent's region, as in the policy."""
    name: Name
    """Name of the agent: unique in its region, and unchanged by a restart."""
    zone: Annotated[str, Field(max_length=63)] = ""
    """The agent's zone (failure domain), as in the endpoints file. Endpoints of the same zone are preferred if their
    expected completion time is about as short as the best. Empty disables the preference."""
    traffic_listen: Listen
    """host:port of the listener for clients; port 0 selects a free port."""
    peer_listen: Listen
    """host:port of the listener for agents of other regions."""
    admin_listen: Listen
    """host:port of the listener for health checks, metrics, status and registration of endpoints."""
    advertise_peer_url: HttpUrl | None = None
    """URL at which agents of other regions reach this agent: https://host:port. Default: the address of
    `peer_listen`."""
    peer_urls: Annotated[dict[Name, tuple[HttpUrl, ...]], NoDecode, BeforeValidator(_json_object)] = {}
    """https URLs of other regions' agents, as a JSON object of lists by region. For regions that are not listed, the
    agents' registrations in etcd are used."""
    allow_plaintext_peers: bool = False
    """Serve other regions' agents plain HTTP instead of TLS, and accept their http URLs. Requests between regions are
    then signed but not encrypted. Only for networks that encrypt all traffic."""
    etcd_endpoints: Annotated[tuple[Annotated[str, BeforeValidator(str)], ...], NoDecode, BeforeValidator(_list)]
    """host:port of each etcd member; comma-separated."""
    etcd_prefix: Annotated[str, AfterValidator(key_prefix)] = DEFAULT_PREFIX
    """What every key of the fleet starts with in etcd. Fleets that share an etcd have different prefixes."""
    etcd_ca_file: Path | None = None
    """PEM certificates of the authorities that sign etcd's certificates. Default: connect without TLS."""
    etcd_certificate_file: Path | None = None
    """PEM client certificate for etcd. Default: none."""
    etcd_key_file: Path | None = None
    """Private key of `etcd_certificate_file`, unencrypted PEM."""
    control_plane_urls: Annotated[tuple[HttpUrl, ...], NoDecode, BeforeValidator(_list)] = ()
    """http://host:port of control planes, comma-separated. Reports are sent to one of them while the leader is
    unknown."""
    redis_url: SecretStr | None = None
    """The Redis that the agents of the region share, as redis://[user:password@]host:port/db. Default: none, for a
    region with one agent."""
    endpoints_file: Path
    """YAML file with the endpoints of the region; reloaded when it changes."""
    registration_token_file: Path | None = None
    """File with the tokens for the registration of endpoints on the admin listener, one per line; reloaded when it
    changes. Default: registration is rejected."""
    warm_up_s: Annotated[float, Field(ge=0.0, le=600.0)] = 30.0
    """Time (s) over which the weight of an endpoint grows to 1 after it becomes ready or returns from ejection."""
    ejection_s: Annotated[float, Field(gt=0.0, le=120.0)] = 5.0
    """Duration (s) of the first ejection of an endpoint; consecutive ejections are longer, at most 120 s."""
    max_ejected_share: Annotated[float, Field(ge=0.0, le=1.0)] = 0.5
    """Maximum share (0-1) of the endpoints of one model that may be ejected at the same time; 0 disables ejection."""
    suspect_after_s: Annotated[float, Field(ge=0.0, le=600.0)] = 10.0
    """Time (s) without a byte from any request of an endpoint, while one is overdue and other endpoints progress, after
    which the endpoint is suspect: it receives no new requests, and waiting ones are sent elsewhere. At least 5 where
    responses are streamed; 0 disables this."""
    server_errors_eject: bool = True
    """Whether 5xx responses other than 502, 503 and 504 count as failures. Set to false if clients can provoke them."""
    geoip_file: Path | None = None
    """MaxMind City or Country database; read into memory, and reloaded when it changes. Default: none, so that clients'
    locations are unknown."""
    identity_dir: Path
    """Directory with the certificate of this agent (`tls.crt`, `tls.key`, `ca.crt`), as `penstock certs issue` writes
    it; reloaded when it changes. Agents of other regions are served, and connected to, with this certificate. With
    `REDIS_URL` also `region.key`, the key that the region's agents share, which is read at start."""
    state_dir: Path
    """Directory of this agent alone, for the last-known-good configuration and registered endpoints; created if
    missing."""
    trusted_proxies: Annotated[tuple[Network, ...], NoDecode, BeforeValidator(_list)] = ()
    """Networks (CIDR) of proxies whose X-Forwarded-For is trusted; comma-separated."""
    location_header: Annotated[str, AfterValidator(_location_header)] = ""
    """Name of the header in which trusted proxies send the client's location (`DE`, `US-CA`). Every trusted proxy must
    set or remove the header. It takes precedence over the database, and is ignored from other senders. Empty: not
    used."""

    limits: Annotated[InstanceOf[Limits], NoDecode, BeforeValidator(_limits)] = Limits()
    """Limits of memory, connections and time that clients and engines may use: a JSON object of those fields of
    regional_agent/http/limits.py that differ from their defaults."""
    access_log_file: Path | None = None
    """File of the access log, one JSON line per request. It may be renamed for log rotation. Default: no access log."""
    access_log_share: Annotated[float, Field(ge=0.0, le=1.0)] = 1.0
    """Share (0-1) of successful requests that are logged; failed requests are always logged."""
    traffic_certificate_file: Path | None = None
    """PEM certificate chain of the traffic listener. Default: plain HTTP. This file and the files below are reloaded
    when they change; new connections use the new content."""
    traffic_key_file: Path | None = None
    """Private key of `traffic_certificate_file`, unencrypted PEM."""
    traffic_client_ca_file: Path | None = None
    """PEM certificates of the authorities that sign clients' certificates. Default: clients need no certificate."""
    upstream_ca_file: Path | None = None
    """PEM certificates of the authorities that sign the certificates of engines and control planes with https URLs.
    Default: the system's trust store. The fleet's own authority (`ca.crt` of `identity_dir`) is trusted too."""

    @model_validator(mode="after")
    def _require_reachable_peer_url(self) -> AgentSettings:
        if self.advertise_peer_url is None and self.peer_listen.host in ("0.0.0.0", "::"):
            raise ValueError(
                f"ADVERTISE_PEER_URL: {self.peer_listen.host} is a wildcard address, which other regions cannot"
                " connect to; set the URL to https://host:port"
            )
        return self

    @model_validator(mode="after")
    def _require_encrypted_peer_urls(self) -> AgentSettings:
        by_variable = {
            f"PEER_URLS[{region}][{n}]": url for region, urls in self.peer_urls.items() for n, url in enumerate(urls)
        }
        if self.advertise_peer_url is not None:
            by_variable["ADVERTISE_PEER_URL"] = self.advertise_peer_url
        for variable, url in by_variable.items():
            if not Address.parse(url).tls and not self.allow_plaintext_peers:
                raise ValueError(
                    f"{variable}: {url} is not encrypted; set it to an https URL, or set ALLOW_PLAINTEXT_PEERS=true"
                )
        return self

    @model_validator(mode="after")
    def _require_trusted_proxies(self) -> AgentSettings:
        if self.location_header and not self.trusted_proxies:
            raise ValueError("LOCATION_HEADER: only trusted proxies may send it; set TRUSTED_PROXIES too")
        return self

    @model_validator(mode="after")
    def _require_complete_tls_files(self) -> AgentSettings:
        traffic = (self.traffic_certificate_file, self.traffic_key_file)
        if (traffic[0] is None) != (traffic[1] is None) or (self.traffic_client_ca_file and traffic[0] is None):
            raise ValueError(
                "TRAFFIC_CERTIFICATE_FILE: requires TRAFFIC_KEY_FILE; set both (for TRAFFIC_CLIENT_CA_FILE too)"
            )
        if (self.etcd_certificate_file is None) != (self.etcd_key_file is None):
            raise ValueError("ETCD_CERTIFICATE_FILE: requires ETCD_KEY_FILE; set both")
        if self.etcd_certificate_file is not None and self.etcd_ca_file is None:
            raise ValueError("ETCD_CERTIFICATE_FILE: is used only with TLS; set ETCD_CA_FILE too")
        return self

    @field_validator("etcd_endpoints")
    @classmethod
    def _etcd_endpoints(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value:
            raise ValueError("name at least one etcd member as host:port")
        for endpoint in value:
            _host_port(endpoint)
        return value

    @field_validator("redis_url")
    @classmethod
    def _redis_url(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            try:
                parse_redis_url(value.get_secret_value())
            except ValueError:
                raise ValueError("not a Redis URL, such as redis://host:6379/0") from None
        return value


def load_settings(overrides: Mapping[str, Any] | None = None) -> AgentSettings:
    """Read the settings from the environment; `overrides`, by field name, take precedence.

    Raises:
        BadSettings: settings are missing or invalid; the message never contains a URL that may contain a password.
    """
    try:
        return AgentSettings(**(overrides or {}))
    except ValidationError as error:
        raise BadSettings("\n".join(_line(problem) for problem in error.errors())) from None


def _line(problem: Any) -> str:
    if not problem["loc"]:
        return PREFIX + str(problem["msg"]).removeprefix("Value error, ")
    field, *inside = (str(part) for part in problem["loc"])
    keys = "".join(f"[{part}]" for part in inside if "[" not in part)
    variable = PREFIX + field.upper().removeprefix(PREFIX) + keys
    if problem["type"] == "missing":
        return f"{variable}: not set"
    return f"{variable}: {problem['msg'].removeprefix('Value error, ')}"
