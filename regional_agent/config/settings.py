"""What an agent is told at its start: environment variables `PENSTOCK_AGENT_<FIELD>`, checked before anything runs."""

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

from adapters.store.members import named
from penstock.wire.route_context import MAX_DEADLINE_S
from regional_agent.http.header_rules import HOP_BY_HOP, NOT_FOR_ENGINES, OWN_PREFIX
from regional_agent.http.limits import Limits
from regional_agent.http.request_head import SINGLE_HEADERS
from regional_agent.upstream.address import Address

PREFIX = "PENSTOCK_AGENT_"

_HEADER_NAME = re.compile(r"(?=.{1,64}$)[A-Za-z0-9]+(-[A-Za-z0-9]+)*")
_WITH_MEANING = NOT_FOR_ENGINES | HOP_BY_HOP | frozenset(SINGLE_HEADERS)
"""Headers that mean something else here, or to engines."""


class BadSettings(Exception):
    """Settings that cannot be used; one line for each, with the variable and what is wrong with it."""


def _host_port(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    host, colon, port = value.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{value!r} is not of the form host:port, such as 127.0.0.1:8080 (port 0 chooses a free one)")
    return Address(host.strip("[]"), int(port))


def _listed(value: Any) -> Any:
    """A list as people write it in an environment variable: comma-separated, or JSON."""
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
    """Limits as a JSON object of those that differ from what is usual."""
    try:
        limits = msgspec.json.decode(value, type=Limits) if isinstance(value, str) else value
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ValueError(f"{error}; the fields are in regional_agent/http/limits.py") from None
    if isinstance(limits, Limits):
        for name, number in msgspec.structs.asdict(limits).items():
            if number is None:
                continue
            if number < 0 or (number == 0 and name != "idle_linger_s"):
                raise ValueError(f"{name} is {number}; it must be more than 0")
            if name.endswith("_s") and number > MAX_DEADLINE_S:
                raise ValueError(f"{name} is {number}; it must be no more than a day ({MAX_DEADLINE_S:g})")
    return limits


def _location_header(value: str) -> str:
    if value and not _HEADER_NAME.fullmatch(value):
        raise ValueError(f"{value!r} is no name of a header of 1 to 64 letters, digits and hyphens, such as X-Country")
    name = value.lower().encode()
    if name in _WITH_MEANING or name.startswith(OWN_PREFIX):
        raise ValueError(f"{value} means something else here; have the proxies use a header of its own")
    return value


def _http_url(value: str) -> str:
    Address.parse(value)
    return value.rstrip("/")


Listen = Annotated[Address, NoDecode, BeforeValidator(_host_port)]
Name = Annotated[str, AfterValidator(named)]
HttpUrl = Annotated[str, BeforeValidator(_http_url)]
Network = Annotated[IPv4Network | IPv6Network, BeforeValidator(_network)]


class AgentSettings(BaseSettings):
    """Everything that differs between one agent and another. What policy says is not here."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_ignore_empty=True, extra="forbid", frozen=True)

    region: Name
    """Name of the region that this agent serves in, as policy spells it."""
    name: Name
    """The agent's seat: unique in its region, and the same after a restart."""
    zone: Annotated[str, Field(max_length=63)] = ""
    """The failure domain that it stands in, as the endpoints file spells it: endpoints there are preferred where they
    are done hardly later. Empty prefers none."""
    traffic_listen: Listen
    """host:port for clients; port 0 chooses a free one."""
    peer_listen: Listen
    """host:port for other regions' agents."""
    admin_listen: Listen
    """host:port for health, metrics and status."""
    advertise_peer_url: HttpUrl | None = None
    """Where other regions' agents reach this one, as http://host:port, or https where `peer_certificate_file` is set;
    None takes `peer_listen`."""
    peer_urls: Annotated[dict[Name, tuple[HttpUrl, ...]], NoDecode, BeforeValidator(_json_object)] = {}
    """Where to reach other regions' agents, by region, as JSON; a region that is not here is found by its agents'
    registrations."""
    etcd_endpoints: Annotated[tuple[Annotated[str, BeforeValidator(str)], ...], NoDecode, BeforeValidator(_listed)]
    """host:port of each etcd member; comma-separated."""
    etcd_ca_file: Path | None = None
    """PEM certificates of the authorities that sign etcd's; None connects to it without TLS."""
    etcd_certificate_file: Path | None = None
    """PEM certificate that this agent shows to etcd, where etcd asks for one."""
    etcd_key_file: Path | None = None
    """Its private key, unencrypted PEM."""
    control_plane_urls: Annotated[tuple[HttpUrl, ...], NoDecode, BeforeValidator(_listed)] = ()
    """http://host:port of control planes, for reports while the leader is not known; comma-separated."""
    redis_url: SecretStr | None = None
    """The Redis that the agents of this region share, as redis://[user:password@]host:port/db; None where the region
    has one agent."""
    endpoints_file: Path
    """YAML file with the region's endpoints; read again when it changes."""
    registration_token_file: Path | None = None
    """Tokens that let endpoints register themselves on the admin listener, one a line; None lets none."""
    warm_up_s: Annotated[float, Field(ge=0.0, le=600.0)] = 30.0
    """Time (s) over which an endpoint that has become ready, or was ejected, comes to get its whole share."""
    ejection_s: Annotated[float, Field(gt=0.0, le=120.0)] = 5.0
    """How long (s) an endpoint is out that failed requests for the first time; in a row it grows, to two minutes."""
    max_ejected_share: Annotated[float, Field(ge=0.0, le=1.0)] = 0.5
    """Share of the endpoints of one model (0-1) that failed requests may take out at once; 0 ejects none."""
    server_errors_eject: bool = True
    """Whether 5xx answers other than 502, 503 and 504 count as failures; false where clients can provoke them."""
    geoip_file: Path | None = None
    """MaxMind City or Country database, read into memory; read again when it changes. None leaves every client's
    location unknown."""
    fleet_key_file: Path
    """The fleet's shared secret, one key a line, newest first."""
    state_dir: Path
    """Directory of this agent's own, for the last-known-good configuration and who registered; made if missing."""
    trusted_proxies: Annotated[tuple[Network, ...], NoDecode, BeforeValidator(_listed)] = ()
    """Networks (CIDR) whose X-Forwarded-For is believed; comma-separated."""
    location_header: Annotated[str, AfterValidator(_location_header)] = ""
    """Name of the header in which the trusted proxies, each of them, say where the client is (`DE`, `US-CA`) and let no
    client say it; believed from them alone, before the database. Empty believes none."""

    limits: Annotated[InstanceOf[Limits], NoDecode, BeforeValidator(_limits)] = Limits()
    """What clients and engines may make this agent hold and wait for, as a JSON object of the fields of
    regional_agent/http/limits.py that are to differ from what they are there."""
    access_log_file: Path | None = None
    """Where a JSON line is written for each request; None writes none. It may be renamed under way."""
    access_log_share: Annotated[float, Field(ge=0.0, le=1.0)] = 1.0
    """Share of the requests that went well for which there is a line; those that did not always have one."""
    traffic_certificate_file: Path | None = None
    """PEM certificate chain for clients; None serves them plain HTTP. This and all files below are read again when
    they change, and used for the connections to come."""
    traffic_key_file: Path | None = None
    """Its private key, unencrypted PEM."""
    traffic_client_ca_file: Path | None = None
    """PEM certificates of the authorities that sign clients' certificates; None asks clients for none."""
    peer_certificate_file: Path | None = None
    """PEM certificate chain that this agent shows to other agents, as server and as client; it must be good for the
    host in `advertise_peer_url`. None leaves traffic between agents to plain HTTP, signed but not encrypted."""
    peer_key_file: Path | None = None
    """Its private key, unencrypted PEM."""
    peer_ca_file: Path | None = None
    """PEM certificates of the authorities that sign agents' certificates."""
    upstream_ca_file: Path | None = None
    """PEM certificates of the authorities that sign those of engines and control planes with https URLs; None takes
    what the system trusts."""

    @model_validator(mode="after")
    def _others_can_reach_it(self) -> AgentSettings:
        if self.advertise_peer_url is None and self.peer_listen.host in ("0.0.0.0", "::"):
            raise ValueError(
                f"ADVERTISE_PEER_URL: {self.peer_listen.host} is every address of this machine and none that others can"
                " reach; set it to http://host:port as they do"
            )
        return self

    @model_validator(mode="after")
    def _somebody_says_where_clients_are(self) -> AgentSettings:
        if self.location_header and not self.trusted_proxies:
            raise ValueError("LOCATION_HEADER: is believed from trusted proxies alone; set TRUSTED_PROXIES too")
        return self

    @model_validator(mode="after")
    def _tls_files(self) -> AgentSettings:
        traffic = (self.traffic_certificate_file, self.traffic_key_file)
        if (traffic[0] is None) != (traffic[1] is None) or (self.traffic_client_ca_file and traffic[0] is None):
            raise ValueError(
                "TRAFFIC_CERTIFICATE_FILE: goes with TRAFFIC_KEY_FILE; set both (for TRAFFIC_CLIENT_CA_FILE too)"
            )
        peer = (self.peer_certificate_file, self.peer_key_file, self.peer_ca_file)
        if len({file is None for file in peer}) > 1:
            raise ValueError("PEER_CERTIFICATE_FILE: goes with PEER_KEY_FILE and PEER_CA_FILE; set all or none")
        if (self.etcd_certificate_file is None) != (self.etcd_key_file is None):
            raise ValueError("ETCD_CERTIFICATE_FILE: goes with ETCD_KEY_FILE; set both")
        if self.etcd_certificate_file is not None and self.etcd_ca_file is None:
            raise ValueError("ETCD_CERTIFICATE_FILE: is shown over TLS alone; set ETCD_CA_FILE too")
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
    """Settings from the environment, with `overrides` by field name before it.

    Raises:
        BadSettings: some are missing or malformed; the message never shows a URL that may hold a password.
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
